"""Kernels that note how long each operation takes."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, cast

from parlay.kernels.base import Kernels

# Components of a step that are several operations; any other operation is a component under its own name.
_COMPONENTS = {
    "embed": "embedding",
    "embed_packed": "embedding",
    "add_embedding": "embedding",
    "rms_norm": "norm",
    "head_norm": "norm",
    "layer_norm": "norm",
    "rotary_store": "rotary",
    "act_mul": "activation",
    "activate": "activation",
    "add_bias": "activation",
    "scale": "activation",
    "route": "activation",
    "mix_experts": "activation",
    "soft_cap": "head",
    "logits": "head",
    "process": "draw",
    "branch": "draw",
    "grow": "draw",
    "gumbel": "draw",
    "copy_slots": "copy",
    "causal_conv": "states",
    "gated_delta": "states",
    "state_space": "states",
    "gated_norm": "norm",
}
PARTS = "parts of linear layers"
_MEMORY = {"device_context", "to_device", "is_on_device"}
_NOT_TIMED = frozenset({"fallback", "set_threads", "prefetch", "pack_linear", "pack_head", *_MEMORY})


class TimedKernels:
    """`Kernels` that pass everything on and add up seconds by component; a call costs a microsecond more.

    Linear layers are told apart by their shapes; those of other shapes, such as parts of a recurrent layer's, are
    a component together.
    """

    def __init__(self, inner: Kernels, linears: Mapping[tuple[int, int], str]) -> None:
        """Pass on to `inner`; `linears` names linear layers by (outputs, inputs)."""
        self.inner = inner
        self._linears = linears
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._tape: list[tuple[str, Callable[[], None]]] | None = None

    @property
    def kernels(self) -> Kernels:
        """These, as a model takes them: whatever `Kernels` offers is offered."""
        return cast(Kernels, self)

    @property
    def host(self) -> Kernels:
        """These, since they are those of this machine's processor."""
        return self.kernels

    def take(self) -> dict[str, float]:
        """Return the seconds of each component since the last call."""
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
            for component, run in tape:
                self._run(component, run)

        return replay

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name in _NOT_TIMED or not callable(found):
            return found

        def timed(*given: Any, **named: Any) -> None:
            self._run(self._component(name, given), lambda: found(*given, **named))

        return timed

    def _component(self, operation: str, given: tuple[Any, ...]) -> str:
        if operation not in ("linear", "expert_linear"):
            return _COMPONENTS.get(operation, operation)
        weight = given[1] if operation == "linear" else given[2][0]
        return self._linears.get((weight.outputs, weight.inputs), PARTS)

    def _run(self, component: str, run: Callable[[], None]) -> None:
        if self._tape is not None:
            recorded = self.inner.record(run)
            assert recorded is not None
            self._tape.append((component, recorded))
            return
        began = perf_counter()
        run()
        self._seconds[component] += perf_counter() - began
