"""Custom tools, whose calls have a text in place of arguments: to the model they are functions of one text."""

import json
import re
from collections.abc import Mapping
from typing import Any

INPUT = "input"  # the one argument of a custom tool's function
_ESCAPE = 6  # characters of the longest escape in JSON, which may be cut off
_PARAMETERS = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
    "additionalProperties": False,
}


def as_function(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool as the model sees it: a custom one as a function."""
    if tool.get("type") != "custom":
        return dict(tool)
    custom = tool["custom"]
    named = {"name": custom["name"]} if "name" in custom else {}
    return {
        "type": "function",
        "function": {**named, "description": _described(custom), "parameters": _PARAMETERS},
    }


def _described(custom: Mapping[str, Any]) -> str:
    """Return the description, with the form that the input has; in responses it stands one level further out."""
    description, form = str(custom.get("description") or ""), custom.get("format")
    form = form.get("grammar", form) if isinstance(form, dict) else None
    if not isinstance(form, dict) or not isinstance(form.get("definition"), str):
        return description
    return f"{description}\n\nThe input has this form ({form.get('syntax')}):\n{form['definition']}".strip()


def input_of(arguments: str) -> str:
    """Return the input of a custom tool from its function's arguments, as far as they go where they were cut off.

    What has another form is the input itself.
    """
    try:
        found = json.loads(arguments, strict=False)  # models write line ends as they are
    except (ValueError, RecursionError):
        return _beginning(arguments)
    text = found.get(INPUT) if isinstance(found, dict) else None
    return _valid(text) if isinstance(text, str) else arguments


def _valid(text: str) -> str:
    """Return a text with U+FFFD in place of halves of characters, which models escape and no answer can have."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _beginning(arguments: str) -> str:
    begun = re.match(rf'\s*{{\s*"{INPUT}"\s*:\s*(".*)', arguments, re.DOTALL)
    for end in range(len(begun[1]), max(0, len(begun[1]) - _ESCAPE), -1) if begun else ():
        try:
            return _valid(json.loads(begun[1][:end] + '"', strict=False))  # type: ignore[index]
        except ValueError:
            continue
    return arguments
