"""The best rates that this machine achieves, from which floors are computed."""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch

from parlay import env
from parlay.errors import ConfigError
from parlay.kernels.huge_pages import empty_huge

_WINDOW = 256 * 1024  # bytes that the probe reads at once, as in csrc/table.h
# How far ahead a read asks for memory, in bytes; which is best differs among machines.
_AHEAD = (0, 1024, 4096)
_ROUNDS = 20_000  # of multiplication: some milliseconds


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of all threads together.

    Attributes:
        read: bytes per second, read in a few streams from memory far larger than the caches, in huge pages.
        bf16, fp32: multiplications and additions a second out of the first-level cache, for inputs of each type.
    """

    read: float
    bf16: float
    fp32: float

    def flops(self, dtype: torch.dtype) -> float:
        """Return the rate for inputs of a type."""
        return self.bf16 if dtype is torch.bfloat16 else self.fp32

    def seconds(self, size: float, flops: float, dtype: torch.dtype) -> float:
        """Return the least time in which so many bytes are read and so many multiplications and additions done."""
        return max(size / self.read, flops / self.flops(dtype))


class Machine:
    """The native probes, and the memory that they read.

    Other load on the same machine may halve the available memory bandwidth from one second to the next. So a floor
    needs rates of the same moment: measure them beside what they are compared with.
    """

    def __init__(self, size: int = 1 << 30) -> None:
        """Take and fill `size` bytes, or a quarter of the free memory if that is less.

        Raises:
            ConfigError: the native kernels were not built.
        """
        try:
            from parlay.kernels import _native
        except ImportError as error:
            raise ConfigError(f"the probes need the native kernels, which cannot be imported: {error}") from error
        self._native = _native
        self._size = max(min(size, env.available_memory() // 4) // _WINDOW, 1) * _WINDOW
        self._memory = empty_huge((self._size,), torch.uint8)
        self._memory.fill_(0)  # untouched pages would all be one page of zeros
        self._native.set_threads(env.threads())

    def rates(self) -> Rates:
        """Measure once; the read by the best of several prefetch distances."""
        native = self._native

        def read(ahead: int) -> float:
            native.probe_read(self._memory, ahead)
            return self._size

        return Rates(
            read=max(_rate(lambda ahead=ahead: read(ahead)) for ahead in _AHEAD),  # type: ignore[misc]
            bf16=_rate(lambda: native.probe_multiply(True, _ROUNDS)),
            fp32=_rate(lambda: native.probe_multiply(False, _ROUNDS)),
        )


def _rate(work: Callable[[], float]) -> float:
    """Return the rate of what `work` returns."""
    began = perf_counter()
    amount: float = work()
    return amount / (perf_counter() - began)
