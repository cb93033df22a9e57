"""How many guesses to verify: the best there is, by brute force and against known acceptance and cost."""

import itertools
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.drafting.belief import survivals
from parlay.drafting.goodput import best_draft, choose
from parlay.types.draft import ROOT, Draft

TABLE = [0.010 * max(1 + 0.01 * rows, rows / 12) for rows in range(513)]


def by_brute_force(chances: list[float], requests: int, rows: int, table: list[float], more: float) -> float:
    """Return the best rate of any subset."""
    sets = itertools.chain.from_iterable(itertools.combinations(chances, n) for n in range(len(chances) + 1))
    return max((requests + sum(s)) / (table[rows + len(s)] + more) for s in sets if rows + len(s) < len(table))


tables = st.lists(st.floats(0.001, 1), min_size=3, max_size=14).map(lambda steps: list(itertools.accumulate(steps)))


@given(
    st.lists(st.lists(st.floats(0.001, 0.999), max_size=4), max_size=3),
    st.integers(1, 4),
    st.integers(0, 6),
    tables,
    st.floats(0, 1),
)
def test_no_subset_is_better(
    chances: list[list[float]], requests: int, rows: int, table: list[float], more: float
) -> None:
    rows = min(rows, len(table) - 1)
    chosen = choose(chances, requests, rows, table, more)
    assert all(nodes == sorted(set(nodes)) for nodes in chosen)
    kept = [own[node] for own, nodes in zip(chances, chosen, strict=True) for node in nodes]
    found = (requests + sum(kept)) / (table[rows + len(kept)] + more)
    everything = [chance for own in chances for chance in own]
    assert found == pytest.approx(by_brute_force(everything, requests, rows, table, more))


@given(st.lists(st.lists(st.floats(0.1, 1), min_size=1, max_size=6), min_size=1, max_size=4))
def test_what_is_chosen_of_a_chain_is_its_beginning(probs: list[list[float]]) -> None:
    drafts = [Draft.chain([1] * len(own), "t", own) for own in probs]
    for nodes in choose([survivals(draft) for draft in drafts], len(drafts), len(drafts), TABLE):
        assert nodes == list(range(len(nodes)))


def test_survival_falls_along_a_path() -> None:
    #   0.9 -> 0.5 -> 0.5
    #   0.3 -> 0.8
    draft = Draft((1, 2, 3, 4, 5), (ROOT, 0, 1, ROOT, 3), ("t",) * 5, (0.9, 0.5, 0.5, 0.3, 0.8))
    assert survivals(draft) == pytest.approx([0.9, 0.45, 0.225, 0.3, 0.24])
    kept = [node for node, chance in enumerate(survivals(draft)) if chance >= 0.24]
    cut = draft.select(kept)
    assert (cut.tokens, cut.parents, cut.probs) == ((1, 2, 4, 5), (ROOT, 0, ROOT, 2), (0.9, 0.5, 0.3, 0.8))
    assert draft.select(range(5)) is draft


def count(chosen: list[list[int]]) -> int:
    return sum(map(len, chosen))


def test_nothing_is_chosen_where_nothing_pays() -> None:
    steep = [float(max(rows, 1)) for rows in range(65)]
    assert count(choose([[0.99] * 8], 4, 4, steep)) == 0
    assert choose([], 4, 4, TABLE) == []
    assert count(choose([[0.9]], 0, 4, TABLE)) == 0
    assert count(choose([[0.9]], 1, len(TABLE) - 1, TABLE)) == 0
    assert count(choose([[0.9]], 1, len(TABLE), TABLE)) == 0


def test_a_margin_has_to_be_gained_first() -> None:
    assert count(choose([[0.05]], 1, 1, TABLE)) == 1
    assert count(choose([[0.05]], 1, 1, TABLE, margin=1.06)) == 0


def test_keys_make_rows_cheaper() -> None:
    """What a long context costs is spent with and without drafts."""
    chances = [[0.5**i for i in range(1, 9)]]
    assert count(choose(chances, 8, 8, TABLE)) < count(choose(chances, 8, 8, TABLE, more=0.1))


@pytest.mark.parametrize("batch", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.7, 0.9])
def test_within_two_percent_of_the_best_fixed_length(alpha: float, batch: int) -> None:
    """Acceptance and cost are known."""
    chances = [[alpha**i for i in range(1, 9)] for _ in range(batch)]
    lengths = [len(nodes) for nodes in choose(chances, batch, batch, TABLE)]

    def rate(lengths: list[int]) -> float:
        """Expected tokens a second."""
        tokens = sum(alpha**i for length in lengths for i in range(length + 1))
        return tokens / TABLE[batch + sum(lengths)]

    assert rate(lengths) >= 0.98 * max(rate([k] * batch) for k in range(9))


def test_the_length_of_drafts_that_take_time() -> None:
    free, expensive = [0.0] * 9, [0.004 * k for k in range(9)]
    chances = [0.8] * 8
    assert best_draft(chances, 1, 1, TABLE, free)[0] == 8
    assert 1 <= best_draft(chances, 1, 1, TABLE, expensive)[0] < 8
    assert best_draft(chances, 1, 1, TABLE, [0.02 * k for k in range(9)])[0] == 0
    assert best_draft(chances, 16, 16, TABLE, free)[0] < 3
    assert best_draft([], 1, 1, TABLE, free)[0] == 0
    best = max(range(9), key=lambda k: sum(0.8**i for i in range(k + 1)) / (TABLE[1 + k] + 0.004 * k))
    assert best_draft(chances, 1, 1, TABLE, expensive)[0] == best
    for nodes in (2, 3.5):
        rates = [sum(0.8**i for i in range(k + 1)) / TABLE[1 + ceil(nodes * k)] for k in range(9)]
        every = [nodes * k for k in range(9)]
        assert best_draft(chances, 1, 1, TABLE, free, nodes=every)[0] == rates.index(max(rates)) < 8
