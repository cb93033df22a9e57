"""The cost of a step on a machine, as a table: the clock of a replay, whose only noise is the noise asked for.

A step takes as long as the target's pass of so many rows that read so many keys, the engine's own work, host
proposers' look-ups, and the passes of a proposer with weights. The presets are of the order of magnitude that the
named models took on two cores; `measured` times the passes of a model here.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from parlay.drafting.cost import isotonic
from parlay.errors import ConfigError, nearest


@dataclass(frozen=True, slots=True)
class Passes:
    """The cost of a proposer with weights, as shares of the target's pass of as many rows as there are requests.

    Attributes:
        always: for processing the text, of as many rows as it is behind; while it is off it only holds them.
        begin: for a draft of any length.
        token: for each token of the longest draft.
    """

    always: float = 0.0
    begin: float = 0.0
    token: float = 0.0


@dataclass(frozen=True, slots=True)
class LookUps:
    """The cost of a host proposer, in seconds.

    Attributes:
        asked: for each draft that it is asked for.
        shown: for each new token that it is given.
    """

    asked: float = 0.0
    shown: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of everything in a step.

    Attributes:
        name: of the model and machine.
        passes: rows and seconds of the target's passes, ascending; linear in between and in proportion beyond.
        key: seconds for each key that a step reads.
        step: seconds of the engine's own work in a step.
        turn: seconds of it for each request that emits.
        look_ups: by host proposer, its cost; those that are not named cost nothing.
        drafting: by proposer with weights, the cost of its passes.
        otherwise: the same of a proposer that `drafting` does not name.
    """

    name: str
    passes: tuple[tuple[int, float], ...]
    key: float = 0.0
    step: float = 0.0
    turn: float = 0.0
    look_ups: Mapping[str, LookUps] = field(default_factory=dict)
    drafting: Mapping[str, Passes] = field(default_factory=dict)
    otherwise: Passes = Passes(begin=0.02, token=0.1)

    def __post_init__(self) -> None:
        rows = [count for count, _ in self.passes]
        if not rows or rows[0] != 1 or rows != sorted(set(rows)):
            raise ConfigError(f"the passes of {self.name!r} must begin with one row and ascend, not {rows}")
        if not all(0 < seconds < 1e3 for _, seconds in self.passes):
            raise ConfigError(f"each pass of {self.name!r} must take more than 0 seconds")

    def seconds(self, rows: int) -> float:
        """Return the time of the target's pass of so many rows, without keys; 0 for none."""
        (low, before), *more = self.passes
        if rows <= low:
            return before if rows else 0.0
        for high, after in more:
            if rows <= high:
                return before + (after - before) * (rows - low) / (high - low)
            low, before = high, after
        return before * rows / low

    @property
    def key_share(self) -> float:
        """The time of a key relative to a pass of one row."""
        return self.key / self.seconds(1)


_LOOK_UPS = {"ngram": LookUps(2e-6, 0.5e-6), "suffix": LookUps(9e-6, 2.5e-6)}
_HEADS = {
    "draft_model": Passes(begin=0.05, token=0.2),
    "eagle": Passes(always=0.05, begin=0.08, token=0.1),
    "eagle3": Passes(always=0.05, begin=0.08, token=0.1),
    "medusa": Passes(begin=0.1, token=0.03),
    "mlp_speculator": Passes(begin=0.05, token=0.08),
}
PRESETS: Mapping[str, Costs] = {
    costs.name: costs
    for costs in (
        Costs(
            name="smollm2-135m-bf16",
            passes=((1, 5.3e-3), (2, 5.6e-3), (4, 6.4e-3), (8, 8.5e-3), (16, 13e-3), (32, 23e-3), (64, 43e-3)),
            key=0.4e-6,
            step=120e-6,
            turn=40e-6,
            look_ups=_LOOK_UPS,
            drafting=_HEADS,
        ),
        Costs(
            name="smollm2-135m-fp32",
            passes=((1, 12e-3), (2, 17e-3), (4, 22e-3), (8, 35e-3), (16, 62e-3), (32, 118e-3)),
            key=0.8e-6,
            step=120e-6,
            turn=40e-6,
            look_ups=_LOOK_UPS,
            drafting=_HEADS,
        ),
        Costs(
            name="tiny-code-bf16",
            passes=((1, 0.55e-3), (2, 0.62e-3), (4, 0.72e-3), (8, 0.95e-3), (16, 1.5e-3), (32, 2.6e-3)),
            key=0.1e-6,
            step=60e-6,
            turn=20e-6,
            look_ups=_LOOK_UPS,
            drafting=_HEADS,
        ),
        Costs(  # 4 of 64 experts in each layer: nearly every row reads others
            name="mixture-of-64-bf16",
            passes=((1, 1.5e-3), (2, 2.7e-3), (4, 4.9e-3), (8, 7.9e-3), (16, 10.8e-3), (32, 17.8e-3)),
            key=0.1e-6,
            step=60e-6,
            turn=20e-6,
            look_ups=_LOOK_UPS,
            drafting=_HEADS,
        ),
    )
}


def preset(name: str) -> Costs:
    """Return a preset.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in PRESETS:
        raise ConfigError(f"there is no cost table {name!r}{nearest(name, list(PRESETS))}")
    return PRESETS[name]


def read(path: Path) -> Costs:
    """Read a cost table: a JSON object with the fields of `Costs`.

    Raises:
        ConfigError: there is none, or it is none.
    """
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        known = {f.name for f in fields(Costs)}
        if unknown := set(found) - known:
            raise ConfigError(f"{path} has {sorted(unknown)[0]!r}, which no cost table has")
        found["passes"] = tuple((int(rows), float(seconds)) for rows, seconds in found["passes"])
        found["look_ups"] = {name: LookUps(**taken) for name, taken in found.get("look_ups", {}).items()}
        found["drafting"] = {name: Passes(**shares) for name, shares in found.get("drafting", {}).items()}
        if "otherwise" in found:
            found["otherwise"] = Passes(**found["otherwise"])
        return Costs(**{"name": path.stem, **found})
    except OSError as error:
        raise ConfigError(f"there is no cost table to read: {error}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path} is no cost table: {error}; see `benchmarks.replays.costs.Costs`") from None


def of_passes(name: str, timed: Sequence[tuple[int, float]], key_share: float) -> Costs:
    """Return the costs of timed passes alone.

    Args:
        name: of the model.
        timed: rows and seconds.
        key_share: bytes of a key and its value beside those of all weights.
    """
    # More rows are never cheaper: where the times say so, it is noise.
    seconds = isotonic([taken for _, taken in timed], [1.0] * len(timed))
    passes = tuple((rows, taken) for (rows, _), taken in zip(timed, seconds, strict=True))
    return Costs(name=name, passes=passes, key=key_share * seconds[0])
