"""Lengths that are chosen from clocks and acceptance: the tokens stay those of plain decoding."""

import random
from typing import Any

import pytest
from asking import Ask, accepted, assert_same, assert_same_so_far, half_repeating, meddle_at_random, run, with_params
from conftest import DTYPES, MakeLLM, Pair, Plain, check_accepted, drafts, proposer_options
from crossing import crossed

from parlay import LLM, ConfigError, SamplingParams
from parlay.drafting.cost import DraftCost, StepCost
from parlay.drafting.policy import Policy
from parlay.proposers.select import proposers

DRAFTING = [name for name in proposers.names() if drafts(name)]
TEMPERATURES = (0.0, 0.7, 1.3)


def asks(temperature: float) -> list[Ask]:
    """Return requests some of which change their logits."""
    penalty = {"repetition_penalty": 1.1}
    return [with_params(ask, **penalty) if i % 5 == 0 else ask for i, ask in enumerate(half_repeating(temperature))]


def config(method: str, pair: Pair) -> dict[str, Any]:
    return {"method": method, "lengths": "goodput", **proposer_options(method, pair)}


@crossed(method=DRAFTING, dtype=DTYPES, temperature=TEMPERATURES)
def test_whatever_the_clock_says(
    make_llm: MakeLLM,
    models: dict[str, Pair],
    plain: Plain,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    dtype: str,
    temperature: float,
) -> None:
    """Times are made up, so that costs change with every step and lengths with them."""
    rng, ran, step, draft = random.Random(3), [], StepCost.observe, DraftCost.observe

    def made_up(self: StepCost, rows: int, keys: int, seconds: float) -> float:
        ran.append(rows)
        return step(self, rows, keys, rng.choice((0.001, 0.002, 0.05, 9.0)))

    def drafted(self: DraftCost, length: int, count: int, seconds: float, **more: Any) -> None:
        draft(self, length, count, rng.choice((1e-5, 1e-2)), **more)

    monkeypatch.setattr(StepCost, "observe", made_up)
    monkeypatch.setattr(DraftCost, "observe", drafted)
    for options in ({}, {"max_num_batched_tokens": 48, "block_size": 4}):
        llm = make_llm(dtype=dtype, speculative_config=config(method, models[dtype]), **options)
        assert_same(run(llm, asks(temperature)), plain(dtype, asks(temperature)))
        assert max(ran) <= llm.engine.config.max_num_batched_tokens
        ran.clear()


@pytest.mark.parametrize("method", DRAFTING)
def test_where_a_row_costs_nothing_guesses_are_verified(
    make_llm: MakeLLM, models: dict[str, Pair], plain: Plain, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def free(self: Policy, *timed: Any, **more: Any) -> None:
        self.cost.table = [1.0] * len(self.cost.table)

    monkeypatch.setattr(Policy, "timed", free)
    monkeypatch.setattr(DraftCost, "known", {1: [1.0] * 5})
    monkeypatch.setattr(DraftCost, "by_length", lambda self, most, count: [0.0] * (most + 1))
    answers = run(make_llm(speculative_config=config(method, models["float32"])), asks(0.0))
    assert_same(answers, plain("float32", asks(0.0)))
    check_accepted(method, accepted(answers))


@pytest.mark.parametrize("method", ["ngram", "draft_model", "eagle"])
def test_where_rows_are_expensive_nothing_is_verified(
    make_llm: MakeLLM, models: dict[str, Pair], plain: Plain, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def expensive(self: Policy, *timed: Any, **more: Any) -> None:
        self.cost.table = [float(max(rows, 1)) ** 2 for rows in range(len(self.cost.table))]

    monkeypatch.setattr(Policy, "timed", expensive)
    answers = run(make_llm(speculative_config=config(method, models["float32"])), asks(0.7))
    assert_same(answers, plain("float32", asks(0.7)))
    # The first step knows no better, and a device proposer has drafted for the second.
    assert sum(answer.metrics.drafted for answer in answers) <= 16 * 2


def test_with_preemption_and_aborts(make_llm: MakeLLM, models: dict[str, Pair], plain: Plain) -> None:
    meddle = meddle_at_random(random.Random(4), 0.3, 0.02)
    for method in DRAFTING:
        llm = make_llm(speculative_config=config(method, models["float32"]), block_size=4)
        assert_same_so_far(run(llm, asks(0.7), meddle), plain("float32", asks(0.7)))


def test_a_request_may_still_ask_for_less(make_llm: MakeLLM) -> None:
    llm = make_llm(speculative_config={"method": "ngram", "lengths": "goodput"})
    params = SamplingParams(temperature=0, max_tokens=30, speculative={"enabled": False})
    (answer,) = run(llm, [Ask((1, 2, 3) * 6, params)])
    assert answer.metrics.drafted == 0


@pytest.mark.parametrize("value", ["fast", 3, ""])
def test_other_words(models: dict[str, Pair], value: Any) -> None:
    with pytest.raises(ConfigError, match=r"lengths must be goodput, latency or fixed|key lengths: expected"):
        LLM(str(models["float32"].target), speculative_config={"method": "ngram", "lengths": value})
