"""References within a JSON schema, by JSON pointer (RFC 6901)."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote


def resolve(schema: Any, ref: str) -> Any:
    """Return what a reference within the schema refers to, None if that is unknown here."""
    if ref == "#":
        return schema
    if not ref.startswith("#/"):
        return None
    for name in ref[2:].split("/"):
        name = unquote(name).replace("~1", "/").replace("~0", "~")
        if isinstance(schema, list) and name.isdecimal() and int(name) < len(schema):
            schema = schema[int(name)]
        elif isinstance(schema, Mapping) and name in schema:
            schema = schema[name]
        else:
            return None
    return schema
