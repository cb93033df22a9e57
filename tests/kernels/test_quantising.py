"""Blocks that the native kernels make of plain numbers, against the twins'."""

import pytest
import torch
from tests.kernels.helpers import random

from parlay.kernels.base import Kernels
from parlay.kernels.native_quantise import quantise
from parlay.weights.quantise import INT4, INT8, to_int4, to_int8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1.0, 0.02, 1e-7, 300.0])
def test_native_blocks_are_the_twins(native: Kernels, dtype: torch.dtype, size: float) -> None:
    """Byte for byte: what a checkpoint becomes must not depend on the machine."""
    numbers = random(37, 32 * 5, dtype=dtype, spread=size)
    numbers[3], numbers[4, :40], numbers[5, 0], numbers[5, 1] = 0, 0.5, -0.0, 0.0
    for threads in (1, 3):
        native.set_threads(threads)
        for kind, twin in ((INT8, to_int8), (INT4, to_int4)):
            (found,), (expected,) = quantise(numbers, kind).parts, twin(numbers).parts
            assert found.kind is expected.kind
            assert torch.equal(found.data, expected.data)


def test_what_overflows_a_scale_is_seen(native: Kernels) -> None:
    for kind in (INT8, INT4):
        assert not quantise(torch.full((1, 32), 1e9), kind).finite()
