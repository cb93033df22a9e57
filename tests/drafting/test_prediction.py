"""Going along a predicted output, against a twin that looks everything up anew."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.drafting.prediction import LONGEST, SHORTEST, Follower, Prediction
from parlay.proposers.select import proposers
from parlay.types.draft import NO_DRAFT


def follow(prediction: list[int], output: list[int]) -> Follower:
    follower = Follower(Prediction(prediction))
    follower.observe(output)
    return follower


def guess(prediction: list[int], output: list[int], budget: int = 100) -> list[int]:
    return list(follow(prediction, output).propose(budget).tokens)


def twin(prediction: list[int], output: list[int], budget: int) -> list[int]:
    """The rule as it is told, token by token, with nothing remembered but the place and the trust."""
    at, trust = 0, len(prediction)
    for end, token in enumerate(output, start=1):
        if trust > 0 and at < len(prediction) and prediction[at] == token:
            at, trust = at + 1, trust + 2
            continue
        trust = 0
        for n in range(LONGEST, SHORTEST - 1, -1):
            gram = output[max(0, end - n) : end]
            places = [i + n for i in range(len(prediction) - n) if prediction[i : i + n] == gram]
            if len(gram) == n and places:
                at = min((p for p in places if p >= at), default=max(places))
                trust = 2 * n
                break
    return prediction[at : at + min(budget, trust)]


def _edited(text: list[int], edits: list[tuple[int, int, list[int]]]) -> list[int]:
    text = list(text)
    for place, length, instead in edits:
        text[place : place + length] = instead
    return text


TOKENS = st.lists(st.integers(0, 3), min_size=12, max_size=60) | st.lists(st.integers(0, 300), max_size=40)
EDITS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 4), st.lists(st.integers(0, 3), max_size=4)), max_size=3
)
PAIRS = st.tuples(TOKENS, TOKENS) | st.builds(lambda text, edits: (text, _edited(text, edits)), TOKENS, EDITS)


@settings(max_examples=500)
@given(PAIRS, st.integers(1, 50))
def test_equal_to_the_twin_at_every_length(pair: tuple[list[int], list[int]], budget: int) -> None:
    prediction, output = pair
    follower = Follower(Prediction(prediction))
    for end in range(len(output) + 1):
        found = follower.propose(budget)
        assert list(found.tokens) == twin(prediction, output[:end], budget)
        assert (found is not NO_DRAFT) == follower.follows
        follower.observe(output[: end + 1])


@given(PAIRS, st.integers(0, 40))
def test_how_tokens_arrive_does_not_matter(pair: tuple[list[int], list[int]], cut: int) -> None:
    prediction, output = pair
    parts = follow(prediction, output[:cut])
    parts.observe(output)
    assert parts.propose(50) == follow(prediction, output).propose(50)


def test_from_the_beginning_and_along() -> None:
    text = list(range(20))
    assert guess(text, []) == text
    assert guess(text, text[:7], 5) == text[7:12]
    assert guess(text, text) == []
    draft = follow(text, []).propose(3)
    assert draft.is_chain
    assert draft.source == ("prediction",) * 3


@pytest.mark.parametrize(
    ("output", "following"),
    [
        ([0, 1, 2, 99], []),  # parted; nobody knows how it goes on
        ([0, 1, 2, 99, 4], []),  # one token may be chance
        ([0, 1, 2, 99, 4, 5], [6, 7, 8, 9]),  # another token instead of one; two that agree are good for four
        ([0, 1, 2, 99, 4, 5, 6], [7, 8, 9, 10, 11, 12]),
        ([0, 1, 2, 98, 99, 3, 4], [5, 6, 7, 8]),  # tokens put in
        ([0, 1, 2, 6, 7], [8, 9, 10, 11]),  # tokens left out
        ([0, 1, 2, 99, 0, 1], [2, 3, 4, 5]),  # nothing ahead: back
    ],
)
def test_edits(output: list[int], following: list[int]) -> None:
    assert guess(list(range(20)), output) == following


def test_ahead_comes_before_behind_and_near_before_far() -> None:
    text = [7, 8, 1, 7, 8, 2, 7, 8, 3, 7, 8]
    assert guess(text, [7, 8, 1, 99, 7, 8], 1) == [2]
    assert guess(text, [7, 8, 1, 7, 8, 2, 99, 7, 8], 1) == [3]
    # The last two have nothing behind them: the way back is to the latest that has.
    assert guess(text, [7, 8, 1, 7, 8, 2, 7, 8, 3, 99, 7, 8], 1) == [3]
    # A longer match is better than a nearer one.
    assert guess([1, 2, 0, 7, 8, 3, 9, 7, 8, 4], [1, 2, 99, 9, 7, 8], 1) == [4]


def test_completions_share_a_text_and_nothing_else() -> None:
    prediction = Prediction([1, 2, 3, 4, 5])
    one, other = Follower(prediction), Follower(prediction)
    one.observe([2, 3])
    other.observe([1])
    assert one.propose(1).tokens == (4,)
    assert other.propose(1).tokens == (2,)


def test_nothing_predicted_is_no_guess() -> None:
    assert guess([], []) == guess([], [1, 2, 3]) == []


def test_it_is_no_method_of_the_engines() -> None:
    assert "prediction" not in proposers.names()
