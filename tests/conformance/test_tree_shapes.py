"""Drafts with branches from every proposer with weights: the tokens stay those of plain decoding."""

import random
from typing import Any

import pytest
from asking import Ask, accepted, assert_same, assert_same_so_far, half_repeating, meddle_at_random, run, with_params
from conftest import DTYPES, MakeLLM, Pair, Plain, proposer_options
from crossing import crossed

from parlay import LLM, ConfigError, SamplingParams
from parlay.proposers.base import DeviceProposer
from parlay.proposers.select import proposers, weightless
from parlay.runner.runner import ModelRunner
from parlay.types.plan import Span, Verdict

WEIGHTY = [name for name in proposers.names() if name not in ("none", *weightless())]
TEMPERATURES = (0.0, 0.7, 1.3)
SHAPES = ({"width": 2}, {"width": 4, "depth": 4}, {"width": 16, "depth": 2}, {"width": 3, "depth": 1})


def config(method: str, pair: Pair, tree: Any, most: int | None = None) -> dict[str, Any]:
    own = {} if most is None else {"num_speculative_tokens": most}
    return {"method": method, "tree": tree, "lengths": "fixed", **proposer_options(method, pair), **own}


def asks(temperature: float) -> list[Ask]:
    """Return requests of which some filter, and some have processors, which are shown chains."""
    more: list[dict[str, Any]] = [{}, {"top_k": 8}, {"top_p": 0.8}, {"repetition_penalty": 1.1}]
    return [with_params(ask, **more[i % 4]) for i, ask in enumerate(half_repeating(temperature))]


class Watched:
    """Notes the shapes of drafts that are verified, and how often keys and values had to move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.branched = self.moved = self.straight = 0
        keep = ModelRunner.keep

        def noted(runner: ModelRunner, spans: list[Span], verdicts: list[Verdict], *rest: Any) -> Any:
            for span, verdict in zip(spans, verdicts, strict=True):
                self.branched += not span.draft.is_chain
                if verdict.path:
                    self.moved += verdict.path != tuple(range(len(verdict.path)))
                    self.straight += verdict.path == tuple(range(len(verdict.path)))
            return keep(runner, spans, verdicts, *rest)

        monkeypatch.setattr(ModelRunner, "keep", noted)


@crossed(method=WEIGHTY, shape=SHAPES, dtype=DTYPES, temperature=TEMPERATURES)
def test_the_same_tokens(
    make_llm: MakeLLM,
    models: dict[str, Pair],
    plain: Plain,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    shape: dict[str, int],
    dtype: str,
    temperature: float,
) -> None:
    expected, seen = plain(dtype, asks(temperature)), Watched(monkeypatch)
    for options in ({}, {"max_num_batched_tokens": 48, "block_size": 4}):
        llm = make_llm(dtype=dtype, speculative_config=config(method, models[dtype], shape), **options)
        answers = run(llm, asks(temperature))
        assert_same(answers, expected)
        assert accepted(answers) > 0
    assert seen.branched
    # The best path comes first, and its keys and values lie where they belong.
    assert seen.straight > seen.moved


@pytest.mark.parametrize("method", WEIGHTY)
def test_with_preemption_and_aborts(make_llm: MakeLLM, models: dict[str, Pair], plain: Plain, method: str) -> None:
    llm = make_llm(speculative_config=config(method, models["float32"], {"width": 3}), block_size=4, num_blocks=60)
    answers = run(llm, asks(0.7), meddle_at_random(random.Random(4), 0.3, 0.02))
    assert_same_so_far(answers, plain("float32", asks(0.7)))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_target_that_drafts_for_itself_is_always_right(
    make_llm: MakeLLM, models: dict[str, Pair], dtype: str, temperature: float
) -> None:
    """With its own keys and values in scratch slots, at its own positions, every guess is the token itself."""
    asked = {
        "method": "draft_model",
        "model": str(models[dtype].target),
        "tree": {"width": 3, "depth": 4},
        "num_speculative_tokens": 12,
    }
    llm = make_llm(dtype=dtype, speculative_config=asked)
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=41, ignore_eos=True)
    for answer in run(llm, [Ask((1, 2, 3, 4 + i) * (1 + i), params) for i in range(5)]):
        metrics = answer.metrics
        assert metrics.accepted_per_position == (metrics.drafts,) * 4
        assert metrics.emitted == metrics.steps + 4 * metrics.drafts
        assert metrics.drafted > metrics.accepted, "there were no branches"


@pytest.mark.parametrize("method", WEIGHTY)
def test_budgets(make_llm: MakeLLM, models: dict[str, Pair], method: str) -> None:
    """No draft has more nodes than it may, nor more levels."""
    for most, shape in ((5, {"width": 4, "depth": 3}), (16, {"width": 4, "depth": 2}), (1, {"width": 2, "depth": 1})):
        llm = make_llm(speculative_config=config(method, models["float32"], shape, most))
        answers = run(llm, [Ask((1, 2, 3, 4) * 5, SamplingParams(temperature=0, max_tokens=40))])
        assert max(answer.metrics.drafted for answer in answers) > 0
        assert all(len(answer.metrics.accepted_per_position) <= shape["depth"] for answer in answers)
        steps = answers[0].metrics.steps
        assert answers[0].metrics.drafted <= most * steps


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"method": "draft_model", "tree": {"width": 17}}, "width of a tree must be 1 to 16, not 17"),
        ({"method": "draft_model", "tree": {"depth": 0}}, "depth of a tree must be 1 to 16, not 0"),
        ({"method": "draft_model", "tree": {"deep": 3}}, "unknown tree key 'deep'"),
        ({"method": "draft_model", "tree": {"depth": 6}, "num_speculative_tokens": 5}, "num_speculative_tokens=5"),
        ({"method": "medusa", "tree": {"depth": 9}}, "tokens that 'medusa' can draft in a row"),
        ({"method": "ngram", "tree": {"width": 2}}, "tree has a shape, which needs a method with weights"),
        ({"method": "ngram", "tree": "wide"}, "tree must be auto, off or a shape"),
    ],
)
def test_trees_that_do_not_fit(models: dict[str, Pair], more: dict[str, Any], message: str) -> None:
    pair = models["float32"]
    asked = {**proposer_options(more["method"], pair), **more}
    with pytest.raises(ConfigError, match=message):
        LLM(str(pair.target), max_model_len=128, speculative_config=asked)


def test_a_tree_beyond_the_context(models: dict[str, Pair]) -> None:
    pair = models["float32"]
    asked = {"method": "draft_model", "tree": {"depth": 9}, **proposer_options("draft_model", pair)}
    with pytest.raises(ConfigError, match="exceeds max_model_len=8"):
        LLM(str(pair.target), max_model_len=8, speculative_config=asked)


def test_only_proposers_that_guess_on_the_device_take_shapes() -> None:
    assert all(issubclass(proposers.load(name).Proposer, DeviceProposer) for name in WEIGHTY)
