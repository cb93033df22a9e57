"""Rejected guesses: all of them, at their places, and only for those who ask."""

import random
from collections import Counter
from typing import Any

import pytest
from asking import Ask, assert_same, run, with_params
from conftest import MakeLLM, drafts

from parlay import LLM, SamplingParams
from parlay.proposers.select import proposers
from parlay.types.output import Rejected
from parlay.types.plan import Plan, StepOutput

METHODS = [name for name in proposers.names() if drafts(name)]


def asks(**more: Any) -> list[Ask]:
    rng = random.Random(4)
    return [
        Ask(
            tuple([rng.randrange(256) for _ in range(4)] * 3),
            SamplingParams(temperature=0.7, seed=i, max_tokens=30, prediction=[1, 2, 3] if i % 2 else None, **more),
        )
        for i in range(6)
    ]


def watched(llm: LLM, wanted: list[Ask]) -> tuple[list[Any], dict[int, list[Rejected]]]:
    """Complete, and write down what the verifier left of every draft, the slow way."""
    left: dict[int, list[Rejected]] = {}
    emitted: Counter[int] = Counter()
    scheduler = llm.engine._scheduler
    commit = scheduler.commit

    def look(plan: Plan, output: StepOutput, now: float, seconds: float) -> Any:
        moved = commit(plan, output, now, seconds)
        lengths = {r.request_id: len(r.output_tokens) for r in moved}
        for span, verdict in zip(plan.spans, output.verdicts, strict=True):
            if span.request_id in lengths:
                before, after = emitted[span.request_id], lengths[span.request_id]
                path = verdict.path[: after - before]
                places = left.setdefault(span.request_id, [])
                for node in range(len(span.draft)):
                    if node not in path:
                        guess = span.draft.tokens[node], span.draft.source[node]
                        places.append(Rejected(before + len(path), *guess))
                emitted[span.request_id] = after
        return moved

    scheduler.commit = look  # type: ignore[method-assign]
    try:
        return run(llm, wanted), left
    finally:
        del scheduler.commit  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", METHODS)
def test_all_at_their_places(make_llm: MakeLLM, method: str) -> None:
    llm = make_llm(method, 4)
    answers, left = watched(llm, asks(return_rejected=True))
    assert_same(answers, run(make_llm(), asks()))
    assert [list(a.rejected) for a in answers] == [left[i] for i in range(len(answers))]
    by_source: Counter[str] = Counter()
    for answer in answers:
        assert len(answer.rejected) == answer.metrics.drafted - answer.metrics.accepted
        assert list(answer.rejected) == sorted(answer.rejected, key=lambda guess: guess.at)
        by_source.update(guess.source for guess in answer.rejected)
        for guess in answer.rejected:
            if guess.at < len(answer.token_ids):
                assert answer.sources[guess.at] == "target"
    assert set(by_source) == {method, "prediction"}
    counted = llm.engine.snapshot().methods
    assert by_source == {source: m.drafted - m.accepted for source, m in counted.items()}


@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_when_a_request_ends_within_a_draft(make_llm: MakeLLM, method: str) -> None:
    """What was confirmed beyond the end is told as rejected, as it is counted."""
    params = {"return_rejected": True, "max_tokens": 30, "temperature": 0.7, "seed": 1, "logprobs": 0}
    (plain,) = run(make_llm(), [Ask((1, 2, 3), SamplingParams(**params))])
    assert plain.rejected == ()
    ask = Ask((1, 2, 3), SamplingParams(**params, prediction=plain.token_ids))
    llm, beyond = make_llm(method, 6), 0
    for stop in dict.fromkeys(plain.token_ids[3:12]):
        stopped = with_params(ask, stop_token_ids=[stop])
        (answer,), left = watched(llm, [stopped])
        assert list(answer.rejected) == next(iter(left.values()))
        assert len(answer.rejected) == answer.metrics.drafted - answer.metrics.accepted
        beyond += sum(guess.at == len(answer.token_ids) for guess in answer.rejected)
    assert beyond > 0


def test_nothing_is_kept_for_those_who_do_not_ask(make_llm: MakeLLM) -> None:
    llm = make_llm("ngram", 4)
    requests = [llm.engine.add(ask.prompt, ask.params)[0] for ask in asks()]
    while llm.engine.busy:
        llm.engine.step()
    assert sum(r.counts.draft_stats.drafted - r.counts.draft_stats.accepted for r in requests) > 0
    for request in requests:
        assert request.rejected == []
        assert llm.engine.completion(request, 0).rejected is None
