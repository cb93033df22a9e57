"""Drafts with branches against the same algorithm over a dictionary of paths, and what every such draft obeys."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from watching import expand, start

from parlay import SamplingParams
from parlay.drafting.belief import survivals
from parlay.kernels.reference import ReferenceKernels
from parlay.kernels.select import select_kernels
from parlay.proposers.base import Runtime
from parlay.proposers.branching import _chosen, _draft, _products
from parlay.proposers.draft_head import DraftHead, Start
from parlay.proposers.expander import Expander
from parlay.types.draft import ROOT, Draft
from parlay.types.draft_tree import depths, paths

VOCAB = 12
KERNELS = select_kernels()
Path = tuple[int, ...]


@cache
def logits_of(request: int, path: Path) -> Tensor:
    """Return random logits after a path, the same ones whenever it is asked."""
    return 2 * torch.randn(VOCAB, generator=torch.Generator().manual_seed(hash((request, path)) % 2**40))


class Tabled(DraftHead):
    """A head that knows its logits by heart."""

    source = "tabled"
    recordable = False

    def __init__(self, levels: int) -> None:
        runtime = Runtime(KERNELS, 0, 1, 0, None, ())  # type: ignore[arg-type]
        self._expander = Expander(self, runtime, levels, VOCAB, records=False)

    def propose(self, *of: Any) -> Any:
        raise NotImplementedError

    def place(self, starts: Sequence[Start], width: int = 1) -> None:
        self._at: list[tuple[int, Path]] = [(one.index, ()) for one in starts]

    def begin(self, states: Tensor, rows: Tensor) -> None:
        pass

    def gather(self, level: int, origin: Tensor) -> None:
        self._at = [self._at[row] for row in origin.tolist()]

    def advance(self, level: int, rows: int, width: int = 1) -> None:
        if level:
            tokens = self._expander.tokens[level, :rows].tolist()
            self._at = [(request, (*path, token)) for (request, path), token in zip(self._at, tokens, strict=False)]

    def score(self, level: int, rows: int) -> Tensor:
        return torch.stack([logits_of(*at) for at in self._at[:rows]])

    def expand(self, starts: Sequence[Start]) -> dict[int, Draft]:
        return {one.index: draft for one, draft in expand(self, starts, torch.zeros(1, 1))}


def by_hand(one: Start) -> set[Path]:
    """Return the paths of the tree that a request is to have."""

    def children(path: Path) -> dict[Path, float]:
        tokens, probs = torch.zeros((1, one.width), dtype=torch.int64), torch.zeros((1, one.width))
        params = one.span.params
        ReferenceKernels().branch(
            logits_of(one.index, path)[None].clone(),
            torch.tensor([params.temperature]),
            torch.tensor([one.span.seed]),
            torch.tensor([one.position + len(path)]),
            tokens,
            probs,
        )
        return {(*path, token): prob for token, prob in zip(tokens[0].tolist(), probs[0].tolist(), strict=True)}

    path_prob: dict[Path, float] = {}
    frontier: dict[Path, float] = {(): 1.0}
    for _ in range(one.length):
        found = {path: above * prob for at, above in frontier.items() for path, prob in children(at).items()}
        path_prob |= found
        frontier = dict(sorted(found.items(), key=lambda item: -item[1])[: one.width])
    return set(sorted(path_prob, key=lambda path: -path_prob[path])[: one.nodes])


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(1, 5), st.sampled_from([0.0, 0.8, 1.5])), min_size=1, max_size=6),
    width=st.integers(2, 6),
    nodes=st.integers(1, 20),
)
def test_dynamic_trees(requests: list[tuple[int, float]], width: int, nodes: int) -> None:
    starts = [
        replace(start(i, length, position=3 + i, params=SamplingParams(temperature=temp)), width=width, nodes=nodes)
        for i, (length, temp) in enumerate(requests)
    ]
    drafts = Tabled(6).expand(starts)
    for one in starts:
        draft = drafts[one.index]
        texts = [tuple(draft.tokens[node] for node in path) for path in paths(draft)]
        assert set(texts) == by_hand(one)
        assert len(texts) == len(set(texts)) <= nodes
        assert max(depths(draft)) <= one.length
        obeys(draft)


def obeys(draft: Draft) -> None:
    """Check that probabilities never rise along a path, and that the best path is first."""
    path_prob = survivals(draft)
    assert all(parent == ROOT or path_prob[node] <= path_prob[parent] for node, parent in enumerate(draft.parents))
    best = ROOT
    for node in range(len(draft)):
        if draft.parents[node] != best:
            break
        siblings = [other for other, parent in enumerate(draft.parents) if parent == best]
        assert path_prob[node] == max(path_prob[other] for other in siblings)
        best = node


def test_chains_and_trees_side_by_side() -> None:
    """Requests of several widths take turns; each has what it has alone."""
    starts = [replace(start(i, 1 + i % 4, position=3 + i), width=(1, 2, 4)[i % 3], nodes=8) for i in range(30)]
    together = Tabled(6).expand(starts)
    for one in starts:
        assert together[one.index] == Tabled(6).expand([one])[one.index]
        assert together[one.index].is_chain or one.width > 1


levels = st.lists(
    st.lists(st.tuples(st.integers(0, 99), st.floats(0.01, 0.9)), min_size=3, max_size=3, unique_by=lambda x: x[0]),
    min_size=1,
    max_size=4,
)


@given(levels, st.integers(1, 20))
def test_products_of_ranks(made: list[list[tuple[int, float]]], most: int) -> None:
    """The likeliest paths of all that there are, where every level's tokens may follow any of the one before."""
    ranked = [sorted(level, key=lambda one: -one[1]) for level in made]
    columns = [([token for token, _ in level], [prob for _, prob in level]) for level in ranked]
    everything: dict[Path, float] = {(): 1.0}
    frontier = dict(everything)
    for level in ranked:
        frontier = {(*path, token): above * prob for path, above in frontier.items() for token, prob in level}
        everything |= frontier
    del everything[()]
    draft = _draft(_products(columns, most), most, "ranks")
    assert len(draft) == min(most, len(everything))
    best = sorted(everything.values(), reverse=True)[:most]
    assert sorted(survivals(draft), reverse=True) == pytest.approx(best)
    obeys(draft)


def test_paths_of_ranks() -> None:
    columns = [([5, 6, 7], [0.5, 0.3, 0.1]), ([8, 9, 4], [0.6, 0.2, 0.1])]
    choices = ((0,), (2,), (0, 1), (2, 0), (2, 0, 0))
    draft = _draft(_chosen(columns, choices), 10, "ranks")
    assert [tuple(draft.tokens[node] for node in path) for path in paths(draft)] == [(5,), (5, 9), (7,), (7, 8)]
