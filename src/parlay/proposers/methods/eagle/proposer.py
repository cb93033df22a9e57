"""EAGLE: a decoder layer that predicts the target's next hidden state, and with it the next token.

Idea: Li et al. 2024 (arXiv 2401.15077); EAGLE-2 (arXiv 2406.16858) drafts trees with the same weights. A linear layer
joins a token's embedding and the target's hidden state before it; one decoder layer, which attends to all such pairs
before, makes the state of the token itself; the target's own head then gives the next token. The state goes back in
with the draft token, in a chain or along the likeliest branches of a tree.

A node costs a layer and the target's head. Loses where that head is most of the target, as in small models with large
vocabularies, and further along a draft, since it was trained on true states and is fed predicted ones.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from parlay.checkpoints.loader import Checkpoint, TensorReader
from parlay.errors import ModelError
from parlay.models.context import ForwardContext
from parlay.models.heads import layer_config
from parlay.models.layers import SplitLinear
from parlay.models.tensor_shapes import attention_shapes, mlp_shapes
from parlay.proposers.base import Runtime, TargetInfo
from parlay.proposers.draft_output import DraftOutput
from parlay.proposers.draft_output import OutputOptions as Options
from parlay.proposers.feature_head import FeatureHead
from parlay.proposers.head_layers import HeadLayers, side_by_side
from parlay.proposers.methods.eagle.format import AFTER, BEFORE, EMBEDDING, JOIN, JOIN_BIAS, layer
from parlay.runner.graphs import MOST_ROWS

__all__ = ["EMBEDDED", "Options", "Proposer"]

EMBEDDED: Mapping[str, Any] = {"model": "tiny-code-eagle"}


class Proposer(FeatureHead):
    """Drafts from the last hidden state, each node from the state and the node before it."""

    source = "eagle"
    uses_embed_or_lm_head = True
    output: DraftOutput

    def __init__(self, options: Options, target: TargetInfo) -> None:
        self._draft_vocab_size = options.draft_vocab_size
        super().__init__(options, target)

    def describe(self, weights: Checkpoint) -> None:  # noqa: D102
        head, target = self.head, self._target
        names = weights.names
        if "speculators_model_type" in head.raw or "transformer_layer_config" in head.raw:
            raise ModelError(
                f"{head.path} is an EAGLE head in the format of speculators, of which only EAGLE-3 is supported; "
                "give one in the format of EAGLE's authors"
            )
        self.config = config = layer_config(head, head.raw, layer(0), names)
        head.check_target(target.config, hidden=config.hidden_size, vocab=config.vocab_size)
        width = config.hidden_size
        shapes: dict[str, tuple[int, ...]] = {JOIN: (width, 2 * width)}
        # The config's key means something else in other formats, and is left out where it matters most.
        self._biased = JOIN_BIAS in names
        if self._biased:
            shapes[JOIN_BIAS] = (width,)
        if not self.needs_embedding(weights):
            shapes[EMBEDDING] = (config.vocab_size, width)
        for i in range(config.num_layers):
            own = {**attention_shapes(config), **mlp_shapes(config, i), AFTER: (width,)}
            if i:
                own[BEFORE] = (width,)
            shapes |= {layer(i) + name: shape for name, shape in own.items()}
        weights.expect(shapes, (".rotary_emb.inv_freq",))
        self.output = DraftOutput(target, config, self._draft_vocab_size)
        self.weight_bytes = weights.size(shapes, target.dtype) + self.output.bytes
        self.weight_bytes += MOST_ROWS * 4 * target.config.vocab_size  # logits

    def read(self, weights: Checkpoint, runtime: Runtime) -> None:  # noqa: D102
        dtype, kernels, group = self._target.dtype, runtime.kernels, runtime.group
        self.output.load(runtime)
        self.ids, self.recordable = self.output.ids, self.output.recordable
        self._embedding = self.read_embedding(weights, runtime)
        bias = weights.read(JOIN_BIAS, dtype) if self._biased else None
        self._join = SplitLinear(kernels, weights.read_weight(JOIN, dtype), group, bias)
        read = [TensorReader(weights, dtype, layer(i)) for i in range(self.config.num_layers)]
        self._body = HeadLayers(self.config, self._target.max_model_len, read, kernels, group)

    def run_pairs(self, tokens: Tensor, state: Tensor, context: ForwardContext) -> None:  # noqa: D102
        kernels, (rows, width) = context.kernels, state.shape
        pair = context.buffers("pair", 2 * width).view(2, rows, width)
        self._embedding(tokens, pair[0])
        kernels.embed(state, torch.arange(rows), pair[1])
        joined = context.buffers("joined", 2 * width)
        side_by_side(pair, kernels, joined)
        self._join(joined, state)
        self._body(state, state, context)  # no norm before the first layer's attention

    def logits(self, state: Tensor) -> Tensor:
        """Return the target's logits; the predicted state is normed already."""
        return self.output(state)
