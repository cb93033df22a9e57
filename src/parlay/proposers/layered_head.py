"""Heads with several layers, of which each predicts from what the one before it has predicted.

The first layer pairs a token with the target's state before it, as every `FeatureHead` does; the next one pairs a
token with the state that the first has predicted for the token before it, and so on. So layer k predicts the token k
places after the next one, which its training was for:

    S[0][j] = L[0](t[j], h[j-1]),   S[k][j] = L[k](t[j], S[k-1][j-1])

and what it keeps in a token's slot depends on the tokens up to there alone, as in the first. A step keeps the new
tokens in every layer. What all layers but the last have predicted for a token is kept too, in its slot: the pair
after it needs that, in the next step or in another request with the same prefix.

Level k of a draft follows from layer k. Behind the last layer that one goes on with states of its own. Each node runs
through every layer that a later level needs, since these have to know it then.

Source: DeepSeek-AI 2024 (arXiv 2412.19437), section 2.2. Others leave off after the last layer (transformers), or
run the first one alone, again and again (vLLM, see its issue 52688).
"""

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from parlay.kv.cache_tensors import allocate
from parlay.models.context import ForwardContext, keys_of
from parlay.proposers.base import Runtime, TargetInfo
from parlay.proposers.draft_head import Start
from parlay.proposers.feature_head import FeatureHead
from parlay.proposers.heads import CheckpointOptions
from parlay.runner.batch import Batch
from parlay.runner.graphs import MOST_ROWS
from parlay.types.cache import CacheSpec


class LayeredHead(FeatureHead):
    """A proposer with such a head. Its `describe` sets `depth`, and its states are as wide as the target's.

    In layer k the first k tokens that the head sees have no pair, so nothing is drafted before there are pairs in
    every layer.
    """

    def __init__(self, options: CheckpointOptions, target: TargetInfo) -> None:
        super().__init__(options, target)
        assert self.cache is not None
        self.cache = replace(self.cache, extra=(self.depth - 1) * self.config.hidden_size)

    def load(self, runtime: Runtime) -> None:
        """Read the weights, and allocate what is kept of tokens and of drafts."""
        super().load(runtime)
        if runtime.group.rank:  # only rank 0 drafts
            return
        dtype, width = self._target.dtype, self.config.hidden_size
        # What each layer but the last has predicted, by slots.
        spec = CacheSpec(self.depth - 1, kv_heads=1, head_dim=width, itemsize=dtype.itemsize, values=False)
        kept = map(keys_of, allocate(spec, runtime.num_blocks, runtime.block_size, dtype, kernels=runtime.kernels))
        self._kept = [cache.key.view(-1, width) for cache in kept if cache is not None]
        self._states = torch.zeros((self.depth, MOST_ROWS, width), dtype=dtype)  # by layers, of a level's rows
        self._firsts = torch.zeros((self.depth, MOST_ROWS), dtype=torch.int32)  # first key that each layer's rows see
        self._reached = self.depth

    @abstractmethod
    def run_pairs_in(self, layer: int, tokens: Tensor, state: Tensor, context: ForwardContext) -> None:
        """Run a layer on tokens `[rows]` with `state` `[rows, d]`, which is replaced by the predicted state."""

    def run_pairs(self, tokens: Tensor, state: Tensor, context: ForwardContext) -> None:
        """Run the first layer."""
        self.run_pairs_in(0, tokens, state, context)

    @property
    def pass_kind(self) -> Hashable:
        """As others, and up to which layer nodes are run."""
        return super().pass_kind, self._reached

    def _predict(self, batch: Batch, sources: Tensor, chosen: Tensor) -> Tensor:
        """Run pairs in every layer, the first with the target's states; return `[layers, rows, d]`."""
        state = self._run_known_pairs(batch, sources, chosen)
        if self.depth == 1:
            return state[None]
        states, before = [state.clone()], _before(batch, self._block_size)
        for layer, kept in enumerate(self._kept, 1):
            kept[batch.slots] = states[-1]
            view = replace(batch.view, first=torch.minimum(batch.view.first + layer, batch.view.last - 1))
            states.append(self._run_known_pairs(replace(batch, view=view), kept[None], before, layer).clone())
        return torch.stack(states)

    # --------------------------------------------------------------------------------------------------- drafting

    def place(self, starts: Sequence[Start], width: int = 1) -> None:  # noqa: D102
        super().place(starts, width)
        self._reached = min(self.depth, starts[0].length)

    def begin(self, states: Tensor, rows: Tensor) -> None:  # noqa: D102
        for own, given in zip(self._states, states, strict=True):
            self._kernels.embed(given, rows, own[: len(rows)])
        for layer, first in enumerate(self._firsts):
            torch.add(self._slots.first, layer, out=first)

    def gather(self, level: int, origin: Tensor) -> None:  # noqa: D102
        rows = len(origin)
        for state in self._states[min(level, self.depth) - 1 : self._reached]:
            self._kernels.embed(state, origin, self._spare[:rows])
            self._kernels.embed(self._spare, self._every[:rows], state[:rows])

    def advance(self, level: int, rows: int, width: int = 1) -> None:  # noqa: D102
        if not level:  # the first follows from pairs that are kept
            return
        inputs = self.read_by(self._slots.batch(level, rows, width), self._block_size, recorded=self._recorded)
        for layer in reversed(range(min(level, self.depth - 1), self._reached)):
            state = self._states[layer, :rows]
            if level < self.depth:
                self._kernels.embed(self._states[layer - 1], self._every[:rows], state)
            view = replace(inputs.view, first=self._firsts[layer, :rows])
            self._continue(replace(inputs, view=view), state, layer)

    def logits_by(self, layer: int, state: Tensor) -> Tensor:
        """Return logits of the states that a layer has predicted; here the same for all layers."""
        return self.logits(state)

    def score(self, level: int, rows: int) -> Tensor:  # noqa: D102
        layer = min(level, self.depth - 1)
        return self.logits_by(layer, self._states[layer, :rows])


def _before(batch: Batch, block_size: int) -> Tensor:
    """Return the slot of the token before each row's, `[rows]` int64."""
    view = batch.view
    place = view.last.long() - 2
    return view.tables[view.row_request.long(), place // block_size].long() * block_size + place % block_size
