"""OpenAI's Python client on conversations: answers, forms, tools, and the errors it makes of refusals."""

import asyncio
import json
from typing import Annotated, Any, Literal

import openai
import pytest
from openai.types.chat import ChatCompletionMessageFunctionToolCall
from pydantic import BaseModel, Field
from served import FORECAST, Served

from parlay import LLM, SamplingParams

pytestmark = pytest.mark.clients
pytest_plugins = ["servers"]

MODEL = "tiny-code"
MESSAGES: Any = [
    {"role": "system", "content": "You write Python."},
    {"role": "user", "content": "A function that adds two numbers."},
    {"role": "assistant", "content": "def add(a, b):\n    return a + b"},
    {"role": "user", "content": "Now a class for a stack."},
]
WEATHER: Any = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather in a city.", "parameters": FORECAST},
}
CLOCK: Any = {"type": "function", "function": {"name": "clock"}}
NAMED: Any = {"type": "function", "function": {"name": "weather"}}
ASKED: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "max_tokens": 60},
    "sampled": {"temperature": 0.8, "top_p": 0.9, "seed": 11, "max_tokens": 40},
    "several": {"temperature": 0.8, "n": 3, "seed": 12, "max_tokens": 24},
    "stop": {"temperature": 0, "stop": ["\n    "], "max_tokens": 60},
    "bias": {"temperature": 0, "logit_bias": {"95": 6}, "presence_penalty": 0.5, "max_tokens": 24},
}
TERSE: dict[str, Any] = {"frequency_penalty": 2}  # JSON may have any amount of space, which a small model likes
END = 0  # of an answer
PLAIN: dict[str, Any] = {"speculative": {"enabled": False}}


class Point(BaseModel):
    """What an answer is parsed into."""

    kind: Literal["point", "vector"]
    x: Literal[0, 1]
    tags: Annotated[list[Literal["a", "b"]], Field(max_length=3)]


@pytest.mark.parametrize("name", ASKED)
def test_answers_are_the_offline_ones(client: openai.OpenAI, offline: LLM, name: str) -> None:
    asked = ASKED[name]
    (output,) = offline.chat(MESSAGES, SamplingParams(**asked, logprobs=2))
    truth = [one.text for one in output.outputs]
    scores = [
        [table[t].logprob for t, table in zip(one.token_ids, one.logprobs or (), strict=True)]
        for one in output.outputs
    ]
    for more in ({}, PLAIN, {"return_sources": True}):
        body: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, **asked, "extra_body": more}
        whole = client.chat.completions.create(**body, logprobs=True, top_logprobs=2)
        assert [choice.message.content for choice in whole.choices] == truth
        assert [choice.finish_reason for choice in whole.choices] == [one.finish_reason for one in output.outputs]
        for choice, expected in zip(whole.choices, scores, strict=True):
            assert choice.logprobs is not None
            assert [entry.logprob for entry in choice.logprobs.content or ()] == expected
            assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content or ())
        texts, found = [""] * len(truth), [[] for _ in truth]
        for chunk in client.chat.completions.create(**body, logprobs=True, stream=True):
            for part in chunk.choices:
                texts[part.index] += part.delta.content or ""
                assert part.logprobs is not None
                found[part.index] += [entry.logprob for entry in part.logprobs.content or ()]
        assert texts == truth
        assert found == scores


def test_the_stream_helper(client: openai.OpenAI, offline: LLM) -> None:
    """`chat.completions.stream` puts events together itself, and is strict about them."""
    asked = {"temperature": 0.5, "seed": 4, "n": 2, "stop": [" "]}
    (output,) = offline.chat(MESSAGES, SamplingParams(**asked))
    with client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, **asked, stream_options={"include_usage": True}
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert kinds >= {"chunk", "content.delta", "content.done"}
    assert [choice.message.content for choice in final.choices] == [one.text for one in output.outputs]
    assert final.usage is not None
    assert final.usage.completion_tokens == sum(len(one.token_ids) for one in output.outputs)


def test_all_at_once(server: Served, offline: LLM) -> None:
    async def ask_all() -> list[tuple[str, list[str]]]:
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0) as client:
            asks = [(name, more) for name in ASKED for more in ({}, PLAIN)]
            answers = await asyncio.gather(
                *(
                    client.chat.completions.create(model=MODEL, messages=MESSAGES, **ASKED[name], extra_body=more)
                    for name, more in asks
                )
            )
            texts = [[choice.message.content or "" for choice in answer.choices] for answer in answers]
            return [(name, text) for (name, _), text in zip(asks, texts, strict=True)]

    truth = {
        name: [one.text for one in offline.chat(MESSAGES, SamplingParams(**asked))[0].outputs]
        for name, asked in ASKED.items()
    }
    for name, texts in asyncio.run(ask_all()):
        assert texts == truth[name], name


def test_json(client: openai.OpenAI) -> None:
    """Free JSON, a schema, and a pydantic model; the same with and without speculation, whole and streamed."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    forms: list[Any] = [
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}},
    ]
    for form in forms:
        asked: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "temperature": 1, "seed": 5, "max_tokens": 80}
        asked |= {"response_format": form, **TERSE, "extra_body": {}}
        text = client.chat.completions.create(**asked).choices[0].message.content or ""
        if form["type"] == "json_schema":
            assert isinstance(json.loads(text)["a"], bool)
        assert text.lstrip().startswith("{")
        streamed = client.chat.completions.create(**asked, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == text
        asked["extra_body"] = asked["extra_body"] | PLAIN
        assert client.chat.completions.create(**asked).choices[0].message.content == text


def test_parse(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "temperature": 1, "seed": 3, "max_tokens": 400}
    asked |= TERSE
    made = client.chat.completions.parse(**asked, response_format=Point)
    parsed = made.choices[0].message.parsed
    assert isinstance(parsed, Point)
    with client.chat.completions.stream(**asked, response_format=Point) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.parsed == parsed


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_forced_calls(client: openai.OpenAI, choice: Any) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "temperature": 0.9, "seed": 6, "max_tokens": 200}
    asked |= {"tools": [WEATHER, CLOCK], "tool_choice": choice, "parallel_tool_calls": False}
    (whole,) = client.chat.completions.create(**asked).choices
    (call,) = whole.message.tool_calls or ()
    assert isinstance(call, ChatCompletionMessageFunctionToolCall)
    assert whole.message.content is None
    assert whole.finish_reason == ("tool_calls" if choice == "required" else "stop")
    arguments = json.loads(call.function.arguments)
    if choice != "required" or call.function.name == "weather":
        assert arguments["city"] in ("Paris", "Rome")
        assert 1 <= arguments["days"] <= 9
    with client.chat.completions.stream(**asked) as stream:
        for _ in stream:
            pass
        (streamed,) = stream.get_final_completion().choices
    (again,) = streamed.message.tool_calls or ()
    assert (again.function.name, json.loads(again.function.arguments)) == (call.function.name, arguments)
    assert streamed.finish_reason == whole.finish_reason
    # The conversation goes on with what the function gave.
    more = [*MESSAGES, whole.message.model_dump(exclude_none=True) | {"content": ""}]
    more.append({"role": "tool", "tool_call_id": call.id, "content": "sunny"})
    next_one = client.chat.completions.create(
        model=MODEL, messages=more, tools=[WEATHER], max_tokens=8, temperature=0
    )
    assert next_one.choices[0].finish_reason in ("stop", "length")


def test_calls_of_its_own(client: openai.OpenAI, offline: LLM) -> None:
    """`auto` leaves text alone and finds a call; `none` gives text whatever it is."""
    asked: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "tools": [WEATHER]}
    for choice, tools in (("auto", [WEATHER]), ("none", None)):
        (output,) = offline.chat(MESSAGES, SamplingParams(temperature=0, max_tokens=40), tools=tools)
        (made,) = client.chat.completions.create(**asked, tool_choice=choice, max_tokens=40).choices
        assert made.message.content == output.outputs[0].text
        assert not made.message.tool_calls
        chunks = client.chat.completions.create(**asked, tool_choice=choice, max_tokens=40, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == output.outputs[0].text
    # A small model makes no calls; here a grammar speaks for it.
    form = r'<tool_call>\{"name": "weather", "arguments": \{"city": "Rome", "days": [1-9]\}\}</tool_call>'
    extra: Any = {"structured_outputs": {"regex": form}}
    (made,) = client.chat.completions.create(**asked, tool_choice="auto", extra_body=extra).choices
    (call,) = made.message.tool_calls or ()
    assert isinstance(call, ChatCompletionMessageFunctionToolCall)
    assert (call.function.name, json.loads(call.function.arguments)["city"]) == ("weather", "Rome")
    assert made.finish_reason == "tool_calls"
    (made,) = client.chat.completions.create(**asked, tool_choice="none", extra_body=extra).choices
    assert (made.message.content or "").startswith("<tool_call>")
    assert made.finish_reason == "stop"


@pytest.mark.parametrize("streamed", [False, True])
def test_three_turns_with_a_tool(client: openai.OpenAI, streamed: bool) -> None:
    """An agent's loop: two calls, each with what the function gave, then words; messages go back as they came."""
    # The client's helper takes an answer that is cut off for an error.
    asked: dict[str, Any] = {"model": MODEL, "tools": [WEATHER], "temperature": 0, "max_tokens": 60, "stop": [" "]}
    messages: list[Any] = [{"role": "user", "content": "How is the weather in Rome?"}]
    for choice in (NAMED, "required", "none"):
        more: dict[str, Any] = {"messages": messages, "tool_choice": choice, "parallel_tool_calls": False}
        if choice == "none":
            more["logit_bias"] = {str(END): 8}
        if streamed:
            with client.chat.completions.stream(**asked, **more) as stream:
                for _ in stream:
                    pass
                (made,) = stream.get_final_completion().choices
        else:
            (made,) = client.chat.completions.create(**asked, **more).choices
        messages.append(made.message)
        if choice == "none":
            break
        (call,) = made.message.tool_calls or ()
        assert isinstance(call, ChatCompletionMessageFunctionToolCall)
        assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "sunny"})
    assert len(messages) == 6
    assert not made.message.tool_calls
    assert isinstance(made.message.content, str)


def test_predictions_in_usage(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_tokens": 200}
    counts = []
    for more in ({}, PLAIN, {"speculative": {"num_speculative_tokens": 1}}):
        usage = client.chat.completions.create(**asked, extra_body=more).usage
        assert usage is not None
        assert usage.completion_tokens_details is not None
        counts.append(usage.completion_tokens_details.accepted_prediction_tokens or 0)
    assert counts[0] >= counts[2] > counts[1] == 0


def test_a_predicted_output(client: openai.OpenAI, offline: LLM) -> None:
    """The client's own `prediction` field: the same answer, nearly all of it guessed; a wrong one costs no token."""
    asked: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_tokens": 60}
    text = offline.chat(MESSAGES, SamplingParams(temperature=0, max_tokens=60))[0].outputs[0].text
    accepted = []
    for content in (text, [{"type": "text", "text": text}], "nothing of the sort"):
        prediction: Any = {"type": "content", "content": content}
        made = client.chat.completions.create(**asked, prediction=prediction)
        assert made.choices[0].message.content == text
        assert made.usage is not None
        assert made.usage.completion_tokens_details is not None
        accepted.append(made.usage.completion_tokens_details.accepted_prediction_tokens or 0)
        chunks = list(client.chat.completions.create(**asked, prediction=prediction, stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
        assert content == "nothing of the sort" or len(chunks) < 20
    assert accepted[0] == accepted[1] > 40
    with pytest.raises(openai.BadRequestError, match="prediction") as refused:
        client.chat.completions.create(**asked, prediction={"type": "else", "content": "x"})  # type: ignore[arg-type]
    assert refused.value.param == "prediction"
