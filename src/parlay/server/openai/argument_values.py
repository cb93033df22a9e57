"""Arguments that stand as bare text, as values of the types that their JSON schema allows."""

import json
from collections.abc import Mapping
from typing import Any

from parlay.server.openai.python_calls import python_value

TEXT = frozenset({"string"})
_LONGEST = 16  # references, one to another, and schemas within a schema that are followed


def resolved(schema: Any, root: Any) -> Mapping[str, Any]:
    """Return a schema, or what its reference into the function's whole schema names; nothing where that is lost."""
    for _ in range(_LONGEST):
        if not isinstance(schema, Mapping):
            return {}
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#"):
            return schema
        schema = root
        for part in reference[1:].split("/")[1:]:
            schema = schema.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(schema, Mapping) else None
    return {}


def kinds(schema: Any, root: Any, depth: int = 0) -> frozenset[str]:
    """Return the names of the types that a schema allows, as far as it says; none where it allows any.

    Args:
        schema: the value's schema.
        root: the function's whole schema, for references.
        depth: schemas around this one so far.
    """
    schema = resolved(schema, root)
    named, choices = schema.get("type"), schema.get("anyOf") or schema.get("oneOf")
    found: frozenset[str] = frozenset()
    if isinstance(named, str | list):
        found = frozenset(str(one).lower() for one in ([named] if isinstance(named, str) else named))
    elif "const" in schema or isinstance(schema.get("enum"), list):
        found = frozenset(_kind(one) for one in ([schema["const"]] if "const" in schema else schema["enum"]))
    elif isinstance(choices, list) and depth < _LONGEST:
        each = [kinds(one, root, depth + 1) for one in choices]
        found = frozenset().union(*each) if all(each) else found
    elif isinstance(parts := schema.get("allOf"), list) and depth < _LONGEST:
        found = next(filter(None, (kinds(one, root, depth + 1) for one in parts)), found)
    return found | {"null"} if found and schema.get("nullable") is True else found


def typed(text: str, due: frozenset[str], *, encoded: bool = False) -> Any:
    """Return a value: what the text is as JSON where such is due, or else the text.

    Where an object, a list or a constant is due, it may be in Python's notation, which some templates write.

    Args:
        text: the value's text, as the model wrote it.
        due: names of types; none for any.
        encoded: whether the text was said to be JSON, so that a string has its quotes.
    """
    if due == TEXT and not encoded:
        return text
    try:
        value = json.loads(text, parse_constant=_refused)
        json.dumps(value, allow_nan=False)  # a number beyond all bounds is read as infinite
    except (ValueError, RecursionError):
        return _python(text, due)
    if "string" in due and _kind(value) not in due and not ("number" in due and _kind(value) == "integer"):
        return text
    return text if isinstance(value, str) and "string" in due and not encoded else value


def _python(text: str, due: frozenset[str]) -> Any:
    word = text.strip().lower()
    if "boolean" in due and word in ("true", "false"):
        return word == "true"
    if "null" in due and word in ("null", "none"):
        return None
    return python_value(text) if due & {"object", "array"} else text


def _refused(constant: str) -> Any:
    """Refuse what is no JSON though Python's reader takes it.

    Raises:
        ValueError: always.
    """
    raise ValueError(constant)


def _kind(value: Any) -> str:
    """Return the name of a value's type in JSON schemas."""
    known = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return known.get(type(value), "null")
