"""Data and views for the kernels' tests."""

import os

import torch
from torch import Tensor

from parlay.kernels.base import Activation, AttentionMetadata, Filters, Kernels

DTYPES = (torch.float32, torch.bfloat16)
BLOCK = 16
EMULATED = "PARLAY_ARM" in os.environ  # which is slow


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0, spread: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator) * spread).to(dtype)


def cancelling(rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x and W whose products cancel exactly, so that what remains is the rounding error of the summation order.

    On random data a last-bit difference in float32 hides behind the rounding to bfloat16.
    """
    half = inputs // 2
    mixed = torch.randperm(half, generator=torch.Generator().manual_seed(inputs))
    a, w = random(rows, half, seed=1), random(outputs, half, seed=2)
    x, weight = torch.cat((a, -a[:, mixed]), 1), torch.cat((w, w[:, mixed]), 1)
    return x.to(dtype).contiguous(), weight.to(dtype).contiguous()


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def table_view(tables: Tensor, requests: list[int], lasts: list[int]) -> AttentionMetadata:
    """Rows that see the first `last` keys of their request, and nothing else."""
    rows = len(requests)
    none = torch.zeros(rows + 1, dtype=torch.int32)
    return AttentionMetadata(tables.int(), ints(*requests), none[:rows].clone(), ints(*lasts), none, ints())


def attend(
    kernels: Kernels, q: Tensor, keys: Tensor, values: Tensor, view: AttentionMetadata, scale: float | None = None
) -> Tensor:
    out = torch.full((q.shape[0], q.shape[1] * q.shape[2]), torch.nan, dtype=q.dtype)
    kernels.attention(q, keys, values, view, q.shape[2] ** -0.5 if scale is None else scale, out)
    return out


def normalise(kernels: Kernels, x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    out = torch.full_like(x, torch.nan)
    kernels.rms_norm(x, weight, eps, out)
    return out


def act_mul(kernels: Kernels, gate_up: Tensor, activation: Activation) -> Tensor:
    out = torch.full((gate_up.shape[0], gate_up.shape[1] // 2), torch.nan, dtype=gate_up.dtype)
    kernels.act_mul(gate_up, activation, out)
    return out


def multiply(kernels: Kernels, x: Tensor, weight: Tensor) -> Tensor:
    out = torch.full((x.shape[0], weight.shape[0]), torch.nan, dtype=x.dtype)
    kernels.linear(x, kernels.pack_linear(weight), out)
    return out


def head(kernels: Kernels, x: Tensor, weight: Tensor) -> Tensor:
    out = torch.full((x.shape[0], weight.shape[0]), torch.nan)
    kernels.logits(x, kernels.pack_head(weight), out)
    return out


def filters_of(limits: list[tuple[float, int, float]]) -> Filters:
    """Filters from (min_p, top_k, top_p) of each row."""
    min_p, top_k, top_p = zip(*limits, strict=True)
    return Filters(
        torch.tensor(min_p, dtype=torch.float64), torch.tensor(top_k), torch.tensor(top_p, dtype=torch.float64)
    )


def process(kernels: Kernels, scores: Tensor, temperatures: Tensor, filters: Filters | None) -> Tensor:
    processed = scores.clone()
    kernels.process(processed, temperatures, filters)
    return processed


def draw(
    kernels: Kernels,
    scores: Tensor,
    temperatures: Tensor,
    seeds: Tensor,
    positions: Tensor,
    filters: Filters | None = None,
) -> Tensor:
    out = torch.full((scores.shape[0],), -1, dtype=torch.int64)
    kernels.draw(scores, temperatures, seeds, positions, out, filters)
    return out


def guess(
    kernels: Kernels, scores: Tensor, temperatures: Tensor, filters: Filters | None, ids: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Tokens and their shares of rows of scores, with one noise."""
    rows = len(scores)
    tokens, probs = torch.full((rows,), -1), torch.full((rows,), torch.nan)
    seeds, positions = torch.arange(rows) * 7919 - 3, torch.arange(rows) * 2**30
    kernels.draw(scores, temperatures, seeds, positions, tokens, filters, ids, probs)
    return tokens, probs


def branch(
    kernels: Kernels,
    scores: Tensor,
    temperatures: Tensor,
    filters: Filters | None = None,
    ids: Tensor | None = None,
    *,
    children: int,
) -> tuple[Tensor, Tensor]:
    """The likeliest tokens of rows of scores, and what they are worth, with the same noise."""
    rows = len(scores)
    tokens, probs = torch.full((rows, children), -1), torch.full((rows, children), torch.nan)
    seeds, positions = torch.arange(rows) * 7919 - 3, torch.arange(rows) * 2**30
    kernels.branch(scores, temperatures, seeds, positions, tokens, probs, filters, ids)
    return tokens, probs


def gumbel(kernels: Kernels, seed: int, position: int, vocab: int) -> Tensor:
    out = torch.full((vocab,), torch.nan, dtype=torch.float64)
    kernels.gumbel(seed, position, out)
    return out


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same bits; unlike `torch.equal`, -0 is not 0 and a NaN equals itself."""
    words = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return a.dtype == b.dtype and torch.equal(a.contiguous().view(words), b.contiguous().view(words))
