# ruff: noqa: D102 -- one table of names, whose meanings stand where they are counted
"""What the metrics read of an engine and of the HTTP front, whatever their own classes are."""

from collections.abc import Sequence
from typing import Protocol

from parlay.types.output import RequestOutput
from parlay.types.stats import StatsSnapshot


class Counted(Protocol):
    """An engine of which is read what it counts since its last start, and how often it was started anew."""

    @property
    def stats(self) -> StatsSnapshot: ...
    @property
    def restarts(self) -> int: ...


class Ended(Protocol):
    """What is read of a request's end: its path, the status of the answer, the newest output of each prompt."""

    @property
    def endpoint(self) -> str: ...
    @property
    def status(self) -> int: ...
    @property
    def outputs(self) -> Sequence[RequestOutput]: ...
