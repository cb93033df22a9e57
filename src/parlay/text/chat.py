"""From a conversation to a prompt, as the model's chat template has it.

Templates are programs that come with a checkpoint: `template` runs them, and reports what they find.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parlay.config import build
from parlay.errors import ConfigError, RequestError, shown
from parlay.text.template_runner import Runner
from parlay.text.tool_prompt import told

HERE = Runner()
_OWN = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template"})
_LISTS = ("content", "tool_calls")  # of a message
_PROBE = "xyzzy"  # occurs in no template


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """How a conversation becomes a prompt. Names are vLLM's.

    Attributes:
        chat_template: a template in place of the model's own.
        add_generation_prompt: end with what begins an answer of the assistant.
        continue_final_message: end within the last message, so that the model continues it.
        tools: descriptions of functions; where the template has no place for them, a system message has.
        chat_template_kwargs: further variables that the template reads, such as `enable_thinking`.
    """

    chat_template: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.continue_final_message and self.add_generation_prompt:
            raise ConfigError(
                "continue_final_message goes on with the last message; set add_generation_prompt to False"
            )
        for name in _OWN & self.chat_template_kwargs.keys():
            raise ConfigError(f"chat_template_kwargs has {name!r}, which is an argument of its own; give it as such")

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> "ChatOptions":
        """Return options from keyword arguments.

        Raises:
            ConfigError: an unknown option, one of the wrong type, or two that contradict each other.
        """
        return build(cls, values, "chat option")


def pieces(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None = None) -> int:
    """Return how many messages there are, parts and calls in them, and tools: a template's time grows with these."""
    lists = (message.get(name) for message in messages if isinstance(message, Mapping) for name in _LISTS)
    return len(messages) + sum(len(one) for one in lists if isinstance(one, list)) + len(tools or ())


def render(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    special: Mapping[str, str],
    options: ChatOptions,
    runner: Runner = HERE,
) -> str:
    """Return the prompt that a template makes of a conversation.

    Args:
        template: in Jinja's language.
        messages: with `role` and `content`; a content of text parts, as chat clients send, is joined by line ends,
            and none is an empty text.
        special: special tokens by their names in the tokenizer's config.
        options: see `ChatOptions`.
        runner: where the template is run.

    Raises:
        RequestError: messages of another form, a template that is none, or one that refuses the messages.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise RequestError(f"a conversation is a list of messages, not {shown(messages)}")
    plain = [_message(m) for m in messages]
    if not plain:
        raise RequestError("messages is empty; a conversation needs at least one message")
    mark = _continued(plain) if options.continue_final_message else ""
    if options.tools and not shows_tools(template, special, runner):
        plain = told(plain, options.tools, system=_shows(template, special, "system", runner))
    text = runner.run(template, _variables(plain, special, options))
    if not options.continue_final_message:
        return text
    end = text.rfind(mark)
    if end < 0:
        raise RequestError("the chat template does not show the last message as it is; it cannot be continued")
    return text[: end + len(mark)]


def shows_tools(template: str, special: Mapping[str, str], runner: Runner = HERE) -> bool:
    """Whether a template passes tools to the model: whether its prompt has the name of one.

    Args:
        template: in Jinja's language.
        special: special tokens by their names.
        runner: where the template is run.
    """
    return _shows(template, special, "tool", runner)


def _shows(template: str, special: Mapping[str, str], what: str, runner: Runner) -> bool:
    function = {"name": _PROBE, "description": "", "parameters": {"type": "object", "properties": {}}}
    tools = [{"type": "function", "function": function}] if what == "tool" else None
    messages = [{"role": "user", "content": "?"}]
    if what == "system":
        messages.insert(0, {"role": "system", "content": _PROBE})

    def find() -> bool:
        try:
            return _PROBE in runner.run(template, _variables(messages, special, ChatOptions(tools=tools)))
        except RequestError:
            return what == "tool"  # one that needs other messages is assumed to handle tools itself

    return runner.remembered((template, what), find)


def _variables(
    messages: Sequence[Mapping[str, Any]], special: Mapping[str, str], options: ChatOptions
) -> dict[str, Any]:
    return {
        **special,
        "tools": options.tools,
        "documents": None,
        **options.chat_template_kwargs,
        "messages": messages,
        "add_generation_prompt": options.add_generation_prompt,
    }


def _message(message: object) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise RequestError(f"messages must be mappings with 'role' and 'content', not {_kind(message)}")
    content = message.get("content")
    if isinstance(content, list | tuple):
        content = "\n".join(_part(part) for part in content)
    elif not isinstance(content, str | None):
        raise RequestError(f"messages: a content is text or a list of text parts, not {_kind(content)}")
    calls = message.get("tool_calls")
    if calls is not None and not (isinstance(calls, list) and all(isinstance(call, Mapping) for call in calls)):
        raise RequestError(
            "messages: tool_calls is a list of {'type': 'function', 'function': {'name': ..., 'arguments': ...}}, "
            f"not {_kind(calls)}"
        )
    if calls is not None:  # templates expect the arguments of earlier calls as values, not as JSON text
        return {**message, "content": content or "", "tool_calls": [_call(call) for call in calls]}
    return {**message, "content": content or ""}


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        return {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}
    except (ValueError, RecursionError):
        return call


# Types of parts that clients send for anything but text.
_MEDIA = {
    **dict.fromkeys(("image", "image_url", "image_embeds", "image_pil", "input_image"), "an image"),
    **dict.fromkeys(("audio", "audio_url", "input_audio"), "audio"),
    **dict.fromkeys(("video", "video_url", "input_video"), "a video"),
    **dict.fromkeys(("file", "input_file"), "a file"),
}


def _part(part: object) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if isinstance(kind, str) and kind in _MEDIA:
        raise RequestError(f"messages: a content has {_MEDIA[kind]}, but only text is read here; leave it out")
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else part
    if not isinstance(text, str):
        raise RequestError(f"messages: a part of a content is {{'type': 'text', 'text': ...}}, not {_kind(part)}")
    return text


def _kind(value: object) -> str:
    """Return a value's kind without its content: errors are logged, and conversations must not be."""
    return f"one with {shown(list(value))}" if isinstance(value, Mapping) else f"a {type(value).__name__}"


def _continued(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the text to end with; templates may trim it."""
    text = str(messages[-1]["content"]).strip()
    if not text:
        raise RequestError(
            "continue_final_message needs a last message with some content", param="continue_final_message"
        )
    return text
