"""`/v1/messages` through Anthropic's own client: prompts and tokens are those of chat completions."""

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import anthropic
import pytest
from checkpoints import write_llama
from serving import Live, engine_of, wait_for

from parlay import AsyncLLM
from parlay.server.anthropic.blocks import Content
from parlay.server.anthropic.conversation import chat_body, functions_of
from parlay.server.anthropic.fields import MessagesFields
from parlay.server.errors import ApiError
from parlay.server.openai.response_format import needs_compiling

# It shows everything that a conversation may have.
TEMPLATE = (
    "{% if enable_thinking is defined %}thinking {{ enable_thinking }}\n{% endif %}"
    "{% if reasoning_effort %}effort {{ reasoning_effort }}\n{% endif %}"
    "{% if tools %}{{ tools | tojson }}\n{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or () %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: dict[str, Any] = {"name": "weather", "description": "Now.", "input_schema": SCHEMA}
CHAT_TOOL = {"type": "function", "function": {"name": "weather", "description": "Now.", "parameters": SCHEMA}}
ASKED: list[dict[str, Any]] = [{"role": "user", "content": "Rome?"}]
SAMPLED: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95, "seed": 4, "top_k": 50}
USE = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Rome"}}
CALL = {"id": "toolu_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1"}
NUMBERS = count()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AsyncLLM]:
    path = tmp_path_factory.mktemp("messages") / "target"
    model = write_llama(path, seed=3, max_position_embeddings=2048, template=TEMPLATE)
    with engine_of(model, served_model_name="small", speculative_config={"method": "ngram"}) as made:
        yield made


@pytest.fixture(scope="module")
def live(engine: AsyncLLM) -> Iterator[Live]:
    with Live(engine, log_prompts=True) as server:
        yield server


@pytest.fixture(scope="module")
def client(live: Live) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=live.url, api_key="any", max_retries=0, timeout=20) as made:
        yield made


def post(live: Live, path: str = "/v1/messages", **body: Any) -> tuple[dict[str, Any], str, str]:
    """Return an answer, and its prompt and text as the engine had them."""
    name = f"test-{next(NUMBERS)}"
    made = live.post(path, {"max_tokens": 60, **SAMPLED, **body}, headers={"X-Request-Id": name})
    assert made.status_code == 200, made.text

    def found() -> list[dict[str, Any]]:
        return [facts for facts in list(live.log) if facts["request_id"] == name]

    wait_for(lambda: bool(found()))  # it is logged after its last byte
    (told,) = found()[0]["log"]
    return made.json() if not body.get("stream") else {"events": made.text}, told["prompt"], told["texts"][0]


CONVERSATIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a system message": (
        {"system": "Be brief.", "messages": ASKED},
        {"messages": [{"role": "system", "content": "Be brief."}, *ASKED]},
    ),
    "a call": (
        {"messages": ASKED, "tools": [TOOL], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
        {"messages": ASKED, "tools": [CHAT_TOOL], "tool_choice": "required", "parallel_tool_calls": False},
    ),
    "a named call": (
        {"messages": ASKED, "tools": [TOOL], "tool_choice": {"type": "tool", "name": "weather"}},
        {
            "messages": ASKED,
            "tools": [CHAT_TOOL],
            "tool_choice": {"type": "function", "function": {"name": "weather"}},
        },
    ),
    "a form": (
        {"messages": ASKED, "output_config": {"format": {"type": "json_schema", "schema": {"enum": [1, 22]}}}},
        {
            "messages": ASKED,
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [1, 22]}}},
        },
    ),
    "options of the template": (
        {"messages": ASKED, "thinking": {"type": "disabled"}, "output_config": {"effort": "low"}},
        {"messages": ASKED, "chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "low"},
    ),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_tokens_are_those_of_chat_completions(live: Live, name: str) -> None:
    asked, chat = CONVERSATIONS[name]
    made, prompt, text = post(live, **asked)
    streamed, again, same = post(live, **asked, stream=True)
    answer, wanted, words = post(live, "/v1/chat/completions", **chat)
    assert (prompt, text) == (again, same) == (wanted, words)
    message, finish = answer["choices"][0]["message"], answer["choices"][0]["finish_reason"]
    calls = message.get("tool_calls") or []
    assert [block["text"] for block in made["content"] if block["type"] == "text"] == [message["content"]] * bool(
        message["content"]
    )
    inputs = [block["input"] for block in made["content"] if block["type"] == "tool_use"]
    assert inputs == [json.loads(call["function"]["arguments"]) for call in calls]
    reason = "tool_use" if calls else {"stop": "end_turn", "length": "max_tokens"}[finish]
    assert made["stop_reason"] == reason
    usage = made["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == answer["usage"]["prompt_tokens"]
    assert usage["output_tokens"] == answer["usage"]["completion_tokens"]
    assert f'"stop_reason":"{reason}"' in streamed["events"]


@pytest.mark.parametrize("tools", [(), (TOOL,)])
def test_a_stream_adds_up_to_the_message(client: anthropic.Anthropic, tools: tuple[Any, ...]) -> None:
    more: dict[str, Any] = {"tools": tools, "tool_choice": {"type": "any"}} if tools else {}
    asked: dict[str, Any] = {"model": "small", "max_tokens": 60, "messages": ASKED, "extra_body": SAMPLED, **more}
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    types = ["text"] if not tools else ["tool_use"] * len(whole.content)
    assert [block.type for block in final.content] == [block.type for block in whole.content] == types
    without = {"id", "tool_use_id", "parsed_output"}
    assert [block.model_dump(exclude=without) for block in final.content] == [
        block.model_dump(exclude=without) for block in whole.content
    ]
    assert (final.stop_reason, final.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == len(types)


def test_a_stop_sequence_and_the_beginning_of_an_answer(live: Live, client: anthropic.Anthropic) -> None:
    begun = [*ASKED, {"role": "assistant", "content": "In Rome"}]
    made, prompt, _ = post(live, messages=begun, max_tokens=12)
    assert prompt.endswith("assistant: In Rome")
    (text,) = (block["text"] for block in made["content"])
    stop = text[3:5]
    cut = client.messages.create(
        model="small", max_tokens=12, messages=begun, stop_sequences=[stop], extra_body=SAMPLED
    )
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop)
    (block,) = cut.content
    assert block.type == "text"
    assert block.text == text[: text.index(stop)]


def test_tokens_are_counted(client: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {"model": "small", "messages": ASKED, "tools": [TOOL], "system": "Be brief."}
    made = client.messages.create(max_tokens=1, **asked)
    usage = made.usage
    assert client.messages.count_tokens(**asked).input_tokens == usage.input_tokens + (
        usage.cache_read_input_tokens or 0
    )


def body(**asked: Any) -> dict[str, Any]:
    fields = MessagesFields(**asked)
    return chat_body(fields, functions_of(fields.tools))


@pytest.mark.parametrize(
    ("messages", "wanted"),
    [
        ([{"role": "user", "content": [{"type": "text", "text": "a"}]}], [{"role": "user", "content": "a"}]),
        (
            [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
            [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
        ),
        (
            [
                *ASKED,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                        {"type": "redacted_thinking", "data": "y"},
                        {"type": "text", "text": "I look."},
                        USE,
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {**RESULT, "content": [{"type": "text", "text": "Sun."}, {"type": "image", "source": {}}]},
                        {"type": "text", "text": "So?"},
                    ],
                },
            ],
            [
                *ASKED,
                {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "toolu_1", "content": "Sun.\n[image left out]"},
                {"role": "user", "content": "So?"},
            ],
        ),
        (
            [{"role": "user", "content": [{**RESULT, "content": "no net", "is_error": True}, {**RESULT}]}],
            [
                {"role": "tool", "tool_call_id": "toolu_1", "content": "Error: no net"},
                {"role": "tool", "tool_call_id": "toolu_1", "content": ""},
            ],
        ),
        (
            [
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "document",
                            "title": "T",
                            "source": {"type": "text", "media_type": "text/plain", "data": "d"},
                        }
                    ],
                }
            ],
            [{"role": "user", "content": "T\nd"}],
        ),
        (
            [
                {
                    "role": "user",
                    "content": [{"type": "search_result", "title": "T", "content": [{"type": "text", "text": "d"}]}],
                },
                {"role": "assistant", "content": [{"type": "server_tool_use", "id": "s", "name": "web_search"}]},
                {
                    "role": "user",
                    "content": [{"type": "document", "source": {"type": "content", "content": "e"}}],
                },
            ],
            [
                {"role": "user", "content": "T\nd"},
                {"role": "assistant", "content": ""},
                {"role": "user", "content": "e"},
            ],
        ),
        ([{"role": "system", "content": "s"}, *ASKED], [{"role": "system", "content": "s"}, *ASKED]),
        (
            [
                {"role": "user", "content": [{**RESULT, "content": [{"type": "tool_reference", "tool_name": "f"}]}]},
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b"},
                {"role": "assistant", "content": [{"type": "text", "text": "c"}, USE]},
            ],
            [
                {"role": "tool", "tool_call_id": "toolu_1", "content": "f"},
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "bc", "tool_calls": [CALL]},
            ],
        ),
    ],
)
def test_blocks_become_messages(messages: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    assert body(messages=messages)["messages"] == wanted


@pytest.mark.parametrize(
    "system",
    [
        "x-anthropic-billing-header: cc_version=2.1; cch=1a2b3;\nBe brief.",
        [{"type": "text", "text": "x-anthropic-billing-header: cch=1a2b3;"}, {"type": "text", "text": "Be brief."}],
    ],
)
def test_what_differs_in_every_request_is_no_part_of_the_prompt(system: Any) -> None:
    assert body(messages=ASKED, system=system)["messages"][0] == {"role": "system", "content": "Be brief."}


def test_tools_that_are_not_run_here_are_left_out_with_a_warning(live: Live) -> None:
    web = {"type": "web_search_20250305", "name": "web_search"}
    made, prompt, _ = post(live, messages=ASKED, tools=[web], tool_choice={"type": "auto"}, max_tokens=2)
    assert "web_search" not in prompt
    assert "web_search_20250305" in made["warnings"][0]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages is empty"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "a role is user, assistant, system"),
    ({"messages": [{"role": "user", "content": 3}]}, "a content is text or a list of blocks"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "leave image out"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "a text has a text 'text'"),
    ({"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]}, "leave document out"),
    ({"messages": [{"role": "assistant", "content": [RESULT]}]}, "leave tool_result out"),
    ({"messages": [{"role": "user", "content": [{}]}]}, "a block has a type"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_addition"}]}]}, "such blocks are not supported"),
    ({"tools": [CHAT_TOOL]}, "tools[0]: a tool is {'name': ..., 'description': ..., 'input_schema': {...}} here"),
    ({"compaction": {"type": "summarize"}}, "ask for a summary in a message"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "'tool_use_id'"),
    ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "f"}]}]}, "'id'"),
    ({"system": [{"type": "image"}]}, "leave image out"),
    ({"tools": [{"input_schema": {}}]}, "a tool has a name"),
    ({"tools": [{"name": "f", "input_schema": []}]}, "a tool has a name and an input_schema"),
    ({"tools": [{"name": "f" * 129, "input_schema": {}}]}, "a function's name is up to 128 letters"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool with its name"),
    ({"messages": [*ASKED, {"role": "user", "content": [{"type": "image"}]}]}, "messages[1].content[0]: the model"),
    ({"output_config": {"effort": "ultra"}}, "output_config.effort"),
    ({"stop_sequences": ["a"] * 1000}, "stop_sequences"),
    ({"tools": [TOOL], "tool_choice": {"type": "required"}}, "tool_choice is of type auto, any, none, or tool"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "wether"}}, "did you mean 'weather'?"),
    ({"tool_choice": {"type": "any"}}, "tool_choice needs tools"),
    ({"output_config": {"format": {"type": "text"}}}, "output_config.format is"),
    ({"thinking": {"type": 1}}, "thinking has a type"),
    ({"temperature": -1}, "temperature"),
    ({"max_tokens": -3}, "max_tokens"),
]


@pytest.mark.parametrize(("wrong", "says"), WRONG)
def test_wrong_requests_are_refused_in_one_sentence(client: anthropic.Anthropic, wrong: Any, says: str) -> None:
    with pytest.raises(anthropic.BadRequestError, match=r".") as caught:
        client.post("/v1/messages", body={"max_tokens": 4, "messages": ASKED, **wrong}, cast_to=object)
    error = caught.value.body
    assert isinstance(error, dict)
    assert error["type"] == "error"
    assert error["error"]["type"] == "invalid_request_error"
    assert says in error["error"]["message"]


def test_other_servers_names_of_fields(live: Live) -> None:
    made, _, text = post(live, messages=ASKED, max_completion_tokens=5, max_tokens=None, stop="zq")
    assert made["usage"]["output_tokens"] == 5
    assert made["content"] == [{"type": "text", "text": text}]
    made, _, text = post(live, messages=ASKED, guided_choice=["ab", "cd"])
    assert text in ("ab", "cd")
    for wrong in ({"n": 2}, {"logprobs": 3}, {"guided_regex": "a", "guided_choice": ["a"]}, {"input": "x"}):
        assert live.post("/v1/messages", {"max_tokens": 2, "messages": ASKED, **wrong}).status_code == 400


def test_errors_are_of_the_clients_own_kinds(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="use 'small'"):
        client.messages.create(model="large", max_tokens=4, messages=[{"role": "user", "content": "?"}])
    # Refused by the engine, and before there are tokens.
    for words, says in ((3000, r"\d{4} tokens > 2048 maximum; "), (300_000, "")):
        with pytest.raises(anthropic.BadRequestError, match=f"prompt is too long: {says}"):
            client.messages.create(model="small", max_tokens=4, messages=[{"role": "user", "content": "? " * words}])


def test_its_clients_send_their_key_in_a_header_of_its_own(engine: AsyncLLM) -> None:
    asked: dict[str, Any] = {
        "model": "small",
        "max_tokens": 1,
        "messages": [{"role": "user", "content": "?"}],
    }
    with Live(engine, api_key=("sk-right",)) as server:
        for more in ({"api_key": "sk-right"}, {"auth_token": "sk-right", "api_key": None}):
            with anthropic.Anthropic(base_url=server.url, max_retries=0, **more) as own:  # type: ignore[arg-type]
                assert own.messages.create(**asked).usage.output_tokens == 1
        with (
            anthropic.Anthropic(base_url=server.url, api_key="sk-wrong", max_retries=0) as own,
            pytest.raises(anthropic.AuthenticationError),
        ):
            own.messages.create(**asked)
        proxied = {"Authorization": "Basic cHJveHk=", "X-Api-Key": "sk-right"}  # of a proxy that asks for a password
        assert server.post("/v1/messages", asked, headers=proxied).status_code == 200


def test_thoughts_and_calls_are_blocks_of_their_own() -> None:
    content = Content()
    events = [*content.write("Hm", "thinking"), *content.write(".", "thinking"), *content.write("Yes")]
    events += content.call({"id": "1", "index": 0, "function": {"name": "f", "arguments": '{"a"'}})
    events += content.call({"index": 0, "function": {"arguments": ": 1}"}})
    events += content.call({"id": "2", "index": 1, "function": {"name": "g", "arguments": "[1"}})
    events += content.close()
    assert content.called
    assert content.blocks == [
        {"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "text", "text": "Yes"},
        {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}},
        {"type": "tool_use", "id": "2", "name": "g", "input": {"arguments": "[1"}},
    ]
    sent = [event["delta"]["partial_json"] for event in events if "partial_json" in event.get("delta", {})]
    assert [json.loads(text) for text in sent] == [block["input"] for block in content.blocks[2:]]
    assert [(event["type"].removeprefix("content_block_"), event["index"]) for event in events] == [
        *(("start", 0), ("delta", 0), ("delta", 0), ("delta", 0), ("stop", 0)),
        *(("start", 1), ("delta", 1), ("stop", 1)),
        *(("start", 2), ("delta", 2), ("stop", 2)),
        *(("start", 3), ("delta", 3), ("stop", 3)),
    ]


def test_a_form_is_refused_by_the_name_that_the_client_gave_it() -> None:
    with pytest.raises(ApiError, match=r"output_config\.format"):
        body(messages=ASKED, output_config={"format": {"type": "json_object"}})


def test_a_call_that_a_stop_sequence_cuts_off_is_not_to_be_run(live: Live) -> None:
    asked: dict[str, Any] = {"messages": ASKED, "tools": [TOOL], "tool_choice": {"type": "any"}}
    whole, _, _ = post(live, **asked)
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("tool_use", None)
    for stream in (False, True):
        made, _, _ = post(live, **asked, stop_sequences=["city"], stream=stream)
        ends = '"stop_reason":"stop_sequence","stop_sequence":"city"'
        assert ends in (made["events"] if stream else json.dumps(made, separators=(",", ":")))


def test_a_prompt_may_be_computed_without_an_answer(client: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {
        "model": "small",
        "max_tokens": 0,
        "messages": [{"role": "user", "content": "One? " * 9}],
    }
    with client.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    again = client.messages.create(**asked)
    for made in (streamed, again):
        assert (made.content, made.stop_reason, made.usage.output_tokens) == ([], "max_tokens", 0)
    assert (again.usage.cache_read_input_tokens or 0) > 0


def test_schemas_are_compiled_beside_the_loop() -> None:
    form = {"format": {"type": "json_schema", "schema": {}}}
    assert needs_compiling({"output_config": form})
    assert needs_compiling({"tools": [TOOL], "tool_choice": {"type": "any"}})
    assert not needs_compiling({"tools": [TOOL], "tool_choice": {"type": "auto"}, "output_config": {}})


def test_errors_have_the_types_that_its_clients_know(engine: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its clients try again, and what they do not."""
    with Live(engine, max_body_bytes=200) as server:
        answer = server.post("/v1/messages", {"max_tokens": 2, "messages": [*ASKED] * 99})
        assert (answer.status_code, answer.json()["error"]["type"]) == (413, "request_too_large")
        monkeypatch.setattr(AsyncLLM, "state", "ending")
        answer = server.post("/v1/messages", {"max_tokens": 2, "messages": ASKED})
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "overloaded_error")


def test_a_thread_is_refused_as_its_clients_expect(live: Live) -> None:
    """They send the whole conversation then; its second turn alone would be answered without the first."""
    thread = {"type": "continue", "previous_message_id": "msg_1"}
    asked = {"max_tokens": 2, "messages": ASKED, "thread": thread, "tool_choice": {"type": "any"}}
    answer = live.post("/v1/messages", asked)
    assert answer.status_code == 400
    details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert answer.json()["error"]["details"] == details


def test_fields_of_its_own_that_change_nothing(live: Live) -> None:
    own = {"speed": "fast", "inference_geo": "eu", "cache_control": {"type": "ephemeral"}}
    made, _, _ = post(live, messages=ASKED, max_tokens=2, **own)
    assert len(made["warnings"]) == 2


def test_what_its_clients_read_besides(client: anthropic.Anthropic) -> None:
    answer = client.messages.with_raw_response.create(model="small", max_tokens=1, messages=[*ASKED])  # type: ignore[list-item]
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    model = client.models.retrieve("small")
    assert (model.type, model.display_name, model.created_at.tzinfo is not None) == ("model", "small", True)
