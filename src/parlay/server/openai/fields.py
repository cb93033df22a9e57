"""The fields of requests: which there are, their types, and what they make of the engine's parameters."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import msgspec

from parlay.config import ServerConfig, build
from parlay.errors import ConfigError, shown
from parlay.server.errors import ApiError
from parlay.server.openai.foreign_fields import COUNTED, ForeignField
from parlay.server.openai.translate import ignored_keys, nested_tool, objects_of, settled, translated
from parlay.types.params import SamplingParams

T = TypeVar("T")

# Functions cannot be sent, and a prediction has OpenAI's form.
SAMPLING = frozenset(f.name for f in fields(SamplingParams)) - {"logits_processors", "prediction"}

_STREAM_OPTIONS = ("include_usage", "continuous_usage_stats", "include_obfuscation")


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A piece of a text in OpenAI's form; there is no other type."""

    type: Literal["text"]
    text: str


class PredictedOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A predicted output in OpenAI's form; there is no other type."""

    type: Literal["content"]
    content: str | list[TextPart]

    @property
    def text(self) -> str:
        """The whole text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFields:
    """What every request for an answer may have besides sampling parameters.

    Attributes:
        model: whom to ask; the one that is served where left out.
        stream: send the answer while it grows.
        stream_options: with `include_usage` true, the last chunk has the usage of the whole request; with
            `continuous_usage_stats` too, every chunk has the usage so far.
        user: a label; nothing depends on it.
        safety_identifier: a label.
        prompt_cache_key: a label.
        metadata: labels.
        store: answers of `/v1/responses` alone are stored.
        service_tier: there is one for all.
    """

    model: str | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool = False
    service_tier: str | None = None

    def __post_init__(self) -> None:
        if self.stream_options and not self.stream:
            raise ConfigError(
                "stream_options is about streamed answers; leave it out or set stream to true", param="stream_options"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonFields(RequestFields):
    """What completions and chat completions have in common.

    Attributes:
        return_sources: give `sources`, which says who drafted each piece of the text.
        return_token_ids: give `token_ids` and `prompt_token_ids`.
        return_tokens_as_token_ids: write the tokens of log-probabilities as `token_id:ID`.
        return_metrics: give `metrics.speculative_decoding`, in vLLM's form; of a streamed answer with its usage.
        prediction: a text that the answer will mostly repeat, `{"type": "content", "content": ...}`; it makes the
            answer come faster and changes nothing in it.
    """

    return_sources: bool = False
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    return_metrics: bool = False
    prediction: PredictedOutput | None = None

    def __post_init__(self) -> None:
        RequestFields.__post_init__(self)
        for name, wanted in (self.stream_options or {}).items():
            if name in _STREAM_OPTIONS and not isinstance(wanted, bool):
                raise ConfigError(
                    f"{name} in stream_options must be true or false, not {shown(wanted)}", param="stream_options"
                )
        if self.return_metrics and self.stream and not self.include_usage:
            raise ConfigError(
                "return_metrics comes with the usage; set include_usage in stream_options to true",
                param="return_metrics",
            )

    def remarks(self, *, strict: bool) -> tuple[str, ...]:
        """Return warnings for the client about its fields.

        Args:
            strict: whether unknown keys are refused.

        Raises:
            ApiError: a key of an object is unknown and looks like a misspelling, or all of those are refused.
        """
        options = self.stream_options or {}
        found = [ignored_keys("stream_options", options, _STREAM_OPTIONS, strict=strict)]
        if options.get("include_obfuscation"):
            found.append("include_obfuscation: ignored, since chunks are never padded")
        if self.store:
            found.append("store: ignored, since answers of /v1/responses alone are stored")
        return tuple(filter(None, found))

    @property
    def include_usage(self) -> bool:
        """Whether a streamed answer ends with its usage."""
        return bool((self.stream_options or {}).get("include_usage"))

    @property
    def continuous_usage(self) -> bool:
        """Whether every chunk of such an answer has it."""
        return self.include_usage and bool((self.stream_options or {}).get("continuous_usage_stats"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionFields(CommonFields):
    """The body of `/v1/completions`, besides sampling parameters.

    Attributes:
        prompt: text, token ids, or a list of either.
        echo: begin the text with the prompt.
        add_special_tokens: those that the tokenizer itself adds to a text, such as one for its beginning.
    """

    endpoint: ClassVar[str] = "completions"

    prompt: Any = None
    echo: bool = False
    add_special_tokens: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFields(CommonFields):
    """The body of `/v1/chat/completions`, besides sampling parameters.

    Attributes:
        messages: with `role` and `content`, which is text, a list of parts, or null beside calls.
        logprobs: give log-probabilities.
        top_logprobs: of this many most likely tokens at each position.
        max_completion_tokens: another name of `max_tokens`.
        response_format: `{"type": "text"}`, `{"type": "json_object"}`, or `{"type": "json_schema", "json_schema":
            {"name": ..., "schema": ...}}`.
        tools: functions that the model may call, as `{"type": "function", "function": {"name", "parameters"}}`, and
            tools whose calls have a text as input, as `{"type": "custom", "custom": {"name", "description"}}`.
        tool_choice: `none`, `auto`, `required`, `{"type": "function", "function": {"name"}}`, likewise `custom`, or
            `{"type": "allowed_tools", "allowed_tools": {"mode", "tools"}}`.
        parallel_tool_calls: whether there may be several calls.
        modalities: `["text"]`.
        chat_template: the name of one of the model's own, or where the server allows it another template.
        add_generation_prompt: end the prompt with what begins an answer.
        continue_final_message: go on with the last message.
        chat_template_kwargs: further variables that the template reads.
        reasoning_effort: a variable that the template reads, such as `low`; `none` also unsets `enable_thinking`.
        verbosity: a variable that the template reads, such as `low`.
        include_reasoning: give what the model writes before its answer as `reasoning_content`.
        disable_additional_properties: objects of `response_format` and of tools have no properties but those that
            their schema lists, unless it says `additionalProperties`.
    """

    endpoint: ClassVar[str] = "chat"

    messages: list[dict[str, Any]] = field(default_factory=list)
    logprobs: bool = False
    top_logprobs: int | None = None
    max_completion_tokens: int | None = None
    response_format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    modalities: list[str] | None = None
    chat_template: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    include_reasoning: bool = True
    disable_additional_properties: bool = True

    def __post_init__(self) -> None:
        CommonFields.__post_init__(self)
        if self.tool_choice == "auto" and not self.tools:  # clients send it without tools too
            object.__setattr__(self, "tool_choice", None)
        if self.tools:
            object.__setattr__(self, "tools", [nested_tool(tool) for tool in self.tools])
        if self.modalities not in (None, [], ["text"]):
            raise ConfigError("modalities: the model writes text only; leave it out", param="modalities")
        if self.top_logprobs and not self.logprobs:
            raise ConfigError("top_logprobs needs logprobs; set logprobs to true", param="top_logprobs")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeFields:
    """The body of `/tokenize`.

    Attributes:
        model: whose tokenizer.
        prompt: text; or give messages.
        messages: a conversation, put through the chat template as chat completions do.
        add_special_tokens: those that the tokenizer itself adds; None adds them to a prompt and not to messages.
        add_generation_prompt: end a conversation with what begins an answer.
        continue_final_message: go on with the last message.
        tools: functions that the template shows.
        tool_choice: as in chat completions.
        chat_template: a template in place of the model's own, where the server allows it.
        chat_template_kwargs: further variables that the template reads.
        reasoning_effort: a variable that the template reads.
        verbosity: a variable that the template reads.
        return_token_strs: give each token's text too.
    """

    endpoint: ClassVar[str] = "tokenize"

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    reasoning_effort: str | None = None
    verbosity: str | None = None
    return_token_strs: bool = False

    def __post_init__(self) -> None:
        if (self.prompt is None) == (self.messages is None):
            raise ConfigError("give either prompt or messages", param="prompt")


@dataclass(frozen=True, slots=True, kw_only=True)
class DetokenizeFields:
    """The body of `/detokenize`.

    Attributes:
        model: whose tokenizer.
        tokens: token ids.
    """

    endpoint: ClassVar[str] = "detokenize"

    tokens: list[int]
    model: str | None = None


_BODIES = (CompletionFields, ChatFields, TokenizeFields, DetokenizeFields)
KNOWN = SAMPLING | {f.name for cls in _BODIES for f in fields(cls)}


@cache
def _others(cls: type) -> Mapping[str, ForeignField]:
    """Return the fields of other endpoints that a class lacks: their defaults change nothing."""
    if cls in (TokenizeFields, DetokenizeFields):
        return dict.fromkeys(KNOWN, COUNTED)
    found: dict[str, ForeignField] = {}
    for other in (SamplingParams, *_BODIES):
        for f in fields(other):
            default = [f.default_factory()] if f.default_factory is not MISSING else [f.default]
            found.setdefault(f.name, ForeignField("it is a field of another endpoint", tuple(default)))
    return found


def parse(
    cls: type[T], body: Mapping[str, Any], *, sampling: Collection[str] = (), strict: bool = False
) -> tuple[T, dict[str, Any], tuple[str, ...]]:
    """Return a body's own fields; apart, its sampling parameters; and warnings for the client.

    Args:
        cls: one of the above, or another with an `endpoint`.
        body: what the client sent.
        sampling: the sampling parameters that it may have.
        strict: refuse all unknown fields.

    Raises:
        ApiError: a field is refused, or of the wrong type.
    """
    own = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    endpoint: str = cls.endpoint  # type: ignore[attr-defined]
    body, warnings = translated(endpoint, body, own.union(sampling), _others(cls), strict=strict)  # type: ignore[arg-type]
    body = settled(body, objects_of(cls) | objects_of(SamplingParams))  # type: ignore[arg-type]
    try:
        made = build(cls, {name: value for name, value in body.items() if name in own}, "field")
    except ConfigError as error:
        raise ApiError(400, str(error), param=error.param) from None
    if isinstance(made, CommonFields):
        warnings += made.remarks(strict=strict)
    return made, {name: value for name, value in body.items() if name not in own}, warnings


def make_params(values: Mapping[str, Any], config: ServerConfig) -> SamplingParams:
    """Return sampling parameters within the server's limits.

    Raises:
        ApiError: a value is beyond a limit.
        RequestError: a value is out of range.
    """
    _limit(values, "stop", config.max_stop)
    _limit(values, "bad_words", config.max_stop)
    _limit(values, "stop_token_ids", config.max_stop)
    _limit(values, "logit_bias", config.max_logit_bias)
    params = SamplingParams.parse(values)
    for name, value in (("n", params.n), ("best_of", params.best_of)):
        if (value or 0) > config.max_n:
            raise _beyond(name, f"is {value}", config.max_n)
    for name, value in (("logprobs", params.logprobs), ("prompt_logprobs", params.prompt_logprobs)):
        if (value or 0) > config.max_logprobs:
            raise _beyond(name, f"is {value}", config.max_logprobs)
    for name in ("stop", "bad_words"):
        longest = max(map(len, getattr(params, name)), default=0)
        if longest > config.max_stop_chars:
            raise _beyond(name, f"has a string of {longest} characters", config.max_stop_chars)
    return params


def _limit(values: Mapping[str, Any], name: str, most: int) -> None:
    value = values.get(name)
    if isinstance(value, list | dict) and len(value) > most:
        raise _beyond(name, f"has {len(value)} entries", most)


def _beyond(name: str, what: str, most: int) -> ApiError:
    return ApiError(400, f"{name} {what}, above this server's limit of {most}; ask for less", param=name)


def check_model(asked: str | None, served: Sequence[str]) -> None:
    """Refuse another model than the one that is served, whose names are given.

    Of a path, the file's name and stem are names too. An empty name counts as left out.

    Raises:
        ApiError: it is another.
    """
    files = [Path(one).name for one in served]
    if asked and asked not in (*served, *files, *(file.removesuffix(".gguf") for file in files)):
        names = " or ".join(map(repr, served))
        raise ApiError(
            404, f"there is no model {shown(asked)} here but {names}", param="model", code="model_not_found"
        )
