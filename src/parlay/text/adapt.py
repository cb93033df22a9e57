"""Conversations in the form that a chat template shows, so that nothing which a client sends is lost.

What a template shows as it is, stays as it is. See `template_capabilities` for how that is known.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import pairwise, takewhile
from typing import Any

from parlay.text.messages import Message, arguments_of, text_of
from parlay.text.template_capabilities import CallForm, CallHistory, Capabilities, call_form, capabilities_of
from parlay.text.template_process import TemplateRunner
from parlay.text.tool_prompt import described, in_text

Tools = list[dict[str, Any]] | None

_REFUSES_BOTH = "Cannot pass both content and thinking"  # beside calls: gpt-oss's template
_SHORT = re.compile("[a-zA-Z0-9]{9}")


def adapted(
    messages: Sequence[Message],
    tools: Tools,
    template: str,
    special: Mapping[str, str],
    runner: TemplateRunner,
) -> tuple[list[Message], Tools]:
    """Return a conversation whose messages a template shows, and the descriptions of functions that it gets.

    Args:
        messages: the conversation, in the form of `messages`.
        tools: descriptions of functions.
        template: the chat template, in Jinja's language.
        special: special tokens by their names.
        runner: where the template is run.

    Raises:
        RequestError: the template does not end, or needs too much memory.
    """
    capabilities = capabilities_of(template, special, runner)
    made = _developers(messages, capabilities)
    if _REFUSES_BOTH in template:
        made = [_thought(message) for message in made]
    if tools and not capabilities.tools:
        made = described(in_text(made), tools)
    elif any(m["role"] == "tool" or "tool_calls" in m for m in made):
        for history, changed in _arranged(made, bool(tools)):
            form = call_form(template, special, runner, capabilities, history)
            if form is not None:
                made = [_in_form(message, form) for message in _with_ids(changed, form)]
                break
        else:
            made = in_text(made)
    shown = [capabilities.content(message) for message in _systems(made, capabilities)]
    return shown, None if capabilities.refuses_tools else tools


def _thought(message: Message) -> Message:
    """Return a message whose text is part of the reasoning, if it has calls and both."""
    if "tool_calls" not in message or not message.get("thinking") or not _has_text(message):
        return message
    text = f"{message['thinking']}\n\n{text_of(message['content'])}"
    return {**message, "thinking": text, "reasoning_content": text, "content": ""}


def _developers(messages: Sequence[Message], capabilities: Capabilities) -> list[Message]:
    """Return a conversation whose messages of developers are systems', unless the template shows them."""
    places = [i for i, message in enumerate(messages) if message["role"] in ("developer", "system")]
    if capabilities.developers or (capabilities.developer and places == [0]):
        return list(messages)
    return [{**m, "role": "system"} if m["role"] == "developer" else m for m in messages]


def _arranged(messages: Sequence[Message], tools: bool) -> Iterator[tuple[CallHistory, Sequence[Message]]]:
    """Yield arrangements of a conversation's calls, at first as they are, and what a template has to show of each."""
    called = [m for m in messages if "tool_calls" in m]
    roles = [m["role"] for m in messages]
    answered = ("tool", "user") in pairwise(roles)
    beside, several = any(map(_has_text, called)), any(len(m["tool_calls"]) > 1 for m in called)
    for single in (False, True) if several else (False,):
        history = CallHistory(tools, beside, apart=False, several=several and not single, answered=answered)
        given = _one_by_one(messages) if single else messages
        yield history, given
        if beside:
            yield replace(history, beside=False, apart=True), _split_text_from_calls(given)
            yield replace(history, beside=False), given  # the text is lost, as in transformers; the calls are not


def _has_text(message: Message) -> bool:
    """Return whether a message has more than space; models write line ends before calls."""
    return bool(text_of(message["content"]).strip())


def _split_text_from_calls(messages: Sequence[Message]) -> list[Message]:
    """Return a conversation in which what is said beside calls is a message of its own before them."""
    made: list[Message] = []
    for message in messages:
        if "tool_calls" in message and _has_text(message):
            made.append({key: value for key, value in message.items() if key != "tool_calls"})
            made.append({"role": message["role"], "content": "", "tool_calls": message["tool_calls"]})
        else:
            made.append(message)
    return made


def _one_by_one(messages: Sequence[Message]) -> list[Message]:
    """Return a conversation with one call per message, each followed by its result."""
    made: list[Message] = []
    results: list[Message] = []  # that have been placed
    for place, message in enumerate(messages):
        if "tool_calls" not in message:
            made += [] if any(message is one for one in results) else [message]
            continue
        following = takewhile(lambda m: m["role"] == "tool", messages[place + 1 :])
        results = list(following)
        left = results
        for number, call in enumerate(message["tool_calls"]):
            made.append({**message, "content": "" if number else message["content"], "tool_calls": [call]})
            own = [m for m in left if m.get("tool_call_id") == call.get("id")] or left
            made += own[:1]
            left = [m for m in left if m is not made[-1]]
        made += left
    return made


def _with_ids(messages: Sequence[Message], form: CallForm) -> list[Message]:
    """Return a conversation whose calls and results have ids, and results names, as the template wants them."""
    made: list[Message] = []
    pending: list[dict[str, Any]] = []  # calls without a result so far
    for message in messages:
        more: Message = {}
        if "tool_calls" in message:
            pending = list(message["tool_calls"])
            if form.short:  # clients may leave ids out
                ids = [str(call.get("id", f"{len(made)}.{place}")) for place, call in enumerate(pending)]
                pending = [{**call, "id": _short_id(one)} for call, one in zip(pending, ids, strict=True)]
                more["tool_calls"] = pending
        elif message["role"] == "tool":
            called = message.get("tool_call_id")
            called = _short_id(str(called)) if form.short and called is not None else called
            own = next((call for call in pending if call.get("id") == called), *pending[:1] or [{}])
            pending = [call for call in pending if call is not own]
            if form.short:
                more["tool_call_id"] = called if called is not None else own.get("id", _short_id(""))
            function = own.get("function", own)
            if form.named and isinstance(function, Mapping) and "name" in function:
                more["name"] = function["name"]
        made.append({**message, **more} if more else message)
    return made


def _short_id(called: str) -> str:
    return called if _SHORT.fullmatch(called) else sha256(called.encode(errors="surrogatepass")).hexdigest()[:9]


def _in_form(message: Message, form: CallForm) -> Message:
    if "tool_calls" not in message:
        return message
    null = form.null and message["role"] == "assistant" and not _has_text(message)
    content = None if null else message["content"]
    return {**message, "content": content, "tool_calls": [_call(call, form) for call in message["tool_calls"]]}


def _call(call: dict[str, Any], form: CallForm) -> dict[str, Any]:
    function = call.get("function", call)
    if not isinstance(function, Mapping):
        return call
    given = function.get("arguments")
    arguments: Any = arguments_of(given)
    if form.encoded:  # the client's own text, if it is an object's
        arguments = given if isinstance(given, str) and arguments else json.dumps(arguments, ensure_ascii=False)
    made = {**function, "arguments": arguments}
    return {**call, "function": made} if "function" in call else made


def _systems(messages: list[Message], capabilities: Capabilities) -> list[Message]:
    """Return a conversation with system messages only where the template shows them.

    Where it does not, they are part of the first one, or of the user's first message if it shows none.
    """
    places = [i for i, message in enumerate(messages) if message["role"] == "system"]
    leading = [place for i, place in enumerate(places) if i == place]
    if not capabilities.system or (len(places) > len(leading) and not capabilities.late_system):
        moved = places
    else:
        moved = [] if capabilities.systems else leading
    if not moved or (capabilities.system and moved == [0]):
        return messages
    text = "\n\n".join(text_of(messages[place]["content"]) for place in moved)
    rest = [message for i, message in enumerate(messages) if i not in moved]
    if capabilities.system:
        return [{"role": "system", "content": text}, *rest]
    first = next((i for i, message in enumerate(rest) if message["role"] == "user"), None)
    if first is None:
        return [{"role": "user", "content": text}, *rest]
    content = rest[first]["content"]
    if isinstance(content, str):
        both: Any = f"{text}\n\n{content}"
    else:
        both = [{"type": "text", "text": f"{text}\n\n"}, *content]
    return [*rest[:first], {**rest[first], "content": both}, *rest[first + 1 :]]
