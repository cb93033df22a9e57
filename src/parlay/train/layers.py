"""Llama layers with gradients; parameters have the names of the public format, less `.weight`."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm, silu

from parlay.models.config import ModelConfig

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")
MLP = ("gate_proj", "up_proj", "down_proj")
_EPS = 1e-5
_THETA = 10000.0


class LayerWeights(nn.Module):
    """A layer but for the norm before its attention, and for what attention sees."""

    def __init__(self, width: int, columns: int, inner: int, heads: tuple[int, int, int], quiet: float) -> None:
        """Draw random weights.

        Args:
            width: width of states.
            columns: columns of a row that attention reads.
            inner: width within the feed-forward network.
            heads: numbers of query heads and of key heads, and the columns of each.
            quiet: factor on what the layer adds to states.
        """
        super().__init__()
        queries, keys, self._size = heads
        self.q_proj = random(queries * self._size, columns)
        self.k_proj, self.v_proj = (random(keys * self._size, columns) for _ in range(2))
        self.o_proj = random(width, queries * self._size, quiet)
        self.post_attention_layernorm = nn.Parameter(torch.ones(width))
        self.gate_proj, self.up_proj = random(inner, width), random(inner, width)
        self.down_proj = random(width, inner, quiet)

    def heads(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return queries, keys or values `[..., heads, rows, head_dim]` of rows `[..., rows, columns]`."""
        rows = linear(x, weight)
        return rows.view(*rows.shape[:-1], -1, self._size).transpose(-3, -2)

    def after(self, state: Tensor, seen: Tensor) -> Tensor:
        """Return `state` `[..., rows, width]` with what the layer adds, from attention's output as `heads` has it."""
        state = state + linear(seen.transpose(-3, -2).flatten(-2), self.o_proj)
        normed = norm(state, self.post_attention_layernorm)
        return state + linear(silu(linear(normed, self.gate_proj)) * linear(normed, self.up_proj), self.down_proj)

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """Return all weights by their public names, which begin with the layer's own name."""
        found: dict[str, Tensor] = {}
        for name, parameter in self.named_parameters():
            block = "self_attn." if name in ATTENTION else "mlp." if name in MLP else ""
            found[f"{prefix}{block}{name}.weight"] = parameter
        return found


def layer_config(
    target: ModelConfig, *, layers: int, width: int, inner: int, heads: tuple[int, int, int]
) -> dict[str, Any]:
    """Return the public format's config of such layers in a head of a target; arguments as for `LayerWeights`."""
    return {
        "model_type": "llama",
        "vocab_size": target.vocab_size,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": heads[2],
        "hidden_act": "silu",
        "rms_norm_eps": _EPS,
        "rope_theta": _THETA,
        "max_position_embeddings": target.max_position,
        "attention_bias": False,
    }


def random(rows: int, columns: int, scale: float = 1.0) -> nn.Parameter:
    """Return a matrix that keeps the scale of its inputs, times `scale`."""
    return nn.Parameter(torch.randn((rows, columns)) * scale * columns**-0.5)


def norm(state: Tensor, weight: Tensor) -> Tensor:
    """Return states normed over their last axis, in float32."""
    return rms_norm(state.float(), state.shape[-1:], weight, _EPS)


def apply_rotary(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return queries or keys `[..., rows, head_dim]` turned by their positions, first halves against second.

    Args:
        heads: the heads to rotate.
        cos, sin: `[rows, head_dim]` of the rows' angles.
    """
    heads = heads.float()
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat((-second, first), dim=-1) * sin


def frequencies(size: int) -> Tensor:
    """Return by how much a position turns each of a head's `size` columns, in radians."""
    return (_THETA ** (-torch.arange(0, size, 2) / size)).repeat(2)
