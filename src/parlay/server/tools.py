"""Functions that a model may call: the grammar of a call that is forced, and the calls in a text.

A forced call is written under a JSON schema. A call of the model's own will is recognised in the two forms that
most models were trained on: `<tool_call>{"name": ..., "arguments": ...}</tool_call>`, and an answer that is JSON as a
whole.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, Literal
from uuid import uuid4

from parlay.errors import nearest, shown
from parlay.server.errors import ApiError
from parlay.server.fields import ChatFields

_TAG = "<tool_call>"
_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}

Call = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Tools:
    """What may be called in one request.

    Attributes:
        parameters: of each function by its name, as a JSON schema.
        mode: whether and how calls are made.
        named: the function to call, where there is no choice.
        several: whether there may be more than one call.
    """

    parameters: dict[str, Any]
    mode: Literal["none", "auto", "required", "named"]
    named: str = ""
    several: bool = True

    @property
    def schema(self) -> dict[str, Any] | None:
        """What a forced answer is; None for one that is free."""
        if self.mode == "named":
            return dict(self.parameters[self.named])
        if self.mode != "required":
            return None
        calls = [
            {
                "type": "object",
                "properties": {"name": {"const": name}, "arguments": {"$ref": f"#/$defs/{name}"}},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for name in self.parameters
        ]
        return {
            "type": "array",
            "items": {"anyOf": calls},
            "minItems": 1,
            **({} if self.several else {"maxItems": 1}),
            "$defs": {name: _moved(schema, f"#/$defs/{name}") for name, schema in self.parameters.items()},
        }

    def reader(self) -> "Reader | None":
        """Return what finds the calls in one answer; None if none can be there."""
        kinds: dict[str, type[Reader]] = {"auto": FreeReader, "required": ListReader, "named": NamedReader}
        return kinds[self.mode](self) if self.mode in kinds else None


NO_TOOLS = Tools({}, "none")


def read_tools(asked: ChatFields) -> Tools:
    """Return what a body says of tools.

    Raises:
        ApiError: it is malformed.
    """
    parameters: dict[str, Any] = {}
    for tool in asked.tools or ():
        function = tool.get("function")
        if tool.get("type", "function") != "function" or not isinstance(function, dict):
            raise _wrong("tools", "a tool is {'type': 'function', 'function': {'name': ..., 'parameters': ...}}")
        name, schema = function.get("name"), function.get("parameters") or _NOTHING
        if not isinstance(name, str) or not re.fullmatch(r"[\w-]{1,64}", name, re.ASCII):
            raise _wrong("tools", f"a function's name is up to 64 letters, digits, _ and -, not {shown(name)}")
        if name in parameters:
            raise _wrong("tools", f"two functions are called {name!r}; rename one")
        if not isinstance(schema, dict):
            raise _wrong("tools", f"the parameters of {name!r} must be a JSON schema, not {shown(schema)}")
        parameters[name] = schema
    choice = asked.tool_choice if asked.tool_choice is not None else ("auto" if parameters else "none")
    several = asked.parallel_tool_calls
    if choice == "none":
        return NO_TOOLS
    if not parameters:
        raise _wrong("tool_choice", "tool_choice needs tools; give some or leave it out")
    if isinstance(choice, str):
        if choice not in ("auto", "required"):
            raise _wrong("tool_choice", f"tool_choice is none, auto, required or a function, not {shown(choice)}")
        return Tools(parameters, choice, several=several)  # type: ignore[arg-type]
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or name not in parameters:
        raise _wrong("tool_choice", f"there is no function {shown(name)} among the tools{nearest(name, parameters)}")
    return Tools(parameters, "named", name, several)


class Reader:
    """Finds calls in an answer while it grows."""

    def __init__(self, tools: Tools) -> None:
        self.tools = tools
        self.text = ""
        self.called = 0

    def feed(self, text: str, finished: bool) -> tuple[str, list[Call]]:
        """Return what the next piece of the answer adds: plain text, and (parts of) calls in the form of chunks."""
        raise NotImplementedError

    def _call(self, name: str, arguments: str) -> Call:
        self.called += 1
        function = {"name": name, "arguments": arguments}
        return {"index": self.called - 1, "id": f"call_{uuid4().hex[:24]}", "type": "function", "function": function}


class NamedReader(Reader):
    """The answer is the arguments of the one function."""

    def feed(self, text: str, finished: bool) -> tuple[str, list[Call]]:
        """Pass the arguments on as they come."""
        if not self.called:
            return "", [self._call(self.tools.named, text)]
        return "", [{"index": 0, "function": {"arguments": text}}] if text else []


class ListReader(Reader):
    """The answer is a list of calls; each is given once it is complete."""

    _at = 0

    def feed(self, text: str, finished: bool) -> tuple[str, list[Call]]:
        """Give calls; an answer that was cut off before the first is plain text."""
        self.text += text
        calls = []
        while "}" in text or finished:
            start = re.compile(r"[\s,\[]*").match(self.text, self._at)
            assert start is not None
            try:
                value, self._at = json.JSONDecoder().raw_decode(self.text, start.end())
            except (ValueError, RecursionError):
                break
            calls.append(self._call(value["name"], json.dumps(value["arguments"], ensure_ascii=False)))
        return (self.text if finished and not self.called else ""), calls


class FreeReader(Reader):
    """The answer is text, and calls where the model makes some; what may become one is held back."""

    _shown = 0

    def feed(self, text: str, finished: bool) -> tuple[str, list[Call]]:
        """Give text up to where a call may begin; at the end, calls."""
        self.text += text
        if finished:
            content, values = find_calls(self.text, self.tools.parameters)
            if not values:
                return self.text[self._shown :], []
            return content[self._shown :], [self._call(name, arguments) for name, arguments in values]
        end = 0 if self.text.lstrip()[:1] in ("", "{", "[") else _plain_end(self.text)
        new, self._shown = self.text[self._shown : end], max(self._shown, end)
        return new, []


def find_calls(text: str, names: Any) -> tuple[str, list[tuple[str, str]]]:
    """Return the text before the calls in an answer, and their names and arguments; no calls where none is proper."""
    tagged = _TAGGED.findall(text)
    values: list[Any] = []
    for piece in tagged or [text]:
        try:
            value = json.loads(piece)
        except (ValueError, RecursionError):
            return text, []
        values += value if isinstance(value, list) else [value]
    calls = []
    for value in values:
        arguments = value.get("arguments", value.get("parameters")) if isinstance(value, dict) else None
        if not isinstance(arguments, dict) or value.get("name") not in names:
            return text, []
        calls.append((value["name"], json.dumps(arguments, ensure_ascii=False)))
    return (text[: text.index(_TAG)].rstrip() if tagged else ""), calls


def _plain_end(text: str) -> int:
    """Return where the first tag, or what may become one, begins, with the space before it."""
    found = text.find(_TAG)
    if found < 0:
        partial = (n for n in range(min(len(_TAG) - 1, len(text)), 0, -1) if text.endswith(_TAG[:n]))
        found = len(text) - next(partial, 0)
    return len(text[:found].rstrip())


def _moved(schema: Any, root: str) -> Any:
    """Return a schema whose references to itself lead to its new place."""
    if isinstance(schema, list):
        return [_moved(inner, root) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: root + value[1:]
        if key == "$ref" and isinstance(value, str) and value.startswith("#")
        else _moved(value, root)
        for key, value in schema.items()
    }


def _wrong(param: str, message: str) -> ApiError:
    return ApiError(400, message, param=param)
