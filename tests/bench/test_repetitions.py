"""Interleaved repetitions, their bootstrap and when they end: on a clock that the tests set."""

import random
from collections.abc import Callable

from parlay.bench.repetitions import LEAST_REPETITIONS, Estimate, Repetitions, StopRule, estimate


class Clock:
    """Seconds that pass when somebody works."""

    def __init__(self) -> None:
        self.now, self.drift = 0.0, 1.0
        self.calls: list[str] = []

    def __call__(self) -> float:
        return self.now

    def work(self, name: str, seconds: float) -> Callable[[], str]:
        def run() -> str:
            self.calls.append(name)
            self.now += seconds * self.drift
            self.drift += 0.01
            return name.upper()

        return run


def test_the_order_rotates_and_plain_runs_once_for_all() -> None:
    clock, said = Clock(), list[str]()
    repetitions = Repetitions(("plain", "a", "b"), clock)
    work = {"plain": clock.work("plain", 2.0), "a": clock.work("a", 1.0), "b": clock.work("b", 4.0)}
    for _ in range(3):
        assert repetitions.run(work, said.append) == {"plain": "PLAIN", "a": "A", "b": "B"}
    assert clock.calls == said == ["plain", "a", "b", "a", "b", "plain", "b", "plain", "a"]
    assert len(repetitions) == 3
    assert [len(seconds) for seconds in repetitions.seconds.values()] == [3, 3, 3]
    assert repetitions.ratios("plain") == [1.0, 1.0, 1.0]
    assert repetitions.ratios("a")[0] == repetitions.seconds["plain"][0] / repetitions.seconds["a"][0]
    assert repetitions.seconds["plain"][0] == 2.0


def test_drift_cancels() -> None:
    """A machine that becomes slower and slower makes nobody the winner among equals."""
    clock, names = Clock(), ("plain", "a", "b", "c")
    repetitions = Repetitions(names, clock)
    for _ in range(40):
        repetitions.run({name: clock.work(name, 1.0) for name in names})
    for name in names:
        mean = sum(repetitions.ratios(name)) / len(repetitions)
        assert abs(mean - 1) < 0.002


def test_bootstrap_of_known_data() -> None:
    assert estimate([1.5]) == Estimate(1.5, 1.5, 1.5)
    assert estimate([2.0] * 9) == Estimate(2.0, 2.0, 2.0)
    assert [estimate([2.0] * n).interval for n in (1, 2, 7, 8)] == [None, None, None, [2.0, 2.0]]
    found = estimate([1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0])
    assert found.median == 1.5
    # By the binomial distribution of 11 ratios 95 % lie between the second or third from either end.
    assert 1.1 <= found.low <= 1.2
    assert 1.8 <= found.high <= 1.9
    assert found == estimate([1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0])
    assert estimate([1.0, 2.0, 4.0], seed=1).median == estimate([1.0, 2.0, 4.0]).median == 2.0


def test_the_interval_holds_the_truth() -> None:
    """Of 200 sets of 15 lognormal ratios of median 1.3, about 95 % of intervals have it."""
    rng = random.Random(5)
    covered = 0
    for _ in range(200):
        found = estimate([1.3 * rng.lognormvariate(0, 0.1) for _ in range(15)])
        covered += found.low <= 1.3 <= found.high
    assert 0.9 <= covered / 200 <= 0.99


def test_precision_is_a_share_of_the_ratio() -> None:
    assert Estimate(3.0, 2.95, 3.05).within(0.02)
    assert not Estimate(1.0, 0.95, 1.0).within(0.02)
    assert not Estimate(1.0, 1.0, 1.03).within(0.02)


def test_stopping() -> None:
    rule = StopRule(precision=0.02, repetitions=20, seconds=10)
    narrow, wide = Estimate(1, 0.99, 1.01), Estimate(2, 1.9, 2.0)
    assert rule.precise([narrow], LEAST_REPETITIONS)
    assert rule.precise([], LEAST_REPETITIONS)
    assert not rule.precise([narrow], LEAST_REPETITIONS - 1)
    assert not rule.precise([narrow, wide], 100)
    assert not rule.spent(19, 9.9)
    assert rule.spent(20, 0)
    assert rule.spent(1, 10)
