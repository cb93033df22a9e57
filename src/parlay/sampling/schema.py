"""JSON schemas that can be enforced: every keyword is either enforced or refused by name.

The compiler itself refuses the keywords of the standard that it does not implement; here are refused those that it
would ignore, and those that an answer could break although the compiler accepts them.
"""

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from parlay.errors import RequestError, nearest

_DEEPEST = 64  # levels of nesting
_MOST_TARGETS = 300  # of references, for a search that is quadratic in their number
_MOST_PROPERTIES = 500  # of one object: what may follow a property grows with their number

_ONE = {"additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then"}
_MANY = {"allOf", "anyOf", "oneOf", "items", "prefixItems"}
_NAMED = {"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"}
_VALUES = {
    *("$ref", "const", "enum", "exclusiveMaximum", "exclusiveMinimum", "format", "maxItems", "maxLength"),
    *("maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum", "multipleOf", "pattern"),
    *("required", "type"),
}
_REFUSED = {  # by the compiler itself, by name
    *("$dynamicRef", "$recursiveRef", "dependencies", "dependentRequired", "maxContains", "minContains"),
    *("unevaluatedItems", "unevaluatedProperties", "uniqueItems"),
}
# Keywords about a schema, which no answer can break.
_NOTES = {
    *("$comment", "$id", "$schema", "default", "deprecated", "description", "discriminator", "example", "examples"),
    *("id", "readOnly", "title", "writeOnly"),
}
_KNOWN = _ONE | _MANY | _NAMED | _VALUES | _REFUSED | _NOTES


def check_schema(schema: Any) -> None:
    """Refuse a schema that holds a keyword which would be ignored, or that is out of bounds.

    Raises:
        RequestError: it names the keyword; or every value of the schema would contain a further one without end.
    """
    for part in _parts(schema, 0):
        for key in part:
            if key not in _KNOWN and (key == "x-guidance" or not key.startswith("x-")):
                hint = nearest(key, _KNOWN)
                hint = hint if "did you mean" in hint else ""
                raise RequestError(f"the JSON schema's keyword {key!r} is not served{hint}; leave it out")
        _check_counts(part)
    if not _has_an_end(schema):
        raise RequestError("no value of the JSON schema ever ends: it requires itself; make a property optional")


def _check_counts(part: Mapping[str, Any]) -> None:
    properties, least = part.get("properties"), part.get("minProperties")
    if isinstance(properties, Mapping) and len(properties) > _MOST_PROPERTIES:
        raise RequestError(
            f"an object of the JSON schema has {len(properties)} properties and may have {_MOST_PROPERTIES}; "
            "split it into several objects"
        )
    # An answer may hold an unlisted name twice, and so have fewer properties than were written.
    required = part.get("required")
    if isinstance(least, int) and least > max(1, len(required) if isinstance(required, list) else 0):
        raise RequestError("the JSON schema's minProperties is not served; name properties in required instead")


def _parts(schema: Any, depth: int) -> Iterator[Mapping[str, Any]]:
    """Yield every schema within a schema, itself first."""
    if depth > _DEEPEST:
        raise RequestError(f"the JSON schema is nested more than {_DEEPEST} levels deep; write a flatter one")
    if not isinstance(schema, Mapping):
        return  # true, false, or something that the compiler refuses
    yield schema
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, Mapping):
            below = list(value.values())
        elif key in _MANY and isinstance(value, list):
            below = value
        elif key in _ONE:
            below = [value]
        else:
            continue
        for part in below:
            yield from _parts(part, depth + 1)


def _has_an_end(schema: Any) -> bool:
    """Whether the schema has a finite value, as far as required properties and items tell.

    The least fixed point: a reference has an end once what it refers to has one without it.
    """
    targets = {part["$ref"] for part in _parts(schema, 0) if isinstance(part.get("$ref"), str)}
    if len(targets) > _MOST_TARGETS:
        return True
    open_ones = {ref: target for ref in targets if (target := _resolve(schema, ref)) is not None}
    while ended := [ref for ref, target in open_ones.items() if _ends(target, open_ones)]:
        for ref in ended:
            del open_ones[ref]
    return _ends(schema, open_ones)


def _ends(part: Any, endless: Mapping[str, Any]) -> bool:
    if not isinstance(part, Mapping):
        return True
    ref = part.get("$ref")
    if isinstance(ref, str) and ref in endless:
        return False
    needed = list(part["allOf"]) if isinstance(part.get("allOf"), list) else []
    if part.get("type") == "object":
        properties, required = part.get("properties"), part.get("required")
        if isinstance(properties, Mapping) and isinstance(required, list):
            needed += [properties[name] for name in required if isinstance(name, str) and name in properties]
    if part.get("type") == "array" and part.get("minItems") not in (None, 0):
        first = part.get("prefixItems")
        needed.append(first[0] if isinstance(first, list) and first else part.get("items"))
    choices = [part[key] for key in ("anyOf", "oneOf") if isinstance(part.get(key), list) and part[key]]
    return all(_ends(one, endless) for one in needed) and all(
        any(_ends(one, endless) for one in several) for several in choices
    )


def _resolve(schema: Any, ref: str) -> Any:
    """Return what a reference within the schema refers to, None if that is unknown here."""
    if ref == "#":
        return schema
    if not ref.startswith("#/"):
        return None
    for name in ref[2:].split("/"):
        name = unquote(name).replace("~1", "/").replace("~0", "~")
        if not isinstance(schema, Mapping) or name not in schema:
            return None
        schema = schema[name]
    return schema
