"""All of the kernels for a GPU."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Any, Self

import torch
import triton
from torch import Tensor

from parlay.kernels.base import Kernels, Staging
from parlay.kernels.host import CopiedStaging, Instant
from parlay.kernels.memory import Mark
from parlay.kernels.triton.attention import TritonAttention
from parlay.kernels.triton.elementwise import TritonElementwise
from parlay.kernels.triton.linear import TritonLinear
from parlay.kernels.triton.norms import TritonNorms
from parlay.kernels.triton.recurrent import TritonRecurrent
from parlay.kernels.triton.rotary import TritonRotary
from parlay.kernels.triton.routing import TritonRouting
from parlay.kernels.triton.sampling import TritonSampling
from parlay.log import logger


class _PinnedStaging:
    """`Staging` in memory that a GPU reads by itself, while the host goes on."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.host = torch.zeros(size, dtype=torch.uint8, device="cpu", pin_memory=True)
        self.device = torch.zeros(size, dtype=torch.uint8, device=device)
        self._copied = torch.cuda.Event()

    def renew(self) -> None:
        self._copied.synchronize()

    def send(self, size: int) -> None:
        self.device[:size].copy_(self.host[:size], non_blocking=True)
        self._copied.record()


class _Event:
    """`Mark` on a GPU."""

    def __init__(self) -> None:
        self._event = torch.cuda.Event(enable_timing=True)
        self._event.record()

    def seconds_since(self, earlier: Self) -> float:
        seconds: float = earlier._event.elapsed_time(self._event) / 1e3
        return seconds


class TritonKernels(
    TritonLinear,
    TritonAttention,
    TritonNorms,
    TritonRotary,
    TritonElementwise,
    TritonRouting,
    TritonRecurrent,
    TritonSampling,
):
    """`Kernels` in Triton; see there for what each method does.

    Attributes:
        device: the device that tensors are on.
    """

    # Rows of a tile, plus one.
    row_thresholds: tuple[int, ...] = (17, 33, 65, 129)
    prefetch: Callable[[int, int, int], None] | None = None

    def __init__(self, device: torch.device, host: Kernels, longest: int) -> None:
        """Compute on a GPU, or in Triton's interpreter on the CPU.

        Args:
            device: the device that tensors are on.
            host: kernels for this machine's processor.
            longest: most tokens of a sequence.
        """
        super().__init__(device)
        self.longest = longest
        self._host = host
        self._pool: Any = None  # of what recordings allocate: one of them runs at a time
        capability = "interpreted"
        if device.type == "cuda":
            capability = "sm{}{}".format(*torch.cuda.get_device_capability(device))
        self.name = f"triton-{triton.__version__}-{capability}"

    @property
    def host(self) -> Kernels:  # noqa: D102
        return self._host

    def device_context(self) -> AbstractContextManager[object]:  # noqa: D102
        return self.device

    def to_device(self, tensor: Tensor) -> Tensor:  # noqa: D102
        return tensor.to(self.device)

    def is_on_device(self, tensor: Tensor) -> bool:  # noqa: D102
        return tensor.device == self.device

    def staging(self, size: int) -> Staging:  # noqa: D102
        return _PinnedStaging(size, self.device) if self.device.type == "cuda" else CopiedStaging(size)

    def mark(self) -> Mark:  # noqa: D102
        return _Event() if self.device.type == "cuda" else Instant(perf_counter())

    def fallback(self) -> Kernels | None:  # noqa: D102
        return None

    def set_threads(self, threads: int) -> None:  # noqa: D102
        pass

    def record(self, work: Callable[[], object]) -> Callable[[], None] | None:  # noqa: D102
        if self.device.type != "cuda":
            return None
        work()  # what is compiled, or made once, is made now
        graph = torch.cuda.CUDAGraph()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                work()
        except RuntimeError as error:
            logger.warning("kernels: a pass cannot be recorded, and runs slower: %s", str(error).splitlines()[0])
            torch.cuda.synchronize()
            return lambda: _call(work)
        replay: Callable[[], None] = graph.replay
        return replay


def _call(work: Callable[[], object]) -> None:
    work()
