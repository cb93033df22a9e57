"""Counts the bytes of weights while they are loaded, and reports progress."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from parlay.config import EngineConfig
from parlay.drafting.host_drafts import LoadedProposer
from parlay.types.progress import OnProgress, OnRead, Progress
from parlay.types.storage import MADE

_STEPS = 500  # progress reports; models of experts have tens of thousands of tensors


class LoadProgress:
    """The loading of a target and its proposers, as one count of bytes."""

    def __init__(self, config: EngineConfig, total: int, on_progress: OnProgress) -> None:
        """Report that nothing is loaded yet.

        Args:
            config: the engine's options.
            total: bytes of all weights.
            on_progress: function called with progress, the last time when all are loaded.
        """
        name = config.model.rstrip("/").rpartition("/")[2]
        self._name = f"{name} as {config.storage}" if config.storage in MADE else name
        self._total, self._on_progress, self._machines = total, on_progress, config.machines
        self._done = self._reported = 0
        self._report(self._name)

    def target(self, size: int) -> AbstractContextManager[OnRead]:
        """Load the target within, of `size` bytes; gives the function to call with every tensor."""
        return self._part(self._name, size)

    def proposer(self, method: LoadedProposer) -> AbstractContextManager[OnRead]:
        """Load a proposer within; gives the function to call with every tensor."""
        return self._part(f"weights of {method.name}", method.proposer.bytes_on(self._machines))

    @contextmanager
    def _part(self, what: str, size: int) -> Iterator[OnRead]:
        end = self._done + size

        def on_read(count: int) -> None:
            self._done = min(self._done + count, end)
            if self._done - self._reported >= self._total / _STEPS:
                self._report(what)

        yield on_read
        self._done = end  # what is no tensor, such as a buffer for results, is counted here
        if self._reported < end:
            self._report(what)

    def _report(self, what: str) -> None:
        self._reported = self._done
        self._on_progress(Progress(what, self._done, self._total))
