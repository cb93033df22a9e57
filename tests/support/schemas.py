"""Random JSON schemas whose answers are short."""

import random
from typing import Any


def random_schema(rng: random.Random) -> dict[str, Any]:
    """Return a schema of an object; some of it is shared through references."""
    schema = _object(rng, 0)
    if rng.random() < 0.3:
        schema["$defs"] = {"shared": _value(rng, 2)}
        schema["properties"]["link"] = {"$ref": "#/$defs/shared"}
        schema["required"].append("link")
    return schema


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(["id", "name", "items", "état", "is valid", "x", 'a"b', "config"], rng.randint(1, 3))
    return {
        "type": "object",
        "properties": {name: _value(rng, depth + 1) for name in names},
        "required": rng.sample(names, rng.randint(0, len(names))),
        "additionalProperties": False,
    }


def _value(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randint(-20, 20)
    simple: list[dict[str, Any]] = [
        {"type": "string", "maxLength": rng.randint(0, 6), "description": "short"},
        {"type": "string", "minLength": 2, "maxLength": 4},
        {
            "type": "string",
            "pattern": rng.choice(["^[a-z]{1,4}$", "^(ab|c)+d?$", "^[0-9]{2}-[0-9]{2}$"]),
            "maxLength": 8,
        },
        {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 300)},
        {"type": "integer", "multipleOf": rng.choice([3, 5]), "minimum": 0, "maximum": 100},
        {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
        {"type": "boolean"},
        {"type": ["null", "boolean"]},
        {"enum": ["red", "green", 3, None, ["nested", 1.5], {"k": True}]},
        {"const": rng.choice(["fixed", 7, [1, 2]])},
        {"type": "string", "format": "date"},
    ]
    if depth >= 3 or rng.random() < 0.6:
        return rng.choice(simple)
    nested: list[dict[str, Any]] = [
        _object(rng, depth),
        {"type": "array", "items": _value(rng, depth + 1), "maxItems": 3, "minItems": rng.randint(0, 1)},
        {"type": "array", "prefixItems": [_value(rng, depth + 1), _value(rng, depth + 1)], "items": False},
        {"anyOf": [_value(rng, depth + 1), {"type": "null"}]},
        {"allOf": [{"type": "integer", "minimum": 0}, {"maximum": 50}]},
    ]
    return rng.choice(nested)
