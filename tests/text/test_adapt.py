"""Conversations in the form that their templates show: against transformers, given messages of that form by hand."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from text.chat_templates import (
    CHATML,
    FIRST,
    GEMMA2,
    GEMMA3,
    GLM,
    GPT_OSS,
    GUARD,
    LLAMA31,
    MINISTRAL,
    NAMED,
    NEMO,
    PHI35,
    QWEN,
    QWEN35,
    R1,
    Message,
    reference,
)

from parlay import RequestError
from parlay.text.chat import ChatOptions, render
from parlay.text.template_capabilities import capabilities_of
from parlay.text.template_process import TemplateRunner

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
SYSTEM, BRIEF = {"role": "system", "content": "Rule."}, {"role": "developer", "content": "Be brief."}
USER, NEXT, ANSWER = ({"role": r, "content": c} for r, c in [("user", "Q1"), ("user", "Q2"), ("assistant", "A1")])
TOOLS = [{"type": "function", "function": {"name": "f", "description": "für 天氣", "parameters": {"type": "object"}}}]
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "Result."}


def prompt(template: str, messages: list[Any], tools: Any = None, **options: Any) -> str:
    return render(template, messages, SPECIAL, ChatOptions(tools=tools, **options))


def call(arguments: Any, name: str = "call_1") -> dict[str, Any]:
    return {"id": name, "type": "function", "function": {"name": "f", "arguments": arguments}}


def calls(*some: dict[str, Any], content: Any = "", **more: Any) -> Message:
    return {"role": "assistant", "content": content, "tool_calls": list(some), **more}


def as_system(message: Message, content: str | None = None) -> Message:
    return {"role": "system", "content": content or message["content"]}


BOTH = {"role": "system", "content": "Rule.\n\nBe brief."}


@pytest.mark.parametrize(
    ("template", "given", "shown"),
    [
        (QWEN, [BRIEF, USER], [as_system(BRIEF), USER]),
        (QWEN35, [BRIEF, USER], [as_system(BRIEF), USER]),
        (CHATML, [BRIEF, USER], [as_system(BRIEF), USER]),  # shows any role, and knows none
        (GPT_OSS, [BRIEF, USER], [BRIEF, USER]),
        (QWEN, [SYSTEM, BRIEF, USER], [SYSTEM, as_system(BRIEF), USER]),
        (GPT_OSS, [SYSTEM, BRIEF, USER], [BOTH, USER]),
        (QWEN35, [SYSTEM, BRIEF, USER], [BOTH, USER]),
        (QWEN35, [SYSTEM, USER, ANSWER, BRIEF, NEXT], [BOTH, USER, ANSWER, NEXT]),
        (R1, [SYSTEM, BRIEF, USER], [BOTH, USER]),
        (GEMMA2, [BRIEF, USER], [{"role": "user", "content": "Be brief.\n\nQ1"}]),
        (NEMO, [USER, ANSWER, BRIEF, NEXT], [as_system(BRIEF), USER, ANSWER, NEXT]),
    ],
)
def test_messages_of_developers(template: str, given: list[Message], shown: list[Message]) -> None:
    text = prompt(template, given)
    assert text == reference(template, shown)
    assert all(message["content"] in text for message in given)


@pytest.mark.parametrize(
    ("template", "given", "shown"),
    [
        (GEMMA2, [SYSTEM, USER, ANSWER, NEXT], [{"role": "user", "content": "Rule.\n\nQ1"}, ANSWER, NEXT]),
        (GEMMA2, [USER, ANSWER, SYSTEM, NEXT], [{"role": "user", "content": "Rule.\n\nQ1"}, ANSWER, NEXT]),
        (GEMMA2, [SYSTEM], [{"role": "user", "content": "Rule."}]),
        (QWEN35, [USER, ANSWER, SYSTEM, NEXT], [SYSTEM, USER, ANSWER, NEXT]),
        (R1, [SYSTEM, as_system(BRIEF), USER], [BOTH, USER]),
        (QWEN, [SYSTEM, USER, ANSWER, as_system(BRIEF), NEXT], [SYSTEM, USER, ANSWER, as_system(BRIEF), NEXT]),
    ],
)
def test_system_messages(template: str, given: list[Message], shown: list[Message]) -> None:
    assert prompt(template, given) == reference(template, shown)


TEXTS = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]


@pytest.mark.parametrize("template", [GUARD, FIRST, GEMMA3, MINISTRAL, QWEN, PHI35, GEMMA2])
@pytest.mark.parametrize("content", ["Name five rivers.", TEXTS[:1], TEXTS, []], ids=str)
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_texts_and_parts(template: str, content: Any, role: str) -> None:
    shown: Any = content
    if template not in (GEMMA3, MINISTRAL, GUARD) and not isinstance(content, str):
        shown = "\n".join(part["text"] for part in content)
    if template in (GUARD, FIRST) and (isinstance(shown, str) or not shown):
        shown = [{"type": "text", "text": shown or ""}]
    turns: list[Message] = [USER] if role == "assistant" else []
    in_parts = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in turns]
    expected = in_parts if template in (GUARD, FIRST) else turns
    text = prompt(template, [*turns, {"role": role, "content": content}])
    assert text == reference(template, [*expected, {"role": role, "content": shown}])
    assert content == [] or "rivers" in text or "one" in text


@pytest.mark.parametrize(
    "part",
    [
        {"type": "refusal", "refusal": "words"},  # OpenAI's
        {"type": "output_text", "text": "words", "annotations": []},  # of responses
        {"type": "input_text", "text": "words"},
        "words",
    ],
    ids=str,
)
def test_parts_that_are_text(part: Any) -> None:
    assert prompt(QWEN, [USER, {"role": "assistant", "content": [part]}]) == reference(
        QWEN, [USER, {"role": "assistant", "content": "words"}]
    )


@pytest.mark.parametrize("thinking", ["Hm.", [{"type": "text", "text": "Hm."}]], ids=str)
def test_parts_that_are_thoughts(thinking: Any) -> None:
    """Mistral's clients send a list of texts; templates read a text, or know `reasoning_content` alone."""
    parts = [{"type": "thinking", "thinking": thinking}, {"type": "text", "text": "A1"}]
    plain_parts = [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "A1"}]
    given = [USER, {"role": "assistant", "content": parts}]
    of_responses = [{"type": "reasoning_text", "text": "Hm."}, parts[1]]
    assert prompt(QWEN, given) == prompt(QWEN, [USER, {"role": "assistant", "content": of_responses}])
    assert prompt(MINISTRAL, given) == reference(MINISTRAL, [USER, {"role": "assistant", "content": plain_parts}])
    reasons = {"role": "assistant", "content": "A1", "reasoning_content": "Hm."}
    assert prompt(QWEN, given) == reference(QWEN, [USER, reasons])
    assert "Hm." in prompt(QWEN, given)


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
@pytest.mark.parametrize("template", [QWEN, GPT_OSS])
def test_names_of_reasoning(template: str, name: str) -> None:
    given = [USER, {"role": "assistant", "content": "A1", name: "Because."}, NEXT]
    assert prompt(template, given) == reference(template, given)
    assert "Because." in prompt(template, given)


NULLS = {"refusal": None, "function_call": None, "audio": None, "name": None, "reasoning_content": None}


@pytest.mark.parametrize("template", [LLAMA31, NEMO, QWEN, R1, GPT_OSS])
@pytest.mark.parametrize("more", [{"tool_calls": None}, {"tool_calls": []}, NULLS], ids=str)
def test_keys_without_a_value(template: str, more: dict[str, Any]) -> None:
    """As `message.model_dump()` of OpenAI's client and LiteLLM send them."""
    assert prompt(template, [USER, {**ANSWER, **more}, NEXT]) == reference(template, [USER, ANSWER, NEXT])


@pytest.mark.parametrize("template", [GLM, QWEN, LLAMA31])
@pytest.mark.parametrize(
    ("sent", "value"),
    [
        ("", {}),
        ("null", {}),
        (None, {}),
        ("  ", {}),
        ('{"a": ', {}),  # cut off
        ('"{\\"a\\": 1}"', {"a": 1}),  # encoded twice
        ('{"a":[1,"ü"]}', {"a": [1, "ü"]}),
        ({"a": 1}, {"a": 1}),
        ('{"a": "\\ud83d"}', {"a": "\ufffd"}),  # half an emoji, which models write
        ('{"\\udc00": 1}', {"\ufffd": 1}),
        ('{"a": "\\ud83d\\ude0a"}', {"a": "😊"}),
    ],
    ids=str,
)
def test_arguments(template: str, sent: Any, value: Any) -> None:
    given, shown = ([USER, calls(call(arguments)), RESULT] for arguments in (sent, value))
    text = prompt(template, given, TOOLS)
    assert text == reference(template, shown, TOOLS)
    text.encode()


@pytest.mark.parametrize(
    ("ids", "shown"),
    [
        (("abcdefghi", "ABCDEF012"), ("abcdefghi", "ABCDEF012")),  # what it wants already
        (("call_f21e9a73c266437c8818c4df", "call_2"), None),  # of this server, and OpenAI's
        (("toolu_01A09q90qw90lq917835lq9", "functions.f:0"), None),  # Anthropic's, and Kimi's
        (("äöüäöüäöü", "123456789"), None),
        ((None, None), None),  # a client of Ollama's
    ],
)
def test_ids_that_mistral_wants(ids: tuple[Any, Any], shown: Any) -> None:
    given = [
        USER,
        calls(*(call({}, one) for one in ids)),
        *({**RESULT, "tool_call_id": one} for one in ids),
        ANSWER,
        NEXT,
    ]
    text = prompt(NEMO, given, TOOLS)
    made = [json.loads(f'"{part[:9]}"') for part in text.split('"id": "')[1:]]
    assert len(set(made)) == 2
    assert all(len(one) == 9 and one.isalnum() and one.isascii() for one in made)
    if shown:
        assert made == list(shown)
    results = [{**RESULT, "tool_call_id": one} for one in made]
    assert text == reference(NEMO, [USER, calls(*(call({}, one) for one in made)), *results, ANSWER, NEXT], TOOLS)
    assert text == prompt(NEMO, given, TOOLS), "the same in the next turn"
    if ids[0]:
        assert ids[0] in prompt("{{ messages | tojson }}" + QWEN, given, TOOLS), "others get them as they are"


SECOND = {"role": "tool", "tool_call_id": "call_2", "content": "Second."}
CALLED = '<tool_call>\n{"name": "f", "arguments": {"city": "Zürich"}}\n</tool_call>'
RESPONDED = "<tool_response>\nResult.\n</tool_response>"
OTHER = {"id": "call_2", "type": "function", "function": {"name": "g", "arguments": {}}}
CUT = call('{"city":"Zürich"}')  # without the space that json.dumps writes
HISTORY = [USER, calls(call('{"city": "Zürich"}'), content=None), RESULT]
IN_TEXT = [USER, {"role": "assistant", "content": CALLED}, {"role": "user", "content": RESPONDED}]


@pytest.mark.parametrize("template", [PHI35, GEMMA2, GUARD, CHATML, QWEN35])
@pytest.mark.parametrize("rest", [[], [ANSWER], [ANSWER, NEXT], [NEXT]], ids=["open", "answer", "turn", "question"])
def test_a_history_that_is_not_shown_becomes_text(template: str, rest: list[Message]) -> None:
    shown = [*IN_TEXT, *rest]
    if rest == [NEXT]:  # roles alternate
        shown = [*IN_TEXT[:2], {"role": "user", "content": f"{RESPONDED}\nQ2"}]
    if template == GUARD:
        shown = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in shown]
    assert prompt(template, [*HISTORY, *rest]) == reference(template, shown)


@pytest.mark.parametrize(
    ("template", "given", "shown"),
    [
        (QWEN, HISTORY, [USER, calls(call({"city": "Zürich"})), RESULT]),
        (GLM, HISTORY, [USER, calls(call({"city": "Zürich"})), RESULT]),
        (R1, HISTORY, HISTORY),  # content is null, arguments are text
        (R1, [USER, calls(CUT, content="\n\n"), RESULT], [USER, calls(CUT, content=None), RESULT]),
        (NAMED, HISTORY, [USER, calls(call({"city": "Zürich"})), {**RESULT, "name": "f"}]),
        (NAMED, [USER, calls(call({}), OTHER), SECOND, RESULT],
         [USER, calls(call({}), OTHER), {**SECOND, "name": "g"}, {**RESULT, "name": "f"}]),
        (LLAMA31, [USER, calls(call({"a": 1}), content="So:"), RESULT],
         [USER, {"role": "assistant", "content": "So:"}, calls(call({"a": 1})), RESULT]),
        (LLAMA31, [USER, calls(call({"a": 1}), call({"a": 2}, "call_2")), SECOND, RESULT],
         [USER, calls(call({"a": 1})), RESULT, calls(call({"a": 2})), SECOND]),
        (NEMO, [*HISTORY, NEXT], [*IN_TEXT[:2], {"role": "user", "content": f"{RESPONDED}\nQ2"}]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["without tools", "tools"])
def test_a_history_in_the_form_that_is_shown(
    template: str, given: list[Message], shown: list[Message], tools: Any
) -> None:
    if template in (R1, NAMED) and tools:
        pytest.skip("a template without a place for tools; see test_tool_prompt.py")
    assert prompt(template, given, tools) == reference(template, shown, tools)


def test_a_refusal_in_place_of_a_content() -> None:
    """As OpenAI's client has it in a message."""
    given = {"role": "assistant", "content": None, "refusal": "No."}
    assert prompt(QWEN, [USER, given, NEXT]) == reference(QWEN, [USER, {**ANSWER, "content": "No."}, NEXT])
    assert prompt(QWEN, [USER, {**ANSWER, "refusal": "No."}]) == reference(QWEN, [USER, ANSWER])


def test_older_forms_of_calls() -> None:
    older = [
        USER,
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a": 1}'}},
        {"role": "function", "name": "f", "content": "Result."},
    ]
    assert prompt(QWEN, older) == reference(QWEN, [USER, calls(call({"a": 1})), RESULT])
    custom = {"id": "call_1", "type": "custom", "custom": {"name": "f", "input": "x"}}
    assert prompt(QWEN, [USER, calls(custom), RESULT]) == reference(QWEN, [USER, calls(call({"input": "x"})), RESULT])


@pytest.mark.parametrize(
    "template",
    ["{{ messages[-1].content }}", "{{ messages | length }}", "{{ raise_exception('never') if not x }}ok"],
)
def test_templates_that_show_nothing_are_given_what_came(template: str) -> None:
    given = [SYSTEM, BRIEF, {"role": "critic", "content": "Hm."}]
    text = prompt(template, given, chat_template_kwargs={"x": 1})
    assert text == reference(template, given, x=1)


def test_a_template_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, ran = TemplateRunner(), []
    real = runner.run_each
    monkeypatch.setattr(runner, "run_each", lambda template, many: ran.append(len(many)) or real(template, many))
    for _ in range(3):
        render(QWEN, HISTORY, SPECIAL, ChatOptions(tools=TOOLS), runner)
    tried = [count for count in ran if count > 1]
    assert len(tried) == 2, "once for what it shows, once for calls"
    assert sum(tried) < 40
    assert capabilities_of(QWEN, SPECIAL, runner).tools
    assert len(ran) == 5


def test_what_is_given_is_left_as_it_was() -> None:
    given = [SYSTEM, BRIEF, *HISTORY, NEXT, {**ANSWER, "reasoning": "x", "tool_calls": []}]
    before = json.dumps(given)
    for template in (GEMMA2, NEMO, QWEN35, GUARD):
        prompt(template, given, TOOLS)
    assert json.dumps(given) == before


ODD: Any = st.sampled_from(
    [None, "", "x", 3, [], {}, ["a"], "null", [{"type": "thinking", "thinking": None}], {"name": "f"}, TEXTS]
)
ODD_CALLS: Any = st.sampled_from(
    [
        [call(None), call("", "call_2")],
        [{"id": 3, "function": {"name": "f"}}],
        [{"function": "f"}],
        [{"name": "f", "arguments": {}}],
        [{"custom": 3}],
        [{"id": None, "type": "custom", "custom": {"name": "f"}}],
    ]
)
ODD_MESSAGES = st.lists(
    st.builds(
        lambda role, content, calls, more: {"role": role, "content": content, "tool_calls": calls, **more},
        st.sampled_from(["system", "developer", "user", "assistant", "tool", "function", "critic"]),
        st.sampled_from(["q", "", None]) | ODD,
        st.none() | ODD_CALLS | ODD,
        st.dictionaries(
            st.sampled_from(["function_call", "tool_call_id", "name", "reasoning", "refusal"]), ODD, max_size=2
        ),
    ),
    min_size=1,
    max_size=5,
)


@given(
    st.sampled_from([GEMMA2, GUARD, LLAMA31, NAMED, NEMO, QWEN35, R1]),
    ODD_MESSAGES,
    st.sampled_from([None, TOOLS, [{"name": "f"}], [{"function": "f"}]]),
    st.booleans(),
)
def test_odd_messages_are_rendered_or_refused(template: str, messages: Any, tools: Any, continued: bool) -> None:
    with suppress(RequestError):
        prompt(template, messages, tools, add_generation_prompt=not continued, continue_final_message=continued)


def test_calls_of_a_system_and_going_on_with_calls() -> None:
    """Of a template that shows calls beside null alone."""
    odd = {"role": "system", "content": None, "tool_calls": [call("{}")]}
    assert "Rule." in prompt(R1, [odd, SYSTEM, *HISTORY])
    with suppress(RequestError):
        last = calls(CUT, content="")
        prompt(R1, [*HISTORY, ANSWER, last], add_generation_prompt=False, continue_final_message=True)


def test_text_and_reasoning_beside_calls_where_a_template_refuses_both() -> None:
    template = (
        "{{ tools or '' }}\n{% for m in messages %}{% if m.tool_calls and m.content and m.thinking %}"
        "{{ raise_exception('Cannot pass both content and thinking in an assistant message with tool calls!') }}"
        "{% endif %}{{ m.thinking }}|{{ m.content }}|{% for c in m.tool_calls or [] %}{{ c.function.name }}"
        "{{ c.function.arguments | tojson }}{% endfor %}\n{% endfor %}"
    )
    given = [USER, calls(call({"a": 1}), content="I look.", reasoning_content="Hm."), RESULT]
    assert "|Q1|Hm.\n\nI look.||f{" in prompt(template, given, TOOLS)
    assert "|Q1|Hm.|I look.|" in prompt(template, [USER, {**ANSWER, "content": "I look.", "thinking": "Hm."}])
