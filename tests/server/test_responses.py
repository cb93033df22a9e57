"""`/v1/responses` through OpenAI's own client: the tokens are those of chat completions."""

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import openai
import pytest
from checkpoints import write_llama
from serving import Live, engine_of, wait_for

from parlay import AsyncLLM
from parlay.server.openai.responses import Scores

# It shows everything that a conversation may have.
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}\n{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or () %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}\n"
    "{% endfor %}assistant:"
)
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: dict[str, Any] = {
    "type": "function", "name": "weather", "description": "Now.", "parameters": PARAMETERS, "strict": True,
}  # fmt: skip
CHAT_TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "Now.", "parameters": PARAMETERS},
}
NAMED = {"type": "function", "name": "weather"}
SAMPLED: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95}
MORE = {"seed": 4, "top_k": 50}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("responses") / "target"
    return write_llama(path, seed=3, max_position_embeddings=2048, template=TEMPLATE)


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[AsyncLLM]:
    with engine_of(model, served_model_name=["small", "alias"], speculative_config={"method": "ngram"}) as made:
        yield made


@pytest.fixture(scope="module")
def live(engine: AsyncLLM) -> Iterator[Live]:
    with Live(engine, log_prompts=True) as server:
        yield server


@pytest.fixture(scope="module")
def client(live: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=live.url + "/v1", api_key="any", max_retries=0, timeout=20) as made:
        yield made


NUMBERS = count()


def named() -> dict[str, str]:
    """Return headers by which a request is found in the log."""
    return {"X-Request-Id": f"test-{next(NUMBERS)}"}


def said(live: Live, headers: dict[str, str]) -> tuple[str, str]:
    """Return the prompt and the answer of a request, as the engine had them."""

    def found() -> list[dict[str, Any]]:
        return [facts for facts in list(live.log) if facts["request_id"] == headers["X-Request-Id"]]

    wait_for(lambda: bool(found()))  # it is logged after its last byte
    (told,) = found()[0]["log"]
    return told["prompt"], told["texts"][0]


def respond(live: Live, headers: Any = None, **body: Any) -> dict[str, Any]:
    made = live.post("/v1/responses", {"max_output_tokens": 12, **SAMPLED, **MORE, **body}, headers=headers)
    assert made.status_code == 200, made.text
    return dict(made.json())


def stream(live: Live, headers: Any = None, **body: Any) -> list[dict[str, Any]]:
    """Return the events of a stream; each line says the event's type before its data."""
    body = {"max_output_tokens": 12, **SAMPLED, **MORE, "stream": True, **body}
    made = live.post("/v1/responses", body, headers=headers)
    assert made.status_code == 200, made.text
    events = []
    for block in made.text.split("\n\n")[:-1]:
        named, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert named == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


CONVERSATIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "instructions": (
        {"instructions": "Be brief.", "input": [{"role": "user", "content": "Hello."}]},
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello."}]},
    ),
    "a call": (
        {"input": "Rome?", "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
        {
            "messages": [{"role": "user", "content": "Rome?"}],
            "tools": [CHAT_TOOL],
            "tool_choice": "required",
            "parallel_tool_calls": False,
        },
    ),
    "a form": (
        {"input": "?", "text": {"format": {"type": "json_schema", "name": "x", "schema": {"enum": [1, 22]}}}},
        {
            "messages": [{"role": "user", "content": "?"}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [1, 22]}}},
        },
    ),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_tokens_are_those_of_chat_completions(live: Live, name: str) -> None:
    asked, chat = CONVERSATIONS[name]
    tokens = 60 if name == "a call" else 12
    one, two, three = named(), named(), named()
    response = respond(live, one, **asked, max_output_tokens=tokens)
    events = stream(live, two, **asked, max_output_tokens=tokens)
    body = {**chat, "max_tokens": tokens, **SAMPLED, **MORE}
    made = live.post("/v1/chat/completions", body, headers=three).json()
    assert said(live, one) == said(live, two) == said(live, three)
    usage, other = response["usage"], made["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (other["prompt_tokens"], other["completion_tokens"])
    message, finish = made["choices"][0]["message"], made["choices"][0]["finish_reason"]
    assert response["status"] == ("incomplete" if finish == "length" else "completed")
    items = response["output"]
    if name == "a call":
        (call,) = message["tool_calls"]
        assert [(i["type"], i["name"], i["arguments"]) for i in items] == [
            ("function_call", "weather", call["function"]["arguments"])
        ]
        assert json.loads(items[0]["arguments"])["city"] in ("Paris", "Rome")
    else:
        assert [(i["type"], i["content"][0]["text"]) for i in items] == [("message", message["content"])]
    assert events[-1]["type"] == f"response.{response['status']}"
    last = events[-1]["response"]
    without_ids = [
        [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in found]
        for found in (items, last["output"])
    ]
    assert without_ids[0] == without_ids[1]
    assert last["usage"]["total_tokens"] == usage["total_tokens"]


def test_the_events_of_a_text(live: Live) -> None:
    events = stream(live, input="Hello.")
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    assert events[0]["response"]["status"] == events[1]["response"]["status"] == "in_progress"
    text = "".join(event["delta"] for event in events[4:-4])
    assert text == events[-4]["text"] == events[-1]["response"]["output"][0]["content"][0]["text"]
    assert len({event["response"]["id"] for event in events if "response" in event}) == 1
    assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.parametrize("streamed", [False, True])
def test_a_conversation_that_is_kept_and_one_that_is_sent(live: Live, client: openai.OpenAI, streamed: bool) -> None:
    """Three turns, a tool among them: by `previous_response_id`, or with all items, the prompts are the same."""
    more: dict[str, Any] = {"model": "small", "max_output_tokens": 60, "tools": [TOOL], **SAMPLED}

    def ask(**body: Any) -> Any:
        body |= {**more, "extra_body": MORE, "extra_headers": named()}
        prompts[body.get("store", True)].append(body["extra_headers"])
        if not streamed:
            return client.responses.create(**body)
        with client.responses.stream(**body) as events:
            *_, last = events
            return last.response  # type: ignore[union-attr]

    items: list[Any] = [{"role": "user", "content": "Rome?"}]
    prompts: list[list[dict[str, str]]] = [[], []]
    kept, sent, previous, choices = None, None, openai.omit, [NAMED, "none", "none"]
    news: list[Any] = list(items)
    for turn, choice in enumerate(choices):
        kept = ask(input=news, previous_response_id=previous, instructions="Call.", tool_choice=choice)
        sent = ask(input=items, instructions="Call.", tool_choice=choice, store=False)
        assert kept.output_text == sent.output_text
        previous = kept.id
        items += [item.model_dump(mode="json", exclude_none=True) for item in sent.output]
        if turn == 0:
            (call,) = sent.output
            news = [{"type": "function_call_output", "call_id": kept.output[0].call_id, "output": "rain"}]
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": "rain"})
        else:
            news = [{"role": "user", "content": "And then?"}]
            items += news
    texts = [[said(live, headers) for headers in each] for each in prompts]
    assert texts[0] == texts[1]
    assert [prompt.count("rain") for prompt, _ in texts[0]] == [0, 1, 1]
    assert all(prompt.count("system: Call.") == 1 for prompt, _ in texts[0])
    assert kept.store
    assert not sent.store


def test_stored_responses_are_found_and_forgotten(live: Live, client: openai.OpenAI) -> None:
    made = client.responses.create(model="small", input="x", max_output_tokens=4, metadata={"a": "b"})
    assert client.responses.retrieve(made.id) == made
    assert made.metadata == {"a": "b"}
    client.responses.delete(made.id)
    unstored = client.responses.create(model="small", input="x", max_output_tokens=4, store=False)
    for name in (made.id, unstored.id, "resp_0"):
        for ask in (client.responses.retrieve, client.responses.delete):
            with pytest.raises(openai.NotFoundError, match="there is no response"):
                ask(name)
        with pytest.raises(openai.NotFoundError, match="there is no response") as unknown:
            client.responses.create(model="small", input="x", previous_response_id=name)
        assert (unknown.value.param, unknown.value.code) == ("previous_response_id", "response_not_found")
    wrong = live.http.put(f"/v1/responses/{made.id}")
    assert (wrong.status_code, wrong.headers["Allow"]) == (405, "DELETE, GET")


def test_responses_are_of_the_key_that_made_them(engine: AsyncLLM) -> None:
    """With one cache for all too; and the store is bounded."""
    keys = {"api_key": ("alice-alice", "bob-bob-bob"), "shared_cache": True, "response_store": 8000}
    with Live(engine, **keys) as server:
        alice, bob = ({"Authorization": f"Bearer {key}"} for key in keys["api_key"])  # type: ignore[attr-defined]
        body = {"input": "x", "max_output_tokens": 2}
        made = server.post("/v1/responses", body, headers=alice).json()
        assert made["store"]
        path = f"/v1/responses/{made['id']}"
        assert server.http.get(path, headers=alice).json() == made
        anothers = server.http.get(path, headers=bob)
        assert anothers.status_code == server.http.delete(path, headers=bob).status_code == 404
        again = {**body, "previous_response_id": made["id"], "store": False}
        assert server.post("/v1/responses", again, headers=bob).status_code == 404
        assert server.post("/v1/responses", again, headers=alice).status_code == 200
        assert server.http.get(path).status_code == 401
        first, *_, last = (server.post("/v1/responses", body, headers=bob).json()["id"] for _ in range(4))
        assert server.post("/v1/responses", again, headers=alice).status_code == 200
        assert server.http.get(f"/v1/responses/{first}", headers=bob).status_code == 404
        assert server.http.get(f"/v1/responses/{last}", headers=bob).status_code == 200
        large = server.post("/v1/responses", {**body, "metadata": {"a": "b" * 9000}}, headers=alice).json()
        assert not large["store"]


def test_refusals_and_names(live: Live) -> None:
    search = {"type": "web_search"}
    refused = live.post("/v1/responses", {"input": "x", "tools": [{"name": "f"}]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools")
    refused = live.post("/v1/responses", {"input": "x", "tools": [search], "tool_choice": search})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tool_choice")
    assert live.post("/v1/responses", {"input": "x", "model": "large"}).status_code == 404
    assert live.post("/v1/responses", {"input": "x", "temperature": -1}).json()["error"]["param"] == "temperature"
    long = live.post("/v1/responses", {"input": "x" * 9000}).json()["error"]
    assert (long["code"], long["param"]) == ("context_length_exceeded", "input")
    chat = {"messages": [{"role": "user", "content": "x" * 9000}]}
    assert live.post("/v1/chat/completions", chat).json()["error"]["param"] == "messages"
    assert live.post("/v1/responses", {"input": "x" * 99_000}).json()["error"]["param"] == "input"
    for body, param in (
        ({"reasoning": {"effort": "enormous"}}, "reasoning"),
        ({"text": {"verbosity": "endless"}}, "text"),
        ({"tools": [{**TOOL, "name": "no name"}]}, "tools"),
    ):
        assert live.post("/v1/responses", {"input": "x", **body}).json()["error"]["param"] == param
    assert respond(live, input="x", model="alias")["model"] == "small"


def test_a_stream_that_fails_says_so(engine: AsyncLLM) -> None:
    """Once events are out there is no status any more; the last event says that the response failed."""
    with Live(engine, request_timeout=0.3) as server:
        body = {"input": "x", "stream": True, "max_output_tokens": 2000, "ignore_eos": True}
        made = server.post("/v1/responses", body)
        assert made.status_code == 200
        last = json.loads(made.text.strip().rpartition("data: ")[2])
        assert last["type"] == "response.failed"
        assert last["response"]["status"] == "failed"
        assert last["response"]["error"]["code"] == "server_error"
        assert "timed out" in last["response"]["error"]["message"]
        gone = server.http.get(f"/v1/responses/{last['response']['id']}")
        assert gone.status_code == 404


PATCH: dict[str, Any] = {"type": "custom", "name": "apply_patch", "description": "Edits."}
SPACE: dict[str, Any] = {"type": "namespace", "name": "crm", "description": "d", "tools": [TOOL]}


def test_tools_of_other_kinds(live: Live, client: openai.OpenAI) -> None:
    """Codex's: a custom tool, a namespace, and one that runs elsewhere; calls have the form of their own tools."""
    tools: Any = [PATCH, SPACE, {"type": "web_search"}]
    more: dict[str, Any] = {"model": "small", "tools": tools, "max_output_tokens": 100, **SAMPLED, "extra_body": MORE}
    one, two = named(), named()
    choice: Any = {"type": "custom", "name": "apply_patch"}
    made = client.responses.create(input="x", tool_choice=choice, **more, extra_headers=one)
    assert made.model_extra is not None
    assert made.model_extra["warnings"] == ["tools that this server does not run were left out: 'web_search'"]
    (call,) = made.output
    assert call.type == "custom_tool_call"
    prompt, answer = said(live, one)
    assert "crm__weather" in prompt
    assert "web_search" not in prompt
    if made.status == "completed":
        assert json.loads(answer) == {"input": call.input}
    choice = {"type": "function", "name": "weather", "namespace": "crm"}
    inner = client.responses.create(input="x", tool_choice=choice, **more)
    (called,) = inner.output
    assert called.type == "function_call"
    assert (called.name, called.namespace) == ("weather", "crm")
    # The client sends both back, one of them by its id, as AI SDK does.
    news: Any = [
        {"role": "user", "content": "x"},
        {"type": "item_reference", "id": call.id},
        {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "patched"},
        called.model_dump(mode="json", exclude_none=True),
        {"type": "function_call_output", "call_id": called.call_id, "output": "rain"},
    ]
    client.responses.create(input=news, tool_choice="none", **more, extra_headers=two)
    prompt, _ = said(live, two)
    assert "tool: patched" in prompt
    assert f"[crm__weather {json.dumps(json.loads(called.arguments))}]" in prompt
    unknown: Any = [{"type": "item_reference", "id": "fc_0"}]
    with pytest.raises(openai.BadRequestError, match="no item with this id is stored"):
        client.responses.create(input=unknown, **more)


def test_a_stored_response_is_streamed_again(client: openai.OpenAI) -> None:
    made = client.responses.create(model="small", input="x", max_output_tokens=4)
    events = list(client.responses.retrieve(made.id, stream=True))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-1] == made.status
    assert events[-1].response == made  # type: ignore[union-attr]
    after = list(client.responses.retrieve(made.id, stream=True, starting_after=3))
    assert [event.sequence_number for event in after] == list(range(4, len(events)))
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id, stream=True)
    made = client.responses.create(model="small", input="x", max_output_tokens=4)
    for wrong in ({"stream": "maybe"}, {"stream": "true", "starting_after": "x"}):
        with pytest.raises(openai.BadRequestError, match=next(reversed(wrong))):
            client.responses.retrieve(made.id, extra_query=wrong)


def test_the_last_configuration_update_counts(live: Live) -> None:
    form = {"type": "json_schema", "name": "x", "strict": True, "schema": {"enum": ["Paris", "Rome"]}}
    items = [
        {"role": "user", "content": "Where?"},
        {"type": "configuration_update", "text": {"format": {"type": "text"}}, "reasoning": {"effort": "low"}},
        {"type": "configuration_update", "text": {"format": form}},
    ]
    made = live.post("/v1/responses", {"input": items, "max_output_tokens": 60}).json()
    assert made["text"]["format"] == form
    assert made["reasoning"]["effort"] == "low"
    assert json.loads(made["output"][-1]["content"][0]["text"]) in ("Paris", "Rome")
    refused = live.post("/v1/responses", {"input": [*items, {"type": "compaction_trigger"}]})
    assert refused.status_code == 400
    assert "ask for a summary" in refused.json()["error"]["message"]


def test_tokens_of_an_input_are_counted(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"input": "Where?", "instructions": "Be brief.", "tools": [TOOL]}
    made = client.responses.create(model="small", max_output_tokens=1, **asked)
    assert made.usage is not None
    assert client.responses.input_tokens.count(**asked).input_tokens == made.usage.input_tokens


@pytest.mark.parametrize("more", [{"top_logprobs": 2}, {"include": ["message.output_text.logprobs"]}])
def test_log_probabilities_are_those_of_chat_completions(client: openai.OpenAI, more: dict[str, Any]) -> None:
    body = {**SAMPLED, **MORE}
    chat = client.chat.completions.create(
        model="small", messages=[{"role": "user", "content": "Where?"}], logprobs=True, max_tokens=20,
        top_logprobs=more.get("top_logprobs", 0), extra_body=body,
    )  # fmt: skip
    scores = chat.choices[0].logprobs
    assert scores is not None
    assert scores.content
    asked: dict[str, Any] = {"model": "small", "input": "Where?", "max_output_tokens": 20, "extra_body": body, **more}
    made = client.responses.create(**asked)
    assert made.top_logprobs == more.get("top_logprobs", 0)
    with client.responses.stream(**asked) as stream:
        events = list(stream)
    assert events[-1].type == "response.incomplete"
    for answer in (made, events[-1].response, client.responses.retrieve(made.id)):
        (item,) = answer.output
        assert item.type == "message"
        (part,) = item.content
        assert part.type == "output_text"
        found = [entry.model_dump() for entry in part.logprobs or ()]
        assert found == [entry.model_dump() for entry in scores.content]
    deltas = [
        entry.token for event in events if event.type == "response.output_text.delta" for entry in event.logprobs
    ]
    assert deltas == [entry.token for entry in scores.content][: len(deltas)]
    assert len(deltas) > 10


def test_log_probabilities_of_text_alone() -> None:
    scores = Scores()
    entries = [
        {"token": token, "bytes": list(token.encode())} for token in ("Hm", ".", "So", " \u00e9", "t", "{", "}")
    ]
    scores.extend(entries[:1], 1)
    scores.extend(entries[1:3], 2)
    assert scores.take("", calls=False) == []  # held back
    scores.extend(entries[3:], 2)
    assert scores.take("So \u00e9t", calls=True) == entries[2:5]
    assert scores.left == []
    scores.extend(entries[2:4], 2)
    assert scores.take("So", calls=False) == entries[2:4]
    assert scores.take("", calls=True) == []
