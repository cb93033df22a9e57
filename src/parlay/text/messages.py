"""Messages as clients send them, brought into one form.

In that form a message has a `role`, and as `content` a text or a list of at least two parts, each `{"type": "text",
"text": ...}` or `{"type": "thinking", "thinking": ...}`. No key is null. Calls are `tool_calls`, and reasoning stands
under the names that transformers gives it.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from parlay.errors import RequestError, shown

Message = dict[str, Any]
Content = str | list[dict[str, str]]

_LONE = re.compile("[\ud800-\udfff]")  # halves of characters
_REASONING = ("reasoning_content", "thinking", "reasoning")  # the first that is there counts

# Types of parts that are text, and the key that has it: of chat completions, and of responses.
_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
# Types of parts that are reasoning, and the key that has it: Mistral's, and that of responses.
_THOUGHTS = {"thinking": "thinking", "reasoning_text": "text"}
# Types of parts that clients send for anything else.
_MEDIA = {
    **dict.fromkeys(("image", "image_url", "image_embeds", "image_pil", "input_image"), "an image"),
    **dict.fromkeys(("audio", "audio_url", "input_audio"), "audio"),
    **dict.fromkeys(("video", "video_url", "input_video"), "a video"),
    **dict.fromkeys(("file", "input_file"), "a file"),
}


def plain(message: object) -> Message:
    """Return a message in the form above.

    Raises:
        RequestError: it has another form, or content that is no text.
    """
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise RequestError(f"messages must be mappings with 'role' and 'content', not {_kind(message)}")
    made = {key: value for key, value in message.items() if value is not None}
    made["content"] = _content(made.get("content", "")) or _refusal(made)
    older = made.pop("function_call", None)
    calls = made.pop("tool_calls", [{"type": "function", "function": older}] if isinstance(older, Mapping) else [])
    if not (isinstance(calls, list) and all(isinstance(call, Mapping) for call in calls)):
        raise RequestError(
            "messages: tool_calls is a list of {'type': 'function', 'function': {'name': ..., 'arguments': ...}}, "
            f"not {_kind(calls)}"
        )
    if calls:
        made["tool_calls"] = [_call(call) for call in calls]
    if made["role"] == "function":  # the older name
        made["role"] = "tool"
    reasoning = next((made[name] for name in _REASONING if name in made), None)
    return made if reasoning is None else with_reasoning(made, reasoning)


def with_reasoning(message: Message, reasoning: Any) -> Message:
    """Return a message with its reasoning under the names that templates read, as in transformers."""
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def text_of(content: Content) -> str:
    """Return a content as one text; a line each for its parts."""
    if isinstance(content, str):
        return content
    return "\n".join(part[part["type"]] for part in content)


def arguments_of(given: object) -> dict[str, Any]:
    """Return the arguments of a call, which come as text or as an object: without any, an empty object.

    Half characters in the text, which models write as escapes, are replaced by U+FFFD: no tokenizer takes them.
    """
    for _ in range(2):  # some clients encode them twice
        if isinstance(given, str):
            try:
                given = json.loads(given)
                text = json.dumps(given, ensure_ascii=False)
                if _LONE.search(text):
                    given = json.loads(_LONE.sub("\ufffd", text))
            except (ValueError, RecursionError):
                return {}
    return dict(given) if isinstance(given, Mapping) else {}


def _content(content: object) -> Content:
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise RequestError(f"messages: a content is text or a list of text parts, not {_kind(content)}")
    parts = [_part(part) for part in content]
    return parts if len(parts) > 1 or any(p["type"] != "text" for p in parts) else "".join(p["text"] for p in parts)


def _refusal(message: Message) -> str:
    """Return what OpenAI's models say in place of a content."""
    refusal = message.get("refusal", "")
    return refusal if isinstance(refusal, str) else ""


def _part(part: object) -> dict[str, str]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part.get("type") if isinstance(part, Mapping) else None
    if isinstance(part, Mapping) and isinstance(kind, str):
        if kind in _MEDIA:
            raise RequestError(f"messages: a content has {_MEDIA[kind]}, but only text is read here; leave it out")
        if kind in _THOUGHTS:  # a text, or parts of it
            return {"type": "thinking", "thinking": text_of(_content(part.get(_THOUGHTS[kind])))}
        text = part.get(_TEXTS.get(kind, ""))
        if isinstance(text, str):
            return {"type": "text", "text": text}
    raise RequestError(f"messages: a part of a content is {{'type': 'text', 'text': ...}}, not {_kind(part)}")


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    made = {key: value for key, value in call.items() if value is not None}
    custom = made.pop("custom", None)
    if isinstance(custom, Mapping):  # a call with free text instead of arguments
        function = {"name": custom.get("name"), "arguments": {"input": custom.get("input")}}
        return {**made, "type": "function", "function": function}
    return made


def _kind(value: object) -> str:
    """Return a value's kind without its content: errors are logged, and conversations must not be."""
    return f"one with {shown(list(value))}" if isinstance(value, Mapping) else f"a {type(value).__name__}"
