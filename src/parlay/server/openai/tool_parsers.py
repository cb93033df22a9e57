"""What reads the calls of each syntax, from an answer while it grows.

A call is certain once its function is known to exist and its arguments begin; from then on it stays a call, even if
its arguments are malformed. A candidate that turns out to be no call is text.

Sources: the chat templates of the families, and for `pythonic` the prompt format of Llama 3.2 and 4.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from parlay.server.openai import tool_grammars as rules
from parlay.server.openai.messages import MESSAGE
from parlay.server.openai.python_calls import python_calls
from parlay.server.openai.tool_scanner import Scanner, Wait, strict

Parameters = Mapping[str, Any]  # JSON schemas by function

_BESIDE = ("id", "index", "tool_call_id", "type")  # that a call may have besides
_BRACE = re.compile("{")
_MISTRAL_HEAD = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*")
_MISTRAL_PART = re.compile(r"\s*[\w.-]*\s*(?:\[[^{]*)?")  # what may become that
_MISTRAL_LONGEST = 256  # characters before the arguments
_PYTHONIC = re.compile(r"(?:<\|python_start\|>)?\s*(\[.*\])\s*(?:<\|python_end\|>)?", re.DOTALL)
_NAME = re.compile(r"[\w-]+")
_HEAD = 128  # characters of a name and what stands between it and a message


def _json_call(answer: Scanner, at: int, forced: bool, marked: bool) -> Wait[bool]:
    """Read `{"name": ..., "arguments": {...}}` (other keys: "parameters", "tool_name"); return whether it is a call.

    Args:
        answer: the growing answer.
        at: position where the object begins.
        forced: whether arguments need not be an object: the function's schema has been followed.
        marked: whether a mark of calls stands before, so that a call may lack arguments.
    """
    name, arguments, bare, at = "", "", marked, at + 1
    while True:
        found = yield from answer.key((yield from answer.space(at)))
        if found is None:
            return False
        key, at = found
        opens = forced or (yield from answer.char(at)) == "{"
        if key in ("name", "tool_name") or (key in ("arguments", "parameters") and not (opens and name)):
            is_name = key in ("name", "tool_name")
            end = yield from (answer.string(at) if is_name else answer.value(at))
            if end is None:
                return False
            value, at = answer.cut(at, end), end
            if is_name:
                name = _unquoted(value)
                if not answer.knows(name):
                    return False
            elif not (arguments := strict(value) if opens else _object(value)):
                return False
            if name and arguments:
                answer.begin(name)
                answer.add(arguments)
                break
        elif key in ("arguments", "parameters"):
            answer.begin(name)
            at = yield from answer.give(at)
            break
        else:
            end = yield from answer.value(at)
            if end is None:
                return False
            at, bare = end, bare and key in _BESIDE
        at = yield from answer.space(at)
        if (yield from answer.char(at)) == "}" and bare and name:
            answer.begin(name)
            answer.add("{}")
            break
        if (yield from answer.char(at)) != ",":
            return False
        at += 1
    answer.done = at
    yield from _besides(answer, at)
    return True


def _besides(answer: Scanner, at: int) -> Wait[None]:
    """Read what stands in a call's object behind its arguments."""
    while True:
        at = yield from answer.space(at)
        char = yield from answer.char(at)
        if char == "}":
            answer.done = at + 1
        if char != ",":
            return
        found = yield from answer.key((yield from answer.space(at + 1)))
        end = None if found is None else (yield from answer.value(found[1]))
        if end is None:
            return
        at = end


def json_calls(
    answer: Scanner, at: int, parameters: Parameters, *, forced: bool = False, marked: bool = False
) -> Wait[None]:
    """Read a call in JSON, or a list of some."""
    char = yield from answer.char(at)
    if char == "{":
        yield from _json_call(answer, at, forced, marked)
    if char != "[":
        return
    while True:
        at = yield from answer.space(at + 1)
        if (yield from answer.char(at)) != "{" or not (yield from _json_call(answer, at, forced, marked)):
            return
        at = yield from answer.space(answer.done)
        char = yield from answer.char(at)
        if char == "]":
            answer.done = at + 1
        if char != ",":
            return


def several(
    answer: Scanner, at: int, parameters: Parameters, *, between: str = "", marked: bool = False
) -> Wait[None]:
    """Read calls in JSON, one after another with spaces and certain characters between them."""
    while True:
        at = yield from answer.space(at)
        while (yield from answer.char(at)) in tuple(between):
            at = yield from answer.space(at + 1)
        before = answer.called
        yield from json_calls(answer, at, parameters, marked=marked)
        if answer.called == before:
            return
        at = answer.done


def tagged(answer: Scanner, at: int, parameters: Parameters, *, tag: str = "</tool_call>") -> Wait[None]:
    """Read `{"name": ..., "arguments": ...}</tool_call>`, of which the tag may be missing."""
    before = answer.called
    yield from several(answer, at, parameters, marked=True)
    if answer.called > before:
        yield from close(answer, tag)


def json_list(answer: Scanner, at: int, parameters: Parameters, *, end: str = "") -> Wait[None]:
    """Read a list of calls in JSON, or one alone, and the mark behind it."""
    before, begin = answer.called, (yield from answer.space(at))
    yield from json_calls(answer, begin, parameters, marked=True)
    if end and answer.called > before:
        yield from close(answer, end)


def keyed(answer: Scanner, at: int, parameters: Parameters, *, end: str) -> Wait[None]:
    """Read `[{"NAME": {...}}]`, or one call alone, and the mark behind it."""
    at = yield from answer.space(at)
    listed = (yield from answer.char(at)) == "["
    while True:
        at = yield from answer.space(at + listed)
        found = (yield from answer.key((yield from answer.space(at + 1)))) if answer.cut(at, at + 1) == "{" else None
        if found is None or (yield from answer.char(found[1])) != "{" or not answer.begin(found[0]):
            return
        answer.done = yield from answer.give(found[1])
        at = yield from answer.space(answer.done)
        if (yield from answer.char(at)) != "}":
            return
        answer.done = at = at + 1
        at = yield from answer.space(at)
        if not listed or (yield from answer.char(at)) != ",":
            break
    if listed and (yield from answer.char(at)) == "]":
        answer.done = at + 1
    yield from close(answer, end)


def headed(answer: Scanner, at: int, parameters: Parameters, *, form: rules.Headed) -> Wait[None]:
    """Read calls with marks around names and behind arguments."""
    named = re.compile(form.loose or re.escape(form.name).replace(re.escape("{}"), r"([\w.-]+)"))
    while True:
        at = yield from answer.space(at)
        if not (yield from answer.starts(form.before, at)):
            if answer.called:
                yield from close(answer, form.end)
            return
        begin = at + len(form.before)
        at, mark = yield from answer.find((form.between[0], form.before), begin)
        found = named.fullmatch(answer.cut(begin, at).strip())
        if mark != form.between[0] or found is None or not answer.begin(found[1]):
            return
        answer.done = at = yield from answer.give((yield from answer.space(at + len(mark))))
        for mark in form.behind:
            at = yield from answer.space(at)
            if (yield from answer.starts(mark.strip(), at)):
                answer.done = at = at + len(mark.strip())


def close(answer: Scanner, tag: str) -> Wait[None]:
    """Read the mark behind calls, if it stands there."""
    at = yield from answer.space(answer.done)
    if (yield from answer.starts(tag, at)):
        answer.done = at + len(tag)


def mistral(answer: Scanner, at: int, parameters: Parameters) -> Wait[None]:
    """Read `[{"name": ..., "arguments": ...}]`, or `NAME[ARGS]{...}` once or several times."""
    begin = yield from answer.space(at)
    if (yield from answer.char(begin)) in ("[", "{"):
        yield from json_calls(answer, begin, parameters, marked=True)
        return
    while True:
        while (brace := answer.character(_BRACE, at)) is None:
            part = answer.cut(at, at + _MISTRAL_LONGEST + 1)
            if answer.ended or len(part) > _MISTRAL_LONGEST or not _MISTRAL_PART.fullmatch(part):
                return
            yield
        head, at = answer.cut(at, brace[0]), brace[0]
        found = _MISTRAL_HEAD.fullmatch(head) if len(head) <= _MISTRAL_LONGEST else None
        if found is None or not answer.begin(found[1]):
            return
        answer.done = at = yield from answer.give(at)


def harmony(answer: Scanner, at: int, parameters: Parameters) -> Wait[None]:
    """Read `NAME ...<|message|>{...}`, of which the mark is the recipient's beginning."""
    begin = at
    while True:
        at, mark = answer.first((MESSAGE, "\n"), at)
        if mark or answer.ended or answer.end - begin > _HEAD:
            break
        yield
    name = _NAME.match(answer.cut(begin, at))
    if mark == MESSAGE and name and answer.begin(name[0]):
        answer.done = yield from answer.give((yield from answer.space(at + len(mark))))


def pythonic(answer: Scanner, at: int, parameters: Parameters) -> Wait[None]:
    """Read `[f(a=1), g(b="x")]`, an answer as a whole, with values that Python can read without running anything."""
    if not (yield from answer.starts("[", at)) and not (yield from answer.starts("<|python_start|>", at)):
        return
    while not answer.ended:
        yield
    whole = _PYTHONIC.fullmatch(answer.cut(0).strip())
    try:
        calls = [] if whole is None else python_calls(whole[1])
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return
    if all(answer.knows(name) for name, _ in calls):
        for name, arguments in calls:
            answer.begin(name)
            answer.add(arguments)
            answer.done = answer.end


def between(
    answer: Scanner, at: int, parameters: Parameters, *, end: str, read: Callable[[str], list[tuple[str, str]]]
) -> Wait[None]:
    """Add the calls that are read between marks: names of functions and their arguments in JSON."""
    place, mark = yield from answer.find((end,), at)
    try:
        calls = read(answer.cut(at, place).strip())
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return
    if calls and all(answer.knows(name) for name, _ in calls):
        for name, arguments in calls:
            answer.begin(name)
            answer.add(arguments)
        answer.done = place + len(mark)


def nothing(answer: Scanner, at: int, parameters: Parameters) -> Wait[None]:
    """Read no call."""
    yield from ()


def _object(text: str) -> str:
    """Return the object in a value that stands in its place, as some models write it; nothing if there is none.

    That is an object's JSON in a string (vllm-project/vllm#54964), or for no arguments null or an empty string.
    """
    inner = _unquoted(text) if text.startswith('"') else ""
    if text == "null" or (text.startswith('"') and not text.strip('" ')):
        return "{}"
    try:
        return inner if isinstance(json.loads(inner), dict) else ""
    except (ValueError, RecursionError):
        return ""


def _unquoted(text: str) -> str:
    """Return what a string of JSON says; nothing if it is none."""
    try:
        return str(json.loads(text))
    except ValueError:
        return ""
