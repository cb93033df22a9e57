"""Values of MiniMax-M3's calls: objects and lists are tags within tags, each behind a mark of its own.

    MARK<number>MARK<real>1.5MARK</real>MARK</number>, MARK<tags>MARK<item>alphaMARK</item>MARK</tags>

Source: the model's chat template. It leaves out what is null, and writes an empty object or list as nothing.
"""

import re
from collections.abc import Mapping
from typing import Any

from parlay.server.openai.argument_values import kinds, resolved, typed

_ITEM = "item"  # the tag of a list's elements
_DEEPEST = 64
_SOLID = re.compile(r"\S")


def inner_value(text: str, schema: Any, root: Any, mark: str, depth: int = 0) -> Any:
    """Return what stands between a value's tags.

    Args:
        text: the text between them.
        schema: the value's schema.
        root: the function's whole schema, for references.
        mark: the mark before each tag.
        depth: values around this one so far.
    """
    due = kinds(schema, root)
    parts = _parts(text, mark) if depth < _DEEPEST and "string" not in due else None
    if parts is None:
        return typed(text, due)
    if not parts and not due & {"object", "array"}:
        return typed(text, due)
    schema = resolved(schema, root)
    is_list = "array" in due if not parts or len(due & {"object", "array"}) == 1 else {k for k, _ in parts} == {_ITEM}
    if is_list:
        items = schema.get("items", _of_choice(schema, root, "items"))
        return [inner_value(one, items, root, mark, depth + 1) for _, one in parts]
    found: dict[str, Any] = {}
    properties = schema.get("properties", _of_choice(schema, root, "properties"))
    for key, one in parts:
        own = properties.get(key) if isinstance(properties, Mapping) else None
        own = schema.get("additionalProperties") if own is None else own
        found[key] = inner_value(one, own, root, mark, depth + 1)
    return found


def _of_choice(schema: Mapping[str, Any], root: Any, keyword: str) -> Any:
    """Return a keyword of the first alternative that has it."""
    choices = schema.get("anyOf") or schema.get("oneOf")
    each = (resolved(one, root) for one in choices) if isinstance(choices, list) else ()
    return next((one[keyword] for one in each if keyword in one), None)


def _parts(text: str, mark: str) -> list[tuple[str, str]] | None:
    """Return keys and values of the tags in a text; None if anything but space stands between them."""
    parts, at = [], 0
    while (solid := _SOLID.search(text, at)) is not None:
        begin = solid.start()
        close = text.find(">", begin + len(mark))
        if not text.startswith(f"{mark}<", begin) or close < 0:
            return None
        key = text[begin + len(mark) + 1 : close]
        opening, closing, depth, at = f"{mark}<{key}>", f"{mark}</{key}>", 1, close + 1
        while depth:
            last = text.find(closing, at)
            if last < 0:
                return None
            first = text.find(opening, at, last)
            depth += 1 if first >= 0 else -1
            at = first + len(opening) if first >= 0 else last + len(closing)
        parts.append((key, text[close + 1 : at - len(closing)]))
    return parts
