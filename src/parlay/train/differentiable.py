"""Kernels with gradients, by which a decoder layer that serves is trained as it is, whatever its family.

They do what the reference kernels do, in torch alone. What an operation reads for its gradient it copies first, so
that other operations may overwrite it. Attention sees what a `Rollout` has kept; caches have shapes alone.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from parlay.kernels.base import Activation, AttentionMetadata, Gate
from parlay.kernels.linear import LinearWeight, PackedPart
from parlay.kernels.reference import ReferenceKernels
from parlay.models.config import ModelConfig
from parlay.models.context import Buffers, ForwardContext, LayerCache
from parlay.train.rollout import Rollout
from parlay.weights.kinds import Kind
from parlay.weights.weight import Weight

_LIMIT = 7.0  # of "clamped_swiglu"
_ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "clamped_swiglu": lambda x: x.clamp(max=_LIMIT) * torch.sigmoid(1.702 * x.clamp(max=_LIMIT)),
}


class FreshBuffers(Buffers):
    """Memory that no two calls share: gradients need what was in it."""

    def __init__(self, rows: int, device: torch.device) -> None:
        """Make buffers of float32 for so many rows."""
        super().__init__(rows, torch.float32)
        self._device = device

    def __call__(self, role: str, width: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return new memory `[rows, width]`."""
        return torch.empty((self._rows, width), dtype=dtype or self._dtype, device=self._device)


class Parameters:
    """Tensors with gradients by their names; reads as a `Checkpoint` does, of plain numbers in float32."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def read(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """Return a tensor."""
        return self._tensors[name]

    def read_weight(self, name: str, dtype: torch.dtype) -> Weight:
        """Return a matrix as kernels want it."""
        return Weight.of(self._tensors[name])

    def head_kinds(self, name: str) -> tuple[Kind | None, Kind | None]:
        """Return that nothing is stored in blocks."""
        return None, None

    def read_head(self, name: str, head: int, *, values: bool) -> Weight:
        """Refuse: there are no blocks."""
        raise AssertionError(name)


def rollout_context(config: ModelConfig, rollout: Rollout, rows: int) -> ForwardContext:
    """Return the context of a pass over the rows `[texts * n]` of a rollout's next node.

    Args:
        config: config of a model of one layer.
        rollout: the rollout so far. Its first node runs all rows of each text, later ones the rows that it starts
            from.
        rows: rows of all texts.
    """
    starts = rollout.starts
    each = torch.arange(rows // len(starts), device=starts.device).expand(len(starts), -1)
    origins = starts if rollout.keys else each
    heads = config.heads_of(0)
    keys, values = (torch.empty((0, heads.count, 1, width)) for width in (heads.width, heads.value_width))
    nothing = torch.empty(0, dtype=torch.int32)
    return ForwardContext(
        kernels=DifferentiableKernels(rollout, origins),
        positions=(origins + len(rollout.keys)).reshape(-1),
        slots=torch.arange(rows, device=starts.device),
        view=AttentionMetadata(*(nothing,) * 6),
        cache=(LayerCache(keys, values),),
        buffers=FreshBuffers(rows, starts.device),
    )


class DifferentiableKernels(ReferenceKernels):
    """`Kernels` for one node of a rollout: what layers of attention, feed-forward networks and experts run."""

    def __init__(self, rollout: Rollout, origins: Tensor) -> None:
        """Create kernels for rows `[texts, n]` of the first node, from which these rows go on."""
        super().__init__()
        self._rollout, self._origins = rollout, origins

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
        out.copy_(_rms(x.clone(), weight, eps, plus_one))

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
        parts = qkv.clone().view(len(qkv), -1, len(q_weight))
        kv_heads = (parts.shape[1] - heads) // 2
        q, k, v = parts.tensor_split((heads, heads + kv_heads), dim=1)
        q, k = _rms(q, q_weight, eps, plus_one), _rms(k, k_weight, eps, plus_one)
        v = v if v_weight is None else _rms(v, v_weight, eps, plus_one)
        qkv.copy_(torch.cat((q, k, v), dim=1).view(qkv.shape))

    def head_squares(self, qkv: Tensor, q_squares: Tensor, k_squares: Tensor) -> None:  # noqa: D102
        heads, kv_heads = q_squares.shape[1], k_squares.shape[1]
        squares = qkv.clone().view(len(qkv), heads + 2 * kv_heads, -1).square().sum(-1)
        q_squares.copy_(squares[:, :heads])
        k_squares.copy_(squares[:, heads : heads + kv_heads])

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
        q, k, v = qkv.clone().tensor_split((first, last), dim=1)
        scales = [
            torch.rsqrt(squares.sum(-1, keepdim=True) / len(weight) + eps)
            for squares, weight in ((q_squares, q_weight), (k_squares, k_weight))
        ]
        qkv.copy_(torch.cat((q * scales[0] * q_weight, k * scales[1] * k_weight, v), dim=1))

    def layer_norm(  # noqa: D102
        self, x: Tensor, weight: Tensor, bias: Tensor, eps: float, out: Tensor, delta: Tensor | None = None
    ) -> None:
        if delta is not None:
            x.add_(delta)
        out.copy_(F.layer_norm(x.clone(), weight.shape, weight, bias.to(weight), eps))

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
        kv_heads = key_cache.shape[1]
        turning, values = qkv.clone().tensor_split(((heads + kv_heads) * head_dim,), dim=1)
        q, k = _rotate(turning.view(rows, -1, head_dim), positions, cos_sin).tensor_split((heads,), dim=1)
        if q_norm is not None and k_norm is not None:
            q, k = _rms(q, q_norm, eps), _rms(k, k_norm, eps)
        q_out.copy_(q)
        if slots[0] >= 0:
            self._keep(k, values.view(rows, kv_heads, -1))

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
        query.copy_(_rotate(query.clone(), positions, cos_sin))
        turning, content = latent.clone().tensor_split((cos_sin.shape[1],), dim=1)
        turned = _rotate(turning[:, None], positions, cos_sin)
        entry = torch.cat((turned, _rms(content, norm, eps)[:, None]), dim=-1)
        self._keep(entry, entry)

    def _keep(self, key: Tensor, value: Tensor) -> None:
        """Store keys and values, each `[rows, groups, columns]`."""
        self._rollout.append(self._by_text(key), self._by_text(value))

    def _by_text(self, heads: Tensor) -> Tensor:
        """Return `[texts, heads, n, columns]` of `[rows, heads, columns]`."""
        return heads.view(*self._origins.shape, *heads.shape[1:]).transpose(1, 2)

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
        assert not chunk  # which no layer has that is trained
        query = self._by_text(q.clone()).contiguous()
        seen = self._rollout.attend(query, self._origins, scale, window, cap, sinks)
        out.copy_(seen.transpose(1, 2).reshape(out.shape))

    def act_mul(  # noqa: D102
        self, gate_up: Tensor, activation: Activation, out: Tensor, limit: float = 0.0
    ) -> None:
        gate, up = gate_up.clone().chunk(2, dim=-1)
        if activation == "clamped_swiglu":
            up = up.clamp(-_LIMIT, _LIMIT) + 1
        gate = _ACTIVATIONS[activation](gate)
        if limit > 0:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        out.copy_(gate * up)

    def activate(self, x: Tensor, activation: Activation) -> None:  # noqa: D102
        x.copy_(_ACTIVATIONS[activation](x.clone()))

    def xielu(self, x: Tensor, numbers: Tensor) -> None:  # noqa: D102
        p, n, b, e = numbers
        y = x.clone()
        x.copy_(torch.where(y > 0, p * y * y, n * (torch.expm1(y.minimum(e)) - y)) + b * y)

    def multiply(self, x: Tensor, other: Tensor, gate: Gate = "plain") -> None:  # noqa: D102
        other = other.clone()
        if gate != "plain":
            other = other.sigmoid() if gate == "sigmoid" else F.softplus(other)
        if other.numel():
            x.copy_((x.clone().view(*other.shape, -1) * other[..., None]).view(x.shape))

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
        shares = scores.clone().sigmoid() if sigmoid else scores.clone().softmax(-1)
        choice = shares.detach() if bias is None else (shares + bias).detach()
        if groups > 1:
            by_group = choice.view(len(choice), groups, -1)
            best_two = by_group.topk(2, dim=-1).values.sum(-1)
            left = best_two.argsort(dim=-1, descending=True, stable=True)[:, kept_groups:]
            choice = by_group.scatter(1, left[..., None].expand(-1, -1, by_group.shape[2]), -torch.inf).flatten(1)
        best = choice.argsort(dim=-1, descending=True, stable=True)[:, : weights.shape[1]]
        found = shares.gather(1, best)
        if normalise:
            found = found / (found.sum(-1, keepdim=True) + (1e-20 if sigmoid else 0.0))
        found = found * factor
        experts.copy_(best)
        weights.copy_(found if scales is None else found * scales[best])

    def mix_experts(  # noqa: D102
        self, x: Tensor, weights: Tensor, out: Tensor, shared: Tensor | None = None, gate: Tensor | None = None
    ) -> None:
        total = (weights[..., None].clone() * x.clone()).sum(1)
        if shared is not None:
            total = total + (shared if gate is None else gate.clone().sigmoid() * shared.clone())
        out.copy_(total)

    def pack_linear(self, weight: Tensor | Weight) -> LinearWeight:  # noqa: D102
        weight = Weight.of(weight)
        parts = tuple(PackedPart(part.kind, part.data, len(part.data)) for part in weight.parts)
        return LinearWeight(parts, *weight.shape)

    pack_head = pack_linear

    def linear(self, x: Tensor, weight: LinearWeight, out: Tensor) -> None:  # noqa: D102
        (part,) = weight.parts
        out.copy_(F.linear(x.clone(), part.tensor))

    def expert_linear(  # noqa: D102
        self, x: Tensor, experts: Tensor, weights: Sequence[LinearWeight], out: Tensor
    ) -> None:
        copies, order = len(out) // len(x), experts.to(x.device).argsort(stable=True)
        counts = torch.bincount(experts.to(x.device), minlength=len(weights)).tolist()
        groups = torch.split(x.clone()[order // copies], counts)
        found = [
            F.linear(rows, weight.parts[0].tensor).to(out.dtype)
            for rows, weight in zip(groups, weights, strict=True)
            if len(rows)
        ]
        out.copy_(torch.cat(found)[order.argsort()])

    def logits(self, x: Tensor, weight: LinearWeight, out: Tensor) -> None:  # noqa: D102
        with torch.autocast(x.device.type, enabled=False):
            self.linear(x, weight, out)


def _rms(x: Tensor, weight: Tensor, eps: float, plus_one: bool = False) -> Tensor:
    """Return rows normed over their last axis."""
    return F.rms_norm(x, weight.shape, 1 + weight if plus_one else weight, eps)


def _rotate(heads: Tensor, positions: Tensor, cos_sin: Tensor) -> Tensor:
    """Return heads `[rows, heads, head_dim]` whose first columns are turned by their rows' positions."""
    cos, sin = cos_sin.to(heads.device)[positions.long()][:, None].chunk(2, dim=-1)
    turning, still = heads.tensor_split((cos_sin.shape[1],), dim=-1)
    a, b = turning.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin, still), dim=-1)
