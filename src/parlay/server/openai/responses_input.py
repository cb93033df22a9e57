"""From the items of a response's input and output to the messages of a conversation.

Items of tools that OpenAI's servers run, and those of Codex, stand in histories that began elsewhere: they become
calls and results where they are such, and text otherwise.
"""

import json
from collections.abc import Iterable
from typing import Any

from parlay.errors import shown
from parlay.server.errors import ApiError
from parlay.server.openai.responses_tools import INPUT, function_name

Message = dict[str, Any]

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_TEXTS = {
    "input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal", "summary_text": "text",
    "reasoning_text": "text",
}  # fmt: skip
_MEDIA = ("input_image", "input_file", "input_audio", "computer_screenshot", "image_url")
# Of which nothing is to be read: settings, what is about the server, and tools, which are read elsewhere.
_SILENT = (
    "configuration_update", "compaction_trigger", "additional_tools", "mcp_list_tools",
    "mcp_approval_request", "mcp_approval_response", "ghost_snapshot", "other",
)  # fmt: skip
_COMPACTED = ("compaction", "compaction_summary", "context_compaction")
_GONE = "[Earlier parts of this conversation were left out here.]"
# What a call of another kind has as arguments, and an output as its text.
_ARGUMENTS = ("arguments", "action", "operation", "code", "queries", "query")
_OUTPUTS = ("output", "result", "results", "tools", "error")
_ABOUT = (
    "type",
    "id",
    "status",
    "call_id",
    "encrypted_content",
    "caller",
    "internal_chat_message_metadata_passthrough",
)


def messages_of(given: str | Iterable[dict[str, Any]], before: Iterable[Message] = ()) -> list[Message]:
    """Return a conversation continued by some items.

    Args:
        given: text of the user's, or items.
        before: the conversation so far.

    Raises:
        ApiError: an item is malformed, or refers to one that is not there.
    """
    messages = [_copied(message) for message in before]
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    called = {call["id"] for message in messages for call in message.get("tool_calls", ())}
    for place, item in enumerate(given):
        _add(messages, called, item, f"input[{place}]")
    return messages


def _copied(message: Message) -> Message:
    return {**message, "tool_calls": list(message["tool_calls"])} if "tool_calls" in message else dict(message)


def _kind(item: dict[str, Any]) -> Any:
    """Return an item's type, which messages and references may leave out."""
    if item.get("type") is not None:
        return item["type"]
    return "item_reference" if item.keys() <= {"id", "type"} else "message"


def _add(messages: list[Message], called: set[str], item: dict[str, Any], where: str) -> None:
    match _kind(item):
        case "message":
            role = _ROLES.get(str(item.get("role")))
            if role is None:
                raise _wrong(where, f"a role is {', '.join(_ROLES)}, not {shown(item.get('role'))}")
            content = _content(item.get("content"), f"{where}.content")
            if role == "assistant" and messages and _only_reasons(messages[-1]):
                messages[-1] = {**messages[-1], "content": content}
            else:
                messages.append({"role": role, "content": content})
        case "function_call":
            _call(messages, called, item, where, _string(item, "name", where), _string(item, "arguments", where))
        case "custom_tool_call":
            arguments = json.dumps({INPUT: _string(item, "input", where)}, ensure_ascii=False)
            _call(messages, called, item, where, _string(item, "name", where), arguments)
        case "function_call_output" | "custom_tool_call_output":
            _output(messages, called, item, _result(item.get("output"), f"{where}.output"))
        case "reasoning":
            _add_reasoning(messages, item)
        case "item_reference":
            raise _wrong(where, "no item of this id is kept; give the item itself, or previous_response_id")
        case kind if kind in _SILENT:
            pass
        case kind if kind in _COMPACTED:
            said = item.get("summary") or item.get("content")
            messages.append({"role": "user", "content": said if isinstance(said, str) else _GONE})
        case str(kind) if kind.endswith("_output"):
            _output(messages, called, item, _first(item, _OUTPUTS))
        case str(kind) if kind.endswith("_call") and isinstance(item.get("call_id"), str):
            name = str(item.get("name") or kind.removesuffix("_call"))
            _call(messages, called, item, where, name, _first(item, _ARGUMENTS))
        case str(kind) if kind:
            said = {key: value for key, value in item.items() if key not in _ABOUT and value is not None}
            messages.append({"role": "assistant", "content": f"[{kind}] {_json(said)}"})
        case kind:
            raise _wrong(where, f"a type is text such as 'message' or 'function_call', not {shown(kind)}")


def _call(
    messages: list[Message], called: set[str], item: dict[str, Any], where: str, name: str, arguments: str
) -> None:
    """Add a call to the message that it is part of in chat completions: an assistant's text and calls are one."""
    namespace = item.get("namespace")
    function = {
        "name": function_name(name, namespace if isinstance(namespace, str) else ""),
        "arguments": arguments,
    }
    made = _string(item, "call_id", where)
    call = {"id": made, "type": "function", "function": function}
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    messages[-1].setdefault("tool_calls", []).append(call)
    called.add(made)


def _output(messages: list[Message], called: set[str], item: dict[str, Any], content: Any) -> None:
    """Add the result of a call; as text where the call is not there any more."""
    name = item.get("call_id", item.get("id"))
    if isinstance(name, str) and name in called:
        messages.append({"role": "tool", "tool_call_id": name, "content": content})
        return
    parts = content if isinstance(content, list) else [{"text": content}]
    text = "\n".join(part["text"] for part in parts)
    of = f" of {item['name']}" if isinstance(item.get("name"), str) else ""
    messages.append({"role": "user", "content": f"[Result of an earlier call{of}]\n{text}"})


def _result(output: Any, where: str) -> str | list[dict[str, Any]]:
    """Return what a call gave, with a word in place of what is no text."""
    if isinstance(output, list):
        kinds = [part.get("type") if isinstance(part, dict) else None for part in output]
        output = [
            {"type": "text", "text": f"[{kind} left out]"} if kind in _MEDIA else part
            for part, kind in zip(output, kinds, strict=True)
        ]
    elif not isinstance(output, str):
        return _json(output)
    return _content(output, where)


def _first(item: dict[str, Any], keys: Iterable[str]) -> str:
    """Return the first part of an item that is there, as text."""
    return next((_json(item[key]) for key in keys if item.get(key) is not None), "{}")


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _add_reasoning(messages: list[Message], item: dict[str, Any]) -> None:
    """Add reasoning to the message that it led to, which follows, or whose calls it stands between.

    It is in the item's content, or else its summary. What is encrypted is of another server.
    """
    parts = [*(item.get("content") or ()), *([] if item.get("content") else item.get("summary") or ())]
    texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    if not texts:
        return
    last = messages[-1] if messages else {}
    if not (_only_reasons(last) or "tool_calls" in last):
        messages.append({"role": "assistant", "content": ""})
    before = messages[-1].get("reasoning_content")
    text = "\n".join([*([before] if before else []), *texts])
    messages[-1] = {**messages[-1], "reasoning_content": text}


def _only_reasons(message: Message) -> bool:
    return "reasoning_content" in message and not message["content"] and "tool_calls" not in message


def _content(content: Any, where: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _wrong(where, f"a content is text or a list of texts, not {type(content).__name__}")
    parts = [_part(part, f"{where}[{place}]") for place, part in enumerate(content)]
    return parts if len(parts) > 1 else "".join(part["text"] for part in parts)


def _part(part: Any, where: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in _MEDIA:
        raise _wrong(where, f"the model reads text only; leave {kind} out")
    text = part.get(_TEXTS[kind]) if isinstance(kind, str) and kind in _TEXTS else None
    if not isinstance(text, str):
        raise _wrong(where, "a part is {'type': 'input_text', 'text': ...}, or output_text of an assistant")
    return {"type": "text", "text": text}


def _string(item: dict[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise _wrong(where, f"a {item['type']} has a text {name!r}, not {type(value).__name__}")
    return value


def _wrong(where: str, message: str) -> ApiError:
    return ApiError(400, f"{where}: {message}", param="input")
