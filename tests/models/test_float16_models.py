"""Checkpoints in float16: none of their bits is lost, and none of their bytes is doubled."""

from pathlib import Path

import pytest
import torch
from asking import assert_same, half_repeating, run
from checkpoints import write_llama
from crossing import crossed
from gguf_files import write_gguf
from safetensors.torch import load_file, save_file

from parlay import LLM, ConfigError
from parlay.models.select import describe_model, resolve_dtype
from parlay.runner.footprint import weight_bytes


def stored(path: Path, form: str, *, tied: bool) -> Path:
    """Write a model in float16 as safetensors, `.bin` or GGUF."""
    model = write_llama(path / "model", dtype=torch.float16, tie_word_embeddings=tied)
    file = model / "model.safetensors"
    if form == "bin":
        torch.save(load_file(file), model / "pytorch_model.bin")
        file.unlink()
    return write_gguf(model, path / "model.gguf", "F16") if form == "gguf" else model


def widened(path: Path, *, tied: bool) -> Path:
    """Write the same model with the same numbers in float32."""
    model = write_llama(path / "wide", dtype=torch.float16, tie_word_embeddings=tied)
    file = model / "model.safetensors"
    save_file({name: tensor.float() for name, tensor in load_file(file).items()}, file)
    config = model / "config.json"
    config.write_text(config.read_text("utf-8").replace("float16", "float32"), "utf-8")
    return model


@crossed(form=("safetensors", "bin", "gguf"), tied=(True, False))
def test_it_answers_as_in_float32(tmp_path: Path, form: str, tied: bool) -> None:
    asks = half_repeating(0.7)[:6]
    expected = run(LLM(widened(tmp_path, tied=tied), max_model_len=128, speculative_config=None), asks)
    path = stored(tmp_path, form, tied=tied)
    for speculative in (None, {"method": "ngram", "prompt_lookup_min": 1, "lengths": "fixed"}):
        llm = LLM(path, max_model_len=128, speculative_config=speculative)
        assert_same(run(llm, asks), expected)
        assert "/float32+F16/" in llm.numerics_id


def test_its_weights_take_what_the_file_does(tmp_path: Path) -> None:
    path = stored(tmp_path, "safetensors", tied=True)
    config = describe_model(str(path))
    matrices = (path / "model.safetensors").stat().st_size
    assert weight_bytes(config, resolve_dtype("auto", config)) < 1.1 * matrices


def test_activations_may_be_bfloat16(tmp_path: Path) -> None:
    asks = half_repeating(0.0)[:4]
    path = stored(tmp_path, "safetensors", tied=False)
    ids = set()
    for dequantize in (False, True):
        llm = LLM(path, dtype="bfloat16", dequantize=dequantize, max_model_len=128, speculative_config=None)
        assert all(answer.token_ids for answer in run(llm, asks))
        ids.add(llm.numerics_id.split("/")[1])
    assert ids == {"bfloat16+F16", "bfloat16"}


def test_float16_is_for_what_is_stored_so(tmp_path: Path) -> None:
    half = stored(tmp_path, "safetensors", tied=False)
    assert (
        LLM(half, dtype="half", max_model_len=64, speculative_config=None).numerics_id.split("/")[1] == "float32+F16"
    )
    with pytest.raises(ConfigError, match=r"dtype 'float16' is not supported for .* is stored as bfloat16; take"):
        LLM("tiny-code", dtype="half")
