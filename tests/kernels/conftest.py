import parlay  # noqa: F401  before torch: it settles how libgomp's idle threads wait

# isort: split
import functools
from collections.abc import Iterator

import pytest
import torch

from parlay import env
from parlay.kernels.base import Kernels
from parlay.kernels.reference import ReferenceKernels
from parlay.numerics.kernel_choice import summarise
from parlay.numerics.selfcheck import check, product_case

try:
    from parlay.kernels import _native
    from parlay.kernels.checked import CheckedKernels
    from parlay.kernels.cpu import NativeKernels

    KIND = CheckedKernels if env.checks_kernels() else NativeKernels
    ISAS = _native.isas()
except ImportError:  # built without a compiler
    ISAS = []


@functools.cache
def twins() -> ReferenceKernels:
    """The twins as an engine would take them here: with limits on its instructions, oneDNN needs care."""
    cases = [product_case("linear", inputs, 64, torch.bfloat16) for inputs in (256, 1536)]
    kernels = ReferenceKernels()
    while not summarise(check(kernels, cases, 2)).exact:
        careful = kernels.fallback()
        assert isinstance(careful, ReferenceKernels)
        kernels = careful
    return kernels


@pytest.fixture
def reference() -> ReferenceKernels:
    return twins()


@pytest.fixture(params=ISAS or [pytest.param("", marks=pytest.mark.skip(reason="no native kernels"))])
def native(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    """Each compiled variant that this machine can run."""
    yield KIND(request.param)
    _native.set_threads(1)


@pytest.fixture(params=["reference", *ISAS])
def kernels(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    """The twins and each compiled variant."""
    threads = torch.get_num_threads()
    if request.param == "reference":
        yield twins()
    else:
        yield KIND(request.param)
        _native.set_threads(1)
    torch.set_num_threads(threads)
