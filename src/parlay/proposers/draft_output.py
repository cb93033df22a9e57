"""The target's output layer as a head uses it: whole, or the rows of the commonest tokens alone.

With large vocabularies a draft token reads more of the output layer than of the head: 248,320 rows are 16 % of a
model of 4 billion weights. FR-Spec (Zhao et al. 2025, arXiv 2502.14856) drafts the commonest tokens alone; they are
verified as ever. How many of a text's tokens are among them depends on the text, of which a head sees every token: it
uses the shorter layer while enough of them are.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from parlay.models.config import ModelConfig
from parlay.proposers.base import Runtime, TargetInfo
from parlay.proposers.target_layers import output_layer, records_logits, reduced_output
from parlay.proposers.vocabulary import frequent_ids
from parlay.runner.footprint import end_bytes
from parlay.runner.graphs import MOST_ROWS

COMMON = 32_768  # as in FR-Spec, where they are 97 % of a chat's tokens
_ACCEPTANCE = 0.7  # of a draft token, usually: a high one has more to lose
_NODES = 3  # of a draft, for which both are compared
_RECENT = 512  # tokens that a share of them is of


def least_share(target: ModelConfig, head: ModelConfig, rows: int) -> float:
    """Return which share of a text's tokens so many rows of the output layer must have for drafts of them to pay.

    A step, and each node, takes as long as the weights that it reads.

    Returns:
        More than 1 where they never pay.
    """
    output = target.hidden_size * target.tokens
    step, layer = _numbers(target) + output, _numbers(head)
    whole = _tokens(1.0) / (step + _NODES * (layer + output))
    short = step + _NODES * (layer + output * rows // target.tokens)
    return next((percent / 100 for percent in range(101) if _tokens(percent / 100) / short > whole), 2.0)


def _numbers(config: ModelConfig) -> int:
    """Return how many weights a token reads, the output layer's apart."""
    return sum(product.shape[0] * product.shape[1] * product.times for product in config.products())


def _tokens(share: float) -> float:
    """Return the tokens that a step emits where so many of the text's can be drafted."""
    return sum((_ACCEPTANCE * share) ** depth for depth in range(_NODES + 1))


class DraftOutput:
    """The output layer of a head.

    Attributes:
        ids: int64 `[D]`, the tokens of the logits; None for all of the target's.
        recordable: whether logits are computed by kernels alone.
    """

    def __init__(self, target: TargetInfo, head: ModelConfig, size: int | None) -> None:
        """Choose the rows.

        Args:
            target: whose output layer it is.
            head: the layers that a node reads besides it.
            size: how many tokens to draft; None for as many as pay.
        """
        self._target, tokens = target, target.config.tokens
        self._least = least_share(target.config, head, COMMON) if size is None and tokens > COMMON else 0.0
        short = self._least <= 1 if size is None else size < tokens
        self._short = None
        if short and tokens > (size or COMMON):
            self._short = frequent_ids(tokens, size or COMMON, target.config.eos_token_ids)
            self._has = torch.zeros(target.config.vocab_size, dtype=torch.bool)
            self._has[self._short] = True
        self.ids = self._short
        self._seen = self._common = 1.0

    @property
    def bytes(self) -> int:
        """Memory of the rows and of the logits, besides the target's own."""
        config = self._target.config
        found = 4 * MOST_ROWS * config.vocab_size
        if self._short is not None:
            ends = end_bytes(config, self._target.dtype) // (1 if config.tie_embeddings else 2)
            found += ends * len(self._short) // config.vocab_size + 4 * MOST_ROWS * len(self._short)
        return found

    def load(self, runtime: Runtime) -> None:
        """Read the rows; `runtime.target` has the whole layer."""
        self._whole, self.recordable = output_layer(runtime.target, MOST_ROWS), records_logits(runtime.target)
        self._few: Callable[[Tensor], Tensor] | None = None
        if self._least and runtime.keep_distributions:  # which are of one length
            self.ids = self._short = None
        if self._short is None or runtime.group.rank:  # rank 0 alone drafts
            return
        layer = reduced_output(self._target.config, self._target.dtype, runtime.kernels, self._short)
        memory = torch.zeros((MOST_ROWS, len(self._short)))
        self._few = lambda states: layer(states, memory[: len(states)])

    def observe(self, tokens: Iterable[int]) -> None:
        """Choose the layer for the next drafts, now that a text goes on with these tokens."""
        if self._short is None or not self._least:
            return
        own = torch.tensor([*tokens])
        keep = max(1 - len(own) / _RECENT, 0.0)
        self._seen = keep * self._seen + len(own)
        self._common = keep * self._common + int(self._has[own].sum())
        self.ids = self._short if self._common >= self._least * self._seen else None

    def __call__(self, states: Tensor) -> Tensor:
        """Return float32 logits `[rows, D]` of at most `MOST_ROWS` states after the final norm."""
        if self.ids is None or self._few is None:
            return self._whole(states)
        return self._few(states)
