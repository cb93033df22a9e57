"""DSpark: a block in one pass, each of whose tokens is then chosen with regard to the one before it.

Idea: DeepSeek-AI's DSpark (2026), as `speculators` and vLLM implement it. The pass over the block is DFlash's. Then,
from left to right, what the token before says is added to a row's logits (`markov`): a look-up and a product of low
rank, so that a draft agrees with itself at little cost. A further head estimates how likely the target is to accept
the next token; belief, budgets and lengths go by that instead of the draft's own probability.

Loses where the target's output layer is most of a draft's cost, as in small models with large vocabularies.
"""

import torch
from torch import Tensor

from parlay.checkpoints.loader import Checkpoint
from parlay.errors import ModelError, shown
from parlay.models.layers import OutputLayer
from parlay.proposers.base import Runtime
from parlay.proposers.block_walk import BlockWalk
from parlay.proposers.heads import CheckpointOptions as Options
from parlay.proposers.methods.dspark import format as form
from parlay.proposers.methods.dspark.markov import KINDS, Inner, Markov
from parlay.proposers.vocabulary import fitted
from parlay.runner.graphs import MOST_ROWS

__all__ = ["Options", "Proposer"]


class Proposer(BlockWalk):
    """Drafts the tokens of a block one after another, from states that are computed at once."""

    source = "dspark"
    first_predicts = True
    families = form.FAMILIES
    plain = (form.BEFORE, f"{form.GATE}.weight", f"{form.JOINT}.weight", form.CONFIDENCE)

    def extra_shapes(self, weights: Checkpoint) -> dict[str, tuple[int, ...]]:  # noqa: D102
        head, settings, names = self.head, self.blocks.settings, weights.names
        width, vocab = self.config.hidden_size, self.config.vocab_size
        self._rank = rank = settings.count(form.RANK, 256 if form.BEFORE in names else 0, least=0)
        kind = settings.raw.get(form.KIND) or KINDS[0]
        if kind not in KINDS:
            raise ModelError(f"{head.file}: {form.KIND}={shown(kind)} is not supported; {', '.join(KINDS)} are")
        self._kind = str(kind)
        shapes: dict[str, tuple[int, ...]] = {}
        if rank:
            shapes |= {form.BEFORE: (vocab, rank), form.BIAS: (self._vocab, rank)}
        inner, outputs, inputs = self._inner_shape(width, rank)
        if rank and inner:
            shapes |= {f"{inner}.weight": (outputs, inputs), f"{inner}.bias": (outputs,)}
        self._confident = form.CONFIDENCE in names and settings.flag("enable_confidence_head", True)
        if form.CONFIDENCE in names:
            read = weights.shape(form.CONFIDENCE)[-1:]
            self._with_before = rank > 0 and read == (width + rank,)
            shapes[form.CONFIDENCE] = (1, width + rank * self._with_before)
            if form.CONFIDENCE_BIAS in names:
                shapes[form.CONFIDENCE_BIAS] = (1,)
        return shapes

    def _inner_shape(self, width: int, rank: int) -> tuple[str, int, int]:
        """Return the name of the layer between token and bias, empty for none, its outputs and its inputs."""
        if self._kind == "gated":
            return form.GATE, rank, width + rank
        return (form.JOINT, 3 * rank, 2 * rank + width) if self._kind == "rnn" else ("", 0, 0)

    def read(self, weights: Checkpoint, runtime: Runtime) -> None:  # noqa: D102
        super().read(weights, runtime)
        dtype, kernels = self._target.dtype, runtime.kernels
        self._markov: Markov | None = None
        if self._rank:
            name = self._inner_shape(0, 0)[0]
            inner = None
            if name:
                inner = Inner(*(weights.read(f"{name}.{part}", torch.float32) for part in ("weight", "bias")))
            bias = fitted(weights.read_weight(form.BIAS, dtype), self.columns)
            output = OutputLayer(kernels, bias, 1 / self.blocks.logit_scale)
            self._markov = Markov(self._kind, weights.read(form.BEFORE, dtype), output, inner)
        self._confidence: Inner | None = None
        if self._confident:
            offset = form.CONFIDENCE_BIAS in weights.names
            added = weights.read(form.CONFIDENCE_BIAS, torch.float32) if offset else torch.zeros(1)
            self._confidence = Inner(weights.read(form.CONFIDENCE, torch.float32), added)
        self._along, self._spare_along = torch.zeros((2, MOST_ROWS, self._rank))
        self._trust = torch.zeros(MOST_ROWS)

    def enter_blocks(self, requests: int, before: Tensor) -> None:  # noqa: D102
        self._along[:requests] = 0
        if self._markov is not None and self._kind == "rnn" and not self.blocks.anchored:
            # It was trained along all rows, of which the first then predicts nothing.
            first = self._block_states[torch.arange(requests) * self.blocks.block]
            self._markov.step(self._markov.entries(before), first, self._along[:requests])

    def gather(self, level: int, origin: Tensor) -> None:  # noqa: D102
        self._spare_along[: len(origin)] = self._along[origin]
        self._along[: len(origin)] = self._spare_along[: len(origin)]

    def revise(self, before: Tensor, hidden: Tensor, base: Tensor, out: Tensor) -> None:  # noqa: D102
        rows, entries = len(before), hidden[:, :0]
        if self._markov is None:
            out.copy_(base)
        else:
            entries = self._markov.entries(before)
            self._markov.bias(entries, hidden, self._along[:rows], out)
            out += base
        if self._confidence is not None:
            read = (hidden, entries) if self._with_before else (hidden,)
            self._trust[:rows] = self._confidence(*read).view(-1).sigmoid()

    def confidence(self, level: int, rows: int) -> Tensor | None:  # noqa: D102
        return None if self._confidence is None else self._trust[:rows]
