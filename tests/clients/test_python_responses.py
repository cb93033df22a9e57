"""OpenAI's Python client on responses: texts, forms, and a tool's answers in three turns, streamed and not."""

import json
from collections.abc import Callable
from typing import Any, Literal

import openai
import pytest
from openai.types.responses import Response
from pydantic import BaseModel
from served import FORECAST, Served

from parlay import LLM, SamplingParams

pytestmark = pytest.mark.clients
pytest_plugins = ["servers"]

MODEL = "tiny-code"
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": FORECAST,
    "strict": True,
}
NAMED: Any = {"type": "function", "name": "weather"}
ASKED: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "max_output_tokens": 40},
    "sampled": {"temperature": 0.8, "top_p": 0.9, "max_output_tokens": 40, "extra_body": {"seed": 11}},
}


class Point(BaseModel):
    """What an answer is parsed into."""

    kind: Literal["point", "vector"]
    x: Literal[0, 1]


def whole(client: openai.OpenAI, **asked: Any) -> Response:
    return client.responses.create(model=MODEL, **asked)


def streamed(client: openai.OpenAI, **asked: Any) -> Response:
    """Return the last event's response; what the events before it say must add up to it."""
    events = list(client.responses.create(model=MODEL, **asked, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    last = events[-1]
    assert last.type in ("response.completed", "response.incomplete")
    response = last.response
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == response.output_text
    arguments = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
    assert arguments == "".join(item.arguments for item in response.output if item.type == "function_call")
    assert [event.item for event in events if event.type == "response.output_item.done"] == response.output
    return response


WAYS = pytest.mark.parametrize("respond", [whole, streamed])


@WAYS
@pytest.mark.parametrize("name", ASKED)
def test_answers_are_the_offline_ones(
    client: openai.OpenAI, offline: LLM, respond: Callable[..., Response], name: str
) -> None:
    asked = ASKED[name]
    response = respond(client, instructions="You write Python.", input="A function that adds numbers.", **asked)
    values = {key: asked[key] for key in ("temperature", "top_p") if key in asked} | asked.get("extra_body", {})
    messages: Any = [
        {"role": "system", "content": "You write Python."},
        {"role": "user", "content": "A function that adds numbers."},
    ]
    (output,) = offline.chat(messages, SamplingParams(**values, max_tokens=40))
    assert response.output_text == output.outputs[0].text
    assert response.usage is not None
    assert response.usage.input_tokens == len(output.prompt_token_ids)
    assert response.usage.output_tokens == len(output.outputs[0].token_ids)
    cut = output.outputs[0].finish_reason == "length"
    assert response.status == ("incomplete" if cut else "completed")


def test_parsed_answers(client: openai.OpenAI) -> None:
    response = client.responses.parse(
        model=MODEL, input="A point.", text_format=Point, temperature=1, max_output_tokens=400,
        extra_body={"frequency_penalty": 2, "seed": 3},
    )  # fmt: skip
    assert isinstance(response.output_parsed, Point)


@WAYS
@pytest.mark.parametrize("kept", [True, False])
def test_three_turns_with_a_tool(client: openai.OpenAI, respond: Callable[..., Response], kept: bool) -> None:
    """An agent's loop: each turn calls the function until the last, which must answer in words."""
    items: list[Any] = [{"role": "user", "content": "How is the weather in Rome?"}]
    news: list[Any] = list(items)
    previous: Any = openai.omit
    asked: dict[str, Any] = {"tools": [WEATHER], "temperature": 0, "max_output_tokens": 60}
    asked["extra_body"] = {"frequency_penalty": 1}
    counts = []
    for choice in (NAMED, "required", "none"):
        if kept:
            response = respond(client, input=news, previous_response_id=previous, tool_choice=choice, **asked)
        else:
            response = respond(client, input=items, store=False, tool_choice=choice, **asked)
        assert response.usage is not None
        counts.append(response.usage.input_tokens)
        previous, news = response.id, []
        for item in response.output:
            items.append(item.model_dump(exclude_none=True))
            if item.type == "function_call":
                assert json.loads(item.arguments)["city"] in ("Paris", "Rome")
                news.append({"type": "function_call_output", "call_id": item.call_id, "output": '{"sky": "clear"}'})
        items += news
        assert bool(news) is (choice != "none")
    assert counts[0] < counts[1]  # the last turn is not told of the function
    assert response.output[0].type == "message"


def test_keys_have_their_own_responses(keyed: Served) -> None:
    def client(key: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=keyed.url + "/v1", api_key=key, max_retries=0, timeout=60)

    with client("alice-secret-key") as alice, client("bob-secret-key") as bob:
        made = alice.responses.create(model=MODEL, input="x", max_output_tokens=4)
        assert alice.responses.retrieve(made.id) == made
        with pytest.raises(openai.NotFoundError):
            bob.responses.retrieve(made.id)
        with pytest.raises(openai.NotFoundError):
            bob.responses.create(model=MODEL, input="x", previous_response_id=made.id)
        alice.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            alice.responses.retrieve(made.id)


@pytest.mark.parametrize("tool", ["web_search", "file_search", "computer_use_preview", "code_interpreter"])
def test_tools_of_a_server_are_left_out_by_name(client: openai.OpenAI, tool: str) -> None:
    made = client.responses.create(model=MODEL, input="x", max_output_tokens=2, tools=[{"type": tool}])  # type: ignore[list-item,misc]
    assert made.model_extra is not None
    assert made.model_extra["warnings"] == [f"tools that this server does not run were left out: {tool!r}"]
    with pytest.raises(openai.BadRequestError, match=tool) as refused:
        client.responses.create(model=MODEL, input="x", tools=[{"type": tool}], tool_choice={"type": tool})  # type: ignore[list-item,misc]
    assert refused.value.param == "tool_choice"
