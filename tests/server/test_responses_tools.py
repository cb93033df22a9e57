"""Tools and items of Codex and of OpenAI's own in `/v1/responses`: functions, text, or left out; never refused."""

import json
import time
from itertools import pairwise
from typing import Any, get_args, get_type_hints

import pytest
from openai.types.responses import ResponseCustomToolCallItem, ResponseFunctionToolCall, ToolParam
from openai.types.responses.response_input_item_param import ResponseInputItemParam

from parlay.server.errors import ApiError
from parlay.server.openai.custom_tools import as_function, input_of
from parlay.server.openai.fields import ChatFields
from parlay.server.openai.responses_input import messages_of
from parlay.server.openai.responses_stream import ResponseOutput
from parlay.server.openai.responses_tools import choice_of, function_name, functions_of
from parlay.server.openai.tool_formats import FORMATS
from parlay.server.openai.tool_readers import FreeReader
from parlay.server.openai.tools import read_tools

FUNCTION = {"type": "function", "name": "shell", "parameters": {"type": "object"}, "strict": False}
LARK = 'start: "*** Begin Patch" /.+/'
PATCH = {
    "type": "custom", "name": "apply_patch", "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": LARK},
}  # fmt: skip
SPACE = {"type": "namespace", "name": "mcp__docs__", "description": "d", "tools": [FUNCTION, PATCH]}
HOSTED = ["web_search", "image_generation", "tool_search", "local_shell", "file_search", "code_interpreter", "mcp",
    "computer_use_preview", "shell", "apply_patch", "programmatic_tool_calling"]  # fmt: skip


def names(tools: list[dict[str, Any]]) -> list[str]:
    return [tool[tool["type"]]["name"] for tool in tools]


def test_tools_of_codex() -> None:
    made = functions_of([FUNCTION, {"type": "web_search", "external_web_access": False}, PATCH, SPACE])
    assert names(made.tools) == ["shell", "apply_patch", "mcp__docs__shell", "mcp__docs__apply_patch"]
    assert list(made.left_out) == ["web_search"]
    assert made.warnings == ("tools that this server does not run were left out: 'web_search'",)
    patch = as_function(made.tools[1])["function"]
    assert patch["description"].startswith("Edits files.")
    assert LARK in patch["description"]
    assert patch["parameters"]["properties"] == {"input": {"type": "string"}}
    assert (made.origins["mcp__docs__shell"].name, made.origins["mcp__docs__shell"].namespace) == (
        "shell",
        "mcp__docs__",
    )


@pytest.mark.parametrize("kind", HOSTED)
def test_tools_that_run_elsewhere_are_left_out(kind: str) -> None:
    made = functions_of([{"type": kind}, FUNCTION])
    assert (names(made.tools), list(made.left_out)) == (["shell"], [kind])


def test_every_type_of_tool_of_openais_client() -> None:
    """A new one is left out with a warning, or a function."""
    kinds = [get_args(get_type_hints(one)["type"])[0] for one in get_args(ToolParam)]
    assert len(kinds) > 10
    for kind in kinds:
        kind = get_args(kind)[0] if get_args(kind) else kind
        made = functions_of([{"type": kind, "name": "n", "tools": []}])
        assert made.tools or list(made.left_out) == [kind] or kind == "namespace"


def test_names_in_namespaces() -> None:
    assert function_name("read", "crm") == "crm__read"
    assert function_name("read", "mcp__a.b__") == "mcp__a_b__read"
    long = [function_name("f" * 40 + end, "n" * 40) for end in "ab"]
    assert len(set(long)) == 2
    assert max(map(len, long)) <= 64


def test_choices() -> None:
    assert choice_of({"type": "custom", "name": "apply_patch"}) == {
        "type": "custom",
        "custom": {"name": "apply_patch"},
    }
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "shell"}]}
    assert choice_of(allowed) == {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "shell"}}]},
    }
    # As in OpenAI's guide to function calling, where hosted tools stand beside functions.
    hosted = [{"type": "mcp", "server_label": "deepwiki"}, {"type": "image_generation"}, {"type": "web_search"}]
    assert choice_of({**allowed, "tools": [*allowed["tools"], *hosted]}) == choice_of(allowed)
    assert choice_of({**allowed, "tools": hosted}) == "none"
    with pytest.raises(ApiError, match="this server runs none of the tools in allowed_tools"):
        choice_of({**allowed, "mode": "required", "tools": hosted})


# A screenshot, an image, and what the code interpreter drew, as OpenAI's types have them.
@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"type": "image_generation_call", "id": "i", "status": "completed", "result": "iVBO", "size": "x"}, "size"),
        ({"type": "computer_call_output", "call_id": "c", "output":
            {"type": "computer_screenshot", "image_url": "data:image/png;base64,iVBO"}}, "screenshot left out"),
        ({"type": "code_interpreter_call", "id": "c", "code": "plot()", "container_id": "k", "status": "completed",
            "outputs": [{"type": "image", "url": "data:image/png;base64,iVBO"}]}, "plot()"),
        ({"type": "mcp_call", "name": "shot", "output": "text", "arguments": "{}"}, '"text"'),
    ],
)  # fmt: skip
def test_images_are_no_text(item: dict[str, Any], said: str) -> None:
    (message,) = messages_of([item])
    assert said in message["content"]
    assert "iVBO" not in message["content"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input": "a\\n\\"b\\""}', 'a\n"b"'),
        ('{"input": "a\nb"}', "a\nb"),
        ('{"input": "cut o', "cut o"),
        ('{"input": "cut \\u00e', "cut "),
        ("*** Begin Patch", "*** Begin Patch"),
        ('{"other": 1}', '{"other": 1}'),
        ('{"input": "half \\ud83d"}', "half \N{REPLACEMENT CHARACTER}"),
        ("[" * 100_000, "[" * 100_000),
        ("", ""),
    ],
)
def test_the_input_of_a_custom_tool(arguments: str, text: str) -> None:
    assert input_of(arguments) == text


@pytest.mark.parametrize("step", [3, 1000])
def test_calls_come_back_in_the_form_of_their_tools(step: int) -> None:
    made = functions_of([FUNCTION, PATCH, SPACE])
    output, events = ResponseOutput(made.origins), []
    arguments = json.dumps({"input": "*** Begin Patch\n+é"})
    reader = FreeReader(read_tools(ChatFields(tools=made.tools)), FORMATS["hermes"])
    answer = "".join(
        f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'
        for name in ("apply_patch", "mcp__docs__shell", "mcp__docs__apply_patch")
    )
    for i in range(0, len(answer), step):
        for piece in reader.feed(answer[i : i + step], i + step >= len(answer)):
            assert isinstance(piece, dict)
            events += output.call(piece)
    events += output.end()
    patch, shell, inner = output.items
    assert ResponseCustomToolCallItem.model_validate(patch).input == "*** Begin Patch\n+é"
    assert (patch["type"], patch["name"], patch["call_id"]) == ("custom_tool_call", "apply_patch", patch["call_id"])
    call = ResponseFunctionToolCall.model_validate(shell)
    assert (call.type, call.name, call.namespace, call.arguments) == (
        "function_call",
        "shell",
        "mcp__docs__",
        arguments,
    )
    assert (inner["type"], inner["namespace"]) == ("custom_tool_call", "mcp__docs__")
    deltas = [e["delta"] for e in events if e["type"] == "response.custom_tool_call_input.delta"]
    assert deltas == ["*** Begin Patch\n+é"] * 2
    done = [e for e in events if e["type"] == "response.custom_tool_call_input.done"]
    assert [e["input"] for e in done] == deltas
    # What the client sends back is what the model wrote.
    sent = messages_of(output.items)[0]["tool_calls"]
    assert [call["function"]["name"] for call in sent] == [
        "apply_patch",
        "mcp__docs__shell",
        "mcp__docs__apply_patch",
    ]
    assert [json.loads(call["function"]["arguments"]) for call in sent] == [json.loads(arguments)] * 3


def test_a_stored_output_is_told_again() -> None:
    made = functions_of([FUNCTION, PATCH, SPACE])
    output = ResponseOutput(made.origins)
    output.write("thought", "reasoning")
    output.write("text")
    output.call({"id": "a", "function": {"name": "mcp__docs__shell", "arguments": "{}"}})
    output.call({"id": "b", "custom": {"name": "apply_patch", "input": "x"}})
    output.end("incomplete")
    again = ResponseOutput()
    events = [event for item in output.items for event in again.replay(item)]
    assert again.items == output.items
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == output.items
    assert [event["delta"] for event in events if "delta" in event] == ["thought", "text", "{}", "x"]


USER = {"role": "user", "content": "x"}
# As Codex keeps them, from its own sources' tests, and as OpenAI's client describes them.
HISTORY: list[tuple[dict[str, Any], str]] = [
    ({"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "seattle"}}, "seattle"),
    ({"type": "local_shell_call", "id": "l", "call_id": "c", "action": {"type": "exec", "command": ["ls"]}}, "ls"),
    ({"type": "shell_call", "call_id": "c", "action": {"commands": ["pwd"]}}, "pwd"),
    ({"type": "apply_patch_call", "call_id": "c", "operation": {"type": "delete_file", "path": "a.py"}}, "a.py"),
    ({"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {"query": "mail"}}, "mail"),
    ({"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "*** Begin"}, "*** Begin"),
    (
        {"type": "mcp_call", "id": "m", "name": "look", "server_label": "s", "arguments": "{}", "output": "found"},
        "found",
    ),
    ({"type": "code_interpreter_call", "id": "i", "code": "1 + 1", "container_id": "x"}, "1 + 1"),
    ({"type": "function_call_output", "call_id": "gone", "output": "late"}, "late"),
    ({"type": "custom_tool_call_output", "call_id": "gone", "output": [{"type": "input_text", "text": "t"}]}, "t"),
    ({"type": "local_shell_call_output", "id": "gone", "output": "listing"}, "listing"),
    ({"type": "shell_call_output", "call_id": "gone", "output": [{"stdout": "out"}]}, "out"),
    ({"type": "compaction", "encrypted_content": "abc"}, "left out"),
    ({"type": "compaction_summary", "encrypted_content": "abc"}, "left out"),
    ({"type": "image_generation_call", "id": "i", "status": "completed", "revised_prompt": "a cat"}, "a cat"),
    ({"type": "something_new", "text": "hello"}, "hello"),
]


@pytest.mark.parametrize(("item", "text"), HISTORY, ids=lambda one: one["type"] if isinstance(one, dict) else "")
def test_histories_of_elsewhere(item: dict[str, Any], text: str) -> None:
    messages = messages_of([USER, item, USER])
    assert text in json.dumps(messages)
    assert messages[0]["content"].startswith("x")
    assert messages[-1]["content"].endswith("x")
    roles = [message["role"] for message in messages]
    assert all(one != other for one, other in pairwise(roles))  # as many templates demand
    assert all(json.loads(c["function"]["arguments"]) for m in messages for c in m.get("tool_calls", ()) if c["id"])
    answered = {call["id"] for message in messages for call in message.get("tool_calls", ())}
    assert all(message["tool_call_id"] in answered for message in messages if message["role"] == "tool")


def test_text_in_place_of_an_item_is_part_of_the_message_beside_it() -> None:
    search = {"type": "web_search_call", "action": {"query": "q"}}
    assistant = {"role": "assistant", "content": "found"}
    (user, answer) = messages_of([USER, search, search, assistant])
    assert user == USER
    assert answer["content"].count("[web_search_call]") == 2
    assert answer["content"].endswith("\n\nfound")
    assert messages_of([USER, assistant, assistant])[1:] == [assistant, assistant]  # as the client wrote it
    before = messages_of([USER, assistant])
    messages_of([search], before)
    assert before == [USER, assistant]


@pytest.mark.parametrize(
    "item",
    [
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
        {"type": "additional_tools", "role": "developer", "tools": [FUNCTION]},
        {"type": "configuration_update", "reasoning": {"effort": "low"}},
        {"type": "mcp_list_tools", "id": "m", "server_label": "s", "tools": []},
        {"type": "ghost_snapshot", "ghost_commit": {}},
    ],
    ids=lambda item: str(item["type"]),
)
def test_items_that_say_nothing(item: dict[str, Any]) -> None:
    assert messages_of([USER, item]) == [USER]


def test_every_type_of_item_of_openais_client() -> None:
    kinds = set()
    for one in get_args(ResponseInputItemParam):
        hint = get_type_hints(one).get("type")
        kinds |= {
            str(value) for inner in (hint, *get_args(hint)) for value in get_args(inner) if isinstance(value, str)
        }
    assert len(kinds) > 20
    for kind in kinds - {"item_reference", "message", "compaction_trigger"}:
        item = {"type": kind, "call_id": "c", "id": "i", "name": "n", "arguments": "{}", "input": "", "output": "o"}
        assert messages_of([USER, item])[0]["content"].startswith("x")


def test_results_that_are_no_text() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "view_image", "arguments": "{}"}
    image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    for output, expected in (
        ([image], "[input_image left out]"),
        ([{"type": "input_text", "text": "a"}, image], [("a"), ("[input_image left out]")]),
        ({"content": "x", "success": True}, '{"content": "x", "success": true}'),
    ):
        *_, result = messages_of([call, {"type": "function_call_output", "call_id": "c", "output": output}])
        content = result["content"]
        assert (content if isinstance(content, str) else [part["text"] for part in content]) == expected


def test_tools_that_items_add() -> None:
    made = functions_of([FUNCTION], [FUNCTION, PATCH, {"type": "web_search"}])
    assert (names(made.tools), list(made.left_out)) == (["shell", "apply_patch"], ["web_search"])


def test_very_many_items_and_tools() -> None:
    """Their time grows as their number does."""
    began = time.process_time()
    calls = [{"type": "function_call", "call_id": str(i), "name": "f", "arguments": "{}"} for i in range(30_000)]
    results = [{"type": "function_call_output", "call_id": str(i), "output": "x"} for i in range(30_000)]
    assert len(messages_of([*calls, *results])) == 30_001
    assert len(messages_of([{**results[0], "output": "x" * 99}, USER] * 20_000)) == 1
    assert len(functions_of([{"type": f"t{i}"} for i in range(100_000)]).warnings[0]) < 300
    assert time.process_time() - began < 3  # 20 s where each looks through all
