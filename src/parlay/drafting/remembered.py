"""The cost of steps on this machine, saved by one run for the next.

One small JSON file for each target, machine and number of threads. If it is missing, damaged or from elsewhere, costs
are measured anew.
"""

import fcntl
import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any

from parlay import env
from parlay.log import logger

_FORMAT = 4
_FILES = 64  # most files kept; the oldest are deleted
_SLOWEST = 600.0  # seconds that no step exceeds


@dataclass(slots=True)
class Costs:
    """Known seconds and acceptance.

    Attributes:
        steps: seconds by number of rows, and from how many steps each is known.
        drafting: seconds by a device proposer's name and by length of its drafts for one request.
        chances: by its name, the acceptance of its nodes at depth 1, 2, ...; a starting value.
    """

    steps: dict[int, tuple[float, int]] = field(default_factory=dict)
    drafting: dict[str, dict[int, float]] = field(default_factory=dict)
    chances: dict[str, list[float]] = field(default_factory=dict)


class CostFile:
    """Where the costs of one engine's steps are kept."""

    def __init__(
        self, numerics: str, threads: int, folder: Path | None = None, *, split: tuple[int, int] = (1, 1)
    ) -> None:
        """Read and write nothing yet.

        Args:
            numerics: names the target and its arithmetic.
            threads: of the kernels, all ranks together.
            folder: where files are kept; None takes the user's cache folder, if there is one.
            split: ranks that share each of the target's layers, and stages that have layers of their own.
        """
        self._key = {
            "numerics": numerics,
            "threads": threads,
            "split": list(split),
            "cpu": env.cpu()[0],
            "format": _FORMAT,
        }
        name = sha256(json.dumps(self._key).encode()).hexdigest()[:32]
        cache = env.cache_dir()
        folder = folder or (cache and cache / "costs")
        self._file = folder / f"{name}.json" if folder else None

    def read(self) -> Costs:
        """Return what is known; nothing if the file is damaged or was written for something else."""
        try:
            raw = json.loads(self._file.read_text()) if self._file else {}
            if not raw or raw["key"] != self._key:
                return Costs()
            return Costs(
                {int(rows): (_seconds(own), max(int(times), 1)) for rows, (own, times) in raw["steps"].items()},
                {
                    str(name): {int(length): _seconds(own) for length, own in times.items()}
                    for name, times in raw["drafting"].items()
                },
                {str(name): [_chance(one) for one in levels] for name, levels in raw["chances"].items()},
            )
        except FileNotFoundError:
            return Costs()
        except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            logger.debug("costs: %s cannot be used and is made anew (%s)", self._file, error)
            return Costs()

    def write(self, costs: Costs) -> None:
        """Save what is known, keeping what is known of other proposers."""
        if self._file is None:
            return
        with _alone(self._file):
            self._write(self._file, costs)

    def _write(self, file: Path, costs: Costs) -> None:
        others = self.read()
        drafting, chances = others.drafting | costs.drafting, others.chances | costs.chances
        whole: dict[str, Any] = {"key": self._key, "steps": costs.steps, "drafting": drafting, "chances": chances}
        written: Path | None = None
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=file.parent, suffix=".new", delete=False) as new:
                written = Path(new.name)
                json.dump(whole, new)
            written.replace(file)
            files = sorted(file.parent.glob("*.json"), key=lambda one: one.stat().st_mtime)
            for one in files[:-_FILES]:
                one.unlink(missing_ok=True)
        except OSError as error:
            logger.debug("costs: %s cannot be written (%s)", file, error)
            if written is not None:
                written.unlink(missing_ok=True)


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Let one process at a time read and write the files of a folder, where it can be locked."""
    with ExitStack() as stack:
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context((file.parent / "lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _seconds(value: object) -> float:
    """Return a time that a step may take.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(value, int | float) or not isfinite(value) or not 0 <= value < _SLOWEST:
        raise ValueError(f"{value!r} is no time of a step")
    return float(value)


def _chance(value: object) -> float:
    """Return a probability.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"{value!r} is no probability")
    return float(value)
