"""Tokenizers of the kind of tiktoken, as ones of the `tokenizers` library: `tekken.json`, `*.tiktoken`.

Their files hold bytes by rank; of two neighbours those merge first whose union has the lowest rank.

Source: mistral-common's `tekken.py` for the places of special tokens; tiktoken's `load.py` for its lines.
"""

from base64 import b64decode
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from parlay.checkpoints.files import read_json
from parlay.errors import ModelError
from parlay.text.pre_tokenizers import PATTERNS
from parlay.text.token_bytes import LETTERS

# Special tokens of Mistral's files that list none; further ones are named by numbers.
_TEKKEN = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
# Pre-tokenizers by the class that reads such files, which do not say it.
_WORDS = {
    "": "llama-bpe",
    "PreTrainedTokenizerFast": "llama-bpe",
    "LlamaTokenizer": "llama-bpe",
    "QWenTokenizer": "qwen2",
    "TikTokenTokenizer": "kimi-k2",  # Moonshot's
}
_LONGEST = 1000  # bytes of a token; longer ones exist in no vocabulary
_SPELLED = {byte: letter for letter, byte in LETTERS.items()}  # for `str.translate`


def read_tekken(file: Path) -> Tokenizer:
    """Return the tokenizer in Mistral's `tekken.json`.

    Raises:
        ModelError: it cannot be read.
    """
    content = read_json(file)
    try:
        config = content["config"]
        count, size = int(config["default_num_special_tokens"]), int(config["default_vocab_size"])
        given = content.get("special_tokens") or [{"rank": i, "token_str": t} for i, t in enumerate(_TEKKEN)]
        special = [f"<SPECIAL_{index}>" for index in range(count)]
        for one in given:
            special[one["rank"]] = one["token_str"]
        ranks = {b64decode(one["token_bytes"]): count + one["rank"] for one in content["vocab"][: size - count]}
        return _assemble(ranks, config["pattern"], {token: index for index, token in enumerate(special)})
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ModelError(f"{file} cannot be read: {error!r}") from None


def is_tiktoken(file: Path) -> bool:
    """Whether a file holds lines of a token and its rank."""
    with file.open("rb") as lines:
        first = lines.readline(4096).split()
    return len(first) == 2 and first[1].isdigit()


def read_tiktoken(file: Path, about: dict[str, Any]) -> Tokenizer:
    """Return the tokenizer in a file of tiktoken.

    Args:
        file: the tokenizer's file.
        about: the `tokenizer_config.json` beside it, which has the special tokens.

    Raises:
        ModelError: it cannot be read, or nothing says how it cuts texts into words.
    """
    name = str(about.get("tokenizer_class") or "")
    if name not in _WORDS:
        raise ModelError(
            f"{file}: the pre-tokenizer of {name} is defined only in the model's own code, which is not run; give "
            "another model's tokenizer.json of the same vocabulary, if there is one"
        )
    try:
        pairs = (line.split() for line in file.read_bytes().splitlines() if line)
        ranks = {b64decode(token, validate=True): int(rank) for token, rank in pairs}
        return _assemble(ranks, PATTERNS[_WORDS[name]][0], {})
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read: {error}") from None


def _assemble(ranks: dict[bytes, int], pattern: str, special: dict[str, int]) -> Tokenizer:
    if max(map(len, ranks), default=0) > _LONGEST:
        raise ValueError(f"it has a token of more than {_LONGEST} bytes")
    spelled = {token: token.decode("latin-1").translate(_SPELLED) for token in ranks}
    merges: list[tuple[str, str]] = []
    for token in sorted(ranks, key=ranks.__getitem__):
        cuts = ((token[:i], token[i:]) for i in range(1, len(token)))
        merges += [(spelled[a], spelled[b]) for a, b in cuts if a in ranks and b in ranks]
    vocabulary = {spelled[token]: rank for token, rank in ranks.items()} | special
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    cut = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    return tokenizer
