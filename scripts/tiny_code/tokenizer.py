"""Train the 4,096-token byte-level BPE tokenizer shared by the target and the draft."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

ASSETS = Path(__file__).resolve().parents[2] / "src/parlay/assets"
VOCAB_SIZE = 4096
MODEL_MAX_LENGTH = 2048
END, PAD, SYSTEM, USER, ASSISTANT = SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|pad|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
)

# Contractions apart, the split of recent byte-level models: words with one leading
# mark or space, single digits, runs of punctuation, line ends, runs of spaces.
SPLIT = (
    r"[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\\n' + message['content'] | trim + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)


def texts(path: Path) -> Iterator[str]:
    """Yield the text of every document of a corpus file."""
    with path.open() as lines:
        for line in lines:
            yield json.loads(line)["text"]


def train(corpus: Path) -> Tokenizer:
    """Train on the corpus; the special tokens take the first ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=24,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(corpus), trainer)
    return tokenizer


def tokenizer_config() -> dict[str, object]:
    """Return what the tokenizer file itself does not say."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": MODEL_MAX_LENGTH,
        "bos_token": END,
        "eos_token": END,
        "pad_token": PAD,
        "extra_special_tokens": [SYSTEM, USER, ASSISTANT],
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def main() -> None:
    """Train the tokenizer and save it beside both models."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder of the corpus")
    tokenizer = train(parser.parse_args().work / "train.jsonl")
    for name in ("tiny-code", "tiny-code-draft"):
        folder = ASSETS / name
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
        config = json.dumps(tokenizer_config(), indent=2) + "\n"
        (folder / "tokenizer_config.json").write_text(config)


if __name__ == "__main__":
    main()
