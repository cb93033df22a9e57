"""From a conversation to a prompt, as the model's chat template has it.

Templates are programs that come with a checkpoint: `template` runs them, and reports what they find.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from parlay.config import build
from parlay.errors import ConfigError, RequestError, shown
from parlay.text.adapt import adapted
from parlay.text.messages import Content, plain
from parlay.text.template_capabilities import capabilities_of, variables
from parlay.text.template_process import TemplateRunner

IN_PROCESS = TemplateRunner()
_OWN = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template"})
_MARK = "CONTINUED_FROM_HERE "  # where the last message ends
_LISTS = ("content", "tool_calls")  # of a message


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """How a conversation becomes a prompt. Names are vLLM's.

    Attributes:
        chat_template: a template in place of the model's own, or the name of one of its own, such as `tool_use`.
        add_generation_prompt: end with what begins an answer of the assistant.
        continue_final_message: end within the last message, so that the model continues it.
        tools: descriptions of functions; where the template has no place for them, a system message has. A model's
            own template `tool_use`, if there is one, is for conversations with them.
        chat_template_kwargs: further variables that the template reads, such as `enable_thinking`.
    """

    chat_template: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.continue_final_message and self.add_generation_prompt:
            raise ConfigError("continue_final_message continues the last message; set add_generation_prompt to False")
        for name in _OWN & self.chat_template_kwargs.keys():
            raise ConfigError(f"chat_template_kwargs has {name!r}, which is a separate argument; pass it as that")

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> "ChatOptions":
        """Return options from keyword arguments.

        Raises:
            ConfigError: an unknown option, one of the wrong type, or two that contradict each other.
        """
        return build(cls, values, "chat option")


def pieces(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None = None) -> int:
    """Return how many messages there are, parts and calls in them, and tools: a template's time grows with these."""
    if not isinstance(messages, Sequence):  # which `render` refuses
        return 0
    lists = (message.get(name) for message in messages if isinstance(message, Mapping) for name in _LISTS)
    return len(messages) + sum(len(one) for one in lists if isinstance(one, list)) + len(tools or ())


def render(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    special: Mapping[str, str],
    options: ChatOptions,
    runner: TemplateRunner = IN_PROCESS,
) -> str:
    """Return the prompt that a template makes of a conversation.

    Args:
        template: the chat template, in Jinja's language.
        messages: mappings with `role` and `content`, as chat clients send them; see `messages` for what they may
            have, and `adapt` for what is changed so that the template shows all of it.
        special: special tokens by their names in the tokenizer's config.
        options: see `ChatOptions`.
        runner: where the template is run.

    Raises:
        RequestError: messages of another form, a template that is none, or one that refuses the messages.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise RequestError(f"a conversation is a list of messages, not {shown(messages)}")
    given = [plain(message) for message in messages]
    if not given:
        raise RequestError("messages is empty; a conversation needs at least one message")
    made, tools = adapted(given, options.tools, template, special, runner)
    options = replace(options, tools=tools)
    if not options.continue_final_message:
        return runner.run(template, _variables(made, special, options))
    if messages[-1].get("content") is None:
        raise RequestError("continue_final_message needs a last message with content", param="continue_final_message")
    content, final = _marked(made[-1]["content"] or "")
    text = runner.run(template, _variables([*made[:-1], {**made[-1], "content": content}], special, options))
    before, mark, after = text.rpartition(_MARK.strip())
    if not mark or final.strip() not in text:
        raise RequestError("the chat template does not show the last message as it is; it cannot be continued")
    # A template that keeps space at the end keeps the mark's.
    return before if after.startswith(_MARK[len(mark) :]) else before.rstrip()


def shows_tools(template: str, special: Mapping[str, str], runner: TemplateRunner = IN_PROCESS) -> bool:
    """Whether a template passes tools to the model: whether its prompt has the name of one.

    Args:
        template: the chat template, in Jinja's language.
        special: special tokens by their names.
        runner: where the template is run.
    """
    try:
        return capabilities_of(template, special, runner).tools
    except RequestError:  # rendering a conversation raises it
        return True


def _variables(
    messages: Sequence[Mapping[str, Any]], special: Mapping[str, str], options: ChatOptions
) -> dict[str, Any]:
    return {
        **variables(messages, special),
        "tools": options.tools,
        **options.chat_template_kwargs,
        "messages": messages,
        "add_generation_prompt": options.add_generation_prompt,
    }


def _marked(content: Content) -> tuple[Content, str]:
    """Return the content of the last message with the mark behind its last text, and that text."""
    if isinstance(content, str):
        return content + _MARK, content
    last = max((i for i, part in enumerate(content) if part["type"] == "text"), default=len(content))
    final = "".join(part["text"] for part in content[last : last + 1])
    return [*content[:last], {"type": "text", "text": final + _MARK}, *content[last + 1 :]], final
