"""Filters: bit-exact agreement of the twins on rows of all kinds, their distribution, and draws of what they keep."""

import math
from functools import cache

import numpy as np
import pytest
import torch
from crossing import crossed
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from parlay.kernels.base import Filters, Kernels
from parlay.kernels.reference import ReferenceKernels
from parlay.kernels.reference_sampling import decay, survivors

from .helpers import draw, filters_of, process, same_bits

INF, NAN = float("inf"), float("nan")
HALF_A_UNIT = 2.0**-43
REFERENCE = ReferenceKernels()  # one for all, so that what it says is computed once for all instruction sets

# min_p, top_k, top_p: each alone, at its extremes, and together.
LIMITS = [
    (0.0, 0, 0.9),
    (0.0, 0, 0.5),
    (0.0, 0, 1e-300),
    (0.0, 0, 1 - 1e-7),
    (0.0, 0, 1 - 2.0**-53),
    (0.0, 1, 1.0),
    (0.0, 50, 1.0),
    (0.0, 700, 0.7),
    (0.0, 2**40, 0.3),
    (0.05, -1, 1.0),
    (1.0, 0, 1.0),
    (5e-324, 0, 0.99),
    (1e-9, 0, 0.9),
    (0.01, 30, 0.8),
    (0.0, 0, 1.0),
]
SMALL = (1, 2, 15, 16, 17, 63, 64, 65, 255, 256, 257, 1000, 4096)


def rows_of(vocab: int) -> Tensor:
    """Peaked, flat, tied, tiny, huge, broken: a row of each."""
    rng = np.random.default_rng(vocab)
    normal = rng.standard_normal(vocab)
    rows = [
        *(normal * spread for spread in (0.0, 0.01, 1.0, 4.0, 100.0)),
        np.sort(normal * 3),
        -1.1 * np.log(rng.permutation(vocab) + 1.0),
        np.round(normal * 2),
        10 ** rng.uniform(-44, 1, vocab),
        -(10 ** rng.uniform(-44, 38, vocab)),
        rng.choice([-0.0, 0.0], vocab),
        rng.choice([3e38, -3e38, 1.0], vocab),
        np.where(rng.random(vocab) < 0.3, NAN, normal),
        np.where(rng.random(vocab) < 0.9, -INF, normal),
        np.where(rng.random(vocab) < 0.1, INF, 0.0),
        np.full(vocab, -INF),
        np.full(vocab, NAN),
    ]
    return torch.from_numpy(np.array(rows, dtype=np.float32))


def outcome(kernels: Kernels, rows: Tensor, temperatures: Tensor, filters: Filters | None) -> tuple[Tensor, Tensor]:
    """Return the processed rows and what is drawn from them."""
    keys = torch.arange(len(rows)) * 2**33
    drawn = draw(kernels, rows, temperatures, keys, keys + 5, filters)
    return process(kernels, rows, temperatures, filters), drawn


def agree(ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor]) -> None:
    assert same_bits(ours[0], theirs[0])
    assert torch.equal(ours[1], theirs[1])


@cache
def of_every_kind(kernels: Kernels, vocab: int, temperature: float) -> tuple[Tensor, Tensor]:
    kinds = rows_of(vocab)
    rows = kinds.repeat(len(LIMITS), 1)
    filters = filters_of([limits for limits in LIMITS for _ in kinds])
    return outcome(kernels, rows, torch.full((len(rows),), temperature), filters)


@cache
def of_a_large_vocabulary(kernels: Kernels, limits: tuple[float, int, float]) -> tuple[Tensor, Tensor]:
    rows = rows_of(131_072)[[0, 1, 3, 6, 8, 12, 14]]
    return outcome(kernels, rows, torch.full((len(rows),), 0.8), filters_of([limits] * len(rows)))


@crossed(vocab=SMALL, temperature=[0.8, 1.0, 1e-3, 100.0, 0.0])
def test_the_twins_agree(native: Kernels, vocab: int, temperature: float) -> None:
    agree(of_every_kind(native, vocab, temperature), of_every_kind(REFERENCE, vocab, temperature))


@pytest.mark.parametrize("limits", [LIMITS[0], LIMITS[3], (0.0, 50, 0.9), (0.0, 9000, 1.0), (1e-4, 0, 0.95)], ids=str)
def test_the_twins_agree_on_a_large_vocabulary(native: Kernels, limits: tuple[float, int, float]) -> None:
    agree(of_a_large_vocabulary(native, limits), of_a_large_vocabulary(REFERENCE, limits))


scores = st.lists(
    st.floats(width=32) | st.sampled_from([0.0, -0.0, 1.0, 1.5, -INF, 3e38]) | st.floats(-20, 20, width=32),
    min_size=1,
    max_size=300,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    row=scores,
    temperature=st.floats(2**-16, 2**16, width=32),
    min_p=st.just(0.0) | st.floats(0, 1),
    top_k=st.integers(-1, 310),
    top_p=st.just(1.0) | st.floats(0, 1, exclude_min=True),
)
@example(row=[1.0] * 290, temperature=1.0, min_p=0.0, top_k=17, top_p=0.5)
@example(row=[30.0, *[0.0] * 200], temperature=1.0, min_p=0.0, top_k=0, top_p=1 - 2.0**-53)
def test_the_twins_agree_on_any_scores(
    native: Kernels, row: list[float], temperature: float, min_p: float, top_k: int, top_p: float
) -> None:
    case = torch.tensor([row]), torch.tensor([temperature]), filters_of([(min_p, top_k, top_p)])
    agree(outcome(native, *case), outcome(REFERENCE, *case))


def test_no_filters_only_divide(kernels: Kernels) -> None:
    rows = rows_of(100)
    temperatures = torch.full((len(rows),), 0.7)
    expected = torch.where((rows / torch.tensor(0.7)).isnan(), -INF, rows / torch.tensor(0.7))
    for filters in (None, filters_of([(0.0, 0, 1.0)] * len(rows)), filters_of([(0.0, 100, 1.0)] * len(rows))):
        assert same_bits(process(kernels, rows, temperatures, filters), expected)


def test_temperature_zero_keeps_the_first_of_the_best(kernels: Kernels) -> None:
    rows = torch.tensor([[1.0, 3.0, 3.0, NAN], [-INF, NAN, -INF, -INF], [NAN, INF, 0.0, INF]])
    processed = process(kernels, rows, torch.zeros(3), filters_of([(0.0, 0, 0.5)] * 3))
    assert processed.tolist() == [[-INF, 3.0, -INF, -INF], [-INF] * 4, [-INF, INF, -INF, -INF]]


@pytest.mark.parametrize("spread", [0.02, 3.0])
@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_drawing_is_drawing_from_the_processed_row(
    kernels: Kernels, spread: float, limits: tuple[float, int, float]
) -> None:
    count = 20
    rows = torch.randn(count, 3000, generator=torch.Generator().manual_seed(1)) * spread
    temperatures, keys, filters = torch.full((count,), 0.8), torch.arange(count), filters_of([limits] * count)
    whole = draw(kernels, process(kernels, rows, temperatures, filters), torch.ones(count), keys, keys)
    assert torch.equal(draw(kernels, rows, temperatures, keys, keys, filters), whole)


def test_scaled_ties_go_to_the_lowest_id(kernels: Kernels) -> None:
    """Scores that differ before temperature and no more after it: the lower id is first, the lower score or not."""
    lower, higher = 1.5, 1.5 + 2.0**-23
    assert np.float32(lower) / np.float32(10) == np.float32(higher) / np.float32(10)
    for vocab in (2, 300, 600):  # through the maxima of groups, too
        row = torch.zeros(1, vocab)
        row[0, vocab // 2 - 1], row[0, vocab - 1] = lower, higher
        for limits in ((0.0, 1, 1.0), (0.0, 0, 1e-9)):
            processed = process(kernels, row, torch.tensor([10.0]), filters_of([limits]))
            assert (processed[0] > -INF).nonzero().flatten().tolist() == [vocab // 2 - 1]


def test_the_tail_of_a_nucleus_counts(kernels: Kernels) -> None:
    """A token of probability near 1 and 100,000 of 2^-37 each, which together are 7e-7 of the whole."""
    row = torch.full((1, 100_001), -37 * math.log(2))
    row[0, 50_000] = 0.0
    tail = 100_000 * 2.0**-37
    total = 1 + tail
    for share in (0.25, 0.5, 0.75):
        processed = process(kernels, row, torch.ones(1), filters_of([(0.0, 0, (1 + share * tail) / total)]))
        kept = int((processed > -INF).sum()) - 1
        assert kept / 100_000 == pytest.approx(share, rel=1e-3)


def test_a_full_nucleus_ends_with_the_last_token_that_weighs(kernels: Kernels) -> None:
    row = torch.tensor([[0.0, -29.0, -29.7, -29.9, -50.0, -INF]])
    processed = process(kernels, row, torch.ones(1), filters_of([(0.0, 0, 1 - 2.0**-53)]))
    assert math.exp(-29.7) > HALF_A_UNIT > math.exp(-29.9)
    assert (processed[0] > -INF).tolist() == [True, True, True, False, False, False]


def test_units_sum_in_any_order() -> None:
    """The same scores in another order survive alike: which tie survives is a matter of ids, how many is not."""
    rng = np.random.default_rng(5)
    row = (np.round(rng.standard_normal(5000) * 8) / 4).astype(np.float32)
    for top_p in (0.3, 0.9, 0.9999):
        kept = np.sort(row[survivors(row, 0.0, 0, top_p)])
        for _ in range(5):
            mixed = rng.permutation(row)
            assert np.array_equal(np.sort(mixed[survivors(mixed, 0.0, 0, top_p)]), kept)


def test_decay_is_right() -> None:
    x = -np.concatenate((np.linspace(0, 30, 200_001), np.geomspace(1e-30, 1, 1000))).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    assert (np.abs(decay(x) - exact) / exact).max() < 2.0**-22.5
    assert decay(np.array([0.0, -0.0], dtype=np.float32)).tolist() == [1.0, 1.0]
    assert decay(np.array([-30.0, -31.0, -INF], dtype=np.float32)).max() < HALF_A_UNIT
    assert decay(x).max() <= 1
