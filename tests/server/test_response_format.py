"""Tools and response_format together: an answer is calls or by the schema, and never taken for the other."""

import json
import re
from typing import Any

import openai
import pydantic
import pytest
from answer_forms import grammars_of
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer

from parlay.checkpoints.find import find_model
from parlay.server.errors import ApiError
from parlay.server.openai.fields import ChatFields
from parlay.server.openai.response_format import CHAT, RESPONSES, AnswerForm, form_of
from parlay.server.openai.tool_formats import FORMATS
from parlay.server.openai.tool_readers import Piece, reader_of
from parlay.server.openai.tools import read_tools
from parlay.types.structured import StructuredOutputsParams

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
NOW = {"type": "object", "properties": {}}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "now", "parameters": NOW}},
]
ANSWER = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
CALL = {  # any answer by it looks like a call
    "type": "object",
    "properties": {
        "name": {"const": "get_weather"},
        "arguments": {"type": "object"},
        "parameters": {"type": "object"},
    },
    "required": ["name"],
}


def tokenizer(*special: str) -> Tokenizer:
    made = Tokenizer.from_file(str(find_model("tiny-code") / "tokenizer.json"))
    made.add_special_tokens(list(special))
    return made


PLAIN, SPECIAL = (
    tokenizer(),
    tokenizer(
        "[TOOL_CALLS]",
        "[ARGS]",
        "<|python_tag|>",
        "<tool_call>",
        "</tool_call>",
        "<|tool_call>",
        "<tool_call|>",
        '<|"|>',
        "\uff5cDSML\uff5c",
        "]<]minimax[>[",
        "<|open|>",
        "<|close|>",
        "<|sep|>",
        "<|tool_calls|>",
        "<|tool_call:begin|>",
        "<|tool_call:name|>",
        "<|tool_call:args|>",
        "<|tool_call:end|>",
        "<|calls|>",
    ),
)


def form(name: str = "hermes", tokens: Tokenizer = PLAIN, **body: Any) -> AnswerForm:
    asked = ChatFields(**body)
    return form_of(asked, read_tools(asked), FORMATS[name], tokens, None, CHAT)


def by(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, **more}}


def permitted(made: AnswerForm, text: str, tokens: Tokenizer = PLAIN) -> bool:
    assert made.structured is not None
    form = StructuredOutputsParams.parse(made.structured)
    constraint, path = grammars_of(tokens).start(form), tokens.encode(text).ids
    return all(constraint.permits(path[:i], token) for i, token in enumerate([*path, 0]))


def headed(name: str, text: str) -> str:
    """Return an answer that is no call as the format writes it."""
    heads = {"openai": "<|channel|>final<|message|>", "muse_glimmer": " to=user<|message|>"}
    assert (name in heads) == (FORMATS[name].head is not None)
    return heads.get(name, "") + text


def read(made: AnswerForm, text: str, step: int = 3, **body: Any) -> tuple[str, list[tuple[str, Any]]]:
    """Return the text and the calls of an answer that comes in pieces."""
    reader = reader_of(read_tools(ChatFields(tools=TOOLS, **body)), made.calls, alone=made.alone)
    assert reader is not None
    pieces: list[Piece] = []
    for i in range(0, len(text), step):
        pieces += reader.feed(text[i : i + step], i + step >= len(text))
    calls: list[list[str]] = []
    for piece in pieces:
        if isinstance(piece, dict):
            if "id" in piece:
                calls.append([piece["function"]["name"], ""])
            calls[-1][1] += piece["function"]["arguments"]
    return "".join(p for p in pieces if isinstance(p, str)), [(name, json.loads(given)) for name, given in calls]


OSLO, TWO = ("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Oslo", "days": 2})
BEGIN, ONE, SEP, END, CLOSE = (  # DeepSeek's
    f"<\uff5ctool\u2581{name}\uff5c>"
    for name in ("calls\u2581begin", "call\u2581begin", "sep", "call\u2581end", "calls\u2581end")
)


def dsml(calls: str, before: str = "") -> str:
    """Return two calls as DeepSeek writes them, with a text that has the beginnings of marks."""
    tag, close = f"<\uff5cDSML\uff5c{before}", f"</\uff5cDSML\uff5c{before}"
    return (
        f'{tag}{calls}>\n{tag}invoke name="get_weather">\n{tag}parameter name="city" string="true">Os</b> </lo'
        f'{close}parameter>\n{tag}parameter name="days" string="false">2{close}parameter>\n{close}invoke>\n'
        f'{tag}invoke name="now">\n\n{close}invoke>\n{close}{calls}>'
    )


NS = "]<]minimax[>["
M3 = (
    f'{NS}<tool_call>\n{NS}<invoke name="get_weather">{NS}<city>Os</b>lo{NS}</city>{NS}<days>2{NS}</days>'
    f'{NS}</invoke>\n{NS}<invoke name="now">{NS}</invoke>\n{NS}</tool_call>'
)
K3 = (
    '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" type="string"'
    '<|sep|>Os</b>lo<|close|>argument<|sep|><|open|>argument key="days" type="number"<|sep|>2<|close|>argument'
    '<|sep|><|close|>call<|sep|><|open|>call tool="now" index="2"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
)
SOLAR = (
    '<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>get_weather<|tool_call:args|>{"city": "Oslo"}'
    "<|tool_call:end|><|tool_call:begin|>0000000000<|tool_call:name|>now<|tool_call:args|>{}<|tool_call:end|><|calls|>"
)
HY3 = (
    "<tool_calls:opensource>\n<tool_call:opensource>get_weather<tool_sep:opensource>\n<arg_key:opensource>city"
    "</arg_key:opensource>\n<arg_value:opensource>Oslo</arg_value:opensource>\n</tool_call:opensource>\n"
    "<tool_call:opensource>now<tool_sep:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>"
)
ODD_CITY = ("get_weather", {"city": "Os</b>lo", "days": 2})
# As the chat templates of the families write them.
WRITTEN = [
    *(
        (name, tokens, text, [("get_weather", {"city": "Os</b> </lo", "days": 2}), ("now", {})])
        for name, text in (
            ("deepseek_v32", dsml("function_calls")),
            ("deepseek_v4", dsml("tool_calls")),
            ("deepseek_v41", dsml("calls", " ")),
        )
        for tokens in (PLAIN, SPECIAL)
    ),
    *(
        (name, tokens, text, [city, ("now", {})])
        for name, text, city in (("minimax_m3", M3, ODD_CITY), ("kimi_k3", K3, ODD_CITY), ("solar_open", SOLAR, OSLO))
        for tokens in (PLAIN, SPECIAL)
    ),
    ("hy_v3", PLAIN, HY3, [OSLO, ("now", {})]),
    ("minimax_m2", PLAIN, '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Oslo'
     '</parameter>\n</invoke>\n<invoke name="now">\n</invoke>\n</minimax:tool_call>', [OSLO, ("now", {})]),
    ("minimax", PLAIN, '<tool_calls>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n'
     '{"name": "now", "arguments": {}}\n</tool_calls>', [OSLO, ("now", {})]),
    ("apertus", PLAIN, '<|tools_prefix|>[{"get_weather": {"city": "Oslo"}}, {"now": {}}]<|tools_suffix|>',
     [OSLO, ("now", {})]),
    ("functionary_v31", PLAIN, '<function=get_weather>{"city": "Oslo", "days": 2}</function>', [TWO]),
    ("hermes", PLAIN, '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>', [OSLO]),
    ("hermes", SPECIAL, '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>', [OSLO]),
    ("hermes", PLAIN, '<tool_call>{"name":"now","arguments":{}}</tool_call>\n'
     '<tool_call>{"name":"now","arguments":{}}</tool_call>', [("now", {})] * 2),
    ("qwen3_xml", PLAIN, "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n"
     "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>", [TWO]),
    ("seed_oss", PLAIN, "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Oslo</parameter>\n</function>\n"
     "</seed:tool_call>", [OSLO]),
    ("glm45", PLAIN, "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call>",
     [OSLO]),
    ("minimax_m2", PLAIN, '<minimax:tool_call>\n<invoke name="get_weather">\n'
     '<parameter name="city">Oslo</parameter>\n' "</invoke>\n</minimax:tool_call>", [OSLO]),
    ("qwen3_xml", PLAIN, "<tool_call>\n<function=now>\n</function>\n</tool_call>", [("now", {})]),
    ("cohere_command3", PLAIN, '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", '
     '"parameters": {"city": "Oslo"}},\n    {"tool_call_id": "1", "tool_name": "now", "parameters": {}}\n]'
     "<|END_ACTION|>", [OSLO, ("now", {})]),
    ("deepseek_v3", PLAIN, f'{BEGIN}{ONE}function{SEP}get_weather\n```json\n{{"city": "Oslo"}}\n```{END}{CLOSE}',
     [OSLO]),
    ("deepseek_v31", PLAIN, f'{BEGIN}{ONE}get_weather{SEP}{{"city": "Oslo"}}{END}{ONE}now{SEP}{{}}{END}{CLOSE}',
     [OSLO, ("now", {})]),
    ("kimi_k2", PLAIN, "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
     '<|tool_call_argument_begin|>{"city": "Oslo"}<|tool_call_end|><|tool_calls_section_end|>', [OSLO]),
    ("gemma4", PLAIN, '<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,days:2}<tool_call|>'
     "<|tool_call>call:now{}<tool_call|>", [TWO, ("now", {})]),
    ("gemma4", PLAIN, '<|tool_call>call:get_weather{city:<|"|>a}, [b:1<|"|>}<tool_call|>',
     [("get_weather", {"city": "a}, [b:1"})]),
    ("gemma4", SPECIAL, '<|tool_call>call:get_weather{city:<|"|>a}, [b:1<|"|>,days:-2}<tool_call|>',
     [("get_weather", {"city": "a}, [b:1", "days": -2})]),
    ("granite", PLAIN, '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Oslo"}}]', [OSLO]),
    ("nemotron_json", PLAIN, '<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Oslo"}}, '
     '{"name": "now", "arguments": {}}]</TOOLCALL>', [OSLO, ("now", {})]),
    ("apriel", PLAIN, '<tool_calls>[{"name": "now", "arguments": {}}]</tool_calls>', [("now", {})]),
    ("gigachat3", PLAIN, 'function call<|role_sep|>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}', [OSLO]),
    ("lfm2", PLAIN, '<|tool_call_start|>[get_weather(city="Oslo"), now()]<|tool_call_end|>', [OSLO, ("now", {})]),
    ("olmo3", PLAIN, '<function_calls>\nget_weather(city="Oslo", days=2)\nnow()\n</function_calls>',
     [TWO, ("now", {})]),
    ("minicpm5", PLAIN, '<function name="get_weather"><param name="city">Oslo</param></function>', [OSLO]),
    ("minicpm5", PLAIN, '<function name="get_weather"><param name="city"><![CDATA[a<b]]></param></function>',
     [("get_weather", {"city": "a<b"})]),
    ("llama3_json", PLAIN, '{"name": "get_weather", "parameters": {"city": "Oslo"}}', [OSLO]),
    ("llama3_json", PLAIN, '{"name": "now", "parameters": {}}; {"name": "now", "parameters": {}}', [("now", {})] * 2),
    ("mistral", SPECIAL, '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}]', [TWO]),
    ("mistral", SPECIAL, '[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]now[ARGS]{}', [OSLO, ("now", {})]),
    ("mistral", PLAIN, '[TOOL_CALLS] [{"name": "now", "arguments": {}}]', [("now", {})]),
    ("llama4_pythonic", PLAIN, '<|python_start|>[get_weather(city="Oslo"), now()]<|python_end|>',
     [OSLO, ("now", {})]),
    ("pythonic", PLAIN, '[get_weather(city="Oslo", days=2)]', [TWO]),
    ("pythonic", PLAIN, "[get_weather(city='Oslo'), now()]", [OSLO, ("now", {})]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "tokens", "text", "calls"), WRITTEN)
def test_calls_may_be_written_beside_a_schema(name: str, tokens: Tokenizer, text: str, calls: Any) -> None:
    made = form(name, tokens, tools=TOOLS, response_format=by(ANSWER))
    assert permitted(made, text, tokens)
    assert read(made, text) == ("", calls)
    assert made.special == (tokens is SPECIAL)
    one = form(name, tokens, tools=TOOLS, response_format=by(ANSWER), parallel_tool_calls=False)
    assert permitted(one, text, tokens) == (len(calls) == 1)
    anything = form(name, tokens, tools=TOOLS, response_format={"type": "json_object"})
    assert permitted(anything, text, tokens)
    assert read(anything, text) == ("", calls)


@pytest.mark.parametrize("tokens", [PLAIN, SPECIAL])
def test_tags_tell_the_types_of_the_schema(tokens: Tokenizer) -> None:
    made = form("deepseek_v4", tokens, tools=TOOLS, response_format=by(ANSWER))
    text = dsml("tool_calls")
    assert not permitted(made, text.replace('string="true"', 'string="false"'), tokens)
    assert not permitted(made, text.replace('string="false"', 'string="true"'), tokens)


@pytest.mark.parametrize("name", FORMATS)
def test_an_answer_by_the_schema_is_never_a_call(name: str) -> None:
    made = form(name, tools=TOOLS, response_format=by(ANSWER))
    for inner in ("Oslo", '<tool_call>{"name": "now", "arguments": {}}</tool_call>', "[TOOL_CALLS]now{}", "[now()]"):
        text = json.dumps({"answer": inner})
        assert permitted(made, headed(name, text))
        assert read(made, text) == (text, [])
    assert not permitted(made, headed(name, "Sure."))
    assert not permitted(made, headed(name, '{"answer": "a"} <tool_call>'))
    made = form(name, tools=TOOLS, response_format=by(CALL))
    for key in ("arguments", "parameters"):
        text = json.dumps({"name": "get_weather", key: {"city": "Oslo"}})
        assert permitted(made, headed(name, text))
        assert read(made, text) == (text, [])
    made = form(name, tools=TOOLS, response_format=by({"type": "array", "items": {"type": "string"}}))
    assert read(made, '["now()"]') == ('["now()"]', [])


def test_marked_calls_of_llama_where_the_schema_may_look_like_one() -> None:
    made = form("llama3_json", SPECIAL, tools=TOOLS, response_format=by(CALL))
    text = '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Oslo"}}'
    assert permitted(made, text, SPECIAL)
    assert read(made, text) == ("", [OSLO])


@pytest.mark.parametrize("name", [name for name, one in FORMATS.items() if one.head is None])
def test_a_forced_call_comes_before_the_schema(name: str) -> None:
    for body in ({}, {"response_format": by(ANSWER)}, {"response_format": {"type": "json_object"}}):
        made = form(name, tools=TOOLS, tool_choice="required", **body)
        assert permitted(made, '[{"name":"get_weather","arguments":{"city":"Oslo"}},{"name":"now","arguments":{}}]')
        assert not permitted(made, '{"answer":"x"}')
        one = form(name, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, **body)
        assert not permitted(one, '[{"name":"now","arguments":{}},{"name":"now","arguments":{}}]')
        named = form(name, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "get_weather"}}, **body)
        assert permitted(named, '{"city":"Oslo"}')


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"properties": {"x": {"const": {"$ref": "#/foo"}}}}, {"x": {"$ref": "#/foo"}}),
        ({"properties": {"x": {"enum": [{"$ref": "#"}]}}}, {"x": {"$ref": "#"}}),
        ({"properties": {"$ref": {"type": "string"}}}, {"$ref": "#/a"}),
        ({"$id": "https://a.org/b", "$defs": {"X": {"const": 3}}, "properties": {"x": {"$ref": "#/$defs/X"}}},
         {"x": 3}),
        ({"$id": "b.json", "definitions": {"X": {"const": 3}}, "properties": {"x": {"$ref": "#/definitions/X"}}},
         {"x": 3}),
        ({"$defs": {"X": {"$anchor": "here", "const": 3}}, "properties": {"x": {"$ref": "#here"}}}, {"x": 3}),
        ({"$id": "https://a.org/b", "$defs": {"X": {"$id": "x", "const": 3}}, "properties": {"x": {"$ref": "x"}}},
         {"x": 3}),
        ({"properties": {"x": {"$ref": "#"}}}, {"x": {"x": {}}}),
        ({"properties": {"a/b": {"const": 3}, "x": {"$ref": "#/properties/a~1b"}}}, {"x": 3}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
def test_references_of_a_function_stay_its_own(schema: Any, value: Any, choice: Any) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", **schema}}}, *TOOLS]
    made = form(tools=tools, tool_choice=choice)
    given = json.dumps(value, separators=(",", ":"))
    assert permitted(made, f'[{{"name":"f","arguments":{given}}}]' if choice == "required" else given)
    assert not permitted(made, '[{"name":"f","arguments":{"x":4}}]' if choice == "required" else '{"x":4}')


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"properties": {"a": {"$ref": "#/$defs/Lost"}}}, "the JSON schema has nothing at '#/.defs/Lost'"),
        ({"properties": {"a": False}, "required": ["a"]}, "required property 'a' is unsatisfiable"),
        ({"properties": {"a": {"$ref": "https://json.schemastore.org/package"}}}, "retrieving it failed"),
        ({"properties": {f"p{i}": {} for i in range(600)}}, "has 600 properties, more than the 500"),
    ],
)
def test_one_odd_function_that_need_not_be_called(schema: dict[str, Any], words: str) -> None:
    """Tools of MCP servers come with schemas that nobody has checked (huggingface/chat-ui#2299)."""
    odd = {"type": "function", "function": {"name": "odd", "parameters": {"type": "object", **schema}}}
    made = form(tools=[odd, *TOOLS], response_format=by(ANSWER))
    (warning,) = made.warnings
    assert re.match(f"not enforced: tools.0..function.parameters: .*{words}", warning)
    assert permitted(made, '<tool_call>\n{"name": "odd", "arguments": {"b": 1}}\n</tool_call>')
    assert not permitted(made, '<tool_call>\n{"name": "get_weather", "arguments": {"city": 1}}\n</tool_call>')


def test_one_odd_function_that_is_strict() -> None:
    function = {"name": "odd", "parameters": {"properties": {"a": {"$ref": "#/$defs/Lost"}}}, "strict": True}
    with pytest.raises(ApiError, match="the JSON schema has nothing at"):
        form(tools=[{"type": "function", "function": function}, *TOOLS], response_format=by(ANSWER))


def test_functions_in_the_form_of_responses() -> None:
    """Cursor and others send it to chat completions too."""
    flat = [{"type": "function", **tool["function"]} for tool in TOOLS]
    assert ChatFields(tools=flat) == ChatFields(tools=TOOLS)
    assert read_tools(ChatFields(tools=[*flat[:1], *TOOLS[1:]])) == read_tools(ChatFields(tools=TOOLS))


def test_allowed_tools() -> None:
    described = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "now"}}]}
    outside = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "now"}],
    }  # responses
    auto = read_tools(ChatFields(tools=TOOLS, tool_choice={"type": "allowed_tools", "allowed_tools": described}))
    assert (auto.mode, list(auto.parameters)) == ("auto", ["now"])
    required = form(tools=TOOLS, tool_choice=outside)
    assert permitted(required, '[{"name":"now","arguments":{}}]')
    assert not permitted(required, '[{"name":"get_weather","arguments":{"city":"Oslo"}}]')


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"type": "auto"}, "tool_choice is none, auto, required, .*, not of type 'auto'"),
        ({"type": "custom", "custom": {"name": "x"}}, "no function 'x' among the tools"),
        ({"type": "web_search_preview"}, "not of type 'web_search_preview'"),
        ({"type": "function"}, "tool_choice names no function"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": [{}]}}, "a mode, auto or required"),
        ({"type": "allowed_tools"}, "a mode, auto or required"),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "nwo"}]},
            "no function 'nwo' among the tools .did you mean 'now'",
        ),
    ],
)
def test_choices_that_there_are_not(choice: Any, words: str) -> None:
    with pytest.raises(ApiError, match=words) as caught:
        read_tools(ChatFields(tools=TOOLS, tool_choice=choice))
    assert caught.value.param == "tool_choice"


@pytest.mark.parametrize("body", [{}, {"tools": []}, {"tools": [], "tool_choice": "auto"}, {"tool_choice": "auto"}])
def test_no_tools(body: dict[str, Any]) -> None:
    assert read_tools(ChatFields(**body)).mode == "none"
    made = form(response_format=by(ANSWER), **body)
    assert made.structured is not None
    assert "json" in made.structured


class Tags(pydantic.BaseModel):
    tags: set[str]


def test_what_is_not_enforced_is_in_the_warnings_or_refused_if_strict() -> None:
    schema = Tags.model_json_schema()
    told = "#/properties/tags/uniqueItems is not enforced"
    assert form(response_format=by(schema)).warnings == (f"response_format: {told}",)
    loose = {"type": "function", "function": {"name": "f", "parameters": schema}}
    tools = [*TOOLS, loose]
    assert form(tools=tools, tool_choice="required").warnings == (f"tools[2].function.parameters: {told}",)
    assert form(tools=tools).warnings == ()
    with pytest.raises(ApiError, match=r"^response_format: #/properties/tags/uniqueItems .* strict") as caught:
        form(response_format=by(schema, strict=True))
    assert caught.value.param == "response_format"
    strict = openai.pydantic_function_tool(Tags)
    with pytest.raises(ApiError, match=r"^tools\[1\].function.parameters: #/properties/tags/uniqueItems") as caught:
        form(tools=[loose, strict], tool_choice={"type": "function", "function": {"name": "Tags"}})
    assert caught.value.param == "tools"
    assert form(tools=[loose, strict], tool_choice={"type": "function", "function": {"name": "f"}}).warnings
    many = by({"properties": {f"p{i}": {"uniqueItems": True} for i in range(20)}})
    assert len(form(response_format=many).warnings) == 9


def test_messages_name_what_the_client_sent() -> None:
    broken = {"type": "object", "properties": {"x": {"$ref": "#/$defs/gone"}}}
    with pytest.raises(ApiError, match=r"^response_format: .*gone") as caught:
        form(response_format=by(broken))
    assert caught.value.param == "response_format"
    asked = ChatFields(response_format=by(broken))
    with pytest.raises(ApiError, match=r"^text\.format: .*gone") as caught:
        form_of(asked, read_tools(asked), FORMATS["hermes"], PLAIN, None, RESPONSES)
    assert caught.value.param == "text"
    tools = [*TOOLS, {"type": "function", "function": {"name": "f", "parameters": broken}}]
    with pytest.raises(ApiError, match=r"^tools\[2\]\.function\.parameters: .*gone"):
        form(tools=tools, tool_choice="required")
    assert form(tools=tools).structured is None  # free calls are not held to their schema


def test_objects_have_the_properties_that_are_listed() -> None:
    for is_open in (False, True):
        made = form(response_format=by(ANSWER), disable_additional_properties=not is_open)
        assert permitted(made, '{"answer": "x"}')
        assert permitted(made, '{"answer": "x", "b": 1}') is is_open


def test_objects_of_structured_outputs_too() -> None:
    """Unless it says so itself, or the request does."""
    key = "disable_additional_properties"
    for outer, inner, is_open in (({}, {}, False), ({key: False}, {}, True), ({}, {key: False}, True)):
        asked = ChatFields(**outer)
        given = {"json": ANSWER, **inner}
        made = form_of(asked, read_tools(asked), FORMATS["hermes"], PLAIN, given, CHAT)
        assert permitted(made, '{"answer": "x"}')
        assert permitted(made, '{"answer": "x", "b": 1}') is is_open


def test_space_in_answers_is_bounded() -> None:
    for body in ({}, {"tools": TOOLS}):
        made = form(response_format=by(ANSWER), **body)
        for text in ('{"answer":"x"}', json.dumps({"answer": "x"}), json.dumps({"answer": "x"}, indent=4)):
            assert permitted(made, text)
        assert not permitted(made, '{"answer":  "x"}')
        assert not permitted(made, '{"answer":\n\n"x"}')
        assert not permitted(made, '{"answer": "x"' + "\n" * 5 + "}")


@pytest.mark.parametrize(
    "wanted",
    [
        {"type": "json_object", "schema": ANSWER},  # llama.cpp, Together
        {"type": "json_schema", "schema": ANSWER},  # llama.cpp
        {"type": "json_schema", "json_schema": {"schema": ANSWER, "strict": None}},
    ],
)
def test_where_the_schema_may_stand(wanted: dict[str, Any]) -> None:
    made = form(response_format=wanted)
    assert permitted(made, '{"answer": "x"}')
    assert not permitted(made, '{"other": "x"}')


@pytest.mark.parametrize(
    "schema", [{"properties": {"x": {}}}, {"description": "d"}, {"anyOf": [{}, {"type": "null"}]}]
)
def test_arguments_are_an_object(schema: dict[str, Any]) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    named = form(tools=tools, tool_choice={"type": "function", "function": {"name": "f"}})
    assert permitted(named, '{"x":1}')
    assert not permitted(named, "1")


def test_a_format_that_cannot_call_says_so() -> None:
    tools = [{"type": "function", "function": {"name": "get-weather"}}]
    made = form("pythonic", tools=tools, response_format=by(ANSWER))
    assert made.warnings == (
        "response_format: no tool can be called beside it, since their names are no identifiers",
    )
    assert permitted(made, '{"answer": "x"}')


ODD = 'a"b\\ // # ::= \n \u00e9 \N{PARTY POPPER} \u2028 start: x'


@pytest.mark.parametrize("name", FORMATS)
def test_any_text_may_stand_in_a_schema(name: str) -> None:
    schema = {"type": "object", "properties": {ODD: {"const": ODD}}, "required": [ODD]}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    value = json.dumps({ODD: ODD}, separators=(",", ":"), ensure_ascii=False)
    call = f'[{{"name":"f","arguments":{value}}}]'
    if FORMATS[name].forced:
        call = f"<|channel|>commentary to=functions.f <|constrain|>json<|message|>{value}"
    assert permitted(form(name, tools=tools, tool_choice="required"), call)
    assert permitted(form(name, tools=tools, response_format=by(schema)), headed(name, value))


def test_very_many_functions() -> None:
    big = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(200)}}
    tools = [{"type": "function", "function": {"name": f"f{i}", "parameters": big}} for i in range(40)]
    made = form(tools=tools, response_format=by(ANSWER))
    assert permitted(made, '<tool_call>{"name": "f39", "arguments": {"p1": "a"}}</tool_call>')


def test_marks_are_special_tokens_where_the_vocabulary_has_them() -> None:
    made = form("mistral", SPECIAL, tools=TOOLS, response_format=by(ANSWER))
    assert made.structured is not None
    text = LLMatcher.grammar_from_lark(made.structured["grammar"])
    matcher = LLMatcher(LLTokenizer(SPECIAL.to_str(), n_vocab=SPECIAL.get_vocab_size(), eos_token=[0]), text)
    assert matcher.validate_tokens([SPECIAL.token_to_id("[TOOL_CALLS]")]) == 1
    assert matcher.validate_tokens(PLAIN.encode("[TOOL").ids) == 0
