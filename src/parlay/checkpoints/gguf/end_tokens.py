"""Which tokens of a GGUF file end an answer.

Files seldom say what ends a turn, so names that models are known to use are recognised, whatever kind of token the
file says they are.

Source: llama.cpp's `llama-vocab.cpp`.
"""

from parlay.checkpoints.gguf.reader import GGUFFile

# A text, a turn and a message that expects a tool's answer end with tokens of their own.
_KEYS = ("eos", "eot", "eom")
END_NAMES = frozenset(
    (
        *("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>"),
        *("<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<end_of_utterance>", "</s>", "<eos>", "<turn|>"),
        *("<|tool_response>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "[e~["),
    )
)
# Between files, which a model that fills gaps in code may go on to write.
_FILLING = {
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
# What begins the parts of such a gap's surroundings; `{}` is one of the words.
_AROUND = {
    "prefix suffix middle": ("<|fim_{}|>", "<fim-{}>", "<fim_{}>", "<|code_{}|>", "<|{}|>"),
    "begin hole end": ("<\uff5cfim\u2581{}\uff5c>",),
    "PRE SUF MID": ("<{}>", "\u2581<{}>"),
}
# Where all of `some` are there, `name` is none that ends an answer.
_EXCEPT = (
    ("<|end|>", ("<|return|>", "<|call|>")),  # of gpt-oss
    ("<|end|>", ("<|flush|>", "<|call|>")),
    ("<|end|>", ("<|flush|>", "<|calls|>")),  # of Solar Open
    ("</s>", ("<|tool_response>",)),  # of Gemma 4, whose tokens have HTML's names
)
# Never text, whatever kind of token the file says they are.
CONTROL_NAMES = END_NAMES.union(
    *_FILLING.values(),
    (name.format(word) for words, names in _AROUND.items() for word in words.split() for name in names),
)


def end_tokens(file: GGUFFile) -> list[int]:
    """Return the tokens that end an answer: those that the file says, and those that have such a name."""
    tokens = file.texts("tokenizer.ggml.tokens")
    known = set(tokens)
    names = END_NAMES - {name for name, some in _EXCEPT if known.issuperset(some)}
    ends = [_id(file, key) for key in (*_KEYS, *_FILLING) if _has(file, key)]
    names = names.union(*(names for key, names in _FILLING.items() if not _has(file, key)))
    return list(dict.fromkeys([*ends, *(i for i, token in enumerate(tokens) if token in names)]))


def _has(file: GGUFFile, key: str) -> bool:
    return f"tokenizer.ggml.{key}_token_id" in file


def _id(file: GGUFFile, key: str) -> int:
    return file.integer(f"tokenizer.ggml.{key}_token_id")
