"""A session as Codex has it: streamed responses, tools of its own kinds, and a history that it keeps itself."""

import json
from typing import Any

import openai
import pytest

pytestmark = pytest.mark.clients
pytest_plugins = ["servers"]

SHELL: dict[str, Any] = {
    "type": "function",
    "name": "shell",
    "description": "Runs a shell command and returns its output.",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {
            "command": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 2},
            "timeout_ms": {"type": "number", "description": "The timeout for the command in milliseconds"},
        },
        "required": ["command"],
        "additionalProperties": False,
    },
}
PATCH: dict[str, Any] = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files. The whole input is the patch.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch" /.+/'},
}
MCP: dict[str, Any] = {
    "type": "namespace",
    "name": "mcp__docs",
    "description": "Tools of a server.",
    "tools": [{"type": "function", "name": "search", "parameters": {"type": "object", "properties": {}}}],
}
OTHERS: list[dict[str, Any]] = [{"type": "web_search"}, {"type": "image_generation"}, {"type": "tool_search"}]


def text(role: str, words: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": words}]}


def respond(client: openai.OpenAI, items: list[dict[str, Any]], **more: Any) -> tuple[list[str], Any]:
    """Return the types of the events, and the last one's response."""
    body: dict[str, Any] = {
        "model": "tiny-code",
        "instructions": "You are a coding agent.",
        "input": items,
        "tools": [SHELL, PATCH, MCP, *OTHERS],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": None,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199b0e6-9a1c-7b3e-8f00-000000000000",
        "text": {"verbosity": "medium"},
        "max_output_tokens": 60,
        "temperature": 0,
        "extra_body": {"client_metadata": {"x-codex-installation-id": "u"}},
        **more,
    }
    events = list(client.responses.create(**body, stream=True))
    assert events[-1].type in ("response.completed", "response.incomplete")
    return [event.type for event in events], events[-1].response


def test_a_session(client: openai.OpenAI) -> None:
    history = [text("developer", "<permissions>Ask before writing.</permissions>"), text("user", "List the files.")]
    types, first = respond(client, history)
    assert types[:2] == ["response.created", "response.in_progress"]
    assert first.output
    history += [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None},
        {"type": "function_call", "call_id": "call_1", "name": "shell", "arguments": '{"command": ["ls"]}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "README.md"},
        {"type": "custom_tool_call", "call_id": "call_2", "name": "apply_patch", "input": "*** Begin Patch"},
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": "done"},
        {
            "type": "local_shell_call",
            "call_id": "call_3",
            "status": "completed",
            "action": {"type": "exec", "command": ["ls"]},
        },
        {"type": "local_shell_call_output", "call_id": "call_3", "output": "README.md"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
        {"type": "compaction", "encrypted_content": "..."},
        {"type": "function_call_output", "call_id": "call_0", "output": "of a call that was compacted away"},
        text("assistant", "There is a README."),
        text("user", "Thanks. Now edit it."),
    ]
    _, second = respond(client, history)
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens


@pytest.mark.parametrize("tools", [[SHELL], [MCP]])
def test_a_call_that_it_makes(client: openai.OpenAI, tools: list[dict[str, Any]]) -> None:
    types, response = respond(
        client, [text("user", "List the files.")], tools=tools, tool_choice="required", max_output_tokens=300
    )
    (call,) = [item for item in response.output if item.type == "function_call"]
    json.loads(call.arguments)
    assert "response.function_call_arguments.done" in types


def test_a_custom_tool_that_it_calls(client: openai.OpenAI) -> None:
    history = [text("user", "Edit it.")]
    _, response = respond(client, history, tools=[PATCH], tool_choice="required", max_output_tokens=300)
    calls = [item for item in response.output if item.type == "custom_tool_call"]
    assert all(isinstance(call.input, str) and call.name == "apply_patch" for call in calls)
    if not calls:  # a random model may write its input to the end of the answer
        assert response.status == "incomplete"
