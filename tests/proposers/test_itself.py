"""A target that drafts for itself, as its own draft model or from its own cache: every guess must be accepted.

Both draw with the target's noise, so the target guesses what it will draw, unless cache layers hold something wrong
or missing. What is emitted would be right even then; what is accepted tells.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest
from asking import Ask, accepted, assert_same, half_repeating, preempt_every_third_step, run, with_params
from conftest import DTYPES, MakeLLM, Pair, Plain
from crossing import crossed
from watching import asks as shorter_asks

from parlay import LLM, CompletionOutput
from parlay.models.config import ModelConfig
from parlay.proposers.methods import self as module
from parlay.types.storage import Storage

OFF = {"enabled": False}
asks = partial(shorter_asks, max_tokens=21)  # whole drafts of four guesses, behind a first token


@pytest.fixture(params=["draft_model", "self"])
def itself(
    request: pytest.FixtureRequest, make_llm: MakeLLM, models: dict[str, Pair], monkeypatch: pytest.MonkeyPatch
) -> MakeLLM:
    """A factory of engines whose target drafts for itself; a copy that would be in four bits is whole."""

    def same(config: ModelConfig, storage: Storage) -> ModelConfig:
        assert storage == "int4"
        return replace(config, storage="plain")

    if request.param == "self":
        monkeypatch.setattr(module, "replace", same)
        monkeypatch.setattr(module, "_MOST", 1.0)

    def make(k: int = 4, dtype: str = "float32", tree: Any = "off", **options: Any) -> LLM:
        more = {"model": str(models[dtype].target)} if request.param == "draft_model" else {}
        config = {"method": request.param, **more, "num_speculative_tokens": k, "tree": tree}
        return make_llm(dtype=dtype, speculative_config=config, **options)

    return make


def all_accepted(answers: Sequence[CompletionOutput]) -> bool:
    return all(a.metrics.accepted == a.metrics.drafted > 0 for a in answers)


WAYS = tuple(product((0.0, 0.7, 1.3), DTYPES))


@crossed(way=WAYS, filters=({}, {"top_k": 6}, {"top_p": 0.8}, {"min_p": 0.05}))
def test_every_guess_is_accepted(
    itself: MakeLLM, plain: Plain, way: tuple[float, str], filters: dict[str, Any]
) -> None:
    temperature, dtype = way
    answers = run(itself(4, dtype), asks(temperature, **filters))
    assert_same(answers, plain(dtype, asks(temperature, **filters)))
    assert all_accepted(answers)
    # The first step emits one token and leaves twenty: four steps of five.
    assert [a.metrics.steps for a in answers] == [5] * len(answers)


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 7},
        {"max_num_batched_tokens": 23, "block_size": 3},
        {"block_size": 1},
        {"max_num_seqs": 2},
    ],
    ids=str,
)
def test_in_chunks_and_blocks_of_any_size_too(itself: MakeLLM, options: dict[str, int]) -> None:
    answers = run(itself(**options), asks())
    assert all(a.metrics.accepted == a.metrics.drafted for a in answers)
    assert accepted(answers) > 5


@pytest.mark.parametrize("caching", [True, False])
def test_also_after_preemption(itself: MakeLLM, caching: bool) -> None:
    answers = run(itself(block_size=4, enable_prefix_caching=caching), asks(), preempt_every_third_step())
    assert sum(a.metrics.preemptions for a in answers) > 1
    assert all_accepted(answers)


def test_when_blocks_run_out_too(itself: MakeLLM) -> None:
    """Without blocks for a draft a step goes undrafted, and the next one closes the gap."""
    answers = run(itself(block_size=4, max_model_len=64, num_blocks=18), asks(max_tokens=20))
    assert any(a.metrics.preemptions for a in answers)
    assert all(a.metrics.accepted == a.metrics.drafted for a in answers)
    assert accepted(answers) > 0


@pytest.mark.parametrize("known", ["all", "a part", "nothing"])
def test_with_a_prefix_of_which_the_proposer_has(itself: MakeLLM, known: str) -> None:
    """What ran with speculation off left the target's keys and values, but not those of a draft model."""
    llm = itself(block_size=4)
    if known == "a part":
        run(llm, [Ask(ask.prompt[:12], ask.params) for ask in asks()])
    run(llm, asks() if known == "all" else asks(speculative=OFF))
    again = run(llm, asks())
    assert sum(a.metrics.cached_tokens for a in again) > 80
    assert all_accepted(again)


def test_with_wishes_that_differ_by_request(itself: MakeLLM, plain: Plain) -> None:
    wishes = [OFF, None, {"num_speculative_tokens": 1}, {"num_speculative_tokens": 2}, OFF, None]
    mixed = [with_params(ask, speculative=wish) for ask, wish in zip(asks(), wishes, strict=True)]
    answers = run(itself(), mixed)
    assert_same(answers, plain("float32", mixed))
    assert [a.metrics.steps for a in answers] == [21, 5, 11, 8, 21, 5]
    assert all_accepted([a for a, wish in zip(answers, wishes, strict=True) if wish != OFF])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_tree_holds_the_target_s_token_at_every_level(
    itself: MakeLLM, plain: Plain, dtype: str, temperature: float
) -> None:
    own = [with_params(ask, ignore_eos=True) for ask in half_repeating(temperature)[:5]]
    answers = run(itself(12, dtype, {"width": 3, "depth": 4}), own)
    assert_same(answers, plain(dtype, own))
    # But for the last step of each, which has less room, the path of four is always there.
    assert all(a.metrics.acceptance_length > 4 for a in answers)
