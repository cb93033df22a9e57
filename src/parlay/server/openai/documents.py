"""The OpenAPI document's descriptions of bodies: made from the dataclasses that bodies are read into."""

from dataclasses import is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from parlay.config.docs import attribute_docs
from parlay.server.openai.documents_answers import BODIES, STREAMED, answer_of, examples_of
from parlay.server.openai.fields import (
    SAMPLING,
    Asked,
    ChatFields,
    CompletionFields,
    DetokenizeFields,
    TokenizeFields,
)
from parlay.server.openai.responses_fields import RESPONSE_SAMPLING, ResponseFields
from parlay.server.openai.translate import objects_of
from parlay.types.params import SamplingParams, SpeculationOverride
from parlay.types.structured import StructuredOutputsParams

_REF = "#/components/schemas/{name}"


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
_SAMPLED: dict[type, frozenset[str]] = {
    CompletionFields: SAMPLING,
    ChatFields: SAMPLING,
    ResponseFields: RESPONSE_SAMPLING,
}
_NEEDED: dict[type, dict[str, dict[str, Any]]] = {
    CompletionFields: {"prompt": _PROMPT},
    ChatFields: {"messages": _MESSAGES},
    ResponseFields: {"input": _INPUT},
    DetokenizeFields: {"tokens": _IDS},
}

_REPLAYED = [
    {"name": "stream", "in": "query", "schema": {"type": "boolean"}},
    {"name": "starting_after", "in": "query", "schema": {"type": "integer", "minimum": 0, "maximum": 999_999_999}},
]

ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}


def schemas(*, strict: bool = False) -> dict[str, Any]:
    """Return the schemas that bodies refer to; where `strict`, unknown fields are refused instead of ignored."""
    classes = [CompletionFields, ChatFields, ResponseFields, TokenizeFields, DetokenizeFields]
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
        for name, value in schema["properties"].items():
            value["description"] = helps[name]
    found[StructuredOutputsParams.__name__]["minProperties"] = 1
    helps = attribute_docs(SamplingParams)
    for cls in classes:
        schema = found[cls.__name__]
        own = (attribute_docs(Asked) if issubclass(cls, Asked) else {}) | attribute_docs(cls)
        properties = schema["properties"] | _NEEDED.get(cls, {})
        if cls in _SAMPLED:
            properties = {name: sampling[name] for name in names if name in _SAMPLED[cls]} | _GUIDED | properties
            own |= dict.fromkeys(_GUIDED, "An older name of a part of `structured_outputs`.")
        needed = _NEEDED.get(cls, {})
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
    found["Error"] = ERROR
    return found


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


def body_of(cls: type) -> dict[str, Any]:
    """Return a route's description of its body, its answer and its errors."""
    schema = {"$ref": _REF.format(name=cls.__name__)}
    answers = {"400": "a field is wrong", "401": "no key", "404": "no such model", "413": "too large"}
    answers |= {"408": "too slow", "415": "no JSON", "429": "too many", "503": "not ready", "504": "took too long"}
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": schema, "examples": examples_of(cls)}},
        },
        "responses": answer_of(BODIES[cls][0], streamed=cls in STREAMED) | refusals(answers),
    }


def fact_of(name: str, *, streamed: bool = False, **more: str) -> dict[str, Any]:
    """Return the description of a route without a body: its answer, and errors besides a missing key."""
    errors = {status.removeprefix("e"): text for status, text in more.items()}
    found = {"responses": answer_of(name, streamed=streamed) | refusals({"401": "no key", **errors})}
    return {**found, "parameters": _REPLAYED} if streamed else found


def refusals(reasons: dict[str, str]) -> dict[str, Any]:
    """Return a route's description of its errors."""
    content = {"application/json": {"schema": {"$ref": _REF.format(name="Error")}}}
    return {status: {"description": text, "content": content} for status, text in reasons.items()}
