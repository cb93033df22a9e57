"""An output layer as proposers use it, the target's or a draft model's: whole, or the rows of the commonest tokens.

With large vocabularies a draft token reads more of the output layer than of the head: 248,320 rows are 16 % of a
model of 4 billion weights. FR-Spec (Zhao et al. 2025, arXiv 2502.14856) drafts the commonest tokens alone; they are
verified as ever. How many of a text's tokens are among them depends on the text, of which a proposer sees every
token: it uses the shorter layer while enough of them are.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from parlay.errors import ConfigError
from parlay.kernels.base import Kernels
from parlay.models.config import ModelConfig
from parlay.models.select import records_logits
from parlay.proposers.base import Runtime, TargetInfo
from parlay.proposers.heads import CheckpointOptions
from parlay.proposers.target_layers import output_layer, reduced_output
from parlay.proposers.vocabulary import frequent_ids
from parlay.runner.footprint import embed_and_lm_head_bytes
from parlay.runner.graphs import MOST_ROWS
from parlay.types.plan import Span, Verdict

COMMON = 32_768  # as in FR-Spec, where they are 97 % of a chat's tokens
_ACCEPTANCE = 0.7  # assumed acceptance of a draft token; a high one has more to lose
_NODES = 3  # length of the drafts for which both are compared
_RECENT = 512  # latest tokens of which the share is taken


@dataclass(frozen=True, slots=True)
class OutputOptions(CheckpointOptions):
    """Options of a checkpoint that drafts from a large output layer.

    Attributes:
        draft_vocab_size: draft only this many tokens, the commonest ones: a draft token then reads so many rows of
            the output layer. None for 32,768 where that pays, and for all tokens where not.
    """

    draft_vocab_size: int | None = None

    def __post_init__(self) -> None:
        CheckpointOptions.__post_init__(self)
        if self.draft_vocab_size is not None and self.draft_vocab_size < 2:
            raise ConfigError(f"draft_vocab_size must be at least 2, not {self.draft_vocab_size}")


def least_share(target: ModelConfig, head: ModelConfig, owner: ModelConfig, rows: int) -> float:
    """Return which share of a text's tokens so many rows of the output layer must have for drafts of them to pay.

    A step, and each node, takes as long as the weights that it reads.

    Args:
        target: the target.
        head: config of the layers that a node reads besides the output layer.
        owner: config of the model that has the output layer.
        rows: number of its rows.

    Returns:
        More than 1 where they never pay.
    """
    output = owner.hidden_size * owner.tokens
    step, layer = _numbers(target) + target.hidden_size * target.tokens, _numbers(head)
    whole = _tokens(1.0) / (step + _NODES * (layer + output))
    short = step + _NODES * (layer + output * rows // owner.tokens)
    return next((percent / 100 for percent in range(101) if _tokens(percent / 100) / short > whole), 2.0)


def _numbers(config: ModelConfig) -> int:
    """Return how many weights a token reads, the output layer's apart."""
    return sum(product.shape[0] * product.shape[1] * product.times for product in config.products())


def _tokens(share: float) -> float:
    """Return the tokens that a step emits where so many of the text's can be drafted."""
    return sum((_ACCEPTANCE * share) ** depth for depth in range(_NODES + 1))


class ReducedOutput:
    """Some rows of an output layer.

    Attributes:
        bytes: memory of them and of their logits, besides the owner's own.
    """

    def __init__(self, owner: ModelConfig, dtype: torch.dtype, ids: Tensor) -> None:
        """Choose the rows of tokens, int64 `[D]`, of a model's output layer; none are read yet."""
        self._owner, self._dtype, self._ids = owner, dtype, ids
        whole = embed_and_lm_head_bytes(owner, dtype) // (1 if owner.tie_embeddings else 2)
        self.bytes = whole * len(ids) // owner.vocab_size + 4 * MOST_ROWS * len(ids)

    def load(self, kernels: Kernels) -> None:
        """Read them.

        Raises:
            ModelError: they cannot be read.
        """
        self._layer = reduced_output(self._owner, self._dtype, kernels, self._ids)
        self._logits = torch.zeros((MOST_ROWS, len(self._ids)))

    def __call__(self, states: Tensor) -> Tensor:
        """Return float32 logits `[rows, D]` of at most `MOST_ROWS` states after the final norm."""
        return self._layer(states, self._logits[: len(states)])


class DraftOutput:
    """The output layer of a proposer.

    Attributes:
        ids: int64 `[D]`, the tokens of the logits; None for all of the layer's.
        recordable: whether logits are computed by kernels alone.
    """

    def __init__(
        self, target: TargetInfo, head: ModelConfig, size: int | None, owner: ModelConfig | None = None
    ) -> None:
        """Choose the rows.

        Args:
            target: the target to draft for.
            head: config of the layers that a node reads besides it.
            size: number of different tokens to draft; None for as many as pay.
            owner: config of the model that has the output layer; None for the target.
        """
        self._owner, self._dtype = owner or target.config, target.dtype
        tokens = self._owner.tokens
        pays = size is None and tokens > COMMON
        self._least = least_share(target.config, head, self._owner, COMMON) if pays else 0.0
        short = self._least <= 1 if size is None else size < tokens
        self._short, self._few = None, None
        if short and tokens > (size or COMMON):
            self._short = frequent_ids(tokens, size or COMMON, target.config.eos_token_ids)
            self._few = ReducedOutput(self._owner, self._dtype, self._short)
            self._has = frozenset[int](self._short.tolist())
        self.ids = self._short
        self._seen = self._common = 1.0

    @property
    def bytes(self) -> int:
        """Memory of the rows and of their logits, besides the owner's own."""
        return 0 if self._few is None else self._few.bytes

    def load(self, runtime: Runtime, whole: Callable[[Tensor], Tensor] | None = None) -> None:
        """Read the rows.

        Args:
            runtime: what the proposer may use.
            whole: function that returns the logits of the whole layer; None for that of `runtime.target`.
        """
        self._whole, self.recordable = whole or output_layer(runtime.target, MOST_ROWS), True
        if whole is None:
            self.recordable = records_logits(runtime.target)
        if self._least and runtime.keep_distributions:  # distributions are of one length
            self.ids = self._short = self._few = None
        if self._short is not None:
            self.ids = self._short = runtime.kernels.to_device(self._short)
        if self._few is not None and not runtime.group.rank:  # rank 0 alone drafts
            self._few.load(runtime.kernels)

    def observe(self, spans: Sequence[Span], verdicts: Sequence[Verdict]) -> None:
        """Choose the layer for the next drafts, now that texts go on as a step has found."""
        if self._short is None or not self._least:
            return
        pairs = zip(spans, verdicts, strict=True)
        self.read(token for span, verdict in pairs for token in (*span.tokens, *verdict.tokens[:-1]))

    def read(self, tokens: Iterable[int]) -> None:
        """Choose the layer, now that a text goes on with these tokens, at least one."""
        if self._short is None or not self._least:
            return
        own = [*tokens]
        keep = max(1 - len(own) / _RECENT, 0.0)
        self._seen = keep * self._seen + len(own)
        self._common = keep * self._common + sum(token in self._has for token in own)
        self.ids = self._short if self._common >= self._least * self._seen else None

    def __call__(self, states: Tensor) -> Tensor:
        """Return float32 logits `[rows, D]` of at most `MOST_ROWS` states after the final norm."""
        if self.ids is None or self._few is None:
            return self._whole(states)
        return self._few(states)
