"""Engines with keys and values in eight bits: all kinds of models, ranks, memory, and what cannot have them."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from asking import assert_same, preempt_every_third_step, run
from assistants import write_assistant
from checkpoints import write_llama
from families import write_family
from mtp_layers import write_mtp
from recurrent import asks

from parlay import LLM, CompletionOutput, ConfigError, SamplingParams

NGRAM: dict[str, Any] = {"method": "ngram", "lengths": "fixed", "num_speculative_tokens": 4, "prompt_lookup_min": 1}
# Heads as wide as blocks of the cache: of one width and of two, sinks, values of another, latents, beside states,
# another library.
MODELS: dict[str, dict[str, Any]] = {
    "mistral-unlimited": {},
    "gptoss": {"head_dim": 32},
    "gemma4": {"head_dim": 32, "global_head_dim": 64},
    "mimov2flash-wide": {},
    "deepseekv2": {"kv_lora_rank": 48},
    "qwen3_5": {},
    "gemma": {"head_dim": 32},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@cache
def written(folder: Path, name: str) -> Path:
    return write_family(folder / name, name, seed=2, calm=0.3, **MODELS[name])


def engine(path: Path, **options: Any) -> LLM:
    given = {"max_model_len": 256, "kv_cache_dtype": "int8", "speculative_config": None, **options}
    return LLM(str(path), **given)


@cache
def plainly(path: Path) -> list[CompletionOutput]:
    llm = engine(path, enable_prefix_caching=False)
    return [completion for ask in asks() for completion in run(llm, [ask])]


@pytest.mark.parametrize("name", MODELS)
def test_same_tokens(folder: Path, name: str) -> None:
    """In chunks and in company, then from the cache, then preempted at every third step, with drafts."""
    path = written(folder, name)
    llm = engine(path, speculative_config=NGRAM, max_num_batched_tokens=24, block_size=8)
    for meddle in (None, None, preempt_every_third_step()):
        assert_same(run(llm, asks(), meddle), plainly(path))
    assert llm.engine.memory.tokens > 0


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.parametrize("name", ["gemma4", "deepseekv2", "qwen3_5"])
@pytest.mark.parametrize("split", ["tensor_parallel_size", "pipeline_parallel_size"])
def test_ranks(folder: Path, name: str, split: str) -> None:
    path = written(folder, name)
    assert_same(run(engine(path, **{split: 2}, speculative_config=NGRAM), asks()), plainly(path))


def test_what_it_is_called_and_takes(folder: Path) -> None:
    path = written(folder, "mistral-unlimited")
    given: dict[str, Any] = {"kv_cache_memory": 1 << 20, "enable_prefix_caching": False, "dtype": "bfloat16"}
    whole, half = engine(path, kv_cache_dtype="auto", **given).engine, engine(path, **given).engine
    assert "/bfloat16+kv-int8/" in half.numerics_id
    assert "kv-int8" not in whole.numerics_id
    assert half.memory.tokens / whole.memory.tokens == pytest.approx(64 / 34, rel=0.02)
    assert half.memory.cache <= 1 << 20


def test_it_is_near_the_whole_numbers() -> None:
    """The embedded model, after 150 tokens of its own: what each is given differs by a few thousandths."""
    text, params = "def fibonacci(n):", SamplingParams(temperature=0, max_tokens=150, logprobs=0, ignore_eos=True)
    (whole,) = LLM("tiny-code", speculative_config=None).generate([text], params, use_tqdm=False)
    scored = SamplingParams(max_tokens=1, prompt_logprobs=0)
    tokens = {"prompt_token_ids": [*whole.prompt_token_ids, *whole.outputs[0].token_ids]}
    given = []
    for dtype in ("auto", "int8"):
        (out,) = LLM("tiny-code", kv_cache_dtype=dtype).generate([tokens], scored, use_tqdm=False)
        assert out.prompt_logprobs is not None
        given.append(
            [own[token].logprob for own, token in zip(out.prompt_logprobs[1:], out.prompt_token_ids[1:], strict=True)]
        )
    differences = [abs(a - b) for a, b in zip(*given, strict=True)]
    assert 0 < sum(differences) / len(differences) < 0.01


def test_what_cannot_have_it(tmp_path: Path) -> None:
    narrow = write_llama(tmp_path / "narrow")
    with pytest.raises(ConfigError, match=r"needs heads of a multiple of 32 elements, and those of .*narrow have 16"):
        engine(narrow)
    with pytest.raises(ConfigError, match=r"kv_cache_dtype.*fp8"):
        engine(narrow, kv_cache_dtype="fp8")


def test_an_assistant_reads_the_targets_keys(folder: Path, tmp_path: Path) -> None:
    target = written(folder, "gemma4")
    spec = {"model": str(write_assistant(tmp_path / "head", target)), "lengths": "fixed", "num_speculative_tokens": 3}
    found = run(engine(target, speculative_config=spec), asks())
    assert_same(found, plainly(target))
    assert sum(one.metrics.drafted for one in found) > 50


def test_the_models_own_layer_drafts_from_eight_bits_too(tmp_path: Path) -> None:
    path = write_mtp(tmp_path / "model", "qwen3_5", seed=2, calm=0.3)
    spec = {"method": "mtp", "lengths": "fixed", "num_speculative_tokens": 3}
    llm = engine(path, speculative_config=spec, block_size=8)
    for meddle in (None, preempt_every_third_step()):
        found = run(llm, asks(), meddle)
        assert_same(found, plainly(path))
        assert sum(one.metrics.drafted for one in found) > 50
