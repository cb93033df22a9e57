"""Calls in answers, however the answer is cut into pieces."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.server.errors import ApiError
from parlay.server.fields import ChatFields
from parlay.server.tool_formats import FORMATS, format_of
from parlay.server.tool_readers import FreeReader, ListReader, NamedReader, Reader
from parlay.server.tools import Tools, read_tools

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
    assert feed(FreeReader(TOOLS, FORMATS["hermes"]), pieces) == (text, calls)


PIECES = st.text(max_size=12) | st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "<|python_tag|>",
        "<function=f>",
        "f(a=1)",
        "[",
        "]",
        "{}",
    ]
)


@pytest.mark.parametrize("name", FORMATS)
@given(pieces=st.lists(PIECES, max_size=6))
def test_any_text_comes_whole_or_as_calls(name: str, pieces: list[str]) -> None:
    whole = "".join(pieces)
    text, calls = feed(FreeReader(TOOLS, FORMATS[name]), [*pieces, ""])
    assert text == whole or calls
    assert FORMATS[name].find(whole, TOOLS.parameters)[1] == [] or calls


# As the families' models write them, after their own chat templates.
WEATHER = Tools(
    {
        "weather": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
        "time": {"type": "object", "properties": {}},
    },
    "auto",
)
PARIS, NOW = ("weather", {"city": "Paris", "days": 2}), ("time", {})
RECORDED = [
    (
        "hermes",
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris", "days": 2}}\n</tool_call>\n'
        '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>',
        ("", [PARIS, NOW]),
    ),
    (
        "qwen3_xml",
        "I look.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n"
        "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=time>\n</function>\n</tool_call>",
        ("I look.", [PARIS, NOW]),
    ),
    (
        "qwen3_xml",
        "<tool_call>\n<function=weather>\n<parameter=city>\n12\n</parameter>\n</function>\n</tool_call>",
        ("", [("weather", {"city": "12"})]),
    ),
    ("llama3_json", '{"name": "weather", "parameters": {"city": "Paris", "days": 2}}', ("", [PARIS])),
    (
        "llama3_json",
        '<|python_tag|>{"name": "weather", "parameters": {"city": "Paris", "days": 2}}; '
        '{"name": "time", "parameters": {}}',
        ("", [PARIS, NOW]),
    ),
    (
        "mistral",
        '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Paris", "days": 2}}, '
        '{"name": "time", "arguments": {}}]',
        ("", [PARIS, NOW]),
    ),
    (
        "mistral",
        'Yes.[TOOL_CALLS]weather[ARGS]{"city": "Paris", "days": 2}[TOOL_CALLS]time[CALL_ID]9aF[ARGS]{}',
        ("Yes.", [PARIS, NOW]),
    ),
    ("pythonic", '[weather(city="Paris", days=2), time()]', ("", [PARIS, NOW])),
    ("pythonic", "<|python_start|>[weather(city='Paris', days=2)]<|python_end|>", ("", [PARIS])),
    ("pythonic", "[weather(city=__import__('os').getcwd())]", ("[weather(city=__import__('os').getcwd())]", [])),
    ("pythonic", "[time(), 3]", ("[time(), 3]", [])),
    ("mistral", "[TOOL_CALLS]weather[ARGS]{} and more", ("[TOOL_CALLS]weather[ARGS]{} and more", [])),
]


@pytest.mark.parametrize(("name", "answer", "expected"), RECORDED)
@given(data=st.data())
def test_recorded_answers_of_each_family(name: str, answer: str, expected: Any, data: Any) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=8)))
    pieces = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    assert feed(FreeReader(WEATHER, FORMATS[name]), pieces) == expected


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (None, "hermes"),
        ("{{ messages }}", "hermes"),
        ("{{ '<tool_call>' }}", "hermes"),
        ("<tool_call>\n<function=example>", "qwen3_xml"),
        ("{{ '[TOOL_CALLS]' }}", "mistral"),
        ("in the format [func_name1(params_name1=params_value1)]", "pythonic"),
        ('{"name": function name, "parameters": dictionary of argument name and its value}', "llama3_json"),
    ],
)
def test_the_template_tells_the_format(template: str | None, name: str) -> None:
    assert format_of("auto", template) is FORMATS[name]
    assert format_of("mistral", template) is FORMATS["mistral"]


@given(st.data())
def test_forced_lists(data: Any) -> None:
    answer = '[{"name":"f","arguments":{"a":"}]"}},{"name":"g","arguments":{}}]'
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=8)))
    pieces = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    assert feed(ListReader(TOOLS), pieces) == ("", [("f", {"a": "}]"}), ("g", {})])
    cut = '[{"name":"f","arg'
    assert feed(ListReader(TOOLS), [cut[:4], cut[4:]]) == (cut, [])


@pytest.mark.parametrize("end", range(len('[{"name":"f","arguments":'), len('[{"name":"f","arguments":{"a":"}]"}}')))
def test_a_forced_call_that_is_cut_off_has_its_arguments_so_far(end: int) -> None:
    answer = '[{"name":"f","arguments":{"a":"}]"}}'[:end]
    reader = ListReader(TOOLS)
    text, calls = reader.feed(answer, finished=True)
    assert text == ""
    assert [(call["function"]["name"], call["function"]["arguments"]) for call in calls] == [
        ("f", answer.removeprefix('[{"name":"f","arguments":'))
    ]


def test_arguments_of_the_named_function_come_as_they_grow() -> None:
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
