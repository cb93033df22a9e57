"""Predicted outputs: the tokens of plain decoding whatever is predicted, and fewer steps where it is right."""

import random
from collections.abc import Callable
from functools import cache
from itertools import count
from typing import Any

import pytest
from asking import Ask, accepted, assert_same, run, with_params
from conftest import DTYPES, MakeLLM, Plain
from crossing import crossed

from parlay import LLM, RequestError, SamplingParams
from parlay.drafting.prediction import DEFAULT_LENGTH
from parlay.engine.engine import Engine
from parlay.engine.request import Request
from parlay.proposers.select import proposers

METHODS = list(proposers.names())
LENGTH = 33

Predict = Callable[[str, float], list[Ask]]


@pytest.fixture(scope="session")
def predicted(plain: Plain) -> Predict:
    """Twelve requests: what they say is predicted to the letter, with edits, or not at all."""

    @cache
    def make(dtype: str, temperature: float) -> list[Ask]:
        asks = _asks(temperature)
        return [
            with_params(ask, prediction=_prediction(list(answer.token_ids), i))
            for i, (ask, answer) in enumerate(zip(asks, plain(dtype, asks), strict=True))
        ]

    return make


def _asks(temperature: float) -> list[Ask]:
    rng = random.Random(8)
    changes: list[dict[str, Any]] = [
        {"logprobs": 1},
        {"logprobs": 1, "top_k": 9},
        {"repetition_penalty": 1.1, "logprobs": 1},
        {"logprobs": 1, "min_tokens": 9},
        {"speculative": {"enabled": False}},
        {"speculative": {"num_speculative_tokens": 2}},
    ]
    return [
        Ask(
            tuple(rng.randrange(256) for _ in range(rng.randint(1, 40))),
            SamplingParams(temperature=temperature, seed=i, max_tokens=LENGTH, **changes[i % len(changes)]),
        )
        for i in range(12)
    ]


def _prediction(said: list[int], number: int) -> list[int]:
    rng = random.Random(number)
    if number % 4 == 1:  # other words, one word left out, one too many
        said[5:6] = [rng.randrange(256)]
        del said[12:14]
        said[20:20] = [rng.randrange(256)]
    if number % 4 == 3:
        return [rng.randrange(256) for _ in range(60)]
    return said


def plainly(asks: list[Ask]) -> list[Ask]:
    return [with_params(ask, prediction=None) for ask in asks]


@crossed(method=METHODS, dtype=DTYPES, temperature=[0.0, 0.7, 1.3])
def test_in_a_batch(
    make_llm: MakeLLM, predicted: Predict, plain: Plain, method: str, dtype: str, temperature: float
) -> None:
    asks = predicted(dtype, temperature)
    answers = run(make_llm(method, dtype=dtype), asks)
    assert_same(answers, plain(dtype, plainly(asks)))
    assert sum(a.sources.count("prediction") for a in answers) > 100
    assert not any(a.metrics.drafts for a in answers[4::6])  # speculation is off for these


@crossed(
    method=METHODS,
    options=[
        {"max_num_batched_tokens": 7},
        {"max_num_batched_tokens": 1},
        {"max_num_batched_tokens": 33, "block_size": 5},
        {"block_size": 1},
        {"max_model_len": 76, "block_size": 4, "num_blocks": 24},
    ],
)
def test_in_chunks_and_blocks_of_any_size(
    make_llm: MakeLLM, predicted: Predict, plain: Plain, method: str, options: dict[str, int]
) -> None:
    asks = predicted("float32", 0.7)
    answers = run(make_llm(method, **options), asks)
    assert_same(answers, plain("float32", plainly(asks)))
    assert (accepted(answers) > 0) == (options.get("max_num_batched_tokens") != 1)
    assert any(a.metrics.preemptions for a in answers) == ("num_blocks" in options)


@pytest.mark.parametrize("method", METHODS)
def test_after_preemption_it_goes_on(make_llm: MakeLLM, predicted: Predict, plain: Plain, method: str) -> None:
    steps = count()

    def preempt(engine: Engine, requests: list[Request]) -> None:
        if next(steps) % 2:
            for request in [r for r in requests if r.table.blocks]:
                engine.preempt(request)

    asks = predicted("bfloat16", 0.7)
    answers = run(make_llm(method, dtype="bfloat16", block_size=8), asks, preempt)
    assert_same(answers, plain("bfloat16", plainly(asks)))
    assert any(a.metrics.preemptions and a.metrics.acceptance_length > 5 for a in answers)


@pytest.mark.parametrize("method", METHODS)
def test_every_completion_goes_along_by_itself(
    make_llm: MakeLLM, predicted: Predict, plain: Plain, method: str
) -> None:
    asks = [with_params(ask, n=3) for ask in predicted("float32", 0.7)[:4]]
    answers = run(make_llm(method), asks)
    assert_same(answers, plain("float32", plainly(asks)))
    # The text is what the first of them says.
    first, second = (answer.metrics.acceptance_length for answer in answers[:2])
    assert first > max(5, second + 1)


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


@pytest.mark.parametrize("method", METHODS)
def test_under_a_grammar(make_llm: MakeLLM, method: str) -> None:
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
