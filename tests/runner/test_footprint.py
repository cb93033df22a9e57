"""What weights will take, against what they took."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from checkpoints import write_llama
from conftest import MakeLLM, Pair
from gguf_files import write_gguf
from safetensors.torch import load_file, save_file

from parlay import LLM, CapacityError, ModelError
from parlay.models.config import read_config
from parlay.runner.footprint import weight_bytes


def measured(path: Path, itemsize: int) -> int:
    tensors = load_file(path / "model.safetensors")
    return sum(tensor.numel() for tensor in tensors.values()) * itemsize


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_sum_of_all_tensors(models: dict[str, Pair], dtype: torch.dtype) -> None:
    path = models["float32"].target
    assert weight_bytes(read_config(path), dtype) == measured(path, dtype.itemsize)


def test_a_tied_head_is_packed_beside_the_embedding(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "tied", tie_word_embeddings=True)
    config = read_config(path)
    assert weight_bytes(config, torch.float32) == measured(path, 4) + 4 * config.vocab_size * config.hidden_size


def test_shards_count_once_each(models: dict[str, Pair], tmp_path: Path) -> None:
    path = shutil.copytree(models["float32"].target, tmp_path / "sharded")
    whole = weight_bytes(read_config(path), torch.float32)
    tensors = load_file(path / "model.safetensors")
    names = sorted(tensors)
    where = {name: f"part-{i % 2}.safetensors" for i, name in enumerate(names)}
    for file in set(where.values()):
        save_file({n: tensors[n] for n in names if where[n] == file}, path / file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    assert weight_bytes(read_config(path), torch.float32) == whole


@pytest.mark.parametrize(
    "content", [b"", b"short", b"\xff" * 100, b"\x02" + b"\0" * 7 + b"[]", b"\x02" + b"\0" * 7 + b"{}"]
)
def test_what_cannot_be_read_counts_nothing(tmp_path: Path, content: bytes) -> None:
    path = write_llama(tmp_path / "broken")
    (path / "model.safetensors").write_bytes(content)
    assert weight_bytes(read_config(path), torch.float32) == 0
    with pytest.raises(ModelError):
        LLM(str(path))


def test_other_formats_count_as_on_disk(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "other")
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    assert weight_bytes(read_config(path), torch.float32) == (path / "pytorch_model.bin").stat().st_size


def test_too_large_a_model_is_refused_before_it_is_read(
    models: dict[str, Pair], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only headers were needed: the file's data is gone."""
    path = shutil.copytree(models["float32"].target, tmp_path / "cut")
    file = path / "model.safetensors"
    needed = weight_bytes(read_config(path), torch.float32)
    header = int.from_bytes(file.read_bytes()[:8], "little")
    file.write_bytes(file.read_bytes()[: 8 + header])
    monkeypatch.setattr("parlay.env.available_memory", lambda: needed)
    with pytest.raises(CapacityError, match=f"the weights take {needed} bytes"):
        LLM(str(path))


def test_the_drafts_weights_count_too(models: dict[str, Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    pair = models["float32"]
    both = sum(weight_bytes(read_config(path), torch.float32) for path in pair)
    monkeypatch.setattr("parlay.env.available_memory", lambda: both)
    with pytest.raises(CapacityError, match=f"the weights take {both} bytes"):
        LLM(str(pair.target), speculative_config={"model": str(pair.draft)})


def test_a_share_of_memory_gives_a_larger_cache(make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parlay.env.available_memory", lambda: 6 << 20)
    few, many = (
        make_llm(max_num_seqs=1000, **o).engine._pool.num_blocks for o in ({}, {"gpu_memory_utilization": 0.9})
    )
    assert 3 * few < many < 4 * few


@pytest.mark.parametrize("kind", ["F32", "Q4_0"])
def test_gguf_files_count_as_what_they_are_dequantised_to(tmp_path: Path, kind: str) -> None:
    path = write_llama(tmp_path / "model")
    file = write_gguf(path, tmp_path / "model.gguf", kind)
    assert weight_bytes(read_config(file), torch.bfloat16) == measured(path, 2)
