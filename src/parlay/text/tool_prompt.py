"""Functions, calls and results as text, for chat templates that have no place for them.

The form is the one that most models have been trained on, that of Hermes: descriptions between `<tools>` tags, calls
between `<tool_call>` tags, results between `<tool_response>` tags.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from parlay.text.messages import Message, arguments_of, text_of

_WORDS = """You can call functions. Each line between these tags describes one:
<tools>
{tools}
</tools>
To call a function, write a JSON object with its name and arguments between tags, like this:
<tool_call>
{{"name": "...", "arguments": {{...}}}}
</tool_call>
The function's result then comes between <tool_response> tags. Where no function is needed, answer in words."""


def described(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return a conversation whose system message describes functions, too.

    Args:
        messages: the conversation, in the form of `messages`.
        tools: functions as chat clients describe them.
    """
    words = _WORDS.format(tools="\n".join(_json(tool.get("function", tool)) for tool in tools))
    if messages[0]["role"] != "system":
        return [{"role": "system", "content": words}, *messages]
    both = f"{text_of(messages[0]['content'])}\n\n{words}"
    return [{**messages[0], "content": both}, *messages[1:]]


def in_text(messages: Sequence[Message]) -> list[Message]:
    """Return a conversation whose calls and results are part of its texts.

    A result is the user's. Messages of one role in a row become one, since many templates want roles to alternate.
    """
    made: list[Message] = []
    before = False
    for message in messages:
        one = _in_text(message)
        changed = one is not message
        if made and made[-1]["role"] == one["role"] and (changed or before):
            texts = [text_of(both["content"]) for both in (made[-1], one)]
            made[-1] = {**made[-1], **one, "content": "\n".join(filter(None, texts))}
        else:
            made.append(one)
        before = changed
    return made


def _in_text(message: Message) -> Message:
    content = message["content"]
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{text_of(content)}\n</tool_response>"}
    if "tool_calls" not in message:
        return message
    texts = [text_of(content)] if content else []
    for call in message["tool_calls"]:
        function = call.get("function", call)
        if isinstance(function, Mapping):
            made = {"name": function.get("name"), "arguments": arguments_of(function.get("arguments"))}
            texts.append(f"<tool_call>\n{_json(made)}\n</tool_call>")
    return {**{k: v for k, v in message.items() if k != "tool_calls"}, "content": "\n".join(texts)}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
