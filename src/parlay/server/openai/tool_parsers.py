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
from parlay.server.openai.python_calls import python_calls, python_value
from parlay.server.openai.tool_grammars import Tags
from parlay.server.openai.tool_scanner import Scanner, Wait

Parameters = Mapping[str, Any]  # JSON schemas by function

_BRACE = re.compile("{")
_MISTRAL_HEAD = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*")
_MISTRAL_PART = re.compile(r"\s*[\w.-]*\s*(?:\[[^{]*)?")  # what may become that
_MISTRAL_LONGEST = 256  # characters before the arguments
_PYTHONIC = re.compile(r"(?:<\|python_start\|>)?\s*(\[.*\])\s*(?:<\|python_end\|>)?", re.DOTALL)
_NAME = re.compile(r"[\w-]+")
_HEAD = 128  # characters of a name and what stands between it and a message


def _json_call(answer: Scanner, at: int, forced: bool) -> Wait[bool]:
    """Take `{"name": ..., "arguments": {...}}` (other keys: "parameters", "tool_name"); return whether it is a call.

    Where it was `forced`, arguments need not be an object: the function's schema has been followed.
    """
    name, arguments, at = "", "", at + 1
    while True:
        found = yield from answer.key((yield from answer.space(at)))
        if found is None:
            return False
        key, at = found
        opens = forced or (yield from answer.char(at)) == "{"
        if key in ("name", "tool_name") or (key in ("arguments", "parameters") and not (opens and name)):
            is_name = key in ("name", "tool_name")
            end = yield from (answer.string(at) if is_name else answer.value(at))
            if end is None or not (is_name or opens):
                return False
            value, at = answer.cut(at, end), end
            if is_name:
                name = _unquoted(value)
                if not answer.knows(name):
                    return False
            else:
                arguments = value
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
            at = end
        at = yield from answer.space(at)
        if (yield from answer.char(at)) != ",":
            return False
        at += 1
    answer.done = at
    while True:  # what stands in the object besides
        at = yield from answer.space(at)
        char = yield from answer.char(at)
        if char == "}":
            answer.done = at + 1
        if char != ",":
            return True
        found = yield from answer.key((yield from answer.space(at + 1)))
        end = None if found is None else (yield from answer.value(found[1]))
        if end is None:
            return True
        at = end


def json_calls(answer: Scanner, at: int, parameters: Parameters, *, forced: bool = False) -> Wait[None]:
    """Take a call in JSON, or a list of some."""
    char = yield from answer.char(at)
    if char == "{":
        yield from _json_call(answer, at, forced)
    if char != "[":
        return
    while True:
        at = yield from answer.space(at + 1)
        if (yield from answer.char(at)) != "{" or not (yield from _json_call(answer, at, forced)):
            return
        at = yield from answer.space(answer.done)
        char = yield from answer.char(at)
        if char == "]":
            answer.done = at + 1
        if char != ",":
            return


def several(answer: Scanner, at: int, parameters: Parameters, *, between: str) -> Wait[None]:
    """Take calls in JSON, one after another with spaces and certain characters between them."""
    while True:
        at = yield from answer.space(at)
        while (yield from answer.char(at)) in tuple(between):
            at = yield from answer.space(at + 1)
        before = answer.called
        yield from json_calls(answer, at, parameters)
        if answer.called == before:
            return
        at = answer.done


def tagged(answer: Scanner, at: int, parameters: Parameters) -> Wait[None]:
    """Take `{"name": ..., "arguments": ...}</tool_call>`, of which the tag may be missing."""
    before = answer.called
    yield from several(answer, at, parameters, between="")
    if answer.called > before:
        yield from _close(answer)


def json_list(answer: Scanner, at: int, parameters: Parameters, *, end: str = "") -> Wait[None]:
    """Take a list of calls in JSON, or one alone, and the mark behind it."""
    before, begin = answer.called, (yield from answer.space(at))
    yield from json_calls(answer, begin, parameters)
    if end and answer.called > before:
        yield from _close(answer, end)


def headed(answer: Scanner, at: int, parameters: Parameters, *, form: rules.Headed) -> Wait[None]:
    """Take calls with marks around names and behind arguments."""
    named = re.compile(re.escape(form.name).replace(re.escape("{}"), r"([\w.-]+)").replace(":0", r":\d+"))
    while True:
        at = yield from answer.space(at)
        if not (yield from answer.starts(form.before, at)):
            if answer.called:
                yield from _close(answer, form.end)
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


def _close(answer: Scanner, tag: str = "</tool_call>") -> Wait[None]:
    at = yield from answer.space(answer.done)
    if (yield from answer.starts(tag, at)):
        answer.done = at + len(tag)


def xml(answer: Scanner, at: int, parameters: Parameters, *, tags: Tags) -> Wait[None]:
    """Take functions between tags, such as `<function=NAME><parameter=KEY>VALUE</parameter></function>`.

    In their place there may be what Hermes writes.
    """
    before = answer.called
    while True:
        at = yield from answer.space(at)
        if (yield from answer.starts(tags.function[0] or "{", at)) is not bool(tags.function[0]):
            if answer.called == before:
                yield from tagged(answer, at, parameters)
            elif tags.end:
                yield from _close(answer, tags.end)
            return
        if not (yield from _xml_call(answer, at + len(tags.function[0]), parameters, tags)):
            return
        if not tags.last:  # its end was taken
            return
        at = answer.done


def functions(answer: Scanner, at: int, parameters: Parameters, *, tags: Tags) -> Wait[None]:
    """Take functions of which the first one's own tag is the mark."""
    yield from xml(answer, at - len(tags.function[0]), parameters, tags=tags)


def _xml_call(answer: Scanner, begin: int, parameters: Parameters, tags: Tags) -> Wait[bool]:
    """Take a function whose name begins here; return whether all of it is there."""
    ends = ("\n", "<") if tags.function[1] == "\n" else (tags.function[1], "\n")
    at, mark = yield from answer.find(ends, begin)
    name = answer.cut(begin, at)
    if mark not in (tags.function[1], *(ends if tags.function[1] == "\n" else ())) or not answer.begin(name):
        return False
    schema = parameters.get(name)
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    known = properties if isinstance(properties, Mapping) else {}
    opening, last = "{", tags.last or tags.end
    while True:
        at, mark = yield from answer.find((tags.parameter[0], last), at)
        answer.done = at = at + len(mark)
        if mark != tags.parameter[0]:
            answer.add("" if not mark else "}" if opening == ", " else "{}")
            return bool(mark)
        begin = at
        at, mark = yield from answer.find((tags.parameter[1], "\n"), begin)
        if mark != tags.parameter[1]:
            continue
        key, at = answer.cut(begin, at), at + len(mark)
        if tags.value[0]:
            at = yield from answer.space(at)
            if not (yield from answer.starts(tags.value[0], at)):
                continue
            at += len(tags.value[0])
        answer.add(f"{opening}{_dump(key)}: ")
        opening = ", "
        at = yield from _xml_value(answer, at, known.get(key), tags)


def _xml_value(answer: Scanner, at: int, schema: Any, tags: Tags) -> Wait[int]:
    """Give a value that stands as bare text, a text as it grows; return behind it."""
    stop, line = tags.value[1], "\n" if tags.lines else ""
    if line and (yield from answer.char(at)) == line:
        at += 1
    if tags.raw[0] and (yield from answer.starts(tags.raw[0], at)):
        at, stop = at + len(tags.raw[0]), tags.raw[1] + stop
    is_text = isinstance(schema, Mapping) and str(schema.get("type")).lower() == "string"
    if is_text:
        answer.add('"')
    begin = at
    while True:
        place, mark = answer.first((stop,), at)
        complete = bool(mark) or answer.ended
        end = place
        if line and mark and place > begin and answer.cut(place - 1, place) == line:
            end -= 1
        elif not complete:
            end = min(end, answer.end - answer.overlap(line + stop))
        if is_text:
            answer.add(_dump(answer.cut(at, end))[1:-1])
        at = max(at, end)
        if complete:
            break
        yield
    if is_text:
        answer.add('"' if mark else "")
    elif mark:
        answer.add(_dump(_typed(answer.cut(begin, end), schema)))
    return place + len(mark)


def mistral(answer: Scanner, at: int, parameters: Parameters) -> Wait[None]:
    """Take `[{"name": ..., "arguments": ...}]`, or `NAME[ARGS]{...}` once or several times."""
    begin = yield from answer.space(at)
    if (yield from answer.char(begin)) in ("[", "{"):
        yield from json_calls(answer, begin, parameters)
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
    """Take `NAME ...<|message|>{...}`, of which the mark is the recipient's beginning."""
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
    """Take `[f(a=1), g(b="x")]`, an answer as a whole, with values that Python can read without running anything."""
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
    """Take what is read between marks: names of functions and their arguments in JSON."""
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
    """Take no call."""
    yield from ()


def _typed(value: str, schema: Any) -> Any:
    """Return a value that stands as bare text: what it is as JSON, or else the text.

    Where an object or a list is due, it may be in Python's notation, which some templates write.
    """
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        due = isinstance(schema, Mapping) and str(schema.get("type")).lower() in ("object", "array")
        return python_value(value) if due else value


def _unquoted(text: str) -> str:
    """Return what a string of JSON says; nothing if it is none."""
    try:
        return str(json.loads(text))
    except ValueError:
        return ""


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
