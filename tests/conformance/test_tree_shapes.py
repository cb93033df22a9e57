"""Drafts with branches from every proposer with weights: their shapes, and what is no shape."""

from typing import Any

import pytest
from asking import Ask, half_repeating, run
from conftest import DTYPES, MakeLLM, Pair, proposer_options
from table import WITH_WEIGHTS

from parlay import LLM, ConfigError, SamplingParams
from parlay.proposers.base import DeviceProposer
from parlay.proposers.select import proposers
from parlay.runner.runner import ModelRunner
from parlay.types.plan import Span, Verdict


def config(method: str, pair: Pair, tree: Any, most: int | None = None) -> dict[str, Any]:
    own = {} if most is None else {"num_speculative_tokens": most}
    return {"method": method, "tree": tree, "lengths": "fixed", **proposer_options(method, pair), **own}


class Watched:
    """Notes the shapes of drafts that are verified, and how often keys and values had to move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.branched = self.moved = self.straight = 0
        keep = ModelRunner.move_accepted

        def noted(runner: ModelRunner, spans: list[Span], verdicts: list[Verdict], *rest: Any) -> Any:
            for span, verdict in zip(spans, verdicts, strict=True):
                self.branched += not span.draft.is_chain
                if verdict.path:
                    self.moved += verdict.path != tuple(range(len(verdict.path)))
                    self.straight += verdict.path == tuple(range(len(verdict.path)))
            return keep(runner, spans, verdicts, *rest)

        monkeypatch.setattr(ModelRunner, "move_accepted", noted)


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


@pytest.mark.parametrize("method", WITH_WEIGHTS)
def test_the_best_path_comes_first(
    make_llm: MakeLLM, models: dict[str, Pair], monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """So that its keys and values lie where they belong."""
    seen = Watched(monkeypatch)
    run(make_llm(speculative_config=config(method, models["float32"], {"width": 2})), half_repeating(0.7)[:8])
    assert seen.branched
    assert seen.straight > seen.moved


@pytest.mark.parametrize("method", WITH_WEIGHTS)
def test_budgets(make_llm: MakeLLM, models: dict[str, Pair], method: str) -> None:
    """No draft has more nodes than it may, nor more levels."""
    for most, shape in ((5, {"width": 4, "depth": 3}), (16, {"width": 4, "depth": 2}), (1, {"width": 2, "depth": 1})):
        llm = make_llm(speculative_config=config(method, models["float32"], shape, most))
        answers = run(llm, [Ask((1, 2, 3, 4) * 5, SamplingParams(temperature=0, max_tokens=20))])
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
    assert all(issubclass(proposers.load(name).Proposer, DeviceProposer) for name in WITH_WEIGHTS)
