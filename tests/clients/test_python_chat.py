"""OpenAI's Python client on conversations and responses: its helpers for streams, forms and tools."""

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


def test_parsed_responses(client: openai.OpenAI) -> None:
    response = client.responses.parse(
        model=MODEL, input="A point.", text_format=Point, temperature=1, max_output_tokens=400,
        extra_body={"frequency_penalty": 2, "seed": 3},
    )  # fmt: skip
    assert isinstance(response.output_parsed, Point)
