"""Branches of drafts: which tokens, what they are worth, and which of them are gone on from."""

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from parlay.kernels.base import Filters, Kernels
from parlay.kernels.reference import ReferenceKernels

from .helpers import draw, filters_of, random

INF, NAN = float("inf"), float("nan")


def branch(
    kernels: Kernels,
    scores: Tensor,
    temperatures: Tensor,
    children: int,
    filters: Filters | None = None,
    ids: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    rows = len(scores)
    tokens, probs = torch.full((rows, children), -1), torch.full((rows, children), torch.nan)
    seeds, positions = torch.arange(rows) * 7919 - 3, torch.arange(rows) * 2**30
    kernels.branch(scores, temperatures, seeds, positions, tokens, probs, filters, ids)
    return tokens, probs


@pytest.mark.parametrize("limits", [None, (0.0, 0, 1.0), (0.05, 0, 1.0), (0.0, 7, 1.0), (0.001, 30, 0.8)])
@pytest.mark.parametrize("columns", [1, 15, 64, 515])
@pytest.mark.parametrize(("named", "children"), [(False, 1), (True, 4), (False, 16), (True, 16)])
def test_they_agree_with_the_twin(
    native: Kernels,
    reference: ReferenceKernels,
    columns: int,
    limits: tuple[float, int, float] | None,
    named: bool,
    children: int,
) -> None:
    rows = 40
    scores = random(rows, columns, spread=2.0, seed=columns)
    scores[::5, :: max(1, columns // 50)] = NAN
    scores[1::5, : columns - 1] = -INF
    scores[2::15] = -INF
    scores[4::15, columns // 2] = INF
    temperatures = torch.linspace(0, 2, rows)
    temperatures[3::10] = 1e-30
    temperatures[5::10] = 0
    ids = torch.randperm(3 * columns)[:columns] if named else None
    filters = limits and filters_of([limits] * rows)
    tokens, probs = branch(native, scores, temperatures, children, filters, ids)
    same_tokens, same_probs = branch(reference, scores, temperatures, children, filters, ids)
    assert torch.equal(tokens, same_tokens)
    torch.testing.assert_close(probs, same_probs, rtol=1e-5, atol=1e-7)


def test_they_agree_over_a_large_vocabulary(native: Kernels, reference: ReferenceKernels) -> None:
    """Flat scores let the noise decide, which is where a prefilter would lose a winner."""
    for vocab, rows, spread in ((151_936, 2, 0.3), (4096, 30, 1.0), (257, 300, 0.1)):
        scores = random(rows, vocab, spread=spread, seed=rows)
        tokens, _ = branch(native, scores, torch.ones(rows), 10)
        assert torch.equal(tokens, branch(reference, scores, torch.ones(rows), 10)[0])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    row=st.lists(st.floats(width=32) | st.sampled_from([0.0, 1.0, -INF, 3e38]), min_size=1, max_size=140),
    temperature=st.floats(0, 100, width=32),
    children=st.integers(1, 16),
)
@example(row=[0.0] * 129, temperature=1.0, children=3)
def test_they_agree_on_any_scores(native: Kernels, row: list[float], temperature: float, children: int) -> None:
    arguments = torch.tensor([row]), torch.tensor([temperature]), children
    assert torch.equal(branch(native, *arguments)[0], branch(ReferenceKernels(), *arguments)[0])


@pytest.mark.parametrize("limits", [None, (0.0, 5, 0.9)])
def test_the_first_is_what_is_drawn(kernels: Kernels, limits: tuple[float, int, float] | None) -> None:
    rows = 50
    scores = random(rows, 77, seed=3)
    temperatures = torch.tensor([0.0, 0.7] * 25)
    filters = limits and filters_of([limits] * rows)
    tokens, probs = branch(kernels, scores, temperatures, 4, filters)
    seeds, positions = torch.arange(rows) * 7919 - 3, torch.arange(rows) * 2**30
    assert torch.equal(tokens[:, 0], draw(kernels, scores, temperatures, seeds, positions, filters))
    assert bool((probs[:, :-1] >= probs[:, 1:]).all())
    assert bool((probs.sum(1) <= 1 + 1e-5).all())
    greedy = temperatures == 0
    shares = scores.softmax(-1).gather(1, tokens)
    torch.testing.assert_close(probs[greedy], shares[greedy], rtol=1e-5, atol=1e-7)


def test_what_fills_is_worth_nothing(kernels: Kernels) -> None:
    scores = torch.tensor([[-INF, 2.0, 1.0, NAN]] * 2)
    tokens, probs = branch(kernels, scores, torch.tensor([0.0, 1.0]), 4, ids=torch.tensor([9, 5, 7, 3]))
    assert [sorted(row[:2]) for row in tokens.tolist()] == [[5, 7]] * 2
    assert tokens[:, 2:].tolist() == [[9, 9]] * 2
    assert probs[:, 2:].tolist() == [[0, 0]] * 2


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    drafts=st.integers(1, 4),
    nodes=st.integers(1, 4),
    children=st.integers(1, 5),
    wide=st.integers(1, 20),
    depth=st.integers(0, 3),
    seed=st.integers(0, 1000),
)
def test_growing_agrees_with_the_twin(
    native: Kernels, drafts: int, nodes: int, children: int, wide: int, depth: int, seed: int
) -> None:
    wide = min(wide, nodes * children)
    generator = torch.Generator().manual_seed(seed)
    rows, to = drafts * nodes, drafts * wide
    tokens = torch.randint(50, (rows, children), generator=generator)
    # Few values, so that there are ties.
    probs = torch.randint(4, (rows, children), generator=generator) / 4
    worth = torch.randint(4, (rows,), generator=generator) / 4
    above = torch.randint(90, (rows, depth), generator=generator, dtype=torch.int32)
    slots = torch.arange(to, dtype=torch.int32) + 100
    found = []
    for kernels in (native, ReferenceKernels()):
        written = [torch.full((to,), -1) for _ in range(3)]
        reached, below = torch.full((to,), -1.0), torch.full((to, depth + 1), -1, dtype=torch.int32)
        out, origin, chosen = written
        kernels.grow(tokens, probs, worth, out, reached, origin, chosen, drafts, slots, above, below)
        found.append((*written, reached, below))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    out, origin, chosen, reached, below = found[0]
    for draft in range(drafts):
        own = slice(draft * wide, draft * wide + wide)
        rows_of = slice(draft * nodes, draft * nodes + nodes)
        everything = (worth[rows_of, None] * probs[rows_of]).reshape(-1)
        assert reached[own].tolist() == sorted(everything.tolist(), reverse=True)[:wide]
        assert everything[chosen[own]].tolist() == reached[own].tolist()
        assert tokens[rows_of].reshape(-1)[chosen[own]].tolist() == out[own].tolist()
        assert (draft * nodes + chosen[own] // children).tolist() == origin[own].tolist()
    assert torch.equal(below[:, :-1], above[origin])
    assert torch.equal(below[:, -1], slots)
