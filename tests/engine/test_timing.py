"""Passes are timed at start within their time, and those that take longer for another reason do not count."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from parlay import LLM
from parlay.engine import speculation
from parlay.engine.timing import timed_passes
from parlay.kernels.select import select_kernels
from parlay.models.select import describe_model, load_model
from parlay.runner.runner import ModelRunner
from parlay.types.cache import StateCapacity


class Slow:
    """A runner whose passes take `seconds` a row beyond a constant.

    They take four times as long when they are recorded, and twice when that is checked, at other positions.
    """

    block_size, recurrent, room = 16, False, StateCapacity()
    model = SimpleNamespace(config=SimpleNamespace(vocab_size=1000))

    def __init__(self, seconds: float, burst: range = range(0)) -> None:
        self.now = 0.0
        self._seconds, self._burst, self._passes = seconds, burst, 0
        self._known: dict[int, int] = {}  # by rows, where the recorded pass began
        self._checked: set[int] = set()
        self.recordings = 0
        self.tokens: list[list[int]] = []

    def clock(self) -> float:
        return self.now

    def draws(self, rows: int) -> bool:
        return False

    def forward(self, batch: Any, draws: None) -> None:
        rows = len(batch.tokens)
        self.tokens.append(batch.tokens.tolist())
        start = int(batch.positions[0])
        factor = 4 if rows not in self._known else 1 if rows in self._checked else 2
        self.recordings += factor > 1
        if self._known.setdefault(rows, start) != start:
            self._checked.add(rows)
        self._passes += 1
        self.now += self.takes(rows) * factor * (3 if self._passes in self._burst else 1)

    def drawn(self, rows: range) -> None:
        return None

    def logits(self, hidden: None, rows: range) -> torch.Tensor:
        return torch.zeros(len(rows), 1)

    def takes(self, rows: int) -> float:
        return self._seconds * (4 + rows)


def timed(runner: Slow, blocks: int = 8) -> dict[int, float]:
    return dict(timed_passes(runner, blocks, clock=runner.clock))  # type: ignore[arg-type]


def test_recorded_and_checked_passes_do_not_count() -> None:
    runner = Slow(1e-4)
    found = timed(runner)
    assert sorted(found) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
    assert found == pytest.approx({rows: runner.takes(rows) for rows in found})


def test_a_burst_does_not_count() -> None:
    runner = Slow(1e-4, burst=range(5, 25))
    found = timed(runner)
    assert found == pytest.approx({rows: runner.takes(rows) for rows in found})


@pytest.mark.parametrize("seconds", [1e-3, 5e-3, 2e-2, 0.5])
def test_it_ends_in_time_and_what_it_has_is_right(seconds: float) -> None:
    runner = Slow(seconds)
    found = timed(runner)
    assert runner.now <= max(1.0, 7 * runner.takes(1))
    assert 1 in found
    assert found == pytest.approx({rows: runner.takes(rows) for rows in found})


def test_a_large_model_is_timed_with_few_and_with_more_rows() -> None:
    assert set(timed(Slow(3e-3))) >= {1, 2, 8}


def test_a_small_cache_is_timed_as_far_as_it_goes() -> None:
    assert max(timed(Slow(1e-4), blocks=1)) == 12


def test_rows_are_of_different_tokens_from_all_the_vocabulary() -> None:
    runner, again = Slow(1e-4), Slow(1e-4)
    timed(runner)
    timed(again)
    assert all(len(set(tokens)) == len(tokens) for tokens in runner.tokens)
    assert runner.tokens == again.tokens
    largest = max(runner.tokens, key=len)
    assert max(largest) - min(largest) > 900
    assert len({tuple(tokens) for tokens in runner.tokens}) > len(runner.tokens) / 2, "nor are passes all alike"


@pytest.mark.parametrize("name", ["mixtral", "qwen3moe"])
def test_rows_of_a_mixture_choose_many_experts(
    checkpoint: Callable[[str], Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As rows of a text do; those of one token would all choose the same ones, and seem to cost next to nothing."""
    kernels, most = select_kernels(), dict[int, int]()
    route = kernels.route

    def noted(scores: torch.Tensor, experts: torch.Tensor, *more: Any) -> None:
        route(scores, experts, *more)
        most[len(experts)] = max(most.get(len(experts), 0), len(set(experts.flatten().tolist())))

    monkeypatch.setattr(kernels, "route", noted)
    model = load_model(describe_model(str(checkpoint(name))), torch.float32, 64, kernels)
    ticks = iter(range(10**6))
    timed_passes(ModelRunner(model, kernels, 4, 16), 4, 1e4, (1, 16), clock=lambda: next(ticks))
    assert most[16] > most[1]


def test_the_next_start_need_not_time_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """However short the run was that has timed them."""
    calls: list[list[tuple[int, float]]] = []

    def timed(*given: Any) -> list[tuple[int, float]]:
        calls.append([(1, 0.001), (8, 0.002)])
        return calls[-1]

    monkeypatch.setattr(speculation, "timed_passes", timed)
    engines = [LLM("tiny-code", speculative_config={"method": "ngram"}).engine for _ in range(2)]
    assert len(calls) == 1
    first, second = (engine._scheduler.drafting.policy.cost.known for engine in engines)  # type: ignore[union-attr]
    assert second == first
    LLM("tiny-code", speculative_config={"method": "ngram"}, kv_cache_dtype="int8")
    assert len(calls) == 2
