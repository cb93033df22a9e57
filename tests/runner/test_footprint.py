"""What weights will take, against what they took."""

import gc
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import FunctionType, ModuleType

import pytest
import torch
from checkpoints import read_config, write_llama
from conftest import MakeLLM, Pair
from crossing import crossed
from families import write_family
from gguf_files import write_gguf
from safetensors.torch import load_file

from parlay import LLM, CapacityError
from parlay.checkpoints.loader import Checkpoint
from parlay.kernels.select import select_kernels
from parlay.models.select import describe_model, load_model
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


def test_files_of_plain_numbers_do_not_matter(models: dict[str, Pair], tmp_path: Path) -> None:
    """Not even whether there are any: the config says it all."""
    path = shutil.copytree(models["float32"].target, tmp_path / "files")
    needed = {dtype: weight_bytes(read_config(path), dtype) for dtype in (torch.float32, torch.bfloat16)}
    gguf = write_gguf(path, tmp_path / "m.gguf", "Q8_0")
    assert gguf.stat().st_size < needed[torch.bfloat16]
    (path / "model.safetensors").unlink()
    for other in (path, gguf):
        for dtype, size in needed.items():
            config = replace(describe_model(str(other)), storage="plain")
            assert weight_bytes(config, dtype) == size


def tensors_of(*roots: object) -> dict[int, int]:
    """Return the sizes of all memory that tensors within some objects hold, by address."""
    seen: set[int] = set()
    sizes: dict[int, int] = {}
    todo = list(roots)
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, type | ModuleType | FunctionType):
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            storage = one.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
        else:
            todo += gc.get_referents(one)
    return sizes


KERNELS = select_kernels()
LENGTH = 32
# A packed weight's outputs are filled up to a multiple of 32: in these models there is nothing to fill.
EVEN = {"vocab_size": 288, "num_hidden_layers": 2}


LATENTS = {
    "q_lora_rank": 64, "kv_lora_rank": 96, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32,
    "moe_intermediate_size": 64, "n_routed_experts": 32, "n_group": 1, "topk_group": 1,
}  # fmt: skip


@crossed(
    kind=["untied", "tied", "GGUF", "float16", "experts", "positions", "latents"],
    dtype=[torch.float32, torch.bfloat16],
)
def test_what_is_really_allocated(tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    if kind == "experts":
        path = write_family(tmp_path / "model", "mixtral", num_local_experts=32, **EVEN)
    elif kind == "latents":
        path = write_family(tmp_path / "model", "deepseekv3", **EVEN, **LATENTS)
    elif kind == "positions":
        path = write_family(tmp_path / "model", "opt", **EVEN)
    else:
        stored = torch.float16 if kind == "float16" else torch.float32
        path = write_llama(tmp_path / "model", dtype=stored, tie_word_embeddings=kind == "tied", **EVEN)
    if kind == "GGUF":
        path = write_gguf(path, tmp_path / "m.gguf", "Q8_0")
    config = describe_model(str(path))
    rotary = 0 if kind == "positions" else LENGTH * int(config.head_dim * config.rotary.partial) * 4
    model = load_model(config, dtype, LENGTH, KERNELS)
    held = sum(tensors_of(model).values()) - sum(tensors_of(KERNELS).values())
    assert held - rotary == weight_bytes(config, dtype)


def unread(*_: object) -> None:
    raise AssertionError("weights were read")


def test_too_large_a_model_is_refused_before_it_is_read(
    models: dict[str, Pair], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only headers were needed: the file's data is gone."""
    path = shutil.copytree(models["float32"].target, tmp_path / "cut")
    file = path / "model.safetensors"
    needed = weight_bytes(read_config(path), torch.float32)
    whole, header = file.stat().st_size, int.from_bytes(file.read_bytes()[:8], "little")
    file.write_bytes(file.read_bytes()[: 8 + header])
    os.truncate(file, whole)
    monkeypatch.setattr(Checkpoint, "read", unread)
    monkeypatch.setattr(Checkpoint, "read_weight", unread)
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
    config = replace(read_config(write_gguf(path, tmp_path / "model.gguf", kind)), storage="plain")
    assert weight_bytes(config, torch.bfloat16) == measured(path, 2)


def test_quantised_matrices_count_as_they_are_stored(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "model")
    shapes = [tuple(tensor.shape) for tensor in load_file(path / "model.safetensors").values()]
    config = read_config(write_gguf(path, tmp_path / "model.gguf", "Q4_0"))
    plain = sum(2 * shape[0] for shape in shapes if len(shape) == 1)
    assert weight_bytes(config, torch.bfloat16) == plain + sum(
        shape[0] * shape[1] // 32 * 18 for shape in shapes if len(shape) == 2
    )
