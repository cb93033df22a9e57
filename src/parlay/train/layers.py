"""Parts of Llama layers, with gradients; parameters have the names of the public format, less `.weight`."""

import torch
from torch import Tensor, nn

ATTENTION, MLP = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")


def random(rows: int, columns: int, scale: float = 1.0) -> nn.Parameter:
    """Return a matrix that keeps the scale of its inputs, times `scale`."""
    return nn.Parameter(torch.randn((rows, columns)) * scale * columns**-0.5)


def public_name(name: str) -> str:
    """Return the name of a layer's parameter in checkpoints, less the layer's own name."""
    block = "self_attn." if name in ATTENTION else "mlp." if name in MLP else ""
    return f"{block}{name}.weight"


def turn(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return queries or keys `[..., rows, head_dim]` turned by their positions, first halves against second.

    Args:
        heads: what is to be turned.
        cos, sin: `[rows, head_dim]` of the rows' angles.
    """
    heads = heads.float()
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat((-second, first), dim=-1) * sin


def frequencies(size: int, theta: float) -> Tensor:
    """Return by how much a position turns each of a head's `size` columns, in radians."""
    return (theta ** (-torch.arange(0, size, 2) / size)).repeat(2)
