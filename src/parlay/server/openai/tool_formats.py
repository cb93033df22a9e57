"""The formats in which families of models write tool calls, by vLLM's names.

A call is certain once its function is known to exist and its arguments begin; from then on it stays a call, even if
its arguments are malformed. A candidate that turns out to be no call is text.

Sources: the chat templates of the families, and for `pythonic` the prompt format of Llama 3.2 and 4.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from parlay.config.server import ToolParser
from parlay.server.openai import atem
from parlay.server.openai import tool_grammars as rules
from parlay.server.openai.gemma_calls import gemma_calls
from parlay.server.openai.harmony import CALL, RECIPIENT, final
from parlay.server.openai.messages import MESSAGE
from parlay.server.openai.python_calls import python_calls, python_value
from parlay.server.openai.tool_grammars import Mark, Tags
from parlay.server.openai.tool_scanner import Scanner, Wait

Parameters = Mapping[str, Any]  # JSON schemas by function
Search = Callable[[Scanner, int, Parameters], Wait[None]]

_BRACE = re.compile("{")
_MISTRAL_HEAD = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*")
_MISTRAL_PART = re.compile(r"\s*[\w.-]*\s*(?:\[[^{]*)?")  # what may become that
_MISTRAL_LONGEST = 256  # characters before the arguments
_PYTHONIC = re.compile(r"(?:<\|python_start\|>)?\s*(\[.*\])\s*(?:<\|python_end\|>)?", re.DOTALL)
_NAME = re.compile(r"[\w-]+")
_HEAD = 128  # characters of a name and what stands between it and a message


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How calls are written.

    Attributes:
        marks: texts at which calls begin, anywhere.
        openers: first characters of an answer that may be a call as a whole.
        calls: reads the calls behind a mark.
        whole: reads those that an answer consists of.
        special: whether marks are special tokens, which must be asked for.
        grammar: rules of the calls; see `tool_grammars`.
        bare: rules of calls without a mark, where the model writes such.
        head: what stands before an answer that is no call, as a grammar has it.
        forced: whether calls that must be made are written like others, whose arguments are JSON, instead of as a
            list in JSON.
    """

    marks: tuple[str, ...]
    openers: str
    calls: Search
    whole: Search
    special: bool = False
    grammar: rules.Rules = rules.tagged
    bare: rules.Rules | None = None
    head: Callable[[Mark], str] | None = None
    forced: bool = False

    def search(self, answer: Scanner, parameters: Parameters, *, alone: bool = False) -> Wait[None]:
        """Find the calls in an answer while it grows; the space around them is no text.

        Args:
            answer: as it grows.
            parameters: of the functions that there are.
            alone: whether an answer is either calls or none at all.
        """
        begin = yield from answer.space(0)
        if (yield from answer.char(begin)) in tuple(self.openers):
            yield from self.whole(answer, begin, parameters)
        if alone and not answer.called and not (yield from answer.starts_any(self.marks, begin)):
            while not answer.ended:
                answer.say(answer.end)
                yield
            answer.say(answer.end)
            return
        at = solid = answer.done  # behind the last character that is no space
        bare = answer.called > 0  # nothing but space has come since a call
        while True:
            place, mark = answer.first(self.marks, at)
            if new := answer.cut(at, place).rstrip():
                solid = at + len(new)
            bare = bare and solid == answer.done
            if not mark and answer.ended:
                answer.say(answer.done if bare else place)
                return
            answer.say(solid)
            if not mark:
                at = place
                yield
                continue
            before, at = answer.called, place + len(mark)
            yield from self.calls(answer, at, parameters)
            if answer.called > before:
                at, bare = answer.done, True
            solid = at


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


def _json(answer: Scanner, at: int, parameters: Parameters, *, forced: bool = False) -> Wait[None]:
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


def _several(answer: Scanner, at: int, parameters: Parameters, *, between: str) -> Wait[None]:
    """Take calls in JSON, one after another with spaces and certain characters between them."""
    while True:
        at = yield from answer.space(at)
        while (yield from answer.char(at)) in tuple(between):
            at = yield from answer.space(at + 1)
        before = answer.called
        yield from _json(answer, at, parameters)
        if answer.called == before:
            return
        at = answer.done


def _tagged(answer: Scanner, at: int, parameters: Parameters) -> Wait[None]:
    """Take `{"name": ..., "arguments": ...}</tool_call>`, of which the tag may be missing."""
    before = answer.called
    yield from _several(answer, at, parameters, between="")
    if answer.called > before:
        yield from _close(answer)


def _list(answer: Scanner, at: int, parameters: Parameters, *, end: str = "") -> Wait[None]:
    """Take a list of calls in JSON, or one alone, and the mark behind it."""
    before, begin = answer.called, (yield from answer.space(at))
    yield from _json(answer, begin, parameters)
    if end and answer.called > before:
        yield from _close(answer, end)


def _headed(answer: Scanner, at: int, parameters: Parameters, *, form: rules.Headed) -> Wait[None]:
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


def _xml(answer: Scanner, at: int, parameters: Parameters, *, tags: Tags) -> Wait[None]:
    """Take functions between tags, such as `<function=NAME><parameter=KEY>VALUE</parameter></function>`.

    In their place there may be what Hermes writes.
    """
    before = answer.called
    while True:
        at = yield from answer.space(at)
        if (yield from answer.starts(tags.function[0] or "{", at)) is not bool(tags.function[0]):
            if answer.called == before:
                yield from _tagged(answer, at, parameters)
            elif tags.end:
                yield from _close(answer, tags.end)
            return
        if not (yield from _xml_call(answer, at + len(tags.function[0]), parameters, tags)):
            return
        if not tags.last:  # its end was taken
            return
        at = answer.done


def _functions(answer: Scanner, at: int, parameters: Parameters, *, tags: Tags) -> Wait[None]:
    """Take functions of which the first one's own tag is the mark."""
    yield from _xml(answer, at - len(tags.function[0]), parameters, tags=tags)


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


def _mistral(answer: Scanner, at: int, parameters: Parameters) -> Wait[None]:
    """Take `[{"name": ..., "arguments": ...}]`, or `NAME[ARGS]{...}` once or several times."""
    begin = yield from answer.space(at)
    if (yield from answer.char(begin)) in ("[", "{"):
        yield from _json(answer, begin, parameters)
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


def _harmony(answer: Scanner, at: int, parameters: Parameters) -> Wait[None]:
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


def _pythonic(answer: Scanner, at: int, parameters: Parameters) -> Wait[None]:
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


def _between(
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


def _nothing(answer: Scanner, at: int, parameters: Parameters) -> Wait[None]:
    """Take no call."""
    yield from ()


_llama, _bare_llama = partial(_several, between=";"), partial(rules.llama, bare=True)
FORMATS = {
    "hermes": ToolFormat(("<tool_call>",), "{[", _tagged, _json),
    **{
        name: ToolFormat((tags.begin,), "{[", partial(_xml, tags=tags), _json, grammar=partial(rules.xml, tags))
        for name, tags in {
            "qwen3_xml": rules.QWEN,
            "seed_oss": rules.SEED,
            "glm45": rules.GLM,
            "minimax_m2": rules.MINIMAX,
        }.items()
    },
    **{
        name: ToolFormat(
            around[:1],
            "",
            partial(_between, end=around[1], read=python_calls),
            _nothing,
            special=True,
            grammar=partial(rules.python, around=around, lines=lines),
        )
        for name, around, lines in (
            ("lfm2", ("<|tool_call_start|>", "<|tool_call_end|>"), False),
            ("olmo3", ("<function_calls>", "</function_calls>"), True),
        )
    },
    **{
        name: ToolFormat(
            (form.begin,),
            "{[",
            partial(_headed, form=form),
            _json,
            special=True,
            grammar=partial(rules.headed, form),
        )
        for name, form in {
            "deepseek_v3": rules.DEEPSEEK,
            "deepseek_v31": rules.DEEPSEEK_31,
            "kimi_k2": rules.KIMI,
        }.items()
    },
    "cohere_command3": ToolFormat(
        ("<|START_ACTION|>",),
        "{[",
        partial(_list, end="<|END_ACTION|>"),
        _json,
        special=True,
        grammar=rules.cohere,
    ),
    "gemma4": ToolFormat(
        (rules.GEMMA[0],),
        "",
        partial(_between, end=rules.GEMMA[1], read=gemma_calls),
        _nothing,
        special=True,
        grammar=rules.gemma,
    ),
    **{
        name: ToolFormat(
            around[:1],
            "{[",
            partial(_list, end=around[1]),
            _json,
            special=True,
            grammar=partial(rules.listed, around=around),
        )
        for name, around in (
            ("granite", ("<|tool_call|>", "")),
            ("nemotron_json", ("<TOOLCALL>", "</TOOLCALL>")),
            ("apriel", ("<tool_calls>", "</tool_calls>")),
        )
    },
    "gigachat3": ToolFormat(
        ("<|function_call|>", "<|message_sep|>\n\nfunction call<|role_sep|>\n", "function call<|role_sep|>\n"),
        "",
        partial(_list, end="<|message_sep|>"),
        _nothing,
        special=True,
        grammar=rules.gigachat,
    ),
    "minicpm5": ToolFormat(
        (rules.MINICPM.function[0],),
        "{[",
        partial(_functions, tags=rules.MINICPM),
        _json,
        grammar=partial(rules.xml, rules.MINICPM),
    ),
    "llama3_json": ToolFormat(
        ("<|python_tag|>",),
        "{[",
        _llama,
        _llama,
        special=True,
        grammar=rules.llama,
        bare=partial(rules.llama, bare=True),
    ),
    "mistral": ToolFormat(("[TOOL_CALLS]",), "{[", _mistral, _json, special=True, grammar=rules.mistral),
    "muse_glimmer": ToolFormat(
        (atem.TAGS.begin,),
        "",
        partial(_xml, tags=atem.TAGS),
        _nothing,
        special=True,
        grammar=atem.calls,
        head=atem.final,
    ),
    "openai": ToolFormat(
        (CALL, RECIPIENT),
        "",
        _harmony,
        _harmony,
        special=True,
        grammar=rules.harmony,
        head=final,
        forced=True,
    ),
    "pythonic": ToolFormat((), "[<", _pythonic, _pythonic, special=True, grammar=rules.python),
}
assert {*FORMATS, "auto"} == {*get_args(ToolParser)}

FORCED = ToolFormat((), "[", _json, partial(_json, forced=True))  # what the grammar of calls that must be made writes

# Text by which a template that uses a format is recognised; the first match counts.
_SIGNS = (
    ("<|channel|>commentary", "openai"),
    ("<atem:function_calls>", "muse_glimmer"),
    ("<seed:tool_call>", "seed_oss"),
    ("<minimax:tool_call>", "minimax_m2"),
    ("<arg_key>", "glm45"),
    ('<function name="', "minicpm5"),
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    ("'\\n' + '```json'", "deepseek_v3"),
    ("<\uff5ctool\u2581calls\u2581begin\uff5c>", "deepseek_v31"),
    ("<|START_ACTION|>", "cohere_command3"),
    ("<|tool_list_start|>", "lfm2"),
    ("List of tools: [", "lfm2"),
    ("<function_calls>", "olmo3"),
    ("<|tool_call>call:", "gemma4"),
    ("<|tool_call|>", "granite"),
    ("<TOOLCALL>", "nemotron_json"),
    ("<tool_calls>[", "apriel"),
    ("<|function_call|>", "gigachat3"),
    ("<|role_sep|>", "gigachat3"),
    ("<function=", "qwen3_xml"),
    ("<tool_call>", "hermes"),
    ("[TOOL_CALLS]", "mistral"),
    ("[func_name1(", "pythonic"),
    ("<|python_start|>", "pythonic"),
    ("<|python_tag|>", "llama3_json"),
    ('"parameters": dictionary of argument name', "llama3_json"),
)


def format_of(parser: ToolParser, template: str | None) -> ToolFormat:
    """Return a format by name; with `auto` the one that a chat template uses, or else the most usual one."""
    if parser != "auto":
        return FORMATS[parser]
    return FORMATS[next((name for sign, name in _SIGNS if sign in (template or "")), "hermes")]


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
