"""The native kernels: C++ behind raw addresses, for a step makes dozens of calls of microseconds."""

import torch
from torch import Tensor

from parlay.errors import ConfigError
from parlay.kernels import _native
from parlay.kernels.base import Activation, AttentionView
from parlay.kernels.linear import LinearWeight

_BF16 = torch.bfloat16
_ACTIVATIONS: dict[Activation, int] = {"silu": 0, "gelu": 1, "gelu_tanh": 2}  # as in csrc/table.h


def _sound(first: Tensor, *others: Tensor) -> bool:
    """Whether all tensors are contiguous and of the first one's dtype. A plain loop: a step asks dozens of times."""
    dtype = first.dtype
    for tensor in others:
        if tensor.dtype is not dtype or not tensor.is_contiguous():
            return False
    return (dtype is _BF16 or dtype is torch.float32) and first.is_contiguous()


class NativeKernels:
    """`Kernels` in C++; see there for what each method does."""

    def __init__(self, isa: str | None = None) -> None:
        """Use the best instruction set here, or `isa` ("avx512bf16", "avx512", "avx2", "baseline"), process-wide."""
        if isa is not None:
            if isa not in _native.isas():
                raise ConfigError(f"no native kernels for {isa!r} here (available: {', '.join(_native.isas())})")
            _native.set_isa(isa)
        self.name = f"native-{_native.isa()}"

    def set_threads(self, threads: int) -> None:  # noqa: D102
        _native.set_threads(threads)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:  # noqa: D102
        assert _sound(x, weight, out)
        rows, width = x.shape
        _native.rms_norm(x.data_ptr(), 0, weight.data_ptr(), out.data_ptr(), rows, width, eps, x.dtype is _BF16)

    def add_rms_norm(  # noqa: D102
        self, residual: Tensor, delta: Tensor, weight: Tensor, eps: float, out: Tensor
    ) -> None:
        assert _sound(residual, delta, weight, out)
        rows, width = delta.shape
        _native.rms_norm(
            delta.data_ptr(),
            residual.data_ptr(),
            weight.data_ptr(),
            out.data_ptr(),
            rows,
            width,
            eps,
            delta.dtype is _BF16,
        )

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
        assert _sound(qkv, q_out, key_cache, value_cache)
        assert positions.dtype is torch.int32
        assert slots.dtype is torch.int64
        assert cos_sin.dtype is torch.float32
        rows, heads, head_dim = q_out.shape
        _, kv_heads, block_size, _ = key_cache.shape
        _native.rotary_store(
            qkv.data_ptr(),
            positions.data_ptr(),
            slots.data_ptr(),
            cos_sin.data_ptr(),
            q_out.data_ptr(),
            key_cache.data_ptr(),
            value_cache.data_ptr(),
            rows,
            heads,
            kv_heads,
            head_dim,
            block_size,
            qkv.dtype is _BF16,
        )

    def attention(  # noqa: D102
        self,
        q: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        view: AttentionView,
        scale: float,
        out: Tensor,
    ) -> None:
        assert _sound(q, key_cache, value_cache, out)
        rows, heads, head_dim = q.shape
        _, kv_heads, block_size, _ = key_cache.shape
        _native.attention(
            q.data_ptr(),
            key_cache.data_ptr(),
            value_cache.data_ptr(),
            *view.addresses,
            out.data_ptr(),
            rows,
            view.tables.size(1),
            heads,
            kv_heads,
            head_dim,
            block_size,
            scale,
            q.dtype is _BF16,
        )

    def act_mul(self, gate_up: Tensor, activation: Activation, out: Tensor) -> None:  # noqa: D102
        assert _sound(gate_up, out)
        rows, width = out.shape
        number = _ACTIVATIONS[activation]
        _native.act_mul(gate_up.data_ptr(), out.data_ptr(), rows, width, number, out.dtype is _BF16)

    def pack_linear(self, weight: Tensor) -> LinearWeight:  # noqa: D102
        # Panels of sixteen outputs; in a panel inputs run slowest, bfloat16 in pairs. See csrc/linear.h.
        outputs, inputs = weight.shape
        step = 2 if weight.dtype is _BF16 else 1
        padded = torch.nn.functional.pad(weight, (0, -inputs % step, 0, -outputs % 16))
        panels = padded.view(-1, 16, padded.shape[1] // step, step).transpose(1, 2).contiguous()
        return LinearWeight(panels, outputs, inputs)

    def linear(self, x: Tensor, weight: LinearWeight, out: Tensor) -> None:  # noqa: D102
        assert _sound(x, weight.tensor, out)
        self._multiply(x, weight, out)

    def pack_head(self, weight: Tensor) -> LinearWeight:  # noqa: D102
        return self.pack_linear(weight)

    def logits(self, x: Tensor, weight: LinearWeight, out: Tensor) -> None:  # noqa: D102
        assert _sound(x, weight.tensor)
        assert out.dtype is torch.float32
        self._multiply(x, weight, out)

    def _multiply(self, x: Tensor, weight: LinearWeight, out: Tensor) -> None:
        rows, inputs = x.shape
        assert inputs == weight.inputs
        _native.linear(
            x.data_ptr(),
            weight.tensor.data_ptr(),
            out.data_ptr(),
            rows,
            inputs,
            weight.outputs,
            x.dtype is _BF16,
            out.dtype is torch.float32,
        )

    def draw(  # noqa: D102
        self, scores: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor, out: Tensor
    ) -> None:
        assert _sound(scores, temperatures)
        assert scores.dtype is torch.float32
        assert seeds.dtype is positions.dtype is out.dtype is torch.int64
        rows, vocab = scores.shape
        _native.draw(
            scores.data_ptr(),
            temperatures.data_ptr(),
            seeds.data_ptr(),
            positions.data_ptr(),
            out.data_ptr(),
            rows,
            vocab,
        )

    def gumbel(self, seed: int, position: int, out: Tensor) -> None:  # noqa: D102
        assert out.dtype is torch.float64
        _native.gumbel(seed, position, out.data_ptr(), out.size(0))

    def copy_slots(  # noqa: D102
        self, src_slots: Tensor, dst_slots: Tensor, key_cache: Tensor, value_cache: Tensor
    ) -> None:
        assert _sound(key_cache, value_cache)
        assert src_slots.dtype is dst_slots.dtype is torch.int64
        _, kv_heads, block_size, head_dim = key_cache.shape
        _native.copy_slots(
            src_slots.data_ptr(),
            dst_slots.data_ptr(),
            key_cache.data_ptr(),
            value_cache.data_ptr(),
            src_slots.size(0),
            kv_heads,
            head_dim,
            block_size,
            key_cache.element_size(),
        )
