"""GGUF files whose layers with a window have sizes of their own, tensor by tensor as llama.cpp's converter does."""

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from families import write_family
from gguf_files import ARCHES, add_keys, finish, tokenizer_keys
from mtp_layers import write_mtp
from pieces import logits_of
from safetensors.torch import load_file, save_file
from torch import Tensor

from parlay import ModelError
from parlay.models.rotary import llama3_divisors
from parlay.models.select import describe_model, mtp_layers

NEXT = 3  # layers for further tokens
# What the package's table does not have of llama.cpp's own.
NEWER = {
    "final_layernorm": "layer_output_norm",
    "self_attn.qkv_proj": "attn_qkv",
    "shared_head.norm": "nextn.shared_head_norm",
    "shared_head.head": "nextn.shared_head_head",
    **{part: f"nextn.{part}" for part in ("eh_proj", "enorm", "hnorm")},
}


def convert(
    model: Path,
    path: Path,
    arch: str,
    keys: dict[str, Any],
    *,
    fused: bool = False,
    more: dict[str, Tensor] | None = None,
) -> Path:
    """Write a file with `more` tensors; `fused` puts each layer's queries, keys and values behind one another."""
    config = json.loads((model / "config.json").read_text())
    layers, stacks = config["num_hidden_layers"], dict[str, list[Tensor]]()
    table = gguf.get_tensor_name_map(ARCHES[arch], layers + NEXT)
    writer = gguf.GGUFWriter(path, arch)
    common = {
        "block_count": layers,
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.key_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "attention.sliding_window": config["sliding_window"],
    }
    add_keys(
        writer, {f"{arch}.{key}": value for key, value in (common | keys).items()}, tokenizer_keys(model, "gpt-2")
    )
    named = load_file(model / "model.safetensors")
    for name in sorted(named, key=lambda name: [int(x) if x.isdigit() else x for x in name.split(".")]):
        own = re.sub(r"mtp\.layers\.(\d+)", lambda found: f"layers.{layers + int(found[1])}", name)
        own = own.replace("sink_bias", "sink_bias.weight").replace(
            "e_score_correction_bias", "e_score_correction.bias"
        )
        own = own.replace("router_bias", "router_bias.bias").replace(".transformer.", ".").replace(".output", ".head")
        own = re.sub(r"experts\.\d+", "experts", own)
        if fused and (letter := re.search(r"self_attn\.([qkv])_proj", own)):
            own = own.replace(letter[0], "self_attn.qkv_proj")
        newer = re.sub(
            r"model\.layers\.(\d+)\.(.+)\.weight", lambda found: f"blk.{found[1]}.{NEWER.get(found[2])}.weight", own
        )
        known = table.get_name(own, try_suffixes=(".weight", ".bias")) or newer
        stacks.setdefault(known, []).append(named[name] + (arch == "step35" and own.endswith("norm.weight")))
    for name, tensors in stacks.items():
        joined = torch.cat([tensors[i] for i in (1, 0, 2)] if "attn_qkv" in name else tensors)
        whole = joined if len(tensors) == 1 or "attn_qkv" in name else torch.stack(tensors)
        writer.add_tensor(name, np.ascontiguousarray(whole.float().numpy()))
    for name, tensor in (more or {}).items():
        writer.add_tensor(name, tensor.numpy())
    finish(writer)
    return path


def mimo(model: Path, path: Path, *, further: int = 0, fused: bool = False, **more: Any) -> Path:
    config = json.loads((model / "config.json").read_text())
    near = [int(kind == "sliding_attention") for kind in config["layer_types"]] + [1] * further
    rotary = config["rope_parameters"]
    keys = {
        "block_count": len(near),
        "nextn_predict_layers": further or None,
        "attention.head_count_kv": [config["num_key_value_heads"] * (1 + window) for window in near],
        "attention.sliding_window_pattern": near,
        "attention.value_length": config["v_head_dim"],
        "attention.value_scale": config["attention_value_scale"],
        "expert_count": config["n_routed_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "rope.dimension_count": int(config["head_dim"] * 0.334),
        "rope.freq_base": rotary["full_attention"]["rope_theta"],
        "rope.freq_base_swa": rotary["sliding_attention"]["rope_theta"],
    }
    return convert(model, path, "mimo2", keys | more, fused=fused)


@pytest.mark.parametrize("fused", [False, True])
def test_mimo(tmp_path: Path, *, fused: bool) -> None:
    """With its layers for further tokens, which are like those with a window; values behind keys may be narrower."""
    model = write_mtp(tmp_path / "model", "mimov2flash", layers=NEXT, calm=0.3)
    file = mimo(model, tmp_path / "model.gguf", further=NEXT, fused=fused)
    for dtype in (torch.float32, torch.bfloat16):
        expected = logits_of(model, dtype)
        assert expected.std() > 0.1
        assert torch.equal(logits_of(file, dtype), expected)
    assert_same_layers(file, model)


def assert_same_layers(file: Path, model: Path) -> None:
    """For further tokens."""
    ours, theirs = (mtp_layers(describe_model(str(path))) for path in (file, model))
    for found, known in zip(ours, theirs, strict=True):
        assert found.config.style == known.config.style
        with found.open("plain") as read, known.open("plain") as given:
            for name in known.shapes():
                own = name.replace(known.names.layer, found.names.layer)
                own = {getattr(known.names, key): getattr(found.names, key) for key in KEYS}.get(name, own)
                assert torch.equal(read.read(own), given.read(name)), name


KEYS = "join", "token_norm", "state_norm", "norm", "head"


def test_step(tmp_path: Path) -> None:
    """Norms plus one, and frequencies' divisors of the layers without a window, where half of the columns turn."""
    model = write_mtp(tmp_path / "model", "step3p5", layers=NEXT, calm=0.3)
    weights = load_file(model / "model.safetensors")
    exact = {name: t + 1 - 1 if name.endswith("norm.weight") else t for name, t in weights.items()}
    save_file(exact, model / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((model / "config.json").read_text())
    near = [kind == "sliding_attention" for kind in config["layer_types"]] + [True] * NEXT
    rotary = config["rope_parameters"]
    keys = {
        "block_count": len(near),
        "nextn_predict_layers": NEXT,
        "attention.head_count": [(4, 6)[window] for window in near],
        "attention.head_count_kv": [2] * len(near),
        "attention.sliding_window_pattern": near,
        "attention.value_length": 16,
        "expert_count": config["n_routed_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_feed_forward_length": config["share_expert_dim"],
        "expert_weights_scale": config["moe_router_scaling_factor"],
        "leading_dense_block_count": 2,
        "swiglu_clamp_exp": [float(each or 0) for each in config["swiglu_limits"]] + [0.0] * NEXT,
        "swiglu_clamp_shexp": config["swiglu_limits_shared"] + [0.0] * NEXT,
        "rope.freq_base": rotary["full_attention"]["rope_theta"],
        "rope.freq_base_swa": rotary["sliding_attention"]["rope_theta"],
    }
    divisors = torch.cat((llama3_divisors(describe_model(str(model)).rotary, 8), torch.ones(4)))
    file = convert(model, tmp_path / "model.gguf", "step35", keys, more={"rope_freqs.weight": divisors})
    for dtype in (torch.float32, torch.bfloat16):
        expected = logits_of(model, dtype)
        assert expected.std() > 0.1
        assert torch.equal(logits_of(file, dtype), expected)
    assert_same_layers(file, model)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"attention.head_count_kv": [1, 2, 1, 1]},
            "attention.head_count_kv differs among layers that have a window",
        ),
        ({"attention.head_count_kv": [1, 2]}, "attention.head_count_kv differs among layers that have a window"),
    ],
)
def test_lists_that_do_not_fit(tmp_path: Path, more: dict[str, Any], message: str) -> None:
    model = write_family(tmp_path / "model", "mimov2flash")
    with pytest.raises(ModelError, match=re.escape(message)):
        describe_model(str(mimo(model, tmp_path / "model.gguf", **more)))
