"""From a conversation to a prompt, as the model's chat template wants it.

Templates are programs that come with a checkpoint: `template` runs them, and says what they find.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parlay.config import build
from parlay.errors import ConfigError, RequestError, brief, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """How a conversation becomes a prompt. Names are vLLM's.

    Attributes:
        chat_template: a template in place of the model's own.
        add_generation_prompt: end with what begins an answer of the assistant.
        continue_final_message: end within the last message, for the model to go on with it.
        tools: descriptions of functions, for templates that tell the model of them.
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

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> "ChatOptions":
        """Return options from keyword arguments.

        Raises:
            ConfigError: an unknown option, one of the wrong type, or two that contradict each other.
        """
        return build(cls, values, "chat option")


def render(
    template: str, messages: Sequence[Mapping[str, Any]], special: Mapping[str, str], options: ChatOptions
) -> str:
    """Return the prompt that a template makes of a conversation.

    Args:
        template: in Jinja's language.
        messages: with `role` and `content`; a content of text parts, as chat clients send, is joined by line ends.
        special: special tokens by their names in the tokenizer's config.
        options: see `ChatOptions`.

    Raises:
        RequestError: messages of another form, a template that is none, or one that refuses the messages.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise RequestError(f"a conversation is a list of messages, not {shown(messages)}")
    plain = [_message(m) for m in messages]
    if not plain:
        raise RequestError("messages is empty; a conversation needs at least one message")
    mark = _continued(plain) if options.continue_final_message else ""
    from parlay.engine.template import render as run  # slow to import

    try:
        variables = dict(
            **special,
            **{"tools": options.tools, "documents": None, **options.chat_template_kwargs},
            messages=plain,
            add_generation_prompt=options.add_generation_prompt,
        )
        text = run(template, variables)
    except RequestError:
        raise
    except Exception as error:  # a template's expressions may raise anything
        reason = brief(str(error).strip().split("\n")[0]) or type(error).__name__
        raise RequestError(f"the chat template refuses these messages: {reason}") from None
    if not options.continue_final_message:
        return text
    end = text.rfind(mark)
    if end < 0:
        raise RequestError("the chat template does not show the last message as it is; it cannot be continued")
    return text[: end + len(mark)]


def _message(message: object) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise RequestError(f"messages must be mappings with 'role' and 'content', not {_kind(message)}")
    content = message.get("content")
    if isinstance(content, list | tuple):
        content = "\n".join(_part(part) for part in content)
    elif not isinstance(content, str | None):
        raise RequestError(f"messages: a content is text or a list of text parts, not {_kind(content)}")
    return {**message, "content": content}


def _part(part: object) -> str:
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else part
    if not isinstance(text, str):
        raise RequestError(f"messages: a part of a content is {{'type': 'text', 'text': ...}}, not {_kind(part)}")
    return text


def _kind(value: object) -> str:
    """Say what something is without a word of what it says: errors are logged, and conversations must not be."""
    return f"one with {shown(list(value))}" if isinstance(value, Mapping) else f"a {type(value).__name__}"


def _continued(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the text to end with; templates may trim it."""
    text = str(messages[-1]["content"] or "").strip()
    if not text:
        raise RequestError("continue_final_message needs a last message with some content")
    return text
