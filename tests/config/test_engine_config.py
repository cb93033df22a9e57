"""Options of an engine: every spelling, every refusal, and nothing that slips through."""

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import write_byte_tokenizer, write_llama
from conftest import MakeLLM, Pair

from parlay import LLM, ConfigError
from parlay.config import EngineConfig


def test_two_names_of_one_option() -> None:
    assert EngineConfig.parse({"kv_cache_memory_bytes": 5}).kv_cache_memory == 5
    with pytest.raises(ConfigError, match="two names of one option"):
        EngineConfig.parse({"kv_cache_memory_bytes": 5, "kv_cache_memory": 5})


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("float", "float32"),
        (torch.float32, "float32"),
        (torch.bfloat16, "bfloat16"),
        ("auto", "auto"),
        ("half", "float16"),
        (torch.float16, "float16"),
    ],
)
def test_dtypes_in_every_spelling(value: Any, name: str) -> None:
    assert EngineConfig.parse({"dtype": value}).dtype == name


def test_the_device_that_is_found() -> None:
    assert EngineConfig.parse({"device": "auto"}).device == "cpu"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"trust_remote_code": True}, "trust_remote_code is refused: parlay runs no Python"),
        ({"dtype": "int8"}, "dtype"),
        ({"gpu_memory_utilization": 0.0}, "above 0 and at most 1, not 0"),
        ({"gpu_memory_utilization": 1.5}, "at most 1, not 1.5"),
        ({"gpu_memory_utilization": float("nan")}, "not nan"),
        ({"seed": 1 << 64}, "seed must be between"),
        ({"max_num_batched_tokens": 2**63 - 1}, "max_num_batched_tokens must be at most 16777215"),
        ({"max_num_seqs": 1 << 31}, "max_num_seqs must be at most 16777215"),
        ({"block_size": 1 << 64}, "block_size must be at most"),
        ({"seed": None}, "seed"),
        ({"served_model_name": ""}, "served_model_name must not be empty"),
        ({"served_model_name": []}, "served_model_name must not be empty"),
        ({"served_model_name": ["a", ""]}, "served_model_name must not be empty"),
        ({"served_model_name": ["a", "b", "a"]}, "one of them twice"),
        ({"kv_cache_memory_bytes": 0}, "kv_cache_memory must be at least 1"),
        ({"kv_cache_memory_byte": 1}, "did you mean 'kv_cache_memory_bytes'"),
        ({"speculative_confg": {}}, "did you mean 'speculative_config'"),
        ({"max_num_sequences": 3}, "did you mean 'max_num_seqs'"),
        ({"enable_prefix_caching": 1}, "enable_prefix_caching"),
    ],
    ids=str,
)
def test_refusals(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        EngineConfig.parse(options)


def test_false_is_what_everybody_has_anyway() -> None:
    assert EngineConfig.parse({"trust_remote_code": False}) == EngineConfig()


def test_a_revision_of_what_has_none(models: dict[str, Pair]) -> None:
    for model in ("tiny-code", str(models["float32"].target)):
        with pytest.raises(
            ConfigError, match=r"revision='main' picks a version of a model on a hub.*leave revision out"
        ):
            LLM(model, revision="main")


def test_the_name_of_the_model(make_llm: MakeLLM, models: dict[str, Pair]) -> None:
    assert make_llm().model_name == str(models["float32"].target)
    assert make_llm(served_model_name="mine").model_name == "mine"
    llm = make_llm(served_model_name=["mine", "yours"])
    assert (llm.model_name, llm.model_names) == ("mine", ("mine", "yours"))
    assert isinstance(hash(llm.engine.config), int)  # nothing in a config can be altered


def test_a_tokenizer_from_elsewhere(make_llm: MakeLLM, models: dict[str, Pair], tmp_path: Path) -> None:
    own = make_llm()
    elsewhere = tmp_path / "tokenizer"
    elsewhere.mkdir()
    write_byte_tokenizer(elsewhere, 200)  # other ids for some of the bytes
    other = make_llm(tokenizer=str(elsewhere))
    assert own.engine.encode("a~") != other.engine.encode("ab")
    assert own.engine.codec.tokenizer.get_vocab_size() == 257
    assert other.engine.codec.tokenizer.get_vocab_size() == 200
    tokens = own.engine.encode("abc")
    assert own.generate("abc")[0].outputs[0].token_ids == other.generate(tokens)[0].outputs[0].token_ids
    with pytest.raises(ConfigError, match="4096 tokens, more than the 257 of the model"):
        make_llm(tokenizer="tiny-code")


def test_the_only_model_may_lack_a_tokenizer_if_another_is_given(models: dict[str, Pair], tmp_path: Path) -> None:
    mute = write_llama(tmp_path / "mute")
    (mute / "tokenizer.json").unlink()
    assert LLM(str(mute), tokenizer=str(models["float32"].target), max_model_len=32).generate("hi")
