"""Answers in Muse-Glimmer's ATEM format: messages to recipients, of which each is reasoning, a call or text.

     to=self<|message|>REASONING<|eom|>
    <|start|>assistant to=NAME<|message|><atem:function_calls>
    <atem:invoke name="NAME">
    <atem:parameter name="KEY">VALUE</atem:parameter>
    </atem:invoke>
    </atem:function_calls><|eom|>
    <|start|>assistant to=user<|message|>TEXT<|eot|>

The prompt ends with `<|start|>assistant`. A message without a recipient is text for the user.

Source: the model's chat template.
"""

import re
from collections.abc import Mapping
from typing import Any

from parlay.server.openai.messages import MESSAGE, START, MessageForm, heads_with
from parlay.server.openai.tags import Tags, xml
from parlay.server.openai.tool_grammars import Mark, literal

TAGS = Tags(
    "<atem:function_calls>",
    "</atem:function_calls>",
    ('<atem:invoke name="', '">'),
    ('<atem:parameter name="', '">'),
    ("", "</atem:parameter>"),
    "</atem:invoke>",
)
_MORE, _LAST = "<|eom|>", "<|eot|>"  # behind a message, and behind the answer
_SELF = re.compile(r"to=self\b")


def final(mark: Mark) -> str:
    """Return what stands before an answer of a certain form, as a grammar has it."""
    return f'" to=user" {mark(MESSAGE)}'


def _thought(mark: Mark) -> str:
    message, more, start = map(mark, (MESSAGE, _MORE, START))
    return f'" to=self" {message} TEXT {more} {start} "assistant"'


def _thinks(header: str) -> bool:
    return _SELF.search(header) is not None


def calls(parameters: Mapping[str, Any], mark: Mark, several: bool) -> list[str]:
    """Return the rules of calls, each a message to its function."""
    message, more, start = map(mark, (MESSAGE, _MORE, START))
    _, one, *rules = xml(TAGS, parameters, mark, several=False)
    names = " | ".join(map(literal, parameters))
    further = f' ({more} {start} "assistant" addressed)*' if several else ""
    return [f"calls: addressed{further}", f'addressed: " to=" name {message} one', f"name: {names}", one, *rules]


ATEM = MessageForm(
    ends=(_MORE, _LAST, START),
    heads=heads_with("to=", MESSAGE),
    thinks=_thinks,
    called=re.compile(r"to=(?!(?:self|user)\b)([\w.-]+)"),
    handed="",
    thought=_thought,
    final=final,
)
