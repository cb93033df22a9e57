"""A target that drafts for itself reads its own cache: with a copy of full precision, every guess must be accepted.

The copy is in four bits otherwise; then what is emitted is still the target's, and only what is accepted changes.
"""

from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import Ask, assert_same, half_repeating, run, with_params
from checkpoints import write_llama
from conftest import DTYPES, MakeLLM, Plain
from gguf_files import write_gguf

from parlay import LLM, CompletionOutput, ConfigError, ModelError, SamplingParams
from parlay.engine.engine import Engine
from parlay.engine.request import Request
from parlay.models.config import ModelConfig
from parlay.models.select import describe_model
from parlay.proposers.base import TargetInfo
from parlay.proposers.methods import self as module
from parlay.runner.footprint import weight_bytes
from parlay.types.storage import Storage


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the copy be the target, of the same precision."""

    def same(config: ModelConfig, storage: Storage) -> ModelConfig:
        assert storage == "int4"
        return replace(config, storage="plain")

    monkeypatch.setattr(module, "replace", same)
    monkeypatch.setattr(module, "_MOST", 1.0)


def endless(temperature: float, count: int) -> list[Ask]:
    return [with_params(ask, ignore_eos=True) for ask in half_repeating(temperature)[:count]]


def all_accepted(answers: list[CompletionOutput]) -> bool:
    return all(a.metrics.accepted == a.metrics.drafted > 0 for a in answers)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "options",
    [{}, {"max_num_batched_tokens": 23, "block_size": 3}, {"block_size": 1}, {"max_num_seqs": 2}],
    ids=str,
)
def test_every_guess_is_accepted(
    whole: None, make_llm: MakeLLM, plain: Plain, options: dict[str, Any], dtype: str, temperature: float
) -> None:
    asks = endless(temperature, 6)
    answers = run(make_llm("self", 4, dtype=dtype, **options), asks)
    assert_same(answers, plain(dtype, asks))
    assert all_accepted(answers)


def test_also_after_preemption(whole: None, make_llm: MakeLLM, plain: Plain) -> None:
    steps = count()

    def preempt(engine: Engine, requests: list[Request]) -> None:
        if next(steps) % 3 == 2:
            for request in [r for r in requests if r.table.blocks]:
                engine.preempt(request)

    asks = endless(0.7, 6)
    answers = run(make_llm("self", 3, block_size=8), asks, preempt)
    assert_same(answers, plain("float32", asks))
    assert all_accepted(answers)
    assert any(a.metrics.preemptions for a in answers)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_tree_holds_the_target_s_token_at_every_level(
    whole: None, make_llm: MakeLLM, plain: Plain, dtype: str, temperature: float
) -> None:
    asks = endless(temperature, 5)
    speculative = {"method": "self", "tree": {"width": 3, "depth": 4}, "num_speculative_tokens": 12}
    answers = run(make_llm(dtype=dtype, speculative_config=speculative), asks)
    assert_same(answers, plain(dtype, asks))
    # But for the last step of each, which has less room, the path of four is always there.
    assert all(a.metrics.acceptance_length > 4 for a in answers)


def test_four_bits_guess_well_beside_others(make_llm: MakeLLM) -> None:
    asks = [
        Ask(tuple(prompt.encode()), SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True))
        for prompt in ("def fibonacci(n):\n", "class Stack:\n    def __init__(self")
    ]
    expected = run(LLM("tiny-code", max_model_len=128, speculative_config=None), asks)
    for speculative in ({"method": "self"}, [{"method": "self"}, {"method": "suffix"}]):
        answers = run(make_llm(model="tiny-code", dtype="bfloat16", speculative_config=speculative), asks)
        assert_same(answers, expected)
        assert all(a.metrics.acceptance_length > 2 for a in answers)
        assert all("self" in a.sources for a in answers)


def test_it_takes_weights_but_no_cache() -> None:
    config = describe_model("tiny-code")
    proposer = module.Proposer(module.Options(), TargetInfo(config, torch.bfloat16, 128))
    assert proposer.cache is None
    assert 0 < proposer.weight_bytes < 0.5 * weight_bytes(config, torch.bfloat16)


def test_targets_that_it_gains_nothing_for(tmp_path: Path) -> None:
    file = write_gguf(write_llama(tmp_path / "model"), tmp_path / "m.gguf", "Q4_0")
    with pytest.raises(ModelError, match="drafts with a copy in four bits, which would gain nothing: it takes"):
        LLM(file, speculative_config={"method": "self"})
    with pytest.raises(ModelError, match="would gain nothing"):
        LLM("tiny-code", quantization="int4", speculative_config={"method": "self"})
    with pytest.raises(ConfigError, match="unknown self option 'bits'"):
        LLM("tiny-code", speculative_config={"method": "self", "bits": 4})


def test_an_int8_target_is_served(make_llm: MakeLLM) -> None:
    asks = endless(0.0, 3)
    made = {"model": "tiny-code", "dtype": "bfloat16", "quantization": "int8"}
    expected = run(make_llm(**made), asks)
    answers = run(make_llm(**made, speculative_config={"method": "self"}), asks)
    assert_same(answers, expected)
