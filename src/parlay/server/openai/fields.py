"""The fields of requests: which there are, their types, and what they make of the engine's parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import msgspec

from parlay.config import ServerConfig, build
from parlay.errors import ConfigError, shown
from parlay.server.errors import ApiError
from parlay.server.openai.foreign_fields import COUNTED, ForeignField
from parlay.server.openai.translate import ignored_keys, nested_tool, objects_of, translated, without_empty
from parlay.types.params import SamplingParams

F = TypeVar("F", bound="BodyFields")

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


@dataclass(frozen=True, kw_only=True)
class BodyFields:
    """What every body may have.

    Attributes:
        endpoint: whose body it is, a key of `RENAMED`.
        sampling: names of the sampling parameters that it may have besides its own fields.
        model: a name of the served model; optional.
    """

    endpoint: ClassVar[str]
    sampling: ClassVar[frozenset[str]] = frozenset()

    model: str | None = None

    def warnings(self, *, strict: bool) -> tuple[str, ...]:
        """Return warnings for the client about its fields.

        Args:
            strict: whether unknown keys of objects are refused.

        Raises:
            ApiError: a key of an object is unknown and looks like a misspelling, or all of those are refused.
        """
        return ()


@dataclass(frozen=True, kw_only=True)
class RequestFields(BodyFields):
    """What every request for an answer may have besides sampling parameters.

    Attributes:
        stream: send the answer as it is generated.
        stream_options: with `include_usage` true, the last chunk has the usage of the whole request; with
            `continuous_usage_stats` too, every chunk has the usage so far.
        user: a label without effect.
        safety_identifier: a label without effect.
        prompt_cache_key: a label without effect.
        metadata: labels without effect.
        store: accepted and ignored; only `/v1/responses` stores answers.
        service_tier: accepted and ignored.
    """

    sampling: ClassVar[frozenset[str]] = SAMPLING

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
                "stream_options needs stream; leave it out or set stream to true", param="stream_options"
            )


@dataclass(frozen=True, kw_only=True)
class CommonFields(RequestFields):
    """What completions and chat completions have in common.

    Attributes:
        return_sources: return `sources`, the drafting method of each piece of the text.
        return_token_ids: return `token_ids` and `prompt_token_ids`.
        return_tokens_as_token_ids: write the tokens of log-probabilities as `token_id:ID`.
        return_metrics: return `metrics.speculative_decoding`, in vLLM's form; when streaming, with the usage.
        prediction: a text that the answer will mostly repeat, `{"type": "content", "content": ...}`; it makes the
            answer come faster and changes nothing in it.
    """

    return_sources: bool = False
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    return_metrics: bool = False
    prediction: PredictedOutput | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
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

    def warnings(self, *, strict: bool) -> tuple[str, ...]:
        """Return warnings for the client about its fields."""
        options = self.stream_options or {}
        found = [ignored_keys("stream_options", options, _STREAM_OPTIONS, strict=strict)]
        if options.get("include_obfuscation"):
            found.append("include_obfuscation: ignored, since chunks are never padded")
        if self.store:
            found.append("store: ignored, since only /v1/responses stores answers")
        return tuple(filter(None, found))

    @property
    def include_usage(self) -> bool:
        """Whether a streamed answer ends with its usage."""
        return bool((self.stream_options or {}).get("include_usage"))

    @property
    def continuous_usage(self) -> bool:
        """Whether every chunk of such an answer has it."""
        return self.include_usage and bool((self.stream_options or {}).get("continuous_usage_stats"))


@dataclass(frozen=True, kw_only=True)
class FormFields:
    """The form of an answer.

    Attributes:
        response_format: `{"type": "text"}`, `{"type": "json_object"}`, or `{"type": "json_schema", "json_schema":
            {"name": ..., "schema": ...}}`.
        disable_additional_properties: objects of JSON schemas and of tools have no properties but those that are
            listed, unless the schema says `additionalProperties`.
    """

    response_format: dict[str, Any] | None = None
    disable_additional_properties: bool = True


@dataclass(frozen=True, kw_only=True)
class CompletionFields(CommonFields, FormFields):
    """The body of `/v1/completions`, besides sampling parameters.

    Attributes:
        prompt: text, token ids, or a list of either.
        echo: begin the text with the prompt.
        add_special_tokens: add the tokenizer's special tokens, such as one for the beginning of a text.
    """

    endpoint: ClassVar[str] = "completions"

    prompt: Any = None
    echo: bool = False
    add_special_tokens: bool = True


@dataclass(frozen=True, kw_only=True)
class TemplatedFields:
    """What the chat template makes a prompt of, besides the messages.

    Attributes:
        tools: functions that the model may call, as `{"type": "function", "function": {"name", "parameters"}}`, and
            tools whose calls have a text as input, as `{"type": "custom", "custom": {"name", "description"}}`.
        tool_choice: `none`, `auto`, `required`, `{"type": "function", "function": {"name"}}`, likewise `custom`, or
            `{"type": "allowed_tools", "allowed_tools": {"mode", "tools"}}`.
        chat_template: the name of one of the model's templates or, if the server allows it, another template.
        add_generation_prompt: end the prompt with the beginning of an answer.
        continue_final_message: continue the last message.
        chat_template_kwargs: further variables that the template reads.
        reasoning_effort: a variable that the template reads, such as `low`; `none` also unsets `enable_thinking`.
        verbosity: a variable that the template reads, such as `low`.
    """

    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    chat_template: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    reasoning_effort: str | None = None
    verbosity: str | None = None


@dataclass(frozen=True, kw_only=True)
class ChatFields(CommonFields, TemplatedFields, FormFields):
    """The body of `/v1/chat/completions`, besides sampling parameters.

    Attributes:
        messages: with `role` and `content`, which is text, a list of parts, or null beside tool calls.
        logprobs: return log-probabilities.
        top_logprobs: return this many most likely tokens at each position.
        max_completion_tokens: another name of `max_tokens`.
        parallel_tool_calls: whether an answer may have several tool calls.
        modalities: `["text"]`.
        include_reasoning: return the reasoning before the answer as `reasoning_content`.
    """

    endpoint: ClassVar[str] = "chat"

    messages: list[dict[str, Any]] = field(default_factory=list)
    logprobs: bool = False
    top_logprobs: int | None = None
    max_completion_tokens: int | None = None
    parallel_tool_calls: bool = True
    modalities: list[str] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    include_reasoning: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tool_choice == "auto" and not self.tools:  # clients send it without tools too
            object.__setattr__(self, "tool_choice", None)
        if self.tools:
            object.__setattr__(self, "tools", [nested_tool(tool) for tool in self.tools])
        if self.modalities not in (None, [], ["text"]):
            raise ConfigError("modalities: the model writes text only; leave it out", param="modalities")
        if self.top_logprobs and not self.logprobs:
            raise ConfigError("top_logprobs needs logprobs; set logprobs to true", param="top_logprobs")


@dataclass(frozen=True, kw_only=True)
class TokenizeFields(BodyFields, TemplatedFields):
    """The body of `/tokenize`.

    Attributes:
        prompt: text; or give messages.
        messages: a conversation, put through the chat template as chat completions do.
        add_special_tokens: add the tokenizer's special tokens; None adds them to a prompt and not to messages.
        return_token_strs: return each token's text too.
    """

    endpoint: ClassVar[str] = "tokenize"

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool = False

    def __post_init__(self) -> None:
        if (self.prompt is None) == (self.messages is None):
            raise ConfigError("give either prompt or messages", param="prompt")


@dataclass(frozen=True, kw_only=True)
class DetokenizeFields(BodyFields):
    """The body of `/detokenize`.

    Attributes:
        tokens: token ids.
    """

    endpoint: ClassVar[str] = "detokenize"

    tokens: list[int]


_BODIES = (CompletionFields, ChatFields, TokenizeFields, DetokenizeFields)
KNOWN = SAMPLING | {f.name for cls in _BODIES for f in fields(cls)}


_COMPLETIONS = "it comes with completions and chat completions only"


@cache
def _others(cls: type) -> Mapping[str, ForeignField]:
    """Return the fields of other endpoints that a class lacks: their defaults change nothing."""
    if cls in (TokenizeFields, DetokenizeFields):
        return dict.fromkeys(KNOWN, COUNTED)
    found: dict[str, ForeignField] = {}
    common = {f.name for f in fields(CommonFields)}
    for other in (SamplingParams, *_BODIES):
        for f in fields(other):
            default = f.default_factory() if f.default_factory is not MISSING else f.default
            why = _COMPLETIONS if f.name in common else "it is a field of another endpoint"
            found.setdefault(f.name, ForeignField(why, () if default in (None, MISSING) else (default,)))
    return found


def parse(
    cls: type[F], body: Mapping[str, Any], *, strict: bool = False
) -> tuple[F, dict[str, Any], tuple[str, ...]]:
    """Return a body's own fields; apart, its sampling parameters; and warnings for the client.

    Args:
        cls: whose body it is.
        body: what the client sent.
        strict: refuse all unknown fields.

    Raises:
        ApiError: a field is refused, or of the wrong type.
    """
    own = {f.name for f in fields(cls)}
    kind: type = cls  # mypy takes the hash of a dataclass's objects for that of the class
    body, warnings = translated(cls.endpoint, body, own | cls.sampling, _others(kind), strict=strict)
    body = without_empty(body, objects_of(kind) | objects_of(SamplingParams))
    try:
        made = build(cls, {name: value for name, value in body.items() if name in own}, "field")
    except ConfigError as error:
        raise ApiError(400, str(error), param=error.param) from None
    sampling = {name: value for name, value in body.items() if name not in own}
    return made, sampling, warnings + made.warnings(strict=strict)


def make_params(values: Mapping[str, Any], config: ServerConfig) -> SamplingParams:
    """Return sampling parameters within the server's limits.

    Raises:
        ApiError: a value is beyond a limit.
        RequestError: a value is out of range.
    """
    lists = dict.fromkeys(("stop", "bad_words", "stop_token_ids"), config.max_stop)
    for name, most in {**lists, "logit_bias": config.max_logit_bias}.items():
        if isinstance(value := values.get(name), list | dict) and len(value) > most:
            raise _beyond(name, f"has {len(value)} entries", most)
    params = SamplingParams.parse(values)
    numbers = dict.fromkeys(("n", "best_of"), config.max_n)
    for name, most in {**numbers, "logprobs": config.max_logprobs, "prompt_logprobs": config.max_logprobs}.items():
        if (getattr(params, name) or 0) > most:
            raise _beyond(name, f"is {getattr(params, name)}", most)
    for name in ("stop", "bad_words"):
        longest = max(map(len, getattr(params, name)), default=0)
        if longest > config.max_stop_chars:
            raise _beyond(name, f"has a string of {longest} characters", config.max_stop_chars)
    return params


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
            404, f"the model {shown(asked)} does not exist; use {names}", param="model", code="model_not_found"
        )
