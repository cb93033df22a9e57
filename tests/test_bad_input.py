"""What users get wrong: a typed error, one clear sentence, the remedy, and before weights are read if possible."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_llama
from conftest import MakeLLM, Pair

from parlay import (
    LLM,
    CapacityError,
    ConfigError,
    ModelError,
    ParlayError,
    RequestError,
    SamplingParams,
    SpeculationOverride,
)
from parlay.config import SpeculativeConfig, build


@pytest.fixture
def weightless(tmp_path: Path) -> str:
    """A model that can be described but not loaded: any error but a missing file comes before weights are read."""
    path = write_llama(tmp_path / "weightless")
    (path / "model.safetensors").unlink()
    return str(path)


@pytest.fixture
def corrupt(tmp_path: Path) -> str:
    path = write_llama(tmp_path / "corrupt")
    (path / "model.safetensors").write_bytes(b"nonsense")
    return str(path)


def test_what_weightless_means(weightless: str, corrupt: str) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        LLM(weightless)
    with pytest.raises(ModelError, match="cannot be read"):
        LLM(corrupt)


def test_a_missing_model() -> None:
    with pytest.raises(ModelError, match=r"no model 'no/such/thing'.*directory with a config\.json") as error:
        LLM("no/such/thing")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"max_model_length": 5}, "unknown option 'max_model_length' .did you mean 'max_model_len'"),
        ({"zzz": 5}, "unknown option 'zzz'.*known:.*block_size"),
        ({"block_size": "16"}, "block_size"),
        ({"block_size": 0}, "block_size must be at least 1, not 0"),
        ({"max_num_seqs": -1}, "max_num_seqs must be at least 1"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens must be at least 1"),
        ({"max_model_len": 0}, "max_model_len must be at least 1"),
        ({"num_blocks": 0}, "num_blocks must be at least 1"),
        ({"kv_cache_memory": 0}, "kv_cache_memory must be at least 1"),
        ({"dtype": "float8"}, "option dtype: .*'float8'; it is one of 'auto', 'float32'"),
        ({"device": "tpu"}, "invalid enum value 'tpu'; it is one of 'auto', 'cpu', 'cuda'"),
        ({"pipeline_parallel_size": 0}, "pipeline_parallel_size must be between 1 and"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size"),
        ({"max_model_len": 513}, "max_model_len=513 is beyond the model's 512 positions; lower it"),
    ],
    ids=str,
)
def test_bad_options(corrupt: str, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        LLM(corrupt, **options)


@pytest.mark.parametrize(
    ("speculative", "match"),
    [
        ({"method": "ngrm"}, "unknown speculative method 'ngrm' .did you mean 'ngram'"),
        ({"method": "base"}, "unknown speculative method"),
        ({"method": "select"}, "unknown speculative method"),
        ({"method": 3}, "needs a 'method'"),
        ({}, "needs a 'method'"),
        ({"num_speculative_tokens": 3}, "needs a 'method'"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "at least 1, not 0; to decode plainly"),
        ({"method": "ngram", "num_speculative_tokens": -3}, "at least 1"),
        ({"method": "ngram", "num_speculative_tokens": True}, "integer"),
        ({"method": "ngram", "num_speculative_tokens": 2.0}, "integer"),
        ({"method": "ngram", "lookup_max": 3}, "did you mean 'prompt_lookup_max'"),
        ({"method": "ngram", "num_spec_tokens": 3}, "did you mean 'num_speculative_tokens'"),
        ({"model": "tiny-code-eagle3", "num_spec_tokens": 3}, "did you mean 'num_speculative_tokens'"),
        ({"method": "none", "k": 3}, "unknown none option 'k'"),
        ("draft-model", "unknown speculative method 'draft-model' .did you mean 'draft_model'"),
        ("Eagle-3", "unknown speculative method 'Eagle-3' .did you mean 'eagle3'"),
        ("[medsua]", "unknown speculative method 'medsua' .did you mean 'medusa'"),
        ("", "speculative_config is empty; name a method"),
        (" ", "speculative_config is empty"),
        ("{", "not valid JSON"),
        ("3", "must be a mapping"),
        ([3], "must be a mapping"),
        ({"method": "ngram", "num_speculative_tokens": 2**63 - 1}, "num_speculative_tokens must be at most 4096"),
    ],
    ids=str,
)
def test_bad_speculation(corrupt: str, speculative: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        LLM(corrupt, speculative_config=speculative)


def test_good_speculation() -> None:
    assert SpeculativeConfig.parse(None).method == "none"
    parsed = SpeculativeConfig.parse('{"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}')
    assert parsed == SpeculativeConfig(method="ngram", num_speculative_tokens=2, options={"prompt_lookup_max": 3})
    assert SpeculativeConfig.parse(parsed) is parsed
    assert SpeculativeConfig.parse({"model": "x"}).method is None
    assert SpeculativeConfig.parse({"method": "ngram", "model": None, "tree": None}) == SpeculativeConfig("ngram")
    assert SpeculativeConfig.parse("[ngram]") == SpeculativeConfig.parse('"ngram"') == SpeculativeConfig("ngram")
    both = SpeculativeConfig.parse(["ngram", "suffix"])
    assert both == SpeculativeConfig.parse([{"method": "ngram"}, {"method": "suffix"}])


def test_a_draft_of_another_vocabulary(weightless: str, tmp_path: Path) -> None:
    draft = write_llama(tmp_path / "draft", vocab_size=100)
    with pytest.raises(ModelError, match=r"100 tokens but the target .* has 257; .* must share"):
        LLM(weightless, speculative_config={"model": str(draft), "vocabulary": "same"})


def test_a_missing_draft(weightless: str) -> None:
    with pytest.raises(ModelError, match="no model 'nowhere'"):
        LLM(weightless, speculative_config={"model": "nowhere"})


@pytest.mark.parametrize(
    "options",
    [{"num_blocks": 31}, {"kv_cache_memory": 1000}, {"num_blocks": 1, "block_size": 511}],
    ids=str,
)
def test_too_little_memory_for_one_sequence(corrupt: str, options: dict[str, int]) -> None:
    with pytest.raises(CapacityError, match="fewer than max_model_len=512; lower max_model_len, or"):
        LLM(corrupt, **options)


def test_a_cache_larger_than_memory(corrupt: str) -> None:
    with pytest.raises(CapacityError, match="lower kv_cache_memory or num_blocks"):
        LLM(corrupt, num_blocks=1 << 40)


def test_memory_counts_the_drafts_layers_too(make_llm: MakeLLM, corrupt: str, models: dict[str, Pair]) -> None:
    """A budget that holds one sequence of the target alone, to the byte, does not hold the draft's as well."""
    bytes_per_token = 2 * 3 * 2 * 16 * 4
    exactly = 512 * bytes_per_token
    with pytest.raises(ModelError, match="cannot be read"):
        LLM(corrupt, kv_cache_memory=exactly)
    with pytest.raises(CapacityError):
        LLM(corrupt, kv_cache_memory=exactly - 1)
    with pytest.raises(CapacityError, match=str(2 * exactly)):
        LLM(corrupt, kv_cache_memory=exactly, speculative_config={"model": str(models["float32"].draft)})


def test_one_sequence_may_take_the_whole_cache(make_llm: MakeLLM) -> None:
    llm = make_llm("ngram", 3, max_model_len=64, num_blocks=4)
    [output] = llm.generate([[1] * 40], SamplingParams(max_tokens=None, temperature=0, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 24


def test_an_unknown_parameter() -> None:
    for make in (SamplingParams, lambda **params: SamplingParams.parse(params)):
        with pytest.raises(ConfigError, match=r"unknown sampling parameter 'temprature' .did you mean 'temperature'"):
            make(temprature=1.0)
        # Those of vLLM that would mean nothing here are taken at their defaults.
        assert make(detokenize=True, truncate_prompt_tokens=None, extra_args=None) == SamplingParams()
        for name, value, why in (
            ("truncate_prompt_tokens", 5, "prompts are never cut"),
            ("use_beam_search", True, "no beam search"),
            ("guided_decoding", {"json": {}}, "write structured_outputs"),
        ):
            with pytest.raises(ConfigError, match=f"{name}=.* is not supported: .*{why}"):
                make(**{name: value})


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"n": 0}, "n must be between 1 and"),
        ({"temperature": -0.1}, "temperature must be between 0 and"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature must be between"),
        ({"temperature": "hot"}, "temperature must be a number"),
        ({"top_p": -0.1}, "top_p must be between 0 and 1"),
        ({"top_p": 1.1}, "top_p must be between 0 and 1"),
        ({"top_k": -2}, "top_k must be at least -1"),
        ({"top_k": 1.5}, "top_k must be an integer"),
        ({"min_p": 2}, "min_p must be between 0 and 1"),
        ({"seed": 1 << 64}, "seed must be between"),
        ({"seed": True}, "seed must be an integer"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"logprobs": -1}, "logprobs must be between 0 and"),
        ({"prompt_logprobs": -1}, "prompt_logprobs must be between 0 and"),
        ({"best_of": 2, "n": 3}, "best_of=2 is below n=3; raise it"),
        ({"best_of": 2, "temperature": 0}, "best_of above n needs a temperature above 0"),
        ({"presence_penalty": 2.1}, "presence_penalty must be between -2 and 2"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty must be between -2 and 2"),
        ({"repetition_penalty": 0}, r"repetition_penalty must be between 0\.01 and 100"),
        ({"min_tokens": -1}, "min_tokens must be at least 0"),
        ({"min_tokens": 17}, "min_tokens=17 is above max_tokens=16; lower it"),
        ({"logit_bias": {-1: 0.0}}, "logit_bias must be at least 0"),
        ({"logit_bias": {"x": 0.0}}, "logit_bias must be an integer"),
        ({"logit_bias": {"9" * 5000: 0.0}}, "logit_bias must be an integer"),
        ({"logit_bias": {3: float("nan")}}, "logit_bias of token 3 must be between -100 and 100"),
        ({"logit_bias": [3]}, "logit_bias must be a mapping"),
        ({"bad_words": ["a", ""]}, "bad_words must be strings of at least one character"),
        ({"bad_words": {"a"}}, "bad_words must be a list"),
        ({"allowed_token_ids": []}, "allows no token; leave it out"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids must be at least 0"),
        ({"allowed_token_ids": "abc"}, "allowed_token_ids must be an integer"),
        ({"logits_processors": ["f"]}, "must be functions"),
        ({"logits_processors": len}, "logits_processors must be a list"),
        ({"include_stop_str_in_output": 1}, "must be true or false"),
        ({"stop": ""}, "at least one character"),
        ({"stop": ["a", ""]}, "at least one character"),
        ({"stop": [3]}, "stop must be strings"),
        ({"stop": "\ud800"}, "stop must be valid Unicode"),
        ({"bad_words": ["a", "\ud800"]}, "bad_words must be valid Unicode"),
        ({"stop_token_ids": [-1]}, "stop_token_ids must be at least 0"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids must be an integer"),
        ({"speculative": {"num_speculative_tokens": 0}}, "at least 1, not 0; to decode plainly set enabled"),
        ({"ignore_eos": "no"}, "ignore_eos must be true or false"),
        ({"stop_token_ids": 3}, "stop_token_ids must be a list"),
        ({"speculative": {"enabled": "no"}}, "enabled must be true or false"),
        ({"speculative": False}, "must be a mapping"),
        ({"speculative": {"enable": False}}, "did you mean 'enabled'"),
        ({"speculative": {"method": 3}}, "method must be the name"),
    ],
    ids=str,
)
def test_bad_parameters(params: dict[str, Any], match: str) -> None:
    with pytest.raises(RequestError, match=match):
        SamplingParams.parse(params)


def test_good_parameters() -> None:
    params = SamplingParams.parse(
        {"stop": "x", "stop_token_ids": [3], "speculative": {"enabled": False}, "top_k": -1}
    )
    assert params.stop == ("x",)
    assert params.stop_token_ids == (3,)
    assert params.speculative == SpeculationOverride(enabled=False)
    assert not params.filters


def test_missing_options_are_named() -> None:
    @dataclass(frozen=True)
    class Needy:
        size: int
        name: str = ""

    assert build(Needy, {"size": 3}, "thing") == Needy(3)
    with pytest.raises(ConfigError, match="thing 'size' is required"):
        build(Needy, {"name": "x"}, "thing")
    with pytest.raises(ConfigError, match="size"):
        build(Needy, {"size": "x"}, "thing")


def test_errors_form_a_tree() -> None:
    for error in (ConfigError, ModelError, RequestError, CapacityError):
        assert issubclass(error, ParlayError)
    assert issubclass(CapacityError, MemoryError)
    assert issubclass(RequestError, ValueError)


def test_a_model_without_a_tokenizer(models: dict[str, Pair], tmp_path: Path) -> None:
    path = shutil.copytree(models["float32"].target, tmp_path / "mute")
    (path / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"tokenizer\.json does not exist"):
        LLM(str(path))
