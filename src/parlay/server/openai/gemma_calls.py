"""Reading the calls that Gemma 4 writes: `call:NAME{key:<|"|>text<|"|>,other:[1,true]}`.

Source: the model's chat template. Keys stand bare, or quoted like strings; numbers and constants are those of JSON.
"""

import json
import re
from typing import Any

_QUOTE = '<|"|>'
_HEAD = re.compile(r"call:([\w.-]+)\{")
_BARE = re.compile(r"[^,{}\[\]]+")
_KEY = re.compile(r"[^:,{}\[\]]+")
_DEEPEST = 64


def gemma_calls(text: str) -> list[tuple[str, str]]:
    """Return the name and the arguments, in JSON, of the call in a text.

    Raises:
        ValueError: it is no call.
    """
    head = _HEAD.match(text)
    if head is None:
        raise ValueError(text)
    arguments, end = _mapping(text, head.end(), 0)
    if text[end:].strip():
        raise ValueError(text)
    return [(head[1], json.dumps(arguments, ensure_ascii=False))]


def _mapping(text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
    """Return what stands behind an opening brace, and where it ends."""
    found: dict[str, Any] = {}
    while not text.startswith("}", at):
        if text.startswith(_QUOTE, at):
            key, at = _string(text, at)
        else:
            bare = _KEY.match(text, at)
            if bare is None:
                raise ValueError(text)
            key, at = bare[0].strip(), bare.end()
        if not text.startswith(":", at):
            raise ValueError(text)
        found[key], at = _value(text, at + 1, depth)
        at = _next(text, at, "}")
    return found, at + 1


def _list(text: str, at: int, depth: int) -> tuple[list[Any], int]:
    """Return what stands behind an opening bracket, and where it ends."""
    found: list[Any] = []
    while not text.startswith("]", at):
        one, at = _value(text, at, depth)
        found.append(one)
        at = _next(text, at, "]")
    return found, at + 1


def _next(text: str, at: int, end: str) -> int:
    """Return where the next part begins, or `end` stands."""
    at = _space(text, at)
    if text.startswith(",", at):
        return _space(text, at + 1)
    if not text.startswith(end, at):
        raise ValueError(text)
    return at


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    at = _space(text, at)
    if depth == _DEEPEST:
        raise ValueError(text)
    if text.startswith(_QUOTE, at):
        return _string(text, at)
    if text.startswith("{", at):
        return _mapping(text, _space(text, at + 1), depth + 1)
    if text.startswith("[", at):
        return _list(text, _space(text, at + 1), depth + 1)
    bare = _BARE.match(text, at)
    if bare is None:
        raise ValueError(text)
    try:
        return json.loads(bare[0]), bare.end()
    except ValueError:
        return bare[0].strip(), bare.end()  # a string whose marks were forgotten


def _string(text: str, at: int) -> tuple[str, int]:
    end = text.find(_QUOTE, at + len(_QUOTE))
    if end < 0:
        raise ValueError(text)
    return text[at + len(_QUOTE) : end], end + len(_QUOTE)


def _space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at
