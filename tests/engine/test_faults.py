"""A request that makes the engine raise fails alone; the counters that the engine keeps of all of them."""

import asyncio
from typing import Any

import pytest
from asking import assert_whole, essence
from conftest import MakeLLM, Pair
from crossing import crossed

from parlay import LLM, AsyncLLM, EngineFaultError, SamplingParams
from parlay.engine.scheduler import Scheduler
from parlay.engine.stats import EngineStats
from parlay.proposers.methods.ngram import Proposer as NGram
from parlay.sampling.processors import Penalties
from parlay.text.detokenizer import Detokenizer
from parlay.types.plan import SpanError
from parlay.types.stats import DraftStats

PROMPTS = [[*range(40 + i, 52 + i)] * 2 for i in range(5)]
PARAMS = [
    SamplingParams(temperature=0.7, seed=i, max_tokens=24, logprobs=1, ignore_eos=True, presence_penalty=0.1)
    for i in range(5)
]


def nth_call_fails(patch: pytest.MonkeyPatch, cls: type, name: str, n: int) -> None:
    """Let the nth call of a method fail, whichever request it is made for."""
    calls = iter(range(1, n + 1))
    real = getattr(cls, name)

    def fake(self: Any, *args: Any, **more: Any) -> Any:
        if next(calls, None) == n:
            raise ZeroDivisionError("boom")
        return real(self, *args, **more)

    patch.setattr(cls, name, fake)


PLACES: list[tuple[type, str]] = [(Detokenizer, "append"), (Penalties, "process"), (Scheduler, "_advance")]


@crossed(
    case=[
        ("ngram", NGram, "propose"),
        *((method, *place) for method in ("ngram", "draft_model") for place in PLACES),
    ],
    n=[1, 13],
)
def test_it_fails_alone(
    make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch, case: tuple[str, type, str], n: int
) -> None:
    """The others emit what they would have emitted, and no block is lost."""
    method, cls, name = case
    expected = make_llm().generate(PROMPTS, PARAMS)
    llm = make_llm(method, 4)
    with monkeypatch.context() as patch:
        nth_call_fails(patch, cls, name, n)
        found = llm.generate(PROMPTS, PARAMS)
    failing = [i for i, output in enumerate(found) if output.error is not None]
    faults = llm.engine.snapshot().faults
    assert len(failing) + sum(faults.values()) == 1
    if faults:  # in a proposer, without which the request goes on
        assert [list(map(essence, output.outputs)) for output in found] == [
            list(map(essence, output.outputs)) for output in expected
        ]
        assert_whole(llm.engine)
        return
    assert cls is not NGram
    (failed,) = failing
    assert isinstance(found[failed].error, EngineFaultError)
    assert "ZeroDivisionError: boom" in str(found[failed].error)
    for i, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if i != failed:
            assert [essence(c) for c in ours.outputs] == [essence(c) for c in theirs.outputs]
    assert_whole(llm.engine)
    again = llm.generate(PROMPTS[failed], PARAMS[failed])[0]
    assert [essence(c) for c in again.outputs] == [essence(c) for c in expected[failed].outputs]


def test_who_finished_in_a_lost_step_is_told(make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request ends in the step in which the second one fails."""
    llm = make_llm()
    params = [SamplingParams(max_tokens=1), SamplingParams(max_tokens=9)]
    requests = [llm.submit(prompt, own)[0] for prompt, own in zip(PROMPTS, params, strict=False)]
    nth_call_fails(monkeypatch, Detokenizer, "append", 2)
    assert llm.engine.step() == requests
    assert [r.finish_reason for r in requests] == ["length", "abort"]
    assert requests[0].error is None


def test_a_step_that_nobody_is_to_blame_for_is_the_engines(
    make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = make_llm()
    monkeypatch.setattr(Scheduler, "plan", lambda self, now: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        llm.generate(PROMPTS, PARAMS)


def test_nor_one_whose_request_is_gone(make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """It failed while it was being ended: what it held may be lost."""
    llm = make_llm()
    real = Scheduler.finish

    def fake(self: Scheduler, request: Any, reason: Any, now: float) -> None:
        real(self, request, reason, now)
        if reason == "length":
            raise ZeroDivisionError

    monkeypatch.setattr(Scheduler, "finish", fake)
    with pytest.raises(SpanError):
        llm.generate(PROMPTS[0], SamplingParams(max_tokens=1))


def test_to_coroutines_too(models: dict[str, Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    async def one(llm: AsyncLLM, i: int) -> Any:
        *_, output = [output async for output in llm.generate(PROMPTS[i], PARAMS[i])]
        return output

    async def main() -> list[Any]:
        async with AsyncLLM(models["float32"].target, max_model_len=128) as llm:
            nth_call_fails(monkeypatch, Detokenizer, "append", 9)
            return await asyncio.gather(*(one(llm, i) for i in range(3)), return_exceptions=True)

    results = asyncio.run(main())
    assert sum(isinstance(result, EngineFaultError) for result in results) == 1
    assert sum(not isinstance(result, Exception) and result.finished for result in results) == 2


# -------------------------------------------------------------------------------------------------------- counters


def test_counters_add_up_to_the_requests(make_llm: MakeLLM) -> None:
    llm: LLM = make_llm("ngram", 4)
    outputs = [o.metrics for o in llm.generate(PROMPTS, PARAMS)]
    stats, method = llm.engine.snapshot(), llm.engine.snapshot().methods["ngram"]
    assert stats.turns == sum(m.steps for m in outputs)
    assert sum(stats.undrafted.values()) == sum(m.steps - m.drafts for m in outputs)
    assert stats.emitted == 24 * 5
    assert stats.prompt_tokens == sum(map(len, PROMPTS))
    assert stats.cached_tokens == sum(m.cached_tokens for m in outputs)
    assert (method.drafts, method.drafted, method.accepted) == (
        sum(m.drafts for m in outputs),
        sum(m.drafted for m in outputs),
        sum(m.accepted for m in outputs),
    )
    for depth, number in enumerate(method.accepted_per_position):
        assert number == sum(m.accepted_per_position[depth] for m in outputs if depth < len(m.accepted_per_position))
    assert stats.finished == {"length": 5}
    assert stats.running == stats.waiting == stats.blocks_used == 0
    assert stats.propose > 0


def test_how_full_it_is(make_llm: MakeLLM) -> None:
    llm = make_llm(max_num_seqs=2)
    requests = [llm.submit(prompt, own)[0] for prompt, own in zip(PROMPTS, PARAMS, strict=True)]
    assert (llm.engine.snapshot().running, llm.engine.snapshot().waiting) == (0, 5)
    llm.engine.step()
    now = llm.engine.snapshot()
    assert (now.running, now.waiting) == (2, 3)
    assert 0 < now.blocks_used < now.blocks
    llm.engine.preempt(requests[0])
    assert llm.engine.snapshot().preemptions == 1
    for request in requests:
        llm.engine.abort(request)
    assert llm.engine.snapshot().finished == {"abort": 5}


def test_every_guess_counts_for_who_made_it() -> None:
    stats = EngineStats()
    stats.judge(("a", "a", "b"), (0, 2))
    stats.judge(("a",), ())
    stats.judge((), ())
    assert (stats.turns, stats.undrafted, stats.lengths) == (3, {"": 1}, {3: 1, 1: 1})
    assert stats.methods == {"a": DraftStats(2, 3, 1, [1]), "b": DraftStats(1, 1, 1, [0, 1])}
    assert stats.draft_stats == DraftStats(2, 4, 2, [1, 1])
