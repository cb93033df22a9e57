"""Describing functions to a model whose chat template does not: in the system message.

The form is the one that most models have been trained on, that of Hermes: descriptions between `<tools>` tags, calls
between `<tool_call>` tags, results between `<tool_response>` tags.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

_WORDS = """You can call functions. Each line between these tags describes one:
<tools>
{tools}
</tools>
To call a function, write a JSON object with its name and arguments between tags, like this:
<tool_call>
{{"name": "...", "arguments": {{...}}}}
</tool_call>
The function's result then comes between <tool_response> tags. Where no function is needed, answer in words."""

Message = dict[str, Any]


def told(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, system: bool) -> list[Message]:
    """Return a conversation whose messages describe its functions, calls and results in their text.

    Args:
        messages: with text as content.
        tools: as chat clients describe them.
        system: whether the template shows a system message; otherwise the user's first one has the description.
    """
    words = _WORDS.format(tools="\n".join(json.dumps(tool.get("function", tool)) for tool in tools))
    plain: list[Message] = []
    before = ""
    for message in messages:
        one = _plain(message)
        if message["role"] == before == "tool":
            plain[-1]["content"] += "\n" + one["content"]  # results of one turn; templates expect alternating roles
        else:
            plain.append(one)
        before = message["role"]
    role = "system" if system else "user"
    first = next((i for i, message in enumerate(plain) if message["role"] == role), None)
    if first is None or (system and first):
        return [{"role": role, "content": words}, *plain]
    content = plain[first]["content"]
    both = f"{content}\n\n{words}" if system else f"{words}\n\n{content}"
    return [*plain[:first], {**plain[first], "content": both}, *plain[first + 1 :]]


def _plain(message: Message) -> Message:
    """Return a message whose calls or results are text."""
    content = message["content"]
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    texts = [content] if content else []
    for call in calls:
        function = call.get("function", call) if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            made = {"name": function.get("name"), "arguments": function.get("arguments")}
            texts.append(f"<tool_call>\n{json.dumps(made, ensure_ascii=False)}\n</tool_call>")
    return {**{k: v for k, v in message.items() if k != "tool_calls"}, "content": "\n".join(texts)}
