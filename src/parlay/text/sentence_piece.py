"""SentencePiece's tokenizers, as ones of the `tokenizers` library: out of a `tokenizer.model`, or put together.

Source: SentencePiece's `sentencepiece_model.proto` for the numbers of fields; Hugging Face's converters for how its
merges follow from scores.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import unpack
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from parlay.errors import ModelError
from parlay.text.special_tokens import NORMAL, UNKNOWN, USER_DEFINED, add_by_kind

SPACE = "\u2581"
_LONGEST = 256  # characters of a piece; longer ones exist in no vocabulary
_UNIGRAM, _BPE = 1, 2


def merging(
    file: Path,
    tokens: Sequence[str],
    scores: Sequence[float],
    vocabulary: dict[str, int],
    kinds: Sequence[float],
    unknown: str | None,
) -> models.BPE:
    """Return SentencePiece's BPE: two pieces merge where their union is one; the better its score, the sooner.

    Args:
        file: the tokenizer's file, for errors.
        tokens: tokens in the order of their ids.
        scores: scores of the tokens.
        vocabulary: the ids of those that are used.
        kinds: kinds of the tokens.
        unknown: the token for what the vocabulary cannot spell.

    Raises:
        ModelError: a piece is so long that its parts are too many.
    """
    normal = [token for token, kind in zip(tokens, kinds, strict=True) if kind == NORMAL]
    long = next((token for token in normal if len(token) > _LONGEST), None)
    if long is not None:
        raise ModelError(f"{file}: the token {long[:20]!r}... is longer than {_LONGEST} characters")
    pieces, ranked = set(normal), sorted(normal, key=lambda token: -scores[vocabulary[token]])
    merges = [pair for piece in ranked for pair in _splits(piece, pieces, vocabulary)]
    return models.BPE(vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)


def _splits(piece: str, pieces: set[str], vocabulary: dict[str, int]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of pieces that make up another, in the order in which Hugging Face's converter ranks them."""
    cuts = ((piece[:i], piece[i:]) for i in range(1, len(piece)))
    found = [(a, b) for a, b in cuts if a in pieces and b in pieces]
    yield from sorted(found, key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))


def spaced(prefix: bool) -> decoders.Decoder:
    """Return what turns pieces to text; with `prefix` without the space that was put before it."""
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)


def read_sentence_piece(file: Path, about: dict[str, Any]) -> Tokenizer:
    """Return the tokenizer in a `tokenizer.model`.

    Args:
        file: the model.
        about: the `tokenizer_config.json` beside it. Texts behind special tokens begin with a space too unless
            `legacy` is false, as in Hugging Face's classes.

    Raises:
        ModelError: it is damaged, or of a kind that is not supported.
    """
    try:
        message = list(_fields(file.read_bytes()))
        pieces = [dict(_fields(value)) for number, value in message if number == 1]
        tokens = [piece[1].decode() for piece in pieces]
        scores = [unpack("<f", piece.get(2, bytes(4)))[0] for piece in pieces]
        training, normal = (dict(_fields(dict(message).get(number, b""))) for number in (2, 3))
    except (OSError, ValueError, IndexError, KeyError, AttributeError, TypeError) as error:
        raise ModelError(f"{file} cannot be read as a model of SentencePiece: {error}") from None
    kinds = [piece.get(3, NORMAL) for piece in pieces]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    unknown = next((token for token, kind in zip(tokens, kinds, strict=True) if kind == UNKNOWN), None)
    kind = training.get(3, _UNIGRAM)
    if kind not in (_UNIGRAM, _BPE) or unknown is None or len(vocabulary) < len(tokens):
        raise ModelError(
            f"{file} is none of SentencePiece's unigram or BPE models with an unknown token and no token twice, "
            "which are supported"
        )
    if kind == _BPE:
        tokenizer = Tokenizer(merging(file, tokens, scores, vocabulary, kinds, unknown))
    else:
        bytes_too = bool(training.get(35, False))
        tokenizer = Tokenizer(models.Unigram([*zip(tokens, scores, strict=True)], vocabulary[unknown], bytes_too))
    steps: list[Any] = [normalizers.Precompiled(normal[2])] if normal.get(2) else []
    if normal.get(4, True):  # spaces at the ends, and one behind another
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    prefix = bool(normal.get(3, True))
    if about.get("legacy") is False:
        scheme = "first" if prefix else "never"
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    else:
        steps += [normalizers.Prepend(SPACE)] * prefix + [normalizers.Replace(" ", SPACE)]
    if steps:
        tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = spaced(prefix)
    # In texts, which have spaces still.
    shown = [
        token.replace(SPACE, " ") if k == USER_DEFINED else token for token, k in zip(tokens, kinds, strict=True)
    ]
    add_by_kind(tokenizer, shown, kinds)
    return tokenizer


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a protocol buffer's message: their numbers, and integers or bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        if key & 7 == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        size = {1: 8, 5: 4}.get(key & 7)
        if size is None:
            if key & 7 != 2:
                raise ValueError("it is not a protocol buffer")
            size, at = _varint(data, at)
        if at + size > len(data):
            raise ValueError("it is cut off")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError("it is not a protocol buffer")
