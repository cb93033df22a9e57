"""Eight bits made of plain numbers."""

import pytest
import torch

from parlay.weights.quantise import fits_int8, to_int8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_no_number_is_off_by_more_than_half_a_level(dtype: torch.dtype) -> None:
    numbers = torch.randn(50, 96, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = to_int8(numbers).numbers()
    largest = numbers.float().view(50, 3, 32).abs().amax(dim=2).repeat_interleave(32, dim=1)
    # A scale is rounded to float16, by which the largest number may be off too.
    assert ((found - numbers.float()).abs() <= largest * (0.5 / 127 + 2**-11) * 1.001).all()


def test_blocks_without_a_scale_are_zero() -> None:
    numbers = torch.zeros(2, 64)
    numbers[0, 40], numbers[1, 0] = 1e-30, 2.0
    found = to_int8(numbers).numbers()
    assert not found[0].any()
    assert found[1, 0] == pytest.approx(2.0, rel=1e-3)
    assert not found[1, 1:].any()


def test_the_sign_and_the_largest_level_are_kept() -> None:
    numbers = torch.linspace(-127, 127, 64).round()[None] / 8
    assert torch.equal(to_int8(numbers).numbers()[0, :32], numbers[0, :32])


def test_only_whole_blocks_of_matrices_fit() -> None:
    assert [fits_int8(shape) for shape in ((4, 64), (4, 48), (64,), (2, 4, 64))] == [True, False, False, False]
