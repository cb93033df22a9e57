"""From a conversation to a prompt, as the model's chat template wants it.

Templates are programs that come with a checkpoint: they run in a sandbox that lets them neither change what they are
given nor reach anything else. They find what transformers' documents promise them: special tokens, `tools`,
`raise_exception`, `strftime_now`, a `tojson` that escapes no HTML, `break` and `continue`, and `generation` blocks,
whose marks only training needs.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from parlay.config import build
from parlay.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from jinja2 import Template


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
    plain = [_message(m) for m in messages]
    if not plain:
        raise RequestError("a conversation needs at least one message")
    mark = _continued(plain) if options.continue_final_message else ""
    try:
        text = _compile(template).render(
            **special,
            **{"tools": options.tools, "documents": None, **options.chat_template_kwargs},
            messages=plain,
            add_generation_prompt=options.add_generation_prompt,
        )
    except RequestError:
        raise
    except Exception as error:  # a template's expressions may raise anything
        raise RequestError(f"the chat template refuses these messages: {error}") from None
    if not options.continue_final_message:
        return text
    end = text.rfind(mark)
    if end < 0:
        raise RequestError("the chat template does not show the last message as it is; it cannot be continued")
    return text[: end + len(mark)]


def _message(message: object) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise RequestError(f"a message is a mapping with 'role' and 'content', not {message!r}")
    content = message.get("content")
    if isinstance(content, list | tuple):
        content = "\n".join(_part(part) for part in content)
    elif not isinstance(content, str | None):
        raise RequestError(f"a message's content is text or a list of text parts, not {content!r}")
    return {**message, "content": content}


def _part(part: object) -> str:
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else part
    if not isinstance(text, str):
        raise RequestError(f"a part of a message's content is {{'type': 'text', 'text': ...}}, not {part!r}")
    return text


def _continued(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the text to end with; templates may trim it."""
    text = str(messages[-1]["content"] or "").strip()
    if not text:
        raise RequestError("continue_final_message needs a last message with some content")
    return text


@lru_cache(maxsize=8)
def _compile(template: str) -> "Template":
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012 - as the base class has it

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)


def _to_json(value: Any, **options: Any) -> str:
    return json.dumps(value, **{"ensure_ascii": False, **options})


def _refuse(message: str) -> None:
    """What templates call to refuse messages."""
    raise RequestError(f"the chat template refuses these messages: {message}")
