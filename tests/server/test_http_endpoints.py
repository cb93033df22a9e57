"""Every endpoint through OpenAI's own client: answers are the offline engine's."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest
from serving import Live, live_and_guessing

from parlay import LLM, RequestOutput, SamplingParams

PROMPT = "def fibonacci(n):\n    if n < 2:\n        return n\n    return"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/city"}},
            "required": ["city"],
            "additionalProperties": False,
            "$defs": {"city": {"enum": ["Paris", "Rome"]}},
        },
    },
}
MESSAGES = [{"role": "user", "content": "Say something."}]


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with live_and_guessing() as server:
        yield server


@pytest.fixture(scope="module")
def client(live: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=live.url + "/v1", api_key="any", max_retries=0, timeout=20) as made:
        yield made


@pytest.fixture(scope="module")
def offline() -> LLM:
    return LLM("tiny-code", speculative_config=None)


def offline_chat(llm: LLM, params: SamplingParams, messages: Any = MESSAGES) -> RequestOutput:
    (output,) = llm.chat(messages, params)
    return output


def test_models(client: openai.OpenAI, offline: LLM) -> None:
    (model,) = client.models.list().data
    assert model.id == client.models.retrieve("tiny-code").id == "tiny-code"
    assert model.parlay == {  # type: ignore[attr-defined]
        "numerics_id": offline.numerics_id,
        "methods": ["none", "ngram"],
        "max_model_len": offline.engine.max_model_len,
        "prefers_chat": False,  # an embedded model, which completes code
        "sampling": {},
    }


def test_completions_are_the_offline_ones(client: openai.OpenAI, offline: LLM) -> None:
    """n, best_of, penalties, bias and log-probabilities; two prompts, one of them token ids."""
    ids = offline.engine.encode("class Stack:")
    asked = {"n": 2, "max_tokens": 20, "temperature": 0.8, "seed": 5, "logprobs": 3, "presence_penalty": 0.5}
    extra = {"best_of": 3, "top_k": 40, "repetition_penalty": 1.1, "bad_words": ["self"], "return_token_ids": True}
    made = client.completions.create(model="tiny-code", prompt=[PROMPT], **asked, extra_body=extra)  # type: ignore
    other = client.completions.create(model="tiny-code", prompt=[list(ids)], **asked, extra_body=extra)  # type: ignore
    params = SamplingParams(**asked, **{k: v for k, v in extra.items() if k != "return_token_ids"})
    for found, output in zip((made, other), offline.generate([PROMPT, ids], params), strict=True):
        assert len(found.choices) == 2
        for choice, one in zip(found.choices, output.outputs, strict=True):
            assert choice.text == one.text
            assert tuple(choice.token_ids) == one.token_ids  # type: ignore[attr-defined]
            assert choice.finish_reason == one.finish_reason
            logprobs = [table[t].logprob for t, table in zip(one.token_ids, one.logprobs or (), strict=True)]
            assert choice.logprobs is not None
            assert choice.logprobs.token_logprobs == logprobs
        assert found.usage is not None
        assert found.usage.completion_tokens == sum(len(one.token_ids) for one in output.outputs)
        assert found.usage.prompt_tokens == len(output.prompt_token_ids)


def test_streamed_completions_are_the_whole_ones(live: Live, client: openai.OpenAI, offline: LLM) -> None:
    asked: dict[str, Any] = {"prompt": [PROMPT, "x = ["], "n": 2, "max_tokens": 40, "temperature": 0.7, "seed": 1}
    more = {"stop": [":\n", "0, 1"], "logprobs": 1}
    whole = client.completions.create(model="tiny-code", **asked, **more, extra_body={"return_token_ids": True})
    texts = [""] * 4
    tokens: list[list[int]] = [[], [], [], []]
    logprobs: list[list[float]] = [[], [], [], []]
    reasons: list[Any] = [None] * 4
    sources: list[str] = [""] * 4
    events, extra = 0, {"return_sources": True, "return_token_ids": True}
    options: Any = {"include_usage": True}
    for chunk in client.completions.create(
        model="tiny-code", **asked, **more, stream=True, stream_options=options, extra_body=extra
    ):
        events += 1
        for choice in chunk.choices:
            assert reasons[choice.index] is None
            texts[choice.index] += choice.text
            tokens[choice.index] += choice.token_ids  # type: ignore[attr-defined]
            logprobs[choice.index] += choice.logprobs.token_logprobs  # type: ignore[union-attr,arg-type]
            pieces = choice.sources  # type: ignore[attr-defined]
            assert "".join(text for text, _, accepted in pieces if accepted) == choice.text
            assert {who for _, who, _ in pieces} <= {"target", "ngram"}  # the names that Python has
            sources[choice.index] += "".join(who[0] for _, who, _ in pieces)
            reasons[choice.index] = choice.finish_reason
        usage = chunk.usage
    assert texts == [choice.text for choice in whole.choices]
    assert tokens == [choice.token_ids for choice in whole.choices]  # type: ignore[attr-defined]
    assert logprobs == [choice.logprobs.token_logprobs for choice in whole.choices]  # type: ignore[union-attr]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert usage is not None
    assert whole.usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (
        whole.usage.prompt_tokens,
        whole.usage.completion_tokens,
    )
    details = usage.completion_tokens_details
    assert details is not None
    assert details.accepted_prediction_tokens == sum(s.count("n") for s in sources)
    # A step that accepts guesses is one event; the last one has no choices.
    assert 0 < details.accepted_prediction_tokens < usage.completion_tokens
    assert events - 1 <= usage.completion_tokens - details.accepted_prediction_tokens


def test_echo_with_logprobs_scores_a_prompt(client: openai.OpenAI, offline: LLM) -> None:
    """What lm-eval asks for: nothing new, the prompt's log-probabilities."""
    asked: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 0, "echo": True, "logprobs": 1}
    made = client.completions.create(model="tiny-code", **asked)
    (output,) = offline.generate(PROMPT, SamplingParams(max_tokens=1, prompt_logprobs=1))
    (choice,) = made.choices
    assert output.prompt_logprobs is not None
    assert choice.text == PROMPT
    assert choice.finish_reason == "length"
    scores = [t and t[i].logprob for i, t in zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)]
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs == scores
    assert choice.logprobs.top_logprobs is not None
    assert "".join(choice.logprobs.tokens or ()) == PROMPT
    assert made.usage is not None
    assert made.usage.completion_tokens == 0
    streamed = list(client.completions.create(model="tiny-code", **{**asked, "max_tokens": 2}, stream=True))
    assert "".join(c.choices[0].text for c in streamed).startswith(PROMPT)


def test_chat_is_the_offline_one(client: openai.OpenAI, offline: LLM) -> None:
    asked: dict[str, Any] = {"model": "tiny-code", "messages": MESSAGES, "temperature": 0.5, "seed": 3}
    made = client.chat.completions.create(**asked, max_completion_tokens=24, logprobs=True, top_logprobs=2, n=2)
    output = offline_chat(offline, SamplingParams(temperature=0.5, seed=3, max_tokens=24, logprobs=2, n=2))
    for choice, one in zip(made.choices, output.outputs, strict=True):
        assert choice.message.content == one.text
        assert choice.logprobs is not None
        for found, token, table in zip(choice.logprobs.content or (), one.token_ids, one.logprobs or (), strict=True):
            assert (found.token, found.logprob) == (table[token].decoded_token, table[token].logprob)
            assert len(found.top_logprobs) == 2
    text = [""] * 2
    options: Any = {"include_usage": True}
    chunks = list(client.chat.completions.create(**asked, max_tokens=24, n=2, stream=True, stream_options=options))
    for chunk in chunks:
        for delta in chunk.choices:
            text[delta.index] += delta.delta.content or ""
    assert text == [one.text for one in output.outputs]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == sum(len(one.token_ids) for one in output.outputs)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("more", "entries"), [({}, 0), ({"return_token_ids": True}, 1), ({"ignore_eos": True}, 1)])
def test_the_token_that_ends_an_answer_has_an_entry_only_beside_ids(
    client: openai.OpenAI, offline: LLM, stream: bool, more: dict[str, Any], entries: int
) -> None:
    (end,) = offline.engine.codec.tokenizer.encode("<|endoftext|>").ids
    asked: dict[str, Any] = {"model": "tiny-code", "messages": MESSAGES, "temperature": 0, "max_tokens": 1}
    made: Any = client.chat.completions.create(
        **asked, logprobs=True, stream=stream, logit_bias={str(end): 100}, extra_body=more
    )
    choices = [choice for chunk in (made if stream else [made]) for choice in chunk.choices]
    found = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content]
    assert [entry.token for entry in found] == ["<|endoftext|>"] * entries


def test_without_speculation_nothing_changes(client: openai.OpenAI) -> None:
    answers = []
    for speculative in ({"enabled": False}, {"num_speculative_tokens": 2}, {"method": "ngram"}):
        made = client.completions.create(
            model="tiny-code", prompt=PROMPT, max_tokens=60, temperature=0, extra_body={"speculative": speculative}
        )
        answers.append(made.choices[0].text)
        assert made.usage is not None
        assert made.usage.completion_tokens_details is not None
        drafted = made.usage.completion_tokens_details.accepted_prediction_tokens
        assert bool(drafted) is (speculative != {"enabled": False})
    assert len(set(answers)) == 1


def test_response_formats(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    for form in (
        {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}},
        {"type": "json_object"},
        {"type": "text"},
    ):
        made = client.chat.completions.create(
            model="tiny-code", messages=MESSAGES, temperature=0, max_tokens=40, response_format=form,  # type: ignore
            extra_body={"logit_bias": {"95": 0}},
        )  # fmt: skip
        text = made.choices[0].message.content or ""
        if form["type"] == "json_schema":
            assert json.loads(text) in ({"a": 1}, {"a": 2})
        assert (form["type"] != "text") == text.lstrip().startswith("{")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_forced_calls(client: openai.OpenAI, choice: Any, stream: bool) -> None:
    asked: dict[str, Any] = {"model": "tiny-code", "messages": MESSAGES, "temperature": 0, "max_tokens": 60}
    asked |= {"tools": [WEATHER], "tool_choice": choice, "parallel_tool_calls": False}
    if stream:
        name = arguments = ""
        for chunk in client.chat.completions.create(**asked, stream=True):
            (one,) = chunk.choices
            for call in one.delta.tool_calls or ():
                assert call.function is not None
                name += call.function.name or ""
                arguments += call.function.arguments or ""
            reason = one.finish_reason
    else:
        (whole,) = client.chat.completions.create(**asked).choices
        assert whole.message.content is None
        (made,) = whole.message.tool_calls or ()
        name, arguments, reason = made.function.name, made.function.arguments, whole.finish_reason
    assert name == "weather"
    assert json.loads(arguments)["city"] in ("Paris", "Rome")
    assert reason == ("tool_calls" if choice == "required" else "stop")


def test_tokenize_and_back(live: Live, offline: LLM) -> None:
    made = live.post("/tokenize", {"prompt": PROMPT, "return_token_strs": True}).json()
    assert tuple(made["tokens"]) == offline.engine.encode(PROMPT)
    assert "".join(made["token_strs"]) == PROMPT
    assert made["count"] == len(made["tokens"])
    assert live.post("/detokenize", {"tokens": made["tokens"]}).json() == {"prompt": PROMPT}
    chat = live.post("/tokenize", {"messages": MESSAGES}).json()
    assert tuple(chat["tokens"]) == offline_chat(offline, SamplingParams(max_tokens=1)).prompt_token_ids


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"tools": [WEATHER]},
        {"tools": [WEATHER], "tool_choice": "none"},
        {"chat_template_kwargs": {"a": 1}},
        {"messages": [*MESSAGES, {"role": "assistant", "content": "def"}], "continue_final_message": True},
    ],
)
def test_a_chat_is_counted_as_it_is_answered(live: Live, more: dict[str, Any]) -> None:
    """The prompt's ids stand where vLLM's clients read them: beside the choices, streamed in the first chunk."""
    body = {"messages": MESSAGES, "max_tokens": 1, "return_token_ids": True, **more}
    whole = live.post("/v1/chat/completions", body).json()
    first, *rest = live.events("/v1/chat/completions", **body)
    counted = live.post("/tokenize", {name: body[name] for name in body if name != "return_token_ids"}).json()
    assert counted["tokens"] == whole["prompt_token_ids"] == first["prompt_token_ids"]
    assert counted["count"] == whole["usage"]["prompt_tokens"]
    assert not any("prompt_token_ids" in event for event in rest)


@pytest.mark.parametrize("continuous", [False, True])
def test_usage_of_every_chunk_only_where_asked_for(client: openai.OpenAI, continuous: bool) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": continuous, "include_obfuscation": False}
    asked: Any = {"prompt": [PROMPT, "x"], "max_tokens": 9, "temperature": 0, "stream": True}
    more = {"ignore_eos": True}
    *chunks, last = client.completions.create(model="tiny-code", **asked, stream_options=options, extra_body=more)
    assert last.usage is not None
    assert last.usage.completion_tokens == 18
    assert [chunk.usage is not None for chunk in chunks] == [continuous] * len(chunks)
    if continuous:
        counts = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage]
        assert counts == sorted(counts)
        assert chunks[-1].usage == last.usage


def test_nginx_passes_events_on_at_once(live: Live) -> None:
    answer = live.post("/v1/completions", {"prompt": "x", "max_tokens": 1, "stream": True})
    assert (answer.headers["X-Accel-Buffering"], answer.headers["Cache-Control"]) == ("no", "no-cache")


def test_probes_and_version(live: Live, offline: LLM) -> None:
    assert live.http.get("/health").status_code == live.http.get("/ready").status_code == 200
    head, whole = live.http.head("/version"), live.http.get("/version")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(whole.content))
    assert live.http.head("/v1/completions").status_code == 405
    assert live.http.get("/version").json()["numerics_id"] == offline.numerics_id
    answer = live.http.get("/version", headers={"X-Request-Id": "mine-1"})
    assert answer.headers["X-Request-Id"] == "mine-1"
    assert live.http.get("/version", headers={"X-Request-Id": "bad id"}).headers["X-Request-Id"] != "bad id"


def test_the_document_names_every_field(live: Live) -> None:
    made = live.http.get("/openapi.json").json()
    body = made["components"]["schemas"]["CompletionFields"]
    names = {f for f in SamplingParams.__dataclass_fields__ if f != "logits_processors"}
    assert names | {"prompt", "echo", "return_sources"} <= set(body["properties"])
    assert all(value["description"] for value in body["properties"].values())
    assert set(made["paths"]) >= {"/v1/completions", "/v1/chat/completions", "/tokenize", "/v1/models", "/ready"}
    assert not any("422" in op["responses"] for path in made["paths"].values() for op in path.values())


@pytest.mark.parametrize(
    "field",
    [{"guided_regex": ""}, {"guided_choice": []}, {"speculative": {"enabled": None}}, {"structured_outputs": None}],
    ids=str,
)
def test_what_counts_as_left_out_is_in_the_document(live: Live, field: dict[str, Any]) -> None:
    body = {"prompt": "x", "max_tokens": 1, **field}
    made = live.http.get("/openapi.json").json()
    jsonschema.validate(body, {"$ref": "#/components/schemas/CompletionFields", "components": made["components"]})
    assert live.http.post("/v1/completions", json=body).status_code == 200


def test_answers_are_as_the_document_says(live: Live) -> None:
    """Bodies that it gives as examples are answered, with what it says; so are paths without a body."""
    made = live.http.get("/openapi.json").json()
    asked, stored = 0, ""
    for path, operations in made["paths"].items():
        for method, operation in operations.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            schema = operation["responses"]["200"]["content"].get("application/json", {}).get("schema")
            for name, example in content.get("examples", {"none": {"value": None}}).items():
                name_of = {"/v1/models/{name}": "tiny-code", "/v1/responses/{name}": stored}.get(path, "")
                answer = live.http.request(method, path.replace("{name}", name_of), json=example["value"])
                assert answer.status_code == 200, answer.text
                if path == "/v1/responses" and name == "whole":
                    stored = answer.json()["id"]
                kind = answer.headers["content-type"].partition(";")[0]
                assert kind in operation["responses"]["200"]["content"]
                assert (kind == "text/event-stream") is (name == "streamed")
                if schema is not None and kind == "application/json":
                    jsonschema.validate(answer.json(), {**schema, "components": made["components"]})
                    asked += 1
    assert asked >= 12
    keys = made["components"].get("securitySchemes")
    assert keys is None  # this server wants none


@pytest.mark.parametrize("more", [{"tools": [WEATHER]}, {"stop": ["from ..."]}])
def test_streamed_chats_have_every_token_id_once(client: openai.OpenAI, more: Any) -> None:
    """Text may be held back, since a call or a stop string may begin with it."""
    asked: dict[str, Any] = {"model": "tiny-code", "messages": MESSAGES, "max_tokens": 12, "temperature": 0, **more}
    asked["extra_body"] = {"return_token_ids": True}
    whole = client.chat.completions.create(**asked).choices[0]
    streamed = [chunk.choices[0] for chunk in client.chat.completions.create(**asked, stream=True)]
    assert [t for choice in streamed for t in choice.token_ids] == whole.token_ids  # type: ignore[attr-defined]
    assert "".join(choice.delta.content or "" for choice in streamed) == whole.message.content


def test_the_form_of_a_completion(live: Live) -> None:
    """As of a chat's answer: what cannot be enforced is a warning, and with `strict` an error."""
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "maxItems": 2}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    body = {"prompt": "x", "max_tokens": 40, "response_format": form}
    answer = live.post("/v1/completions", body)
    assert answer.status_code == 200, answer.text
    assert any("#/uniqueItems is not enforced" in one for one in answer.json()["warnings"])
    assert isinstance(json.loads(answer.json()["choices"][0]["text"]), list)
    form["json_schema"]["strict"] = True  # type: ignore[index]
    for wrong in (form, {"type": "foo"}, {"type": "json_schema"}):
        refusal = live.post("/v1/completions", {**body, "response_format": wrong})
        assert (refusal.status_code, refusal.json()["error"]["param"]) == (400, "response_format")
    for kind in ("text", "json_object"):
        assert live.post("/v1/completions", {**body, "response_format": {"type": kind}}).status_code == 200


def test_a_model_without_a_name(live: Live) -> None:
    assert live.http.get("/v1/models/").status_code == 404
