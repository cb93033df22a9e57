"""The native kernels: C++ behind raw addresses, for a step makes dozens of calls of microseconds."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from parlay.errors import ConfigError
from parlay.kernels import _native
from parlay.kernels.base import Activation, AttentionView, Kernels
from parlay.kernels.checks import sound as _sound
from parlay.kernels.cpu_drawing import Held, NativeDrawing
from parlay.kernels.linear import LinearWeight, PackedPart
from parlay.kernels.packing import pack_part
from parlay.weights.weight import Weight

_BF16 = torch.bfloat16
_ACTIVATIONS: dict[Activation, int] = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "relu": 3}  # as in csrc/table.h


def _replay(tape: _native.Tape, held: list[Held]) -> None:
    """Run a recording; whoever holds this call holds the tensors it writes to."""
    tape.run()


class NativeKernels(NativeDrawing):
    """`Kernels` in C++; see there for what each method does."""

    # Rows of one pass over the weights, in vectors and in tiles, and of one chunk, and one more.
    switches: tuple[int, ...] = (7, 13, 17, 33, 97)

    def __init__(self, isa: str | None = None) -> None:
        """Use the best instruction set here, or `isa`, process-wide.

        Args:
            isa: "amx", "avx512bf16", "avx512vnni", "avx512", "avx2" or "baseline".
        """
        if isa is not None:
            if isa not in _native.isas():
                raise ConfigError(f"no native kernels for {isa!r} here (available: {', '.join(_native.isas())})")
            _native.set_isa(isa)
        self.name = f"native-{_native.isa()}"
        self._held = None
        self.prefetch: Callable[[int, int, int], None] | None = _native.set_prefetching

    def careful(self) -> Kernels | None:  # noqa: D102
        return None

    def set_threads(self, threads: int) -> None:  # noqa: D102
        _native.set_threads(threads)

    def record(self, work: Callable[[], object]) -> Callable[[], None]:  # noqa: D102
        tape = _native.Tape()
        held = self._held = []
        _native.record(tape)
        try:
            work()
        finally:
            _native.record(None)
            self._held = None
        return partial(_replay, tape, held)

    def embed(self, weight: Tensor, tokens: Tensor, out: Tensor) -> None:  # noqa: D102
        assert _sound(weight, out)
        assert tokens.dtype is torch.int64
        if self._held is not None:
            self._held += (weight, tokens, out)
        rows, width = out.shape
        _native.embed(weight.data_ptr(), tokens.data_ptr(), out.data_ptr(), rows, width * out.element_size())

    def embed_packed(self, weight: LinearWeight, tokens: Tensor, out: Tensor) -> None:  # noqa: D102
        (part,) = weight.parts
        assert _sound(out)
        assert tokens.dtype is torch.int64
        if self._held is not None:
            self._held += (part.tensor, tokens, out)
        rows, width = out.shape
        _native.unpack(
            part.tensor.data_ptr(),
            tokens.data_ptr(),
            out.data_ptr(),
            rows,
            width,
            part.kind.number,
            out.dtype is _BF16,
        )

    def rms_norm(  # noqa: D102
        self, x: Tensor, weight: Tensor, eps: float, out: Tensor, plus_one: bool = False
    ) -> None:
        assert _sound(x, weight, out)
        if self._held is not None:
            self._held += (x, weight, out)
        rows, width = x.shape
        _native.rms_norm(
            x.data_ptr(), 0, weight.data_ptr(), out.data_ptr(), rows, width, eps, plus_one, x.dtype is _BF16
        )

    def add_rms_norm(  # noqa: D102
        self, residual: Tensor, delta: Tensor, weight: Tensor, eps: float, out: Tensor, plus_one: bool = False
    ) -> None:
        assert _sound(residual, delta, weight, out)
        if self._held is not None:
            self._held += (residual, delta, weight, out)
        rows, width = delta.shape
        _native.rms_norm(
            delta.data_ptr(),
            residual.data_ptr(),
            weight.data_ptr(),
            out.data_ptr(),
            rows,
            width,
            eps,
            plus_one,
            delta.dtype is _BF16,
        )

    def head_norm(  # noqa: D102
        self, qkv: Tensor, q_weight: Tensor, k_weight: Tensor, heads: int, eps: float, plus_one: bool = False
    ) -> None:
        assert _sound(qkv, q_weight, k_weight)
        if self._held is not None:
            self._held += (qkv, q_weight, k_weight)
        rows, width = qkv.shape
        head_dim = q_weight.size(0)
        _native.head_norm(
            qkv.data_ptr(),
            q_weight.data_ptr(),
            k_weight.data_ptr(),
            rows,
            heads,
            (width // head_dim - heads) // 2,
            head_dim,
            eps,
            plus_one,
            qkv.dtype is _BF16,
        )

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float, out: Tensor) -> None:  # noqa: D102
        assert _sound(x, weight, bias, out)
        if self._held is not None:
            self._held += (x, weight, bias, out)
        rows, width = x.shape
        _native.layer_norm(
            x.data_ptr(), 0, weight.data_ptr(), bias.data_ptr(), out.data_ptr(), rows, width, eps, x.dtype is _BF16
        )

    def add_layer_norm(  # noqa: D102
        self, residual: Tensor, delta: Tensor, weight: Tensor, bias: Tensor, eps: float, out: Tensor
    ) -> None:
        assert _sound(residual, delta, weight, bias, out)
        if self._held is not None:
            self._held += (residual, delta, weight, bias, out)
        rows, width = delta.shape
        _native.layer_norm(
            delta.data_ptr(),
            residual.data_ptr(),
            weight.data_ptr(),
            bias.data_ptr(),
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
        if self._held is not None:
            self._held += (qkv, positions, slots, cos_sin, q_out, key_cache, value_cache)
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
            cos_sin.size(1),
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
        window: int = 0,
        cap: float = 0.0,
    ) -> None:
        assert _sound(q, key_cache, value_cache, out)
        if self._held is not None:
            self._held += (q, key_cache, value_cache, view, out)
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
            window,
            scale,
            cap,
            q.dtype is _BF16,
        )

    def act_mul(self, gate_up: Tensor, activation: Activation, out: Tensor) -> None:  # noqa: D102
        assert _sound(gate_up, out)
        if self._held is not None:
            self._held += (gate_up, out)
        rows, width = out.shape
        _native.act_mul(gate_up.data_ptr(), out.data_ptr(), rows, width, _ACTIVATIONS[activation], out.dtype is _BF16)

    def activate(self, x: Tensor, activation: Activation) -> None:  # noqa: D102
        assert _sound(x)
        if self._held is not None:
            self._held.append(x)
        rows, width = x.shape
        _native.activate(x.data_ptr(), rows, width, _ACTIVATIONS[activation], x.dtype is _BF16)

    def add_bias(self, x: Tensor, bias: Tensor) -> None:  # noqa: D102
        assert _sound(x, bias)
        if self._held is not None:
            self._held += (x, bias)
        rows, width = x.shape
        _native.add_bias(x.data_ptr(), bias.data_ptr(), rows, width, x.dtype is _BF16)

    def add_embedding(self, x: Tensor, weight: Tensor, index: Tensor) -> None:  # noqa: D102
        assert _sound(x, weight)
        assert index.dtype is torch.int32
        if self._held is not None:
            self._held += (x, weight, index)
        rows, width = x.shape
        _native.add_embedding(x.data_ptr(), weight.data_ptr(), index.data_ptr(), rows, width, x.dtype is _BF16)

    def scale(self, x: Tensor, factor: float) -> None:  # noqa: D102
        assert _sound(x)
        if self._held is not None:
            self._held.append(x)
        rows, width = x.shape
        _native.scale(x.data_ptr(), factor, rows, width, x.dtype is _BF16)

    def soft_cap(self, x: Tensor, cap: float) -> None:  # noqa: D102
        assert (x.dtype, x.is_contiguous()) == (torch.float32, True)
        if self._held is not None:
            self._held.append(x)
        rows, width = x.shape
        _native.soft_cap(x.data_ptr(), cap, rows, width)

    def route(self, scores: Tensor, experts: Tensor, weights: Tensor, normalise: bool) -> None:  # noqa: D102
        assert _sound(scores, weights)
        assert (scores.dtype, experts.dtype) == (torch.float32, torch.int32)
        if self._held is not None:
            self._held += (scores, experts, weights)
        rows, count = scores.shape
        _native.route(
            scores.data_ptr(), experts.data_ptr(), weights.data_ptr(), rows, count, weights.size(1), normalise
        )

    def expert_linear(  # noqa: D102
        self, x: Tensor, experts: Tensor, weights: Sequence[LinearWeight], out: Tensor
    ) -> None:
        assert _sound(x, out)
        assert experts.dtype is torch.int32
        rows, outputs = out.shape
        inputs = x.size(1)
        assert (inputs, outputs) == (weights[0].inputs, weights[0].outputs)
        at = out.data_ptr()
        for parts in zip(*(w.parts for w in weights), strict=True):
            first = parts[0]
            assert all((part.kind, part.outputs) == (first.kind, first.outputs) for part in parts)
            if self._held is not None:
                self._held += (x, experts, *(part.tensor for part in parts), out)
            _native.expert_linear(
                x.data_ptr(),
                experts.data_ptr(),
                [part.tensor.data_ptr() for part in parts],
                at,
                rows,
                rows // x.size(0),
                inputs,
                first.outputs,
                outputs,
                _number(first, x),
                x.dtype is _BF16,
            )
            at += first.outputs * out.element_size()

    def mix_experts(self, x: Tensor, weights: Tensor, out: Tensor) -> None:  # noqa: D102
        assert _sound(x, out)
        assert weights.dtype is torch.float32
        if self._held is not None:
            self._held += (x, weights, out)
        rows, chosen, width = x.shape
        _native.mix_experts(x.data_ptr(), weights.data_ptr(), out.data_ptr(), rows, chosen, width, x.dtype is _BF16)

    def pack_linear(self, weight: Tensor | Weight) -> LinearWeight:  # noqa: D102
        weight = Weight.of(weight)
        return LinearWeight(tuple(map(pack_part, weight.parts)), *weight.shape)

    def linear(self, x: Tensor, weight: LinearWeight, out: Tensor) -> None:  # noqa: D102
        assert _sound(x, out)
        self._multiply(x, weight, out)

    def pack_head(self, weight: Tensor | Weight) -> LinearWeight:  # noqa: D102
        return self.pack_linear(weight)

    def logits(self, x: Tensor, weight: LinearWeight, out: Tensor) -> None:  # noqa: D102
        assert _sound(x)
        assert out.dtype is torch.float32
        assert out.is_contiguous()
        self._multiply(x, weight, out)

    def _multiply(self, x: Tensor, weight: LinearWeight, out: Tensor) -> None:
        rows, inputs = x.shape
        assert (inputs, out.shape[1]) == (weight.inputs, weight.outputs)
        at = out.data_ptr()
        for part in weight.parts:
            if self._held is not None:
                self._held += (x, part.tensor, out)
            _native.linear(
                x.data_ptr(),
                part.tensor.data_ptr(),
                at,
                rows,
                inputs,
                part.outputs,
                weight.outputs,
                _number(part, x),
                x.dtype is _BF16,
                out.dtype is torch.float32,
            )
            at += part.outputs * out.element_size()

    def copy_slots(  # noqa: D102
        self, src_slots: Tensor, dst_slots: Tensor, key_cache: Tensor, value_cache: Tensor
    ) -> None:
        assert _sound(key_cache, value_cache)
        assert src_slots.dtype is dst_slots.dtype is torch.int64
        if self._held is not None:
            self._held += (src_slots, dst_slots, key_cache, value_cache)
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


def _number(part: PackedPart, x: Tensor) -> int:
    """Return what the kernels call a part's kind; plain numbers but float16 have to be of x's type."""
    assert part.kind.block > 1 or part.tensor.dtype in (x.dtype, torch.float16)
    return part.kind.number
