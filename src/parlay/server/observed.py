# ruff: noqa: D102 -- one table of names, whose meanings stand where they are counted
"""What the metrics read of an engine and of the HTTP front, for any classes of these."""

from collections.abc import Sequence
from typing import Protocol

from parlay.types.output import RequestOutput
from parlay.types.stats import StatsSnapshot


class Counted(Protocol):
    """An engine's counters since its last start, and how often it was restarted."""

    @property
    def stats(self) -> StatsSnapshot: ...
    @property
    def restarts(self) -> int: ...


class Ended(Protocol):
    """A request's end: its path, the status of the answer, the newest output of each prompt."""

    @property
    def endpoint(self) -> str: ...
    @property
    def status(self) -> int: ...
    @property
    def outputs(self) -> Sequence[RequestOutput]: ...
