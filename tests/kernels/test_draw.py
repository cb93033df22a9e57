"""Keyed noise and draws: known answers, exact agreement of the twins, and the distribution of the tokens."""

from collections.abc import Callable
from functools import cache, partial
from itertools import product

import numpy as np
import pytest
import torch
from crossing import crossed
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest
from torch import Tensor

from parlay.kernels.base import Kernels
from parlay.kernels.reference import ReferenceKernels
from parlay.kernels.reference_noise import ln, philox

from .conftest import ISAS
from .helpers import branch, draw, filters_of, guess, gumbel, random, same_bits

INF = float("inf")
NAN = float("nan")

# From Random123's table of known answers for philox4x32, 10 rounds.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_known_answers(counter: str, key: str, expected: str) -> None:
    low, high = words(key)
    assert philox(np.array([words(counter)], dtype=np.uint64), (low, high))[0].tolist() == words(expected)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
@pytest.mark.skipif(not ISAS, reason="no native kernels")
def test_native_philox_known_answers(counter: str, key: str, expected: str) -> None:
    from parlay.kernels import _native

    assert _native.philox(words(counter), words(key)) == words(expected)


def test_ln_is_right() -> None:
    x = np.concatenate(
        (np.geomspace(2.0**-40, 1, 100_001), 1 - np.geomspace(2.0**-50, 0.5, 10_001), np.arange(1, 40))
    )
    exact = np.log(x.astype(np.longdouble))
    error = np.abs(ln(x) - exact) / np.maximum(np.abs(exact), 1e-300)
    assert error.max() < 3 * 2.0**-53


def test_noise_by_its_definition(kernels: Kernels) -> None:
    """Token t uses word t % 4 of counter (t // 4, position low, 0, position high)."""
    seed, position = 0xFEDCBA9876543210, 0x123456789AB
    noise = gumbel(kernels, seed, position, 71).numpy()
    for token in (0, 1, 2, 3, 4, 63, 64, 70):
        counter = np.array([[token // 4, position & 0xFFFFFFFF, 0, position >> 32]], dtype=np.uint64)
        word = int(philox(counter, (seed & 0xFFFFFFFF, seed >> 32))[0, token % 4])
        u = (word + 0.5) / 2**32
        assert noise[token] == pytest.approx(-np.log(-np.log1p(-u)), rel=1e-13, abs=1e-13)


def test_noise_is_gumbel(kernels: Kernels) -> None:
    assert kstest(gumbel(kernels, 1, 2, 20_000).numpy(), "gumbel_r").pvalue > 0.01


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**64 - 1), position=st.integers(0, 2**63 - 1), vocab=st.integers(1, 300))
def test_noise_has_the_same_bits_everywhere(native: Kernels, seed: int, position: int, vocab: int) -> None:
    assert same_bits(gumbel(native, seed, position, vocab), gumbel(ReferenceKernels(), seed, position, vocab))


@crossed(vocab=[1, 63, 64, 65, 1003, 1004], spread=[0.0, 0.01, 1.0, 5.0, 100.0])
def test_draw_agrees_with_the_twin(native: Kernels, reference: ReferenceKernels, vocab: int, spread: float) -> None:
    rows = 60
    scores = random(rows, vocab, spread=spread, seed=vocab)
    scores[::5, :: max(1, vocab // 50)] = NAN
    scores[1::5, : vocab - 1] = -INF
    temperatures = torch.linspace(0, 2, rows).clamp(min=0)
    temperatures[3::10] = 1e-30
    seeds = random(rows, seed=9).double().view(torch.int64)
    positions = torch.arange(rows) * 2**31
    arguments = (scores, temperatures, seeds, positions)
    assert torch.equal(draw(native, *arguments), draw(reference, *arguments))


SPECIAL = [
    ([-INF, -INF, -INF], 0.0, 0),
    ([-INF, -INF, -INF], 1.0, 0),
    ([NAN, NAN], 1.0, 0),
    ([NAN, -INF], 0.0, 0),
    ([NAN, -INF, -3e38], 0.0, 2),
    ([NAN, -INF, -3e38], 1.0, 2),
    ([NAN, -INF, -3e38], 1e-3, 0),  # -3e38 / 1e-3 is -inf too
    ([0.0, INF, INF], 1.0, 1),
    ([0.0, INF, INF], 0.0, 1),
    ([1.0, 3e38, 2e38], 1e-3, 1),  # both overflow to inf: the lower id
    ([5.0, 7.0, 7.0], 0.0, 1),
    ([NAN, 7.0, 7.0, NAN], 0.0, 1),
    ([-0.0, 0.0], 0.0, 0),
    ([0.0, 1000.0, 0.0], 1.0, 1),
    ([2.0], 1.0, 0),
]


@pytest.mark.parametrize(("scores", "temperature", "token"), SPECIAL)
def test_special_scores(kernels: Kernels, scores: list[float], temperature: float, token: int) -> None:
    for pad in (0, 70):  # in a vector's tail, and before others that cannot win
        row = torch.tensor([scores + [-INF] * pad])
        for seed in range(5):
            drawn = draw(kernels, row, torch.tensor([temperature]), torch.tensor([seed]), torch.tensor([3]))
            assert drawn.tolist() == [token]


def test_ties_go_to_the_lowest_id(kernels: Kernels) -> None:
    """Scores so large that they swallow the noise tie exactly, across blocks and lanes."""
    scores = torch.full((1, 300), 1e30)
    scores[0, :77] = 0
    drawn = draw(kernels, scores, torch.ones(1), torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    assert drawn.item() == 77


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    row=st.lists(st.floats(width=32) | st.sampled_from([0.0, 1.0, -INF, 3e38]), min_size=1, max_size=140),
    temperature=st.floats(0, 100, width=32),
    seed=st.integers(-(2**63), 2**63 - 1),
    position=st.integers(0, 2**40),
)
@example(row=[0.0] * 129, temperature=1.0, seed=-1, position=0)
def test_draw_agrees_on_any_scores(
    native: Kernels, row: list[float], temperature: float, seed: int, position: int
) -> None:
    arguments = (
        torch.tensor([row]),
        torch.tensor([temperature]),
        torch.tensor([seed]),
        torch.tensor([position]),
    )
    assert torch.equal(draw(native, *arguments), draw(ReferenceKernels(), *arguments))
    for choose in CHOICES.values():
        case = torch.tensor([row]), torch.tensor([temperature]), None, None
        assert torch.equal(choose(native, *case)[0], choose(ReferenceKernels(), *case)[0])


CHOICES: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "one": guess,
    **{str(count): partial(branch, children=count) for count in (1, 4, 16)},
}


LIMITS = [None, (0.0, 0, 1.0), (0.05, 0, 1.0), (0.0, 7, 1.0), (0.001, 30, 0.8)]


# Every choice with every number of columns, and with all limits but one.
@crossed(
    limits_and_columns=list(product(LIMITS, [1, 15, 64, 515])),
    choice_and_named=[("one", False), ("one", True), ("1", False), ("4", True), ("16", True)],
)
def test_choices_agree_with_the_twin(
    native: Kernels,
    reference: ReferenceKernels,
    limits_and_columns: tuple[tuple[float, int, float] | None, int],
    choice_and_named: tuple[str, bool],
) -> None:
    (limits, columns), (choice, named) = limits_and_columns, choice_and_named
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
    tokens, probs = CHOICES[choice](native, scores, temperatures, filters, ids)
    same_tokens, same_probs = CHOICES[choice](reference, scores, temperatures, filters, ids)
    assert torch.equal(tokens, same_tokens)
    torch.testing.assert_close(probs, same_probs, rtol=1e-5, atol=1e-7)


@cache
def over_a_large_vocabulary(kernels: Kernels, choice: str | None) -> list[Tensor]:
    """Tokens of flat scores, which let the noise decide: that is where a prefilter would lose a winner."""
    found = []
    for vocab, rows, spread in ((151_936, 3, 0.3), (4096, 60, 1.0), (257, 300 if choice == "16" else 800, 0.1)):
        scores, temperatures, keys = (
            random(rows, vocab, spread=spread, seed=rows),
            torch.ones(rows),
            torch.arange(rows),
        )
        if choice is None:
            found.append(draw(kernels, scores, temperatures, keys, keys + 7))
        else:
            found.append(CHOICES[choice](kernels, scores, temperatures, None, None)[0])
    return found


@pytest.mark.parametrize("choice", [None, "one", "16"])
def test_they_agree_over_a_large_vocabulary(native: Kernels, reference: ReferenceKernels, choice: str | None) -> None:
    ours, twins = (over_a_large_vocabulary(kernels, choice) for kernels in (native, reference))
    for own, twin in zip(ours, twins, strict=True):
        assert torch.equal(own, twin)


def test_a_share_is_that_of_the_drawn_token(kernels: Kernels) -> None:
    scores = random(50, 77, seed=3)
    temperatures = torch.tensor([0.0, 0.7] * 25)
    tokens, probs = guess(kernels, scores, temperatures, None, None)
    divisors = torch.where(temperatures > 0, temperatures, 1)[:, None]
    expected = (scores / divisors).softmax(-1).gather(1, tokens[:, None])[:, 0]
    torch.testing.assert_close(probs, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("limits", [None, (0.0, 40, 0.9)])
def test_named_scores_share_the_noise_of_the_whole_vocabulary(
    kernels: Kernels, limits: tuple[float, int, float] | None
) -> None:
    """A head that knows some tokens draws what a head would that finds all others impossible."""
    rows, vocab = 60, 300
    ids = torch.randperm(vocab, generator=torch.Generator().manual_seed(1))[:100].sort().values
    scores = random(rows, 100, seed=4)
    whole = torch.full((rows, vocab), -INF).index_copy_(1, ids, scores)
    temperatures, filters = torch.full((rows,), 0.9), limits and filters_of([limits] * rows)
    tokens, probs = guess(kernels, scores, temperatures, filters, ids)
    same_tokens, same_probs = guess(kernels, whole, temperatures, filters, None)
    assert torch.equal(tokens, same_tokens)
    torch.testing.assert_close(probs, same_probs)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_draw_follows_softmax(kernels: Kernels, temperature: float) -> None:
    """Chi-square over seeds: the tokens' distribution is softmax(scores / temperature)."""
    count = 2000 if isinstance(kernels, ReferenceKernels) else 20_000
    scores = torch.tensor([1.0, 0.0, -1.0, 2.0, 0.5, -INF, 1.0, -2.0, 0.3, NAN, 1.5])
    tokens = draw(
        kernels,
        scores.expand(count, -1).contiguous(),
        torch.full((count,), temperature),
        torch.arange(count) * 7919,
        torch.full((count,), 11),
    )
    probs = (scores.nan_to_num(-INF, neginf=-INF) / temperature).softmax(0).double()
    possible = probs > 0
    seen = torch.bincount(tokens, minlength=len(scores))
    assert (seen[~possible] == 0).all()
    expected = probs[possible] / probs[possible].sum() * count
    assert chisquare(seen[possible].numpy(), expected.numpy()).pvalue > 1e-3


def test_adjacent_positions_are_independent(kernels: Kernels) -> None:
    count, tokens = 1500, []
    for position in (5, 6):
        arguments = (torch.zeros(count, 8), torch.ones(count), torch.arange(count), torch.full((count,), position))
        tokens.append(draw(kernels, *arguments))
    pairs = torch.bincount(tokens[0] * 8 + tokens[1], minlength=64)
    assert chisquare(pairs.numpy()).pvalue > 1e-3
