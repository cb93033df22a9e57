"""Log-probabilities in OpenAI's two shapes."""

from collections.abc import Mapping, Sequence
from typing import Any

from parlay.types.output import Logprob

_LEAST = -9999.0  # JSON has no infinity; vLLM's stand-in

Position = Mapping[int, Logprob] | None


def completion_logprobs(
    tokens: Sequence[int], positions: Sequence[Position], offset: int, first: str = ""
) -> dict[str, Any]:
    """Return the log-probabilities of `/v1/completions`.

    Args:
        tokens: the chosen ones.
        positions: a table for each; None for a prompt's first token.
        offset: characters of the text before the first of them.
        first: text of a prompt's first token.
    """
    texts: list[str] = []
    own: list[float | None] = []
    tops: list[dict[str, float] | None] = []
    offsets: list[int] = []
    for token, table in zip(tokens, positions, strict=True):
        offsets.append(offset)
        if table is None:
            texts.append(first)
            own.append(None)
            tops.append(None)
            offset += len(first)
            continue
        texts.append(table[token].decoded_token)
        own.append(_finite(table[token].logprob))
        top: dict[str, float] = {}
        for other in sorted(table.values(), key=lambda entry: entry.rank):
            top.setdefault(other.decoded_token, _finite(other.logprob))
        tops.append(top)
        offset += len(texts[-1])
    return {"tokens": texts, "token_logprobs": own, "top_logprobs": tops, "text_offset": offsets}


def chat_logprobs(tokens: Sequence[int], positions: Sequence[Position], top: int) -> dict[str, Any]:
    """Return the log-probabilities of `/v1/chat/completions`, with the `top` most likely at each position."""
    content = []
    for token, table in zip(tokens, positions, strict=True):
        assert table is not None
        likely = sorted((e for e in table.values() if e.rank <= top), key=lambda entry: entry.rank)
        content.append({**_entry(table[token]), "top_logprobs": [_entry(e) for e in likely]})
    return {"content": content, "refusal": None}


def prompt_logprobs(positions: Sequence[Position]) -> list[dict[str, Any] | None]:
    """Return a prompt's log-probabilities as vLLM gives them."""
    return [
        None
        if table is None
        else {
            str(token): {"logprob": _finite(e.logprob), "rank": e.rank, "decoded_token": e.decoded_token}
            for token, e in table.items()
        }
        for table in positions
    ]


def _entry(entry: Logprob) -> dict[str, Any]:
    text = entry.decoded_token
    # A token that is part of a character has no text of its own.
    raw = None if "\N{REPLACEMENT CHARACTER}" in text else list(text.encode())
    return {"token": text, "logprob": _finite(entry.logprob), "bytes": raw}


def _finite(value: float) -> float:
    return max(value, _LEAST)
