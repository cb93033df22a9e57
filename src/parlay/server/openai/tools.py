"""Functions that a model may call, as a request describes them, and the JSON schema of a call that is forced."""

import re
from dataclasses import dataclass
from typing import Any, Literal

from parlay.errors import nearest, shown
from parlay.server.errors import ApiError
from parlay.server.openai.fields import ChatFields

_NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Tools:
    """The callable functions of one request.

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
        """The schema of a forced answer; None for a free one."""
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


NO_TOOLS = Tools({}, "none")


def read_tools(asked: ChatFields) -> Tools:
    """Return a body's tools.

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


def tools_shown(asked: ChatFields, tools: Tools) -> list[dict[str, Any]] | None:
    """Return the descriptions of functions that the prompt has.

    With `none` they are those of a conversation that has calls already: so the prompt begins as the one before, which
    is cached, and its calls are shown as they were.
    """
    called = any(message.get("tool_calls") for message in asked.messages)
    return asked.tools if tools.mode != "none" or called else None


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
