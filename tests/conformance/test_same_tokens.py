"""The same-tokens guarantee: output is a function of target, prompt, parameters and seed, and of nothing else.

Every registered proposer is held to it: token ids, text and the bits of every log-probability must be those that
plain decoding gives to the request alone. `table.py` says under which conditions.
"""

from collections.abc import Callable
from functools import cache
from itertools import count
from typing import Any

import pytest
import torch
from asking import Ask, accepted, assert_same, essence, run, with_params
from checking import check_cell
from conftest import DTYPES, MakeLLM, Pair, Plain, check_accepted, guesses_on_random_texts
from crossing import crossed
from table import CONDITIONS, DRAFTING, METHODS, OF_DRAFTS, TEMPERATURES, Cell, cells
from workload import CHANGES, four_each, mixed

from parlay import LLM, CompletionOutput
from parlay.sampling import sampler


@pytest.mark.parametrize(
    "cell",
    [pytest.param(cell, id=str(cell), marks=() if suite else pytest.mark.soak) for cell, suite in cells()],
)
def test_the_same_tokens(
    make_llm: MakeLLM, models: dict[str, Pair], plain: Plain, monkeypatch: pytest.MonkeyPatch, cell: Cell
) -> None:
    check_cell(cell, make_llm, models, plain, monkeypatch)


def test_the_suite_runs_a_covering_part() -> None:
    """Every method under every condition; over all conditions with every dtype and at every temperature."""
    met = [cell for cell, suite in cells() if suite]
    for method in METHODS:
        own = [cell for cell in met if cell.configuration == method]
        assert {cell.condition for cell in own} >= set(CONDITIONS)
        assert {(cell.dtype, cell.temperature) for cell in own} == {(d, t) for d in DTYPES for t in TEMPERATURES}
    for condition, circumstances in (CONDITIONS | OF_DRAFTS).items():
        tried = [cell.options for cell in met if cell.condition == condition]
        assert all(options in tried for options in circumstances.options)


def test_the_requests_are_what_they_should_be(plain: Plain) -> None:
    asks = mixed(plain, "float32", 0.7)
    answers = plain("float32", asks)
    assert len(asks) == len(CHANGES)
    assert {a.finish_reason for a in answers} == {"stop", "length"}
    assert any(isinstance(a.stop_reason, str) for a in answers)
    assert any(isinstance(a.stop_reason, int) for a in answers)
    assert len({len(ask.prompt) for ask in asks}) > 8


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_four_completions_begin_with_the_only_one(plain: Plain, temperature: float) -> None:
    fours = [with_params(ask, max_tokens=24) for ask in four_each(plain, "float32", temperature)]
    answers = plain("float32", fours)
    assert_same(answers[::4], plain("float32", [with_params(ask, n=1) for ask in fours]))
    assert len({answer.token_ids for answer in answers[:4]}) == (1 if temperature == 0 else 4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_draft_model_agrees_in_part(make_llm: MakeLLM, plain: Plain, dtype: str) -> None:
    answers = run(make_llm("draft_model", 4, dtype=dtype), mixed(plain, dtype, 0.7)[:16])
    share = accepted(answers) / sum(a.metrics.drafted for a in answers)
    assert 0.2 < share < 0.95


def short(plain: Plain, dtype: str) -> list[Ask]:
    return [with_params(Ask(a.prompt[:16], a.params), max_tokens=8) for a in mixed(plain, dtype, 0.7)[:6]]


@pytest.fixture(scope="module")
def by_reference(models: dict[str, Pair], plain: Plain) -> Callable[[str], list[CompletionOutput]]:
    """What the slow kernels give each of the short requests alone, by dtype."""

    @cache
    def complete(dtype: str) -> list[CompletionOutput]:
        llm = LLM(str(models[dtype].target), max_model_len=128, speculative_config=None)
        assert "reference" in llm.engine.numerics_id
        return [run(llm, [ask])[0] for ask in short(plain, dtype)]

    return complete


@crossed(method=DRAFTING, dtype=DTYPES)
def test_with_the_reference_kernels(
    make_llm: MakeLLM,
    plain: Plain,
    by_reference: Callable[[str], list[CompletionOutput]],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    dtype: str,
) -> None:
    asks = short(plain, dtype)
    monkeypatch.setenv("PARLAY_KERNELS", "reference")
    answers = run(make_llm(method, 3, dtype=dtype, max_num_batched_tokens=11), asks)
    assert_same(answers, by_reference(dtype))
    assert sum(answer.metrics.drafted for answer in answers) > 0 or not guesses_on_random_texts(method)


# ------------------------------------------------------------------------------------- the comparison can fail


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(name, marks=() if name in ("ngram", "draft_model", "eagle3") else pytest.mark.soak)
        for name in DRAFTING
    ],
)
def test_noise_keyed_by_the_step_is_caught(
    make_llm: MakeLLM, plain: Plain, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Plain decoding makes one step a token, so the fault shows only where a step emits several."""
    draw = sampler.draw
    ask = with_params(mixed(plain, "float32", 0.7)[1], max_tokens=40, stop_token_ids=())

    def answer(method: str | None) -> Any:
        steps = count(1)

        def by_step(kernels: Any, scores: Any, temperatures: Any, seeds: Any, positions: Any, filters: Any) -> Any:
            return draw(kernels, scores, temperatures, seeds, torch.full_like(positions, next(steps)), filters)

        monkeypatch.setattr(sampler, "draw", by_step)
        return run(make_llm(method, 4), [ask])[0]

    assert essence(answer(None)) == essence(answer(None))
    speculative = answer(method)
    check_accepted(method, speculative.metrics.accepted)
    if speculative.metrics.accepted:
        assert essence(speculative) != essence(answer(None))
