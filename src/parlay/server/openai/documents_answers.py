"""The OpenAPI document's descriptions of answers, of keys, and of bodies by example."""

from typing import Any

from parlay.server.openai.fields import ChatFields, CompletionFields, DetokenizeFields, TokenizeFields
from parlay.server.openai.responses_fields import ResponseFields

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
_MAYBE_TEXT = {"type": ["string", "null"]}
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
        id=_TEXT,
        object={"const": kind},
        created=_COUNT,
        model=_TEXT,
        system_fingerprint=_TEXT,
        choices=_list(_object(**common, **choice)),
        usage=usage,
    )


_MESSAGE = _object(role={"const": "assistant"}, content=_MAYBE_TEXT)
_MODEL = _object(
    id=_TEXT,
    object={"const": "model"},
    created=_COUNT,
    owned_by=_TEXT,
    max_model_len=_COUNT,
    parlay={"type": "object"},
)
ANSWERS: dict[str, dict[str, Any]] = {
    "Completion": _completion("text_completion", {"text": _TEXT}),
    "ChatCompletion": _completion("chat.completion", {"message": _MESSAGE}),
    "Response": _object(
        id=_TEXT,
        object={"const": "response"},
        created_at=_COUNT,
        status={"enum": ["completed", "incomplete"]},
        model=_TEXT,
        output=_list(_object(type={"enum": ["message", "function_call", "custom_tool_call", "reasoning"]}, id=_TEXT)),
        usage=_object(input_tokens=_COUNT, output_tokens=_COUNT, total_tokens=_COUNT),
    ),
    "Deleted": _object(id=_TEXT, object={"const": "response"}, deleted={"const": True}),
    "Tokens": _object(count=_COUNT, max_model_len=_COUNT, tokens=_list(_COUNT)),
    "Text": _object(prompt=_TEXT),
    "Model": _MODEL,
    "Models": _object(object={"const": "list"}, data=_list(_MODEL)),
    "Version": _object(version=_TEXT, numerics_id=_TEXT),
    "Status": _object(status=_TEXT),
}
BODIES: dict[type, tuple[str, dict[str, Any]]] = {
    CompletionFields: ("Completion", {"prompt": "def add(a, b):", "max_tokens": 16, "temperature": 0}),
    ChatFields: ("ChatCompletion", {"messages": [{"role": "user", "content": "Write a loop."}], "max_tokens": 16}),
    ResponseFields: ("Response", {"input": "Write a loop.", "max_output_tokens": 16}),
    TokenizeFields: ("Tokens", {"prompt": "def add(a, b):"}),
    DetokenizeFields: ("Text", {"tokens": [100, 101]}),
}
STREAMED = (CompletionFields, ChatFields, ResponseFields)


def answer_of(name: str, *, streamed: bool = False) -> dict[str, Any]:
    """Return a route's description of a successful answer."""
    content: dict[str, Any] = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    what = "the answer"
    if streamed:
        content["text/event-stream"] = {}
        what += "; with stream its chunks as the data of events"
    return {"200": {"description": what, "content": content}}


def examples_of(cls: type) -> dict[str, Any]:
    """Return example bodies of a route."""
    _, body = BODIES[cls]
    found = {"whole": {"value": body}}
    if cls in STREAMED:
        usage = {} if cls is ResponseFields else {"stream_options": {"include_usage": True}}
        found["streamed"] = {"value": {**body, "stream": True, **usage}}
    return found


def complete(made: dict[str, Any], model: str, *, open_paths: frozenset[str] | None) -> None:
    """Add to the document the facts about the server as a whole.

    Args:
        made: the document, altered in place.
        model: the served model's name, which is in an address.
        open_paths: those that need no key; None if none does.
    """
    parts = made.setdefault("components", {})
    found = parts.setdefault("schemas", {})
    found.update(ANSWERS)
    for unused in ("HTTPValidationError", "ValidationError"):
        found.pop(unused, None)
    if open_paths is not None:
        parts["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path, operations in made["paths"].items():
        for operation in operations.values():
            operation["responses"].pop("422", None)  # every refusal has its own status
            for parameter in operation.get("parameters", ()):
                if parameter["name"] == "name" and path.startswith("/v1/models"):
                    parameter["examples"] = {"served": {"value": model}}
            if open_paths is None or path in open_paths:
                operation["responses"].pop("401", None)
            else:
                operation["security"] = [{"key": []}]
