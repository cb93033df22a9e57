"""Rows of prompts beside requests that decode: as many as a step's time allows, and always enough to move on."""

import asyncio

import pytest
from crossing import crossed

from parlay import LLM, SamplingParams
from parlay.async_llm import AsyncLLM
from parlay.config import EngineConfig
from parlay.engine.prefill_budget import PrefillBudget
from parlay.errors import ConfigError


def took(decoding: int, prompts: int) -> float:
    """Seconds of a step: reading the weights, then something for each row."""
    return 0.100 + 0.010 * (decoding + prompts)


def budget(slowdown: float = 2.0, decoding: int = 1) -> PrefillBudget:
    made = PrefillBudget(512, slowdown)
    made.observe(0, 512, took(0, 512))
    made.observe(decoding, 0, took(decoding, 0))
    return made


def bounded(made: PrefillBudget, decoding: int, steps: int = 20) -> list[int]:
    """Return what steps got, each after the one before was observed."""
    got = []
    for _ in range(steps):
        got.append(made.rows(decoding))
        made.observe(decoding, got[-1], took(decoding, got[-1]))
    return got


def test_without_a_measurement_there_is_no_bound() -> None:
    assert PrefillBudget(512, 2.0).rows(1) == 512


def test_a_first_prompt_is_read_with_care() -> None:
    made = PrefillBudget(512, 2.0)
    made.observe(4, 0, took(4, 0))
    assert made.rows(4) == 4
    assert max(bounded(made, 4)) >= 8


def test_prompts_alone_have_no_bound() -> None:
    assert budget().rows(0) == 512


@pytest.mark.parametrize(("decoding", "slowdown"), [(1, 2.0), (8, 2.0), (1, 4.0), (32, 1.5)])
def test_a_step_takes_at_most_so_many_times_as_long(decoding: int, slowdown: float) -> None:
    with_prompts = [rows for rows in bounded(budget(slowdown, decoding), decoding) if rows]
    assert all(took(decoding, rows) <= slowdown * took(decoding, 0) for rows in with_prompts[4:])
    # Sizes lie at most a factor of 1.5 apart.
    assert 1.5 * max(with_prompts[4:]) * 0.010 >= (slowdown - 1) * took(decoding, 0) * 0.9


def test_other_numbers_of_requests_are_estimated() -> None:
    made = budget(decoding=8)
    assert 12 <= made.rows(4) <= made.rows(8) <= made.rows(32) <= 48


def test_now_and_then_a_step_goes_without_prompts() -> None:
    """Texts grow, and with them what their steps take."""
    got = bounded(budget(), 1, 60)
    assert got.count(0) == 3
    assert all(rows > 0 for rows in got[:16])


def test_prompts_move_on_however_dear_a_row_is() -> None:
    made = PrefillBudget(512, 1.0)
    made.observe(0, 512, 512.0)
    made.observe(1, 0, 1.0)
    assert made.rows(1) == 1


def test_a_step_that_nobody_notices_may_take_longer() -> None:
    made = PrefillBudget(512, 2.0)
    made.observe(0, 512, 0.512)
    made.observe(1, 0, 0.002)
    assert made.rows(1) == 48


def test_a_row_far_in_a_prompt_takes_longer() -> None:
    made = budget()
    before = made.rows(1)
    for _ in range(12):
        made.observe(1, before, 0.1 + 4 * 0.010 * before)
    assert made.rows(1) < before / 2


def test_a_jump_of_the_clock_is_no_measurement() -> None:
    made = budget()
    before = made.rows(1)
    made.observe(1, before, 3600.0)
    made.observe(1, before, 0.0)
    assert made.rows(1) >= before / 3


def test_a_bound_below_one_is_refused() -> None:
    for wrong in (0.5, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match="max_prefill_slowdown must be at least 1 and finite"):
            EngineConfig(max_prefill_slowdown=wrong)


@crossed(temperature=[0.0, 0.8], speculation=["none", "ngram"])
def test_tokens_do_not_depend_on_the_bound(
    speculation: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of plain decoding, one request after another, without a bound; `AsyncLLM` has one."""
    prompts = ["def fibonacci(n):", "import os\n" * 60, "class Stack:", "x = [1, 2, 3]\n" * 50]
    params = SamplingParams(max_tokens=40, temperature=temperature, seed=3, ignore_eos=True)
    plain = LLM("tiny-code", speculative_config="none")
    expected = [plain.generate([prompt], params)[0].outputs[0].token_ids for prompt in prompts]
    monkeypatch.setattr("parlay.engine.prefill_budget._UNNOTICED", 0.0)
    bounds, rows = [], PrefillBudget.rows

    def watched(self: PrefillBudget, decoding: int) -> int:
        bounds.append(rows(self, decoding))
        return bounds[-1]

    monkeypatch.setattr(PrefillBudget, "rows", watched)

    async def serve() -> list[list[int]]:
        async with AsyncLLM("tiny-code", speculative_config=speculation) as llm:

            async def answer(number: int, prompt: str) -> list[int]:
                await asyncio.sleep(0.02 * number)
                return [output async for output in llm.generate(prompt, params)][-1].outputs[0].token_ids

            return await asyncio.gather(*(answer(*one) for one in enumerate(prompts)))

    assert asyncio.run(serve()) == expected
    assert min(bounds) < 64
