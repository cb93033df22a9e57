"""A compact Llama-shaped model for training on a CPU, with the exported tensor names."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCAB_SIZE = 4096
MAX_POSITIONS = 2048
ROPE_THETA = 10_000.0
NORM_EPS = 1e-5
# Where the processor has no instructions for bfloat16, float32 is several times as fast in torch.
ARITHMETIC = torch.bfloat16 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32


@dataclass(frozen=True)
class Shape:
    """The sizes that distinguish the target from the draft."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int


SHAPES = {
    "target": Shape(hidden=256, layers=8, heads=4, kv_heads=2, head_dim=64, intermediate=640),
    "draft": Shape(hidden=96, layers=2, heads=3, kv_heads=1, head_dim=32, intermediate=256),
}


def linear(x: Tensor, *layers: nn.Linear) -> Tensor:
    """Apply layers that share an input as one product."""
    weight = torch.cat([layer.weight for layer in layers]) if len(layers) > 1 else layers[0].weight
    return F.linear(x, weight.to(x.dtype))


class Norm(nn.Module):
    """Root-mean-square normalisation with a learned gain."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), NORM_EPS)


class Attention(nn.Module):
    """Causal grouped-query attention with rotary positions."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        inner, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden, inner, bias=False)
        self.k_proj = nn.Linear(shape.hidden, kv, bias=False)
        self.v_proj = nn.Linear(shape.hidden, kv, bias=False)
        self.o_proj = nn.Linear(inner, shape.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """Attend within each sequence."""
        s, (batch, length, _) = self.shape, x.shape
        mixed = linear(x, self.q_proj, self.k_proj, self.v_proj)
        mixed = mixed.view(batch, length, -1, s.head_dim).transpose(1, 2)
        rotated, v = mixed[:, : -s.kv_heads], mixed[:, -s.kv_heads :]
        low, high = rotated.chunk(2, -1)
        rotated = rotated * cos + torch.cat([-high, low], -1) * sin
        q, k = rotated[:, : s.heads], rotated[:, s.heads :]
        k, v = (t.repeat_interleave(s.heads // s.kv_heads, 1).flatten(0, 1) for t in (k, v))
        # Explicit products: about twice as fast here as the fused CPU kernel.
        bias = mask.expand(batch * s.heads, -1, -1)
        scores = torch.baddbmm(bias, q.flatten(0, 1), k.transpose(1, 2), alpha=s.head_dim**-0.5)
        y = (scores.softmax(-1) @ v).view(batch, s.heads, length, s.head_dim)
        return linear(y.transpose(1, 2).reshape(batch, length, -1), self.o_proj)


class MLP(nn.Module):
    """The gated feed-forward block."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Transform every position."""
        gate, up = linear(x, self.gate_proj, self.up_proj).chunk(2, -1)
        return linear(F.silu(gate) * up, self.down_proj)


class Layer(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.hidden)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = Norm(shape.hidden)
        self.mlp = MLP(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """Add the attention's and the feed-forward block's output."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        y: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return y


class Model(nn.Module):
    """The decoder: weights in float32, arithmetic in `ARITHMETIC`, tied output."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(VOCAB_SIZE, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                last = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=0.02 / ((2 * shape.layers) ** 0.5 if last else 1))

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits of every position."""
        length, half = ids.shape[1], self.shape.head_dim // 2
        frequency = ROPE_THETA ** (-torch.arange(half) / half)
        angle = torch.outer(torch.arange(length), frequency).repeat(1, 2)
        cos, sin = angle.cos().to(ARITHMETIC), angle.sin().to(ARITHMETIC)
        mask = torch.full((length, length), -1e4).triu(1).to(ARITHMETIC)
        x = F.embedding(ids, self.embed_tokens.weight).to(ARITHMETIC)
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        return F.linear(self.norm(x), self.embed_tokens.weight.to(ARITHMETIC))
