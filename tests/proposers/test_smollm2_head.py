"""The head in `heads/` is one for its target's shape, and whole; what it is worth is measured, not tested."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from parlay.config import SpeculativeConfig
from parlay.models.select import describe_model
from parlay.proposers.base import TargetInfo
from parlay.proposers.select import make_proposer, resolve_method

HEAD = Path(__file__).parents[2] / "heads" / "smollm2-eagle3"
TARGET = {  # SmolLM2-135M-Instruct
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
}


def test_it_fits_its_target(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TARGET))
    config = describe_model(str(tmp_path))
    settled = resolve_method(SpeculativeConfig(method=None, options={"model": str(HEAD)}))
    assert settled.method == "eagle3"
    make_proposer(settled, TargetInfo(config, torch.bfloat16, config.max_position))


def test_its_tensors_are_whole() -> None:
    tensors, said = load_file(HEAD / "model.safetensors"), json.loads((HEAD / "config.json").read_text())
    tokens = tensors["d2t"] + torch.arange(said["draft_vocab_size"])
    assert torch.equal(tensors["t2d"].nonzero()[:, 0], tokens)
    assert tensors["lm_head.weight_shape"].tolist() == [said["draft_vocab_size"], said["hidden_size"]]
    assert tensors["lm_head.weight_packed"].shape == (said["draft_vocab_size"], said["hidden_size"] // 8)
    assert all(t.isfinite().all() for t in tensors.values() if t.is_floating_point())
