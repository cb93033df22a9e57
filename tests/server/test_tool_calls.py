"""Calls in answers, however the answer is cut into pieces."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.server.errors import ApiError
from parlay.server.fields import ChatFields
from parlay.server.tools import FreeReader, ListReader, NamedReader, Reader, Tools, find_calls, read_tools

TOOLS = Tools({"f": {"type": "object"}, "g": {"type": "object"}}, "auto")
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "<tool_call>"}}\n</tool_call>'


def feed(reader: Reader, pieces: list[str]) -> tuple[str, list[tuple[str, Any]]]:
    """Return the text and the calls that a reader makes of pieces, put together as clients do."""
    text = ""
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    for i, piece in enumerate(pieces):
        more, calls = reader.feed(piece, i == len(pieces) - 1)
        text += more
        for call in calls:
            names.setdefault(call["index"], call["function"].get("name", ""))
            arguments[call["index"]] = arguments.get(call["index"], "") + call["function"]["arguments"]
    return text, [(names[i], json.loads(arguments[i])) for i in sorted(names)]


@pytest.mark.parametrize(
    ("answer", "text", "calls"),
    [
        ("Just text.", "Just text.", []),
        ("Look:\n" + CALL.replace("<tool_call>\"", '"'), "Look:", [("f", {"a": ""})]),
        (CALL.replace('"<tool_call>"', "1") * 2, "", [("f", {"a": 1})] * 2),
        ('{"name": "g", "parameters": {"b": [1]}}', "", [("g", {"b": [1]})]),
        ('[{"name": "g", "arguments": {}}, {"name": "f", "arguments": {}}]', "", [("g", {}), ("f", {})]),
        ('{"name": "h", "arguments": {}}', '{"name": "h", "arguments": {}}', []),
        ("a < b <tool_ca", "a < b <tool_ca", []),
        ("broken <tool_call>{", "broken <tool_call>{", []),
        ('{"name": "f", "arguments": 3}', '{"name": "f", "arguments": 3}', []),
    ],
)  # fmt: skip
@given(data=st.data())
def test_free_answers(answer: str, text: str, calls: Any, data: Any) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=8)))
    pieces = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    assert feed(FreeReader(TOOLS), pieces) == (text, calls)


@given(st.lists(st.text(max_size=12), max_size=6))
def test_any_text_comes_whole_or_as_calls(pieces: list[str]) -> None:
    whole = "".join(pieces)
    text, calls = feed(FreeReader(TOOLS), [*pieces, ""])
    assert text == whole or calls
    assert find_calls(whole, TOOLS.parameters)[1] == [] or calls


@given(st.data())
def test_forced_lists(data: Any) -> None:
    answer = '[{"name":"f","arguments":{"a":"}]"}},{"name":"g","arguments":{}}]'
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=8)))
    pieces = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    assert feed(ListReader(TOOLS), pieces) == ("", [("f", {"a": "}]"}), ("g", {})])
    cut = '[{"name":"f","arg'
    assert feed(ListReader(TOOLS), [cut[:4], cut[4:]]) == (cut, [])
    named = NamedReader(Tools({"f": {}}, "named", "f"))
    assert feed(named, ['{"a"', ": 1", "}"]) == ("", [("f", {"a": 1})])


def test_references_move_with_their_schema() -> None:
    inner = {"type": "object", "properties": {"x": {"$ref": "#/$defs/y"}, "self": {"$ref": "#"}}, "$defs": {"y": {}}}
    schema = Tools({"f": inner}, "required").schema
    assert schema is not None
    moved = schema["$defs"]["f"]["properties"]
    assert (moved["x"]["$ref"], moved["self"]["$ref"]) == ("#/$defs/f/$defs/y", "#/$defs/f")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": [{"function": {"name": "a b"}}]}, "tools"),
        ({"tools": [{"function": {"name": "a"}}, {"function": {"name": "a"}}]}, "tools"),
        ({"tools": [{"function": {"name": "a"}}], "tool_choice": "maybe"}, "tool_choice"),
        ({"tools": [{"function": {"name": "a"}}], "tool_choice": {"function": {"name": "b"}}}, "tool_choice"),
    ],
)
def test_wrong_tools_are_named(body: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_tools(ChatFields(**body))
    assert (caught.value.status, caught.value.param) == (400, param)
