"""Answers of a given form: they keep it, and are the same tokens whoever drafts."""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import llguidance
import pytest
from asking import Ask, accepted, assert_same, assert_whole, meddle_at_random, run
from jsonschema import validate
from schemas import random_schema

from parlay import LLM, CompletionOutput, RequestError, SamplingParams
from parlay.sampling.grammar import Constraint

METHODS: dict[str | None, dict[str, Any] | None] = {
    "none": None,
    "ngram": {"lengths": "fixed", "method": "ngram", "num_speculative_tokens": 4},
    "draft_model": {
        "lengths": "fixed",
        "method": "draft_model",
        "model": "tiny-code-draft",
        "num_speculative_tokens": 3,
    },
}
PROMPT = 'CONFIG = {"name": "value", "id": 12, "items": ["a", "b"], "x": null}\nother = '

Engines = Callable[..., LLM]


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    """Engines on the embedded models, by method; they are idle and whole in the end."""
    made: dict[tuple[str, str], LLM] = {}

    def make(method: str, **options: Any) -> LLM:
        key = method, str(options)
        if key not in made:
            made[key] = LLM("tiny-code", speculative_config=METHODS[method], max_model_len=192, **options)
        return made[key]

    yield make
    for llm in made.values():
        assert_whole(llm.engine)


def asks_of(llm: LLM, forms: Sequence[dict[str, Any]], **params: Any) -> list[Ask]:
    prompt = tuple(llm.engine.codec.encode(PROMPT))
    return [
        Ask(prompt, SamplingParams(structured_outputs=form, **{"seed": i, "max_tokens": 40, "logprobs": 1} | params))
        for i, form in enumerate(forms)
    ]


def schemas(count: int, seed: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [{"json": random_schema(rng), "disable_any_whitespace": i % 4 > 0} for i in range(count)]


def forms() -> list[dict[str, Any]]:
    return [
        *schemas(7, 5),
        {"json_object": True},
        {"regex": r"(def|class) [a-z_]{1,12}(\(\))?:"},
        {"choice": ["import os", "import sys", "in", "return value"]},
        {"grammar": 'root ::= item ("," item)* "."\nitem ::= [a-z]{1,3} | "(" root ")"\n'},
    ]


def check_schemas(llm: LLM, count: int, seed: int, temperature: float) -> None:
    asked = schemas(count, seed)
    asks = asks_of(llm, asked, temperature=temperature, max_tokens=64, logprobs=None)
    stopped = 0
    for form, answer in zip(asked, run(llm, asks), strict=True):
        assert answer.finish_reason in ("stop", "length")
        if answer.finish_reason == "stop":
            stopped += 1
            validate(json.loads(answer.text), form["json"])
    assert stopped > count / 2


def test_answers_to_schemas_validate(engines: Engines) -> None:
    for i, (method, temperature) in enumerate([("none", 0.0), ("ngram", 0.7), ("draft_model", 1.3), ("ngram", 1.3)]):
        check_schemas(engines(method), 12, 100 + i, temperature)


@pytest.mark.soak
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
@pytest.mark.parametrize("method", METHODS)
def test_answers_to_five_hundred_schemas_validate(engines: Engines, method: str, temperature: float) -> None:
    check_schemas(engines(method), 500, 7, temperature)


@pytest.fixture(scope="module")
def plain(engines: Engines) -> Callable[[float], list[CompletionOutput]]:
    @cache
    def answers(temperature: float) -> list[CompletionOutput]:
        llm = engines("none")
        return [run(llm, [ask])[0] for ask in asks_of(llm, forms(), temperature=temperature)]

    return answers


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_the_same_tokens(engines: Engines, plain: Any, method: str, temperature: float) -> None:
    llm = engines(method)
    answers = run(llm, asks_of(llm, forms(), temperature=temperature))
    assert_same(answers, plain(temperature))
    sources = [source for answer in answers for source in answer.sources]
    assert sources.count("grammar") > 20
    assert sources.count(method) > 0
    assert {"stop"} < {a.finish_reason for a in answers} or temperature == 0


@pytest.mark.parametrize("method", ["ngram", "draft_model"])
@pytest.mark.parametrize(
    "options", [{"block_size": 4, "max_num_batched_tokens": 24}, {"enable_prefix_caching": False}]
)
def test_through_preemption_and_small_steps(
    engines: Engines, plain: Any, method: str, options: dict[str, Any]
) -> None:
    llm = engines(method, **options)
    answers = run(llm, asks_of(llm, forms(), temperature=0.7), meddle_at_random(random.Random(4), 0.15))
    assert_same(answers, plain(0.7))
    assert any(a.metrics.preemptions for a in answers)


def test_beside_other_parameters(engines: Engines) -> None:
    changes: list[dict[str, Any]] = [
        {"n": 3},
        {"repetition_penalty": 1.4, "presence_penalty": 0.5},
        {"logit_bias": {11: 5.0, 90: -20.0}, "top_k": 8},
        {"min_tokens": 12, "top_p": 0.9},
        {"stop": ["a", "1"]},
        {"bad_words": ["name", "id"]},
        {"speculative": {"num_speculative_tokens": 1}},
        {"speculative": {"enabled": False}},
    ]
    expected, *others = (
        run(llm, [ask for change in changes for ask in asks_of(llm, forms()[:4], temperature=0.9, **change)])
        for llm in map(engines, map(str, METHODS))
    )
    for found in others:
        assert_same(found, expected)
        assert accepted(found[:-4]) > 0 == accepted(found[-4:])  # the last four are without speculation


def test_forced_stretches_take_few_steps(engines: Engines) -> None:
    form = {"choice": ["the only answer there is, and it is not a short one at all"]}
    for method, most in (("none", 99), ("ngram", 2), ("draft_model", 2)):
        llm = engines(method)
        answer = run(llm, asks_of(llm, [form], temperature=0.7))[0]
        assert answer.text == form["choice"][0]
        assert answer.finish_reason == "stop"
        assert answer.metrics.steps <= most
        assert method == "none" or set(answer.sources[:-1]) <= {"grammar", "target"}


def test_forbidden_guesses_are_never_verified(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = engines("ngram")
    seen = []
    start = llm.engine._worker.start

    def watch(plan: Any) -> Any:
        for span in plan.spans:
            if span.sample and "ngram" in span.draft.source:
                seen.append(
                    llm.engine.codec.decode(
                        [*llm.engine._scheduler.processors[span.request_id].output, *span.draft.tokens]
                    )
                )
        return start(plan)

    monkeypatch.setattr(llm.engine._worker, "start", watch)
    form = {"regex": r"[a-c ]{20,30}"}
    prompt = tuple(llm.engine.codec.encode("a b c d e f g a b c d e f g a b c d e f g"))
    run(llm, [Ask(prompt, SamplingParams(structured_outputs=form, temperature=1.0, seed=s)) for s in range(8)])
    assert len(seen) > 5
    assert all(set(text) <= set("abc ") for text in seen)


def test_the_draft_models_layers_hold_no_other_guesses(
    engines: Engines, plain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a draft model guesses without the grammar, what is forced may stand where it guessed otherwise."""
    monkeypatch.setattr(Constraint, "process_draft", lambda *args: None)
    llm = engines("draft_model")
    replaced = 0
    start = llm.engine._worker.start

    def watch(plan: Any) -> Any:
        nonlocal replaced
        for span in plan.spans:
            own = span.draft.source.count("draft_model")
            assert span.catch_up.state.speculated <= own
            replaced += span.catch_up.state.speculated == own > 0 and len(span.draft) > own
        return start(plan)

    monkeypatch.setattr(llm.engine._worker, "start", watch)
    assert_same(run(llm, asks_of(llm, forms(), temperature=1.3)), plain(1.3))
    assert replaced > 0


def test_a_form_that_cannot_be_kept_costs_nobody_else(engines: Engines) -> None:
    llm = engines("ngram")
    bad = SamplingParams(structured_outputs={"json": {"uniqueItems": True}})
    late = SamplingParams(structured_outputs={"choice": ["ab"]}, allowed_token_ids=[500])
    good = SamplingParams(structured_outputs={"choice": ["ab"]})
    outputs = llm.generate([PROMPT] * 3, [bad, late, good], use_tqdm=False)
    assert "uniqueItems" in str(outputs[0].error)
    assert "leave none after 0 tokens" in str(outputs[1].error)
    assert outputs[2].outputs[0].text == "ab"
    with pytest.raises(RequestError, match="uniqueItems"):
        llm.generate(PROMPT, bad)


NEAR_LIMITS: list[dict[str, Any]] = [
    {"step_lexer_fuel": 300},
    {"step_max_items": 30},
    {"max_lexer_states": 80},
]


@pytest.mark.parametrize(
    "limits",
    [*NEAR_LIMITS, *(pytest.param({"step_lexer_fuel": fuel}, marks=pytest.mark.soak) for fuel in (100, 1000))],
    ids=str,
)
def test_requests_at_the_grammars_limits_fail_alike(
    engines: Engines, monkeypatch: pytest.MonkeyPatch, limits: dict[str, Any]
) -> None:
    """Copies of a matcher share their lexer: guesses, and other answers, once decided which request runs into limits.

    So one failed with speculation and not without, or at another token, and all after it failed at once.
    """
    real = llguidance.LLParserLimits
    monkeypatch.setattr(llguidance, "LLParserLimits", lambda **others: real(**{**others, **limits}))
    asked: list[dict[str, Any]] = [*forms(), {"regex": "(a|b)*a(a|b){12}"}, {"regex": r"[a-z]{1,9}\(\):"}]
    found: dict[tuple[str, bool], list[tuple[Any, str]]] = {}
    for method in METHODS:
        llm = engines(str(method), seed=1)
        for again in (False, True):  # the second time among what was compiled before
            if not again:
                llm.engine._grammars._compiled.clear()
            asks = asks_of(llm, asked, temperature=0.9, logprobs=None)
            prompts, params = [{"prompt_token_ids": a.prompt} for a in asks], [a.params for a in asks]
            if again:
                prompts, params = prompts[::-1], params[::-1]
            outputs = llm.generate(prompts, params, use_tqdm=False)
            answers = [(o.outputs and o.outputs[0].token_ids, str(o.error)) for o in outputs]
            found[str(method), again] = answers[::-1] if again else answers
        llm.engine._grammars._compiled.clear()
    expected = found["none", False]
    assert any("None" not in error for _, error in expected)
    assert any("None" in error for _, error in expected)
    for key, answers in found.items():
        assert answers == expected, key
