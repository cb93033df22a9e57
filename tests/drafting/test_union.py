"""One tree of several proposers' guesses: against the set of all their paths, and under a budget."""

from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay import SamplingParams
from parlay.drafting.belief import Belief, survivals
from parlay.drafting.state import Candidate
from parlay.drafting.union import union
from parlay.types.draft import ROOT, Draft
from parlay.types.draft_tree import paths
from parlay.types.plan import Verdict

GREEDY = SamplingParams(temperature=0)


def estimate(draft: Draft) -> Draft:
    return Belief().estimate(draft, GREEDY)


def candidate(
    tokens: Sequence[int], source: str, prob: float = 0.6, speculated: int = 0, parents: Sequence[int] | None = None
) -> Candidate:
    raw = Draft.chain(tokens, source, [prob] * len(tokens))
    if parents is not None:
        raw = Draft(raw.tokens, tuple(parents), raw.source, raw.probs)
    draft = Belief().apply(raw, GREEDY)
    hosted = frozenset() if speculated else frozenset(range(len(draft)))
    return Candidate(draft, survivals(draft), hosted, speculated)


def texts(draft: Draft) -> set[tuple[int, ...]]:
    """Return what stands on the way to each node."""
    return {tuple(draft.tokens[node] for node in path) for path in paths(draft)}


@st.composite
def candidates(draw: st.DrawFn) -> list[Candidate]:
    found = []
    for place in range(draw(st.integers(1, 4))):
        tokens = draw(st.lists(st.integers(0, 2), min_size=1, max_size=5))
        parents = [draw(st.integers(-1, node - 1)) for node in range(len(tokens))]
        # The same token twice below one parent is allowed, and one node of a union.
        prob = draw(st.floats(0.05, 0.95))
        speculated = len(tokens) if place == 0 and draw(st.booleans()) else 0
        chain = speculated or draw(st.booleans())
        found.append(candidate(tokens, f"source {place}", prob, speculated, None if chain else parents))
    return found


@given(candidates())
def test_it_holds_every_path_once_and_nothing_else(several: list[Candidate]) -> None:
    joined = union(several, 100, estimate)
    assert texts(joined.draft) == set().union(*(texts(one.draft) for one in several))
    if len(several) > 1:
        assert len(texts(joined.draft)) == len(joined.draft) or len(joined.draft) == len(several[0].draft)
    assert joined.draft.probs is not None
    for node, parent in enumerate(joined.draft.parents):
        assert parent < node
        assert joined.chances[node] <= (1.0 if parent == ROOT else joined.chances[parent])
        assert 0 < joined.draft.probs[node] < 1
    for held in several:
        if held.speculated:
            assert joined.draft.tokens[: held.speculated] == held.draft.tokens
            assert joined.draft.cut(held.speculated).is_chain
            assert joined.speculated == held.speculated


@given(candidates(), st.integers(1, 6))
def test_a_budget_takes_the_most_promising_nodes(several: list[Candidate], most: int) -> None:
    whole, cut = union(several, 100, estimate), union(several, most, estimate)
    if not whole.joined:
        return
    assert len(cut.draft) == min(most, len(whole.draft))
    parents = whole.draft.parents
    best = max(
        sum(whole.chances[node] for node in nodes)
        for nodes in combinations(range(len(whole.draft)), len(cut.draft))
        if all(parents[node] in (ROOT, *nodes) for node in nodes)
    )
    assert sum(cut.chances) == pytest.approx(best)
    assert cut.draft.tokens[: cut.speculated] == whole.draft.tokens[: cut.speculated]
    assert cut.speculated <= whole.speculated


def test_who_agrees_shares_and_the_surest_owns() -> None:
    joined = union([candidate([1, 2, 3], "a", 0.5), candidate([1, 2, 4, 5], "b", 0.9)], 100, estimate)
    assert joined.draft.tokens == (1, 2, 4, 5, 3)
    assert joined.draft.parents == (ROOT, 0, 1, 2, 1)
    assert joined.draft.source == ("b", "b", "b", "b", "a")
    joined = union([candidate([1, 2, 3], "model", 0.5, speculated=3), candidate([1, 4], "b", 0.9)], 100, estimate)
    assert (joined.draft.tokens, joined.speculated, joined.draft.source[0]) == ((1, 2, 3, 4), 3, "b")
    assert joined.count_hosted(range(4)) == 2
    assert joined.count_hosted([1, 2]) == 0


def test_what_begins_alike_stays_a_chain() -> None:
    several = [candidate([1, 2], "a"), candidate([1, 2, 3], "b"), candidate([1], "c")]
    assert union(several, 100, estimate) is several[1]


def test_a_second_guess_is_judged_where_the_first_is_wrong() -> None:
    """Of ten places the first guess is right at five, and the second at four of the others."""
    found = Belief()
    tree = Draft((1, 2), (ROOT, ROOT), ("a", "b"), None, None, (0.0, 0.0))
    for place in range(600):
        draft = found.estimate(tree, GREEDY)
        token = (1, 1, 1, 1, 1, 2, 2, 2, 2, 3)[place % 10]
        path = (token - 1,) if token < 3 else ()
        judged = found.judge(draft, Verdict((token,), path), GREEDY)
        assert judged == [(0, token == 1), (1, token == 2)]
    probs = found.estimate(tree, GREEDY).probs
    assert probs is not None
    assert probs == pytest.approx((0.5, 0.4), abs=0.06)
    alone = found.estimate(Draft((2,), (ROOT,), ("b",), None, None, (0.0,)), GREEDY).probs
    assert alone == Belief().estimate(Draft((2,), (ROOT,), ("b",), None, None, (0.0,)), GREEDY).probs


def test_a_union_teaches_nothing_twice() -> None:
    found = Belief()
    draft = found.estimate(Draft((1, 2), (ROOT, ROOT), ("a", "b"), None, None, (0.0, 0.0)), GREEDY)
    before = draft.probs
    for _ in range(200):
        found.judge(draft, Verdict((1,), (0,)), GREEDY, joined=True)
    assert found.estimate(draft, GREEDY).probs == before
