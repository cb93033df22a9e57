"""Chosen lengths against an oracle that knows acceptance and costs, through the engine's own scheduler."""

import random
from collections.abc import Callable

import pytest
from crossing import crossed

from benchmarks.replays.costs import PRESETS, Costs
from benchmarks.replays.replay import Noise, Replay, Setting
from benchmarks.replays.traces import NEVER, Recorded
from parlay.drafting.belief import SourceBelief
from parlay.explain.payoff import emitted
from parlay.types.draft import Draft

LENGTH = 8
COSTS = {"fast": PRESETS["smollm2-135m-bf16"], "slow": PRESETS["smollm2-135m-fp32"]}
METHOD = "draft_model"


def answers(count: int, tokens: int, chance: Callable[[int], float], seed: int = 0) -> list[Recorded]:
    """Return answers beside guesses of which each is right with a known probability, if the one before it was.

    Args:
        count: of answers.
        tokens: of each.
        chance: by the place in an answer, how likely a guess there is right.
        seed: of what is right.
    """
    rng, found = random.Random(seed), []
    for _ in range(count):
        output = [rng.randrange(1000) for _ in range(tokens)]
        chains = []
        for first in range(1, tokens):
            guesses = output[first : first + LENGTH]
            right = 0
            while right < len(guesses) and rng.random() < chance(first):
                right += 1
            chains.append(Draft.chain([*guesses[:right], *[NEVER] * (len(guesses) - right)], METHOD))
        found.append(Recorded((1,), tuple(output), {METHOD: tuple(chains)}))
    return found


def oracle(costs: Costs, batch: int, alpha: float, keys: int) -> float:
    """Return the tokens per second of the best fixed length, from the formula."""
    shares = costs.drafting[METHOD]

    def rate(length: int) -> float:
        seconds = costs.seconds(batch * (1 + length)) + costs.key * keys + costs.step + costs.turn * batch
        seconds += (shares.begin + shares.token * length) * costs.seconds(batch) if length else 0.0
        return batch * emitted(alpha, length) / seconds

    return max(map(rate, range(LENGTH + 1)))


def rate_of(run: Replay, steps: int) -> float:
    """Return the tokens per second of the next steps."""
    before = len(run.outcome.steps)
    for _ in range(steps):
        run.step()
    return run.outcome.after(before).tokens_per_second


@crossed(alpha=(0.2, 0.5, 0.7, 0.9), batch=(1, 8), costs=tuple(COSTS))
def test_chosen_lengths_come_within_two_per_cent_of_the_oracle(alpha: float, batch: int, costs: str) -> None:
    run = Replay(answers(batch, 6000, lambda _: alpha), Setting(method=METHOD, chosen=True), batch, COSTS[costs])
    rate_of(run, 100)
    steps = 1000 if batch == 1 else 400
    found = rate_of(run, steps)
    step = run.outcome.steps[-steps // 2]
    # What came out is luck in part: per step it is emitted(alpha, k), give or take.
    luck = 2 * 0.6 / (steps * batch) ** 0.5
    assert found > (0.98 - luck) * oracle(COSTS[costs], batch, alpha, step.keys)


@crossed(turn=1, costs=tuple(COSTS), batch=(1, 8))
def test_a_jump_of_acceptance_is_followed_within_200_steps(costs: str, batch: int) -> None:
    def chance(place: int) -> float:
        return 0.2 if 2000 <= place < 4000 else 0.9

    run = Replay(answers(batch, 8000, chance), Setting(method=METHOD, chosen=True), batch, COSTS[costs])
    seen, place = 0, 0
    for until, alpha in ((2000, 0.9), (4000, 0.2), (8000, 0.9)):
        rate_of(run, 200)
        found = rate_of(run, 200)
        luck = 2 * 0.6 / (200 * batch) ** 0.5
        assert found > (0.95 - luck) * oracle(COSTS[costs], batch, alpha, run.outcome.steps[-100].keys), (
            until,
            alpha,
        )
        if until < 8000:
            while place < (until + 50) * batch:
                run.step()
                place += sum(step.emitted for step in run.outcome.steps[seen:])
                seen = len(run.outcome.steps)


def test_noise_and_neighbours_cost_nothing() -> None:
    """Costs seen in a burst of other load may look too high for long, which loses a gain, and no more."""
    noise = Noise(spread=0.15, burst=0.01, steps=20, factor=2.0, seed=5)
    setting = Setting(method=METHOD, chosen=True)
    rates = []
    for kind in (setting, Setting(method="none")):
        run = Replay(answers(8, 4000, lambda _: 0.8), kind, 8, COSTS["fast"], noise=noise)
        rate_of(run, 100)
        rates.append(rate_of(run, 500))
    assert rates[0] > 0.98 * rates[1]


@pytest.mark.parametrize("lengths", [(1, 1), (1, 4), (4, 4), (2, 8)])
def test_what_is_learnt_does_not_depend_on_lengths(lengths: tuple[int, int]) -> None:
    """Of accepted / drafted it would."""
    rng, alpha, means = random.Random(2), 0.7, []
    source = SourceBelief()
    for _ in range(4000):
        levels = []
        for _ in range(rng.randint(*lengths)):
            levels.append(rng.random() < alpha)
            if not levels[-1]:
                break
        source.reach(levels)
        means.append(source.levels(lengths[0]))
    for level in range(lengths[0]):
        assert sum(m[level] for m in means) / len(means) == pytest.approx(alpha, abs=0.03)
