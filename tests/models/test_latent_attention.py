"""Latent attention: what is cached of it, GGUF files of it, and what is refused."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from crossing import crossed
from families import write_family
from gguf import GGUFWriter
from gguf_families import dequantised
from gguf_files import ARCHES, add_keys, add_raw, finish, to_blocks, tokenizer_keys, write_dequantised
from pieces import logits_of
from safetensors.torch import load_file
from torch import Tensor

from parlay import LLM, ModelError
from parlay.checkpoints.loader import TensorReader
from parlay.kernels.select import select_kernels
from parlay.kv.cache_tensors import allocate
from parlay.models.latent import _absorbed, absorbed_bytes
from parlay.models.select import cache_spec, describe_model, load_model
from parlay.models.stored import open_weights
from parlay.runner.footprint import weight_bytes
from parlay.weights.kinds import BY_NAME
from parlay.weights.weight import Weight

# Of which files can say all; their blocks are 32 columns wide.
EVEN: dict[str, Any] = {
    "q_lora_rank": 64,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
}
FILES: dict[str, dict[str, Any]] = {
    "deepseekv3": EVEN,
    "deepseekv2": {**EVEN, "q_lora_rank": None},
    "glm4moelite": {**EVEN, "mlp_layer_types": ["dense", "sparse", "sparse"]},
}
KEYS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "attention.value_length_mla": "v_head_dim",
    "rope.dimension_count": "qk_rope_head_dim",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_count": "n_routed_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_shared_count": "n_shared_experts",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
}


def convert(model: Path, path: Path, kind: str, *, whole: bool = False, **metadata: Any) -> dict[str, Tensor]:
    """Write a GGUF file as llama.cpp's converter does; return the values that it holds by Hugging Face's names.

    With `whole` keys and values are one matrix, as in files of 2024.
    """
    config = json.loads((model / "config.json").read_text())
    writer = GGUFWriter(path, "deepseek2")
    entry = config["kv_lora_rank"] + config["qk_rope_head_dim"]
    query = config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
    keys = {key: config.get(name) for key, name in KEYS.items()} | {
        "attention.head_count_kv": 1,
        "attention.key_length": entry,
        "attention.value_length": config["kv_lora_rank"],
        "attention.key_length_mla": query,
        "leading_dense_block_count": 1,
        "rope.freq_base": config["rope_parameters"]["rope_theta"],
    }
    if "DeepseekV2" not in config["architectures"][0]:
        keys |= {"expert_gating_func": 2, "expert_weights_norm": True}
    if whole:
        keys |= {"attention.head_count_kv": config["num_attention_heads"], "attention.key_length": query}
        keys |= {"attention.value_length": config["v_head_dim"], "attention.key_length_mla": None}
        keys["attention.value_length_mla"] = None
    add_keys(writer, {**{f"deepseek2.{k}": v for k, v in keys.items()}, **tokenizer_keys(model, "gpt-2")}, metadata)
    table = gguf.get_tensor_name_map(ARCHES["deepseek2"], config["num_hidden_layers"])
    values: dict[str, Tensor] = {}
    experts: dict[str, list[Tensor]] = {}

    def add(name: str, tensor: Tensor, own: str) -> Tensor:
        blocks = to_blocks(tensor, own)
        add_raw(writer, str(table.get_name(name, try_suffixes=(".weight", ".bias"))), blocks, own)
        return dequantised(blocks, own, tensor.shape)

    for name, tensor in sorted(load_file(model / "model.safetensors").items()):
        values[name] = tensor
        if found := re.fullmatch(r"(.*\.experts)\.(\d+)\.(.*)", name):
            experts.setdefault(f"{found[1]}.{found[3]}", []).append(tensor)  # ten or fewer: in order
        elif name.endswith("kv_b_proj.weight") and not whole:
            parts = tensor.view(config["num_attention_heads"], -1, config["kv_lora_rank"])
            keys_of, values_of = parts.split((config["qk_nope_head_dim"], config["v_head_dim"]), dim=1)
            stem = name.replace("kv_b_proj", "{}_b_proj")
            made = add(stem.format("k"), keys_of.transpose(1, 2).contiguous(), kind).transpose(1, 2)
            values[name] = torch.cat((made, add(stem.format("v"), values_of.contiguous(), kind)), 1).view(
                tensor.shape
            )
        else:
            bias = name.endswith("e_score_correction_bias")
            plain = tensor.dim() == 1 or name.endswith("mlp.gate.weight")
            values[name] = add(name.replace("_bias", ".bias") if bias else name, tensor, "F32" if plain else kind)
    for stack, tensors in experts.items():
        for e, each in enumerate(add(stack, torch.stack(tensors), kind)):
            values[stack.replace(".experts.", f".experts.{e}.")] = each
    finish(writer)
    return values


@crossed(name=tuple(FILES), kind=("F32", "Q8_0"), whole=(False, True))
def test_files_have_the_bits_of_the_directory(tmp_path: Path, name: str, kind: str, whole: bool) -> None:
    model = write_family(tmp_path / "model", name, **FILES[name])
    values = convert(model, tmp_path / "model.gguf", kind, whole=whole)
    same = write_dequantised(model, tmp_path / "same", values, torch.float32)
    for dtype in (torch.float32, torch.bfloat16):
        expected = logits_of(same, dtype, "plain")
        assert expected.std() > 1e-2
        assert torch.equal(logits_of(tmp_path / "model.gguf", dtype, "plain"), expected)


def test_blocks_of_keys_and_values_stay(tmp_path: Path) -> None:
    """What heads multiply with is what the file says, with zeros beside it; blocks of plain numbers are the twin."""
    model = write_family(tmp_path / "model", "deepseekv3", **{**EVEN, "qk_rope_head_dim": 32})
    convert(model, file := tmp_path / "model.gguf", "Q8_0")
    config = describe_model(str(file))
    assert config.style.latent is not None
    weights: dict[str, tuple[list[Weight], list[Weight]]] = {}
    for storage in ("stored", "plain"):
        with open_weights(config, storage=storage) as opened:
            read = TensorReader(opened, torch.float32, "model.layers.1.")
            weights[storage] = _absorbed(read, config.style.latent, torch.arange(32), range(5), torch.empty(0))
    for stored, plain in zip(*weights.values(), strict=True):
        for one, other in zip(stored, plain, strict=True):
            assert "Q8_0" in {part.kind.name for part in one.parts}
            assert torch.equal(one.numbers(), other.numbers().float())
    stored_bits, plain_bits = (logits_of(file, torch.float32, storage) for storage in ("stored", "plain"))
    # Queries are rounded to eight bits, and a router's choice may fall otherwise.
    assert (stored_bits - plain_bits).abs().mean() < 0.1 * plain_bits.std()
    held = sum(part.data.nbytes for each in weights["stored"] for one in each for part in one.parts)
    assert held == absorbed_bytes(config, 4, (BY_NAME["Q8_0"], BY_NAME["Q8_0"]))
    assert weight_bytes(config, torch.float32) < weight_bytes(replace(config, storage="plain"), torch.float32)


def test_scaling_of_long_contexts_is_read(tmp_path: Path) -> None:
    numbers = {"factor": 8.0, "original_max_position_embeddings": 32, "mscale": 0.7, "mscale_all_dim": 0.7}
    rope = {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1000.0, **numbers}}
    model = write_family(tmp_path / "model", "deepseekv3", **EVEN, **rope)
    convert(
        model,
        tmp_path / "model.gguf",
        "F32",
        deepseek2__rope__scaling__type="yarn",
        deepseek2__rope__scaling__factor=8.0,
        deepseek2__rope__scaling__original_context_length=32,
        deepseek2__rope__scaling__yarn_log_multiplier=0.07,
    )
    found, expected = (logits_of(path, torch.float32) for path in (tmp_path / "model.gguf", model))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("storage", ["int8", "int4"])
def test_quantised_as_the_twin_has_it(tmp_path: Path, storage: Any) -> None:
    model = write_family(tmp_path / "model", "deepseekv3", **EVEN)
    native, twin = (
        logits_of(model, torch.float32, storage, select_kernels(force=force)) for force in (None, "reference")
    )
    lost = (native - logits_of(model, torch.float32)).abs().mean()
    assert lost > 1e-3
    assert (native - twin).abs().mean() < 0.1 * lost  # activations round to eight bits, either way at their middles


def test_one_entry_a_token_is_cached(checkpoint: Callable[[str], Path]) -> None:
    config = describe_model(str(checkpoint("deepseekv3")))
    spec = cache_spec(config, torch.bfloat16)
    assert spec.bytes_per_token == 3 * (56 + 16) * 2
    for layer in allocate(spec, 2, 4, torch.bfloat16):
        assert layer.value is layer.key
        assert layer.key.shape == (2, 1, 4, 56 + 16)
    load_model(config, torch.bfloat16, 64, select_kernels())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_lora_rank": 55}, "kv_lora_rank=55 and qk_rope_head_dim=16 are not supported"),
        ({"qk_rope_head_dim": -1}, "qk_rope_head_dim must be a number above 0"),
        ({"kv_lora_rank": 64}, "kv_a_proj_with_mqa.weight' has shape"),
        ({"v_head_dim": 16}, "kv_b_proj.weight' has shape"),
        ({"q_lora_rank": None}, "lacks the tensor 'model.layers.0.self_attn.q_proj.weight'"),
    ],
)
def test_what_contradicts_itself_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    model = write_family(tmp_path / "model", "deepseekv3")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(ModelError, match=message):
        LLM(str(model))


def test_choices_within_groups_by_their_best_are_refused(tmp_path: Path) -> None:
    model = write_family(
        tmp_path / "model", "deepseekv2", topk_method="group_limited_greedy", n_group=3, topk_group=2
    )
    with pytest.raises(ModelError, match="topk_method='group_limited_greedy' is not supported"):
        LLM(str(model))


def test_a_file_without_values_is_refused(tmp_path: Path) -> None:
    model = write_family(tmp_path / "model", "deepseekv3", **EVEN)
    convert(model, tmp_path / "model.gguf", "F32")
    content = (tmp_path / "model.gguf").read_bytes()
    (tmp_path / "model.gguf").write_bytes(content.replace(b"blk.1.attn_v_b.weight", b"blk.1.attn_x_b.weight"))
    with pytest.raises(ModelError, match=r"'blk\.1\.attn_k_b\.weight' has no matrix of values beside it"):
        LLM(str(tmp_path / "model.gguf"))
