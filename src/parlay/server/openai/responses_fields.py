"""The fields of `/v1/responses`, and the same request as `/v1/chat/completions` has it."""

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from parlay.errors import ConfigError, listed, shown
from parlay.server.errors import ApiError
from parlay.server.openai.fields import SAMPLING, RequestFields
from parlay.server.openai.responses_tools import Functions, choice_of
from parlay.server.openai.translate import ignored_keys

# Sampling parameters that mean something else there, or nothing.
_NOT_HERE = frozenset({"n", "best_of", "max_tokens", "logprobs", "prompt_logprobs", "return_rejected"})
_REASONING = ("effort", "summary", "generate_summary")
_TEXT = ("format", "verbosity")
_FORM = (
    "text is {'format': FORMAT}, FORMAT being {'type': 'text'}, {'type': 'json_object'} or {'type': 'json_schema', "
)
_FORM += "'name': ..., 'schema': {...}}"
_ENCRYPTED = "reasoning.encrypted_content"  # agents ask for it of every model; there is none
_LOGPROBS = "message.output_text.logprobs"  # all else that may be included is of tools that OpenAI runs
_STREAM_OPTIONS = ("include_obfuscation", "include_usage")


@dataclass(frozen=True, kw_only=True)
class ResponseFields(RequestFields):
    """The body of `/v1/responses`, besides sampling parameters.

    Attributes:
        input: text, or a list of items: messages, function calls and their outputs.
        instructions: a system message before everything else; those of earlier responses do not count any more.
        previous_response_id: a stored response, whose conversation this one goes on with.
        store: keep the response and its conversation for `previous_response_id`.
        stream_options: `{"include_obfuscation": false}`, which is so anyway.
        max_output_tokens: most tokens of the answer, its reasoning included.
        text: `{"format": ...}`, which is `{"type": "text"}`, `{"type": "json_object"}`, or `{"type": "json_schema",
            "name": ..., "schema": ...}`.
        tools: functions that the model may call, as `{"type": "function", "name", "parameters"}`; of the types
            `custom` and `namespace` too. Tools that OpenAI runs are left out.
        tool_choice: `none`, `auto`, `required`, `{"type": "function", "name": ...}`, or `{"type": "allowed_tools",
            "mode": ..., "tools": [...]}`.
        parallel_tool_calls: whether there may be several calls.
        disable_additional_properties: objects of a schema and of tools have no properties but those that are listed,
            unless it says `additionalProperties`.
        chat_template_kwargs: further variables that the template reads.
        reasoning: `{"effort": ...}`, a variable that the template reads; the rest changes nothing.
        truncation: accepted and ignored; a conversation that is too long is refused.
        include: `message.output_text.logprobs` returns log-probabilities; others are ignored.
        background: must be false; background responses are not supported.
        max_tool_calls: accepted and ignored; the server runs no tools.
        top_logprobs: return this many most likely tokens at each position of the text.
        prompt_cache_retention: a label without effect.
    """

    endpoint: ClassVar[str] = "responses"
    sampling: ClassVar[frozenset[str]] = SAMPLING - _NOT_HERE
    # Those of completions: a response has its usage at its end.
    include_usage: ClassVar[bool] = False
    continuous_usage: ClassVar[bool] = False
    return_metrics: ClassVar[bool] = False

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool = True
    max_output_tokens: int | None = None
    text: dict[str, Any] | None = None
    tools: list[dict[str, Any]] = field(default_factory=list)
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    disable_additional_properties: bool = True
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    reasoning: dict[str, Any] | None = None
    truncation: str = "disabled"
    include: list[str] = field(default_factory=list)
    background: bool = False
    max_tool_calls: int | None = None
    top_logprobs: int = 0
    prompt_cache_retention: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self)

    def warnings(self, *, strict: bool) -> tuple[str, ...]:
        """Return warnings for the client about its fields."""
        inner = {"reasoning": _REASONING, "text": _TEXT, "stream_options": _STREAM_OPTIONS}
        found = [ignored_keys(name, getattr(self, name) or {}, known, strict=strict) for name, known in inner.items()]
        return tuple(filter(None, (*found, *_without_effect(self))))


def _without_effect(asked: ResponseFields) -> list[str]:
    """Return warnings for the client about values that are accepted."""
    found = []
    if asked.truncation != "disabled":
        found.append(f"truncation={shown(asked.truncation)}: ignored, since conversations are never truncated")
    more = [name for name in asked.include if name not in (_ENCRYPTED, _LOGPROBS)]
    if more:
        found.append(f"include: {listed(more)} ignored, since it is not supported")
    if (asked.stream_options or {}).get("include_obfuscation"):
        found.append("include_obfuscation: ignored, since events are never padded")
    return found


def _check(asked: ResponseFields) -> None:
    wrong = {
        "input": "input is empty; give a text or at least one item" if not asked.input else None,
        "max_output_tokens": f"max_output_tokens must be at least 1, not {shown(asked.max_output_tokens)}"
        if asked.max_output_tokens is not None and asked.max_output_tokens < 1
        else None,
        "top_logprobs": f"top_logprobs must be at least 0, not {shown(asked.top_logprobs)}"
        if asked.top_logprobs < 0
        else None,
        "background": "background responses are not supported; leave background out" if asked.background else None,
        "truncation": f"truncation is 'auto' or 'disabled', not {shown(asked.truncation)}"
        if asked.truncation not in ("auto", "disabled")
        else None,
    }
    for name, message in wrong.items():
        if message is not None:
            raise ConfigError(message, param=name)


def chat_fields(asked: ResponseFields, functions: Functions) -> dict[str, Any]:
    """Return the body of chat completions that asks for the same, without its messages and sampling parameters.

    Args:
        asked: the response's fields.
        functions: what its tools are in chat completions.

    Raises:
        ApiError: tools or form are malformed.
    """
    found: dict[str, Any] = {"stream": asked.stream, "parallel_tool_calls": asked.parallel_tool_calls}
    if asked.model is not None:
        found["model"] = asked.model
    if asked.max_output_tokens is not None:
        found["max_completion_tokens"] = asked.max_output_tokens
    if asked.chat_template_kwargs:
        found["chat_template_kwargs"] = asked.chat_template_kwargs
    if not asked.disable_additional_properties:
        found["disable_additional_properties"] = False
    if functions.tools:
        found["tools"] = functions.tools
    if functions.tools or asked.tool_choice not in ("auto", "none"):  # agents send "auto" without tools too
        found["tool_choice"] = choice_of(asked.tool_choice)
    if asked.top_logprobs or _LOGPROBS in asked.include:
        found |= {"logprobs": True, "top_logprobs": asked.top_logprobs}
    template_options = {
        "reasoning_effort": (asked.reasoning or {}).get("effort"),
        "verbosity": (asked.text or {}).get("verbosity"),
    }
    found |= {name: value for name, value in template_options.items() if value is not None}
    form = _form(asked.text or {})
    return found if form is None else {**found, "response_format": form}


def _form(text: dict[str, Any]) -> dict[str, Any] | None:
    form = text.get("format")
    kind = form.get("type") if isinstance(form, dict) else None
    if form is None or kind == "text":
        return None
    if kind == "json_object":
        return {"type": "json_object"}
    if kind != "json_schema" or not isinstance(form.get("schema"), dict):
        raise ApiError(400, _FORM, param="text")
    return {"type": "json_schema", "json_schema": {"name": form.get("name"), "schema": form["schema"]}}


assert _NOT_HERE <= SAMPLING
assert not SAMPLING & {f.name for f in fields(ResponseFields)}
