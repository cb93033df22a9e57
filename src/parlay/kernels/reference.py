"""The slow, obvious twins of the native kernels in torch and numpy.

They define what the fast kernels must compute, and serve where no compiler was found. numpy runs on one
thread and treats each element alike, so its sums over the last axis and its `exp` depend on a row's own values
only; torch's do not.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from parlay.kernels import linear
from parlay.kernels.base import Activation, AttentionMetadata, Kernels
from parlay.kernels.host import HostMemory
from parlay.kernels.host_acceptance import HostAcceptance
from parlay.kernels.linear import BACKENDS, Backend, LinearWeight
from parlay.kernels.reference_cache_rows import read_rows, write_rows
from parlay.kernels.reference_recurrent import ReferenceRecurrent
from parlay.kernels.reference_sampling import FloatArray, ReferenceSampling
from parlay.weights.weight import Weight


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


def _relu(x: FloatArray) -> FloatArray:
    return np.maximum(x, np.float32(0))


_LIMIT = np.float32(7)  # of "clamped_swiglu"


def _clamped_swiglu(x: FloatArray) -> FloatArray:
    x = np.minimum(x, _LIMIT)
    power: FloatArray = np.exp(np.float32(-1.702) * x)
    return x / (np.float32(1) + power)


def _relu2(x: FloatArray) -> FloatArray:
    return np.square(_relu(x))


def _cap(x: FloatArray, cap: float) -> FloatArray:
    # numpy's float32 tanh may take another way through a tail; float64 leaves nothing of that.
    return (cap * np.tanh(x.astype(np.float64) / cap)).astype(np.float32)


def _rms(x: FloatArray, eps: float) -> FloatArray:
    mean = np.square(x).sum(axis=-1, keepdims=True) / np.float32(x.shape[-1])
    normal: FloatArray = x * (np.float32(1) / np.sqrt(mean + np.float32(eps)))
    return normal


def _weighted(normal: Tensor, weight: Tensor, plus_one: bool) -> Tensor:
    """Return a norm's output in `weight`'s dtype, rounded before the weight unless that is stored less one."""
    if plus_one:
        return (normal * (1 + weight.float())).to(weight.dtype)
    return normal.to(weight.dtype) * weight


_ACTIVATIONS: dict[Activation, Callable[[FloatArray], FloatArray]] = {
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": _relu,
    "relu2": _relu2,
    "clamped_swiglu": _clamped_swiglu,
}


class ReferenceKernels(HostMemory, HostAcceptance, ReferenceSampling, ReferenceRecurrent):
    """`Kernels` in torch and numpy; see there for what each method does."""

    row_thresholds: tuple[int, ...] = (2,)  # a lone row is doubled
    prefetch: Callable[[int, int, int], None] | None = None

    def __init__(self, backend: Backend = "onednn") -> None:
        """Multiply matrices by one of the backends of `kernels.linear`."""
        self._backend = backend
        self.name = "reference" if backend == BACKENDS[0] else f"reference-{backend}"

    def fallback(self) -> Kernels | None:  # noqa: D102
        slower = BACKENDS[BACKENDS.index(self._backend) + 1 :]
        return ReferenceKernels(slower[0]) if slower else None

    def set_threads(self, threads: int) -> None:  # noqa: D102
        pass  # torch's own setting is the caller's

    def record(self, work: Callable[[], object]) -> None:  # noqa: D102
        return None

    def embed(self, weight: Tensor, tokens: Tensor, out: Tensor) -> None:  # noqa: D102
        out.copy_(weight[tokens])

    def embed_packed(self, weight: LinearWeight, tokens: Tensor, out: Tensor) -> None:  # noqa: D102
        out.copy_(linear.rows_of(weight, tokens))

    def rms_norm(  # noqa: D102
        self,
        x: Tensor,
        weight: Tensor,
        eps: float,
        out: Tensor,
        plus_one: bool = False,
        delta: Tensor | None = None,
    ) -> None:
        if delta is not None:
            x.add_(delta)
        out.copy_(_weighted(torch.from_numpy(_rms(x.float().numpy(), eps)), weight, plus_one))

    def head_norm(  # noqa: D102
        self,
        qkv: Tensor,
        q_weight: Tensor,
        k_weight: Tensor,
        heads: int,
        eps: float,
        plus_one: bool = False,
        v_weight: Tensor | None = None,
    ) -> None:
        parts = qkv.view(len(qkv), -1, len(q_weight))
        kv_heads = (parts.shape[1] - heads) // 2
        bounds = (0, heads, heads + kv_heads, heads + 2 * kv_heads)
        for begin, end, weight in zip(bounds[:-1], bounds[1:], (q_weight, k_weight, v_weight), strict=True):
            if weight is not None:
                normal = torch.from_numpy(_rms(parts[:, begin:end].float().contiguous().numpy(), eps))
                parts[:, begin:end] = _weighted(normal, weight, plus_one)

    def head_squares(self, qkv: Tensor, q_squares: Tensor, k_squares: Tensor) -> None:  # noqa: D102
        heads, kv_heads = q_squares.shape[1], k_squares.shape[1]
        squares = np.square(qkv.view(len(qkv), heads + 2 * kv_heads, -1).float().numpy()).sum(axis=-1)
        q_squares.copy_(torch.from_numpy(squares[:, :heads]))
        k_squares.copy_(torch.from_numpy(squares[:, heads : heads + kv_heads]))

    def joint_norm(  # noqa: D102
        self,
        qkv: Tensor,
        q_weight: Tensor,
        k_weight: Tensor,
        q_squares: Tensor,
        k_squares: Tensor,
        heads: int,
        eps: float,
    ) -> None:
        first, last = len(q_weight), len(q_weight) + len(k_weight)
        for part, weight, squares in (
            (qkv[:, :first], q_weight, q_squares),
            (qkv[:, first:last], k_weight, k_squares),
        ):
            total = np.zeros((len(qkv), 1), np.float32)
            for h in range(squares.shape[1]):
                total = total + squares[:, h : h + 1].numpy()
            mean = total / np.float32(squares.shape[1] * (len(q_weight) // heads))
            scale = torch.from_numpy(np.float32(1) / np.sqrt(mean + np.float32(eps)))
            part.copy_(_weighted(part.float() * scale, weight, plus_one=False))

    def layer_norm(  # noqa: D102
        self, x: Tensor, weight: Tensor, bias: Tensor, eps: float, out: Tensor, delta: Tensor | None = None
    ) -> None:
        if delta is not None:
            x.add_(delta)
        values = x.float().numpy()
        distances = values - values.sum(axis=1, keepdims=True) / np.float32(x.shape[1])
        normal = torch.from_numpy(_rms(distances, eps))
        out.copy_(normal * weight.float() + bias.float())

    def rotary_store(  # noqa: D102
        self,
        qkv: Tensor,
        positions: Tensor,
        slots: Tensor,
        cos_sin: Tensor,
        q_out: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        q_norm: Tensor | None = None,
        k_norm: Tensor | None = None,
        eps: float = 0.0,
    ) -> None:
        rows, heads, head_dim = q_out.shape
        _, kv_heads, block_size, _ = key_cache.shape
        cos, sin = cos_sin[positions.long()][:, None, :].chunk(2, dim=-1)
        turned = (heads + kv_heads) * head_dim
        both = qkv[:, :turned].view(rows, heads + kv_heads, head_dim)
        turning, still = both.tensor_split((cos_sin.shape[1],), dim=-1)
        a, b = turning.float().chunk(2, dim=-1)
        rotated = torch.cat(((a * cos - b * sin).to(qkv.dtype), (b * cos + a * sin).to(qkv.dtype), still), dim=-1)
        if q_norm is not None and k_norm is not None:
            for part, weight in ((rotated[:, :heads], q_norm), (rotated[:, heads:], k_norm)):
                normal = torch.from_numpy(_rms(part.float().contiguous().numpy(), eps))
                part.copy_(_weighted(normal, weight, plus_one=False))
        q_out.copy_(rotated[:, :heads])
        stored = slots >= 0
        block, offset = slots[stored] // block_size, slots[stored] % block_size
        write_rows(key_cache, block, offset, rotated[stored, heads:])
        if kv_heads:
            values = qkv[stored, turned:].view(len(block), kv_heads, (qkv.shape[1] - turned) // kv_heads)
            write_rows(value_cache, block, offset, values)

    def latent_store(  # noqa: D102
        self,
        query: Tensor,
        latent: Tensor,
        norm: Tensor,
        eps: float,
        positions: Tensor,
        slots: Tensor,
        cos_sin: Tensor,
        cache: Tensor,
    ) -> None:
        rows, _, dim = query.shape
        turning = cos_sin.shape[1]
        whole = torch.cat((query, latent[:, None], latent.new_zeros(rows, 1, dim)), dim=1).view(rows, -1)
        turned, own = torch.empty_like(query), latent.new_empty(1, 1, rows, dim)
        self.rotary_store(whole, positions, torch.arange(rows), cos_sin, turned, own, torch.empty_like(own))
        query.copy_(turned)
        normal = torch.empty_like(latent[:, turning:].contiguous())
        self.rms_norm(latent[:, turning:].contiguous(), norm, eps, normal)
        own[0, 0, :, turning:] = normal
        stored = slots >= 0
        block, offset = slots[stored] // cache.shape[2], slots[stored] % cache.shape[2]
        write_rows(cache, block, offset, own[0].transpose(0, 1)[stored])

    def attention(  # noqa: D102
        self,
        q: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        view: AttentionMetadata,
        scale: float,
        out: Tensor,
        window: int = 0,
        cap: float = 0.0,
        sinks: Tensor | None = None,
        chunk: int = 0,
    ) -> None:
        rows, heads, head_dim = q.shape
        _, kv_heads, block_size, _ = key_cache.shape
        for row in range(rows):
            seen = torch.arange(int(view.first[row]), int(view.last[row]))
            table = view.tables[int(view.row_request[row])].long()
            extra = view.extra_slots[int(view.extra_offsets[row]) : int(view.extra_offsets[row + 1])].long()
            if chunk:
                window = (int(view.last[row]) + len(extra) - 1) % chunk + 1
            # -0 is 0: all keys
            blocks = torch.cat((table[seen // block_size], extra // block_size))[-window:]
            offsets = torch.cat((seen % block_size, extra % block_size))[-window:]
            if len(blocks) == 0:
                out[row] = 0
                continue
            # [KV, 1, keys, D] against [KV, H / KV, 1, D]
            keys, values = (
                read_rows(cache, blocks, offsets, q.dtype).transpose(0, 1)[:, None].float().contiguous().numpy()
                for cache in (key_cache, value_cache)
            )
            query = q[row].float().view(kv_heads, heads // kv_heads, 1, head_dim).numpy()
            scores = (query * keys).sum(axis=-1) * np.float32(scale)
            if cap > 0:
                scores = _cap(scores, cap)
            most, sink = scores.max(axis=-1, keepdims=True), None
            if sinks is not None:
                sink = sinks.view(kv_heads, heads // kv_heads, 1).numpy()
                most = np.maximum(most, sink)
            weights: FloatArray = np.exp(scores - most)
            total = weights.sum(axis=-1, keepdims=True)
            if sink is not None:
                total = total + np.exp(sink - most)
            mixed = (weights[..., None] * values).sum(axis=-2) / total
            out[row] = torch.from_numpy(mixed).reshape(-1).to(out.dtype)

    def act_mul(  # noqa: D102
        self, gate_up: Tensor, activation: Activation, out: Tensor, limit: float = 0.0
    ) -> None:
        gate, up = gate_up.chunk(2, dim=-1)
        values = gate.float().contiguous().numpy()
        with np.errstate(over="ignore", invalid="ignore"):
            active = _ACTIVATIONS[activation](values)
        if activation == "clamped_swiglu":
            up = up.clamp(-float(_LIMIT), float(_LIMIT)) + 1
        factor = torch.from_numpy(active).to(out.dtype)
        if limit > 0:
            factor, up = factor.clamp(max=limit), up.clamp(-limit, limit)
        out.copy_(factor * up)

    def activate(self, x: Tensor, activation: Activation) -> None:  # noqa: D102
        with np.errstate(over="ignore", invalid="ignore"):
            active = _ACTIVATIONS[activation](x.float().numpy())
        x.copy_(torch.from_numpy(active))

    def add_bias(self, x: Tensor, bias: Tensor) -> None:  # noqa: D102
        x.add_(bias)

    def add_embedding(self, x: Tensor, weight: Tensor, index: Tensor) -> None:  # noqa: D102
        x.add_(weight[index.long()])

    def scale(self, x: Tensor, factor: float) -> None:  # noqa: D102
        x.copy_(x.float() * torch.tensor(factor, dtype=torch.float32))

    def soft_cap(self, x: Tensor, cap: float) -> None:  # noqa: D102
        x.copy_(torch.from_numpy(_cap(x.numpy(), cap)))

    def xielu(self, x: Tensor, numbers: Tensor) -> None:  # noqa: D102
        p, n, b, e = numbers
        wide = x.float()
        x.copy_(torch.where(wide > 0, p * wide * wide, n * (torch.expm1(wide.minimum(e)) - wide)) + b * wide)

    def route(  # noqa: D102
        self,
        scores: Tensor,
        experts: Tensor,
        weights: Tensor,
        normalise: bool,
        sigmoid: bool = False,
        bias: Tensor | None = None,
        groups: int = 1,
        kept_groups: int = 1,
        factor: float = 1.0,
        scales: Tensor | None = None,
    ) -> None:
        chosen = weights.shape[1]
        for row, values in enumerate(scores.numpy()):
            known: FloatArray = np.where(np.isnan(values), np.float32(-np.inf), values)
            with np.errstate(invalid="ignore"):  # infinities, and what is not a number
                most = known.max() if known.max() > -np.inf else values[0]
                shares: FloatArray = 1 / (1 + np.exp(-values)) if sigmoid else np.exp(values - most)
            total = np.float32(1) if sigmoid else shares.sum()
            choice = known
            if (sigmoid and groups > 1) or bias is not None:  # sigmoids of high scores are alike
                choice = shares / total + (0 if bias is None else bias.numpy())
            if groups > 1:
                by_group = choice.reshape(groups, -1)
                best_two = np.sort(by_group, axis=1)[:, -2:].sum(axis=1)
                left = np.argsort(-best_two, kind="stable")[:kept_groups]
                choice = np.where(np.isin(np.arange(groups), left)[:, None], by_group, -np.inf).reshape(-1)
            best = np.argsort(-choice, kind="stable")[:chosen]
            if normalise:
                total = shares[best].sum() + np.float32(1e-20 if sigmoid else 0)
            experts[row] = torch.from_numpy(best)
            weights[row] = torch.from_numpy(shares[best] / total * np.float32(factor))
            if scales is not None:
                weights[row] *= scales[experts[row].long()]

    def expert_linear(  # noqa: D102
        self, x: Tensor, experts: Tensor, weights: Sequence[LinearWeight], out: Tensor
    ) -> None:
        copies = len(out) // len(x)
        for number, weight in enumerate(weights):
            rows = (experts == number).nonzero()[:, 0]
            if len(rows):
                answer = torch.empty(len(rows), out.shape[1], dtype=out.dtype)
                self.linear(x[rows // copies], weight, answer)
                out[rows] = answer

    def mix_experts(  # noqa: D102
        self, x: Tensor, weights: Tensor, out: Tensor, shared: Tensor | None = None, gate: Tensor | None = None
    ) -> None:
        total = torch.zeros(out.shape)
        for j in range(x.shape[1]):
            total = total + weights[:, j, None] * x[:, j].float()
        if shared is not None:
            share = 1 if gate is None else torch.from_numpy(1 / (1 + np.exp(-gate.numpy())))
            total = total + share * shared.float()
        out.copy_(total)

    def pack_linear(self, weight: Tensor | Weight) -> LinearWeight:  # noqa: D102
        return linear.pack(weight, self._backend)

    def linear(self, x: Tensor, weight: LinearWeight, out: Tensor) -> None:  # noqa: D102
        linear.linear(x, weight, out, self._backend)

    def pack_head(self, weight: Tensor | Weight) -> LinearWeight:  # noqa: D102
        return linear.pack(weight, wide=True)

    def logits(self, x: Tensor, weight: LinearWeight, out: Tensor) -> None:  # noqa: D102
        linear.linear(x, weight, out, self._backend)

    def copy_slots(  # noqa: D102
        self, src_slots: Tensor, dst_slots: Tensor, key_cache: Tensor, value_cache: Tensor
    ) -> None:
        block_size = key_cache.shape[2]
        for cache in (key_cache, value_cache):
            moved = cache[src_slots // block_size, :, src_slots % block_size]
            cache[dst_slots // block_size, :, dst_slots % block_size] = moved
