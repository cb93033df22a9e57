"""GGUF files that parlay reads and does not write, tensor by tensor as llama.cpp's converters make them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from families import write_family
from gguf import GGUFWriter
from gguf_files import add_keys, finish, interleave, tokenizer_keys
from pieces import logits_in_pieces, make_runner, random_tokens
from safetensors.torch import load_file
from torch import Tensor
from towers import write_tower

from parlay import ModelError
from parlay.models.select import describe_model

INNER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.gate_proj": "attn_gate",
    "self_attn.sinks": "attn_sinks.weight",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "block_sparse_moe.router": "ffn_gate_inp",
    "block_sparse_moe.experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "block_sparse_moe.experts.down_proj": "ffn_down_exps.weight",
    "shared_mlp.input_linear": "ffn_up_shexp",
    "shared_mlp.output_linear": "ffn_down_shexp",
}
OUTER = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}


def keys_of(arch: str, config: dict[str, Any], **more: Any) -> dict[str, Any]:
    keys = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": 16,
        "attention.value_length": 16,
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in config["layer_types"]],
        "rope.freq_base": float(config["rope_parameters"]["rope_theta"]),
        "rope.dimension_count": 16,
        **more,
    }
    return {f"{arch}.{key}": value for key, value in keys.items()}


def write(path: Path, arch: str, keys: dict[str, Any], tensors: Iterator[tuple[str, Tensor]]) -> Path:
    writer = GGUFWriter(path, arch)
    add_keys(writer, keys, {})
    for name, tensor in tensors:
        writer.add_tensor(name, tensor.contiguous().numpy())
    finish(writer)
    return path


def filed(model: Path, config: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield a model's tensors by their names in a file, rotary rows in pairs."""
    heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
    for name, tensor in load_file(model / "model.safetensors").items():
        layer = re.search(r"layers\.(\d+)\.(.+?)(\.weight)?$", name)
        if "vision" in name:
            continue
        if layer is None:
            yield OUTER[name.removesuffix(".weight").split(".")[-1]] + ".weight", tensor
            continue
        inner = layer[2]
        if rotary := re.search(r"self_attn\.([qk])_proj", inner):
            tensor = interleave(tensor, heads[rotary[1]])
        part = "ffn_norm" if inner == "post_attention_layernorm" and "sinks" in config else INNER[inner]
        yield f"blk.{layer[1]}.{part}{'' if part.endswith('.weight') else '.weight'}", tensor


def glimmer(model: Path, path: Path, **more: Any) -> Path:
    """Write norms of layers plus one, and norms of queries that have the factor on queries as their weights."""
    config = json.loads((model / "config.json").read_text())["text_config"]
    keys = keys_of(
        "muse-glimmer", config, logit_scale=config["output_multiplier"], final_logit_softcapping=20.0, **more
    )

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in filed(model, config):
            norm = name.startswith("blk.") and "norm" in name
            yield name, tensor + 1 if norm else tensor
        for i in range(config["num_hidden_layers"]):
            yield f"blk.{i}.attn_q_norm.weight", torch.full((16,), config["qk_scale_factor"])
            yield f"blk.{i}.attn_k_norm.weight", torch.ones(16)

    return write(path, "muse-glimmer", {**keys, **tokenizer_keys(model, "gpt-2")}, tensors())


def same_logits(model: Path, file: Path) -> None:
    expected, found = (logits_in_pieces(make_runner(path), random_tokens(), [33]) for path in (model, file))
    assert expected.std() > 0.3
    assert torch.equal(found, expected)


def test_muse_glimmer(tmp_path: Path) -> None:
    write_tower(tmp_path / "model", "muse_glimmer", num_hidden_layers=8)
    same_logits(tmp_path / "model", glimmer(tmp_path / "model", tmp_path / "model.gguf"))


@pytest.mark.parametrize(
    ("part", "column", "message"),
    [
        ("attn_q_norm", 3, "the norms of queries must have one weight, for all columns of all layers"),
        ("attn_k_norm", 0, "'blk.2.attn_k_norm.weight' must hold ones"),
    ],
)
def test_norms_with_weights_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, column: int, message: str
) -> None:
    write_tower(tmp_path / "model", "muse_glimmer")
    add = GGUFWriter.add_tensor

    def changed(writer: GGUFWriter, name: str, data: Any, **more: Any) -> None:
        if name == f"blk.2.{part}.weight":
            data[column] += 0.5
        add(writer, name, data, **more)

    monkeypatch.setattr(GGUFWriter, "add_tensor", changed)
    file = glimmer(tmp_path / "model", tmp_path / "model.gguf")
    with pytest.raises(ModelError, match=message):
        describe_model(str(file))


@pytest.mark.parametrize("shared", [0, 48])
def test_granite_with_windows_and_experts(tmp_path: Path, shared: int) -> None:
    """The gates and ups of experts are one tensor, and those of the shared one are called its up."""
    model = write_family(tmp_path / "model", "granitemoeswa", shared_intermediate_size=shared)
    config = json.loads((model / "config.json").read_text())
    own = {
        "attention.scale": config["attention_multiplier"],
        "embedding_scale": float(config["embedding_multiplier"]),
        "residual_scale": config["residual_multiplier"],
        "logit_scale": float(config["logits_scaling"]),
        "expert_count": config["num_local_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_shared_feed_forward_length": shared or None,
    }
    keys = {**keys_of("granite_swa", config, **own), **tokenizer_keys(model, "gpt-2")}
    same_logits(model, write(tmp_path / "model.gguf", "granite_swa", keys, filed(model, {**config, "sinks": True})))


@pytest.mark.parametrize("rows", [4, 64])
def test_lagunas_gate_is_by_head_or_column(tmp_path: Path, rows: int) -> None:
    """No key says so, but the number of rows does."""
    from parlay.models.export.gguf import export

    name = "laguna" if rows == 4 else "laguna-columns"
    model = write_family(tmp_path / "model", name, mlp_layer_types=None)
    config = describe_model(str(export(model, tmp_path / "model.gguf", "f16").path))
    gate = config.style.output_gate
    assert gate is not None
    assert gate.by_head == (rows == 4)


def test_lagunas_layers_where_a_file_does_not_list_them(tmp_path: Path) -> None:
    """llama.cpp's converter writes no pattern: every fourth layer sees all, from the first on."""
    from parlay.models.export import gguf as exporting

    kinds = ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"] * 2
    model = write_family(tmp_path / "model", "laguna", num_hidden_layers=8, layer_types=kinds, mlp_layer_types=None)
    with pytest.MonkeyPatch.context() as patch:
        metadata = exporting.metadata
        patch.setattr(
            exporting,
            "metadata",
            lambda *given, **more: {k: v for k, v in metadata(*given, **more).items() if "pattern" not in k},
        )
        file = exporting.export(model, tmp_path / "model.gguf", "f16").path
    assert describe_model(str(file)).style.windows == describe_model(str(model)).style.windows
