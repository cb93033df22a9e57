"""The tools of a response as chat completions have them, those of namespaces under names of their own."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from parlay.errors import listed, shown
from parlay.server.errors import ApiError

_LONGEST = 64  # characters of a function's name
_HASHED = 8  # of them that tell longer names apart
_CALLABLE = ("function", "custom")  # the others OpenAI runs
_SHOWN = {"function": ("name", "description", "parameters"), "custom": ("name", "description", "format")}


@dataclass(frozen=True, slots=True)
class Origin:
    """What a tool's name stands for.

    Attributes:
        name: the tool's own name.
        namespace: the namespace that it is part of; empty for none.
    """

    name: str
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Functions:
    """The tools of one response.

    Attributes:
        tools: functions and custom tools, as chat completions have them.
        origins: origins of the tools in namespaces, by name.
        left_out: types of the tools that this server cannot run, each once.
        strict: names of the functions whose schema has to be enforced as a whole.
    """

    tools: list[dict[str, Any]] = field(default_factory=list)
    origins: dict[str, Origin] = field(default_factory=dict)
    left_out: dict[str, None] = field(default_factory=dict)
    strict: set[str] = field(default_factory=set)

    @property
    def warnings(self) -> tuple[str, ...]:
        """For the client."""
        if not self.left_out:
            return ()
        return (f"tools that this server does not run were left out: {listed(map(shown, self.left_out))}",)


def function_name(name: str, namespace: str = "") -> str:
    """Return what a namespace's tool is called as a function: the same for the same two in every request."""
    whole = name
    if namespace:
        whole = namespace + name if namespace.endswith("__") else f"{namespace}__{name}"
        whole = re.sub(r"[^\w-]", "_", whole, flags=re.ASCII)
    if len(whole) <= _LONGEST or not namespace:
        return whole
    return f"{whole[: _LONGEST - _HASHED - 1]}_{sha256(whole.encode()).hexdigest()[:_HASHED]}"


def functions_of(given: Iterable[Any], found_later: Iterable[Any] = ()) -> Functions:
    """Return a response's tools as functions.

    Args:
        given: the request's tools.
        found_later: those that items of its input add, which may repeat others.

    Raises:
        ApiError: a tool has no type or no name.
    """
    made = Functions()
    for tool in given:
        _add(made, tool)
    named = {_name(tool) for tool in made.tools}
    for tool in found_later:
        more = Functions()
        _add(more, tool)
        new = [one for one in more.tools if _name(one) not in named]
        named |= {_name(one) for one in new}
        made.tools.extend(new)
        made.origins.update(more.origins)
        made.left_out.update(more.left_out)
        made.strict.update(more.strict)
    return made


def _name(tool: dict[str, Any]) -> Any:
    return tool[tool["type"]].get("name")


def _add(made: Functions, tool: Any, namespace: str = "") -> None:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if not isinstance(kind, str):
        raise _wrong(
            f"a tool has a type, such as {{'type': 'function', 'name': ..., 'parameters': ...}}: {shown(tool)}"
        )
    if kind == "namespace":
        name, inner = tool.get("name"), tool.get("tools")
        if not isinstance(name, str) or not isinstance(inner, list):
            raise _wrong(f"a namespace is {{'type': 'namespace', 'name': ..., 'tools': [...]}}, not {shown(tool)}")
        for one in inner:
            _add(made, one, name)
    elif kind in _CALLABLE:
        # Some clients send the form of chat completions.
        inner = tool.get(kind)
        own = inner if isinstance(inner, dict) else tool
        name = own.get("name")
        described = {key: own[key] for key in _SHOWN[kind] if own.get(key) is not None}
        if isinstance(name, str):
            described["name"] = function_name(name, namespace)
            if namespace:
                made.origins[described["name"]] = Origin(name, namespace)
            if own.get("strict") is True:  # it is about the server, and the model need not see it
                made.strict.add(described["name"])
        made.tools.append({"type": kind, kind: described})
    else:
        made.left_out[kind] = None


def choice_of(choice: str | dict[str, Any]) -> str | dict[str, Any]:
    """Return a `tool_choice` as chat completions have it.

    Raises:
        ApiError: it is for a tool that this server does not run.
    """
    if isinstance(choice, str):
        return choice
    kind = choice.get("type")
    if kind == "allowed_tools":
        mode, tools = choice.get("mode"), choice.get("tools")
        given = [one for one in tools if isinstance(one, dict)] if isinstance(tools, list) else []
        named = [choice_of(one) for one in given if one.get("type", "function") in _CALLABLE]
        if given and not named:
            if mode == "auto":
                return "none"
            raise _wrong_choice("this server runs none of the tools in allowed_tools; name a function")
        return {"type": kind, kind: {"mode": mode, "tools": named}}
    if kind not in _CALLABLE:
        raise _wrong_choice(
            "tool_choice is none, auto, required, {'type': 'function', 'name': ...} or "
            f"{{'type': 'allowed_tools', 'mode': ..., 'tools': [...]}}, not of type {shown(kind)}"
        )
    inner = choice.get(kind)
    own = inner if isinstance(inner, dict) else choice
    name, namespace = own.get("name"), str(own.get("namespace") or "")
    return {"type": kind, kind: {"name": function_name(name, namespace) if isinstance(name, str) else name}}


def _wrong_choice(message: str) -> ApiError:
    return ApiError(400, message, param="tool_choice", code="unsupported_value")


def _wrong(message: str) -> ApiError:
    return ApiError(400, message, param="tools", code="unsupported_value")
