"""Log-probabilities in OpenAI's two shapes."""

from collections.abc import Mapping, Sequence
from typing import Any

from parlay.text.detokenizer import IncrementalDecoder
from parlay.text.tokenizer import TextCodec
from parlay.types.output import Logprob

_LEAST = -9999.0  # JSON has no infinity; vLLM's stand-in

Position = Mapping[int, Logprob] | None


class Offsets:
    """Where in a text its tokens begin. Those of one character begin where it does."""

    def __init__(self, codec: TextCodec, prompt: Sequence[int], *, skip_special_tokens: bool, begin: int = 0) -> None:
        """Start behind the tokens of a prompt, `begin` characters into the text."""
        self._pieces = IncrementalDecoder(codec.tokenizer, prompt, skip_special_tokens=skip_special_tokens)
        self._next = self._end = begin

    def add(self, tokens: Sequence[int], text: str, *, finished: bool) -> list[int]:
        """Return the places of further tokens.

        Args:
            tokens: the further tokens.
            text: the text that comes with them.
            finished: no more will come; places are within the text, which a stop string may have cut.
        """
        found = []
        for token in tokens:
            found.append(self._next)
            self._next += len(self._pieces.add(token))
        self._end += len(text)
        return [min(place, self._end) for place in found] if finished else found


def prompt_offsets(codec: TextCodec, tokens: Sequence[int], text: str) -> list[int]:
    """Return where in a prompt's text its tokens begin; those that the tokenizer put around it have no part of it."""
    special, first = codec.special_ids, 0
    while (
        tokens[first] in special and first + 1 < len(tokens) and not text.startswith(codec.token_text(tokens[first]))
    ):
        first += 1
    offsets, place = [0] * first, 0
    pieces = IncrementalDecoder(codec.tokenizer, skip_special_tokens=False)
    for token in tokens[first:]:
        offsets.append(min(place, len(text)))
        piece = pieces.add(token)
        if text.startswith(piece, place) or token not in special:
            place += len(piece)
    return offsets


def completion_logprobs(
    codec: TextCodec,
    tokens: Sequence[int],
    positions: Sequence[Position],
    offsets: list[int],
    *,
    as_ids: bool = False,
) -> dict[str, Any]:
    """Return the log-probabilities of `/v1/completions`.

    Args:
        codec: the tokenizer.
        tokens: the chosen tokens.
        positions: a table for each; None for a prompt's first token.
        offsets: where in the text each of them begins.
        as_ids: tokens are written as `token_id:ID`, as in vLLM.
    """
    own: list[float | None] = []
    tops: list[dict[str, float] | None] = []
    for token, table in zip(tokens, positions, strict=True):
        own.append(None if table is None else _finite(table[token].logprob))
        if table is None:
            tops.append(None)
            continue
        top: dict[str, float] = {}
        for other, entry in sorted(table.items(), key=lambda item: item[1].rank):
            top.setdefault(_name(codec, other, as_ids=as_ids), _finite(entry.logprob))
        tops.append(top | {_name(codec, token, as_ids=as_ids): _finite(table[token].logprob)})
    texts = [_name(codec, token, as_ids=as_ids) for token in tokens]
    return {"tokens": texts, "token_logprobs": own, "top_logprobs": tops, "text_offset": offsets}


def chat_logprobs(
    codec: TextCodec, tokens: Sequence[int], positions: Sequence[Position], top: int, *, as_ids: bool = False
) -> dict[str, Any]:
    """Return the log-probabilities of `/v1/chat/completions`, with the `top` most likely at each position.

    With `as_ids`, tokens are written as `token_id:ID`, as in vLLM.
    """
    content = []
    for token, table in zip(tokens, positions, strict=True):
        assert table is not None
        likely = sorted((item for item in table.items() if item[1].rank <= top), key=lambda item: item[1].rank)
        entries = [_entry(codec, *item, as_ids=as_ids) for item in likely]
        content.append({**_entry(codec, token, table[token], as_ids=as_ids), "top_logprobs": entries})
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


def spelled(codec: TextCodec, token: int, mark: str = "bytes:") -> str:
    """Return a token's text; if its bytes are part of a character, a mark and OpenAI's spelling: `\\xf0\\x9f`."""
    raw = codec.token_bytes(token)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return mark + "".join(chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}" for byte in raw)


def _name(codec: TextCodec, token: int, mark: str = "bytes:", *, as_ids: bool) -> str:
    return f"token_id:{token}" if as_ids else spelled(codec, token, mark)


def _entry(codec: TextCodec, token: int, entry: Logprob, *, as_ids: bool) -> dict[str, Any]:
    return {
        "token": _name(codec, token, "", as_ids=as_ids),
        "logprob": _finite(entry.logprob),
        "bytes": list(codec.token_bytes(token)),
    }


def _finite(value: float) -> float:
    return max(value, _LEAST)
