"""Filters against a naive twin that sorts everything, and the total order they all use."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from parlay import SamplingParams
from parlay.kernels.select import select_kernels
from parlay.sampling import sampler
from parlay.sampling.token_order import largest, rank

Row = NDArray[np.float32]
INF = float("inf")
KERNELS = [select_kernels(), select_kernels(force="reference")]


def process(row: Row, params: SamplingParams) -> Row:
    """Return the processed row, the same by all kernels."""
    first, *others = (sampler.process(k, torch.from_numpy(row)[None], [params])[0].numpy() for k in KERNELS)
    assert all(np.array_equal(first, other) for other in others)
    return first


def naive_order(row: Row) -> list[int]:
    return sorted(range(len(row)), key=lambda token: (-float(row[token]), token))


def naive_kept(scores: Row, params: SamplingParams) -> tuple[list[int], float]:
    """Return what survives, and how near it came to ending elsewhere (as a probability)."""
    order = naive_order(scores)
    best = float(scores[order[0]])
    weight = {token: math.exp(float(scores[token]) - best) for token in order}
    margin = 1.0
    if params.min_p > 0:
        margin = min((abs(w / params.min_p - 1) for w in weight.values() if w != params.min_p), default=1.0)
        order = [token for token in order if weight[token] >= params.min_p]
    if params.top_k > 0:
        order = order[: params.top_k]
    if params.top_p >= 1:
        return order, margin
    total = math.fsum(weight[token] for token in order)
    kept = []
    for token in order:
        kept.append(token)
        reached = math.fsum(weight[t] for t in kept) / total
        margin = min(margin, abs(reached - params.top_p))
        if reached >= params.top_p:
            break
    return kept, margin


def kept_by(scores: Row) -> list[int]:
    return np.flatnonzero(scores > -INF).tolist()


# Few distinct values, so that ties are everywhere, or any at all.
values = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 1.5, 2.0, -3.0]), st.floats(-30, 30, width=32, allow_subnormal=False)
)
rows = st.lists(values, min_size=1, max_size=40).map(lambda v: np.array(v, dtype=np.float32))
filters = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.25, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([-1, 0, 1, 2, 5, 39, 40, 41, 1000]),
    top_p=st.one_of(st.just(1.0), st.floats(1e-6, 1.0)),
    min_p=st.one_of(st.just(0.0), st.floats(0.0, 1.0)),
)


@settings(max_examples=600)
@given(rows, filters)
def test_filters_equal_the_naive_twin(row: Row, params: SamplingParams) -> None:
    given_row = row.copy()
    found = process(row, params)
    assert np.array_equal(row, given_row), "the logits are the caller's"
    scores = row / np.float32(params.temperature)
    kept, margin = naive_kept(scores, params)
    assume(margin > 1e-6)
    assert kept_by(found) == sorted(kept)
    assert np.array_equal(found[kept], scores[kept]), "survivors keep their scores"


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 4.0])
@pytest.mark.parametrize("top_p", [0.01, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("more", [{}, {"top_k": 700}, {"min_p": 0.05}], ids=str)
def test_a_nucleus_of_any_size(spread: float, top_p: float, more: dict[str, float]) -> None:
    """Flat rows of a larger vocabulary need more than the first look."""
    row = (np.random.default_rng(3).standard_normal(2000) * spread).astype(np.float32)
    params = SamplingParams(temperature=1.0, top_p=top_p, **more)
    kept, margin = naive_kept(row, params)
    found = kept_by(process(row, params))
    if margin > 1e-7:
        assert found == sorted(kept)
    else:  # rounding may decide the last token
        assert abs(len(found) - len(kept)) <= 1


@pytest.mark.parametrize(
    ("top_p", "count"), [(1e-9, 1), (0.25, 1), (0.26, 2), (0.5, 2), (0.75, 3), (0.76, 4), (1.0, 4)]
)
def test_the_edges_of_a_nucleus(top_p: float, count: int) -> None:
    """Four equal tokens: the nucleus is the smallest set that reaches top_p, lowest ids first."""
    row = np.array([-INF, 2, 2, 2, 2], dtype=np.float32)
    assert kept_by(process(row, SamplingParams(temperature=1.0, top_p=top_p))) == [1, 2, 3, 4][:count]


def test_min_p_of_one_keeps_what_ties_with_the_best() -> None:
    row = np.array([1, 2, 2, 0], dtype=np.float32)
    assert kept_by(process(row, SamplingParams(temperature=1.0, min_p=1.0))) == [1, 2]


def test_the_order_of_the_filters() -> None:
    """min-p and top-k first; the nucleus is of what they leave."""
    row = np.log(np.array([0.4, 0.3, 0.2, 0.1], dtype=np.float32))
    assert kept_by(process(row, SamplingParams(temperature=1.0, top_p=0.5))) == [0, 1]
    assert kept_by(process(row, SamplingParams(temperature=1.0, top_p=0.5, top_k=2))) == [0]
    # Temperature comes before all of them.
    assert kept_by(process(row, SamplingParams(temperature=0.2, top_p=0.5))) == [0]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=1.0, top_k=2),
        SamplingParams(temperature=1.0, top_p=0.5),
        SamplingParams(temperature=1.0, min_p=0.1),
        SamplingParams(temperature=0.5, top_k=3, top_p=0.9, min_p=0.1),
    ],
    ids=lambda p: f"k{p.top_k}p{p.top_p}m{p.min_p}",
)
def test_rows_with_holes(params: SamplingParams) -> None:
    """Not-a-number counts as minus infinity, and what is minus infinity is never kept."""
    row = np.array([1, np.nan, -INF, 2, np.nan], dtype=np.float32)
    holes = process(row, params)
    filled = process(np.array([1, -INF, -INF, 2, -INF], dtype=np.float32), params)
    assert np.array_equal(holes, filled)
    assert holes[3] > -INF
    for nothing in (-INF, np.nan):
        assert kept_by(process(np.full(4, nothing, dtype=np.float32), params)) == []


def test_a_tiny_temperature_is_nearly_greedy() -> None:
    row = np.array([1, 3, 2], dtype=np.float32)
    for temperature in (1e-3, 1e-4, 1.1e-5):
        found = process(row, SamplingParams(temperature=temperature, top_p=0.9))
        assert kept_by(found) == [1]
    assert SamplingParams(temperature=1e-6).temperature == 0, "colder still is greedy"


# ------------------------------------------------------------------------------------------------ the total order


@given(rows, st.integers(1, 45))
def test_largest(row: Row, count: int) -> None:
    assert largest(row, count).tolist() == naive_order(row)[:count]


@given(rows)
def test_rank(row: Row) -> None:
    order = naive_order(row)
    assert [rank(row, token) for token in order] == list(range(1, len(row) + 1))


def test_largest_of_infinite_rows() -> None:
    row = np.array([-INF, 1, -INF, INF], dtype=np.float32)
    assert largest(row, 3).tolist() == [3, 1, 0]
    assert largest(np.full(3, -INF, dtype=np.float32), 2).tolist() == [0, 1]
