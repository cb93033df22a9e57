"""The slow, obvious twins of the native kernels in torch and numpy.

They define what the fast kernels must compute, and serve where no compiler was found. numpy runs on one
thread and treats each element alike, so its sums over the last axis and its `exp` depend on a row's own values
only; torch's do not.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from parlay.kernels import linear
from parlay.kernels.base import Activation, AttentionView
from parlay.kernels.linear import LinearWeight

FloatArray = npt.NDArray[np.float32]
DoubleArray = npt.NDArray[np.float64]
WordArray = npt.NDArray[np.uint64]

_LOW = np.uint64(0xFFFFFFFF)


def philox(counter: WordArray, key: tuple[int, int]) -> WordArray:
    """Return the four words of Philox4x32-10 for each counter; `[n, 4]` of 32-bit values in uint64."""
    c0, c1, c2, c3 = (counter[:, i] for i in range(4))
    shift = np.uint64(32)
    for step in range(10):
        key0 = np.uint64((key[0] + step * 0x9E3779B9) & 0xFFFFFFFF)
        key1 = np.uint64((key[1] + step * 0xBB67AE85) & 0xFFFFFFFF)
        product0, product1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (
            (product1 >> shift) ^ c1 ^ key0,
            product1 & _LOW,
            (product0 >> shift) ^ c3 ^ key1,
            product0 & _LOW,
        )
    return np.stack((c0, c1, c2, c3), axis=1)


def ln(x: DoubleArray) -> DoubleArray:
    """Return the natural logarithm of positive normal doubles, by the same operations as the native one."""
    bits = x.view(np.int64)
    exponent = (bits - 0x3FE6A09E667F3BCD) >> 52  # x = 2^exponent m with m in [sqrt 1/2, sqrt 2)
    f = (bits - (exponent << 52)).view(np.float64) - 1
    s = f / (2 + f)
    z = s * s
    p = np.full_like(z, 1 / 21)
    for odd in range(19, 1, -2):
        p = p * z + 1 / odd
    n = exponent.astype(np.float64)
    twice = s + s
    high, low = float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")  # of ln 2
    return n * high + (twice + (twice * (p * z) + n * low))


def gumbel_noise(seed: int, position: int, vocab: int) -> DoubleArray:
    """Return `G(seed, position, token)` of the tokens below `vocab`."""
    counter = np.zeros(((vocab + 3) // 4, 4), dtype=np.uint64)
    counter[:, 0] = np.arange(len(counter), dtype=np.uint64)
    counter[:, 1] = position & 0xFFFFFFFF
    counter[:, 3] = position >> 32
    words = philox(counter, (seed & 0xFFFFFFFF, seed >> 32)).reshape(-1)[:vocab]
    u = (words.astype(np.float64) + 0.5) * 2.0**-32
    return -ln(-ln(1 - u))


def _silu(x: FloatArray) -> FloatArray:
    power: FloatArray = np.exp(-x)
    return x / (np.float32(1) + power)


def _gelu(x: FloatArray) -> FloatArray:
    # numpy has no erf; Python's takes one number at a time.
    tails = np.fromiter((0.5 * math.erfc(-v / math.sqrt(2)) for v in x.flat), np.float64, x.size)
    return (x * tails.reshape(x.shape)).astype(np.float32)


def _gelu_tanh(x: FloatArray) -> FloatArray:
    twice = np.float32(2 * math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
    power: FloatArray = np.exp(-twice)
    return x / (np.float32(1) + power)


_ACTIVATIONS: dict[Activation, Callable[[FloatArray], FloatArray]] = {
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
}


class ReferenceKernels:
    """`Kernels` in torch and numpy; see there for what each method does."""

    name = "reference"

    def set_threads(self, threads: int) -> None:  # noqa: D102
        pass  # torch's own setting is the caller's

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:  # noqa: D102
        values = x.float().numpy()
        mean = np.square(values).sum(axis=1, keepdims=True) / np.float32(x.shape[1])
        normal = values * (np.float32(1) / np.sqrt(mean + np.float32(eps)))
        out.copy_(torch.from_numpy(normal).to(x.dtype) * weight)

    def add_rms_norm(  # noqa: D102
        self, residual: Tensor, delta: Tensor, weight: Tensor, eps: float, out: Tensor
    ) -> None:
        residual.add_(delta)
        self.rms_norm(residual, weight, eps, out)

    def rotary_store(  # noqa: D102
        self,
        qkv: Tensor,
        positions: Tensor,
        slots: Tensor,
        cos_sin: Tensor,
        q_out: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
    ) -> None:
        rows, heads, head_dim = q_out.shape
        _, kv_heads, block_size, _ = key_cache.shape
        cos, sin = cos_sin[positions.long()][:, None, :].chunk(2, dim=-1)
        all_heads = qkv.view(rows, heads + 2 * kv_heads, head_dim)
        a, b = all_heads[:, : heads + kv_heads].float().chunk(2, dim=-1)
        rotated = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(qkv.dtype)
        q_out.copy_(rotated[:, :heads])
        block, offset = slots // block_size, slots % block_size
        key_cache[block, :, offset] = rotated[:, heads:]
        value_cache[block, :, offset] = all_heads[:, heads + kv_heads :]

    def attention(  # noqa: D102
        self,
        q: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        view: AttentionView,
        scale: float,
        out: Tensor,
    ) -> None:
        rows, heads, head_dim = q.shape
        _, kv_heads, block_size, _ = key_cache.shape
        for row in range(rows):
            seen = torch.arange(int(view.first[row]), int(view.last[row]))
            table = view.tables[int(view.row_request[row])].long()
            extra = view.extra_slots[int(view.extra_offsets[row]) : int(view.extra_offsets[row + 1])].long()
            blocks = torch.cat((table[seen // block_size], extra // block_size))
            offsets = torch.cat((seen % block_size, extra % block_size))
            if len(blocks) == 0:
                out[row] = 0
                continue
            # [KV, 1, keys, D] against [KV, H / KV, 1, D]
            keys = key_cache[blocks, :, offsets].transpose(0, 1)[:, None].float().contiguous().numpy()
            values = value_cache[blocks, :, offsets].transpose(0, 1)[:, None].float().contiguous().numpy()
            query = q[row].float().view(kv_heads, heads // kv_heads, 1, head_dim).numpy()
            scores = (query * keys).sum(axis=-1) * np.float32(scale)
            weights: FloatArray = np.exp(scores - scores.max(axis=-1, keepdims=True))
            total = weights.sum(axis=-1, keepdims=True)
            mixed = (weights[..., None] * values).sum(axis=-2) / total
            out[row] = torch.from_numpy(mixed).reshape(-1).to(out.dtype)

    def act_mul(self, gate_up: Tensor, activation: Activation, out: Tensor) -> None:  # noqa: D102
        gate, up = gate_up.chunk(2, dim=-1)
        values = gate.float().contiguous().numpy()
        with np.errstate(over="ignore", invalid="ignore"):
            active = _ACTIVATIONS[activation](values)
        out.copy_(torch.from_numpy(active).to(out.dtype) * up)

    def pack_linear(self, weight: Tensor) -> LinearWeight:  # noqa: D102
        return linear.pack(weight)

    def linear(self, x: Tensor, weight: LinearWeight, out: Tensor) -> None:  # noqa: D102
        linear.linear(x, weight, out)

    def pack_head(self, weight: Tensor) -> LinearWeight:  # noqa: D102
        return linear.pack(weight.float())

    def logits(self, x: Tensor, weight: LinearWeight, out: Tensor) -> None:  # noqa: D102
        linear.linear(x.float(), weight, out)

    def draw(  # noqa: D102
        self, scores: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor, out: Tensor
    ) -> None:
        for row, row_scores in enumerate(scores):
            values = np.nan_to_num(row_scores.numpy(), nan=-np.inf, posinf=np.inf, neginf=-np.inf)
            temperature = np.float32(temperatures[row].item())
            if temperature == 0:
                out[row] = int(values.argmax())
                continue
            with np.errstate(over="ignore", invalid="ignore"):
                scaled = (values / temperature).astype(np.float64)
            noise = gumbel_noise(int(seeds[row]) % 2**64, int(positions[row]), len(values))
            out[row] = int((np.nan_to_num(scaled, nan=-np.inf, posinf=np.inf, neginf=-np.inf) + noise).argmax())

    def gumbel(self, seed: int, position: int, out: Tensor) -> None:  # noqa: D102
        out.copy_(torch.from_numpy(gumbel_noise(seed, position, len(out))))

    def copy_slots(  # noqa: D102
        self, src_slots: Tensor, dst_slots: Tensor, key_cache: Tensor, value_cache: Tensor
    ) -> None:
        block_size = key_cache.shape[2]
        for cache in (key_cache, value_cache):
            moved = cache[src_slots // block_size, :, src_slots % block_size]
            cache[dst_slots // block_size, :, dst_slots % block_size] = moved
