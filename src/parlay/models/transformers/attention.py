"""Attention for classes of the transformers library: the kernels', over the paged cache, behind its interface.

Such a class calls a function of our choice with queries, keys and values, already rotated. What the rows see comes
with the call, as a keyword that the class passes from its forward down to that function.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from parlay.errors import ModelError
from parlay.models.context import ForwardContext

KEYWORD = "parlay"
"""Of the argument that carries a `AttentionCall`, and the name under which the function is registered."""


class PagedAttention(nn.Module):
    """The attention of all layers. A module, so that a pass can be watched without its operations."""

    def __init__(self, windows: Mapping[nn.Module, int]) -> None:
        """Create it from the attention modules in order, each with the most keys that a row sees; 0 is all."""
        super().__init__()
        self._places = {module: (index, window) for index, (module, window) in enumerate(windows.items())}

    def forward(
        self,
        context: ForwardContext,
        module: nn.Module,
        parts: tuple[Tensor, Tensor, Tensor],
        scale: float,
        cap: float,
    ) -> Tensor:
        """Store keys and values, then let each row attend to what its view shows.

        Args:
            context: where the rows stand and what they see.
            module: the layer's attention module.
            parts: queries `[1, H, T, D]`, keys and values `[1, KV, T, D]`.
            scale: factor on scores.
            cap: bound that they approach; 0 is none.

        Returns:
            `[1, T, H, D]`.
        """
        kernels, buffers, (index, window) = context.kernels, context.buffers, self._places[module]
        cache = context.keys(index)
        _, heads, rows, head_dim = parts[0].shape
        kv_heads = parts[1].shape[1]
        qkv = buffers("qkv", (heads + 2 * kv_heads) * head_dim)
        spaces = qkv.view(rows, heads + 2 * kv_heads, head_dim).tensor_split((heads, heads + kv_heads), dim=1)
        for space, part in zip(spaces, parts, strict=True):
            space.copy_(part[0].transpose(0, 1))
        query = buffers("query", heads * head_dim).view(rows, heads, head_dim)
        nothing = torch.zeros(1, 0)  # turns: the class has rotated them
        kernels.rotary_store(qkv, context.positions, context.slots, nothing, query, cache.key, cache.value)
        mixed = torch.empty((rows, heads * head_dim), dtype=qkv.dtype)
        kernels.attention(query, cache.key, cache.value, context.view, scale, mixed, window, cap)
        return mixed.view(1, rows, heads, head_dim)


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """What a forward pass hands on to attention: the rows' context, and what computes."""

    context: ForwardContext
    attention: PagedAttention


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
    parlay: AttentionCall | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Compute attention for a class of the library.

    Args:
        module: the layer that calls.
        query: `[1, H, T, D]`, rotated.
        key: `[1, KV, T, D]`, rotated.
        value: `[1, KV, T, D]`.
        attention_mask: None, because the context says what is seen.
        scaling: factor on scores; None is `D ** -0.5`.
        softcap: bound that scores approach; None is none.
        parlay: what the pass handed on.
        others: further keywords, which the probe has checked when the model was described.

    Returns:
        `[1, T, H, D]`, and no weights.
    """
    if parlay is None or attention_mask is not None:
        raise ModelError(f"{type(module).__name__} calls attention in another way than it did when it was tried")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    mixed: Tensor = parlay.attention(parlay.context, module, (query, key, value), scale, softcap or 0.0)
    return mixed, None
