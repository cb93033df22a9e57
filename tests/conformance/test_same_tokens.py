"""The same-tokens guarantee: output is a function of target, prompt, parameters and seed, and of nothing else.

Every registered proposer is held to it: token ids, text and the bits of every log-probability must be those that
plain decoding gives to the request alone.
"""

import random
from collections.abc import Callable
from functools import cache
from itertools import count
from typing import Any

import pytest
import torch
from asking import Ask, accepted, assert_same, essence, run, with_params
from conftest import DTYPES, MakeLLM, Plain, check_accepted, drafts, guesses_on_random_texts
from crossing import covering, crossed

from parlay import SamplingParams
from parlay.acceptance import coupled
from parlay.engine.engine import Engine
from parlay.engine.request import Request
from parlay.proposers.select import proposers

METHODS = list(proposers.names())
DRAFTING = [name for name in METHODS if drafts(name)]
TEMPERATURES = (0.0, 0.7, 1.3)
LENGTHS = (1, 3, 8)  # the distribution does not depend on every draft length
MaxTokens = 24

Requests = Callable[[str, float], list[Ask]]


@pytest.fixture(scope="session")
def mixed(plain: Plain) -> Requests:
    """Sixteen requests that share a temperature and nothing else; half of the prompts repeat themselves."""

    @cache
    def make(dtype: str, temperature: float) -> list[Ask]:
        return _with_stops(_asks(temperature), plain, dtype)

    return make


def _asks(temperature: float) -> list[Ask]:
    rng = random.Random(3)
    changes: list[dict[str, Any]] = [
        {"logprobs": 0},
        {"logprobs": 3},
        {"logprobs": 3, "top_k": 5},
        {"logprobs": 2, "top_p": 0.9},
        {"logprobs": 1, "min_p": 0.05},
        {"logprobs": 1, "top_k": 40, "top_p": 0.95, "min_p": 0.01},
        {"top_k": 1},
        {"logprobs": 300},
        {"logprobs": 1, "speculative": {"enabled": False}},
        {"logprobs": 1, "speculative": {"num_speculative_tokens": 1}},
        {"logprobs": 1, "speculative": {"num_speculative_tokens": 3}},
        {"logprobs": 1, "max_tokens": 1},
        {"logprobs": 1, "max_tokens": 2},
        {"logprobs": 1, "seed": (1 << 64) - 1},
        {"logprobs": 1, "seed": -7, "ignore_eos": True},
        {"temperature": 2.0, "logprobs": 1},
    ]
    asks = []
    for i, change in enumerate(changes):
        length = rng.randint(1, 45)
        period = rng.randint(1, 9) if i % 2 else length
        pattern = [rng.randrange(256) for _ in range(period)]
        prompt = tuple(pattern[j % period] for j in range(length))
        asks.append(
            Ask(prompt, SamplingParams(**{"temperature": temperature, "seed": i, "max_tokens": MaxTokens, **change}))
        )
    return asks


def _with_stops(asks: list[Ask], plain: Plain, dtype: str) -> list[Ask]:
    """Give a few requests stop tokens and strings that plain decoding runs into midway."""
    for i, answer in enumerate(plain(dtype, asks)):
        if i % 4 == 1 and len(answer.token_ids) > 8:
            asks[i] = with_params(asks[i], stop_token_ids=(answer.token_ids[7], 3))
        if i % 4 == 2 and (piece := _clean_piece(answer.text)):
            asks[i] = with_params(asks[i], stop=("never", piece))
    return asks


def _clean_piece(text: str) -> str:
    """Return two neighbouring characters from the middle of a text that survived decoding."""
    middle = range(len(text) // 3, len(text) - 1)
    return next((text[i : i + 2] for i in middle if "\ufffd" not in text[i : i + 2]), "")


def test_the_suite_runs_a_covering_part() -> None:
    """Every method under every distribution; over all distributions with every dtype and at every temperature."""
    distributions = [test_alone, test_from_the_prefix_cache, test_after_forced_preemption, test_when_blocks_run_out]
    met: set[tuple[str, Any]] = set()
    for distribution in (*distributions, test_four_completions):
        cases = covering(distribution)
        assert [case["method"] for case in cases] == METHODS
        met |= {(case["method"], case[axis]) for case in cases for axis in ("dtype", "temperature")}
    assert met >= {(method, value) for method in METHODS for value in (*DTYPES, *TEMPERATURES)}


def test_the_requests_are_what_they_should_be(mixed: Requests, plain: Plain) -> None:
    asks = mixed("float32", 0.7)
    answers = plain("float32", asks)
    assert len(asks) == 16
    assert {a.finish_reason for a in answers} == {"stop", "length"}
    assert any(isinstance(a.stop_reason, str) for a in answers)
    assert any(isinstance(a.stop_reason, int) for a in answers)
    assert len({len(ask.prompt) for ask in asks}) > 8


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_draft_model_agrees_in_part(make_llm: MakeLLM, mixed: Requests, dtype: str) -> None:
    answers = run(make_llm("draft_model", 4, dtype=dtype), mixed(dtype, 0.7))
    share = accepted(answers) / sum(a.metrics.drafted for a in answers)
    assert 0.2 < share < 0.95


@crossed(dtype=DTYPES, temperature=TEMPERATURES, method_and_k=[(m, k) for m in METHODS for k in LENGTHS])
def test_in_a_batch(
    make_llm: MakeLLM,
    mixed: Requests,
    plain: Plain,
    dtype: str,
    temperature: float,
    method_and_k: tuple[str, int],
) -> None:
    method, k = method_and_k
    asks = mixed(dtype, temperature)
    answers = run(make_llm(method, k, dtype=dtype), asks)
    assert_same(answers, plain(dtype, asks))
    check_accepted(method, accepted(answers))


@crossed(1, method=METHODS, dtype=DTYPES, temperature=TEMPERATURES)
def test_alone(make_llm: MakeLLM, mixed: Requests, plain: Plain, method: str, dtype: str, temperature: float) -> None:
    asks = mixed(dtype, temperature)
    total = 0
    for i, k in enumerate(LENGTHS):
        llm = make_llm(method, k, dtype=dtype, enable_prefix_caching=False)
        some = asks[i::3]
        answers = [run(llm, [ask])[0] for ask in some]
        assert_same(answers, plain(dtype, some))
        total += accepted(answers)
    check_accepted(method, total)


SIZES = [
    {"max_num_batched_tokens": 7},
    {"max_num_batched_tokens": 1},
    {"max_num_batched_tokens": 33, "block_size": 5},
    {"block_size": 1},
    {"block_size": 64, "max_num_seqs": 3},
]


@crossed(method=METHODS, options=SIZES, dtype=DTYPES)
def test_in_chunks_and_blocks_of_any_size(
    make_llm: MakeLLM, mixed: Requests, plain: Plain, method: str, options: dict[str, int], dtype: str
) -> None:
    asks = mixed(dtype, 0.7)
    answers = run(make_llm(method, 5, dtype=dtype, **options), asks)
    assert_same(answers, plain(dtype, asks))
    check_accepted(method, accepted(answers), options.get("max_num_batched_tokens") != 1)


@crossed(2, method=METHODS, dtype=DTYPES, temperature=TEMPERATURES)
def test_from_the_prefix_cache(
    make_llm: MakeLLM, mixed: Requests, plain: Plain, method: str, dtype: str, temperature: float
) -> None:
    asks = mixed(dtype, temperature)
    llm = make_llm(method, 4, dtype=dtype, block_size=8)
    for turn in range(3):
        answers = run(llm, asks if turn < 2 else asks[::-1])
        assert_same(answers if turn < 2 else answers[::-1], plain(dtype, asks))
        cached = sum(a.metrics.cached_tokens for a in answers)
        assert (cached > 0) == (turn > 0)


@crossed(3, method=METHODS, caching=[True, False], temperature=TEMPERATURES, dtype=DTYPES)
def test_after_forced_preemption(
    make_llm: MakeLLM, mixed: Requests, plain: Plain, method: str, dtype: str, temperature: float, caching: bool
) -> None:
    steps = count()

    def preempt(engine: Engine, requests: list[Request]) -> None:
        running = [r for r in requests if r.table.blocks]
        step = next(steps)
        if step % 3 == 2 and running:
            engine.preempt(running[step % len(running)])

    asks = mixed(dtype, temperature)
    llm = make_llm(method, 5, dtype=dtype, enable_prefix_caching=caching, block_size=8)
    answers = run(llm, asks, preempt)
    assert_same(answers, plain(dtype, asks))
    assert sum(a.metrics.preemptions for a in answers) >= 3


@crossed(4, method=METHODS, dtype=DTYPES, temperature=TEMPERATURES)
def test_when_blocks_run_out(
    make_llm: MakeLLM, mixed: Requests, plain: Plain, method: str, dtype: str, temperature: float
) -> None:
    asks = mixed(dtype, temperature)
    llm = make_llm(method, 5, dtype=dtype, max_model_len=72, block_size=4, num_blocks=20)
    answers = run(llm, asks)
    assert_same(answers, plain(dtype, asks))
    assert any(a.metrics.preemptions for a in answers)


@crossed(5, method=METHODS, dtype=DTYPES, temperature=TEMPERATURES)
def test_four_completions(
    make_llm: MakeLLM, mixed: Requests, plain: Plain, method: str, dtype: str, temperature: float
) -> None:
    ones = mixed(dtype, temperature)[:6]
    fours = [with_params(ask, n=4) for ask in ones]
    answers = run(make_llm(method, 4, dtype=dtype), fours)
    assert_same(answers, plain(dtype, fours))
    assert_same(answers[::4], plain(dtype, ones))
    distinct = {a.token_ids for a in answers[:4]}
    assert len(distinct) == (1 if temperature == 0 else 4)


@pytest.mark.parametrize("method", METHODS)
def test_with_any_number_of_threads(
    make_llm: MakeLLM, mixed: Requests, plain: Plain, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    asks = mixed("bfloat16", 0.7)
    before = torch.get_num_threads()
    expected = plain("bfloat16", asks)
    for threads in (1, 3):
        monkeypatch.setenv("PARLAY_THREADS", str(threads))
        assert_same(run(make_llm(method, 5, dtype="bfloat16"), asks), expected)
    monkeypatch.undo()
    torch.set_num_threads(before)


@crossed(method=DRAFTING, dtype=DTYPES)
def test_with_the_reference_kernels(
    make_llm: MakeLLM, mixed: Requests, monkeypatch: pytest.MonkeyPatch, method: str, dtype: str
) -> None:
    monkeypatch.setenv("PARLAY_KERNELS", "reference")
    asks = [with_params(Ask(ask.prompt[:16], ask.params), max_tokens=8) for ask in mixed(dtype, 0.7)[:6]]
    alone = make_llm(dtype=dtype)
    assert "reference" in alone.engine.numerics_id
    answers = run(make_llm(method, 3, dtype=dtype, max_num_batched_tokens=11), asks)
    assert_same(answers, [run(alone, [ask])[0] for ask in asks])
    assert sum(answer.metrics.drafted for answer in answers) > 0 or not guesses_on_random_texts(method)


# ------------------------------------------------------------------------------------- the comparison can fail


@pytest.mark.parametrize("method", DRAFTING)
def test_noise_keyed_by_the_step_is_caught(
    make_llm: MakeLLM, mixed: Requests, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Plain decoding makes one step a token, so the fault shows only where a step emits several."""
    draw = coupled.draw
    ask = with_params(mixed("float32", 0.7)[1], max_tokens=40, stop_token_ids=())

    def answer(method: str | None) -> Any:
        steps = count(1)

        def by_step(kernels: Any, scores: Any, temperatures: Any, seeds: Any, positions: Any, filters: Any) -> Any:
            return draw(kernels, scores, temperatures, seeds, torch.full_like(positions, next(steps)), filters)

        monkeypatch.setattr(coupled, "draw", by_step)
        return run(make_llm(method, 4), [ask])[0]

    assert essence(answer(None)) == essence(answer(None))
    speculative = answer(method)
    check_accepted(method, speculative.metrics.accepted)
    if speculative.metrics.accepted:
        assert essence(speculative) != essence(answer(None))
