"""What a user gives to be completed or answered."""

from collections.abc import Mapping, Sequence
from typing import Any

from parlay.errors import RequestError, shown

Prompt = str | Sequence[int] | Mapping[str, Any]
Messages = Sequence[Mapping[str, Any]]


def content_of(prompt: Prompt) -> str | Sequence[int]:
    """Return what to encode, or the token ids where there are any."""
    if not isinstance(prompt, Mapping):
        return prompt
    if not prompt or set(prompt) - {"prompt", "prompt_token_ids"}:
        raise RequestError(f"a prompt mapping has 'prompt' or 'prompt_token_ids', not {shown(list(prompt))}")
    content: str | Sequence[int] = prompt.get("prompt_token_ids", prompt.get("prompt"))
    return content


def text_of(prompt: Prompt | RequestError) -> str | None:
    """Return a prompt's text, if it was given as text."""
    text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
    return text if isinstance(text, str) else None
