"""What the server reports to its metrics."""

from dataclasses import dataclass
from typing import Protocol

from parlay.types.output import RequestOutput


@dataclass(frozen=True, slots=True)
class Observation:
    """One request's end.

    Attributes:
        endpoint: its path.
        status: of the answer; 499 if the client left before it.
        seconds: from its arrival until then.
        outputs: the newest output of each prompt, of a stream the last delta; none for one that did not get so far.
    """

    endpoint: str
    status: int
    seconds: float
    outputs: tuple[RequestOutput, ...] = ()


class Metrics(Protocol):
    """Records what happens to requests, and shows it at `/metrics`."""

    def observe_first(self, seconds: float, replica: int) -> None:
        """Record the time from a request's arrival to the first tokens of a completion of a replica's."""

    def observe_step(self, seconds: float, tokens: int, replica: int) -> None:
        """Record the time between two outputs of a completion, and how many tokens the second added."""

    def observe_end(self, observation: Observation) -> None:
        """Record a request's end."""

    def expose(self) -> tuple[bytes, str]:
        """Return the page that a scraper reads, and its content type."""
