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
from safetensors.torch import load_file
from torch import Tensor

from parlay import ModelError
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


def convert(model: Path, path: Path, arch: str, keys: dict[str, Any], *, fused: bool) -> Path:
    """Write a file; `fused` puts each layer's queries, keys and values behind one another."""
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
        own = re.sub(r"experts\.\d+", "experts", own)
        if fused and (letter := re.search(r"self_attn\.([qkv])_proj", own)):
            own = own.replace(letter[0], "self_attn.qkv_proj")
        newer = re.sub(
            r"model\.layers\.(\d+)\.(.+)\.weight", lambda found: f"blk.{found[1]}.{NEWER.get(found[2])}.weight", own
        )
        known = table.get_name(own, try_suffixes=(".weight", ".bias")) or newer
        stacks.setdefault(known, []).append(named[name])
    for name, tensors in stacks.items():
        joined = torch.cat([tensors[i] for i in (1, 0, 2)] if "attn_qkv" in name else tensors)
        whole = joined if len(tensors) == 1 or "attn_qkv" in name else torch.stack(tensors)
        writer.add_tensor(name, np.ascontiguousarray(whole.float().numpy()))
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
    ours, theirs = (mtp_layers(describe_model(str(path))) for path in (file, model))
    for found, known in zip(ours, theirs, strict=True):
        assert found.config.style == known.config.style
        with found.open("plain") as read, known.open("plain") as given:
            for name in known.shapes():
                own = name.replace(known.names.layer, found.names.layer)
                own = {getattr(known.names, key): getattr(found.names, key) for key in KEYS}.get(name, own)
                assert torch.equal(read.read(own), given.read(name)), name


KEYS = "join", "token_norm", "state_norm", "norm"


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
