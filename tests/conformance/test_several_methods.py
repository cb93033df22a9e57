"""Several methods at once: who drafts, what is joined, and what a speculative config may say."""

from typing import Any

import pytest
from asking import Ask, assert_same, half_repeating, run, with_params
from conftest import MakeLLM, Pair, Plain, proposer_options
from switching import every_method

from parlay import ConfigError, RequestError, SamplingParams
from parlay.drafting import candidates as drafting
from parlay.engine.scheduler import Scheduler
from parlay.proposers.select import automatic
from parlay.types.plan import Plan, Span


def test_a_request_names_one_of_the_loaded_methods(make_llm: MakeLLM, models: dict[str, Pair], plain: Plain) -> None:
    llm = make_llm(speculative_config=every_method(models["float32"], "draft_model"))
    assert llm.engine.methods == ("none", *automatic(), "draft_model")
    expected = plain("float32", half_repeating(0.0)[1:2])
    for name in ("ngram", "suffix", "draft_model"):
        wish = with_params(half_repeating(0.0)[1], speculative={"method": name})
        (answer,) = run(llm, [wish])
        assert_same([answer], expected)
        assert set(answer.sources) == {"target", name}
    with pytest.raises(RequestError, match="'medusa' is not loaded"):
        run(llm, [with_params(half_repeating(0.0)[1], speculative={"method": "medusa"})])


def test_whoever_promises_most_guesses(make_llm: MakeLLM, models: dict[str, Pair]) -> None:
    llm = make_llm(speculative_config=every_method(models["float32"], "draft_model"))
    answers = run(llm, half_repeating(0.7))
    assert {"target", "draft_model"} <= set().union(*(answer.sources for answer in answers))
    llm = make_llm(speculative_config=every_method(models["float32"]))
    answers = run(llm, half_repeating(0.0))
    assert set().union(*(answer.sources for answer in answers)) == {"target", "ngram", "suffix"}


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> list[Span]:
    """All spans that are planned from now on."""
    found: list[Span] = []
    plan = Scheduler.plan

    def watched(self: Scheduler, now: float = 0.0) -> Plan:
        made = plan(self, now)
        found.extend(made.spans)
        return made

    monkeypatch.setattr(Scheduler, "plan", watched)
    return found


def test_a_draft_models_layers_hold_no_other_guesses(
    make_llm: MakeLLM, models: dict[str, Pair], spans: list[Span], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where somebody else's draft is verified, nothing of it lies in the draft model's cache."""
    # Hosts' drafts come first, though the draft model's promise more.
    monkeypatch.setattr(drafting, "best_of", lambda candidates, price: next(iter(candidates), None))
    llm = make_llm(speculative_config=every_method(models["float32"], "draft_model", lengths="fixed"))
    run(llm, half_repeating(0.0))
    others = [span for span in spans if span.draft.source and span.draft.source[0] != "draft_model"]
    assert len(others) > 5
    assert not any(span.catch_up.state.speculated for span in others)
    assert any(span.catch_up.state.speculated for span in spans)


@pytest.mark.parametrize(
    ("key", "match"),
    [
        ({"prompt_lookup_mix": 3}, "did you mean 'prompt_lookup_min'"),
        ({"prompt_lookup_min": "x"}, "ngram option"),
        ({"modle": "x"}, "did you mean 'model'"),
    ],
)
def test_options_of_nobody(make_llm: MakeLLM, key: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        make_llm(speculative_config={"method": "auto", **key})


# ---------------------------------------------------------------------------------------------------------- lists


def listed(pair: Pair, *methods: str, **more: Any) -> list[dict[str, Any]]:
    return [{"method": method, **proposer_options(method, pair), **more} for method in methods]


def test_a_list_of_methods_drafts_one_tree(make_llm: MakeLLM, models: dict[str, Pair], spans: list[Span]) -> None:
    config = listed(
        models["float32"], "suffix", "ngram", "draft_model", lengths="fixed", tree={"width": 2, "depth": 3}
    )
    run(make_llm(speculative_config=config, max_num_batched_tokens=400), half_repeating(0.7))
    # Of who agrees the surest counts as the one who guessed.
    drafted = [set(span.draft.source) for span in spans]
    assert {"suffix", "draft_model"} <= set().union(*drafted)
    assert any(len(sources) > 1 for sources in drafted), "no draft was joined"
    assert not all(span.draft.is_chain for span in spans)


def test_a_list_may_be_json(make_llm: MakeLLM, plain: Plain) -> None:
    text = '[{"method": "suffix", "lengths": "fixed"}, {"method": "ngram", "num_speculative_tokens": 3}]'
    llm = make_llm(speculative_config=text)
    assert llm.engine.methods == ("none", "suffix", "ngram")
    assert_same(run(llm, half_repeating(0.0)), plain("float32", half_repeating(0.0)))


@pytest.mark.parametrize(
    ("asked", "match"),
    [
        ([], "is an empty list"),
        ([{"method": "ngram"}, {"method": "ngram"}], "has 'ngram' twice"),
        ([{"method": "auto"}, {"method": "auto"}], "'auto' twice"),
        ([{"method": "ngram"}, {"method": "none"}], "lists method 'none', which decodes plainly"),
        (
            [{"method": "ngram", "lengths": "fixed"}, {"method": "suffix", "lengths": "latency"}],
            "lengths applies to all",
        ),
        ([{"method": "ngram"}, 3], "must be a mapping"),
        ([{"method": "ngram"}, {"method": "suffix", "prompt_lookup_min": 2}], "prompt_lookup_min"),
    ],
)
def test_lists_that_make_no_sense(make_llm: MakeLLM, asked: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        make_llm(speculative_config=asked)


def test_a_list_has_one_proposer_with_weights(make_llm: MakeLLM, models: dict[str, Pair]) -> None:
    with pytest.raises(ConfigError, match="only one proposer with weights"):
        make_llm(speculative_config=listed(models["float32"], "draft_model", "medusa"))


# ------------------------------------------------------------------------------------------------- by batch size


def test_nothing_is_drafted_for_large_batches(make_llm: MakeLLM, plain: Plain) -> None:
    config = {"method": "ngram", "prompt_lookup_min": 1, "disable_by_batch_size": 2}
    llm = make_llm(speculative_config=config)
    expected = plain("float32", half_repeating(0.0))
    asked = half_repeating(0.0)
    own = with_params(asked[1], speculative={"num_speculative_tokens": 3})  # a request's own wish goes first
    answers = run(llm, [asked[0], own, *asked[2:]])
    assert_same(answers, expected)
    lengths = [answer.metrics.drafted for answer in answers]
    assert lengths[1] > 0
    (alone,) = run(llm, [asked[1]])
    assert alone.metrics.drafted > max(lengths[i] for i in range(16) if i != 1)


def test_lengths_by_batch_size(make_llm: MakeLLM) -> None:
    config = {
        "method": "ngram",
        "prompt_lookup_min": 1,
        "num_speculative_tokens_per_batch_size": [[1, 1, 3], [2, 9, 1]],
    }
    llm = make_llm(speculative_config=config)
    ask = half_repeating(0.0)[1]

    def longest(count: int) -> int:
        llm.engine.stats.reset()
        run(llm, [ask] * count)
        return max(llm.engine.stats.lengths, default=0)

    assert longest(1) == 3
    llm.engine.stats.reset()
    group = [llm.engine.add(ask.prompt, SamplingParams(temperature=0, max_tokens=9)) for _ in range(4)]
    for _ in range(5):
        llm.engine.step()
    assert set(llm.engine.stats.lengths) == {1}
    for (request,) in group:
        llm.engine.abort(request)
    assert longest(10) == 5 or longest(10) == 3  # beyond the table as many as usual, until few are left


@pytest.mark.parametrize("value", [[[0, 1, 2]], [[1, 4, 5], [3, 9, 1]], [[2, 1, 1]], [[1, 2, -1]], [[1, 2]], "x", 3])
def test_tables_of_lengths_that_make_no_sense(make_llm: MakeLLM, value: Any) -> None:
    with pytest.raises(ConfigError):
        make_llm(speculative_config={"method": "ngram", "num_speculative_tokens_per_batch_size": value})


@pytest.mark.parametrize("value", ["fast", 3, ""])
def test_lengths_that_are_none(make_llm: MakeLLM, value: Any) -> None:
    with pytest.raises(ConfigError, match=r"lengths must be goodput, latency or fixed|key lengths: expected"):
        make_llm(speculative_config={"method": "ngram", "lengths": value})


def test_a_request_may_ask_for_less_than_is_chosen(make_llm: MakeLLM) -> None:
    llm = make_llm(speculative_config={"method": "ngram", "lengths": "goodput"})
    params = SamplingParams(temperature=0, max_tokens=30, speculative={"enabled": False})
    (answer,) = run(llm, [Ask((1, 2, 3) * 6, params)])
    assert answer.metrics.drafted == 0


# ----------------------------------------------------------------------------------------------------- memory


def test_without_memory_nobody_is_guessed_for_from_others(make_llm: MakeLLM) -> None:
    ask = half_repeating(0.7)[0]
    for remember, expected in ((True, True), (False, False)):
        llm = make_llm(speculative_config={"method": "suffix", "remember_responses": remember})
        first, second = (run(llm, [ask])[0] for _ in range(2))
        assert first.token_ids == second.token_ids
        assert (second.metrics.accepted > first.metrics.accepted) == expected
