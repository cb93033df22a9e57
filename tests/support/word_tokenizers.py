"""Small tokenizers of the kinds whose decoders treat the first word of a text differently."""

from collections.abc import Callable

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

WORDS = ("the", "Paris", "for", "id", "return", "x", "ab", ".", "é", "日")
SPACE = "\u2581"
BYTES = {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}


def _pieces(*names: str) -> dict[str, int]:
    vocab = {name: index for index, name in enumerate(("<unk>", "<s>", "</s>", *names))}
    for word in (SPACE, SPACE * 3, *WORDS, *(SPACE + word for word in WORDS)):
        vocab[word] = len(vocab)
    return vocab


def _merges(vocab: dict[str, int]) -> list[tuple[str, str]]:
    for word in (*WORDS, SPACE + SPACE):
        for end in range(1, len(word) + 1):
            vocab.setdefault(word[:end], len(vocab))
            vocab.setdefault(word[end - 1], len(vocab))
    found = [(w[:i], w[i]) for w in (*WORDS, SPACE * 3) for i in range(1, len(w))]
    return [*dict.fromkeys(found), *((SPACE, word) for word in WORDS)]


def _named(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def llama(first: bool = True) -> Tokenizer:
    """As Llama 1 and 2, Mistral 7B and Phi-3 ship it; without `first` as Gemma."""
    vocab = _pieces(*BYTES)
    merges = _merges(vocab)
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    escape = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), escape]) if first else escape
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if first else steps)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return _named(tokenizer)


def metaspace(scheme: str) -> Tokenizer:
    """As T5, XLM-R and Llama 2's later conversions ship it."""
    vocab = _pieces()
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=_merges(vocab), unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return _named(tokenizer)


def word_piece() -> Tokenizer:
    """As BERT."""
    vocab = {name: i for i, name in enumerate(["<unk>", "<s>", "</s>", *WORDS, *(f"##{word}" for word in WORDS)])}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return _named(tokenizer)


def suffixed() -> Tokenizer:
    """As GPT 1: words end in a mark."""
    vocab = {name: i for i, name in enumerate(["<unk>", "<s>", "</s>", *WORDS, *(f"{word}</w>" for word in WORDS)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.decoder = decoders.BPEDecoder()
    return _named(tokenizer)


def byte_level() -> Tokenizer:
    """As GPT 2."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = ["<unk>", "<s>", "</s>", *letters, *("Ġ" + word for word in WORDS if word.isascii())]
    tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _named(tokenizer)


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "llama": llama,
    "gemma": lambda: llama(first=False),
    "metaspace first": lambda: metaspace("first"),
    "metaspace always": lambda: metaspace("always"),
    "metaspace never": lambda: metaspace("never"),
    "word piece": word_piece,
    "suffixed": suffixed,
    "byte level": byte_level,
}
