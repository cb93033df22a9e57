"""The fields of `/v1/responses`, and the same request as `/v1/chat/completions` has it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from parlay.errors import brief, nearest, shown
from parlay.server.errors import ApiError
from parlay.server.openai.fields import SAMPLING, parse

# Sampling parameters that mean something else there, or nothing.
_NOT_HERE = {
    "n": "a response is one answer; leave n out",
    "best_of": "a response is one answer; leave best_of out",
    "max_tokens": "max_tokens is called max_output_tokens here",
    "logprobs": "log-probabilities come with chat completions only; leave logprobs out",
    "prompt_logprobs": "log-probabilities come with chat completions only; leave prompt_logprobs out",
    "return_rejected": "rejected tokens come with chat completions only; leave return_rejected out",
}
_REFUSED = {
    "conversation": "no conversations are kept by name; give previous_response_id, or all items as input",
    "prompt": "no prompts are kept by name; give instructions and input",
    "context_management": "nothing is left out of a conversation; leave context_management out",
    "moderation": "nothing is moderated; leave moderation out",
}
_REASONING = ("effort", "summary", "generate_summary")
_TEXT = ("format", "verbosity")
_FORM = (
    "text is {'format': FORMAT}, FORMAT being {'type': 'text'}, {'type': 'json_object'} or {'type': 'json_schema', "
)
_FORM += "'name': ..., 'schema': {...}}"
_INCLUDABLE = "reasoning.encrypted_content"  # agents ask for it of every model; there is none

RESPONSE_SAMPLING = SAMPLING - _NOT_HERE.keys()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseFields:
    """The body of `/v1/responses`, besides sampling parameters.

    Attributes:
        input: text, or a list of items: messages, function calls and their outputs.
        instructions: a system message before everything else; those of earlier responses do not count any more.
        previous_response_id: a stored response, whose conversation this one goes on with.
        store: keep the response and its conversation for `previous_response_id`.
        model: whom to ask; the one that is served where left out.
        stream: send the answer while it grows.
        stream_options: `{"include_obfuscation": false}`, which is so anyway.
        max_output_tokens: of the answer.
        text: `{"format": ...}`, which is `{"type": "text"}`, `{"type": "json_object"}`, or `{"type": "json_schema",
            "name": ..., "schema": ...}`.
        tools: functions that the model may call, as `{"type": "function", "name", "parameters"}`.
        tool_choice: `none`, `auto`, `required`, `{"type": "function", "name": ...}`, or `{"type": "allowed_tools",
            "mode": ..., "tools": [...]}`.
        parallel_tool_calls: whether there may be several calls.
        disable_additional_properties: objects of a schema and of tools have no properties but those that are listed,
            unless it says `additionalProperties`.
        chat_template_kwargs: further variables that the template reads.
        metadata: labels.
        reasoning: `{"effort": ...}`, a variable that the template reads; the rest changes nothing.
        truncation: `disabled`; a conversation that is too long is refused.
        include: nothing more is given.
        background: false; who asks waits.
        max_tool_calls: of tools that the server runs, which are none.
        top_logprobs: 0.
        service_tier: there is one for all.
        user: a label; nothing depends on it.
        safety_identifier: a label.
        prompt_cache_key: a label.
        prompt_cache_retention: a label.
    """

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool = True
    model: str | None = None
    stream: bool = False
    stream_options: dict[str, bool] | None = None
    max_output_tokens: int | None = None
    text: dict[str, Any] | None = None
    tools: list[dict[str, Any]] = field(default_factory=list)
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    disable_additional_properties: bool = True
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    reasoning: dict[str, Any] | None = None
    truncation: str = "disabled"
    include: list[str] = field(default_factory=list)
    background: bool = False
    max_tool_calls: int | None = None
    top_logprobs: int = 0
    service_tier: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None


def read_response(
    body: Mapping[str, Any], *, strict: bool = False
) -> tuple[ResponseFields, dict[str, Any], tuple[str, ...]]:
    """Return a body's own fields; apart, its sampling parameters; and what the client should be told.

    Args:
        body: what the client sent.
        strict: refuse all unknown fields.

    Raises:
        ApiError: something in it is not served, or malformed.
    """
    for name, message in (_REFUSED | _NOT_HERE).items():
        if name in body:
            raise ApiError(400, message, param=name, code="unsupported_parameter")
    asked, sampling, warnings = parse(ResponseFields, body, sampling=True, strict=strict)
    _check(asked)
    inner = {"reasoning": _REASONING, "text": _TEXT}
    told = [_ignored(name, getattr(asked, name) or {}, known, strict=strict) for name, known in inner.items()]
    return asked, sampling, (*warnings, *filter(None, told))


def _ignored(field: str, given: Mapping[str, Any], known: Sequence[str], *, strict: bool) -> str:
    """Return a warning about unknown keys; empty without any.

    Raises:
        ApiError: one is nearly a known key, or unknown ones are refused.
    """
    unknown = [key for key in given if key not in known]
    for key in unknown:
        hint = nearest(key, known)
        if strict or "did you mean" in hint:
            raise ApiError(400, f"unknown key {shown(key)} in {field}{hint}", param=field, code="unknown_parameter")
    return f"unknown keys of {field} were ignored: {brief(', '.join(map(shown, unknown)))}" if unknown else ""


def _check(asked: ResponseFields) -> None:
    wrong = {
        "input": "input is empty; give a text or at least one item" if not asked.input else None,
        "max_output_tokens": f"max_output_tokens must be at least 1, not {shown(asked.max_output_tokens)}"
        if asked.max_output_tokens is not None and asked.max_output_tokens < 1
        else None,
        "background": "an answer is computed while its client waits; leave background out"
        if asked.background
        else None,
        "truncation": "nothing is left out of a conversation; set truncation to 'disabled' and shorten the input"
        if asked.truncation != "disabled"
        else None,
        "top_logprobs": "log-probabilities come with chat completions only; leave top_logprobs out"
        if asked.top_logprobs
        else None,
        "include": f"include may have {_INCLUDABLE!r} at most, of which there is none; leave it out"
        if set(asked.include) - {_INCLUDABLE}
        else None,
    }
    for name, message in wrong.items():
        if message is not None:
            raise ApiError(400, message, param=name)
    if asked.stream_options is not None and not asked.stream:
        raise ApiError(
            400, "stream_options is about streamed answers; leave it out or set stream to true",
            param="stream_options",
        )  # fmt: skip
    for name, wanted in (asked.stream_options or {}).items():
        if name != "include_obfuscation" or wanted:
            raise ApiError(
                400, "stream_options may have include_obfuscation alone, and that false; leave it out",
                param="stream_options",
            )  # fmt: skip


def chat_fields(asked: ResponseFields) -> dict[str, Any]:
    """Return the body of chat completions that asks for the same, without its messages and sampling parameters.

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
    if asked.tools:
        found["tools"] = [_tool(tool) for tool in asked.tools]
    if asked.tools or asked.tool_choice not in ("auto", "none"):  # agents send "auto" without tools too
        found["tool_choice"] = _choice(asked.tool_choice)
    wishes = {
        "reasoning_effort": (asked.reasoning or {}).get("effort"),
        "verbosity": (asked.text or {}).get("verbosity"),
    }
    found |= {name: value for name, value in wishes.items() if value is not None}
    form = _form(asked.text or {})
    return found if form is None else {**found, "response_format": form}


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a function with what its template may show; `strict` is about the server."""
    if tool.get("type") != "function":
        raise ApiError(
            400, f"this server runs no tools, {shown(tool.get('type'))} neither; describe functions of your own, as "
            "{'type': 'function', 'name': ..., 'parameters': ...}", param="tools", code="unsupported_value",
        )  # fmt: skip
    named = ("name", "description", "parameters")
    function = {name: tool[name] for name in named if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _choice(choice: str | dict[str, Any]) -> str | dict[str, Any]:
    if isinstance(choice, str) or choice.get("type") == "allowed_tools":
        return choice
    if choice.get("type") != "function":
        raise ApiError(
            400, "tool_choice is none, auto, required, {'type': 'function', 'name': ...} or "
            f"{{'type': 'allowed_tools', 'mode': ..., 'tools': [...]}}, not of type "
            f"{shown(choice.get('type'))}", param="tool_choice",
            code="unsupported_value",
        )  # fmt: skip
    return {"type": "function", "function": {"name": choice.get("name")}}


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


assert set(_NOT_HERE) <= SAMPLING
assert not SAMPLING & {f.name for f in fields(ResponseFields)}
