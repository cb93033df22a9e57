"""Passes that are recorded once and replayed from then on.

At every level of a draft a proposer runs a few kernels of microseconds, and the Python code that calls them takes as
long again. So a pass is recorded when it runs for the first time, on memory that stays where it is.
"""

from collections.abc import Callable, Hashable, Iterable
from functools import partial

from parlay.kernels.base import Kernels

Pass = tuple[Hashable, Callable[[], object]]


class PassRecorder:
    """The passes of one proposer. Where nothing can be recorded they run as they are."""

    def __init__(self, kernels: Kernels, usable: bool = True) -> None:
        """Start without recordings.

        Args:
            kernels: operations that the passes call.
            usable: whether passes compute with kernels alone.
        """
        self._kernels, self._usable = kernels, usable
        self._passes: dict[Hashable, Callable[[], None]] = {}

    def run(self, passes: Iterable[Pass]) -> None:
        """Run passes one after another; no Python runs between recorded ones.

        Args:
            passes: key and work of each; the key covers everything that is not in the tensors that the work reads.
        """
        known = [self._passes.get(key) or partial(self._record, key, work) for key, work in passes]
        for run in known:
            run()

    def _record(self, key: Hashable, work: Callable[[], object]) -> None:
        """Run a pass for the first time."""
        replay = self._kernels.record(work) if self._usable else None
        if replay is None:  # nothing can be recorded here, and nothing has run
            work()
        else:
            self._passes[key] = replay
