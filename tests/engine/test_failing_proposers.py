"""A proposer that raises or returns nonsense loses the request, and the request loses nothing."""

from collections.abc import Callable
from typing import Any

import pytest
from asking import assert_same, assert_whole, half_repeating, run
from conftest import MakeLLM, Plain
from crossing import crossed

from parlay.proposers.methods.draft_model.proposer import Proposer as DraftModel
from parlay.proposers.methods.ngram import Proposer as NGram
from parlay.proposers.methods.suffix import Proposer as Suffix
from parlay.types.draft import Draft
from parlay.types.plan import Proposal


def boom(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("boom")


def answering(draft: Draft | None) -> Callable[..., Any]:
    return lambda self, request_id, budget: draft


NONSENSE = {
    "beyond the vocabulary": Draft.chain([10**6], "x"),
    "negative": Draft.chain([-1], "x"),
    "no integers": Draft.chain(["a", 1.5], "x"),  # type: ignore[list-item]
    "more parents": Draft((1, 2), (-1, 0, 1), ("x", "x")),
    "no tree": Draft((1, 2), (1, 0), ("x", "x")),
    "no sources": Draft((1, 2), (-1, 0), ()),
    "probabilities": Draft((1, 2), (-1, 0), ("x", "x"), (0.5,)),
    "nothing": None,
}


@crossed(name=list(NONSENSE), lengths=["fixed", "goodput"])
def test_nonsense(make_llm: MakeLLM, plain: Plain, monkeypatch: pytest.MonkeyPatch, name: str, lengths: str) -> None:
    llm = make_llm(speculative_config={"method": "ngram", "lengths": lengths})
    for form in ("propose", "branch"):
        monkeypatch.setattr(NGram, form, answering(NONSENSE[name]))
    answers = run(llm, half_repeating(0.7))
    assert_same(answers, plain("float32", half_repeating(0.7)))
    assert llm.engine.snapshot().faults == {"ngram": 16}
    assert sum(answer.metrics.drafted for answer in answers) == 0
    assert_whole(llm.engine)


@pytest.mark.parametrize("name", ["admit", "observe", "propose", "forget"])
@pytest.mark.parametrize(("method", "proposer"), [("ngram", NGram), ("suffix", Suffix)])
def test_it_raises(
    make_llm: MakeLLM, plain: Plain, monkeypatch: pytest.MonkeyPatch, method: str, proposer: type, name: str
) -> None:
    llm = make_llm(method, 4)
    with monkeypatch.context() as patch:
        patch.setattr(proposer, name, boom)
        assert_same(run(llm, half_repeating(0.7)), plain("float32", half_repeating(0.7)))
    assert llm.engine.snapshot().faults[method] >= 16
    for host in llm.engine._scheduler.drafting._hosts:
        texts = vars(host._proposer)["_texts"]
        assert not texts or name == "forget", "what it was shown is forgotten, unless it fails in that too"
        texts.clear()


def test_others_go_on(make_llm: MakeLLM, plain: Plain, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = make_llm(speculative_config={"method": "auto", "prompt_lookup_min": 1})
    monkeypatch.setattr(NGram, "propose", boom)
    answers = run(llm, half_repeating(0.0))
    assert_same(answers, plain("float32", half_repeating(0.0)))
    assert set().union(*(answer.sources for answer in answers)) == {"target", "suffix"}


@pytest.mark.parametrize("nth", [{1}, {5}, {2, 3, 5, 6}])
def test_a_device_proposer_raises_now_and_then(
    make_llm: MakeLLM, plain: Plain, monkeypatch: pytest.MonkeyPatch, nth: set[int]
) -> None:
    """Which request was the cause is not known, so all lose one draft, and have others in the next step."""
    llm = make_llm("draft_model", 4)
    real, calls, failed = DraftModel.propose, iter(range(1, 1000)), []

    def sometimes(self: Any, spans: Any, *args: Any, **more: Any) -> Any:
        if next(calls) in nth:
            failed.append(True)
            boom()
        return real(self, spans, *args, **more)

    monkeypatch.setattr(DraftModel, "propose", sometimes)
    answers = run(llm, half_repeating(0.7))
    assert_same(answers, plain("float32", half_repeating(0.7)))
    assert llm.engine.snapshot().faults == {"draft_model": len(nth)} == {"draft_model": len(failed)}
    assert all(request.metrics.drafts > 1 for request in answers if len(request.token_ids) > 20)


def test_a_device_proposer_that_raises_again_and_again(
    make_llm: MakeLLM, plain: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After three steps whom it happened to decodes plainly; who comes later has it again."""
    llm = make_llm("draft_model", 4)
    with monkeypatch.context() as patch:
        patch.setattr(DraftModel, "propose", boom)
        answers = run(llm, half_repeating(0.7))
    assert_same(answers, plain("float32", half_repeating(0.7)))
    assert llm.engine.snapshot().faults == {"draft_model": 1 + 1 + 16}
    again = run(llm, half_repeating(0.7))
    assert_same(again, plain("float32", half_repeating(0.7)))
    assert sum(answer.metrics.accepted for answer in again) > 0


def test_a_device_proposers_nonsense(make_llm: MakeLLM, plain: Plain, monkeypatch: pytest.MonkeyPatch) -> None:
    def propose(self: Any, spans: Any, *_: Any) -> Any:
        return [Proposal(Draft.chain([10**6], "x"), span.catch_up.state) for span in spans]

    llm = make_llm("draft_model", 4)
    monkeypatch.setattr(DraftModel, "propose", propose)
    assert_same(run(llm, half_repeating(0.7)), plain("float32", half_repeating(0.7)))
    assert llm.engine.snapshot().faults == {"draft_model": 16}
