"""The geometry of drafts against definitions spelt out."""

from hypothesis import given
from hypothesis import strategies as st

from parlay.types.draft import NO_DRAFT, ROOT, Draft
from parlay.types.draft_tree import children, depths, height, paths


@st.composite
def drafts(draw: st.DrawFn, vocab: int = 4, most: int = 12) -> Draft:
    size = draw(st.integers(0, most))
    tokens = tuple(draw(st.integers(0, vocab - 1)) for _ in range(size))
    parents = tuple(draw(st.integers(ROOT, node - 1)) for node in range(size))
    return Draft(tokens, parents, ("test",) * size)


def ancestry(draft: Draft, node: int) -> list[int]:
    chain = []
    while node != ROOT:
        chain.append(node)
        node = draft.parents[node]
    return chain[::-1]


@given(drafts())
def test_paths_and_depths(draft: Draft) -> None:
    assert paths(draft) == [ancestry(draft, node) for node in range(len(draft))]
    assert depths(draft) == [len(ancestry(draft, node)) for node in range(len(draft))]
    assert not len(draft) or height(draft) == max(map(len, paths(draft)))


@given(drafts())
def test_children(draft: Draft) -> None:
    below = children(draft)
    assert len(below) == len(draft) + 1
    for parent in range(ROOT, len(draft)):
        expected: dict[int, int] = {}
        for node in range(len(draft)):
            if draft.parents[node] == parent and draft.tokens[node] not in expected:
                expected[draft.tokens[node]] = node
        assert below[parent] == expected


@given(drafts(), st.integers(0, 14))
def test_a_cut_draft_is_a_draft(draft: Draft, n: int) -> None:
    cut = draft.cut(n)
    assert len(cut) == min(n, len(draft))
    assert cut.tokens == draft.tokens[:n]
    assert all(parent < node for node, parent in enumerate(cut.parents))


@given(st.lists(st.integers(0, 9), max_size=6))
def test_chains(tokens: list[int]) -> None:
    chain = Draft.chain(tokens, "me", [0.5] * len(tokens))
    assert chain.is_chain
    assert chain.cut(2).is_chain
    assert depths(chain) == list(range(1, len(tokens) + 1))
    assert chain.source == ("me",) * len(tokens)
    assert chain.cut(2).probs == (0.5,) * min(2, len(tokens))


def test_what_is_no_chain() -> None:
    assert NO_DRAFT.is_chain
    assert not Draft((1, 2), (ROOT, ROOT), ("a", "a")).is_chain
