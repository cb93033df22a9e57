"""Heads whose checkpoints hold matrices of few bits: read as they are stored, and no token of the target changes."""

import json
from pathlib import Path

import pytest
import torch
from checkpoints import write_llama
from eagles import eagle_config, random_eagle, write
from heads import mlp_config, random_medusa, random_mlp, write_head, write_medusa
from quantise_head import in_eight_bits, in_four_bits
from quantise_head import main as quantise_head
from safetensors.torch import load_file, save_file
from torch import Tensor

from parlay import LLM, SamplingParams
from parlay.checkpoints.loader import Checkpoint
from parlay.errors import ModelError


def write_plain(kind: str, path: Path) -> Path:
    if kind == "medusa":
        return write_medusa(path, random_medusa(), "medusa_lm_head.safetensors")
    if kind == "mlp_speculator":
        config = mlp_config()
        return write_head(path, config, random_mlp(config))
    config = eagle_config()
    return write(path, config, random_eagle(config))


def unpacked(words: Tensor, scales: Tensor) -> Tensor:
    """Return the numbers of `pack-quantized` matrices, one nibble after another."""
    levels = torch.stack([(words >> shift & 15) - 8 for shift in range(0, 32, 4)], 2).reshape(len(words), -1)
    return levels * scales.float().repeat_interleave(levels.shape[1] // scales.shape[1], 1)


@pytest.mark.parametrize("kind", ["eagle", "medusa", "mlp_speculator"])
@pytest.mark.parametrize("bits", [8, 4])
def test_a_head_of_few_bits(kind: str, bits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, plain, few = write_llama(tmp_path / "target"), write_plain(kind, tmp_path / "plain"), tmp_path / "few"
    monkeypatch.setattr("sys.argv", ["quantise_head.py", str(plain), str(few), "--bits", str(bits)])
    quantise_head()
    (file,) = few.glob("*.safetensors")
    stored, part = load_file(file), "weight" if bits == 8 else "weight_packed"
    matrices = [
        name.removesuffix(part)
        for name in stored
        if name.endswith(part) and f"{name.removesuffix(part)}weight_scale" in stored
    ]
    with Checkpoint(few, head=True) as read, Checkpoint(plain, head=True) as before:
        assert read.names == before.names
        for base in matrices:
            packed, scales = stored[base + part], stored[base + "weight_scale"]
            expected = packed * scales if bits == 8 else unpacked(packed, scales)
            found, was = read.read(base + "weight"), before.read(base + "weight").float()
            assert torch.allclose(found, expected, rtol=1e-6)
            assert (found - was).abs().max() <= was.abs().max() / (2 ** (bits - 1) - 1)
        assert matrices

    def tokens(head: Path | None) -> object:
        speculative = {"lengths": "fixed", "method": kind, "model": str(head)} if head else None
        llm = LLM(str(target), speculative_config=speculative, max_model_len=64)
        outputs = llm.generate([[1, 2, 3], [7, 8]], SamplingParams(max_tokens=12, seed=3, ignore_eos=True))
        assert not head or all(output.metrics.drafted for output in outputs)
        return [output.outputs[0].token_ids for output in outputs]

    assert tokens(few) == tokens(None)


def test_beside_a_quantised_target_a_plain_head_is_plain(tmp_path: Path) -> None:
    """The config in its directory is the target's then."""
    path = write_plain("medusa", tmp_path)
    (path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "unheard of"}}))
    with Checkpoint(path, head=True) as head:
        assert not any(head.quantised(name) for name in head.names)


def test_scales_without_a_config_are_refused(tmp_path: Path) -> None:
    path = write_plain("eagle", tmp_path)
    file, config = path / "model.safetensors", json.loads((path / "config.json").read_text())
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith("down_proj.weight"))
    few = {name.removesuffix("weight") + part: own for part, own in in_eight_bits(tensors.pop(name)).items()}
    save_file(tensors | few, file)
    assert "quantization_config" not in config
    with pytest.raises(ModelError, match="weight_scale"):
        LLM(str(write_llama(tmp_path / "target")), speculative_config={"model": str(path)})


def test_rows_of_zeros_stay_zeros() -> None:
    for convert in (in_eight_bits, in_four_bits):
        parts = convert(torch.zeros(2, 64))
        assert all(t.isfinite().all() for t in parts.values())
        assert (parts["weight_scale"] != 0).all()
