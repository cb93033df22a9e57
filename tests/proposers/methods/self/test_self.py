"""A copy of the target in four bits: what is emitted is the target's. For its cache see `test_itself.py`."""

from pathlib import Path

import pytest
import torch
from asking import Ask, assert_same, run
from checkpoints import write_llama
from conftest import MakeLLM
from gguf_files import write_gguf
from watching import asks

from parlay import LLM, ConfigError, ModelError, SamplingParams
from parlay.models.select import describe_model
from parlay.proposers.base import TargetInfo
from parlay.proposers.methods import self as module
from parlay.runner.footprint import weight_bytes


def test_four_bits_guess_well_beside_others(make_llm: MakeLLM) -> None:
    own = [
        Ask(tuple(prompt.encode()), SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True))
        for prompt in ("def fibonacci(n):\n", "class Stack:\n    def __init__(self")
    ]
    expected = run(LLM("tiny-code", max_model_len=128, speculative_config=None), own)
    for speculative in ({"method": "self"}, [{"method": "self"}, {"method": "suffix"}]):
        answers = run(make_llm(model="tiny-code", dtype="bfloat16", speculative_config=speculative), own)
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
    with pytest.raises(ModelError, match="drafts with a 4-bit copy, which would gain nothing: it takes"):
        LLM(file, speculative_config={"method": "self"})
    with pytest.raises(ModelError, match="would gain nothing"):
        LLM("tiny-code", quantization="int4", speculative_config={"method": "self"})
    with pytest.raises(ConfigError, match="unknown self option 'bits'"):
        LLM("tiny-code", speculative_config={"method": "self", "bits": 4})


def test_an_int8_target_is_served(make_llm: MakeLLM) -> None:
    own = asks(0.0)[:3]
    made = {"model": "tiny-code", "dtype": "bfloat16", "quantization": "int8"}
    expected = run(make_llm(**made), own)
    answers = run(make_llm(**made, speculative_config={"method": "self"}), own)
    assert_same(answers, expected)
