"""The OpenAPI document: endpoints, the bodies as the dataclasses they are read into, answers, keys and examples."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
from starlette.responses import Response

from parlay import __version__
from parlay.config.docs import attribute_docs
from parlay.server.anthropic.fields import MessagesFields
from parlay.server.context import Context
from parlay.server.openai.fields import (
    SAMPLING,
    BodyFields,
    ChatFields,
    CommonFields,
    CompletionFields,
    DetokenizeFields,
    TokenizeFields,
)
from parlay.server.openai.responses_fields import ResponseFields
from parlay.server.openai.translate import objects_of
from parlay.types.params import SamplingParams, SpeculationOverride
from parlay.types.structured import StructuredOutputsParams

_REF = "#/components/schemas/{name}"
Handler = Callable[[Context], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A path and a method of the server.

    Attributes:
        path: the path as Starlette has it, perhaps with `{name}`.
        handler: answers a request; the operation is called after it.
        summary: what it does.
        method: the HTTP method.
        body: the dataclass that its body is read into.
        answer: the schema of its answer; empty for text.
        errors: errors by status, besides those of every body and that of a missing key.
        streams: the answer may come as server-sent events.
    """

    path: str
    handler: Handler
    summary: str
    method: str = "GET"
    body: type[BodyFields] | None = None
    answer: str = ""
    errors: Mapping[str, str] = field(default_factory=dict)
    streams: bool = False


_IDS: dict[str, Any] = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_TEXT = {"type": "string", "minLength": 1}
_GUIDED: dict[str, dict[str, Any]] = {
    "guided_json": {"anyOf": [{"type": "object"}, _TEXT]},
    "guided_regex": _TEXT,
    "guided_choice": {"type": "array", "items": _TEXT, "minItems": 1},
    "guided_grammar": _TEXT,
}

_PROMPT = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {**_IDS, "minItems": 1},
        {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
        {"type": "array", "items": {**_IDS, "minItems": 1}, "minItems": 1},
    ]
}
_MESSAGES = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "properties": {
            "role": {"type": "string"},
            "content": {
                "anyOf": [
                    {"type": "string"},
                    {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "object"}]}},
                    {"type": "null"},
                ]
            },
        },
        "required": ["role"],
    },
}
_INPUT = {"anyOf": [_TEXT, {"type": "array", "items": {"type": "object"}, "minItems": 1}]}
# Schemas of the fields that a body must have.
_NEEDED: dict[type[BodyFields], dict[str, dict[str, Any]]] = {
    CompletionFields: {"prompt": _PROMPT},
    ChatFields: {"messages": _MESSAGES},
    ResponseFields: {"input": _INPUT},
    MessagesFields: {"messages": _MESSAGES},
    TokenizeFields: {},
    DetokenizeFields: {"tokens": _IDS},
}
_EXAMPLES: dict[type[BodyFields], dict[str, Any]] = {
    CompletionFields: {"prompt": "def add(a, b):", "max_tokens": 16, "temperature": 0},
    ChatFields: {"messages": [{"role": "user", "content": "Write a loop."}], "max_tokens": 16},
    ResponseFields: {"input": "Write a loop.", "max_output_tokens": 16},
    MessagesFields: {"messages": [{"role": "user", "content": "Write a loop."}], "max_tokens": 16},
    TokenizeFields: {"prompt": "def add(a, b):"},
    DetokenizeFields: {"tokens": [100, 101]},
}
_BODY_ERRORS = {
    "400": "invalid request", "404": "no such model", "408": "the body arrived too slowly",
    "413": "the body is too large", "415": "the body is not JSON", "429": "too many open requests",
    "503": "not ready", "504": "the request timed out",
}  # fmt: skip
_REPLAYED = [
    {"name": "stream", "in": "query", "schema": {"type": "boolean"}},
    {"name": "starting_after", "in": "query", "schema": {"type": "integer", "minimum": 0, "maximum": 999_999_999}},
]
_STRING = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
_ITEM = {"enum": ["message", "function_call", "custom_tool_call", "reasoning"]}
_MAYBE_STRING = {"type": ["string", "null"]}
_MAYBE_OBJECT = {"type": ["object", "null"]}


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object that has all of these properties, and may have more."""
    return {"type": "object", "properties": properties, "required": sorted(properties)}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _completion(kind: str, choice: dict[str, Any]) -> dict[str, Any]:
    common: dict[str, dict[str, Any]] = {
        "index": _COUNT,
        "logprobs": _MAYBE_OBJECT,
        "finish_reason": {"enum": ["stop", "length", "tool_calls"]},
        "stop_reason": {"type": ["string", "integer", "null"]},
    }
    usage = _object(
        prompt_tokens=_COUNT,
        completion_tokens=_COUNT,
        total_tokens=_COUNT,
        prompt_tokens_details=_object(cached_tokens=_COUNT),
        completion_tokens_details=_object(accepted_prediction_tokens=_COUNT, rejected_prediction_tokens=_COUNT),
        speculation=_object(steps=_COUNT, drafts=_COUNT, draft_tokens=_COUNT, without_draft={"type": "object"}),
    )
    return _object(
        id=_STRING,
        object={"const": kind},
        created=_COUNT,
        model=_STRING,
        system_fingerprint=_STRING,
        choices=_list(_object(**common, **choice)),
        usage=usage,
    )


_MESSAGE = _object(role={"const": "assistant"}, content=_MAYBE_STRING)
_MODEL = _object(
    id=_STRING,
    object={"const": "model"},
    type={"const": "model"},
    display_name=_STRING,
    created=_COUNT,
    created_at=_STRING,
    owned_by=_STRING,
    max_model_len=_COUNT,
    parlay={"type": "object"},
)
_ANSWERS: dict[str, dict[str, Any]] = {
    "Completion": _completion("text_completion", {"text": _STRING}),
    "ChatCompletion": _completion("chat.completion", {"message": _MESSAGE}),
    "Response": _object(
        id=_STRING,
        object={"const": "response"},
        created_at=_COUNT,
        status={"enum": ["completed", "incomplete"]},
        model=_STRING,
        output=_list(_object(type=_ITEM, id=_STRING)),
        usage=_object(input_tokens=_COUNT, output_tokens=_COUNT, total_tokens=_COUNT),
    ),
    "Message": _object(
        id=_STRING,
        type={"const": "message"},
        role={"const": "assistant"},
        model=_STRING,
        content=_list(_object(type={"enum": ["text", "thinking", "tool_use"]})),
        stop_reason={"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]},
        stop_sequence=_MAYBE_STRING,
        usage=_object(input_tokens=_COUNT, cache_read_input_tokens=_COUNT, output_tokens=_COUNT),
    ),
    "InputTokens": _object(input_tokens=_COUNT),
    "Deleted": _object(id=_STRING, object={"const": "response"}, deleted={"const": True}),
    "Tokens": _object(count=_COUNT, max_model_len=_COUNT, tokens=_list(_COUNT)),
    "Text": _object(prompt=_STRING),
    "Model": _MODEL,
    "Models": _object(object={"const": "list"}, data=_list(_MODEL)),
    "Version": _object(version=_STRING, numerics_id=_STRING),
    "Status": _object(status=_STRING),
    "Error": _object(error=_object(message=_STRING, type=_STRING, param=_MAYBE_STRING, code=_MAYBE_STRING)),
}


def document(
    endpoints: Sequence[Endpoint], model: str, open_paths: frozenset[str] | None, *, strict: bool
) -> dict[str, Any]:
    """Return the document.

    Args:
        endpoints: the server's endpoints.
        model: the served model's name, which is in an address.
        open_paths: those that need no key; None if none does.
        strict: whether unknown fields are refused.
    """
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        path = endpoint.path.replace(":path", "")
        keyed = open_paths is not None and path not in open_paths
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, path, model, keyed=keyed)
    components: dict[str, Any] = {"schemas": schemas(strict=strict)}
    if open_paths is not None:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    info = {"title": "parlay", "version": __version__}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": components}


def _operation(endpoint: Endpoint, path: str, model: str, *, keyed: bool) -> dict[str, Any]:
    name = endpoint.handler.__name__
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "operationId": re.sub(r"\W", "_", f"{name}{path}") + f"_{endpoint.method.lower()}",
    }
    body = endpoint.body
    replayed = endpoint.streams and body is None
    if "{name}" in path:
        parameter = {"name": "name", "in": "path", "required": True, "schema": {"title": "Name", "type": "string"}}
        served = {"examples": {"served": {"value": model}}} if path.startswith("/v1/models") else {}
        operation["parameters"] = [{**parameter, **served}, *(_REPLAYED if replayed else ())]
    if body is not None:
        examples = {"whole": {"value": _EXAMPLES[body]}}
        if endpoint.streams:
            usage = {"stream_options": {"include_usage": True}} if issubclass(body, CommonFields) else {}
            examples["streamed"] = {"value": {**_EXAMPLES[body], "stream": True, **usage}}
        content = {"schema": _reference(body.__name__), "examples": examples}
        operation["requestBody"] = {"required": True, "content": {"application/json": content}}
    unauthorized = {"401": "missing or unknown API key"} if keyed else {}
    errors = {**(_BODY_ERRORS if body else {}), **endpoint.errors, **unauthorized}
    operation["responses"] = {
        "200": _success(endpoint.answer, streamed=endpoint.streams),
        **{status: {"description": errors[status], "content": _json("Error")} for status in sorted(errors)},
    }
    return {**operation, "security": [{"key": []}]} if keyed else operation


def _success(answer: str, *, streamed: bool) -> dict[str, Any]:
    """Return the description of a successful answer."""
    if not answer:
        return {"description": "the text", "content": {"text/plain": {"schema": {"type": "string"}}}}
    if streamed:
        description = "the response; with stream, its chunks as server-sent events"
        return {"description": description, "content": {**_json(answer), "text/event-stream": {}}}
    return {"description": "the response", "content": _json(answer)}


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": _reference(name)}}


def _reference(name: str) -> dict[str, str]:
    return {"$ref": _REF.format(name=name)}


def schemas(*, strict: bool = False) -> dict[str, Any]:
    """Return the schemas of bodies and answers; where `strict`, unknown fields are refused instead of ignored."""
    classes = [*_NEEDED]
    names = sorted(SAMPLING)
    hints = get_type_hints(SamplingParams, include_extras=True)
    made, found = msgspec.json.schema_components(
        [*(_in_json(hints[name]) for name in names), *classes], ref_template=_REF
    )
    sampling = dict(zip(names, made, strict=False))
    # With 0 a prompt is scored, or echoed; -1 is no limit.
    sampling["max_tokens"] = {"type": "integer", "minimum": -1}
    for part in (StructuredOutputsParams, SpeculationOverride):
        schema, helps = found[part.__name__], attribute_docs(part)
        schema.pop("description")
        schema["additionalProperties"] = False
        schema["properties"] = {
            name: {**_or_null(value, []), "description": helps[name]} for name, value in schema["properties"].items()
        }
    found[StructuredOutputsParams.__name__]["minProperties"] = 1
    helps = attribute_docs(SamplingParams)
    for cls in classes:
        schema = found[cls.__name__]
        own = attribute_docs(cls)
        needed = _NEEDED[cls]
        properties = schema["properties"] | needed
        if cls.sampling:
            properties = {name: sampling[name] for name in names if name in cls.sampling} | _GUIDED | properties
            own |= dict.fromkeys(_GUIDED, "Deprecated; use `structured_outputs`.")
        schema["properties"] = {
            name: {
                **(value if name in needed else _or_null(value, _also(cls, name))),
                "description": own.get(name, helps.get(name, "")),
            }
            for name, value in properties.items()
        }
        schema["required"] = sorted(needed)
        # Null counts as left out, whatever the name.
        schema["additionalProperties"] = {"type": "null"} if strict else True
        schema.pop("description", None)
    return found | _ANSWERS


def _in_json(hint: Any) -> Any:
    """Return the type of a field as it comes in JSON: a list is a list, and an object has its own class."""
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    named = [member for member in members if is_dataclass(member)]
    plain = [m for m in members if m is not NoneType and get_origin(m) is not tuple]
    return Union[tuple(named or plain)]  # noqa: UP007 - made of a list


def _also(cls: type, name: str) -> list[dict[str, Any]]:
    """Return the schemas of values that a field may have beside its own, and that stand for nothing."""
    found: list[dict[str, Any]] = []
    if name in objects_of(cls) | objects_of(SamplingParams):
        found += [{"type": "array", "maxItems": 0}, {"type": "object", "maxProperties": 0}]
    if name in ("reasoning_effort", "verbosity"):
        found.append({"enum": ["", "default", "auto"]})
    if name == "stop":
        found += [{"const": ""}, {"type": "array", "items": {"type": "string"}}]
    if name in _GUIDED:
        found += [{"const": ""}, {"type": "array", "maxItems": 0}]
    if name == "structured_outputs":
        found.append({"type": "boolean"})
    if name == "logprobs" and cls is CompletionFields:
        found.append({"const": False})
    return found


def _or_null(schema: dict[str, Any], also: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the schema of what may be null too, which counts as left out."""
    choices = schema["anyOf"] if "anyOf" in schema else [{k: v for k, v in schema.items() if k != "default"}]
    if {"type": "null"} in choices and not also:
        return schema
    choices = [*(one for one in choices if one != {"type": "null"}), *also]
    default = {"default": schema["default"]} if "default" in schema else {}
    return {"anyOf": [*choices, {"type": "null"}], **default}
