"""What classical verification makes of two laws: the same bits in all implementations, and near the exact numbers."""

import numpy as np
import pytest
import torch
from torch import Tensor

from parlay.kernels.base import Kernels
from parlay.kernels.metadata import Filters
from parlay.kernels.reference import ReferenceKernels


def rows(vocab: int, scale: float, seed: int, count: int = 3) -> Tensor:
    return torch.randn((count, vocab), generator=torch.Generator().manual_seed(seed)) * scale


def law_of(kernels: Kernels, scores: Tensor, temperatures: Tensor, filters: Filters | None = None) -> Tensor:
    out = torch.empty_like(scores)
    kernels.log_probs(scores, temperatures, out, filters)
    return out


def excess_of(
    kernels: Kernels, target: Tensor, draft: Tensor, scales: Tensor, ids: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    out, mass = torch.empty_like(target), torch.empty(len(target), dtype=torch.float64)
    kernels.excess(target, draft, scales, mass, out, ids)
    return out, mass


@pytest.mark.parametrize("vocab", [1, 15, 17, 300, 49152])
@pytest.mark.parametrize("filtered", [False, True])
def test_laws_have_the_twins_bits(native: Kernels, vocab: int, filtered: bool) -> None:
    scores, temperatures = rows(vocab, 3.0, vocab), torch.tensor([0.7, 0.0, 1.3])
    filters = None
    if filtered:
        filters = Filters(
            torch.tensor([0.0, 0.0, 0.05], dtype=torch.float64),
            torch.tensor([5, 0, 40]),
            torch.tensor([0.9, 0.5, 0.95], dtype=torch.float64),
        )
    expected = law_of(ReferenceKernels(), scores, temperatures, filters)
    assert law_of(native, scores, temperatures, filters).numpy().tobytes() == expected.numpy().tobytes()
    assert torch.equal(expected[1].exp(), (torch.arange(vocab) == scores[1].argmax()).float()), "one token at 0"
    assert torch.allclose(expected.double().exp().sum(1), torch.ones(3, dtype=torch.float64), atol=1e-5)


@pytest.mark.parametrize("vocab", [1, 15, 17, 300, 49152])
@pytest.mark.parametrize("reduced", [False, True])
def test_excess_has_the_twins_bits(native: Kernels, vocab: int, reduced: bool) -> None:
    ids = torch.arange(0, vocab, 3).flip(0).contiguous() if reduced else None
    target = rows(vocab, 2.0, vocab).log_softmax(1)
    draft = rows(vocab if ids is None else len(ids), 2.0, vocab + 1).log_softmax(1)
    draft[0, 0] = -torch.inf
    scales = torch.tensor([1.0, 0.25, 0.9], dtype=torch.float64)
    expected, expected_mass = excess_of(ReferenceKernels(), target, draft, scales, ids)
    out, mass = excess_of(native, target, draft, scales, ids)
    assert out.numpy().tobytes() == expected.numpy().tobytes()
    assert mass.tolist() == expected_mass.tolist()
    alone = torch.empty(3, dtype=torch.float64)
    native.excess(target, draft, scales, alone, None, ids)
    assert torch.equal(alone, mass), "without an output"


def test_excess_is_near_the_exact_one(kernels: Kernels) -> None:
    target, draft = rows(4000, 3.0, 1), rows(4000, 3.0, 2)
    exact = [one.double().softmax(1) for one in (target, draft)]
    scales = torch.tensor([1.0, 0.5, 0.01], dtype=torch.float64)
    left = (scales[:, None] * exact[0] - exact[1]).clamp(min=0)
    out, mass = excess_of(kernels, target.log_softmax(1), draft.log_softmax(1), scales)
    assert torch.allclose(mass, left.sum(1), atol=1e-6)
    assert torch.allclose(out.double().exp(), left, atol=1e-6)
    assert np.isneginf(out.numpy()[left.numpy() == 0]).all()


def test_nothing_is_left_of_equal_laws(kernels: Kernels) -> None:
    logs = rows(100, 1.0, 3).log_softmax(1)
    out, mass = excess_of(kernels, logs, logs, torch.ones(3, dtype=torch.float64))
    assert not mass.any()
    assert np.isneginf(out.numpy()).all()


def test_sizes_are_checked(native: Kernels) -> None:
    with pytest.raises(ValueError, match="same tokens"):
        excess_of(native, torch.zeros(1, 8), torch.zeros(1, 4), torch.ones(1, dtype=torch.float64))
