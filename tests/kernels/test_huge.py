"""Memory in huge pages."""

import mmap

import pytest
import torch

from parlay.kernels.huge_pages import empty_huge


@pytest.mark.parametrize("shape", [(3, 5), (1 << 20, 3)])
def test_a_tensor_like_any_other(shape: tuple[int, int]) -> None:
    tensor = empty_huge(shape, torch.bfloat16)
    tensor.fill_(2)
    assert tensor.shape == shape
    assert tensor.dtype is torch.bfloat16
    assert tensor.is_contiguous()
    assert (tensor == 2).all()


def test_a_system_without_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses the advice; the memory is as good."""
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 9999, raising=False)
    assert empty_huge((1 << 22,), torch.uint8).fill_(1).sum() == 1 << 22
