"""What is told while weights are loaded: ever more bytes, and at the end exactly all of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import write_llama
from gguf_files import write_gguf

from parlay import ModelError
from parlay.checkpoints.loader import Checkpoint
from parlay.config import EngineConfig, SpeculativeConfig
from parlay.engine.engine import Engine
from parlay.engine.load_progress import LoadProgress
from parlay.kernels.select import select_kernels
from parlay.models.select import describe_as, load_model, weight_shapes
from parlay.types.progress import Progress

Make = Callable[[Path], Path]


def safetensors(path: Path) -> Path:
    return write_llama(path / "model", dtype=torch.bfloat16)


def tied(path: Path) -> Path:
    return write_llama(path / "model", tie_word_embeddings=True)


def gguf(path: Path) -> Path:
    return write_gguf(safetensors(path), path / "model.gguf", "Q8_0")


def bits(path: Path) -> Path:
    model = safetensors(path)
    tensors = {}
    with Checkpoint(model) as weights:
        for name in weights.names:
            tensors[name] = weights.read(name)
    torch.save(tensors, model / "pytorch_model.bin")
    (model / "model.safetensors").unlink()
    return model


CASES: list[tuple[Make, dict[str, Any], Any, list[str]]] = [
    (safetensors, {}, None, ["model"]),
    (tied, {}, None, ["model"]),
    (bits, {}, None, ["model"]),
    (gguf, {}, None, ["model.gguf"]),
    (gguf, {"dequantize": True}, None, ["model.gguf"]),
    (safetensors, {"quantization": "int8"}, None, ["model as int8"]),
    (safetensors, {"quantization": "int4"}, None, ["model as int4"]),
    (safetensors, {}, {"method": "self"}, ["model", "weights of self"]),
    (safetensors, {}, {"method": "draft_model"}, ["model", "weights of draft_model"]),
    (safetensors, {}, {"method": "ngram"}, ["model"]),
]


@pytest.mark.parametrize(("make", "options", "speculative", "names"), CASES)
def test_bytes_grow_until_all_are_there(
    make: Make, options: dict[str, Any], speculative: Any, names: list[str], tmp_path: Path
) -> None:
    told: list[Progress] = []
    if speculative == {"method": "draft_model"}:
        speculative = {**speculative, "model": str(write_llama(tmp_path / "draft", seed=3))}
    config = EngineConfig(model=f"{make(tmp_path)}", num_blocks=64, **options)
    engine = Engine(config, SpeculativeConfig.parse(speculative), told.append)
    done = [one.done for one in told]
    assert done[0] == 0
    assert len(done) > 20, "tensor by tensor"
    assert done == sorted(set(done))
    assert done[-1] == engine.memory.weights
    assert {one.total for one in told} == {engine.memory.weights}
    assert list(dict.fromkeys(one.what for one in told)) == names


@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
@pytest.mark.parametrize("make", [safetensors, gguf, bits])
def test_every_tensor_is_told_of_in_the_bytes_that_it_takes(make: Make, quantization: Any, tmp_path: Path) -> None:
    path = make(tmp_path)
    storage = quantization or "stored"
    config = describe_as(path, storage)
    told: list[int] = []
    load_model(config, torch.bfloat16, 64, select_kernels("cpu"), on_read=told.append)
    shapes = weight_shapes(config)
    with Checkpoint(path, storage=storage) as weights:
        norms = [name for name in shapes if "norm" in name]
        assert sum(told) == weights.size(shapes, torch.bfloat16, norms)
    assert len(told) == len(shapes)


def test_a_broken_model_is_told_of_as_far_as_it_came(tmp_path: Path) -> None:
    path = safetensors(tmp_path)
    data = bytearray((path / "model.safetensors").read_bytes())
    data[-64:] = b"\xff" * 64  # of the last tensor
    (path / "model.safetensors").write_bytes(data)
    told: list[Progress] = []
    with pytest.raises(ModelError, match="not numbers"):
        Engine(EngineConfig(model=str(path), num_blocks=64), None, told.append)
    assert told
    assert told[-1].done < told[-1].total


def test_many_small_tensors_are_told_of_in_steps() -> None:
    told: list[Progress] = []
    loading = LoadProgress(EngineConfig(model="owner/name/"), 100_000, told.append)
    with loading.target(100_000) as on_read:
        for _ in range(99_990):
            on_read(1)
    assert 400 < len(told) < 600
    assert told[0] == Progress("name", 0, 100_000)
    assert told[-1] == Progress("name", 100_000, 100_000)


def test_more_than_was_announced_is_not_told() -> None:
    told: list[Progress] = []
    loading = LoadProgress(EngineConfig(), 10, told.append)
    with loading.target(10) as on_read:
        on_read(8)
        on_read(8)
    assert [one.done for one in told] == [0, 8, 10]
