"""Branches of drafts: which tokens, what they are worth, and which of them are gone on from.

That the native kernels agree with the twin is in `test_draw.py`.
"""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parlay.kernels.base import Kernels
from parlay.kernels.reference import ReferenceKernels

from .helpers import branch, draw, filters_of, random

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("limits", [None, (0.0, 5, 0.9)])
def test_the_first_is_what_is_drawn(kernels: Kernels, limits: tuple[float, int, float] | None) -> None:
    rows = 50
    scores = random(rows, 77, seed=3)
    temperatures = torch.tensor([0.0, 0.7] * 25)
    filters = limits and filters_of([limits] * rows)
    tokens, probs = branch(kernels, scores, temperatures, filters, children=4)
    seeds, positions = torch.arange(rows) * 7919 - 3, torch.arange(rows) * 2**30
    assert torch.equal(tokens[:, 0], draw(kernels, scores, temperatures, seeds, positions, filters))
    assert bool((probs[:, :-1] >= probs[:, 1:]).all())
    assert bool((probs.sum(1) <= 1 + 1e-5).all())
    greedy = temperatures == 0
    shares = scores.softmax(-1).gather(1, tokens)
    torch.testing.assert_close(probs[greedy], shares[greedy], rtol=1e-5, atol=1e-7)


def test_what_fills_is_worth_nothing(kernels: Kernels) -> None:
    scores = torch.tensor([[-INF, 2.0, 1.0, NAN]] * 2)
    tokens, probs = branch(kernels, scores, torch.tensor([0.0, 1.0]), ids=torch.tensor([9, 5, 7, 3]), children=4)
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
