"""The formats of tool calls as grammars, in llguidance's form of Lark's notation.

Each function here gives the rules of `calls`, one or several. The arguments of function number i in JSON are the rule
`a{i}`, which is not among them.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

Mark = Callable[[str], str]  # a mark as a grammar has it: its text, or a special token
Rules = Callable[[Mapping[str, Any], Mark, bool], list[str]]

_OPEN, _CLOSE, _PYTHON_TAG = "<tool_call>", "</tool_call>", "<|python_tag|>"
SPACE = "S: /[ \\n]{0,2}/"  # between parts, for which there is no single habit
_PYTHON = (
    'value: STRING | NUMBER | "True" | "False" | "None" | list | dict',
    'list: "[" [value ("," S value)*] "]"',
    'dict: "{" [pair ("," S pair)*] "}"',
    'pair: STRING ":" S value',
    r"""STRING: /"([^"\\\n]|\\["'\\nrt])*"|'([^'\\\n]|\\["'\\nrt])*'/""",
    r"NUMBER: /-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?/",
    "IDENTIFIER: /[a-z][a-zA-Z0-9_]*_?/",
)


def literal(text: str) -> str:
    """Return a text as a grammar has it."""
    return json.dumps(text, ensure_ascii=False)


class SpelledMarks:
    """Marks as a grammar has them: text, and the special tokens that are in it.

    Attributes:
        special: whether any mark so far has special tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Read a model's special tokens."""
        added = tokenizer.get_added_tokens_decoder()
        self._numbers = {one.content: number for number, one in added.items() if one.special}
        self.special = False

    def __call__(self, text: str) -> str:
        """Return a mark; the longest special token counts where several begin."""
        found = sorted((one for one in self._numbers if one in text), key=len, reverse=True)
        if not found:
            return literal(text)
        self.special = True
        parts = re.split(f"({'|'.join(map(re.escape, found))})", text)
        return " ".join(f"<[{self._numbers[p]}]>" if p in self._numbers else literal(p) for p in parts if p)


def forced(names: Sequence[str], several: bool) -> list[str]:
    """Return the rules of a list of calls in JSON, without white space."""
    heads = [literal(f'{{"name":"{name}","arguments":') for name in names]
    calls = [f"{head} a{i} {literal('}')}" for i, head in enumerate(heads)]
    listed = repeated("call", several, literal(","), "[", "]")
    return [f"calls: {listed}", f"call: {' | '.join(calls)}"]


def tagged(parameters: Mapping[str, Any], mark: Mark, several: bool) -> list[str]:
    """Return the rules of `<tool_call>{"name": ..., "arguments": ...}</tool_call>`."""
    one = f"{mark(_OPEN)} S call S {mark(_CLOSE)}"
    return [f"calls: {repeated('one', several, 'S')}", f"one: {one}", *_objects(parameters), SPACE]


def lines(parameters: Mapping[str, Any], mark: Mark, several: bool, *, around: tuple[str, str]) -> list[str]:
    """Return the rules of lines `{"name": ..., "arguments": ...}` between marks."""
    calls = f"{mark(around[0])} S {repeated('call', several, 'S')} S {mark(around[1])}"
    return [f"calls: {calls}", *_objects(parameters), SPACE]


def keyed(parameters: Mapping[str, Any], mark: Mark, several: bool, *, around: tuple[str, str]) -> list[str]:
    """Return the rules of `[{"NAME": {...}}]` between marks."""
    heads = (literal(f"{json.dumps(name)}:") for name in parameters)
    calls = (f'"{{" S {head} S a{i} S "}}"' for i, head in enumerate(heads))
    listed = repeated("call", several, '"," S', "[", "]")
    return [f"calls: {mark(around[0])} S {listed} S {mark(around[1])}", f"call: {' | '.join(calls)}", SPACE]


def llama(parameters: Mapping[str, Any], mark: Mark, several: bool, *, bare: bool = False) -> list[str]:
    """Return the rules of `<|python_tag|>{"name": ..., "parameters": ...}; ...`, or of the same without its mark."""
    begin, calls = "" if bare else mark(_PYTHON_TAG), repeated("call", several, '";" S')
    return [f"calls: {begin} {calls}", *_objects(parameters, "parameters"), SPACE]


def mistral(parameters: Mapping[str, Any], mark: Mark, several: bool) -> list[str]:
    """Return the rules of `[TOOL_CALLS][{"name": ..., "arguments": ...}]` and of `[TOOL_CALLS]NAME[ARGS]{...}`."""
    begin, then = mark("[TOOL_CALLS]"), mark("[ARGS]")
    listed = repeated("call", several, '"," S', "[", "]")
    rules = [f"calls: {begin} S {listed}", *_objects(parameters), SPACE]
    if then != literal("[ARGS]"):  # older vocabularies do not have it
        calls = [f"{begin} {literal(name)} {then} a{i}" for i, name in enumerate(parameters)]
        rules[0] += f" | {repeated('named', several, 'S')}"
        rules.append(f"named: {' | '.join(calls)}")
    return rules


@dataclass(frozen=True, slots=True)
class Headed:
    """How calls are written of which each has marks around its name and behind its arguments in JSON.

    Attributes:
        begin, end: marks around all calls.
        before: a name's marks and text, once for each call.
        between: marks behind a name.
        behind: marks behind the arguments.
        name: what stands for a name, with the places `{}` for it and `#` for the call's id.
        ids: the ids, as a pattern.
        loose: a pattern of what models write in place of `name`, if that is more.
        other: a spelling of `begin` that models write too.
    """

    begin: str
    end: str
    before: str
    between: tuple[str, ...]
    behind: tuple[str, ...]
    name: str = "{}"
    ids: str = "[0-9]{1,3}"
    loose: str = ""
    other: str = ""


_CALLS, _CALL, _SEP = (
    "<\uff5ctool\u2581calls\u2581{}\uff5c>",
    "<\uff5ctool\u2581call\u2581{}\uff5c>",
    "<\uff5ctool\u2581sep\uff5c>",
)
_AROUND = _CALLS.format("begin"), _CALLS.format("end"), _CALL.format("begin")
DEEPSEEK = Headed(*_AROUND, ("\n```json\n",), ("\n```", _CALL.format("end")), f"function{_SEP}{{}}")
DEEPSEEK_31 = Headed(*_AROUND, (_SEP,), (_CALL.format("end"),))
KIMI = Headed(
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    ("<|tool_call_argument_begin|>",),
    ("<|tool_call_end|>",),
    "functions.{}:#",
    loose=r"(?:functions\.)?([\w.-]+):\d+",
    other="<|tool_call_section_begin|>",
)
SOLAR = Headed(
    "<|tool_calls|>",
    "<|calls|>",
    "<|tool_call:begin|>",
    ("<|tool_call:args|>",),
    ("<|tool_call:end|>",),
    "#<|tool_call:name|>{}",
    "[a-z0-9]{10}",
    loose=r"[\w-]*<\|tool_call:name\|>([\w.-]+)",
)


def headed(form: Headed, parameters: Mapping[str, Any], mark: Mark, several: bool) -> list[str]:
    """Return the rules of calls such as `<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}`."""
    calls = []
    for i, name in enumerate(parameters):
        places = {"#": "ID", "{}": literal(name)}
        parts = [places.get(part) or mark(part) for part in re.split(r"(#|\{\})", form.name) if part]
        calls.append(" ".join([*parts, *map(mark, form.between), f"a{i}"]))
    one = " ".join([mark(form.before), "call", *map(mark, form.behind)])
    listed = f"{mark(form.begin)} {repeated('one', several, 'S')} {mark(form.end)}"
    return [f"calls: {listed}", f"one: {one}", f"call: {' | '.join(calls)}", SPACE, f"ID: /{form.ids}/"]


def listed(parameters: Mapping[str, Any], mark: Mark, several: bool, *, around: tuple[str, str]) -> list[str]:
    """Return the rules of `[{"name": ..., "arguments": ...}]` between marks, of which the last one may be missing."""
    calls, end = repeated("call", several, '"," S', "[", "]"), f" S {mark(around[1])}" if around[1] else ""
    return [f"calls: {mark(around[0])} S {calls}{end}", *_objects(parameters), SPACE]


def gigachat(parameters: Mapping[str, Any], mark: Mark, several: bool) -> list[str]:
    """Return the rules of one call, `<|function_call|>{"name": ..., "arguments": ...}`."""
    begin, separator = mark("<|function_call|>"), mark("<|role_sep|>")
    if begin == literal("<|function_call|>"):  # a vocabulary without it has a role instead
        begin = rf'"function call" {separator} "\n"'
    return [f"calls: {begin} call", *_objects(parameters), SPACE]


def cohere(parameters: Mapping[str, Any], mark: Mark, several: bool) -> list[str]:
    """Return the rules of a list of `{"tool_call_id": "0", "tool_name": ..., "parameters": ...}` between marks."""
    listed = repeated("S call S", several, '","', "[", "]")
    calls = [
        " S ".join([r'"{" S "\"tool_call_id\":"', "ID", *map(literal, (",", '"tool_name":', f'"{name}"', ","))])
        + f" S {literal(chr(34) + 'parameters' + chr(34) + ':')} S a{i} S {literal('}')}"
        for i, name in enumerate(parameters)
    ]
    begin, end = mark("<|START_ACTION|>"), mark("<|END_ACTION|>")
    ids = r'ID: /"[0-9]{1,3}"/'
    return [f"calls: {begin} {listed} {end}", f"call: {' | '.join(calls)}", ids, r"S: /\n? {0,4}/"]


def harmony(parameters: Mapping[str, Any], mark: Mark, several: bool) -> list[str]:
    """Return the rules of one call, `<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}`.

    The recipient may also stand before the channel.
    """
    channel, constrain, message = map(mark, ("<|channel|>", "<|constrain|>", "<|message|>"))
    calls = []
    for i, name in enumerate(parameters):
        to, json_form = literal(f" to=functions.{name}"), f'" " {constrain} "json" {message} a{i}'
        calls.append(f'({channel} "commentary" {to} | {to} {channel} "commentary") {json_form}')
    return [f"calls: {' | '.join(calls)}"]


def python(
    parameters: Mapping[str, Any],
    mark: Mark,
    several: bool,
    *,
    around: tuple[str, str] = ("", ""),
    lines: bool = False,
) -> list[str]:
    """Return the rules of `[f(a=1), g(b="x")]`; values are any that Python can read.

    Args:
        parameters, mark, several: see the module.
        around: marks before and behind them.
        lines: each call is a line, without brackets.
    """
    rules, calls = list(_PYTHON), []
    for i, (name, schema) in enumerate(parameters.items()):
        if not name.isidentifier():  # it cannot be called in this format
            continue
        listed = [(f"{key}=", needed) for key, needed in properties_of(schema) if key.isidentifier()]
        rules += _in_order(i, listed, '"," S')
        free = "" if closed_to_others(schema) else '[IDENTIFIER "=" value ("," S IDENTIFIER "=" value)*]'
        inner = f"f{i}_0" if listed else free
        calls.append(f'{literal(name + "(")} {inner} ")"')
    one = repeated("call", several, r'"\n"') if lines else repeated("call", several, '"," S', "[", "]")
    if around[0]:
        one = f"{mark(around[0])} S {one} S {mark(around[1])}"
    return [*rules, f"calls: {one}", f"call: {' | '.join(calls)}", SPACE] if calls else []


GEMMA = "<|tool_call>", "<tool_call|>"


def gemma(parameters: Mapping[str, Any], mark: Mark, several: bool) -> list[str]:
    """Return the rules of `<|tool_call>call:NAME{key:<|"|>text<|"|>,other:1}<tool_call|>`."""
    quote = mark('<|"|>')
    if quote == literal('<|"|>'):  # ordinary text
        string = [f"string: {quote} rest", f"rest[suffix={quote}]: /(?s:.*)/"]
    else:
        string = [f"string: {quote} /(?s:.*)/ {quote}"]
    rules = [
        *string,
        'value: string | NUMBER | "true" | "false" | "null" | list | dict',
        'list: "[" [value ("," value)*] "]"',
        'dict: "{" [pair ("," pair)*] "}"',
        'pair: KEY ":" value',
        r"KEY: /[^:,{}\[\]<>\n]{1,64}/",
        r"NUMBER: /-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?/",
        SPACE,
    ]
    calls = []
    for i, (name, schema) in enumerate(parameters.items()):
        listed = [(f"{key}:", needed) for key, needed in properties_of(schema)]
        rules += _in_order(i, listed, '","')
        inner = f"f{i}_0" if listed else "" if closed_to_others(schema) else '[pair ("," pair)*]'
        calls.append(" ".join(filter(None, (literal(f"call:{name}{{"), inner, literal("}")))))
    one = f"{mark(GEMMA[0])} call {mark(GEMMA[1])}"
    return [*rules, f"calls: {repeated('one', several, 'S')}", f"one: {one}", f"call: {' | '.join(calls)}"]


def _in_order(i: int, listed: Sequence[tuple[str, bool]], comma: str) -> list[str]:
    """Return the rules of function i's arguments, of which those may be left out that are not needed.

    Args:
        i: number of the function, whose first rule is `f{i}_0`.
        listed: what stands before each value, and whether it is needed.
        comma: rule of what stands between arguments.
    """
    rules = []
    for j, (before, needed) in enumerate(listed):  # arguments from the j-th on, first ones and later ones
        last = j + 1 == len(listed)
        first, later = ("", "") if last else (f" | f{i}_{j + 1}", f" | l{i}_{j + 1}")
        pair = f"{literal(before)} value" + ("" if last else f" l{i}_{j + 1}")
        rules.append(f"f{i}_{j}: {pair}" + ("" if needed else first or ' | ""'))
        rules.append(f"l{i}_{j}: {comma} {pair}" + ("" if needed else later or ' | ""'))
    return rules


def properties_of(schema: Any) -> list[tuple[str, bool]]:
    """Return the names of the properties and whether they are required."""
    properties, required = schema.get("properties"), schema.get("required") or ()
    return [(name, name in required) for name in properties] if isinstance(properties, dict) else []


def closed_to_others(schema: Any) -> bool:
    """Whether an object has no properties but those that its schema names."""
    return schema.get("additionalProperties") is False


def repeated(one: str, several: bool, between: str, begin: str = "", end: str = "") -> str:
    """Return one rule, or several times it with another between, between texts."""
    listed = f"{one} ({between} {one})*" if several else one
    return " ".join(filter(None, (begin and literal(begin), listed, end and literal(end))))


def _objects(parameters: Mapping[str, Any], key: str = "arguments") -> list[str]:
    calls = [
        " S ".join([*map(literal, ("{", '"name":', f'"{name}",', f'"{key}":')), f"a{i}", literal("}")])
        for i, name in enumerate(parameters)
    ]
    return [f"call: {' | '.join(calls)}"]
