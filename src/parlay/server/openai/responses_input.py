"""From the items of a response's input and output to the messages of a conversation.

Items of tools that OpenAI's servers run, and those of Codex, stand in histories that began elsewhere: they become
calls and results where they are such, and text otherwise.
"""

import json
from collections.abc import Iterable
from typing import Any

from parlay.errors import shown
from parlay.server.errors import ApiError
from parlay.server.openai.custom_tools import INPUT
from parlay.server.openai.responses_tools import function_name

Message = dict[str, Any]

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_TEXTS = {
    "input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal", "summary_text": "text",
    "reasoning_text": "text",
}  # fmt: skip
_MEDIA = ("input_image", "input_file", "input_audio", "computer_screenshot", "image_url")
_DRAWN = "image_generation_call"  # whose result is an image in base64
# Of which nothing is to be read: settings, what is about the server, and tools, which are read elsewhere.
_SILENT = (
    "configuration_update", "additional_tools", "mcp_list_tools", "mcp_approval_request",
    "mcp_approval_response", "ghost_snapshot", "other",
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
    made = _MessageBuilder([_copied(message) for message in before])
    if isinstance(given, str):
        return [*made.messages, {"role": "user", "content": given}]
    for place, item in enumerate(given):
        _add(made, item, f"input[{place}]")
    made.close()
    return made.messages


def _copied(message: Message) -> Message:
    return {**message, "tool_calls": list(message["tool_calls"])} if "tool_calls" in message else dict(message)


class _MessageBuilder:
    """Messages that grow by items.

    Attributes:
        messages: the messages so far.
    """

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages
        self._called = {call["id"] for message in messages for call in message.get("tool_calls", ())}
        self._open: Message | None = None  # the last message, if it stands for items that are no messages
        self._parts: list[str] = []  # its text
        self._described = False  # whether the last item was such a one

    def add(self, role: str, content: str | list[dict[str, Any]]) -> None:
        """Add a message; to one that stands for another item, since many templates want roles to alternate."""
        if self._described and self._open is not None and self._open["role"] == role and isinstance(content, str):
            self._parts.append(content)
            self._described = False
        else:
            self.close()
            if role == "assistant" and self._only_reasons:
                self.messages[-1]["content"] = content
            else:
                self.messages.append({"role": role, "content": content})

    def reason(self, item: dict[str, Any]) -> None:
        """Add reasoning to the message that it led to, which follows, or whose calls it stands between.

        It is in the item's content, or else its summary. What is encrypted is of another server.
        """
        parts = item.get("content") or item.get("summary")
        parts = parts if isinstance(parts, list) else ()
        texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
        if not texts:
            return
        self.close()
        if not self._only_reasons and "tool_calls" not in (self.messages[-1] if self.messages else {}):
            self.messages.append({"role": "assistant", "content": ""})
        before = self.messages[-1].get("reasoning_content")
        self.messages[-1]["reasoning_content"] = "\n".join([*([before] if before else []), *texts])

    @property
    def _only_reasons(self) -> bool:
        """Whether the last message is reasoning alone so far."""
        last = self.messages[-1] if self.messages else {}
        return "reasoning_content" in last and not last["content"] and "tool_calls" not in last

    def describe(self, role: str, text: str) -> None:
        """Add text in place of an item that is no message."""
        last = self.messages[-1] if self.messages else {}
        if self._open is None or last is not self._open or last["role"] != role:
            self.close()
            joins = last.get("role") == role and isinstance(last["content"], str) and not last.get("tool_calls")
            if not joins:
                last = {"role": role, "content": ""}
                self.messages.append(last)
            self._open, self._parts = last, [last["content"]]
        self._parts.append(text)
        self._described = True

    def close(self) -> None:
        """Write what stands for other items."""
        if self._open is not None:
            self._open["content"] = "\n\n".join(filter(None, self._parts))
        self._open, self._described = None, False

    def call(self, call: str, name: str, namespace: Any, arguments: str) -> None:
        """Add a call to the message that it is part of in chat completions: an assistant's text and calls are one."""
        function = {
            "name": function_name(name, namespace if isinstance(namespace, str) else ""),
            "arguments": arguments,
        }
        self.close()
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": ""})
        made = {"id": call, "type": "function", "function": function}
        self.messages[-1].setdefault("tool_calls", []).append(made)
        self._called.add(call)

    def result(self, call: Any, name: Any, content: str | list[dict[str, Any]]) -> None:
        """Add what a call gave; as text where the call is not there any more."""
        if isinstance(call, str) and call in self._called:
            self.close()
            self.messages.append({"role": "tool", "tool_call_id": call, "content": content})
            return
        text = content if isinstance(content, str) else "\n".join(part["text"] for part in content)
        of = f" of {name}" if isinstance(name, str) else ""
        self.describe("user", f"[Result of an earlier call{of}]\n{text}")


def _kind(item: dict[str, Any]) -> Any:
    """Return an item's type, which messages and references may leave out."""
    if item.get("type") is not None:
        return item["type"]
    return "item_reference" if item.keys() <= {"id", "type"} else "message"


def _add(made: _MessageBuilder, item: dict[str, Any], where: str) -> None:
    space, called = item.get("namespace"), item.get("call_id", item.get("id"))
    match _kind(item):
        case "message":
            role = _ROLES.get(str(item.get("role")))
            if role is None:
                raise _wrong(where, f"a role is {', '.join(_ROLES)}, not {shown(item.get('role'))}")
            made.add(role, _content(item.get("content"), f"{where}.content"))
        case "function_call":
            name, arguments = _string(item, "name", where), _string(item, "arguments", where)
            made.call(_string(item, "call_id", where), name, space, arguments)
        case "custom_tool_call":
            arguments = json.dumps({INPUT: _string(item, "input", where)}, ensure_ascii=False)
            made.call(_string(item, "call_id", where), _string(item, "name", where), space, arguments)
        case "function_call_output" | "custom_tool_call_output":
            made.result(called, item.get("name"), _result(item.get("output"), f"{where}.output"))
        case "reasoning":
            made.reason(item)
        case "item_reference":
            raise _wrong(where, "no item with this id is stored; give the item itself, or previous_response_id")
        case "compaction_trigger":
            raise _wrong(where, "conversations are not compacted; leave the item out, and ask for a summary")
        case kind if kind in _SILENT:
            pass
        case kind if kind in _COMPACTED:
            summary = item.get("summary") or item.get("content")
            made.describe("user", summary if isinstance(summary, str) else _GONE)
        case str(kind) if kind.endswith("_output"):
            made.result(called, item.get("name"), _output(item))
        case str(kind) if kind.endswith("_call") and isinstance(item.get("call_id"), str):
            made.call(item["call_id"], str(item.get("name") or kind.removesuffix("_call")), space, _arguments(item))
        case str(kind) if kind:
            hidden = {*_ABOUT, "result"} if kind == _DRAWN else _ABOUT
            rest = {key: value for key, value in item.items() if key not in hidden and value is not None}
            made.describe("assistant", f"[{kind}] {_json(rest)}")
        case kind:
            raise _wrong(where, f"a type is text such as 'message' or 'function_call', not {shown(kind)}")


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


def _output(item: dict[str, Any]) -> str:
    """Return what a call of another kind gave, as text."""
    return next((_json(item[key]) for key in _OUTPUTS if item.get(key) is not None), "")


def _arguments(item: dict[str, Any]) -> str:
    """Return what a call of another kind has as arguments: an object in JSON."""
    key = next((key for key in _ARGUMENTS if item.get(key) is not None), "")
    value = item.get(key, {})
    if isinstance(value, dict) or key == "arguments":
        return _json(value)
    return _json({key: value})


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(_legible(value), ensure_ascii=False)


def _legible(value: Any) -> Any:
    """Return a value with a word in place of images and files, whose bytes would fill the context."""
    if isinstance(value, dict):
        kind = value.get("type")
        if isinstance(kind, str) and kind in _MEDIA:
            return f"[{kind} left out]"
        return {key: _legible(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_legible(inner) for inner in value]
    return "[data left out]" if isinstance(value, str) and value.startswith("data:") else value


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
