"""Vocabularies of the same tokens that are padded to different sizes, such as Qwen2.5's 151,936 and 152,064 rows.

Tokens beyond the shorter one stand for nothing. A proposer never drafts them, and embeds them as some other token.
"""

import filecmp
from collections.abc import Collection
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from parlay.checkpoints.files import tokenizer_file
from parlay.errors import ModelError
from parlay.models.config import ModelConfig
from parlay.models.heads import differs_by_padding
from parlay.text.tokenizer_files import read_tokenizer
from parlay.weights.weight import Weight

_SPECIAL = 512  # Qwen3.5, DeepSeek and GLM have 30 to 300 special tokens, and some rows of padding behind them


def ids_of(size: int, target: int) -> Tensor | None:
    """Return the target's ids of a proposer's tokens, `[size]`, where it has fewer; or else None."""
    return torch.arange(size) if size < target else None


def checked_ids(ids: Tensor, target: int, source: str) -> Tensor:
    """Return the target's ids of a proposer's tokens, int64 `[size]`, as a checkpoint has them.

    Raises:
        ModelError: one is none of the target's, which has so many tokens.
    """
    if not bool(((ids >= 0) & (ids < target)).all()):
        raise ModelError(f"{source} maps to token ids beyond the target's {target}")
    return ids


def frequent_ids(size: int, count: int, ends: Collection[int]) -> Tensor:
    """Return ids of the commonest tokens as far as a vocabulary's order tells, ascending: int64 `[count or more]`.

    Tokenizers number what they merge in the order of its frequency, and special tokens last.

    Args:
        size: size of the vocabulary.
        count: number of tokens; those that end answers come on top.
        ends: ids of the tokens that end answers.
    """
    special = min(_SPECIAL, count // 2)
    chosen = {
        *range(min(count - special, size)),
        *range(max(size - special, 0), size),
        *(i for i in ends if i < size),
    }
    return torch.tensor(sorted(chosen))


def fitted(weight: Weight, rows: int) -> Weight:
    """Return an embedding `[D, width]` with so many rows: the last ones are left out, or stand there once more."""
    size = weight.shape[0]
    if size >= rows:
        return weight if size == rows else weight.outputs(0, rows)
    return Weight.stack([weight, weight.outputs(size - (rows - size), size)])


def difference(draft: ModelConfig, target: ModelConfig, tokenizer: Path | None = None) -> str | None:
    """Return how a draft model means other tokens by the target's ids, apart from padding and added tokens.

    Args:
        draft, target: the two models.
        tokenizer: path of the target's tokenizer, if not beside its weights.

    Returns:
        A sentence; None if it does not: the sizes differ by no more than padding, nor do the tokenizers.

    Raises:
        ModelError: a tokenizer cannot be read.
    """
    if not differs_by_padding(draft.vocab_size, target.vocab_size):
        return (
            f"the draft model {draft.path} has {draft.vocab_size} tokens but the target {target.path} has "
            f"{target.vocab_size}"
        )
    own, other = tokenizer_file(draft.path), tokenizer_file(tokenizer or target.path)
    if not own.is_file() or not other.is_file() or filecmp.cmp(own, other, shallow=False):
        return None
    ours, theirs = _texts(read_tokenizer(own)), _texts(read_tokenizer(other))
    if any(theirs.get(token, text) != text for token, text in ours.items()):
        return f"the draft model {draft.path} gives other ids to tokens than the target {target.path}"
    return None


def _texts(tokenizer: Tokenizer) -> dict[int, str]:
    """Return the tokens that text consists of; a model's fine-tuning renames others."""
    added = tokenizer.get_added_tokens_decoder()
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    return {token: text for text, token in vocabulary.items() if token not in added}
