"""The tokenizer in a GGUF file, as one of the `tokenizers` library.

A file may hold a whole `tokenizer.json`, which is used as it is. Otherwise it is assembled from what llama.cpp uses,
tokens, their types, and merges or scores: byte-level BPE (`gpt2`), SentencePiece's BPE (`llama`), and merges of
SentencePiece's tokens (`gemma4`).

Sources: ggml's `docs/gguf.md`; llama.cpp's `llama-vocab.cpp` for what absent keys and odd vocabularies mean.
"""

from itertools import chain
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from parlay.checkpoints.chat_templates import gguf_templates, template_settings
from parlay.checkpoints.gguf.end_tokens import CONTROL_NAMES
from parlay.checkpoints.gguf.parts import first_part
from parlay.checkpoints.gguf.reader import GGUFFile
from parlay.errors import ModelError, nearest
from parlay.log import logger
from parlay.text.pre_tokenizers import BOS_FIRST, PATTERNS, SAME_AS, WHOLE_WORDS, splitter
from parlay.text.sentence_piece import SPACE, merging, spaced
from parlay.text.special_tokens import CONTROL, NORMAL, UNUSED, add_bos_eos, add_by_kind

_DEFAULTS = {"unk": 0, "bos": 1, "eos": 2}  # of `llama`, where a file does not say
# Phi-3's special tokens swallow the spaces that follow them, apart from these.
_KEEP_SPACES = ("<unk>", "<s>", "<|endoftext|>")


def read_gguf_tokenizer(path: Path) -> tuple[Tokenizer, dict[str, Any]]:
    """Return the tokenizer in a GGUF file, and what its `tokenizer_config.json` would hold for the chat template.

    Raises:
        ModelError: there is none, it is damaged, or its kind is not supported.
    """
    with GGUFFile(first_part(path)) as file:
        tokens = file.texts("tokenizer.ggml.tokens")
        defaults = _DEFAULTS if file.text("tokenizer.ggml.model", "") == "llama" and tokens else {}
        special = {
            f"{name}_token": _token(file, f"tokenizer.ggml.{key}_token_id", tokens, defaults.get(name))
            for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
        }
        config: dict[str, Any] = {key: token for key, token in special.items() if token is not None}
        config |= template_settings(gguf_templates(file))
        whole = file.text("tokenizer.huggingface.json", "")
        try:
            return Tokenizer.from_str(whole) if whole else _assemble(file, tokens, config), config
        except ModelError:
            raise
        except Exception as error:  # the library raises bare Exception
            raise ModelError(f"{path}: its tokenizer cannot be read: {error}") from None


def pad(index: int) -> str:
    """Return the name that converters give to a row of the embedding without a token."""
    return f"[PAD{index}]"


def _assemble(file: GGUFFile, tokens: list[str], config: dict[str, Any]) -> Tokenizer:
    kind = file.text("tokenizer.ggml.model")
    if kind not in _KINDS:
        supported = ", ".join(map(repr, _KINDS))
        raise ModelError(f"{file.path}: tokenizers of the kind {kind!r} are not supported; {supported} are")
    tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(tokens)]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if not tokens or len(vocabulary) < len(tokens):
        twice = next((t for i, t in enumerate(tokens) if vocabulary[t] != i), None)
        raise ModelError(f"{file.path}: its tokenizer {'has no tokens' if twice is None else f'has {twice!r} twice'}")
    kinds = (file.numbers("tokenizer.ggml.token_type") or [NORMAL] * len(tokens))[: len(tokens)]
    if len(kinds) < len(tokens):
        raise ModelError(f"{file.path}: its tokenizer has {len(tokens)} tokens but {len(kinds)} types of tokens")
    # Converters overlook what the name says: these mean something to a model, and are no text.
    kinds = [CONTROL if token in CONTROL_NAMES else own for token, own in zip(tokens, kinds, strict=True)]
    # Tokens with which converters fill the vocabulary up to the rows of the embedding.
    vocabulary = {token: i for token, i in vocabulary.items() if kinds[i] != UNUSED or token != pad(i)}
    tokenizer, add_bos = _KINDS[kind](file, tokens, kinds, vocabulary, config)
    phi3 = kind == "llama" and file.text("general.architecture") == "phi3"
    swallowing = {*tokens} - {*_KEEP_SPACES} if phi3 else ()
    add_by_kind(tokenizer, tokens, kinds, swallowing)
    _frame(file, tokenizer, config, add_bos)
    return tokenizer


def _byte_level(
    file: GGUFFile, tokens: list[str], kinds: list[float], vocabulary: dict[str, int], config: dict[str, Any]
) -> tuple[Tokenizer, bool]:
    pre = file.text("tokenizer.ggml.pre", "default")
    name = SAME_AS.get(pre, pre)
    if name not in PATTERNS:
        known = [*PATTERNS, *SAME_AS]
        raise ModelError(f"{file.path}: the pre-tokenizer {pre!r} is not supported{nearest(pre, known)}")
    merges = _merges(file, vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre in WHOLE_WORDS))
    tokenizer.pre_tokenizer = splitter(name)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, pre in BOS_FIRST


def _merges(file: GGUFFile, vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    given = file.texts("tokenizer.ggml.merges")
    # Usually all are, which sets tell in a tenth of the time.
    plain = [(left, right) for left, _, right in (merge.partition(" ") for merge in given)]
    if vocabulary.keys() >= {*chain.from_iterable(plain), *map("".join, plain)}:
        return plain
    merges = [pair for merge in given if (pair := _pair(merge, vocabulary))]
    if len(merges) < len(given):
        left_out = next(merge for merge in given if not _pair(merge, vocabulary))
        logger.warning(
            "%s: %d of its tokenizer's %d merges are not pairs of tokens that form a token, such as %r; they are "
            "ignored",
            *(file.path, len(given) - len(merges), len(given), left_out),
        )
    return merges


def _spaced_merges(
    file: GGUFFile, tokens: list[str], kinds: list[float], vocabulary: dict[str, int], config: dict[str, Any]
) -> tuple[Tokenizer, bool]:
    """Gemma 4's: merges of whole lines whose spaces are marks, and of characters that have no token their bytes."""
    unknown = config.get("unk_token")
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=_merges(file, vocabulary),
            byte_fallback=True,
            fuse_unk=True,
            ignore_merges=True,  # of line ends, which no merge has
            **({} if unknown is None else {"unk_token": unknown}),
        )
    )
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n+"), "isolated")
    tokenizer.decoder = spaced(prefix=False)
    return tokenizer, True


def _pair(merge: str, vocabulary: dict[str, int]) -> tuple[str, str] | None:
    # A part may begin with a space but hold no other.
    left, _, right = merge[1:].partition(" ")
    left = merge[:1] + left
    return (left, right) if right and {left, right, left + right} <= vocabulary.keys() else None


def _sentence_piece(
    file: GGUFFile, tokens: list[str], kinds: list[float], vocabulary: dict[str, int], config: dict[str, Any]
) -> tuple[Tokenizer, bool]:
    scores = file.numbers("tokenizer.ggml.scores")
    if len(scores) < len(tokens):
        raise ModelError(f"{file.path}: its tokenizer has {len(tokens)} tokens but {len(scores)} scores")
    tokenizer = Tokenizer(merging(file.path, tokens, scores, vocabulary, kinds, config["unk_token"]))
    prefix = file.flag("tokenizer.ggml.add_space_prefix", True)
    escape = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), escape]) if prefix else escape
    tokenizer.decoder = spaced(prefix)
    return tokenizer, True


# By `tokenizer.ggml.model`.
_KINDS = {"gpt2": _byte_level, "llama": _sentence_piece, "gemma4": _spaced_merges}


def _frame(file: GGUFFile, tokenizer: Tokenizer, config: dict[str, Any], add_bos: bool) -> None:
    """Let the tokenizer put what begins and ends a text around it, as the file says."""
    around = []
    for name, default in (("bos", add_bos), ("eos", False)):
        wanted = file.flag(f"tokenizer.ggml.add_{name}_token", default)
        token = config.get(f"{name}_token")
        if wanted and token is None and f"tokenizer.ggml.add_{name}_token" in file:
            raise ModelError(f"{file.path} lacks the key 'tokenizer.ggml.{name}_token_id'")
        around.append(token if wanted else None)
    add_bos_eos(tokenizer, *around)


def _token(file: GGUFFile, key: str, tokens: list[str], default: int | None) -> str | None:
    if key not in file and default is None:
        return None
    index = file.integer(key, default)
    if not 0 <= index < len(tokens):
        raise ModelError(f"{file.path}: {key} is {index}, but there are {len(tokens)} tokens")
    return tokens[index]
