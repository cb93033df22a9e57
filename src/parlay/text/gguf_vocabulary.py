"""A tokenizer as the metadata of a GGUF file: what `gguf_tokenizer` reads, written.

llama.cpp has names for ways to split a text into words; the name is found by trying, as its converters do. What is
written is read back and compared with the tokenizer that it was made from. Where a file's keys cannot express the
tokenizer, the whole `tokenizer.json` goes beside them, for readers such as parlay.
"""

import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import Tokenizer

from parlay.checkpoints.chat_templates import DEFAULT
from parlay.checkpoints.gguf.end_tokens import END_NAMES
from parlay.checkpoints.gguf.families import FAMILIES
from parlay.checkpoints.gguf.writer import Value, encode, header
from parlay.errors import ModelError, shown
from parlay.log import logger
from parlay.text.gguf_tokenizer import pad, read_gguf_tokenizer
from parlay.text.pre_tokenizers import PATTERNS, SAME_AS, WHOLE_WORDS, splitter
from parlay.text.sentence_piece import SPACE
from parlay.text.special_tokens import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, token_text
from parlay.text.tokenizer_files import read_texts

# Texts that pre-tokenizers cut differently, to recognise them by.
PROBES = (
    "'self' don't it'sy they'LLo we'Ve I'm you'd 'Re x'S",
    "12345 1 22 333 4444 55555 666666 x1y22z ²³ Ⅷ ٣٤٥ 3.14 1,000  12   345",
    "aB AbC ABc iPhone HTMLParser ǅungla parseJSON's X'ray ABC's Élan ÀÉî",
    "  two   three\ttab\t\ttabs \n\n  \r\n mixed \n x  ",
    "def f(x):\n    return x**2  # square!\n\n\n\nif a == b != c:\n\t\tpass;\n",
    "a/b//c /d\n/ e/\n .../..\n!!! ?!\n\n(((x)))[[y]]{{z}} $5 ^~|+<=> ¿qué? «oui»",
    "naïve café 東京タワー 안녕하세요 Привет мир שלום مرحبا नमस्ते ไทย 🙂🙂 👩‍👩‍👧 \u200b\u00a0x\u3000y",
    "e\u0301 \u0915\u093f \u0e01\u0e33 \u1100\u1161 _under_score __init__ a-b a_b #tag @me 50% C++ C# .NET",
    "\x07\x1b[0m end. End.\nNext\u2028line \ufffd \u2019s it\u2019s",
)
_ADDED = 64  # added tokens that are tried out


def vocabulary(path: Path, arch: str, size: int, ends: Sequence[int], raw: Mapping[str, Any]) -> dict[str, Value]:
    """Return the keys that describe a model's tokenizer and chat template.

    Args:
        path: a model directory.
        arch: a file's name of its architecture.
        size: number of tokens that the model embeds.
        ends: those that end an answer.
        raw: the model's `config.json`.

    Raises:
        ModelError: there is no tokenizer, or none of those that files can hold.
    """
    tokenizer, about = read_texts(path)
    spec = json.loads(tokenizer.to_str())
    if spec["model"]["type"] != "BPE":
        raise ModelError(
            f"{path}: tokenizers of the kind {shown(spec['model']['type'])} cannot be written; byte-level BPE and "
            "SentencePiece's BPE can"
        )
    own = tokenizer.get_vocab()
    if max(own.values(), default=0) >= size:
        raise ModelError(
            f"{path}: its tokenizer has {max(own.values()) + 1} tokens, more than the {size} that it "
            "embeds; a GGUF file cannot hold it"
        )
    keys = {**_special(path, size, tokenizer, ends, about, raw), **_frame(path, tokenizer)}
    letters = "ByteLevel" in json.dumps(spec["pre_tokenizer"])
    keys |= _byte_level(path, tokenizer, spec) if letters else _PIECES[FAMILIES[arch].tokenizer_kind](tokenizer, spec)
    keys |= _tokens(size, own, spec, letters)
    keys = {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value != []}
    templates = about.get("chat_templates", {})
    for name, template in templates.items():
        keys["tokenizer.chat_template" + ("" if name == DEFAULT else f".{name}")] = template
    if names := sorted(templates.keys() - {DEFAULT}):
        keys["tokenizer.chat_templates"] = names
    if not _says_all(path, tokenizer, {"general.architecture": arch, **keys}):
        logger.warning(
            "%s: its tokenizer does more than a GGUF file's keys can express; parlay reads all of it from the "
            "file, others use the keys and may tokenize rare texts differently",
            path,
        )
        keys["tokenizer.huggingface.json"] = tokenizer.to_str()
    return keys


def _special(
    path: Path, size: int, tokenizer: Tokenizer, ends: Sequence[int], about: dict[str, Any], raw: Mapping[str, Any]
) -> dict[str, Value]:
    """Return the ids of tokens that have a role."""
    ids: dict[str, Value] = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        named = about.get(f"{name}_token")
        index = tokenizer.token_to_id(token_text(named)) if named else raw.get(f"{name}_token_id")
        if name == "eos" and not isinstance(index, int):
            index = next(iter(ends), None)
        if isinstance(index, int) and 0 <= index < size:
            ids[f"{key}_token_id"] = index
    # Those that end an answer by their name need no key.
    further = [i for i in ends if i != ids.get("eos_token_id")]
    further = [i for i in further if tokenizer.id_to_token(i) not in END_NAMES]
    ids |= dict(zip(("eot_token_id", "eom_token_id"), further, strict=False))
    if len(further) > 2:
        logger.warning("%s: the end-of-sequence tokens %s do not fit into a GGUF file", path, further[2:])
    return ids


def _frame(path: Path, tokenizer: Tokenizer) -> dict[str, Value]:
    """Return whether BOS and EOS are put around a text."""
    inner = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a").ids
    before = next((i for i in range(len(whole)) if whole[i : i + len(inner)] == inner), 0)
    return {"add_bos_token": before > 0, "add_eos_token": len(whole) > before + len(inner)}


def _byte_level(path: Path, tokenizer: Tokenizer, spec: dict[str, Any]) -> dict[str, Value]:
    assert tokenizer.pre_tokenizer is not None
    words = [_words(tokenizer.pre_tokenizer, text) for text in PROBES]
    whole = bool(spec["model"].get("ignore_merges"))
    for pattern in PATTERNS:
        names = [pattern, *(alias for alias, same in SAME_AS.items() if same == pattern)]
        name = next((name for name in names if (name in WHOLE_WORDS) == whole), None)
        if name is not None and words == [_words(splitter(pattern), text) for text in PROBES]:
            return {"model": "gpt2", "pre": name, "merges": _pairs(spec)}
    raise ModelError(
        f"{path}: GGUF files have no name for the pre-tokenizer of its tokenizer; these are known: "
        f"{', '.join((*PATTERNS, *SAME_AS))}"
    )


def _words(splits: Any, text: str) -> list[str]:
    return [word for word, _ in splits.pre_tokenize_str(text)]


def _pairs(spec: dict[str, Any]) -> list[str]:
    return [m if isinstance(m, str) else " ".join(m) for m in spec["model"]["merges"]]


def _sentence_piece(tokenizer: Tokenizer, spec: dict[str, Any]) -> dict[str, Value]:
    tokens = tokenizer.encode("a", add_special_tokens=False).tokens
    return {"model": "llama", "pre": "default", "add_space_prefix": bool(tokens) and tokens[0].startswith(SPACE)}


def _spaced_merges(tokenizer: Tokenizer, spec: dict[str, Any]) -> dict[str, Value]:
    return {"model": "gemma4", "merges": _pairs(spec), "add_space_prefix": False}


# By what files of a family call them.
_PIECES = {"llama": _sentence_piece, "gemma4": _spaced_merges}


def _tokens(size: int, own: dict[str, int], spec: dict[str, Any], letters: bool) -> dict[str, Value]:
    """Return tokens and their types, and SentencePiece's scores: the sooner two pieces merge, the higher."""
    merges = (m.split(" ") if isinstance(m, str) else m for m in spec["model"]["merges"])
    ranks: dict[str, int] = {}
    for left, right in () if letters else merges:
        ranks.setdefault(left + right, len(ranks))
    texts, types, scores = [pad(i) for i in range(size)], [UNUSED] * size, [0.0] * size
    for token, index in own.items():
        texts[index], types[index] = token, NORMAL
        scores[index] = -float(ranks.get(token, len(ranks) + index))
        if not letters and token.startswith("<0x") and len(token) == 6 and token.endswith(">"):
            types[index], scores[index] = BYTE, 0.0
    for added in spec["added_tokens"]:
        # A token that merges of pieces give need not be added.
        if added["special"] or added["content"] not in ranks:
            types[added["id"]] = CONTROL if added["special"] else USER_DEFINED
            scores[added["id"]] = 0.0
    unknown = spec["model"].get("unk_token")
    if not letters and unknown in own:
        types[own[unknown]] = UNKNOWN
    keys: dict[str, Value] = {"tokens": texts, "token_type": types}
    return keys if letters else {**keys, "scores": scores}


def _says_all(path: Path, tokenizer: Tokenizer, keys: dict[str, Value]) -> bool:
    """Return whether a tokenizer made of some keys does all that the original does.

    Raises:
        ModelError: it does not even do the same with common texts.
    """
    with TemporaryDirectory() as folder:
        file = Path(folder) / "tokenizer.gguf"
        file.write_bytes(header({key: encode(value) for key, value in keys.items()}, ()))
        try:
            made, _ = read_gguf_tokenizer(file)
        except ModelError as error:
            reason = str(error).replace(str(file), "it")
            raise ModelError(f"{path}: its tokenizer cannot be put into a GGUF file: {reason}") from None
    for text in PROBES:
        normal = unicodedata.normalize("NFC", text).lstrip()
        if made.encode(normal).ids != tokenizer.encode(normal).ids:
            raise ModelError(
                f"{path}: its tokenizer cannot be put into a GGUF file, which would tokenize "
                f"{shown(normal[:20])} differently"
            )
    same = all(_tokenized(made, text) == _tokenized(tokenizer, text) for text in _edge_cases(tokenizer))
    return same and made.get_vocab() == tokenizer.get_vocab() and _merges(made) == _merges(tokenizer)


def _edge_cases(tokenizer: Tokenizer) -> Iterator[str]:
    """Yield texts in which normalisers and added tokens show what they do."""
    yield from PROBES
    for added in list(tokenizer.get_added_tokens_decoder().values())[:_ADDED]:
        yield f" {added.content} a{added.content}b  {added.content}\n{added.content}{added.content.upper()} c"


def _tokenized(tokenizer: Tokenizer, text: str) -> tuple[list[int], str, str]:
    ids = list(tokenizer.encode(text).ids)
    return ids, tokenizer.decode(ids), tokenizer.decode(ids, skip_special_tokens=False)


def _merges(tokenizer: Tokenizer) -> list[Any]:
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return [m.split(" ") if isinstance(m, str) else m for m in merges]
