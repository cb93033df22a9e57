"""What a user gives to be completed or answered."""

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from parlay.errors import RequestError, shown

Prompt = str | Sequence[int] | Mapping[str, Any]
Messages = Sequence[Mapping[str, Any]]


# What vLLM's prompts have for other inputs than text.
_OTHER_INPUTS = {"multi_modal_data", "multi_modal_uuids", "mm_processor_kwargs"}


class TextPrompt(TypedDict):
    """A prompt that is text; `cache_salt` as in `salt_of`. Its name is vLLM's."""

    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """A prompt that is token ids, with its text if that is known. Its name is vLLM's."""

    prompt_token_ids: Sequence[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]


def content_of(prompt: Prompt) -> str | Sequence[int]:
    """Return what to encode, or the token ids where there are any."""
    if not isinstance(prompt, Mapping):
        return prompt
    for name in _OTHER_INPUTS & prompt.keys():
        if prompt[name]:
            raise RequestError(f"{name} is not supported, since models are text models here; leave it out")
    given = {name for name, value in prompt.items() if name not in _OTHER_INPUTS and value is not None}
    if not given & {"prompt", "prompt_token_ids"} or given - {"prompt", "prompt_token_ids", "cache_salt"}:
        raise RequestError(f"a prompt mapping has 'prompt' or 'prompt_token_ids', not {shown(list(prompt))}")
    content: str | Sequence[int] = prompt["prompt_token_ids" if "prompt_token_ids" in given else "prompt"]
    return content


def salt_of(prompt: Prompt) -> str:
    """Return what a prompt's cached prefixes are kept apart by; empty for none."""
    salt = prompt.get("cache_salt") if isinstance(prompt, Mapping) else None
    if not isinstance(salt, str | None):
        raise RequestError(f"cache_salt is text, not {type(salt).__name__}")
    try:
        (salt or "").encode()
    except UnicodeEncodeError:
        raise RequestError("cache_salt must be valid Unicode text") from None
    return salt or ""


def text_of(prompt: Prompt | RequestError) -> str | None:
    """Return a prompt's text, if it was given as text."""
    text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
    return text if isinstance(text, str) else None
