"""The OpenAPI document's descriptions of bodies: made from the dataclasses that bodies are read into."""

from typing import Any

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
from parlay.types.params import SamplingParams

_REF = "#/components/schemas/{name}"


def _number(low: float, high: float) -> dict[str, Any]:
    return {"type": "number", "minimum": low, "maximum": high}


def _integer(low: int, high: int | None = None) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, **({} if high is None else {"maximum": high})}


_IDS = {"type": "array", "items": _integer(0)}
_TEXT = {"type": "string", "minLength": 1}
_TEXTS = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]}

# What JSON can say about each; the rest is said in words.
_SAMPLING: dict[str, dict[str, Any]] = {
    "n": _integer(1),
    "best_of": _integer(1),
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "repetition_penalty": _number(0.01, 100),
    "temperature": _number(0, 1e5),
    "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "top_k": _integer(-1),
    "min_p": _number(0, 1),
    "seed": _integer(-(1 << 63), (1 << 64) - 1),
    "max_tokens": _integer(0),
    "min_tokens": _integer(0),
    "stop": _TEXTS,
    "include_stop_str_in_output": {"type": "boolean"},
    "stop_token_ids": _IDS,
    "ignore_eos": {"type": "boolean"},
    "bad_words": _TEXTS,
    "allowed_token_ids": {**_IDS, "minItems": 1},
    "logit_bias": {"type": "object", "additionalProperties": _number(-100, 100)},
    "logprobs": _integer(0),
    "prompt_logprobs": _integer(0),
    "skip_special_tokens": {"type": "boolean"},
    "structured_outputs": {"type": "object", "minProperties": 1},
    "speculative": {
        "type": "object",
        "properties": {
            "enabled": {"type": "boolean"},
            "num_speculative_tokens": _integer(1),
            "method": {"type": "string"},
        },
        "additionalProperties": False,
    },
    "return_rejected": {"type": "boolean"},
}
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
        "properties": {"role": {"type": "string"}, "content": {"type": "string"}},
        "required": ["role", "content"],
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
    _, found = msgspec.json.schema_components(classes, ref_template=_REF)
    helps = attribute_docs(SamplingParams)
    for cls in classes:
        schema = found[cls.__name__]
        own = (attribute_docs(Asked) if issubclass(cls, Asked) else {}) | attribute_docs(cls)
        properties = schema["properties"] | _NEEDED.get(cls, {})
        if cls in _SAMPLED:
            properties = {name: _SAMPLING[name] for name in sorted(_SAMPLED[cls])} | _GUIDED | properties
            own |= dict.fromkeys(_GUIDED, "An older name of a part of `structured_outputs`.")
        needed = _NEEDED.get(cls, {})
        schema["properties"] = {
            name: {
                **(value if name in needed else _or_null(value)),
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


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of what may be null too, which counts as left out."""
    choices = schema["anyOf"] if "anyOf" in schema else [{k: v for k, v in schema.items() if k != "default"}]
    if {"type": "null"} in choices:
        return schema
    default = {"default": schema["default"]} if "default" in schema else {}
    return {"anyOf": [*choices, {"type": "null"}], **default}


def body_of(cls: type) -> dict[str, Any]:
    """Return what a route says of its body, its answer and its errors."""
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


def fact_of(name: str, **more: str) -> dict[str, Any]:
    """Return what a route without a body says of its answer, and of errors besides a missing key."""
    errors = {status.removeprefix("e"): text for status, text in more.items()}
    return {"responses": answer_of(name) | refusals({"401": "no key", **errors})}


def refusals(reasons: dict[str, str]) -> dict[str, Any]:
    """Return what a route says of its errors."""
    content = {"application/json": {"schema": {"$ref": _REF.format(name="Error")}}}
    return {status: {"description": text, "content": content} for status, text in reasons.items()}


assert set(_SAMPLING) == SAMPLING
