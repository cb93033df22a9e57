"""Kernels that note how long each operation takes."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter

from torch import Tensor

from parlay.kernels.base import Activation, AttentionView, Filters, Kernels
from parlay.kernels.linear import LinearWeight
from parlay.weights.weight import Weight


class TimedKernels:
    """`Kernels` that pass everything on and add up seconds by operation; a call costs half a microsecond more.

    Linear layers are told apart by their shapes.
    """

    def __init__(self, inner: Kernels, linears: Mapping[tuple[int, int], str]) -> None:
        """Pass on to `inner`; `linears` names linear layers by (outputs, inputs)."""
        self.name, self.switches, self.prefetch = inner.name, inner.switches, inner.prefetch
        self.inner = inner
        self._linears = linears
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._tape: list[tuple[str, Callable[[], None]]] | None = None

    def take(self) -> dict[str, float]:
        """Return the seconds of each operation since the last call."""
        seconds, self._seconds = dict(self._seconds), defaultdict(float)
        return seconds

    def record(self, work: Callable[[], object]) -> Callable[[], None] | None:
        """Record each operation on its own, so that a replay still tells one from another."""
        if self.inner.record(lambda: None) is None:
            return None
        tape = self._tape = []
        try:
            work()
        finally:
            self._tape = None

        def replay() -> None:
            for operation, run in tape:
                self._run(operation, run)

        return replay

    def _run(self, operation: str, run: Callable[[], None]) -> None:
        if self._tape is not None:
            recorded = self.inner.record(run)
            assert recorded is not None
            self._tape.append((operation, recorded))
            return
        began = perf_counter()
        run()
        self._seconds[operation] += perf_counter() - began

    def careful(self) -> Kernels | None:  # noqa: D102
        return self.inner.careful()

    def set_threads(self, threads: int) -> None:  # noqa: D102
        self.inner.set_threads(threads)

    def embed(self, weight: Tensor, tokens: Tensor, out: Tensor) -> None:  # noqa: D102
        self._run("embedding", lambda: self.inner.embed(weight, tokens, out))

    def embed_packed(self, weight: LinearWeight, tokens: Tensor, out: Tensor) -> None:  # noqa: D102
        self._run("embedding", lambda: self.inner.embed_packed(weight, tokens, out))

    def rms_norm(  # noqa: D102
        self, x: Tensor, weight: Tensor, eps: float, out: Tensor, plus_one: bool = False
    ) -> None:
        self._run("norm", lambda: self.inner.rms_norm(x, weight, eps, out, plus_one))

    def add_rms_norm(  # noqa: D102
        self, residual: Tensor, delta: Tensor, weight: Tensor, eps: float, out: Tensor, plus_one: bool = False
    ) -> None:
        self._run("norm", lambda: self.inner.add_rms_norm(residual, delta, weight, eps, out, plus_one))

    def head_norm(  # noqa: D102
        self, qkv: Tensor, q_weight: Tensor, k_weight: Tensor, heads: int, eps: float, plus_one: bool = False
    ) -> None:
        self._run("norm", lambda: self.inner.head_norm(qkv, q_weight, k_weight, heads, eps, plus_one))

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float, out: Tensor) -> None:  # noqa: D102
        self._run("norm", lambda: self.inner.layer_norm(x, weight, bias, eps, out))

    def add_layer_norm(  # noqa: D102
        self, residual: Tensor, delta: Tensor, weight: Tensor, bias: Tensor, eps: float, out: Tensor
    ) -> None:
        self._run("norm", lambda: self.inner.add_layer_norm(residual, delta, weight, bias, eps, out))

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
        self._run(
            "rotary", lambda: self.inner.rotary_store(qkv, positions, slots, cos_sin, q_out, key_cache, value_cache)
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
        self._run(
            "attention",
            lambda: self.inner.attention(q, key_cache, value_cache, view, scale, out, window, cap),
        )

    def act_mul(self, gate_up: Tensor, activation: Activation, out: Tensor) -> None:  # noqa: D102
        self._run("activation", lambda: self.inner.act_mul(gate_up, activation, out))

    def activate(self, x: Tensor, activation: Activation) -> None:  # noqa: D102
        self._run("activation", lambda: self.inner.activate(x, activation))

    def add_bias(self, x: Tensor, bias: Tensor) -> None:  # noqa: D102
        self._run("activation", lambda: self.inner.add_bias(x, bias))

    def add_embedding(self, x: Tensor, weight: Tensor, index: Tensor) -> None:  # noqa: D102
        self._run("embedding", lambda: self.inner.add_embedding(x, weight, index))

    def scale(self, x: Tensor, factor: float) -> None:  # noqa: D102
        self._run("activation", lambda: self.inner.scale(x, factor))

    def soft_cap(self, x: Tensor, cap: float) -> None:  # noqa: D102
        self._run("head", lambda: self.inner.soft_cap(x, cap))

    def route(self, scores: Tensor, experts: Tensor, weights: Tensor, normalise: bool) -> None:  # noqa: D102
        self._run("activation", lambda: self.inner.route(scores, experts, weights, normalise))

    def expert_linear(  # noqa: D102
        self, x: Tensor, experts: Tensor, weights: Sequence[LinearWeight], out: Tensor
    ) -> None:
        name = self._linears[weights[0].outputs, weights[0].inputs]
        self._run(name, lambda: self.inner.expert_linear(x, experts, weights, out))

    def mix_experts(self, x: Tensor, weights: Tensor, out: Tensor) -> None:  # noqa: D102
        self._run("activation", lambda: self.inner.mix_experts(x, weights, out))

    def pack_linear(self, weight: Tensor | Weight) -> LinearWeight:  # noqa: D102
        return self.inner.pack_linear(weight)

    def linear(self, x: Tensor, weight: LinearWeight, out: Tensor) -> None:  # noqa: D102
        self._run(self._linears[weight.outputs, weight.inputs], lambda: self.inner.linear(x, weight, out))

    def pack_head(self, weight: Tensor | Weight) -> LinearWeight:  # noqa: D102
        return self.inner.pack_head(weight)

    def logits(self, x: Tensor, weight: LinearWeight, out: Tensor) -> None:  # noqa: D102
        self._run("head", lambda: self.inner.logits(x, weight, out))

    def process(self, scores: Tensor, temperatures: Tensor, filters: Filters | None) -> None:  # noqa: D102
        self._run("draw", lambda: self.inner.process(scores, temperatures, filters))

    def draw(  # noqa: D102
        self,
        scores: Tensor,
        temperatures: Tensor,
        seeds: Tensor,
        positions: Tensor,
        out: Tensor,
        filters: Filters | None = None,
        ids: Tensor | None = None,
        probs: Tensor | None = None,
    ) -> None:
        self._run("draw", lambda: self.inner.draw(scores, temperatures, seeds, positions, out, filters, ids, probs))

    def branch(  # noqa: D102
        self,
        scores: Tensor,
        temperatures: Tensor,
        seeds: Tensor,
        positions: Tensor,
        out: Tensor,
        probs: Tensor,
        filters: Filters | None = None,
        ids: Tensor | None = None,
    ) -> None:
        self._run("draw", lambda: self.inner.branch(scores, temperatures, seeds, positions, out, probs, filters, ids))

    def grow(  # noqa: D102
        self,
        tokens: Tensor,
        probs: Tensor,
        worth: Tensor,
        out: Tensor,
        out_worth: Tensor,
        origin: Tensor,
        chosen: Tensor,
        drafts: int,
        slots: Tensor | None = None,
        above: Tensor | None = None,
        below: Tensor | None = None,
    ) -> None:
        given = (tokens, probs, worth, out, out_worth, origin, chosen, drafts)
        self._run("draw", lambda: self.inner.grow(*given, slots, above, below))

    def gumbel(self, seed: int, position: int, out: Tensor) -> None:  # noqa: D102
        self._run("draw", lambda: self.inner.gumbel(seed, position, out))

    def copy_slots(  # noqa: D102
        self, src_slots: Tensor, dst_slots: Tensor, key_cache: Tensor, value_cache: Tensor
    ) -> None:
        self._run("copy", lambda: self.inner.copy_slots(src_slots, dst_slots, key_cache, value_cache))
