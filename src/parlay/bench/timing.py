"""Kernels that note how long each operation takes."""

from collections import defaultdict
from collections.abc import Mapping
from time import perf_counter

from torch import Tensor

from parlay.kernels.base import AttentionView, Kernels
from parlay.kernels.linear import LinearWeight


class TimedKernels:
    """`Kernels` that pass everything on and add up seconds by operation; a call costs a third of a microsecond more.

    Linear layers are told apart by their shapes.
    """

    def __init__(self, inner: Kernels, linears: Mapping[tuple[int, int], str]) -> None:
        """Pass on to `inner`; `linears` names linear layers by (outputs, inputs)."""
        self.name = inner.name
        self.inner = inner
        self._linears = linears
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def take(self) -> dict[str, float]:
        """Return the seconds of each operation since the last call."""
        seconds, self._seconds = dict(self._seconds), defaultdict(float)
        return seconds

    def _note(self, operation: str, began: float) -> None:
        self._seconds[operation] += perf_counter() - began

    def set_threads(self, threads: int) -> None:  # noqa: D102
        self.inner.set_threads(threads)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:  # noqa: D102
        began = perf_counter()
        self.inner.rms_norm(x, weight, eps, out)
        self._note("norm", began)

    def add_rms_norm(  # noqa: D102
        self, residual: Tensor, delta: Tensor, weight: Tensor, eps: float, out: Tensor
    ) -> None:
        began = perf_counter()
        self.inner.add_rms_norm(residual, delta, weight, eps, out)
        self._note("norm", began)

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
        began = perf_counter()
        self.inner.rotary_store(qkv, positions, slots, cos_sin, q_out, key_cache, value_cache)
        self._note("rotary", began)

    def attention(  # noqa: D102
        self,
        q: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        view: AttentionView,
        scale: float,
        out: Tensor,
    ) -> None:
        began = perf_counter()
        self.inner.attention(q, key_cache, value_cache, view, scale, out)
        self._note("attention", began)

    def silu_mul(self, gate_up: Tensor, out: Tensor) -> None:  # noqa: D102
        began = perf_counter()
        self.inner.silu_mul(gate_up, out)
        self._note("activation", began)

    def pack_linear(self, weight: Tensor) -> LinearWeight:  # noqa: D102
        return self.inner.pack_linear(weight)

    def linear(self, x: Tensor, weight: LinearWeight, out: Tensor) -> None:  # noqa: D102
        began = perf_counter()
        self.inner.linear(x, weight, out)
        self._note(self._linears[weight.outputs, weight.inputs], began)

    def pack_head(self, weight: Tensor) -> LinearWeight:  # noqa: D102
        return self.inner.pack_head(weight)

    def logits(self, x: Tensor, weight: LinearWeight, out: Tensor) -> None:  # noqa: D102
        began = perf_counter()
        self.inner.logits(x, weight, out)
        self._note("head", began)

    def draw(  # noqa: D102
        self, scores: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor, out: Tensor
    ) -> None:
        began = perf_counter()
        self.inner.draw(scores, temperatures, seeds, positions, out)
        self._note("draw", began)

    def gumbel(self, seed: int, position: int, out: Tensor) -> None:  # noqa: D102
        began = perf_counter()
        self.inner.gumbel(seed, position, out)
        self._note("draw", began)

    def copy_slots(  # noqa: D102
        self, src_slots: Tensor, dst_slots: Tensor, key_cache: Tensor, value_cache: Tensor
    ) -> None:
        began = perf_counter()
        self.inner.copy_slots(src_slots, dst_slots, key_cache, value_cache)
        self._note("copy", began)
