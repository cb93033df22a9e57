"""Muse-Glimmer's messages to recipients: any cut gives the same parts, and nothing is lost of what is damaged."""

from typing import Any

import pytest
from answer_forms import permitted_as
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from parlay.checkpoints.find import find_model
from parlay.server.openai.atem import ATEM
from parlay.server.openai.fields import ChatFields
from parlay.server.openai.messages import MessageReader
from parlay.server.openai.reasoning import MARKS, marks_of, thoughts_reader
from parlay.server.openai.response_format import CHAT, AnswerForm, form_of
from parlay.server.openai.tool_formats import FORMATS, format_of
from parlay.server.openai.tool_readers import FreeReader
from parlay.server.openai.tools import Tools, read_tools

TOKENIZER = Tokenizer.from_file(str(find_model("tiny-code") / "tokenizer.json"))
TOKENIZER.add_special_tokens([AddedToken(f"<|{name}|>", special=True) for name in ("start", "message", "eom", "eot")])
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
PARAMETERS: dict[str, Any] = {"weather": CITY, "time": {"type": "object", "properties": {}}}
FUNCTIONS = [{"type": "function", "function": {"name": n, "parameters": p}} for n, p in PARAMETERS.items()]
TOOLS = Tools(PARAMETERS, "auto")
NEXT = "<|eom|><|start|>assistant"
THOUGHT = f" to=self<|message|>Well, {{]. <atem{NEXT}"
WEATHER = (
    ' to=weather<|message|><atem:function_calls>\n<atem:invoke name="weather">\n<atem:parameter name="city">Oslo'
    '</atem:parameter>\n<atem:parameter name="days">2</atem:parameter>\n</atem:invoke>\n</atem:function_calls>'
)
TIME = ' to=time<|message|><atem:function_calls>\n<atem:invoke name="time">\n</atem:invoke>\n</atem:function_calls>'
TOLD = (" to=user<|message|>It is ", "late.<|eot|>")
OSLO, NOW = ("weather", '{"city": "Oslo", "days": 2}'), ("time", "{}")

CASES: dict[str, tuple[str, str, str, list[tuple[str, str]]]] = {
    "an answer": (THOUGHT + "".join(TOLD), "Well, {]. <atem", "It is late.", []),
    "no thought": ("".join(TOLD), "", "It is late.", []),
    "no recipient": ("<|message|>Hi<|eot|>", "", "Hi", []),
    "a call": (THOUGHT + WEATHER + "<|eot|>", "Well, {]. <atem", "", [OSLO]),
    "two calls": (WEATHER + NEXT + TIME + "<|eot|>", "", "", [OSLO, NOW]),
    "a word before a call": (" to=user<|message|>I look." + NEXT + TIME, "", "I look.", [NOW]),
    "two thoughts": (THOUGHT * 2 + TOLD[0], "Well, {]. <atem\nWell, {]. <atem", "It is ", []),
    "a thought that was cut": (" to=self<|message|>Hm", "Hm", "", []),
    "a header that was cut": (THOUGHT + " to=us", "Well, {]. <atem", "", []),
    "no function": (
        ' to=f<|message|><atem:function_calls>\n<atem:invoke name="f">\n</atem:invoke>',
        "",
        '<atem:function_calls>\n<atem:invoke name="f">\n</atem:invoke>',
        [],
    ),
    "no message": ("Just text.", "", "Just text.", []),
}


def read(pieces: list[str]) -> tuple[str, str, list[tuple[str, str]]]:
    """Return reasoning, text and calls."""
    reader, calls = MessageReader(ATEM, TOKENIZER), FreeReader(TOOLS, FORMATS["muse_glimmer"])
    reasoning, text, made = "", "", list[list[str]]()
    for i, piece in enumerate(pieces):
        finished = i == len(pieces) - 1
        new, answer = reader.feed(piece, finished)
        reasoning += new
        for part in calls.feed(answer, finished):
            if isinstance(part, str):
                text += part
            elif "id" in part:
                made.append([part["function"]["name"], part["function"]["arguments"]])
            else:
                made[-1][1] += part["function"]["arguments"]
    return reasoning, text, [(name, arguments) for name, arguments in made]


@pytest.mark.parametrize("name", CASES)
@given(data=st.data())
def test_any_cut_gives_the_same(name: str, data: Any) -> None:
    answer, *expected = CASES[name]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=8)))
    pieces = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    assert read(pieces) == tuple(expected)


PARTS = " to=", "self", "user", "time", "<|message|>", "<|eom|>", "<|start|>", "assistant", "x"


@given(st.lists(st.sampled_from(PARTS)))
def test_any_answer_is_read(parts: list[str]) -> None:
    reasoning, text, calls = read(["".join(parts)])
    assert (reasoning + text).count("x") <= parts.count("x")
    assert not calls
    assert not any(mark in reasoning for mark in ("<|eom|>", "<|start|>"))


def test_it_is_found_by_the_template() -> None:
    template = "{{- '<|start|>assistant to=self<|message|>' + message['reasoning_content'] }} <atem:function_calls>"
    assert format_of("auto", template) is FORMATS["muse_glimmer"]
    marks = marks_of("auto", template)
    assert marks is MARKS["muse_glimmer"]
    assert marks is not None
    assert isinstance(thoughts_reader(marks, "", TOKENIZER), MessageReader)


@pytest.mark.parametrize("thought", ["", THOUGHT, THOUGHT * 2])
def test_an_answer_of_a_certain_form_may_be_thought_about(thought: str) -> None:
    def form(**body: Any) -> AnswerForm:
        fields = ChatFields(**body)
        return form_of(fields, read_tools(fields), FORMATS["muse_glimmer"], TOKENIZER, None, CHAT)

    numbers = {"name": "a", "schema": {"type": "array", "items": {"type": "integer"}}}
    listed = {"type": "json_schema", "json_schema": numbers}
    answer, both = " to=user<|message|>[1, 2]", WEATHER + NEXT + TIME
    must, only = (f" to=user<|message|>{said}" for said in ('[{"name":"time","arguments":{}}]', "{}"))
    cases = [
        (form(response_format=listed), {answer}),
        (form(response_format=listed, tools=FUNCTIONS), {answer, WEATHER, TIME, both}),
        (form(tools=FUNCTIONS, tool_choice="required"), {must}),  # whose arguments have to follow the schema
        (form(tools=FUNCTIONS, tool_choice={"type": "function", "function": {"name": "time"}}), {only}),
    ]
    for made, texts in cases:
        for text in (answer, WEATHER, TIME, both, must, only, "[1, 2]", " to=user<|message|>Hi"):
            assert permitted_as("muse_glimmer", TOKENIZER, made, thought + text) == (text in texts), text
