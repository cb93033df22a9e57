"""What reads calls whose values stand as bare text between tags, from an answer while it grows.

Sources: see `tags`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from parlay.server.openai.argument_values import TEXT, kinds, typed
from parlay.server.openai.inner_tags import inner_value
from parlay.server.openai.tags import Tags
from parlay.server.openai.tool_parsers import Parameters, close, tagged
from parlay.server.openai.tool_scanner import Scanner, Wait


def xml(answer: Scanner, at: int, parameters: Parameters, *, spellings: Sequence[Tags]) -> Wait[None]:
    """Read functions between tags, such as `<function=NAME><parameter=KEY>VALUE</parameter></function>`.

    In their place there may be what Hermes writes.

    Args:
        answer: the growing answer.
        at: position behind the mark that begins them.
        parameters: parameters of the functions that there are.
        spellings: the tags' spellings, of which a family may have several; the mark tells which. It may be that of a
            function, if models leave out what stands around it.
    """
    tags = next((one for one in spellings if answer.behind(one.begin, at)), None)
    if tags is not None:
        yield from _functions(answer, at, parameters, tags)
        return
    tags = next(one for one in spellings if answer.behind(one.function[0], at))
    begin = at - len(tags.function[0])
    if answer.called or not answer.done or "\n" in answer.cut(answer.done, begin):  # on a line of its own
        yield from _functions(answer, begin, parameters, tags)


def bare(answer: Scanner, at: int, parameters: Parameters, *, tags: Tags) -> Wait[None]:
    """Read functions of which the first one's own tag is the mark."""
    yield from _functions(answer, at - len(tags.function[0]), parameters, tags)


def _functions(answer: Scanner, at: int, parameters: Parameters, tags: Tags) -> Wait[None]:
    before = answer.called
    while True:
        at = yield from answer.space(at)
        if (yield from answer.starts(tags.function[0] or "{", at)) is not bool(tags.function[0]):
            if answer.called == before:
                yield from tagged(answer, at, parameters)
            elif tags.end:
                yield from close(answer, tags.end)
            return
        if not (yield from _function(answer, at + len(tags.function[0]), parameters, tags)):
            return
        if not tags.last:  # its end was taken
            return
        at = answer.done


def _function(answer: Scanner, begin: int, parameters: Parameters, tags: Tags) -> Wait[bool]:
    """Read a function whose name begins here; return whether all of it is there."""
    ends = ("\n", "<") if tags.function[1] == "\n" else (tags.function[1], "\n")
    at, mark = yield from answer.find(ends, begin)
    name = answer.cut(begin, at)
    if mark not in (tags.function[1], *(ends if tags.function[1] == "\n" else ())) or not answer.begin(name):
        return False
    at += len(mark) if mark != "<" else 0
    if tags.attributes is not None and tags.attributes.numbered:
        at, mark = yield from answer.find((tags.attributes.end,), at)
        at += len(mark)
    last, body = tags.last or tags.end, (yield from answer.space(at))
    if (yield from answer.char(body)) == "{":  # JSON in place of parameters, as some models write now and then
        answer.done = yield from answer.give(body)
        at, mark = yield from answer.find((last,), answer.done)
        answer.done = at + len(mark)
        return bool(mark)
    schema = parameters.get(name)
    opening = "{"
    while True:
        at, mark = yield from answer.find((tags.parameter[0], last), at)
        if mark and (yield from answer.starts(last, at)):  # which a parameter's mark may begin, too
            mark = last
        answer.done = at = at + len(mark)
        if mark != tags.parameter[0]:
            answer.add("" if not mark else "}" if opening == ", " else "{}")
            return bool(mark)
        found = yield from _key(answer, at, tags)
        if found is None:
            continue
        key, attributes, at = found
        answer.add(f"{opening}{_dump(key)}: ")
        opening = ", "
        at = yield from _value(answer, at, key, attributes, schema, tags)


def _key(answer: Scanner, begin: int, tags: Tags) -> Wait[tuple[str, str, int] | None]:
    """Return a parameter's name, its attributes and where its value begins; None if something else stands here."""
    at, mark = yield from answer.find((tags.parameter[1], "\n"), begin)
    if mark != tags.parameter[1]:
        return None
    key, at, attributes = answer.cut(begin, at), at + len(mark), ""
    if tags.attributes is not None:
        begin = at
        at, mark = yield from answer.find((tags.attributes.end, "\n"), begin)
        if mark != tags.attributes.end:
            return None
        attributes, at = answer.cut(begin, at), at + len(mark)
    if tags.value[0]:
        begin = at
        at = yield from answer.space(at)
        if (yield from answer.starts(tags.value[0], at)):
            return key, attributes, at + len(tags.value[0])
        # The mark is lost now and then (vllm-project/vllm#49248).
        at, mark = yield from answer.find((tags.value[1], tags.parameter[0], tags.last or tags.end), begin)
        return (key, attributes, begin) if mark == tags.value[1] else None
    return key, attributes, at


def _value(answer: Scanner, at: int, key: str, attributes: str, schema: Any, tags: Tags) -> Wait[int]:
    """Give a value that stands as bare text, a text as it grows; return behind it.

    Args:
        answer: the growing answer.
        at: position where the value begins.
        key: the parameter's name.
        attributes: the attributes of its tag.
        schema: the schema of the function's arguments.
        tags: the format's tags.
    """
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    own = properties.get(key) if isinstance(properties, Mapping) else None
    due, is_json = kinds(own, schema), False
    if tags.attributes is not None and tags.attributes.text in attributes:
        due = TEXT
    elif tags.attributes is not None:
        is_json = any(one in attributes for one in tags.attributes.other)
    stop, line = tags.behind(key), "\n" if tags.lines else ""
    if line and (yield from answer.char(at)) == line:
        at += 1
    if tags.raw[0] and (yield from answer.starts(tags.raw[0], at)):
        at, stop = at + len(tags.raw[0]), tags.raw[1] + stop
    if due == TEXT and not is_json:
        return (yield from _text(answer, at, stop, line, tags))
    place, mark = yield from _end(answer, at, stop, f"{tags.inner}<{key}>" if tags.inner else "", tags)
    if mark:
        text = answer.cut(at, place - 1 if line and answer.cut(max(place - 1, at), place) == line else place)
        value = inner_value(text, own, schema, tags.inner) if tags.inner else typed(text, due, encoded=is_json)
        answer.add(_dump(value))
    return place + len(mark)


def _ends(answer: Scanner, at: int, tags: Tags) -> Wait[bool]:
    """Return whether the mark before this place ends a value, which may have it as text, too: what follows tells."""
    at = yield from answer.space(at)
    after = tuple(filter(None, (tags.parameter[0], tags.last, tags.end)))
    if (yield from answer.starts_any(after, at)):
        return True
    return answer.ended and any(mark.startswith(answer.cut(at)) for mark in after)  # cut off


def _end(answer: Scanner, at: int, stop: str, opening: str, tags: Tags) -> Wait[tuple[int, str]]:
    """Return where the mark behind a value stands, and that; what opens such a value within has its own."""
    depth = 0
    while True:
        at, mark = yield from answer.find((stop, opening) if opening else (stop,), at)
        if not mark or (mark == stop and not depth and (yield from _ends(answer, at + len(mark), tags))):
            return at, mark
        depth = max(0, depth + (1 if mark == opening else -1))
        at += len(mark)


def _text(answer: Scanner, at: int, stop: str, line: str, tags: Tags) -> Wait[int]:
    """Give a text as it grows; return behind the mark behind it.

    Args:
        answer: the growing answer.
        at: position where the text begins.
        stop: the mark.
        line: what may stand before the mark and is no part of the text.
        tags: the format's tags.
    """
    answer.add('"')
    begin, given = at, at  # how much is searched, and given
    while True:
        at, mark = answer.first((stop,), at)
        if mark and not (yield from _ends(answer, at + len(mark), tags)):
            at += len(mark)
            continue
        end = at
        if line and mark and at > begin and answer.cut(at - 1, at) == line:
            end -= 1
        elif not mark:  # what may begin the mark is no text, even if the answer is cut off there
            end = max(given, answer.end - max(answer.overlap(stop), answer.overlap(line + stop)))
        answer.add(_dump(answer.cut(given, end))[1:-1])
        given = end
        if mark or answer.ended:
            break
        yield
    answer.add('"' if mark else "")
    return at + len(mark)


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
