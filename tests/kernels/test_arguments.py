"""What the native kernels say to arguments that do not fit, and what recordings hold."""

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

pytest.importorskip("parlay.kernels._native")

from parlay.kernels.cpu import NativeKernels

ONES = torch.ones(2, 8)


@pytest.mark.parametrize(
    ("weight", "out", "message"),
    [
        (torch.ones(8, dtype=torch.bfloat16), torch.empty(2, 8), r"not bfloat16 \[8\] beside float32 \[2, 8\]"),
        (torch.ones(9), torch.empty(2, 8), r"to be of shape \[8\], not float32 \[9\]"),
        (torch.ones(8), torch.empty(3, 8), r"to be of shape \[2, 8\], not float32 \[3, 8\]"),
        (torch.ones(8), torch.empty(8, 2).T, r"not contiguous: float32 \[2, 8\]"),
        (torch.ones(8, dtype=torch.float64), torch.empty(2, 8), r"not float64 \[8\]"),
    ],
)
def test_tensors_that_do_not_fit(weight: Tensor, out: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NativeKernels().rms_norm(ONES, weight, 1e-5, out)


def test_what_is_no_tensor() -> None:
    kernels = NativeKernels()
    with pytest.raises(TypeError, match=r"rms_norm\(\): incompatible function arguments"):
        kernels.rms_norm(ONES.tolist(), torch.ones(8), 1e-5, torch.empty(2, 8))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"activate\(\): incompatible function arguments"):
        kernels.activate(torch.ones(2, 8), "swish")  # type: ignore[arg-type]
    kernels.activate(torch.ones(2, 8), "gelu")  # nothing is left over of an error


class Broken:
    """What is asked for its shape, or its parts, and raises."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    @property
    def shape(self) -> tuple[int, ...]:
        raise self._error

    parts = min_p = shape


@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt(), RuntimeError("no storage"), AttributeError()])
@pytest.mark.parametrize(
    "call",
    [
        lambda kernels, broken: kernels.add_bias(ONES, broken),
        lambda kernels, broken: kernels.linear(ONES, broken, ONES),
        lambda kernels, broken: kernels.expert_linear(ONES, torch.zeros(2).int(), [broken], ONES),
        lambda kernels, broken: kernels.process(ONES, torch.ones(2), broken),
        lambda kernels, broken: kernels.excess(ONES, ONES, ONES, ONES, broken),
    ],
    ids=["tensor", "weight", "list", "filters", "optional"],
)
def test_only_what_does_not_fit_is_incompatible(error: BaseException, call: Callable[..., None]) -> None:
    """Memory that ran out and an interrupt are raised as they are, and nothing is left over of them."""
    kernels = NativeKernels()
    expected = TypeError if isinstance(error, AttributeError) else type(error)
    with pytest.raises(expected, match="incompatible" if expected is TypeError else None):
        call(kernels, Broken(error))
    kernels.activate(torch.ones(2, 8), "gelu")


def test_indices_of_another_dtype() -> None:
    kernels = NativeKernels()
    with pytest.raises(ValueError, match=r"to be int64, not int32 \[2\]"):
        kernels.embed(torch.ones(5, 8), torch.zeros(2, dtype=torch.int32), torch.empty(2, 8))
    weight = kernels.pack_linear(torch.ones(3, 8, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="another type than x"):
        kernels.linear(ONES, weight, torch.empty(2, 3))


def test_a_recording_holds_what_it_uses_and_no_longer() -> None:
    kernels = NativeKernels()
    x, out = torch.ones(2, 8), torch.empty(2, 8)
    inner: list[weakref.ref[Tensor]] = []

    def work() -> None:
        scaled = torch.full((8,), 3.0)
        inner.append(weakref.ref(scaled))
        kernels.rms_norm(x, scaled, 0.0, out)
        kernels.linear(out, kernels.pack_linear(torch.eye(8)), x)

    replay = kernels.record(work)
    gc.collect()
    others = [torch.zeros(8) for _ in range(64)]  # would take the memory of a tensor that is gone
    assert inner[0]() is not None
    x.fill_(2.0)
    replay()
    assert torch.equal(x, torch.full((2, 8), 3.0))
    assert len(others) == 64
    del replay
    gc.collect()
    assert inner[0]() is None
