"""What the server needs of an engine, and what it tells those who measure."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol

from parlay.engine.tokenizer import TextCodec
from parlay.types.output import RequestOutput
from parlay.types.params import SamplingParams
from parlay.types.prompt import Prompt


class Engine(Protocol):
    """An engine that serves coroutines: `AsyncLLM`, or a client of one in another process."""

    @property
    def model_name(self) -> str:
        """What answers call the model."""

    @property
    def model_names(self) -> tuple[str, ...]:
        """All names by which clients may ask for it, that one first."""

    @property
    def sampling_defaults(self) -> dict[str, Any]:
        """The model's own sampling parameters, for requests that give none."""

    @property
    def numerics_id(self) -> str:
        """Names everything that the bits of a token depend on besides its request."""

    @property
    def max_model_len(self) -> int:
        """Longest sequence, prompt and output together."""

    @property
    def codec(self) -> TextCodec:
        """The target's tokenizer and chat template."""

    @property
    def state(self) -> str:
        """`ready` when requests are taken; otherwise `starting`, `restarting` or `closed`."""

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
        tenant: str = "",
        timeout: float | None = None,
        final_only: bool = False,
    ) -> AsyncIterator[RequestOutput]:
        """Yield everything that one prompt's completions have so far, until they are finished; or just the last."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One request's end.

    Attributes:
        endpoint: its path.
        status: of the answer; 499 if the client left before it.
        seconds: from its arrival until then.
        outputs: the newest output of each prompt, none for one that did not get so far.
    """

    endpoint: str
    status: int
    seconds: float
    outputs: tuple[RequestOutput, ...] = ()


class Metrics(Protocol):
    """Who wants to know what happens to requests, and shows it at `/metrics`."""

    def observe_first(self, seconds: float) -> None:
        """Take note of the time from a request's arrival to the first tokens of a completion."""

    def observe_step(self, seconds: float, tokens: int) -> None:
        """Take note of the time between two outputs of a completion, and of how many tokens the second added."""

    def observe_end(self, observation: Observation) -> None:
        """Take note of a request's end."""

    def expose(self) -> tuple[bytes, str]:
        """Return the page that a scraper reads, and its content type."""
