"""Tools, reasoning and unknown fields as clients meet them."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai.types.chat import ChatCompletionMessage
from openai.types.chat.chat_completion_message_custom_tool_call import ChatCompletionMessageCustomToolCall
from serving import Live, engine_of, wait_for

from parlay import AsyncLLM
from parlay.server.openai import chat
from parlay.server.openai.tool_formats import FORMATS

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "note": {"type": "string", "minLength": 300}},
            "required": ["city", "note"],
        },
    },
}
ASKED = {"role": "user", "content": "How is the weather in Paris?"}
CALLED = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
PLACE = (
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.content + '\n' }}{% endfor %}"
)


@pytest.fixture(scope="module")
def engine() -> Iterator[AsyncLLM]:
    with engine_of("tiny-code", max_model_len=1024, speculative_config=None) as made:
        yield made


@pytest.fixture(scope="module")
def live(engine: AsyncLLM) -> Iterator[Live]:
    with Live(engine, trust_request_chat_template=True) as server:
        yield server


def ask(live: Live, **body: Any) -> dict[str, Any]:
    answer = live.post("/v1/chat/completions", {"max_tokens": 8, "temperature": 0, **body})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
def test_the_turn_after_a_call(live: Live, content: dict[str, Any]) -> None:
    turns = [
        ASKED,
        {"role": "assistant", "tool_calls": [CALLED], **content},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    found = ask(live, messages=turns, tools=[WEATHER])
    assert found["usage"]["completion_tokens"] == 8
    # Templates that add texts find one.
    assert ask(live, messages=turns, tools=[WEATHER], chat_template=PLACE)["usage"]["completion_tokens"] == 8


def test_a_template_without_a_place_for_tools(live: Live) -> None:
    without, told = ask(live, messages=[ASKED]), ask(live, messages=[ASKED], tools=[WEATHER])
    assert told["usage"]["prompt_tokens"] > without["usage"]["prompt_tokens"] + len("The weather in a city")
    assert "the model's chat template ignores tools" in told["warnings"][0]
    assert "warnings" not in without
    assert "warnings" not in ask(live, messages=[ASKED], tools=[WEATHER], chat_template=PLACE)
    none = ask(live, messages=[ASKED], tools=[WEATHER], tool_choice="none")
    assert none["usage"]["prompt_tokens"] == without["usage"]["prompt_tokens"]
    assert "warnings" not in none


HISTORY = [
    ASKED,
    {"role": "assistant", "content": None, "tool_calls": [CALLED]},
    {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    {"role": "user", "content": "Which city?"},
]


@pytest.mark.parametrize("template", [None, PLACE], ids=["without a place", "a place"])
def test_calls_are_in_the_prompt_of_an_agents_last_request(live: Live, template: str | None) -> None:
    """Those that write words about what was found: with `none`, as AI SDK's, or without tools, as titles."""
    more = {"messages": HISTORY, "chat_template": template, "return_token_ids": True, "max_tokens": 1}
    prompts = []
    for tools in ({"tools": [WEATHER]}, {"tools": [WEATHER], "tool_choice": "none"}, {}):
        (choice,) = ask(live, **more, **tools)["choices"]
        tokens = live.post("/detokenize", {"tokens": choice["prompt_token_ids"]}).json()
        prompts.append(tokens["prompt"])
    auto, none, without = prompts
    assert auto == none, "what is cached of the turns before serves this one"
    for prompt in prompts:
        assert all(word in prompt for word in ("Paris", "sunny", "Which city?"))
    assert '"weather"' in auto
    assert "minLength" not in without


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", "any", {"type": "function", "function": {"name": "weather"}}])
def test_a_forced_call_that_is_cut_off(live: Live, choice: Any, stream: bool) -> None:
    body = {"messages": [ASKED], "tools": [WEATHER], "tool_choice": choice, "max_tokens": 60}
    if stream:
        chunks = live.events("/v1/chat/completions", **body, temperature=0)
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        functions = [call["function"] for delta in deltas for call in delta.get("tool_calls", ())]
        name, arguments = functions[0]["name"], "".join(f["arguments"] for f in functions)
        assert not any(delta.get("content") for delta in deltas)
        reason = chunks[-1]["choices"][0]["finish_reason"]
        assert [i for i, chunk in enumerate(chunks) if "warnings" in chunk] == [0]
    else:
        (choice,) = ask(live, **body)["choices"]
        (call,) = choice["message"]["tool_calls"]
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        assert choice["message"]["content"] is None
        reason = choice["finish_reason"]
    assert (name, reason) == ("weather", "length")
    assert arguments.startswith('{"city":')


# What the model is made to write, as if of its own will.
WRITTEN = (
    'Look: <tool_call>\n{"name": "weather", "arguments": {"city": "Paris", "note": "a}b"}}\n</tool_call>\n and '
    '<tool_call>{"name": "nobody", "arguments": {}}</tool_call>'
)
FREE = {"structured_outputs": {"choice": [WRITTEN]}, "max_tokens": 300, "temperature": 0}


PATCH = {"type": "custom", "custom": {"name": "patch", "format": {"type": "grammar", "grammar": {
    "syntax": "regex", "definition": "[+-].*"}}}}  # fmt: skip
NAMED = {"type": "custom", "custom": {"name": "patch"}}


@pytest.mark.parametrize("choice", ["required", NAMED, {"type": "allowed_tools", "allowed_tools": {
    "mode": "required", "tools": [NAMED]}}], ids=["required", "named", "allowed"])  # fmt: skip
def test_custom_tools_are_called_with_a_text(live: Live, choice: Any) -> None:
    body = {"messages": [ASKED], "tools": [PATCH, WEATHER], "tool_choice": choice, "max_tokens": 40, "seed": 1}
    message = ask(live, **body)["choices"][0]["message"]
    (call, *_) = ChatCompletionMessage.model_validate(message).tool_calls or ()
    assert isinstance(call, ChatCompletionMessageCustomToolCall)
    assert call.custom.name == "patch"
    found = live.events("/v1/chat/completions", temperature=0, **body)
    (begun, *more) = [c for e in found for c in e["choices"][0]["delta"].get("tool_calls", ()) if c["index"] == 0]
    assert (begun["type"], begun["custom"]["name"]) == ("custom", "patch")
    assert begun["custom"]["input"] + "".join(piece["custom"]["input"] for piece in more) == call.custom.input
    # The next request's prompt has the call as the model wrote it, and the form of the input is in the description.
    called = {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]}
    result = {"role": "tool", "tool_call_id": call.id, "content": "done"}
    template = PLACE.replace("m.content", "m.content or m.tool_calls | tojson")
    body = {"messages": [ASKED, called, result], "tools": [PATCH], "chat_template": template}
    tokens = live.post("/tokenize", body).json()["tokens"]
    prompt = live.post("/detokenize", {"tokens": tokens}).json()["prompt"]
    assert all(text in prompt for text in ('"input"', '"patch"', "regex", "[+-].*"))


def test_a_free_call_is_streamed_as_it_grows(live: Live) -> None:
    body = {"messages": [ASKED], "tools": [WEATHER], **FREE}
    (choice,) = ask(live, **body)["choices"]
    chunks = [chunk["choices"][0] for chunk in live.events("/v1/chat/completions", **body)]
    calls = [call for one in chunks for call in one["delta"].get("tool_calls", ())]
    first, *others = calls
    assert first["function"]["name"] == "weather"
    assert len(others) > 5
    assert all(set(one) == {"index", "function"} and one["index"] == 0 for one in others)
    arguments = "".join(one["function"]["arguments"] for one in calls)
    text = "".join(one["delta"].get("content") or "" for one in chunks)
    (whole,) = choice["message"]["tool_calls"]
    assert arguments == whole["function"]["arguments"] == '{"city": "Paris", "note": "a}b"}'
    assert text == choice["message"]["content"]
    assert text == 'Look:\n and <tool_call>{"name": "nobody", "arguments": {}}</tool_call>'
    assert choice["finish_reason"] == chunks[-1]["finish_reason"] == "tool_calls"
    assert [one["finish_reason"] for one in chunks[:-1]] == [None] * (len(chunks) - 1)


def test_responses_stream_free_calls_too(live: Live) -> None:
    tool = {"type": "function", **WEATHER["function"]}  # type: ignore[dict-item]
    body = {"input": "How is the weather in Paris?", "tools": [tool], "store": False}
    body |= {name: value for name, value in FREE.items() if name != "max_tokens"} | {"max_output_tokens": 300}
    whole = live.post("/v1/responses", body).json()["output"]
    told = live.events("/v1/responses", **body)
    streamed = told[-1]["response"]["output"]
    assert [item["type"] for item in whole] == ["message", "function_call", "message"]
    changing = ("id", "call_id")
    assert [{k: v for k, v in item.items() if k not in changing} for item in streamed] == [
        {k: v for k, v in item.items() if k not in changing} for item in whole
    ]
    deltas = [one["delta"] for one in told if one["type"] == "response.function_call_arguments.delta"]
    assert len(deltas) > 5
    assert "".join(deltas) == whole[1]["arguments"]


SHORT = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 4}},
    "required": ["city"],
    "additionalProperties": False,
}
BRIEF = {"type": "function", "function": {"name": "weather", "parameters": SHORT}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wanted", ["<", "{"])
def test_calls_and_response_format_together(live: Live, engine: AsyncLLM, wanted: str, stream: bool) -> None:
    """The model may do either; a bias on the first characters decides for it."""
    vocabulary = engine.codec.tokenizer.get_vocab()
    bias = {str(number): 50 for token, number in vocabulary.items() if token.startswith(wanted)}
    form = {
        "name": "a",
        "schema": {"type": "object", "properties": {"b": {"enum": ["<tool_call>"]}}, "required": ["b"]},
    }
    body = {"tools": [BRIEF], "parallel_tool_calls": False, "logit_bias": bias, "temperature": 0}
    chat = {"messages": [ASKED], "response_format": {"type": "json_schema", "json_schema": form}, "max_tokens": 80}
    if stream:
        chunks = [chunk["choices"][0] for chunk in live.events("/v1/chat/completions", **body, **chat)]
        text = "".join(one["delta"].get("content") or "" for one in chunks)
        calls = [call["function"] for one in chunks for call in one["delta"].get("tool_calls", ())]
        arguments, finish = "".join(call["arguments"] for call in calls), chunks[-1]["finish_reason"]
    else:
        (choice,) = ask(live, **body, **chat)["choices"]
        text, calls = choice["message"]["content"] or "", choice["message"].get("tool_calls", [])
        arguments, finish = "".join(call["function"]["arguments"] for call in calls), choice["finish_reason"]
    tool = {"type": "function", **BRIEF["function"]}  # type: ignore[dict-item]
    asked = {**body, "input": ASKED["content"], "tools": [tool], "text": {"format": {"type": "json_schema", **form}}}
    asked |= {"max_output_tokens": 80, "store": False}
    if stream:
        output = live.events("/v1/responses", **asked)[-1]["response"]["output"]
    else:
        output = live.post("/v1/responses", asked).json()["output"]
    if wanted == "<":
        assert (text, finish) == ("", "tool_calls")
        assert list(json.loads(arguments)) == ["city"]
        assert [item["type"] for item in output] == ["function_call"]
    else:
        assert (json.loads(text), calls, finish) == ({"b": "<tool_call>"}, [], "stop")
        assert [item["type"] for item in output] == ["message"]


def test_one_call_is_enough_if_they_are_not_parallel(live: Live) -> None:
    one = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    free = {"structured_outputs": {"choice": [f"{one}\n{one}"]}, "max_tokens": 200}
    body = {"messages": [ASKED], "tools": [WEATHER], **free}
    (both,) = ask(live, **body)["choices"]
    assert len(both["message"]["tool_calls"]) == 2
    (single,) = ask(live, **body, parallel_tool_calls=False)["choices"]
    (call,) = single["message"]["tool_calls"]
    assert call["function"]["arguments"] == '{"city": "Oslo"}'
    assert single["message"]["content"] is None
    assert single["finish_reason"] == "tool_calls"
    chunks = live.events("/v1/chat/completions", **body, parallel_tool_calls=False)
    numbers = {call["index"] for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", ())}
    assert numbers == {0}


def test_what_is_not_enforced_is_told(live: Live) -> None:
    schema = {"type": "object", "properties": {"a": {"uniqueItems": True, "enum": [1]}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    answer = ask(live, messages=[ASKED], response_format=form, max_tokens=40)
    assert answer["warnings"] == ["response_format: #/properties/a/uniqueItems is not enforced"]
    tool = {"type": "function", "name": "f", "parameters": schema}
    body = {"input": "x", "tools": [tool], "tool_choice": "required", "max_output_tokens": 40, "store": False}
    told = live.post("/v1/responses", body).json()["warnings"]
    assert told[-1] == "tools[0].parameters: #/properties/a/uniqueItems is not enforced"
    refused = live.post("/v1/responses", {**body, "tools": [{**tool, "strict": True}]})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith("tools[0].parameters: #/properties/a/uniqueItems")
    text = {"format": {"type": "json_schema", "name": "a", "schema": schema, "strict": True}}
    refused = live.post("/v1/responses", {"input": "x", "text": text})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "text")
    offline = live.post("/v1/chat/completions", {"messages": [ASKED], "structured_outputs": {"json": schema}})
    assert offline.status_code == 400
    assert "#/properties/a/uniqueItems is not enforced" in offline.json()["error"]["message"]


def test_fields_that_nobody_knows(live: Live, engine: AsyncLLM) -> None:
    body = {"messages": [ASKED], "max_tokens": 2, "chat_sessions": {"id": 1}}
    assert ask(live, **body)["warnings"] == ["unknown field was ignored: 'chat_sessions'"]
    # The log's line comes when the answer is out already.
    wait_for(lambda: ["unknown field was ignored: 'chat_sessions'"] in [one.get("warnings") for one in live.log])
    refused = live.post("/v1/chat/completions", {"messages": [ASKED], "temprature": 0})
    assert refused.status_code == 400
    assert "did you mean 'temperature'" in refused.json()["error"]["message"]
    elsewhere = live.post("/v1/completions", {"prompt": "a", "tools": [{"type": "function"}]})
    assert (elsewhere.status_code, elsewhere.json()["error"]["param"]) == (400, "tools")
    with Live(engine, strict_fields=True) as strict:
        answer = strict.post("/v1/chat/completions", body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "chat_sessions")


def test_a_template_that_is_not_trusted_is_not_run(engine: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    real = engine.codec.shows_tools
    monkeypatch.setattr(type(engine.codec), "shows_tools", lambda self, template=None: ran.append(template) or real())
    with Live(engine) as careful:
        body = {"messages": [ASKED], "tools": [WEATHER], "chat_template": "{{ 'x' * 9 }}", "max_tokens": 2}
        assert careful.post("/v1/chat/completions", body).status_code == 400
        assert not ran
        assert careful.post("/v1/chat/completions", {**body, "chat_template": None}).status_code == 200
        assert ran == [engine.codec.template]


def test_a_template_of_the_models_own_is_trusted_by_its_name(engine: AsyncLLM) -> None:
    with Live(engine) as careful:
        body = {"messages": [ASKED], "max_tokens": 2, "temperature": 0}
        plain, named = (
            careful.post("/v1/chat/completions", body | more) for more in ({}, {"chat_template": "default"})
        )
        assert named.json()["choices"] == plain.json()["choices"]
        other = careful.post("/v1/chat/completions", {**body, "chat_template": "tool_use"})
        assert (other.status_code, other.json()["error"]["param"]) == (400, "chat_template")


def test_reasoning_comes_apart(live: Live) -> None:
    template = PLACE + "{% if enable_thinking is not defined %}<think>\n{% endif %}"
    found = ask(live, messages=[ASKED], chat_template=template)
    (choice,) = found["choices"]
    assert choice["message"]["reasoning_content"]
    assert choice["message"]["content"] == ""
    assert found["usage"]["completion_tokens_details"]["reasoning_tokens"] == 8
    (hidden,) = ask(live, messages=[ASKED], chat_template=template, include_reasoning=False)["choices"]
    assert "reasoning_content" not in hidden["message"]
    asked = {"reasoning_effort": "none", "verbosity": "low", "documents": [{"text": "x"}]}
    found = ask(live, messages=[ASKED], chat_template=template, **asked)
    (choice,) = found["choices"]
    assert choice["message"]["content"]
    assert "reasoning_content" not in choice["message"]
    assert [one.partition(":")[0] for one in found["warnings"]] == [
        "verbosity has no effect",
        "documents has no effect",
    ]
    body = {"messages": [ASKED], "chat_template": template, "max_tokens": 8, "temperature": 0}
    deltas = [event["choices"][0]["delta"] for event in live.events("/v1/chat/completions", **body)]
    (whole,) = ask(live, messages=[ASKED], chat_template=template)["choices"]
    assert "".join(d.get("reasoning_content", "") for d in deltas) == whole["message"]["reasoning_content"]
    assert not any(d.get("content") for d in deltas)


@pytest.mark.parametrize(("body", "made"), [({}, True), ({"tool_choice": "none"}, False), (FREE, False)])
def test_calls_are_looked_for_in_reasoning_where_any_may_be(
    live: Live, monkeypatch: pytest.MonkeyPatch, body: dict[str, Any], made: bool
) -> None:
    seen: list[Any] = []
    real = chat.thoughts_reader
    monkeypatch.setattr(chat, "thoughts_reader", lambda *given: seen.append(given[3]) or real(*given))
    template = PLACE + "<think>\n"
    assert ask(live, messages=[ASKED], tools=[WEATHER], chat_template=template, **{**body, "max_tokens": 2})
    (calls,) = seen
    assert (calls is not None) == made
    if made:
        tools, form = calls
        assert list(tools.parameters) == ["weather"]
        assert form is FORMATS["hermes"]
