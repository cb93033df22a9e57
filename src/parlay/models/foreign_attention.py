"""Attention for classes of the transformers library: the kernels', over the paged cache, behind its interface.

Such a class calls a function of our choice with queries, keys and values, rotated already. What the rows see comes
with the call, as a keyword that the class hands from its forward down to that function.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from parlay.errors import ModelError
from parlay.models.context import ForwardContext

KEYWORD = "parlay"
"""Of the argument that carries a `Call`, and the name under which the function is registered."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an attention module stands.

    Attributes:
        index: of its layer in the cache.
        window: keys that a row sees at most; 0 is all.
    """

    index: int
    window: int


@dataclass(frozen=True, slots=True)
class Call:
    """What a forward pass tells attention: where the rows stand, and which module is which layer."""

    context: ForwardContext
    places: Mapping[nn.Module, Place]


def register(name: str, function: Callable[..., Any]) -> None:
    """Make a function known to the library; classes whose implementation has this name will call it.

    None of them makes a mask then, unless one is registered too.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(name, function)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    parlay: Call | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Store keys and values, then let each row attend to what its view shows.

    Args:
        module: the layer that calls.
        query: `[1, H, T, D]`, rotated.
        key: `[1, KV, T, D]`, rotated.
        value: `[1, KV, T, D]`.
        attention_mask: None, for the view says what is seen.
        scaling: factor on scores; None is `D ** -0.5`.
        softcap: bound that scores approach.
        parlay: the pass's own.
        others: what the probe has looked at when the model was described.

    Returns:
        `[1, T, H, D]`, and no weights.
    """
    if parlay is None or attention_mask is not None:
        raise ModelError(f"{type(module).__name__} calls attention in another way than it did when it was tried")
    context, place = parlay.context, parlay.places[module]
    kernels, buffers, cache = context.kernels, context.buffers, context.cache[place.index]
    _, heads, rows, head_dim = query.shape
    kv_heads = key.shape[1]
    qkv = buffers("qkv", (heads + 2 * kv_heads) * head_dim)
    parts = qkv.view(rows, heads + 2 * kv_heads, head_dim).tensor_split((heads, heads + kv_heads), dim=1)
    for part, tensor in zip(parts, (query, key, value), strict=True):
        part.copy_(tensor[0].transpose(0, 1))
    turned = buffers("query", heads * head_dim).view(rows, heads, head_dim)
    # No column turns here: the class has rotated them.
    nothing = torch.zeros(1, 0)
    kernels.rotary_store(qkv, context.positions, context.slots, nothing, turned, cache.key, cache.value)
    mixed = torch.empty((rows, heads * head_dim), dtype=qkv.dtype)
    scale = head_dim**-0.5 if scaling is None else scaling
    kernels.attention(
        turned, cache.key, cache.value, context.view, scale, mixed, place.window, 0.0 if softcap is None else softcap
    )
    return mixed.view(1, rows, heads, head_dim), None
