"""Promises are believed as far as they come true."""

import random

import pytest

from parlay.drafting.trust import Trust


@pytest.mark.parametrize("truth", [0.1, 0.3, 0.5])
def test_promises_are_scaled_to_what_comes_true(truth: float) -> None:
    trust, rng = Trust(), random.Random(1)
    for _ in range(500):
        trust.observe("ngram", True, [(0.5, rng.random() < truth)])
    assert 0.5 * trust.factor("ngram", True) == pytest.approx(truth, abs=0.1)


def test_nothing_is_promised_more_than_it_was() -> None:
    trust = Trust()
    for _ in range(100):
        trust.observe("ngram", False, [(0.5, True)] * 3)
    assert trust.factor("ngram", False) == 1.0


def test_sources_and_temperatures_do_not_answer_for_each_other() -> None:
    trust = Trust()
    for _ in range(100):
        trust.observe("ngram", True, [(0.9, False)])
    assert trust.factor("ngram", True) < 0.1
    assert trust.factor("ngram", False) == trust.factor("suffix", True) == 1.0


def test_what_was_long_ago_is_forgotten() -> None:
    trust = Trust()
    for _ in range(1000):
        trust.observe("ngram", True, [(0.9, False)])
    for _ in range(300):
        trust.observe("ngram", True, [(0.9, True)])
    assert trust.factor("ngram", True) > 0.9


def test_one_wrong_guess_ends_no_trust() -> None:
    trust = Trust()
    trust.observe("ngram", True, [(0.9, False)])
    assert trust.factor("ngram", True) > 0.7
