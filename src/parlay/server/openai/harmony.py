"""Answers in gpt-oss's harmony format: messages on channels, of which each is reasoning, a call or text.

    <|channel|>analysis<|message|>REASONING<|end|>
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>ARGUMENTS<|call|>
    <|start|>assistant<|channel|>final<|message|>TEXT<|return|>

The prompt ends with `<|start|>assistant`, and the recipient may also stand before the channel. Commentary without one
is text for the user.

Source: OpenAI 2025, "OpenAI harmony response format".
"""

import re

from parlay.server.openai.messages import MESSAGE, START, MessageForm, heads_with
from parlay.server.openai.tool_grammars import Mark

RECIPIENT = " to=functions."
CALL = f"{START}assistant{RECIPIENT}"  # begins a call in what is handed on; its name and its message follow
# On any channel, and now and then without the prefix (vllm-project/vllm#42454), which OpenAI's own tools never have.
_CALLED = re.compile(r"to=(?:functions\.|(?!(?:functions|python|browser|container|assistant|user|all)\b))([\w-]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


def final(mark: Mark) -> str:
    """Return what stands before an answer of a certain form, as a grammar has it."""
    channel, constrain, message = map(mark, ("<|channel|>", "<|constrain|>", MESSAGE))
    return f'{channel} "final" [[" "] {constrain} ("json" | "JSON")] {message}'


def _thought(mark: Mark) -> str:
    channel, message, end, start = map(mark, ("<|channel|>", MESSAGE, "<|end|>", START))
    return f'{channel} "analysis" {message} TEXT {end} {start} "assistant"'


def _thinks(header: str) -> bool:
    """Whether a message is on the channel of reasoning; the last one counts."""
    return _CHANNEL.findall(header)[-1:] == ["analysis"]


HARMONY = MessageForm(
    ends=("<|end|>", "<|call|>", "<|return|>", START),
    heads=heads_with("<|channel|>", "<|constrain|>", "to=", MESSAGE),
    thinks=_thinks,
    called=_CALLED,
    handed=f"{CALL}{{}}{MESSAGE}",
    thought=_thought,
    final=final,
)
