"""Reading `config.json`: what is served, what is refused, and with which words."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import read_config, write_llama

from parlay import ConfigError, ModelError
from parlay.models.rotary import cos_sin_table
from parlay.models.select import cache_spec, describe_model, resolve_dtype


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "model")


def rewrite(path: Path, **changes: Any) -> None:
    file = path / "config.json"
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({k: v for k, v in config.items() if v != "absent"}))


def test_a_good_one(path: Path) -> None:
    config = read_config(path)
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (3, 4, 2, 16)
    assert config.eos_token_ids == (256,)
    assert config.dtype == "float32"
    assert cache_spec(config, torch.bfloat16).bytes_per_token == 2 * 3 * 2 * 16 * 2


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"attention_bias": "yes"}, "attention_bias"),
        ({"mlp_bias": 1}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_scaling": {"rope_type": "sideways", "factor": 2}}, "rope_type 'sideways'"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -1}}, "factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "2"}}, "factor"),
        ({"rope_scaling": {"rope_type": "longrope", "long_factor": [1.0] * 8}}, "short_factor"),
        ({"rope_scaling": {"rope_type": "longrope", "short_factor": [0], "long_factor": [1]}}, "short_factor"),
        ({"rope_scaling": [2]}, "rope_scaling"),
        ({"partial_rotary_factor": 2}, "partial_rotary_factor"),
        ({"num_attention_heads": "absent"}, "num_attention_heads"),
        ({"vocab_size": "absent"}, "vocab_size"),
        ({"hidden_size": "wide"}, "cannot be read"),
        ({"num_hidden_layers": 0}, "num_layers"),
        ({"num_attention_heads": 0}, "cannot be read|num_heads"),
        ({"num_key_value_heads": 3}, "3 groups"),
        ({"head_dim": 20}, "head_dim"),
        ({"head_dim": 512}, "head_dim"),
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"architectures": None, "model_type": None}, "unnamed"),
        ({"architectures": None, "model_type": "layers"}, "LayersForCausalLM is not supported"),
        ({"architectures": ["LayersForCausalLM"]}, "not supported"),
    ],
    ids=str,
)
def test_refusals(path: Path, changes: dict[str, Any], word: str) -> None:
    rewrite(path, **changes)
    with pytest.raises(ModelError, match=word):
        describe_model(str(path))


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00"])
def test_unreadable(path: Path, text: str) -> None:
    (path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config\.json"):
        describe_model(str(path))


def test_missing(path: Path) -> None:
    with pytest.raises(ModelError, match="there is no model"):
        describe_model(str(path / "nowhere"))
    (path / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config\.json does not exist"):
        describe_model(str(path))


@pytest.mark.parametrize(("value", "ids"), [(5, (5,)), ([5, 6], (5, 6)), (None, ())])
def test_end_of_sequence_ids(path: Path, value: Any, ids: tuple[int, ...]) -> None:
    rewrite(path, eos_token_id=value)
    assert read_config(path).eos_token_ids == ids


def test_generation_config_overrides_the_end_of_sequence_alone(path: Path) -> None:
    (path / "generation_config.json").write_text('{"eos_token_id": [7, 8], "vocab_size": 1}')
    config = read_config(path)
    assert config.eos_token_ids == (7, 8)
    assert config.vocab_size == 257


def test_dtypes(path: Path) -> None:
    config = read_config(path)
    assert resolve_dtype("auto", config) is torch.float32
    assert resolve_dtype("bfloat16", config) is torch.bfloat16
    rewrite(path, torch_dtype="float16")
    assert resolve_dtype("auto", read_config(path)) is torch.float32
    assert resolve_dtype("float16", read_config(path)) is torch.float32
    assert resolve_dtype("auto", replace(read_config(path), storage="plain")) is torch.bfloat16
    rewrite(path, torch_dtype="absent", dtype="bfloat16")
    assert resolve_dtype("auto", read_config(path)) is torch.bfloat16
    for bad in ("float16", "bfloat", "int8"):
        with pytest.raises(ConfigError, match=bad):
            resolve_dtype(bad, config)


def test_rotary_tables_do_not_depend_on_their_length(path: Path) -> None:
    config = read_config(path)
    long, short = cos_sin_table(config, 500), cos_sin_table(config, 13)
    assert torch.equal(long[:13], short)


@pytest.mark.parametrize("lost", ["factor", "low_freq_factor", "original_max_position_embeddings"])
def test_llama3_scaling_needs_its_keys(path: Path, lost: str) -> None:
    scaling = {"factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 32}
    del scaling[lost]
    rewrite(path, rope_scaling={"rope_type": "llama3", **scaling})
    with pytest.raises(ModelError, match=lost):
        cos_sin_table(read_config(path), 8)


@pytest.mark.parametrize("key", ["mscale_all_dim", "mscale", "beta_fast", "beta_slow"])
def test_zero_in_yarn_stands_for_none(path: Path, key: str) -> None:
    """As in transformers: DeepSeek's code has it as the default."""
    scaling = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 8.0, "original_max_position_embeddings": 32}
    tables = []
    for more in ({}, {key: 0}):
        rewrite(path, rope_parameters={**scaling, **more})
        tables.append(cos_sin_table(describe_model(path), 64))
    assert all(torch.equal(own, other) for own, other in zip(*tables, strict=True))


@pytest.mark.parametrize(
    ("architecture", "changes", "words"),
    [
        ("Mixtral", {"num_experts_per_tok": 9}, "more than the 8 experts that a token can go to"),
        ("Mixtral", {"num_local_experts": 1 << 30}, "experts in each of 3 layers are more than"),
        ("GptOss", {"num_local_experts": 1 << 30}, "experts in each of 3 layers are more than"),
        ("Glm4Moe", {"n_routed_experts": 1 << 30}, "experts in each of 3 layers are more than"),
        ("Glm4Moe", {"n_group": 3}, "128 experts do not divide into 3 groups"),
        ("Glm4Moe", {"n_group": 32, "topk_group": 1}, "more than the 4 experts that a token can go to"),
    ],
)
def test_experts_that_do_not_fit(path: Path, architecture: str, changes: dict[str, Any], words: str) -> None:
    """They are refused before anything is made for each of them, which would take hours."""
    rewrite(path, architectures=[f"{architecture}ForCausalLM"], **changes)
    with pytest.raises(ModelError, match=words):
        describe_model(path)
