"""N-gram prompt lookup against brute force, against a table of all n-grams and against vLLM's own answers."""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parlay import ConfigError
from parlay.config import SpeculativeConfig
from parlay.proposers import suffix_tree
from parlay.proposers.methods.ngram import Options, Proposer
from parlay.proposers.select import make_proposer
from parlay.types.draft import NO_DRAFT
from parlay.types.draft_tree import paths

MATCHES = ("earliest", "latest")
CASES = json.loads((Path(__file__).parents[3] / "goldens/ngram/golden.json").read_text())["cases"]


def proposer(low: int, high: int, match: str = "earliest") -> Proposer:
    return Proposer(Options(low, high, match), target=None)  # type: ignore[arg-type]


@pytest.fixture(params=("native", "plain"))
def form(request: pytest.FixtureRequest) -> Iterator[None]:
    """With the native tree, and as it is where no compiler was found."""
    if request.param == "native":
        pytest.importorskip("parlay.kernels._native")
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("parlay.proposers.methods.ngram.make_tree", plain_tree)
        yield


def plain_tree(depth: int, *, latest: bool) -> suffix_tree.SuffixTree:
    return suffix_tree.SuffixTree(depth, latest)


class Table:
    """The obvious form of the proposer for one request: where each n-gram ended, first or last."""

    def __init__(self, low: int, high: int, match: str) -> None:
        self._sizes = range(low, high + 1)
        self._latest = match == "latest"
        self._ends: dict[tuple[int, ...], int] = {}
        self._tokens: list[int] = []
        self._match: int | None = None  # where the longest n-gram that now ends the text ended before

    def append(self, token: int) -> None:
        tokens = self._tokens
        tokens.append(token)
        end = len(tokens)
        self._match = None
        for n in self._sizes:
            if n > end:
                break
            gram = tuple(tokens[end - n :])
            before = self._ends.get(gram)
            if before is not None:
                self._match = before
            if before is None or self._latest:
                self._ends[gram] = end

    def following(self, count: int) -> list[int]:
        return [] if self._match is None else self._tokens[self._match : self._match + count]


def brute_force(tokens: list[int], low: int, high: int, k: int, match: str) -> list[int]:
    """Of the longest suffix that occurs earlier, what follows its first or last occurrence."""
    for n in range(min(high, len(tokens) - 1), low - 1, -1):
        starts = [s for s in range(len(tokens) - n) if tokens[s : s + n] == tokens[len(tokens) - n :]]
        if starts:
            end = (starts[0] if match == "earliest" else starts[-1]) + n
            return tokens[end : end + k]
    return []


texts = st.one_of(
    st.lists(st.integers(0, 2), max_size=40),
    st.lists(st.integers(0, 300), max_size=40),
    st.builds(
        lambda period, times, tail: (period * times)[: 5 * len(period) + tail],
        st.lists(st.integers(0, 3), min_size=1, max_size=5),
        st.integers(1, 9),
        st.integers(0, 4),
    ),
)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts, st.integers(1, 4), st.integers(0, 4), st.integers(1, 12), st.sampled_from(MATCHES))
def test_equal_to_brute_force_at_every_length(
    form: None, tokens: list[int], low: int, more: int, k: int, match: str
) -> None:
    subject = proposer(low, low + more, match)
    for end, token in enumerate(tokens, start=1):
        subject.observe(7, [token])
        expected = brute_force(tokens[:end], low, low + more, k, match)
        assert list(subject.propose(7, k).tokens) == expected


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts, st.integers(1, 4), st.integers(0, 4), st.integers(1, 12), st.sampled_from(MATCHES))
def test_a_tree_holds_what_followed_every_length(
    form: None, tokens: list[int], low: int, more: int, k: int, match: str
) -> None:
    subject, high = proposer(low, low + more, match), low + more
    subject.observe(7, tokens)
    tree = subject.branch(7, k)
    followed = [brute_force(tokens, low, longest, k, match) for longest in range(high, low - 1, -1)]
    assert len(tree) <= k
    assert tree.tokens[:1] == subject.propose(7, k).tokens[:1]
    texts = [[tree.tokens[node] for node in path] for path in paths(tree)]
    assert all(any(other[: len(text)] == text for other in followed) for text in texts)
    assert len(set(map(tuple, texts))) == len(texts)


def play(seed: int, steps: int) -> None:
    """Several requests come, grow, ask and go in any order."""
    random = Random(seed)
    low = random.choice((1, 1, 2, 3, 7))
    high, match = low + random.choice((0, 1, 3, 20, 60)), random.choice(MATCHES)
    vocabulary = random.choice((1, 2, 3, 20))
    subject, tables = proposer(low, high, match), dict[int, Table]()
    for _ in range(steps):
        request = random.randrange(4)
        if random.random() < 0.02:
            subject.forget(request)
            tables.pop(request, None)
            continue
        table = tables.setdefault(request, Table(low, high, match))
        told, length = table._tokens, random.choice((0, 1, 1, 1, 2, 5, 30))
        start = random.randrange(len(told) or 1)
        # A third of what is written is a repetition.
        repeated = told[start : start + length] if random.random() < 0.3 else []
        tokens = repeated or [random.randrange(vocabulary) for _ in range(length)]
        subject.observe(request, tokens)
        for token in tokens:
            table.append(token)
        for asked, other in tables.items():
            budget = random.choice((0, 1, 2, 5, 40))
            assert list(subject.propose(asked, budget).tokens) == other.following(budget), (low, high, match)


@pytest.mark.parametrize("seed", range(20))
def test_equal_to_the_table_for_requests_that_come_and_go(form: None, seed: int) -> None:
    play(seed, 80)


@pytest.mark.soak
def test_equal_to_the_table_for_long() -> None:
    for seed in range(1000, 4000):
        play(seed, 400)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["note"])
def test_goldens(form: None, case: dict[str, Any]) -> None:
    subject = proposer(case["min_n"], case["max_n"])
    subject.observe(0, case["tokens"])
    # The engine never lets a draft go beyond the context.
    budget = min(case["k"], case["max_model_len"] - len(case["tokens"]))
    assert list(subject.propose(0, budget).tokens if budget > 0 else ()) == case["draft"]


def test_drafts_are_chains_that_name_their_source() -> None:
    subject = proposer(2, 2)
    subject.observe(0, [1, 2, 3, 4, 1, 2])
    draft = subject.propose(0, 3)
    assert draft.is_chain
    assert (draft.tokens, draft.source) == ((3, 4, 1), ("ngram",) * 3)
    assert subject.propose(0, 1).tokens == (3,)


def test_no_match_is_no_draft() -> None:
    subject = proposer(2, 4)
    subject.observe(0, [1, 2, 3, 4])
    assert subject.propose(0, 5) is NO_DRAFT


def test_requests_do_not_see_each_other_and_are_forgotten() -> None:
    subject = proposer(1, 2)
    subject.observe(0, [1, 2, 1])
    subject.observe(1, [5, 1])
    assert subject.propose(0, 1).tokens == (2,)
    assert subject.propose(1, 1) is NO_DRAFT
    subject.forget(0)
    subject.forget(0)
    subject.observe(0, [1])
    assert subject.propose(0, 1) is NO_DRAFT


@pytest.mark.parametrize(
    ("options", "bounds"),
    [
        ({}, (1, 4)),
        ({"prompt_lookup_max": 3}, (3, 3)),
        ({"prompt_lookup_min": 5}, (5, 5)),
        ({"prompt_lookup_min": 1, "prompt_lookup_max": 9}, (1, 9)),
    ],
)
def test_bounds(options: dict[str, int], bounds: tuple[int, int]) -> None:
    assert Options(**options).bounds == bounds


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"prompt_lookup_min": 0}, "at least 1"),
        ({"prompt_lookup_min": 4, "prompt_lookup_max": 3}, "below"),
        ({"prompt_lookup_max": "3"}, "prompt_lookup_max|int"),
        ({"prompt_lookup_max": 1025}, "lower prompt_lookup_max .1025. to 1024"),
        ({"match": "first"}, "first"),
        ({"prompt_lookup_mx": 3}, "did you mean 'prompt_lookup_max'"),
        ({"model": "x"}, "model"),
    ],
    ids=str,
)
def test_bad_options(options: dict[str, Any], word: str) -> None:
    config = SpeculativeConfig.parse({"method": "ngram", **options})
    with pytest.raises(ConfigError, match=word):
        make_proposer(config, target=None)  # type: ignore[arg-type]
