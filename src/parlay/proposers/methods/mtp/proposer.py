"""MTP: layers that many models bring along, which were trained with them to predict the tokens after the next one.

Idea: DeepSeek-AI 2024 (arXiv 2412.19437), section 2.2. Like an EAGLE head it joins a token's embedding and the
target's hidden state before it, and what it computes stands for the state of the token itself: the target's output
layer gives the next token, and both go back in, in a chain or along the likeliest branches of a tree. It is in the
target's own files, and has the target's kind of layer, experts included. Most models have one such layer. Of several
each drafts the token that it was trained for, from the state that the layer before it has predicted (`LayeredHead`).

A node costs a layer and the target's output layer. Loses where that is most of the target, as in small models with
large vocabularies, and further along a draft: it was trained on true states and is fed its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from parlay.checkpoints.find import find_model
from parlay.checkpoints.loader import Checkpoint
from parlay.errors import ConfigError, ModelError
from parlay.models.context import ForwardContext
from parlay.models.heads import HeadConfig
from parlay.models.layers import OutputLayer
from parlay.models.mtp import MTPLayer, stacked
from parlay.models.rotary import layer_tables
from parlay.models.select import mtp_layers
from parlay.proposers.base import Runtime, TargetInfo
from parlay.proposers.draft_output import DraftOutput, OutputOptions
from parlay.proposers.heads import CheckpointOptions
from parlay.proposers.layered_head import LayeredHead
from parlay.proposers.methods.mtp.layer import MTPDraftLayer
from parlay.proposers.target_layers import TargetEmbedding
from parlay.runner.graphs import MOST_ROWS
from parlay.types.progress import OnRead, ignore

__all__ = ["Options", "Proposer"]


@dataclass(frozen=True, slots=True)
class Options(OutputOptions):
    """Options of the layers that a target has in its own files.

    Attributes:
        model: where the layers lie; empty for the target's own files.
    """

    model: str = ""


class Proposer(LayeredHead):
    """Drafts from the last hidden state, each node from the state and the node before it."""

    source = "mtp"
    default_length = 3
    uses_embed_or_lm_head = True
    output: DraftOutput | None

    def __init__(self, options: Options, target: TargetInfo) -> None:
        self._draft_vocab_size = options.draft_vocab_size
        super().__init__(options, target)

    @classmethod
    def comes_with(cls, target: TargetInfo) -> bool:  # noqa: D102
        try:
            layers = mtp_layers(target.config)
        except ModelError:  # the target's files are missing or damaged: the code that reads them reports it
            return False
        if not layers:
            return False
        with layers[0].open("plain") as weights:
            _check(layers, weights)
        return True

    def find(self, options: CheckpointOptions) -> HeadConfig:  # noqa: D102
        config = self._target.config
        hub = replace(self._target.hub, revision=options.revision)
        path = find_model(options.model, hub) if options.model else config.path
        layers = mtp_layers(config, path)
        if not layers:
            raise ModelError(
                f"the method 'mtp' needs an MTP layer of {config.path}, which {path} lacks; "
                "leave the method out, or take one that needs no weights, such as 'suffix'"
            )
        self._layers, self.config = layers, stacked(layers)
        self.depth, self.default_length = len(layers), max(len(layers), self.default_length)
        if layers[0].names.unnormed:
            self.taps = (config.num_layers,)
        if options.quantization == "auto":
            self._storage = config.storage  # as the other layers
        return HeadConfig(path, config.raw)

    def open(self, on_read: OnRead = ignore) -> Checkpoint:  # noqa: D102
        return self._layers[0].open(self._storage, on_read)

    def describe(self, weights: Checkpoint) -> None:  # noqa: D102
        _check(self._layers, weights)
        self.output = None
        if not all(layer.names.head for layer in self._layers):
            self.output = DraftOutput(self._target, self._layers[0].config, self._draft_vocab_size)
        elif self._draft_vocab_size is not None:
            raise ConfigError(
                f"the MTP layers of {self._target.config.path} have output layers of their own, which "
                "draft all tokens; leave draft_vocab_size out"
            )
        own = sum(weights.size(layer.shapes(), self._target.dtype) for layer in self._layers)
        self.weight_bytes = own + (self.output.bytes if self.output is not None else 0)
        self.weight_bytes += MOST_ROWS * 4 * self._target.config.vocab_size  # logits

    def read(self, weights: Checkpoint, runtime: Runtime) -> None:  # noqa: D102
        dtype, kernels, group, config = self._target.dtype, runtime.kernels, runtime.group, self.config
        self._embedding = TargetEmbedding(runtime.target, group)
        if self.output is not None:
            self.output.load(runtime)
            self.ids, self.recordable = self.output.ids, self.output.recordable
        elif not group.rank:  # rank 0 alone drafts
            heads = [weights.read_weight(layer.names.head, dtype) for layer in self._layers]
            self._heads = [OutputLayer(kernels, head) for head in heads]
            self._logits = torch.zeros((MOST_ROWS, self._target.config.vocab_size))
        self._normed = torch.zeros((MOST_ROWS, config.hidden_size), dtype=dtype)
        tables = layer_tables(config, self._target.max_model_len)
        self._further = [
            MTPDraftLayer(layer, weights, dtype, own, kernels, group, place)
            for place, (layer, own) in enumerate(zip(self._layers, tables, strict=True))
        ]

    def run_pairs_in(self, layer: int, tokens: Tensor, state: Tensor, context: ForwardContext) -> None:  # noqa: D102
        rows, width = state.shape
        pair = context.buffers("pair", 2 * width).view(2, rows, width)
        self._embedding(tokens, pair[0])
        self._further[layer](pair, state, context)

    def logits_by(self, layer: int, state: Tensor) -> Tensor:
        """Return logits by a layer's own output layer, or the target's, of states that may be yet to be normed."""
        if self._layers[layer].names.late_norm:
            normed = self._normed[: len(state)]
            self._further[layer].normalise(self._kernels, state, normed)
            state = normed
        if self.output is None:
            return self._heads[layer](state, self._logits[: len(state)])
        return self.logits(state)

    def logits(self, state: Tensor) -> Tensor:
        """Return the target's logits, of the tokens that are drafted; the state is normed already."""
        assert self.output is not None
        return self.output(state)


def _check(layers: Sequence[MTPLayer], weights: Checkpoint) -> None:
    """Compare the shapes of the layers' tensors with those of the files; the others are the target's.

    Raises:
        ModelError: they differ, or some are missing.
    """
    for layer in layers:
        weights.expect(layer.shapes(), further=("",))
