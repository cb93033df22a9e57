import parlay  # noqa: F401  before torch: it settles how libgomp's idle threads wait

# isort: split
from collections.abc import Iterator

import pytest
import torch

from parlay.kernels.base import Kernels
from parlay.kernels.reference import ReferenceKernels

try:
    from parlay.kernels import _native
    from parlay.kernels.cpu import NativeKernels

    ISAS = _native.isas()
except ImportError:  # built without a compiler
    ISAS = []


@pytest.fixture
def reference() -> ReferenceKernels:
    return ReferenceKernels()


@pytest.fixture(params=ISAS or [pytest.param("", marks=pytest.mark.skip(reason="no native kernels"))])
def native(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    """Each compiled variant that this machine can run."""
    yield NativeKernels(request.param)
    _native.set_isa(ISAS[0])
    _native.set_threads(1)


@pytest.fixture(params=["reference", *ISAS])
def kernels(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    """The twins and each compiled variant."""
    threads = torch.get_num_threads()
    if request.param == "reference":
        yield ReferenceKernels()
    else:
        yield NativeKernels(request.param)
        _native.set_isa(ISAS[0])
        _native.set_threads(1)
    torch.set_num_threads(threads)
