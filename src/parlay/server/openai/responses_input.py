"""From the items of a response's input and output to the messages of a conversation."""

from collections.abc import Iterable
from typing import Any

from parlay.errors import shown
from parlay.server.errors import ApiError

Message = dict[str, Any]

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}


def messages_of(given: str | Iterable[dict[str, Any]], before: Iterable[Message] = ()) -> list[Message]:
    """Return a conversation continued by some items.

    Args:
        given: text of the user's, or items.
        before: the conversation so far.

    Raises:
        ApiError: an item is malformed, of a type that is not served, or answers a call that was not made.
    """
    messages = [dict(message) for message in before]
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    for place, item in enumerate(given):
        _add(messages, item, f"input[{place}]")
    return messages


def _add(messages: list[Message], item: dict[str, Any], where: str) -> None:
    match item.get("type", "message"):
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
            _add_call(messages, item, where)
        case "function_call_output":
            called = _string(item, "call_id", where)
            if called not in {call["id"] for message in messages for call in message.get("tool_calls", ())}:
                raise _wrong(where, f"no function call has the call_id {shown(called)}; give the call before it")
            content = _content(item.get("output"), f"{where}.output")
            messages.append({"role": "tool", "tool_call_id": called, "content": content})
        case "reasoning":
            _add_reasoning(messages, item)
        case "item_reference":
            raise _wrong(where, "items are not kept by their ids; give the item itself, or previous_response_id")
        case kind:
            raise _wrong(
                where, f"items are message, function_call, function_call_output and reasoning, not {shown(kind)}"
            )


def _add_call(messages: list[Message], item: dict[str, Any], where: str) -> None:
    """Add a call to the message that it is part of in chat completions: an assistant's text and calls are one."""
    function = {"name": _string(item, "name", where), "arguments": _string(item, "arguments", where)}
    call = {"id": _string(item, "call_id", where), "type": "function", "function": function}
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    messages[-1] = {**messages[-1], "tool_calls": [*messages[-1].get("tool_calls", ()), call]}


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
    if kind in ("input_image", "input_file", "input_audio"):
        raise _wrong(where, f"the model reads text only; leave {kind} out")
    text = part.get(_TEXTS[kind]) if kind in _TEXTS else None
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
