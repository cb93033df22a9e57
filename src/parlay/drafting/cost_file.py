"""What drafting has learnt of steps and proposers on this machine, saved by one run for the next.

Each target, machine and number of threads has an entry. What is missing or damaged is measured anew.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any

from parlay import system
from parlay.cache_file import CacheFile
from parlay.log import logger

_VERSION = 6
_MOST = 1e6  # no step takes as many seconds, and no count is as large


@dataclass(slots=True)
class Costs:
    """Measured costs and acceptance.

    Attributes:
        steps: seconds by number of rows, and from how many steps each is known.
        drafting: sums of a `DraftCost` by the name of its device proposer.
        acceptance: counts of a `belief.SourceBelief` by the name of its device proposer.
    """

    steps: dict[int, tuple[float, int]] = field(default_factory=dict)
    drafting: dict[str, Mapping[int, Sequence[float]]] = field(default_factory=dict)
    acceptance: dict[str, Sequence[Sequence[float]]] = field(default_factory=dict)


class CostFile:
    """Where the costs of one engine's steps are stored."""

    def __init__(
        self, numerics: str, threads: int, folder: Path | None = None, *, split: tuple[int, int] = (1, 1)
    ) -> None:
        """Prepare to read and write; the file is not touched yet.

        Args:
            numerics: id of the target and its arithmetic.
            threads: number of the kernels' threads, all ranks together.
            folder: folder of the file; None takes the user's cache folder, if there is one.
            split: ranks that share each of the target's layers, and stages that have layers of their own.
        """
        key = {"numerics": numerics, "threads": threads, "split": list(split), "cpu": system.processor()[0]}
        self._name = sha256(json.dumps(key).encode()).hexdigest()[:32]
        self._file = CacheFile("costs", _VERSION, folder=folder)

    def read(self) -> Costs:
        """Return what is known; nothing if it is damaged."""
        return self._of(self._file.read())

    def write(self, costs: Costs) -> None:
        """Save what is known; what is known of other proposers stays."""
        with self._file.changing() as entries:
            others = self._of(entries)
            drafting, acceptance = others.drafting | costs.drafting, others.acceptance | costs.acceptance
            entries[self._name] = {"steps": costs.steps, "drafting": drafting, "acceptance": acceptance}

    def _of(self, entries: Mapping[str, Any]) -> Costs:
        try:
            raw = entries[self._name]
            return Costs(
                {int(rows): (_number(own), max(int(times), 1)) for rows, (own, times) in raw["steps"].items()},
                {
                    str(name): {int(size): [_number(one) for one in sums] for size, sums in sizes.items()}
                    for name, sizes in raw["drafting"].items()
                },
                {
                    str(name): [[_number(accepted), _number(judged)] for accepted, judged in counts]
                    for name, counts in raw["acceptance"].items()
                },
            )
        except KeyError:
            return Costs()
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            logger.debug("costs: an entry cannot be used and is made anew (%s)", error)
            return Costs()


def _number(value: object) -> float:
    """Return a time or a count.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(value, int | float) or not isfinite(value) or not 0 <= value < _MOST:
        raise ValueError(f"{value!r} is no time or count")
    return float(value)
