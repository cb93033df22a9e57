"""The oracle of the classical samplers: exact by enumeration, which finds out mistakes."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from verification.classical import (
    Chance,
    Distribution,
    Model,
    accepts,
    block,
    distribution,
    drawn,
    rejection,
    rest,
    several,
)

EXACT = 1e-12
Verify = Callable[[Model, Model, tuple[int, ...], Sequence[int], Chance], tuple[int, ...]]


def model(vocab: int, seed: int, zeros: float = 0.0) -> Model:
    """Return a random distribution for every context; some tokens may be impossible."""

    def of(known: tuple[int, ...]) -> Distribution:
        rng = np.random.default_rng([seed, len(known), *known])
        weights = rng.gamma(0.7, size=vocab) + 1e-3
        weights[rng.random(vocab) < zeros] = 0
        if not weights.any():
            weights[0] = 1
        made: Distribution = weights / weights.sum()
        return made

    return of


def joint(p: Model, length: int) -> dict[tuple[int, ...], float]:
    """Return the distribution of `length` tokens of plain decoding."""

    def play(chance: Chance) -> tuple[int, ...]:
        out: tuple[int, ...] = ()
        while len(out) < length:
            out = (*out, chance.token(p(out)))
        return out

    return distribution(play)


def of_chain(verify: Verify, p: Model, q: Model, length: int) -> dict[tuple[int, ...], float]:
    """Return the distribution of the `length + 1` tokens that begin with those of one drafted chain."""

    def play(chance: Chance) -> tuple[int, ...]:
        draft: tuple[int, ...] = ()
        while len(draft) < length:
            draft = (*draft, chance.token(q(draft)))
        out = verify(p, q, (), draft, chance)
        while len(out) < length + 1:
            out = (*out, chance.token(p(out)))
        return out

    return distribution(play)


def accepted(verify: Verify, p: Model, q: Model, length: int) -> float:
    """Return how many tokens of a chain are accepted on average."""

    def play(chance: Chance) -> int:
        draft: tuple[int, ...] = ()
        while len(draft) < length:
            draft = (*draft, chance.token(q(draft)))
        return len(verify(p, q, (), draft, chance)) - 1

    return sum(count * chance for count, chance in distribution(play).items())


def distance(one: dict[Any, float], other: dict[Any, float]) -> float:
    return max(abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in {*one, *other})


@pytest.mark.parametrize("verify", [rejection, block])
@pytest.mark.parametrize(("vocab", "length"), [(3, 1), (3, 2), (2, 3)])
@pytest.mark.parametrize("zeros", [0.0, 0.4])
def test_chains_keep_the_distribution(verify: Verify, vocab: int, length: int, zeros: float) -> None:
    for seed in range(4):
        p, q = model(vocab, seed, zeros), model(vocab, seed + 100, zeros)
        assert distance(of_chain(verify, p, q, length), joint(p, length + 1)) < EXACT


def test_block_verification_accepts_at_least_as_much() -> None:
    gains = []
    for seed in range(4):
        p, q = model(3, seed), model(3, seed + 100)
        assert accepted(block, p, q, 1) == pytest.approx(accepted(rejection, p, q, 1), abs=EXACT)
        gains.append(accepted(block, p, q, 3) - accepted(rejection, p, q, 3))
    assert min(gains) > -EXACT
    assert max(gains) > 0.01


@pytest.mark.parametrize("replaced", [True, False])
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("zeros", [0.0, 0.4])
def test_several_candidates_keep_the_distribution(replaced: bool, count: int, zeros: float) -> None:
    for seed in range(10):
        p, q = model(4, seed, zeros)(()), model(4, seed + 100, zeros)(())

        def play(chance: Chance, p: Distribution = p, q: Distribution = q) -> int:
            candidates = drawn(q, count, chance, replaced=replaced)
            token, left = several(p, q, candidates, chance, replaced=replaced)
            return chance.token(left) if token is None else token

        assert distance(distribution(play), dict(enumerate(p))) < EXACT


# ----------------------------------------------------------------------------------------------- mistakes


def from_the_target_again(
    p: Model, q: Model, known: tuple[int, ...], draft: Sequence[int], chance: Chance
) -> tuple[int, ...]:
    """A rejected draft token is replaced by a draw from the whole distribution."""
    out = known
    for token in draft:
        if not chance.true(accepts(p(out), q(out), token)):
            break
        out = (*out, token)
    return (*out, chance.token(p(out)))[len(known) :]


def test_a_mistake_with_chains_is_found_out() -> None:
    p, q = model(3, 1), model(3, 101)
    assert distance(of_chain(from_the_target_again, p, q, 2), joint(p, 3)) > 1e-3


def not_renormalised(p: Distribution, q: Distribution, chance: Chance) -> int:
    candidates = drawn(q, 3, chance, replaced=False)
    left = q
    for candidate in candidates:
        if chance.true(accepts(p, left, candidate)):
            return candidate
        p, left = rest(p, left), left.copy()
        left[candidate] = 0
    return chance.token(p)


def test_a_mistake_with_several_candidates_is_found_out() -> None:
    pairs = [(model(4, seed)(()), model(4, seed + 100)(())) for seed in range(10)]
    found = [distribution(partial(not_renormalised, p, q)) for p, q in pairs]
    assert max(distance(one, dict(enumerate(p))) for one, (p, _) in zip(found, pairs, strict=True)) > 1e-3
