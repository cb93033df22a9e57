"""Calls whose values stand as bare text between tags: how the families write them, as data and as grammars.

Sources: the chat templates of the families; for DeepSeek-V4.1, which has none, the encoding in its repository.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parlay.server.openai.argument_values import TEXT, kinds
from parlay.server.openai.tool_grammars import SPACE, Mark, closed_to_others, literal, properties_of, repeated


@dataclass(frozen=True, slots=True)
class Attributes:
    """What stands in tags behind names.

    Attributes:
        text: attribute of a parameter that is a text.
        other: attributes of a parameter whose value is JSON.
        end: end of a tag.
        numbered: a function tag's attribute, with a place for its number; empty where it has none.
    """

    text: str
    other: tuple[str, ...]
    end: str
    numbered: str = ""


@dataclass(frozen=True, slots=True)
class Tags:
    """How calls are written whose values stand as bare text between tags.

    Attributes:
        begin, end: tags around one or more functions.
        function: texts before and behind a function's name.
        parameter: texts before and behind a parameter's name.
        value: texts before and behind a value.
        last: text behind the last value of a function; empty where `end` follows at once.
        lines: whether values stand on lines of their own.
        raw: texts around a value that may have any text but the second of them.
        attributes: attributes behind names, if there are any.
        block: whether all functions stand between one `begin` and `end`.
        inner: mark before each tag where objects and lists are tags within tags, `<KEY>` and `<item>`; a value ends
            with its key's tag.
    """

    begin: str
    end: str
    function: tuple[str, str]
    parameter: tuple[str, str]
    value: tuple[str, str]
    last: str
    lines: bool = False
    raw: tuple[str, str] = ("", "")
    attributes: Attributes | None = None
    block: bool = False
    inner: str = ""

    def behind(self, key: str) -> str:
        """Return what stands behind a parameter's value."""
        return f"{self.inner}</{key}>" if self.inner else self.value[1]


_TOKEN = re.compile(
    r'("(?:[^"\\]|\\.)*")? ?(<\[\d+\]>)(.*)', re.DOTALL
)  # the first one in a mark, as a grammar has it
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_EQUALS = ("<function=", ">"), ("<parameter=", ">"), ("", "</parameter>"), "</function>"
_NAMED = ('<invoke name="', '">'), ('<parameter name="', '">'), ("", "</parameter>"), "</invoke>"
QWEN = Tags(_OPEN, _CLOSE, *_EQUALS, lines=True)
SEED = Tags("<seed:tool_call>", "</seed:tool_call>", *_EQUALS, lines=True)
GLM = Tags(_OPEN, _CLOSE, ("", "\n"), ("<arg_key>", "</arg_key>"), ("<arg_value>", "</arg_value>"), "")
MINIMAX = Tags("<minimax:tool_call>", "</minimax:tool_call>", *_NAMED, block=True)
_INNER = "]<]minimax[>["
MINIMAX_3 = Tags(
    f"{_INNER}<tool_call>",
    f"{_INNER}</tool_call>",
    (f'{_INNER}<invoke name="', '">'),
    (f"{_INNER}<", ">"),
    ("", ""),
    f"{_INNER}</invoke>",
    block=True,
    inner=_INNER,
)
MINICPM = Tags(
    "",
    "",
    ('<function name="', '">'),
    ('<param name="', '">'),
    ("", "</param>"),
    "</function>",
    raw=("<![CDATA[", "]]>"),
)
FUNCTIONARY = Tags("", "", *_EQUALS)  # whose functions have JSON in place of parameters


def _deepseek(calls: str, before: str = "") -> Tags:
    """Return the tags of DeepSeek's markup (DSML).

    Args:
        calls: the name of the outermost tag.
        before: what stands before the names of all tags.
    """
    tag, close = f"<\uff5cDSML\uff5c{before}", f"</\uff5cDSML\uff5c{before}"
    return Tags(
        f"{tag}{calls}>",
        f"{close}{calls}>",
        (f'{tag}invoke name="', '">'),
        (f'{tag}parameter name="', '"'),
        ("", f"{close}parameter>"),
        f"{close}invoke>",
        attributes=Attributes(' string="true"', (' string="false"',), ">"),
        block=True,
    )


DEEPSEEK_32, DEEPSEEK_4, DEEPSEEK_41 = _deepseek("function_calls"), _deepseek("tool_calls"), _deepseek("calls", " ")


def _hunyuan(suffix: str) -> Tags:
    """Return the tags of Hy3, whose names end alike."""
    names = ("tool_calls", "tool_call", "tool_sep", "arg_key", "arg_value")
    calls, call, separator, key, value = (f"<{name}{suffix}>" for name in names)
    end_calls, end_call, _, end_key, end_value = (f"</{name}{suffix}>" for name in names)
    return Tags(calls, end_calls, (call, separator), (key, end_key), (value, end_value), end_call, block=True)


HUNYUAN, HUNYUAN_PREVIEW = _hunyuan(":opensource"), _hunyuan("")
KIMI_3 = Tags(
    "<|open|>tools<|sep|>",
    "<|close|>tools<|sep|>",
    ('<|open|>call tool="', '"'),
    ('<|open|>argument key="', '"'),
    ("", "<|close|>argument<|sep|>"),
    "<|close|>call<|sep|>",
    attributes=Attributes(
        ' type="string"',
        tuple(f' type="{kind}"' for kind in ("number", "boolean", "null", "object", "array")),
        "<|sep|>",
        ' index="{}"',
    ),
    block=True,
)


def xml(tags: Tags, parameters: Mapping[str, Any], mark: Mark, several: bool) -> list[str]:
    """Return the rules of calls between tags, such as `<tool_call><function=NAME>...</function></tool_call>`."""
    functions = repeated("function", several and tags.block, "S")
    one = f"{mark(tags.begin)} S {functions} S {mark(tags.end)}" if tags.begin else "function"
    rules = [
        f"calls: {repeated('one', several and not (tags.block and tags.begin), 'S')}",
        f"one: {one}",
        f"raw: {literal(tags.raw[0])} raw_end {literal(tags.value[1])}" if tags.raw[0] else "",
        f"raw_end[suffix={literal(tags.raw[1])}]: /(?s:.*)/" if tags.raw[0] else "",
        r"KEY: /[^<>\n]{1,64}/",
        "NUMBER: /[0-9]{1,3}/",
        SPACE,
        *([] if tags.inner else until("bare", tags.value[1], mark)),
    ]
    heads = []
    for i, (name, schema) in enumerate(parameters.items()):
        listed = properties_of(schema)
        for j, (key, _) in enumerate(listed):
            rules += _parameter(tags, f"p{i}_{j}", key, kinds(schema["properties"][key], schema), mark)
        pairs = [f"p{i}_{j}" + ("" if needed else "?") for j, (_, needed) in enumerate(listed)]
        if not pairs and not closed_to_others(schema):
            pairs = ["any*"]
        last = [mark(tags.last)] if tags.last else []
        heads.append(" ".join([_function(tags, name, mark), "S", *pairs, *last]))
    if any("any*" in head for head in heads):
        rules += _parameter(tags, "any", "", frozenset(), mark)
    return [*filter(None, rules), f"function: {' | '.join(heads)}"]


def bodied(tags: Tags, parameters: Mapping[str, Any], mark: Mark, several: bool) -> list[str]:
    """Return the rules of `<function=NAME>{...}</function>`."""
    calls = (f"{literal(name.join(tags.function))} a{i} {literal(tags.last)}" for i, name in enumerate(parameters))
    return [f"calls: {repeated('one', several, 'S')}", f"one: {' | '.join(calls)}", SPACE]


def _function(tags: Tags, name: str, mark: Mark) -> str:
    """Return the rule of a function's tag."""
    head = mark(name.join(tags.function))
    if tags.attributes is None or not tags.attributes.numbered:
        return head
    before, _, behind = tags.attributes.numbered.partition("{}")
    return f"{head} {literal(before)} NUMBER {mark(behind + tags.attributes.end)}"


def _parameter(tags: Tags, rule: str, key: str, due: frozenset[str], mark: Mark) -> list[str]:
    """Return the rules of a parameter with its value, which is any text; without a key, of any.

    Args:
        tags: the format's tags.
        rule: name of the parameter's rule.
        key: the parameter's name.
        due: the types of its value; none for any.
        mark: see `tool_grammars`.
    """
    before, behind = tags.parameter
    head = f"{mark(before)} {literal(key) if key else 'KEY'} {mark(behind)}"
    if tags.attributes is not None:
        texts = [] if due and "string" not in due else [tags.attributes.text]
        values = [*texts, *([] if due == TEXT else tags.attributes.other)]
        head += f" ({' | '.join(map(literal, values))}) {mark(tags.attributes.end)}"
    own = f"{rule}_value"
    if tags.inner and not key:
        return [f'{rule}: {head} {own} KEY ">"', *until(own, f"{tags.inner}</", mark)]
    if tags.inner:
        inner = "" if due == TEXT else tags.behind(key).removeprefix(tags.inner)
        return [f"{rule}: {head} {own} S", *until(own, tags.behind(key), mark, inner=inner)]
    text = "(bare | raw)" if tags.raw[0] else "bare"
    value = f"S {mark(tags.value[0])} {text} S" if tags.value[0] else f"{text} S"
    return [f"{rule}: {head} {value}"]


def until(rule: str, end: str, mark: Mark, *, inner: str = "") -> list[str]:
    """Return rules of any text with a mark behind it.

    A special token in the mark is no part of any text; what stands before it in the mark may be.

    Args:
        rule: name of the first rule.
        end: the mark.
        mark: see `tool_grammars`.
        inner: the part of a mark behind its special token, where that token may stand in the text too.
    """
    found = _TOKEN.fullmatch(mark(end))
    if found is None:
        return [f"{rule}[suffix={literal(end)}]: /(?s:.*)/"]
    before, token, behind = found.groups()
    text = _pattern(json.loads(before)) if before else ""
    if not inner:
        return [f"{rule}: /(?s:.*){text}/ {token}{behind}"]
    part = rule.upper()  # which the mark's own text never begins
    return [f"{rule}: ({part} {token})+ {behind}", f"{part}: /(?s:.*)/ & ~/{_pattern(inner)}(?s:.*)/"]


def _pattern(text: str) -> str:
    """Return a text as a pattern in a grammar."""
    return re.escape(text).replace("/", r"\/")
