"""What drafting has learnt of steps and proposers on this machine, saved by one run for the next.

Each target, machine and number of threads has an entry. What is missing or damaged is measured anew.
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, field

from parlay import env
from parlay.cache_file import CacheFile
from parlay.log import logger

_VERSION = 6
_Number = Annotated[float, Meta(ge=0, lt=1e6)]  # no step takes as many seconds, and no count is as large
_Pair = Annotated[list[_Number], Meta(min_length=2, max_length=2)]


class Costs(msgspec.Struct):
    """What is known.

    Attributes:
        steps: seconds by number of rows, and from how many steps each is known.
        drafting: by a device proposer's name, what `DraftCost` knows.
        acceptance: by its name, what `belief.SourceBelief` knows.
    """

    steps: dict[int, tuple[_Number, Annotated[int, Meta(ge=1)]]] = field(default_factory=dict)
    drafting: dict[str, dict[int, list[_Number]]] = field(default_factory=dict)
    acceptance: dict[str, list[_Pair]] = field(default_factory=dict)


class CostFile:
    """Where the costs of one engine's steps are stored."""

    def __init__(
        self, numerics: str, threads: int, folder: Path | None = None, *, split: tuple[int, int] = (1, 1)
    ) -> None:
        """Read and write nothing yet.

        Args:
            numerics: names the target and its arithmetic.
            threads: of the kernels, all ranks together.
            folder: where the file is; None takes the user's cache folder, if there is one.
            split: ranks that share each of the target's layers, and stages that have layers of their own.
        """
        key = {"numerics": numerics, "threads": threads, "split": list(split), "cpu": env.cpu()[0]}
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
            return msgspec.convert(entries.get(self._name, {}), Costs, str_keys=True)
        except msgspec.ValidationError as error:
            logger.debug("costs: an entry cannot be used and is made anew (%s)", error)
            return Costs()
