"""The native kernels: C++ that reads torch tensors, checks what it is given and records itself."""

from collections.abc import Callable

from torch import Tensor

from parlay.errors import ConfigError, shown
from parlay.kernels import _native
from parlay.kernels.base import Kernels
from parlay.kernels.host import HostMemory
from parlay.kernels.host_acceptance import HostAcceptance
from parlay.kernels.linear import LinearWeight
from parlay.kernels.packing import pack_part
from parlay.weights.weight import Weight


class NativeKernels(HostMemory, HostAcceptance, _native.Operations):
    """`Kernels` in C++; see there for what each method does, and csrc/operations.cpp for how."""

    # Most rows of one pass over the weights, in vectors, in blocks and in tiles, and of one chunk, each plus one.
    row_thresholds: tuple[int, ...] = (7, 9, 13, 17, 33, 97)

    def __init__(self, isa: str | None = None) -> None:
        """Use the best instruction set here, or `isa`, process-wide.

        Args:
            isa: "amx", "avx512bf16", "avx512vnni", "avx512", "avx2" or "baseline"; on ARM "neonbf16", "neoni8mm",
                "neondot", "neon" or "baseline".
        """
        available = _native.isas()
        if isa is not None and isa not in available:
            raise ConfigError(f"no native kernels for {shown(isa)} here (available: {', '.join(available)})")
        _native.set_isa(isa or available[0])
        super().__init__()
        self.name = f"native-{_native.isa()}"
        self.prefetch: Callable[[int, int, int], None] | None = _native.set_prefetching

    def fallback(self) -> Kernels | None:  # noqa: D102
        return None

    def set_threads(self, threads: int) -> None:  # noqa: D102
        _native.set_threads(threads)

    def record(self, work: Callable[[], object]) -> Callable[[], None]:  # noqa: D102
        tape = _native.Tape()
        _native.record(tape, work)
        return tape.run

    def pack_linear(self, weight: Tensor | Weight) -> LinearWeight:  # noqa: D102
        weight = Weight.of(weight)
        return LinearWeight(tuple(map(pack_part, weight.parts)), *weight.shape)

    def pack_head(self, weight: Tensor | Weight) -> LinearWeight:  # noqa: D102
        return self.pack_linear(weight)
