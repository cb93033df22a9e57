"""A further input of every layer: an embedding of the token for each layer, and a projection of the usual one.

Source: Gemma 3n and Gemma 4 (Gemma team 2025 and 2026), "per-layer embeddings".
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from parlay.checkpoints.loader import Checkpoint, TensorReader
from parlay.errors import ConfigError
from parlay.kernels.base import Activation, Kernels
from parlay.models.config import ModelConfig
from parlay.models.context import ForwardContext
from parlay.models.layers import Embedding, Linear
from parlay.parallel.group import Group

_ROLE = "layer inputs"


def token_input_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every tensor that makes the layers' inputs."""
    if not (width := config.style.layer_inputs):
        return {}
    return {
        "model.embed_tokens_per_layer.weight": (config.vocab_size, config.num_layers * width),
        "model.per_layer_model_projection.weight": (config.num_layers * width, config.hidden_size),
        "model.per_layer_projection_norm.weight": (width,),
    }


def layer_input_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every tensor with which a layer takes its input."""
    if not (width := config.style.layer_inputs):
        return {}
    return {
        "per_layer_input_gate.weight": (width, config.hidden_size),
        "per_layer_projection.weight": (config.hidden_size, width),
        "post_per_layer_input_norm.weight": (config.hidden_size,),
    }


@dataclass(frozen=True, slots=True)
class TokenInputs:
    """Makes the inputs of a stage's layers.

    Attributes:
        embedding: the token embedding for these inputs, `[own layers * width]`.
        projection: projects the usual embedding.
        norm: weight of the projection's norm, `[width]`.
        eps: added to that norm's means.
        own: the first layer of the stage and the first of the next.
        layers: number of layers in all stages.
    """

    embedding: Embedding
    projection: Linear
    norm: Tensor
    eps: float
    own: tuple[int, int]
    layers: int

    @classmethod
    def read(
        cls,
        config: ModelConfig,
        weights: Checkpoint,
        dtype: torch.dtype,
        kernels: Kernels,
        group: Group,
        own: tuple[int, int],
    ) -> TokenInputs:
        """Read the weights of some layers; every rank projects all of them.

        Raises:
            ConfigError: a stage would begin within a block of a quantised embedding.
        """
        begin, end = (layer * config.style.layer_inputs for layer in own)
        table = weights.read_weight("model.embed_tokens_per_layer.weight", dtype)
        if own != (0, config.num_layers):
            try:
                table = table.inputs(begin, end)
            except ValueError as error:
                raise ConfigError(f"{config.path} cannot be split into stages: {error}; take one stage") from None
        projection = weights.read_weight("model.per_layer_model_projection.weight", dtype).outputs(begin, end)
        return cls(
            Embedding(kernels, table, group),
            Linear(kernels, projection),
            weights.read("model.per_layer_projection_norm.weight", dtype),
            config.rms_norm_eps,
            own,
            config.num_layers,
        )

    def __call__(self, tokens: Tensor, embedded: Tensor, context: ForwardContext) -> None:
        """Leave the inputs of rows in the context's buffers.

        Args:
            tokens: `[rows]` int64.
            embedded: the usual embedding, `[rows, hidden]`.
            context: the pass's context.
        """
        kernels, buffers, rows, width = context.kernels, context.buffers, len(tokens), len(self.norm)
        begin, end = self.own
        every = (end - begin) * width
        own, projected = buffers("embedded layer inputs", every), buffers("projected layer inputs", every)
        self.embedding(tokens, own)
        kernels.scale(own, width**0.5)
        self.projection(embedded, projected)
        kernels.scale(projected, embedded.shape[1] ** -0.5)
        each = projected.view(rows * (end - begin), width)
        kernels.rms_norm(each, self.norm, self.eps, each)
        kernels.add_embedding(projected, own, torch.arange(rows, dtype=torch.int32))
        kernels.scale(projected, 2**-0.5)
        # One layer's of all rows after another's, so that each is contiguous.
        order = torch.arange(len(each)).view(rows, end - begin).T.reshape(-1).contiguous()
        inputs = buffers(_ROLE, self.layers * width).view(self.layers * rows, width)
        kernels.embed(each, order, inputs[begin * rows : end * rows])


@dataclass(frozen=True, slots=True)
class LayerInput:
    """Takes a layer's input behind its feed-forward network.

    Attributes:
        index: the layer's index.
        gate: projects to `[width]`, what the input is multiplied with the activation of.
        projection: projects back.
        norm: weight of what that gives, `[hidden]`.
        eps: added to that norm's means.
        activation: the gate's activation.
    """

    index: int
    gate: Linear
    projection: Linear
    norm: Tensor
    eps: float
    activation: Activation
    layers: int
    width: int

    @classmethod
    def read(cls, config: ModelConfig, index: int, read: TensorReader, kernels: Kernels) -> LayerInput:
        """Read the weights; every rank has all of them."""
        return cls(
            index,
            Linear(kernels, read.weight("per_layer_input_gate.weight")),
            Linear(kernels, read.weight("per_layer_projection.weight")),
            read("post_per_layer_input_norm.weight"),
            config.rms_norm_eps,
            config.style.activation,
            config.num_layers,
            config.style.layer_inputs,
        )

    def __call__(self, residual: Tensor, delta: Tensor, context: ForwardContext) -> Tensor:
        """Add `delta` to `residual` in place; return what the input adds to it, `[rows, hidden]`."""
        kernels, buffers, rows = context.kernels, context.buffers, len(residual)
        kernels.add_embedding(residual, delta, torch.arange(rows, dtype=torch.int32))
        gated, out = buffers("layer input gate", self.width), buffers("taken layer input", residual.shape[1])
        self.gate(residual, gated)
        kernels.activate(gated, self.activation)
        kernels.multiply(
            gated, buffers(_ROLE, self.layers * self.width).view(self.layers, rows, self.width)[self.index]
        )
        self.projection(gated, out)
        kernels.rms_norm(out, self.norm, self.eps, out)
        return out
