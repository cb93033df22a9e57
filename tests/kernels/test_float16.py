"""Weights in float16 do what the same numbers in float32 do, bit for bit."""

import pytest
import torch
from torch import Tensor

from parlay.kernels.base import Kernels
from parlay.weights.weight import Weight

from .helpers import DTYPES, random, same_bits
from .test_quantised import multiplied
from .test_row_invariance import MANY_ROWS, ROWS, check

SHAPES = [(75, 640), (33, 1537), (64, 7)]


def halves(outputs: int, inputs: int) -> Tensor:
    numbers = random(outputs, inputs, dtype=torch.float16, seed=1)
    numbers[0, 0], numbers[1, 0], numbers[2, 0] = 6e-8, -6.1e-5, 65504  # the least of both sorts, and the largest
    return numbers


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_those_of_float32(kernels: Kernels, shape: tuple[int, int], dtype: torch.dtype) -> None:
    weight = halves(*shape)
    x = random(29, shape[1], dtype=dtype, seed=2)
    for rows in (1, 2, 4, 5, 6, 7, 12, 13, 29):
        expected = multiplied(kernels, x[:rows].float(), Weight.of(weight.float()))
        assert same_bits(multiplied(kernels, x[:rows], Weight.of(weight)), expected.to(dtype)), rows
        assert same_bits(multiplied(kernels, x[:rows], Weight.of(weight), head=True), expected), rows


def test_rows_do_not_know_of_each_other(kernels: Kernels) -> None:
    x = random(ROWS, 512, dtype=torch.bfloat16, seed=2)
    packed = kernels.pack_linear(Weight.of(halves(96, 512)))

    def rows(chosen: Tensor) -> Tensor:
        out = torch.empty(len(chosen), 96, dtype=torch.bfloat16)
        kernels.linear(x[chosen], packed, out)
        return out

    check(kernels, rows, MANY_ROWS if kernels.name != "reference" else (1, 7))


@pytest.mark.parametrize("dtype", DTYPES)
def test_looked_up_rows_are_what_is_stored(kernels: Kernels, dtype: torch.dtype) -> None:
    weight, tokens = halves(70, 250), torch.tensor([0, 69, 33, 33, 5])
    out = torch.full((5, 250), torch.nan, dtype=dtype)
    kernels.embed_packed(kernels.pack_head(Weight.of(weight)), tokens, out)
    assert same_bits(out, weight[tokens].to(dtype))
