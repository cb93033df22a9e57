"""Blocks of eight and four bits made of plain numbers."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from parlay.weights.quantise import fits, to_int4, to_int8
from parlay.weights.weight import Weight

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def matrix(rows: int = 50, inputs: int = 96, size: float = 1) -> Tensor:
    return torch.randn(rows, inputs, generator=torch.Generator().manual_seed(0)) * size


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_number_is_off_by_more_than_half_a_level_of_eight_bits(dtype: torch.dtype) -> None:
    numbers = matrix().to(dtype)
    found = to_int8(numbers).numbers()
    largest = numbers.float().view(50, 3, 32).abs().amax(dim=2).repeat_interleave(32, dim=1)
    # A scale is rounded to float16, by which the largest number may be off too.
    assert ((found - numbers.float()).abs() <= largest * (0.5 / 127 + 2**-11) * 1.001).all()


def test_four_bits_have_less_error_than_even_levels_between_the_extremes() -> None:
    numbers = matrix(400)
    blocks = numbers.view(400, 3, 32)
    low, span = blocks.amin(dim=2, keepdim=True), blocks.amax(dim=2, keepdim=True) - blocks.amin(dim=2, keepdim=True)
    even = ((blocks - low) / span * 15).round() / 15 * span + low

    def error(found: Tensor) -> float:
        return float((found.view_as(numbers) - numbers).square().mean())

    assert error(to_int4(numbers).numbers()) < 0.83 * error(even)


def test_four_bits_keep_what_lies_on_their_levels() -> None:
    levels = torch.randint(0, 16, (20, 32), generator=torch.Generator().manual_seed(0)).float()
    levels[:, 0], levels[:, 1] = 0, 15
    numbers = levels * 0.25 - 1.5
    assert torch.equal(to_int4(numbers).numbers(), numbers)


@pytest.mark.parametrize("make", [to_int8, to_int4])
def test_blocks_without_a_scale_are_constant(make: Callable[[Tensor], Weight]) -> None:
    numbers = torch.zeros(2, 64)
    numbers[0, 40], numbers[1, 0] = 1e-30, 2.0
    found = make(numbers).numbers()
    assert not found[0].any()
    assert found[1, 0] == pytest.approx(2.0, rel=1e-3)
    assert not found[1, 1:].any()


def test_the_sign_and_the_largest_level_are_kept() -> None:
    numbers = torch.linspace(-127, 127, 64).round()[None] / 8
    assert torch.equal(to_int8(numbers).numbers()[0, :32], numbers[0, :32])


def test_only_whole_blocks_of_matrices_fit() -> None:
    assert [fits(shape) for shape in ((4, 64), (4, 48), (64,), (2, 4, 64))] == [True, False, False, False]
