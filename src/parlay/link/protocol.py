"""The messages between an asynchronous engine and what computes for it: one per step.

Between processes they are msgpack, and everything is plain data. Only what the front needs is sent: of a request's
progress only what is new, of log-probabilities only numbers, since both sides have the tokenizer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

import msgspec

from parlay import errors
from parlay.engine.memory import Memory
from parlay.errors import ParlayError, RequestError
from parlay.types.output import FinishReason, Rejected, RequestMetrics
from parlay.types.params import SamplingParams
from parlay.types.plan import TokenLogprobs
from parlay.types.progress import Progress
from parlay.types.stats import StatsSnapshot

_DEFAULTS = {f.name: f.default for f in fields(SamplingParams)}

# In the order of the fields of `TokenLogprobs` and of `RequestMetrics`.
Scores = tuple[float, int, tuple[tuple[int, float], ...]]
_Counts = tuple[tuple[str, int], ...]
_Steps = tuple[tuple[int, int], ...]
Metrics = tuple[int, int, int, tuple[int, ...], int, int, int, int, float, float, float, float, _Counts, str, _Steps]


class Add(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Queue a prompt.

    Attributes:
        key: the front's name for the request.
        prompt: token ids.
        params: those fields of `SamplingParams` that differ from their defaults.
        priority, tenant, timeout: the request's, see `AsyncLLM.generate`.
        final_only: send nothing before the request has finished.
    """

    key: int
    prompt: tuple[int, ...]
    params: dict[str, Any]
    priority: int = 0
    tenant: str = ""
    timeout: float | None = None
    final_only: bool = False


class Abort(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """End a request; it will not be mentioned again."""

    key: int


class Stop(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """End the process."""


class EngineReady(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The engine is loaded.

    Attributes:
        numerics_id: the engine's numerics id.
        max_model_len: longest sequence, prompt and output together.
        vocab_size: number of tokens; all ids are below.
        tokenizer: where the tokenizer's files are.
        methods: speculative methods that a request may name.
        sampling: parameters for requests that give none.
        memory: what weights and cache take.
    """

    numerics_id: str
    max_model_len: int
    vocab_size: int
    tokenizer: str
    methods: tuple[str, ...]
    sampling: dict[str, int | float]
    memory: Memory


class EngineLoading(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The engine is being loaded; some of these may be dropped."""

    progress: Progress


class Failure(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Why the engine cannot start or, with a key, why one request has no answer.

    Attributes:
        kind: name of a class in `parlay.errors`.
        message: the error's text.
        key: the request.
        param: the parameter at fault.
    """

    kind: str
    message: str
    key: int | None = None
    param: str | None = None

    @classmethod
    def of(cls, error: BaseException, what: str, key: int | None = None) -> "Failure":
        """Describe an error; `what` begins the sentence about an unexpected one."""
        if isinstance(error, ParlayError):
            return cls(type(error).__name__, str(error), key, error.param)
        return cls(ParlayError.__name__, f"{what} ({type(error).__name__}: {errors.brief(str(error))})", key)

    def error(self) -> ParlayError:
        """Return the error to raise in the front."""
        kind = getattr(errors, self.kind, None)
        made = kind if isinstance(kind, type) and issubclass(kind, ParlayError) else ParlayError
        return made(self.message, param=self.param)


class Delta(msgspec.Struct, frozen=True, array_like=True):
    """What one completion has that was not sent before.

    Attributes:
        key: the request.
        request_id: the engine's id.
        index: the completion's index in its request.
        tokens: further tokens.
        text: further text.
        sources: the source of each token.
        logprobs: log-probabilities of the tokens, when asked for.
        finish_reason, stop_reason: why it finished, see `CompletionOutput`.
        metrics: the completion's metrics, as they are now.
        rejected: further nodes that were not accepted, when asked for.
    """

    key: int
    request_id: int
    index: int
    tokens: list[int]
    text: str
    sources: list[str]
    logprobs: list[Scores] | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None
    metrics: Metrics
    rejected: list[Rejected] | None = None


class PromptScores(msgspec.Struct, frozen=True, array_like=True):
    """The log-probabilities of a prompt's second token and those after it."""

    key: int
    scores: list[Scores]


class Outputs(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The results of one step, of several where the front was behind, or of a command."""

    deltas: list[Delta]
    prompts: list[PromptScores]
    failures: list[Failure]
    stats: StatsSnapshot | None = None


class KeepAlive(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The engine's process runs, whatever it is loading."""


Command = Add | Abort | Stop
Report = EngineLoading | KeepAlive | EngineReady | Failure | Outputs


class ProtocolError(ValueError):
    """A report contradicts what was sent to the engine."""


_encoder = msgspec.msgpack.Encoder()
_commands: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_reports: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)
decode_command, decode_report = _commands.decode, _reports.decode


def encode(message: Command | Report) -> bytes:
    """Return a message as bytes.

    Raises:
        RequestError: it holds Python functions, an integer beyond 64 bits, or text that is not valid Unicode.
    """
    if isinstance(message, Add) and "logits_processors" in message.params:
        raise RequestError(
            "logits_processors are Python functions, which cannot be sent to the engine's process; "
            "leave them out, or use LLM or AsyncLLM",
            param="logits_processors",
        )
    try:
        return _encoder.encode(message)
    except OverflowError:
        raise RequestError("a request's integers must fit into 64 bits; give smaller ones") from None
    except UnicodeEncodeError:
        raise RequestError("a text in the request is not valid Unicode; decode it with the right encoding") from None


def plain_params(params: SamplingParams) -> dict[str, Any]:
    """Return parameters as data, such as `SamplingParams(**data)` takes; plain but for Python functions."""
    values = {name: getattr(params, name) for name in _DEFAULTS}
    changed = {name: value for name, value in values.items() if value != _DEFAULTS[name]}
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in changed.items()}


_metrics = attrgetter(*(f.name for f in fields(RequestMetrics)))
_scores = attrgetter(*(f.name for f in fields(TokenLogprobs)))


def plain_metrics(metrics: RequestMetrics) -> Metrics:
    """Return metrics as `RequestMetrics(*values)` takes them."""
    values: Metrics = _metrics(metrics)
    return values


def plain_scores(entries: Sequence[TokenLogprobs]) -> list[Scores]:
    """Return log-probabilities as `TokenLogprobs(*values)` takes them."""
    return [_scores(entry) for entry in entries]
