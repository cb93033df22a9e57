"""JSON schemas whose objects have no properties but those that are listed."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

# Keys that say which further properties there are, or describe a part of them elsewhere.
_OPEN = ("additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames")
_COMBINED = ("allOf", "anyOf", "oneOf", "$ref", "if", "not", "dependentSchemas")
# Keywords whose values are lists of schemas, schemas by name, or one.
MANY = {"allOf", "anyOf", "items", "oneOf", "prefixItems"}
NAMED = {"$defs", "definitions", "patternProperties", "properties"}
_ONES = ("items", "additionalProperties", "contains", "unevaluatedItems")

Schema = Mapping[str, Any]


def closed(text: str) -> str:
    """Return a schema, as text, whose objects are closed unless they say `additionalProperties`.

    Objects whose properties stand in several places, as with `allOf`, stay as they are: each part would refuse what
    the others list.
    """
    schema = json.loads(text)
    parts = {ref for ref in _parts(schema) if isinstance(ref, str)}
    return json.dumps(_closed(schema, "#", parts, whole=True), ensure_ascii=False)


def _closed(schema: Any, at: str, parts: set[str], *, whole: bool) -> Any:
    if not isinstance(schema, dict):
        return schema
    # A schema beside others describes a part of its object, and so do those in it.
    alone = whole and at not in parts and not any(key in schema for key in _COMBINED)
    inner = whole and at not in parts and "properties" not in schema
    made = dict(schema)
    for key, value in schema.items():
        place = f"{at}/{key}"
        if key in NAMED and isinstance(value, dict):
            made[key] = {name: _closed(one, f"{place}/{name}", parts, whole=True) for name, one in value.items()}
        elif key in MANY and isinstance(value, list):
            beside = key not in ("anyOf", "oneOf", "allOf") or (inner and (key != "allOf" or len(value) == 1))
            made[key] = [_closed(one, f"{place}/{i}", parts, whole=beside) for i, one in enumerate(value)]
        elif key in _ONES:
            made[key] = _closed(value, place, parts, whole=True)
    if alone and schema.get("properties") and not any(key in schema for key in _OPEN):
        made["additionalProperties"] = False
    return made


def _parts(schema: Any) -> Iterator[Any]:
    """Yield references that stand beside other descriptions of the same object."""
    if isinstance(schema, list):
        for one in schema:
            yield from _parts(one)
    elif isinstance(schema, dict):
        if "properties" in schema:
            yield schema.get("$ref")
        together = schema.get("allOf")
        if isinstance(together, list) and (len(together) > 1 or "properties" in schema):
            yield from (one.get("$ref") for one in together if isinstance(one, dict))
        for one in schema.values():
            yield from _parts(one)
