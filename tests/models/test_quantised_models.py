"""Models whose matrices stay quantised."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import completed_code
from checkpoints import write_llama
from crossing import crossed
from families import write_family
from gguf_families import VARIANTS, convert
from gguf_files import write_gguf
from pieces import logits_of

from parlay import LLM, ConfigError
from parlay.checkpoints.find import find_model
from parlay.kernels.reference import ReferenceKernels
from parlay.kernels.select import select_kernels
from parlay.models.decoder import Decoder
from parlay.models.select import describe_model, load_model, stored_kinds
from parlay.runner.footprint import weight_bytes
from parlay.types.storage import Made, Storage
from parlay.weights.kinds import COMPUTED

WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "head_dim": 64}


def medium(name: str) -> str:
    """Return how a file of the usual mixture of four bits stores a matrix."""
    return "Q6_K" if ".v_proj." in name or "embed" in name else "Q8_0" if ".down_proj." in name else "Q4_K"


@pytest.mark.parametrize("kind", COMPUTED, ids=str)
def test_as_stored_is_nearly_what_is_dequantised(tmp_path: Path, kind: Any) -> None:
    """Up to what eight bits for each activation leave."""
    file = write_gguf(write_llama(tmp_path / "model", **WIDE), tmp_path / "m.gguf", kind.name)
    found, expected = logits_of(file, torch.float32), logits_of(file, torch.float32, storage="plain")
    assert not torch.equal(found, expected)
    assert (found - expected).std() < 0.15 * expected.std()  # random blocks make large activations


def test_a_mixed_file_by_both_kernels(tmp_path: Path) -> None:
    """In float32 most operations round alike, so that what remains is little."""
    file = write_gguf(write_llama(tmp_path / "model", **WIDE), tmp_path / "m.gguf", medium)
    native, twins = (logits_of(file, torch.float32, kernels=k) for k in (select_kernels(), ReferenceKernels()))
    assert (native - twins).std() < 0.02 * twins.std()


@pytest.mark.parametrize("tied", [True, False])
def test_embedding_and_output_layer(tmp_path: Path, tied: bool) -> None:
    model = write_llama(tmp_path / "model", tie_word_embeddings=tied, **WIDE)
    file = write_gguf(model, tmp_path / "m.gguf", "Q8_0")
    config, kernels = describe_model(str(file)), select_kernels()
    loaded = load_model(config, torch.float32, 64, kernels)
    dense = load_model(replace(config, storage="plain"), torch.float32, 64, kernels)
    assert isinstance(loaded, Decoder)
    assert isinstance(dense, Decoder)
    assert torch.equal(loaded.embedding.numbers(torch.float32), dense.embedding.numbers(torch.float32))
    states = torch.randn(3, 256, generator=torch.Generator().manual_seed(0))
    found, expected = loaded.logits(states), dense.logits(states)
    assert (found - expected).std() < 0.01 * expected.std()


def test_a_mixed_file_completes_alike_whoever_drafts(tmp_path: Path) -> None:
    def kind(name: str) -> str:
        return {"q_proj": "Q4_0", "v_proj": "Q8_0", "down_proj": "Q5_1"}.get(name.split(".")[-2], "Q4_1")

    file = write_gguf(find_model("tiny-code"), tmp_path / "q.gguf", kind, pre="ufakzeka")
    plain = LLM(file, max_model_len=128, speculative_config=None)
    expected = completed_code(plain, 24)
    assert "/bfloat16+Q4_0+Q4_1+Q5_1+Q8_0+int8x32/" in plain.numerics_id
    for options in (
        {"lengths": "fixed", "method": "ngram"},
        {"lengths": "fixed", "method": "draft_model", "model": "tiny-code-draft"},
        {"lengths": "fixed", "method": "eagle3", "model": "tiny-code-eagle3"},
        {"lengths": "fixed", "method": "eagle", "model": "tiny-code-eagle"},
        {"lengths": "fixed", "method": "medusa", "model": "tiny-code-medusa"},
    ):
        llm = LLM(file, max_model_len=128, max_num_batched_tokens=24, speculative_config=options)
        assert completed_code(llm, 24) == expected
        assert llm.engine.stats.emitted > llm.engine.stats.steps


def test_dequantize_is_another_arithmetic(tmp_path: Path) -> None:
    file = write_gguf(write_llama(tmp_path / "model"), tmp_path / "m.gguf", "Q4_0")
    kept, unpacked = (LLM(file, dequantize=flag, speculative_config=None).numerics_id for flag in (False, True))
    assert "/bfloat16+Q4_0+int8x32/" in kept
    assert "/bfloat16/" in unpacked


_WIDTHS = {"mixtral": "intermediate_size", "qwen3moe": "moe_intermediate_size"}


@pytest.mark.parametrize("family", _WIDTHS)
def test_stacked_experts(tmp_path: Path, family: str) -> None:
    sizes = {"hidden_size": 64, _WIDTHS[family]: 64}
    model = write_family(tmp_path / "model", family, **VARIANTS[family] | sizes)
    convert(model, tmp_path / "m.gguf", "Q8_0")
    file = tmp_path / "m.gguf"
    names = stored_kinds(describe_model(str(file)))
    assert any("experts" in name for name in names)
    found, expected = logits_of(file, torch.float32), logits_of(file, torch.float32, storage="plain")
    assert not torch.equal(found, expected)
    assert (found - expected).std() < 0.2 * expected.std()  # now and then a row goes to another expert


@pytest.mark.parametrize(
    ("storage", "noise", "share", "name"),
    [("int8", 0.05, 0.6, "Q8_0-made"), ("int4", 0.3, 0.45, "Q4_1-made+Q8_0-made")],
)
def test_a_plain_model_in_fewer_bits(storage: Made, noise: float, share: float, name: str) -> None:
    """Nearly the model that it was, in less memory, with the same tokens whoever drafts."""
    target, head = find_model("tiny-code"), {"lengths": "fixed", "method": "eagle3", "model": "tiny-code-eagle3"}
    stored: tuple[Storage, ...] = (storage, "plain")
    found, expected = (logits_of(target, torch.bfloat16, storage=each) for each in stored)
    assert not torch.equal(found, expected)
    assert (found - expected).std() < noise * expected.std()
    config = describe_model("tiny-code")
    few, sixteen = (weight_bytes(replace(config, storage=each), torch.bfloat16) for each in stored)
    assert few < share * sixteen
    plain = LLM("tiny-code", quantization=storage, max_model_len=128, speculative_config=None)
    assert f"/bfloat16+{name}+int8x32/" in plain.numerics_id
    texts = completed_code(plain, 24)
    for speculative in ({"lengths": "fixed", "method": "ngram"}, head, {**head, "quantization": None}):
        llm = LLM("tiny-code", quantization=storage, max_model_len=128, speculative_config=speculative)
        assert completed_code(llm, 24) == texts


GUESSING = {
    "eagle3": "tiny-code-eagle3",
    "eagle": "tiny-code-eagle",
    "medusa": "tiny-code-medusa",
    "mlp_speculator": "tiny-code-mlp-speculator",
    "draft_model": "tiny-code-draft",
}


@cache
def plainly() -> list[Any]:
    return completed_code(LLM("tiny-code", max_model_len=128, speculative_config=None), 24)


def emitted_each_step(method: str, quantization: str | None) -> float:
    """Return how many tokens each step emits, which are those of no speculation."""
    own = {"lengths": "fixed", "method": method, "model": GUESSING[method], "quantization": quantization}
    llm = LLM("tiny-code", max_model_len=128, speculative_config=own)
    assert completed_code(llm, 24) == plainly()
    return llm.engine.stats.emitted / llm.engine.stats.steps


@crossed(method=tuple(GUESSING), quantization=("int8", "int4"))
def test_what_guesses_in_fewer_bits_guesses_nearly_as_well(method: str, quantization: str) -> None:
    """And changes no token."""
    share = {"int8": 0.9, "int4": 0.8}[quantization]
    assert emitted_each_step(method, quantization) > share * emitted_each_step(method, None)


def test_eight_bits_made_here_are_not_those_of_a_file(tmp_path: Path) -> None:
    """Rounded once more, weights have other bits, so the numerics id must differ too."""
    file = write_gguf(write_llama(tmp_path / "model"), tmp_path / "m.gguf", "Q8_0")
    ids = {LLM(file, quantization=name, speculative_config=None).numerics_id for name in (None, "gguf", "int8")}
    assert len(ids) == 2


def test_contradictory_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="dequantize and quantization='int8' contradict each other"):
        LLM("tiny-code", dequantize=True, quantization="int8")
    with pytest.raises(ConfigError, match="quantization"):
        LLM("tiny-code", quantization="int3")
    with pytest.raises(ConfigError, match=r"quantization='awq', but .* is not quantised; leave it out"):
        LLM("tiny-code", quantization="awq")
    with pytest.raises(ConfigError, match=r"load_format='gguf', but .* is read as safetensors; leave it out"):
        LLM("tiny-code", load_format="gguf")
    with pytest.raises(ConfigError, match="load_format"):
        LLM("tiny-code", load_format="npz")
    LLM("tiny-code", load_format="safetensors", speculative_config=None)
    with pytest.raises(ConfigError, match="quantization"):
        LLM("tiny-code", speculative_config={"method": "eagle3", "model": "tiny-code-eagle3", "quantization": "int3"})
