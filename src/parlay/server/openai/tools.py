"""Functions that a model may call, as a request describes them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from parlay.errors import nearest, shown
from parlay.server.errors import ApiError
from parlay.server.openai.custom_tools import as_function
from parlay.server.openai.fields import ChatFields

_CHOICES = (
    "tool_choice is none, auto, required, {'type': 'function', 'function': {'name': ...}} or "
    "{'type': 'allowed_tools', 'allowed_tools': {'mode': ..., 'tools': [...]}}"
)
_LONGEST = 128  # characters of a name, as at Anthropic; OpenAI has 64, which names of MCP servers' tools exceed
_NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Tools:
    """The callable functions of one request.

    Attributes:
        parameters: the JSON schema of each function's arguments, by its name.
        mode: whether and how calls are made.
        named: the function to call, where there is no choice.
        several: whether there may be more than one call.
        given: the names of all functions, in the request's order; those that may be called are among them.
        strict: those whose arguments have to be as their schema says, or else the request is refused.
        custom: those that stand for custom tools.
    """

    parameters: dict[str, Any]
    mode: Literal["none", "auto", "required", "named"]
    named: str = ""
    several: bool = True
    given: tuple[str, ...] = ()
    strict: frozenset[str] = frozenset()
    custom: frozenset[str] = frozenset()


NO_TOOLS = Tools({}, "none")


def read_tools(fields: ChatFields) -> Tools:
    """Return a body's tools.

    Raises:
        ApiError: it is malformed.
    """
    parameters: dict[str, Any] = {}
    strict, custom = set[str](), set[str]()
    for tool in fields.tools or ():
        kind = tool.get("type", "function")
        if kind not in ("function", "custom") or not isinstance(tool.get(kind), dict):
            raise _wrong(
                "tools", "a tool is {'type': 'function', 'function': {'name': ..., 'parameters': ...}} or "
                "{'type': 'custom', 'custom': {'name': ...}}",
            )  # fmt: skip
        function = as_function(tool)["function"]
        name, schema = function.get("name"), function.get("parameters") or _NOTHING
        if not isinstance(name, str) or not re.fullmatch(rf"[\w-]{{1,{_LONGEST}}}", name, re.ASCII):
            raise _wrong(
                "tools", f"a function's name is up to {_LONGEST} letters, digits, _ and -, not {shown(name)}"
            )
        if name in parameters:
            raise _wrong("tools", f"two functions are called {name!r}; rename one")
        if not isinstance(schema, dict):
            raise _wrong("tools", f"the parameters of {name!r} must be a JSON schema, not {shown(schema)}")
        parameters[name] = schema
        if function.get("strict") is True:
            strict.add(name)
        if kind == "custom":
            custom.add(name)
    choice = fields.tool_choice if fields.tool_choice is not None else "auto"
    choice = "required" if choice == "any" else choice  # Mistral's word
    known = Tools(
        parameters, "auto", "", fields.parallel_tool_calls, tuple(parameters), frozenset(strict), frozenset(custom)
    )
    if choice == "none" or (choice == "auto" and not parameters):
        return NO_TOOLS
    if not parameters:
        raise _wrong("tool_choice", "tool_choice needs tools; give some or leave it out")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        known, choice = _allowed(known, choice)
    if isinstance(choice, str):
        if choice not in ("auto", "required"):
            raise _wrong("tool_choice", f"{_CHOICES}, not {shown(choice)}")
        return replace(known, mode=choice)  # type: ignore[arg-type]
    return replace(known, mode="named", named=_named(choice, parameters))


def _named(choice: dict[str, Any], parameters: Mapping[str, Any]) -> str:
    """Return the name in `{"type": "function", "function": {"name": ...}}`; in responses it stands outside."""
    kind = choice.get("type", "function")
    if kind not in ("function", "custom"):
        raise _wrong("tool_choice", f"{_CHOICES}, not of type {shown(kind)}")
    function = choice.get(kind, choice)
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise _wrong("tool_choice", f"tool_choice names no function; {_CHOICES}")
    if name not in parameters:
        raise _wrong("tool_choice", f"there is no function {shown(name)} among the tools{nearest(name, parameters)}")
    return name


def tools_shown(fields: ChatFields, tools: Tools) -> list[dict[str, Any]] | None:
    """Return the descriptions of functions that the prompt has.

    With `none` they are those of a conversation that has calls already: so the prompt begins as the one before, which
    is cached, and its calls are shown as they were.
    """
    called = any(message.get("tool_calls") for message in fields.messages)
    given = fields.tools if tools.mode != "none" or called else None
    return None if given is None else [as_function(tool) for tool in given]


def _allowed(known: Tools, choice: dict[str, Any]) -> tuple[Tools, str]:
    """Return the tools that may be called, and whether one must be."""
    described = choice.get("allowed_tools", choice)  # in responses it stands outside
    mode, listed = (described.get("mode"), described.get("tools")) if isinstance(described, dict) else (None, None)
    if mode not in ("auto", "required") or not isinstance(listed, list) or not listed:
        raise _wrong("tool_choice", "allowed_tools has a mode, auto or required, and a list of tools, not empty")
    if not all(isinstance(one, dict) for one in listed):
        raise _wrong("tool_choice", "the tools of allowed_tools are of the form {'type': 'function', ...}")
    names = {_named(one, known.parameters) for one in listed}
    return replace(known, parameters={name: known.parameters[name] for name in known.given if name in names}), mode


def _wrong(param: str, message: str) -> ApiError:
    return ApiError(400, message, param=param)
