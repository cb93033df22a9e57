"""The fields of `/v1/messages`."""

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from parlay.errors import ConfigError, shown
from parlay.server.openai.fields import SAMPLING, RequestFields
from parlay.server.openai.translate import ignored_keys

# Sampling parameters that an answer of one message has no place for.
_NOT_HERE = frozenset({"n", "best_of", "logprobs", "prompt_logprobs", "return_rejected", "stop"})
_OUTPUT = ("format", "effort")
_THINKING = ("type", "budget_tokens", "display")


@dataclass(frozen=True, kw_only=True)
class MessagesFields(RequestFields):
    """The body of `/v1/messages` and of `/v1/messages/count_tokens`, besides sampling parameters.

    Attributes:
        messages: with `role` and `content`, which is text or a list of blocks: `text`, `thinking`, `tool_use`,
            `tool_result`, or a `document` that is text. One of the assistant's at the end is continued.
        system: a system message before them: text, or a list of blocks of it.
        stop_sequences: texts that end the answer, and are no part of it.
        tools: functions that the model may call, as `{"name", "description", "input_schema"}`. Tools that Anthropic
            defines are left out.
        tool_choice: `{"type": ...}` with `auto`, `any`, `none`, or `tool` and its `name`; with
            `disable_parallel_tool_use` true there is one call at most.
        thinking: `{"type": "enabled"}` or `{"type": "disabled"}`, a variable that the template reads; the rest is
            ignored.
        output_config: `{"effort": ...}`, a variable that the template reads, and `{"format": {"type": "json_schema",
            "schema": ...}}`.
        chat_template_kwargs: further variables that the template reads.
    """

    endpoint: ClassVar[str] = "messages"
    sampling: ClassVar[frozenset[str]] = SAMPLING - _NOT_HERE
    # Those of completions: a message has its usage in any case.
    include_usage: ClassVar[bool] = False
    continuous_usage: ClassVar[bool] = False
    return_metrics: ClassVar[bool] = False

    messages: list[dict[str, Any]]
    system: str | list[dict[str, Any]] | None = None
    stop_sequences: list[str] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.messages:
            raise ConfigError("messages is empty; give at least one", param="messages")
        kind = (self.thinking or {"type": "adaptive"}).get("type")
        if not isinstance(kind, str):
            raise ConfigError(f"thinking has a type such as 'enabled', not {shown(kind)}", param="thinking")

    def warnings(self, *, strict: bool) -> tuple[str, ...]:
        """Return warnings for the client about its fields."""
        inner = {"thinking": _THINKING, "output_config": _OUTPUT}
        found = [ignored_keys(name, getattr(self, name) or {}, known, strict=strict) for name, known in inner.items()]
        if (self.thinking or {}).get("budget_tokens") is not None:
            found.append("budget_tokens: ignored, since thinking has no limit of its own")
        return tuple(filter(None, found))


assert _NOT_HERE <= SAMPLING
assert not SAMPLING & {f.name for f in fields(MessagesFields)}
