"""Predicted outputs: fewer steps where they are right, and what becomes of those that are not."""

from dataclasses import replace
from typing import Any

import pytest
from asking import Ask, assert_same, run, with_params
from conftest import MakeLLM, Plain

from parlay import LLM, RequestError, SamplingParams
from parlay.drafting.prediction import DEFAULT_LENGTH


def test_every_completion_goes_along_by_itself(make_llm: MakeLLM, plain: Plain) -> None:
    params = SamplingParams(temperature=0.7, seed=4, max_tokens=33, ignore_eos=True)
    (first,) = plain("float32", [Ask((1, 2, 3), params)])
    ask = Ask((1, 2, 3), replace(params, n=3))
    answers = run(make_llm("ngram"), [with_params(ask, prediction=first.token_ids)])
    assert_same(answers, plain("float32", [ask]))
    # The text is what the first of them says.
    assert answers[0].metrics.acceptance_length > max(5, answers[1].metrics.acceptance_length + 1)


@pytest.mark.parametrize(
    ("speculative", "budget"),
    [
        (None, DEFAULT_LENGTH),
        ({"method": "ngram"}, DEFAULT_LENGTH),
        ({"method": "ngram", "num_speculative_tokens": 4}, 4),
    ],
)
def test_what_is_foreseen_takes_as_many_steps_as_the_budget_needs(
    make_llm: MakeLLM, speculative: Any, budget: int
) -> None:
    llm = make_llm(speculative_config=speculative)
    params = {"temperature": 0.7, "seed": 4, "max_tokens": 60, "ignore_eos": True}
    (first,) = run(make_llm(), [Ask((1, 2, 3), SamplingParams(**params))])
    (again,) = run(llm, [Ask((1, 2, 3), SamplingParams(**params, prediction=first.token_ids))])
    assert again.token_ids == first.token_ids
    assert again.metrics.steps == -(-60 // (budget + 1))
    assert again.metrics.drafted == again.metrics.accepted == again.sources.count("prediction")
    snapshot = llm.engine.snapshot().methods
    assert set(snapshot) == {"prediction"}
    assert snapshot["prediction"].accepted == again.metrics.accepted
    wish = {"num_speculative_tokens": 2}
    (short,) = run(llm, [Ask((1, 2, 3), SamplingParams(**params, prediction=first.token_ids, speculative=wish))])
    assert short.metrics.steps == 20


def test_a_draft_model_rests_while_the_prediction_holds(make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """And goes on where it ends, its gap closed."""
    llm = make_llm("draft_model", 4)
    params = {"temperature": 0.7, "seed": 4, "max_tokens": 60, "ignore_eos": True}
    (first,) = run(make_llm(), [Ask((1, 2, 3), SamplingParams(**params))])
    proposer: Any = llm.engine._worker._proposer
    propose, budgets = proposer.propose, []

    def look(spans: Any, *more: Any) -> Any:
        for span in spans:
            budgets.append(span.catch_up.budget)
            # Its layers hold its own guesses alone, and these stand in for them.
            assert "prediction" not in span.draft.source or span.catch_up.state.speculated == 0
        return propose(spans, *more)

    monkeypatch.setattr(proposer, "propose", look)
    said = list(first.token_ids)
    for prediction in (said, said[:30], [*said[:10], 0, 0, *said[18:40]]):
        budgets.clear()
        (again,) = run(llm, [Ask((1, 2, 3), SamplingParams(**params, prediction=prediction))])
        assert again.token_ids == first.token_ids
        assert again.sources.count("prediction") > 15
        assert ("draft_model" in again.sources) == any(budgets) == (prediction is not said)


def test_a_text_is_as_good_as_its_tokens(make_llm: MakeLLM) -> None:
    llm = make_llm()
    text = "what was foreseen"
    tokens = llm.engine.codec.encode(text, add_special_tokens=False)
    params = {"max_tokens": 40, "temperature": 0.0, "allowed_token_ids": [tokens[0]]}
    outputs = [llm.generate("x", SamplingParams(**params, prediction=p))[0].outputs[0] for p in (text, tokens)]
    assert outputs[0].metrics.accepted == outputs[1].metrics.accepted > 0
    assert outputs[0].sources == outputs[1].sources


@pytest.mark.parametrize("method", [None, "ngram"])
def test_under_a_grammar(make_llm: MakeLLM, method: str | None) -> None:
    """What is predicted but not permitted costs nothing; what is both is guessed."""
    params = {"max_tokens": 40, "temperature": 0.7, "seed": 1, "structured_outputs": {"regex": "(abc|xyz){8}"}}
    (expected,) = run(make_llm(), [Ask((1, 2), SamplingParams(**params))])
    for prediction in (expected.token_ids, "no such thing", expected.token_ids[3:]):
        (found,) = run(make_llm(method), [Ask((1, 2), SamplingParams(**params, prediction=prediction))])
        assert_same([found], [expected])


def test_nothing_is_kept_of_a_request_that_has_ended(make_llm: MakeLLM) -> None:
    llm = make_llm("ngram")
    params = SamplingParams(max_tokens=60, ignore_eos=True, prediction=list(range(100)), n=2)
    finished, aborted = llm.engine.add([1, 2], params), llm.engine.add([1, 3], params)
    waiting = llm.engine.add([1, 4], params)
    llm.engine.step()
    assert all(request.drafting.prediction is not None for request in (*finished, *aborted, *waiting))
    for request in (*aborted, *waiting):
        llm.engine.abort(request)
    while llm.engine.busy:
        llm.engine.step()
    assert all(request.drafting.prediction is None for request in (*finished, *aborted, *waiting))


def test_asked_to_decode_plainly_it_is_not_kept_at_all(make_llm: MakeLLM) -> None:
    llm = make_llm()
    for wish in ({"enabled": False}, {"method": "none"}):
        (request,) = llm.engine.add([1], SamplingParams(prediction="abc", speculative=wish))
        assert request.drafting.prediction is None
        llm.engine.abort(request)


@pytest.mark.parametrize(
    ("prediction", "match"),
    [
        ("x" * 129, "prediction has 129 tokens, more than fit into max_model_len=128; shorten it"),
        ([5, 10**6], "prediction holds 1000000, beyond the vocabulary"),
    ],
)
def test_predictions_that_cannot_be(make_llm: MakeLLM, prediction: Any, match: str) -> None:
    llm: LLM = make_llm()
    with pytest.raises(RequestError, match=match):
        llm.generate("x", SamplingParams(prediction=prediction))
    assert llm.generate("x", SamplingParams(prediction=""))[0].outputs[0].finish_reason


@pytest.mark.parametrize(
    ("prediction", "match"),
    [
        (7, "prediction must be a list, not 7"),
        ([-1], "prediction must be at least 0"),
        (["a"], "prediction must be an integer"),
        (b"ab", "not bytes"),
        ("\ud800", "prediction must be valid Unicode"),
    ],
)
def test_values_of_the_wrong_type(prediction: Any, match: str) -> None:
    with pytest.raises(RequestError, match=match):
        SamplingParams(prediction=prediction)
