"""One `LLM` that several threads share: each call is answered as if it were alone."""

import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from asking import essence
from conftest import MakeLLM

from parlay import LLM, ParlayError, RequestError, SamplingParams
from parlay.engine.fair_lock import FairLock

PROMPTS = [[5 + i, 9, 30 + 3 * i, 7] * (1 + i) for i in range(6)]
PARAMS = [SamplingParams(temperature=0.7 * (i % 2), seed=i, max_tokens=8 + 3 * i, logprobs=1) for i in range(6)]


def _answers(llm: LLM, ask: Callable[[LLM, int], Any], threads: int, rounds: int = 3) -> list[Any]:
    with ThreadPoolExecutor(threads) as pool:
        return [*pool.map(lambda i: ask(llm, i % len(PROMPTS)), range(rounds * len(PROMPTS)))]


def _generated(llm: LLM, i: int) -> Any:
    return [essence(c) for c in llm.generate(PROMPTS[i], PARAMS[i])[0].outputs]


def _streamed(llm: LLM, i: int) -> Any:
    return [essence(c) for c in [*llm.stream(PROMPTS[i], PARAMS[i])][-1].outputs]


def _one_of_many(llm: LLM, i: int) -> Any:
    return [essence(c) for c in llm.generate([PROMPTS[i], PROMPTS[0]], [PARAMS[i], PARAMS[0]])[0].outputs]


@pytest.mark.parametrize("method", [None, "ngram", "draft_model"])
def test_threads_get_the_answers_of_calls_that_are_alone(make_llm: MakeLLM, method: str | None) -> None:
    alone = [_generated(make_llm(), i) for i in range(len(PROMPTS))]
    llm = make_llm(method, 3 if method else None)
    for ask in (_generated, _streamed, _one_of_many):
        assert _answers(llm, ask, threads=4) == alone * 3
    llm.engine.check()
    assert not llm.engine.busy


def test_a_refused_or_left_call_harms_no_other_thread(make_llm: MakeLLM) -> None:
    llm = make_llm("ngram", 3)

    def ask(llm: LLM, i: int) -> Any:
        if i == 1:
            with pytest.raises(RequestError):
                llm.generate([10**6], PARAMS[i])
            return None
        if i == 2:
            stream = llm.stream(PROMPTS[i], PARAMS[i])
            next(stream)
            del stream
            return None
        if i == 3:
            llm.stream(PROMPTS[i], PARAMS[i])  # not even begun
            return None
        return _generated(llm, i)

    alone = [_generated(make_llm(), i) if i not in (1, 2, 3) else None for i in range(len(PROMPTS))]
    assert _answers(llm, ask, threads=4) == alone * 3
    _generated(llm, 0)  # whatever was left while another thread was inside is gone with the next step
    llm.engine.check()
    assert not llm.engine.busy


def test_a_stream_that_is_left_keeps_nobody_waiting(make_llm: MakeLLM) -> None:
    llm = make_llm()
    left = llm.stream(PROMPTS[5], PARAMS[5])
    next(left)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(_generated, llm, 0).result(timeout=60) == _generated(make_llm(), 0)
    rest = [*left][-1]
    assert [essence(c) for c in rest.outputs] == _generated(make_llm(), 5)


def test_a_stream_dropped_during_a_step_is_aborted_after_it(make_llm: MakeLLM) -> None:
    llm = make_llm()
    kept = [llm.stream(PROMPTS[4], PARAMS[4])]
    next(kept[0])

    def drop(tokens: list[int], logits: Any) -> Any:  # the garbage collector may do so anywhere
        if kept:
            kept.clear()
            gc.collect()
        return logits

    answer = llm.generate(PROMPTS[1], SamplingParams(temperature=0, max_tokens=4, logits_processors=[drop]))[0]
    assert (
        answer.outputs[0].token_ids
        == llm.generate(PROMPTS[1], SamplingParams(temperature=0, max_tokens=4))[0].outputs[0].token_ids
    )
    llm.engine.check()
    assert not llm.engine.busy


def test_a_call_from_within_a_step_is_refused(make_llm: MakeLLM) -> None:
    llm, errors = make_llm(), []

    def call(tokens: list[int], logits: Any) -> Any:
        with pytest.raises(ParlayError, match="within its own step") as error:
            llm.generate([1], PARAMS[0])
        errors.append(error)
        return logits

    llm.generate(PROMPTS[0], SamplingParams(max_tokens=2, logits_processors=[call]))
    assert errors


def test_a_thread_that_waits_comes_before_one_that_comes_back() -> None:
    alone, order, inside = FairLock(), list[str](), threading.Event()

    def come_back() -> None:
        for _ in range(200):
            alone.run(lambda: (order.append("back"), inside.set(), _spin()))
            if "waited" in order:
                return

    thread = threading.Thread(target=come_back)
    thread.start()
    inside.wait()
    alone.run(lambda: order.append("waited"))
    thread.join()
    assert order.index("waited") <= 5


def _spin() -> None:
    threading.Event().wait(0.002)  # without the interpreter's lock, as the kernels compute


def test_an_interrupt_leaves_nothing_taken() -> None:
    alone = FairLock()
    with pytest.raises(KeyboardInterrupt):
        alone.run(lambda: (_ for _ in ()).throw(KeyboardInterrupt()))
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(alone.run, lambda: 1).result(timeout=10) == 1
        assert pool.submit(alone.run_if_free, lambda: 1).result(timeout=10)
    assert not alone.run(lambda: alone.run_if_free(lambda: 1))
