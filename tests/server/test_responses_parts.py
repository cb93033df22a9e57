"""The parts of `/v1/responses` by themselves: items to messages, answers to items and events, and what is kept."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.server.errors import ApiError
from parlay.server.openai.fields import parse
from parlay.server.openai.responses_fields import ResponseFields, chat_fields
from parlay.server.openai.responses_input import messages_of
from parlay.server.openai.responses_store import ResponseStore, StoredResponse
from parlay.server.openai.responses_stream import ResponseOutput
from parlay.server.openai.responses_tools import Functions, functions_of

CALL = {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "f", "arguments": '{"x": 1}', "status": "x"}
OTHER = {**CALL, "call_id": "b", "name": "g"}
CALLED = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
OTHER_CALLED = {"id": "b", "type": "function", "function": {"name": "g", "arguments": '{"x": 1}'}}


def answer(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        ("hello", [{"role": "user", "content": "hello"}]),
        ([{"role": "developer", "content": "be brief"}], [{"role": "system", "content": "be brief"}]),
        (
            [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]}],
            [{"role": "user", "content": "x"}],
        ),
        (
            [{"role": "user", "content": [{"type": "input_text", "text": "x"}, {"type": "input_text", "text": "y"}]}],
            [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]}],
        ),
        ([CALL, OTHER], [{"role": "assistant", "content": "", "tool_calls": [CALLED, OTHER_CALLED]}]),
        ([answer("so"), CALL], [{"role": "assistant", "content": "so", "tool_calls": [CALLED]}]),
        (
            [CALL, {"type": "reasoning", "id": "rs_1", "summary": []}, OTHER],
            [{"role": "assistant", "content": "", "tool_calls": [CALLED, OTHER_CALLED]}],
        ),
        (
            [CALL, {"type": "function_call_output", "call_id": "a", "output": "3"}],
            [
                {"role": "assistant", "content": "", "tool_calls": [CALLED]},
                {"role": "tool", "tool_call_id": "a", "content": "3"},
            ],
        ),
    ],
)
def test_items_as_messages(items: Any, messages: Any) -> None:
    assert messages_of(items) == messages


def reasoning(*texts: str, summary: str | None = None, **more: Any) -> dict[str, Any]:
    said = [] if summary is None else [{"type": "summary_text", "text": summary}]
    content = {"content": [{"type": "reasoning_text", "text": text} for text in texts]} if texts else {}
    return {"type": "reasoning", "id": "rs_1", "summary": said, **content, **more}


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        # gpt-oss and Qwen 3 within a tool loop: what led to a call.
        (
            [reasoning("hm"), CALL],
            [{"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [CALLED]}],
        ),
        (
            [reasoning("hm", "so"), answer("yes")],
            [{"role": "assistant", "content": "yes", "reasoning_content": "hm\nso"}],
        ),
        # OpenAI's own models give a summary, and the rest encrypted.
        (
            [reasoning(summary="in short", encrypted_content="gAAA"), answer("yes"), answer("no")],
            [
                {"role": "assistant", "content": "yes", "reasoning_content": "in short"},
                {"role": "assistant", "content": "no"},
            ],
        ),
        ([reasoning(encrypted_content="gAAA"), answer("yes")], [{"role": "assistant", "content": "yes"}]),
        ([reasoning("hm", summary="in short"), answer("yes")],
         [{"role": "assistant", "content": "yes", "reasoning_content": "hm"}]),
        (
            [reasoning("hm"), answer("so"), CALL, reasoning("and"), OTHER],
            [{"role": "assistant", "content": "so", "reasoning_content": "hm\nand",
              "tool_calls": [CALLED, OTHER_CALLED]}],
        ),
        (
            [answer("yes"), reasoning("hm"), answer("no")],
            [
                {"role": "assistant", "content": "yes"},
                {"role": "assistant", "content": "no", "reasoning_content": "hm"},
            ],
        ),
        # An answer that was cut off while it reasoned.
        (
            [reasoning("hm"), {"role": "user", "content": "go on"}],
            [{"role": "assistant", "content": "", "reasoning_content": "hm"}, {"role": "user", "content": "go on"}],
        ),
        ([reasoning(content=None), answer("yes")], [{"role": "assistant", "content": "yes"}]),
    ],
)  # fmt: skip
def test_reasoning_belongs_to_the_message_behind_it(items: Any, messages: Any) -> None:
    assert messages_of(items) == messages


def test_reasoning_of_an_answer_is_kept_for_the_next() -> None:
    output = ResponseOutput()
    for text, kind in (("hm", "reasoning"), ("yes", "message")):
        output.write(text, kind)
    output.end()
    assert messages_of(output.items) == [{"role": "assistant", "content": "yes", "reasoning_content": "hm"}]


def test_a_conversation_goes_on_without_altering_what_was() -> None:
    before = [{"role": "assistant", "content": "", "tool_calls": [CALLED]}]
    after = messages_of([{"type": "function_call_output", "call_id": "a", "output": "3"}, answer("three")], before)
    assert [message["role"] for message in after] == ["assistant", "tool", "assistant"]
    assert messages_of([OTHER], before)[0]["tool_calls"] == [CALLED, OTHER_CALLED]
    assert before == [{"role": "assistant", "content": "", "tool_calls": [CALLED]}]


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"type": "item_reference", "id": "x"}, "give the item itself"),
        ({"role": "boss", "content": "x"}, "not 'boss'"),
        ({"content": "x"}, "not None"),
        ({"role": "user"}, "not NoneType"),
        ({"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}, "the model reads text only"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "a part is"),
        ({"role": "user", "content": ["x"]}, "a part is"),
        ({**CALL, "arguments": {}}, "a text 'arguments'"),
        ({**CALL, "name": None}, "a text 'name'"),
        ({"type": []}, "not []"),
    ],
    ids=str,
)
def test_items_that_are_refused(item: Any, words: str) -> None:
    with pytest.raises(ApiError) as refused:
        messages_of([{"role": "user", "content": "x"}, item])
    assert refused.value.param == "input"
    assert str(refused.value).startswith("input[1]")
    assert words in str(refused.value)


def asked(**body: Any) -> dict[str, Any]:
    read = parse(ResponseFields, {"input": "x", **body})[0]
    return chat_fields(read, functions_of(read.tools))


def test_fields_as_chat_completions_have_them() -> None:
    tool = {"type": "function", "name": "f", "description": None, "parameters": {"type": "object"}, "strict": True}
    named = {"type": "function", "name": "f"}
    form = {"type": "json_schema", "name": "n", "schema": {"enum": [1]}, "strict": True}
    assert asked() == {"stream": False, "parallel_tool_calls": True}
    assert asked(tool_choice="auto", tools=[]) == asked()  # agents say so without tools too
    found = asked(tools=[tool], tool_choice=named, text={"format": form, "verbosity": "low"}, max_output_tokens=7)
    assert found["tools"] == [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    assert found["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    assert found["response_format"] == {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [1]}}}
    assert found["max_completion_tokens"] == 7
    assert found["verbosity"] == "low"
    assert asked(reasoning={"effort": "low", "summary": "auto"}) == {**asked(), "reasoning_effort": "low"}
    meaningless = {
        "truncation": "disabled", "service_tier": "auto", "user": "u", "include": [], "reasoning": {},
        "prompt_cache_key": "k", "safety_identifier": "s", "background": False, "max_tool_calls": 3,
        "top_logprobs": 0, "metadata": {"a": "b"}, "store": False,
    }  # fmt: skip
    assert asked(**meaningless) == asked()
    assert asked(include=["reasoning.encrypted_content"]) == asked()
    assert asked(disable_additional_properties=False) == {**asked(), "disable_additional_properties": False}


def test_keys_that_nobody_knows() -> None:
    body = {"input": "x", "reasoning": {"effort": "low", "wizardry": 1}, "text": {"x": 1, "y": 2}}
    read, _, warnings = parse(ResponseFields, body)
    assert chat_fields(read, Functions()) == asked(reasoning={"effort": "low"})
    assert warnings == (
        "unknown keys of reasoning were ignored: 'wizardry'",
        "unknown keys of text were ignored: 'x', 'y'",
    )
    for field in ("reasoning", "text"):
        with pytest.raises(ApiError, match=f"unknown key .* in {field}") as refused:
            parse(ResponseFields, {"input": "x", field: body[field]}, strict=True)
        assert refused.value.param == field


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"tools": [{"name": "f"}]}, "tools", "a tool has a type"),
        ({"tools": [{"type": "namespace", "name": "n"}]}, "tools", "a namespace is"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice", "not of type 'web_search'"),
        ({"text": {"format": {"type": "xml"}}}, "text", "'json_object'"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text", "'schema': {...}"),
        ({"text": {"formt": {}}}, "text", "did you mean 'format'"),
        ({"reasoning": {"efort": "low"}}, "reasoning", "did you mean 'effort'"),
        ({"input": []}, "input", "input is empty"),
        ({"input": ""}, "input", "input is empty"),
        ({"input": 3}, "input", "input"),
        ({"max_output_tokens": 0}, "max_output_tokens", "at least 1, not 0"),
        ({"n": 2}, "n", "a response is one answer; leave it at 1"),
        ({"background": True}, "background", "leave background out"),
        ({"truncation": "left"}, "truncation", "'disabled'"),
        ({"top_logprobs": -3}, "top_logprobs", "at least 0"),
        ({"conversation": "c"}, "conversation", "previous_response_id"),
        ({"prompt": {"id": "x"}}, "prompt", "give instructions and input"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options", "stream to true"),
        ({"stream": True, "stream_options": {"include_usag": True}}, "stream_options", "'include_usage'"),
        ({"instruction": "x"}, "instruction", "did you mean 'instructions'"),
    ],
    ids=str,
)
def test_fields_that_are_refused(body: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(ApiError) as refused:
        asked(**body)
    assert (refused.value.status, refused.value.param) == (400, param)
    assert words in str(refused.value)


def replay(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the items that a client puts together from events alone, which must be in order."""
    items: list[dict[str, Any]] = []
    text, open_item = "", None
    for event in events:
        what = event["type"].removeprefix("response.")
        match what:
            case "output_item.added":
                assert open_item is None
                open_item, text = event["item"], ""
                assert event["output_index"] == len(items)
                assert open_item["status"] == "in_progress"
            case "output_item.done":
                assert open_item is not None
                assert event["item"]["id"] == open_item["id"]
                whole = event["item"].get("arguments", event["item"].get("content", [{}])[0].get("text"))
                assert whole == text
                items.append(event["item"])
                open_item = None
            case _:
                assert open_item is not None
                assert (event["item_id"], event["output_index"]) == (open_item["id"], len(items))
                if what.endswith(".delta"):
                    text += event["delta"]
                elif what.endswith("_text.done"):
                    assert event["text"] == text
                elif what == "function_call_arguments.done":
                    assert event["arguments"] == text
                else:
                    assert what in ("content_part.added", "content_part.done")
                    assert event["part"]["text"] == (text if what.endswith("done") else "")
    assert open_item is None
    return items


PIECES = st.one_of(
    st.tuples(st.just("text"), st.text(max_size=3)),
    st.tuples(st.just("reasoning"), st.text(max_size=3)),
    st.tuples(st.just("call"), st.text(max_size=3)),
    st.tuples(st.just("more"), st.text(max_size=3)),
)


@given(st.lists(PIECES, max_size=12), st.sampled_from(["completed", "incomplete"]))
def test_events_tell_of_the_items(pieces: list[tuple[str, str]], status: str) -> None:
    """Whatever comes in which order: a client that reads events has what the last event says."""
    output, events, kind = ResponseOutput(), [], ""
    expected: list[tuple[str, str]] = []
    for what, text in pieces:
        if what == "more":
            if kind != "function_call":
                continue
            events += output.call({"index": 0, "function": {"arguments": text}})
            expected[-1] = (kind, expected[-1][1] + text)
        elif what == "call":
            kind = "function_call"
            events += output.call({"index": 0, "id": "call_1", "function": {"name": "f", "arguments": text}})
            expected.append((kind, text))
        elif text:
            new = {"text": "message", "reasoning": "reasoning"}[what]
            events += output.write(text, new)
            if new == kind:
                expected[-1] = (kind, expected[-1][1] + text)
            else:
                kind = new
                expected.append((kind, text))
    events += output.end(status)
    items = replay(events)
    assert items == output.items
    found = [
        (item["type"], item["arguments"] if "arguments" in item else item["content"][0]["text"]) for item in items
    ]
    assert found == (expected or [("message", "")])
    assert [item["status"] for item in items] == ["completed"] * (len(items) - 1) + [status]


def test_the_store_is_bounded_and_everybodys_own() -> None:
    one = StoredResponse("alice", b"x" * 1000, b"[]")
    store = ResponseStore(3 * one.size)
    assert all(store.put(f"r{i}", one) for i in range(5))
    assert store.size == 3 * one.size
    for name in ("r0", "r1", "other"):
        with pytest.raises(ApiError, match="there is no response") as unknown:
            store.get(name, "alice")
        assert (unknown.value.status, unknown.value.code) == (404, "response_not_found")
    with pytest.raises(ApiError) as anothers:
        store.get("r4", "bob")
    assert str(anothers.value) == str(unknown.value).replace("'other'", "'r4'")  # it does not say that there is one
    with pytest.raises(ApiError):
        store.delete("r4", "bob")
    store.delete("r4", "alice")
    assert store.size == 2 * one.size
    with pytest.raises(ApiError):
        store.get("r4", "alice")
    assert not store.put("large", StoredResponse("alice", b"x" * 8000, b"[]"))
    assert store.get("r3", "alice").messages() == []
    assert not ResponseStore(0).put("r", one)


def test_nobody_pushes_out_what_belongs_to_others_who_have_less() -> None:
    def kept(owner: str) -> list[int]:
        found = []
        for i in range(12):
            with suppress(ApiError):
                store.get(f"{owner}{i}", owner)
                found.append(i)
        return found

    one = StoredResponse("alice", b"x" * 1000, b"[]")
    store = ResponseStore(4 * one.size)
    assert store.put("alice0", one)
    assert all(store.put(f"bob{i}", replace(one, owner="bob")) for i in range(12))
    assert (kept("alice"), kept("bob"), store.size) == ([0], [9, 10, 11], 4 * one.size)
    assert all(store.put(f"alice{i}", one) for i in range(1, 4))
    assert (kept("alice"), kept("bob")) == ([2, 3], [10, 11])
    assert store.put("carol0", replace(one, owner="carol"))
    assert sorted(len(kept(owner)) for owner in ("alice", "bob", "carol")) == [1, 1, 2]
    assert not store.put("carol1", replace(one, owner="carol", body=b"x" * (3 * one.size)))
    assert store.size <= 4 * one.size
    for owner in ("alice", "bob", "carol"):
        for i in kept(owner):
            store.delete(f"{owner}{i}", owner)
    assert store.size == 0
