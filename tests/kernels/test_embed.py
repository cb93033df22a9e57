"""Rows of an embedding, as they are."""

import pytest
import torch

from parlay.kernels.base import Kernels

from .helpers import DTYPES, random


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_are_copied(kernels: Kernels, dtype: torch.dtype) -> None:
    weight = random(11, 24, dtype=dtype)
    tokens = torch.tensor([10, 0, 3, 3])
    out = torch.full((4, 24), torch.nan, dtype=dtype)
    kernels.embed(weight, tokens, out)
    assert torch.equal(out, weight[tokens])
