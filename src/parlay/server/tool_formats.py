"""How families of models write calls of their own will, by the names that vLLM gives to these forms.

Sources: the chat templates of the families, and for `pythonic` the prompt format of Llama 3.2 and 4.
"""

import ast
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from parlay.config.server import ToolParser

Found = list[tuple[str, str]]  # names of functions and arguments as JSON
Parameters = Mapping[str, Any]  # JSON schemas by function

_HERMES = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_XML = re.compile(r"<tool_call>\s*<function=([^>\n]+)>(.*?)</function>\s*(?:</tool_call>|\Z)", re.DOTALL)
_XML_VALUE = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_MISTRAL_NAME = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*(?=\{)")
_PYTHONIC = re.compile(r"(?:<\|python_start\|>)?\s*(\[.*\])\s*(?:<\|python_end\|>)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How calls are written.

    Attributes:
        marks: texts at which calls begin, wherever they stand.
        openers: characters that an answer begins with which may be a call as a whole.
        read: what finds the text before the calls, and the calls; raises ValueError where a call is malformed.
        special: whether marks are special tokens, which must be asked for.
    """

    marks: tuple[str, ...]
    openers: str
    read: Callable[[str, Parameters], tuple[str, Found]]
    special: bool = False

    def find(self, text: str, parameters: Parameters) -> tuple[str, Found]:
        """Return the text before the calls in an answer, and the calls; none where one is improper.

        Args:
            text: the whole answer.
            parameters: of the functions that there are.
        """
        try:
            content, calls = self.read(text, parameters)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            return text, []
        if not calls or any(name not in parameters for name, _ in calls):
            return text, []
        return content, calls

    def plain_end(self, text: str) -> int:
        """Return up to where the beginning of an answer is text in any case, without the space before a call."""
        if text.lstrip()[:1] in ("", *self.openers):
            return 0
        end = len(text)
        for mark in self.marks:
            found = text.find(mark)
            if found < 0:
                partial = (n for n in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:n]))
                found = len(text) - next(partial, 0)
            end = min(end, found)
        return len(text[:end].rstrip())


def _hermes(text: str, parameters: Parameters) -> tuple[str, Found]:
    """`<tool_call>{"name": ..., "arguments": ...}</tool_call>`, or JSON as a whole."""
    tagged = _HERMES.findall(text)
    calls = [call for piece in tagged or [text] for call in _json_calls(json.loads(piece))]
    return (_before(text, "<tool_call>") if tagged else ""), calls


def _qwen3_xml(text: str, parameters: Parameters) -> tuple[str, Found]:
    """`<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`."""
    found = _XML.findall(text)
    if not found:
        return _hermes(text, parameters)
    calls = []
    for name, body in found:
        schema = parameters.get(name)
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        known = properties if isinstance(properties, Mapping) else {}
        values = {key: _typed(value, known.get(key)) for key, value in _XML_VALUE.findall(body)}
        calls.append((name, _dump(values)))
    return _before(text, "<tool_call>"), calls


def _llama3_json(text: str, parameters: Parameters) -> tuple[str, Found]:
    """`{"name": ..., "parameters": ...}`, several after another with semicolons between them."""
    before, mark, after = text.partition("<|python_tag|>")
    at, rest = 0, (after if mark else text).strip()
    calls: Found = []
    while at < len(rest):
        value, at = json.JSONDecoder().raw_decode(rest, at)
        calls += _json_calls(value)
        between = re.compile(r"[\s;]*").match(rest, at)
        assert between is not None
        at = between.end()
    return (before.rstrip() if mark else ""), calls


def _mistral(text: str, parameters: Parameters) -> tuple[str, Found]:
    """`[TOOL_CALLS][{"name": ..., "arguments": ...}]`, or `[TOOL_CALLS]NAME[ARGS]{...}` for each call."""
    before, mark, after = text.partition("[TOOL_CALLS]")
    if not mark or after.lstrip()[:1] in ("[", "{"):
        return before.rstrip() if mark else "", _json_calls(json.loads(after if mark else text))
    calls = []
    for piece in after.split("[TOOL_CALLS]"):
        at = 0
        while name := _MISTRAL_NAME.match(piece, at):
            arguments, at = json.JSONDecoder().raw_decode(piece, name.end())
            calls.append((name[1], _dump(arguments)))
        if piece[at:].strip():
            raise ValueError(piece)
    return before.rstrip(), calls


def _pythonic(text: str, parameters: Parameters) -> tuple[str, Found]:
    """`[f(a=1), g(b="x")]`: a list of calls with values that Python can read without running anything."""
    whole = _PYTHONIC.fullmatch(text.strip())
    if whole is None:
        raise ValueError(text)
    body = ast.parse(whole[1], mode="eval").body
    calls = []
    for call in body.elts if isinstance(body, ast.List) else [body]:
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError(text)
        values = {}
        for word in call.keywords:
            if word.arg is None:
                raise ValueError(text)
            values[word.arg] = ast.literal_eval(word.value)
        calls.append((ast.unparse(call.func), _dump(values)))
    return "", calls


FORMATS = {
    "hermes": ToolFormat(("<tool_call>",), "{[", _hermes),
    "qwen3_xml": ToolFormat(("<tool_call>",), "{[", _qwen3_xml),
    "llama3_json": ToolFormat(("<|python_tag|>",), "{[", _llama3_json, special=True),
    "mistral": ToolFormat(("[TOOL_CALLS]",), "{[", _mistral, special=True),
    "pythonic": ToolFormat(("<|python_start|>",), "[", _pythonic, special=True),
}
assert {*FORMATS, "auto"} == {*get_args(ToolParser)}

# What a template that writes calls in a form has in it; the first one that is there counts.
_SIGNS = (
    ("<function=", "qwen3_xml"),
    ("<tool_call>", "hermes"),
    ("[TOOL_CALLS]", "mistral"),
    ("[func_name1(", "pythonic"),
    ("<|python_start|>", "pythonic"),
    ("<|python_tag|>", "llama3_json"),
    ('"parameters": dictionary of argument name', "llama3_json"),
)


def format_of(parser: ToolParser, template: str | None) -> ToolFormat:
    """Return a format by name; with `auto` what a chat template asks for, or else the most usual one."""
    if parser != "auto":
        return FORMATS[parser]
    return FORMATS[next((name for sign, name in _SIGNS if sign in (template or "")), "hermes")]


def _json_calls(value: Any) -> Found:
    """Return the calls in a value, or list of values, with a name and arguments (or parameters, as Llama says)."""
    calls = []
    for one in value if isinstance(value, list) else [value]:
        arguments = one.get("arguments", one.get("parameters")) if isinstance(one, dict) else None
        name = one.get("name") if isinstance(arguments, dict) else None
        if not isinstance(name, str):
            raise ValueError("no call")  # noqa: TRY004 - of what a model wrote
        calls.append((name, _dump(arguments)))
    return calls


def _typed(value: str, schema: Any) -> Any:
    """Return a value that stands as bare text: as it is where a text is asked for, else as JSON if it is that."""
    if isinstance(schema, Mapping) and schema.get("type") == "string":
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _before(text: str, mark: str) -> str:
    return text[: text.index(mark)].rstrip()


def _dump(arguments: Any) -> str:
    return json.dumps(arguments, ensure_ascii=False)
