"""Logits against the transformers library, however the tokens are cut up."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import write_llama
from safetensors.torch import load_file, save_file
from torch import Tensor

from parlay.kernels.select import select_kernels
from parlay.models.select import describe_model, load_model
from parlay.runner.batch import Stretch, flatten
from parlay.runner.runner import ModelRunner

LENGTH = 70
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
SHAPES: dict[str, dict[str, Any]] = {
    "grouped": {},
    "tied": {"tie_word_embeddings": True},
    "one_key_head": {"num_key_value_heads": 1},
    "all_key_heads": {"num_key_value_heads": 4},
    "no_key_head_count": {"num_key_value_heads": None},
    "wide_heads": {"head_dim": 32},
    "default_head_dim": {"head_dim": None},
    "llama3": {"rope_scaling": LLAMA3, "rope_theta": 500000.0},
    "llama3_transformers5": {"rope_parameters": {**LLAMA3, "rope_theta": 500000.0}, "rope_theta": None},
    "theta_transformers5": {"rope_parameters": {"rope_type": "default", "rope_theta": 777.0}, "rope_theta": None},
    "old_type_key": {"rope_scaling": {**{k: v for k, v in LLAMA3.items() if k != "rope_type"}, "type": "llama3"}},
}


def runner_of(path: Path, dtype: torch.dtype = torch.float32, kernels: str | None = None) -> ModelRunner:
    chosen = select_kernels(force=kernels)
    return ModelRunner(load_model(describe_model(str(path)), dtype, 256, chosen), chosen, 16, 16)


def logits_in_pieces(runner: ModelRunner, tokens: list[int], cuts: list[int]) -> Tensor:
    """Return the logits of all rows, computed in pieces that end at `cuts`."""
    blocks = tuple(range(15, -1, -1))
    parts = []
    for start, end in zip([0, *cuts], [*cuts, len(tokens)], strict=True):
        hidden = runner.forward(flatten([Stretch(tokens[start:end], start, blocks)], runner.block_size))
        parts.append(runner.logits(hidden, range(end - start)))
    return torch.cat(parts)


def tokens_of(seed: int = 0, length: int = LENGTH) -> list[int]:
    return torch.randint(0, 257, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def reference(path: Path, tokens: list[int]) -> Tensor:
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0]


@pytest.mark.parametrize("shape", SHAPES)
def test_equal_to_transformers(tmp_path: Path, shape: str) -> None:
    path = write_llama(tmp_path / shape, **SHAPES[shape])
    tokens = tokens_of()
    expected = reference(path, tokens)
    assert expected.std() > 0.5
    for cuts in ([], [1, 2, 30, 47, 48], list(range(1, LENGTH))):
        found = logits_in_pieces(runner_of(path), tokens, cuts)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_the_reference_kernels_too(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "model", rope_scaling=LLAMA3)
    tokens = tokens_of()
    found = logits_in_pieces(runner_of(path, kernels="reference"), tokens, [33])
    torch.testing.assert_close(found, reference(path, tokens), atol=1e-4, rtol=0)


def test_llama3_scaling_is_no_detail(tmp_path: Path) -> None:
    """At these positions the scaling moves logits far beyond the tolerance."""
    plain, scaled = write_llama(tmp_path / "a"), write_llama(tmp_path / "b", rope_scaling=LLAMA3)
    tokens = tokens_of()
    a, b = (logits_in_pieces(runner_of(path), tokens, []) for path in (plain, scaled))
    assert (a - b).abs().max() > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_pieces_give_the_same_bits(tmp_path: Path, dtype: torch.dtype) -> None:
    path = write_llama(tmp_path / "model", dtype=dtype)
    tokens = tokens_of(1)
    whole = logits_in_pieces(runner_of(path, dtype), tokens, [])
    for cuts in ([1], [69], list(range(7, LENGTH, 7)), list(range(1, LENGTH))):
        assert torch.equal(logits_in_pieces(runner_of(path, dtype), tokens, cuts), whole)


def test_bfloat16_is_near(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "model", dtype=torch.bfloat16)
    tokens = tokens_of(2)
    found = logits_in_pieces(runner_of(path, torch.bfloat16), tokens, [])
    expected = reference(path, tokens)
    assert found.dtype is torch.float32
    assert (found - expected).pow(2).mean().sqrt() < 0.03 * expected.std()


def test_shards_give_the_same_bits(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "model")
    tokens = tokens_of(3)
    whole = logits_in_pieces(runner_of(path), tokens, [])
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    names = sorted(tensors)
    weight_map = {name: f"model-{i % 3 + 1:05}-of-00003.safetensors" for i, name in enumerate(names)}
    for file in set(weight_map.values()):
        save_file({n: tensors[n] for n in names if weight_map[n] == file}, path / file, metadata={"format": "pt"})
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    assert torch.equal(logits_in_pieces(runner_of(path), tokens, []), whole)
    torch.testing.assert_close(whole, reference(path, tokens), atol=1e-4, rtol=0)
