"""DFlash2: a block in one pass with convolutions along it, then a path among the likeliest tokens of each place.

Idea: the authors of DFlash (2026), as `speculators` and vLLM implement it. A layer's attention and network are each
within convolutions along the block, so that a mask learns of its neighbours. Of each place the likeliest few tokens
are candidates; which of them follows the token before is scored by a product of low rank.

Loses where the right token is not among the candidates.
"""

import torch
from torch import Tensor

from parlay.checkpoints.loader import Checkpoint
from parlay.errors import ModelError
from parlay.models.layers import Linear
from parlay.proposers.base import Runtime
from parlay.proposers.block_layers import LayerWrapper
from parlay.proposers.block_walk import BlockWalk
from parlay.proposers.heads import CheckpointOptions as Options
from parlay.proposers.methods.dflash2 import format as form
from parlay.proposers.methods.dflash2.convolution import Convolution

__all__ = ["Options", "Proposer"]


class Proposer(BlockWalk):
    """Drafts along the candidates of a block's places."""

    source = "dflash2"
    records = False  # convolutions are no kernels
    plain = (form.BEFORE, form.AFTER)

    def extra_shapes(self, weights: Checkpoint) -> dict[str, tuple[int, ...]]:  # noqa: D102
        settings, width, vocab = self.blocks.settings, self.config.hidden_size, self.config.vocab_size
        taps, group, rank, self._candidates = (
            settings.count(key) for key in (form.TAPS, form.GROUP, form.RANK, form.CANDIDATES)
        )
        if width % group:
            raise ModelError(f"{settings.file}: {form.GROUP}={group} does not divide the width {width}")
        shapes: dict[str, tuple[int, ...]] = {
            form.BEFORE: (vocab, rank),
            form.AFTER: (vocab, rank),
            form.HIDDEN: (rank, width),
        }
        for i in range(self.config.num_layers):
            for name in form.CONVOLUTIONS:
                shapes[f"layers.{i}.{name}.{form.BASE}"] = (2, taps, width)
                shapes[f"layers.{i}.{name}.{form.PROJECTION}"] = (2 * taps * (width // group), width)
        return shapes

    def wrappers(self, weights: Checkpoint, layer: int, runtime: Runtime) -> tuple[LayerWrapper, LayerWrapper]:  # noqa: D102
        attention, network = (self._convolution(weights, f"layers.{layer}.{x}.", runtime) for x in form.CONVOLUTIONS)
        return attention, network

    def _convolution(self, weights: Checkpoint, prefix: str, runtime: Runtime) -> Convolution:
        dtype = self._target.dtype
        base = weights.read(prefix + form.BASE, dtype)
        return Convolution(
            runtime.kernels, base, weights.read_weight(prefix + form.PROJECTION, dtype), self.blocks.block
        )

    def read(self, weights: Checkpoint, runtime: Runtime) -> None:  # noqa: D102
        super().read(weights, runtime)
        dtype = self._target.dtype
        self._predecessors, self._successors = weights.read(form.BEFORE, dtype), weights.read(form.AFTER, dtype)
        self._project = Linear(runtime.kernels, weights.read_weight(form.HIDDEN, dtype))

    def revise(self, before: Tensor, hidden: Tensor, base: Tensor, out: Tensor) -> None:
        """Score the candidates by the token before; other tokens cannot be drafted."""
        unary, places = base.topk(min(self._candidates, base.shape[1]))
        gate = hidden.new_empty((len(hidden), self._predecessors.shape[1]))
        self._project(hidden, gate)
        last = len(self._predecessors) - 1
        entries = self._predecessors[before.clamp(max=last)].float() * gate.float()
        tokens = places if self.ids is None else self.ids[places]
        edges = (self._successors[tokens.clamp(max=last)].float() @ entries[..., None]).squeeze(-1)
        out.fill_(-torch.inf).scatter_(1, places, unary + edges)
