"""From a body as any client sends it to one that has this server's fields alone."""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import is_dataclass
from difflib import get_close_matches
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from parlay.errors import listed, shown
from parlay.server.errors import ApiError
from parlay.server.openai.foreign_fields import ELSEWHERE, FOREIGN, RENAMED, ForeignField

_NAMED = 8  # fields, in a warning, and unknown ones that may be misspellings
_LONGEST = 64  # characters of a name that may be one
_ALIKE = 0.85  # of difflib; a letter more, less or exchanged in names of at least six


_Warnings = defaultdict[str, list[str]]  # what is said of fields, and their names
_UNKNOWN, _NEUTRAL = "unknown {} ignored", "unsupported {} ignored at a value without effect"


def translated(
    endpoint: str,
    body: Mapping[str, Any],
    known: Collection[str],
    others: Mapping[str, ForeignField],
    *,
    strict: bool = False,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a body with the endpoint's own fields alone, and warnings for the client about the rest.

    A field of another server's is renamed where there is the same here, ignored with a warning where it changes
    nothing, and refused with the reason where it would. An unknown one is ignored too, unless it looks like a
    misspelling.

    Args:
        endpoint: a key of `RENAMED`.
        body: the body as the client sent it, without nulls.
        known: the endpoint's own fields.
        others: fields of other endpoints here.
        strict: refuse all but its own fields and those with another name.

    Raises:
        ApiError: a field is refused.
    """
    found = {name: value for name, value in body.items() if name in known}
    renamed, elsewhere = RENAMED.get(endpoint, {}), ELSEWHERE.get(endpoint, {})
    warnings, unknown = _Warnings(list), 0
    for name, value in body.items():
        if name in known:
            continue
        if name in renamed:
            _rename(found, name, renamed[name].to, renamed[name].read(value), warnings)
            continue
        entry = elsewhere.get(name) or FOREIGN.get(name) or others.get(name)
        if entry is None:
            unknown += 1
            close = _closest(name, known) if unknown <= _NAMED else ""
            if strict or close:
                raise _unknown(f"unknown field {shown(name)}", close, known, name)
            warnings[_UNKNOWN].append(name)
        elif strict or not entry.ignores(value):
            raise _refused(name, value, entry)
        else:
            warnings[entry.why if entry.only is None else _NEUTRAL].append(name)
    return found, tuple(_sentence(what, names) for what, names in warnings.items())


def _sentence(what: str, names: Sequence[str]) -> str:
    kind = "field was" if len(names) == 1 else "fields were"
    return f"{what.format(kind)}: {_some(names)}" if "{}" in what else f"{_some(names)}: ignored, since {what}"


def _plain(name: str) -> str:
    """Return a name without what differs between spellings such as `max_tokens`, `max-tokens` and `maxTokens`."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _closest(name: str, known: Collection[str]) -> str:
    """Return the known name that another is a misspelling of; empty if it is none."""
    if len(name) > _LONGEST:
        return ""
    spelled = {_plain(one): one for one in known}
    close = get_close_matches(_plain(name), spelled, 1, _ALIKE)
    return spelled[close[0]] if close else ""


def ignored_keys(name: str, given: Mapping[str, Any], known: Sequence[str], *, strict: bool) -> str:
    """Return a warning about unknown keys of an object; empty without any.

    Raises:
        ApiError: one looks like a misspelling, or unknown ones are refused.
    """
    unknown = [key for key in given if key not in known]
    for key in unknown[:_NAMED]:
        close = _closest(key, known)
        if strict or close:
            raise _unknown(f"unknown key {shown(key)} in {name}", close, known, name)
    return f"unknown keys of {name} were ignored: {_some(unknown)}" if unknown else ""


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(shown, names[:_NAMED])) + (", ..." if len(names) > _NAMED else "")


def _unknown(message: str, close: str, known: Collection[str], param: str) -> ApiError:
    hint = f"did you mean {close!r}?" if close else f"known: {listed(known)}"
    return ApiError(400, f"{message} ({hint})", param=param, code="unknown_parameter")


def _refused(name: str, value: Any, entry: ForeignField) -> ApiError:
    leave = f"leave it at {' or '.join(map(shown, entry.only))}" if entry.only else "leave it out"
    return ApiError(
        400, f"{name}={shown(value)} is not supported: {entry.why}; {leave}", param=name, code="unsupported_parameter"
    )  # fmt: skip


def _rename(found: dict[str, Any], name: str, to: str, value: Any, warnings: _Warnings) -> None:
    """Put a value under its name here, unless that is given too."""
    outer, _, inner = to.partition(".")
    given = found.get(outer, {}) if inner else found
    if value is None:
        warnings["its value has no effect"].append(name)
    elif to == "structured_outputs" and isinstance(found.get(to), dict):
        if isinstance(value, dict) and value.items() <= found[to].items():
            return  # guidance sends both
        raise ApiError(400, f"{name} is part of structured_outputs, which has one form; give one", param=name)
    elif not isinstance(given, dict) or given.get(inner or to, value) != value:
        warnings[f"{to} was given too"].append(name)
    elif inner:
        found[outer] = {**given, inner: value}
    else:
        found[to] = value


@cache
def objects_of(cls: type) -> frozenset[str]:
    """Return the fields of a class that are objects in JSON, and nothing else that is no text."""
    return frozenset(name for name, hint in get_type_hints(cls).items() if _is_object(hint))


def _is_object(hint: Any) -> bool:
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    kinds = [get_origin(one) or one for one in members if one not in (NoneType, str)]
    return bool(kinds) and all(
        kind in (dict, Mapping) or is_dataclass(kind) or (isinstance(kind, type) and issubclass(kind, msgspec.Struct))
        for kind in kinds
    )


def without_empty(body: Mapping[str, Any], objects: Collection[str]) -> dict[str, Any]:
    """Return a body without values that stand for nothing.

    They are what is empty, where PHP writes objects as lists, and a negative number of tokens, which is no limit.
    """
    found = {name: value for name, value in body.items() if not (name in objects and value in ([], {}))}
    for name in ("reasoning_effort", "verbosity"):
        if found.get(name) in ("", "default", "auto"):
            del found[name]
    for name in ("stop", "tool_choice", "chat_template"):
        if found.get(name) == "":
            del found[name]
    if isinstance(stop := found.get("stop"), list):
        found["stop"] = [text for text in stop if text != ""]
    for name in ("max_completion_tokens", "max_output_tokens"):
        if _is_unlimited(found.get(name)):
            del found[name]
    if _is_unlimited(found.get("max_tokens")):
        found["max_tokens"] = found.get("max_completion_tokens")
    if isinstance(options := found.get("stream_options"), dict):
        found["stream_options"] = {name: value for name, value in options.items() if value is not None}
    if isinstance(found.get("structured_outputs"), bool):  # OpenRouter's name of a model's ability
        del found["structured_outputs"]
    return found


def nested_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a tool as chat completions have it; some clients send the form of responses."""
    kind = tool.get("type")
    if kind not in ("function", "custom") or kind in tool or "name" not in tool:
        return tool
    return {"type": kind, kind: {name: value for name, value in tool.items() if name != "type"}}


def _is_unlimited(value: Any) -> bool:
    return type(value) in (int, float) and value == -1
