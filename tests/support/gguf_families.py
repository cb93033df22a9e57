"""GGUF files of every family that the format has, made from Hugging Face checkpoints as llama.cpp's converters do."""

import json
import math
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf_files import ARCHES, add_keys, add_raw, finish, interleave, to_blocks, tokenizer_keys
from safetensors.torch import load_file
from torch import Tensor

ARCH = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "MixtralForCausalLM": "llama",
    "GraniteForCausalLM": "granite",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3moe",
    "Phi3ForCausalLM": "phi3",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
}
# Variants of `families.FAMILIES` that a file can hold, and what must change for that: no key says how queries are
# scaled or which layers have windows.
GEMMA = {"query_pre_attn_scalar": 16}
VARIANTS: dict[str, dict[str, Any]] = {
    "llama-biases": {},
    "llama-linear": {},
    "llama-yarn": {},
    "mistral": {},
    "mistral-unlimited": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3-biases": {},
    "granite": {},
    "granite-biases": {},
    "phi3": {},
    "phi3-partial": {},
    "gemma2": GEMMA,
    "gemma3": {**GEMMA, "num_hidden_layers": 7, "layer_types": None},
    "mixtral": {},
    "qwen3moe": {"mlp_only_layers": [], "moe_intermediate_size": 64},
}
# Further variants that parlay writes; what must change for that as above.
WRITTEN: dict[str, dict[str, Any]] = {
    "granite4": {},
    "granitemoe": {},
    "granitemoeshared": {},
    "qwen2moe": {"mlp_only_layers": []},
    "smollm3": {"attention_bias": False},
    "ministral3": {},
    "seedoss": {},
    "ernie4_5": {"use_bias": False},
    "ernie4_5_moe": {},
    "glm": {},
    "glm4": {},
    "glm4moe": {},
    "deepseekv3": {},
    "deepseekv2": {},
    "glm4moelite": {},
    "mistral4": {},
    "youtu": {},
    "exaonemoe": {},
    "exaone4": {},
    "exaone4-windows": {},
    "mellum": {"mlp_layer_types": None},
    "gptoss": {},
    "olmo2": {},
    "olmo3": {},
    "olmoe": {},
    "minimaxm2": {},
    "arcee": {"mlp_bias": False},
    "apertus": {},
    "hyv3": {},
    "cohere2moe": {},
    "llama4": {
        "attention_chunk_size": 8192,
        "floor_scale": 8192,
        "attn_scale": 0.1,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 16.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "cohere2moe-shares": {},
    "hunyuan": {},
    "hunyuan-alpha": {},
    "cohere2": {"layer_types": None, "num_hidden_layers": 4},
    "graniteswa": {},
    "graniteswa-bases": {"attention_bias": False, "layer_rope_theta": [0, 10000.0, 10000.0, 0]},
    "solaropen": {},
    "dots1": {},
    "hunyuanmoe": {"attention_bias": False},
    "hunyuanmoe-alpha": {},
    "afmoe": {"mup_enabled": True},
    "afmoe-plain": {"attention_bias": False},
    "laguna": {},
    "laguna-heads": {},
    "laguna-columns": {"mlp_layer_types": None},
    "step3p5": {},
    "step3p5-alike": {"query_pre_attn_scalar": 16},
    "mimov2flash": {},
    "mimov2flash-wide": {"attention_bias": False, "routed_scaling_factor": 1.0},
}
# Those with recurrent layers, and Gemma 4; llama.cpp has one width of keys and values in linear attention.
_ALIKE = {"linear_key_head_dim": 32, "linear_value_head_dim": 32}
HYBRIDS: dict[str, dict[str, Any]] = {
    "lfm2": {},
    "lfm2moe": {"routed_scaling_factor": 1.0},
    "qwen3_5-alike": {"linear_key_head_dim": 48},
    "qwen3next": {**_ALIKE, "mlp_only_layers": []},
    "granite4-h": {},
    "granite4-h-experts": {},
    "nemotronh": {},
    "nemotronh-experts": {"n_group": 1, "topk_group": 1},
    "nemotronh-latents": {},
    "kimilinear": {},
    "gemma4": {},
    "gemma4-inputs": {},
    "gemma4-experts": {},
    "gemma4unified": {},
}
# Whose numbers are converted, or summed in another order.
CONVERTED: dict[str, dict[str, Any]] = {
    "qwen3_5": _ALIKE,
    "qwen3_5moe": _ALIKE,
    "falconh1": {},
    "falconh1-norm": {"mamba_conv_bias": True},
}
_KEYS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_used_count": "num_experts_per_tok",
}


def convert(model: Path, path: Path, kind: str = "F32", *, fused: bool = False, **metadata: Any) -> dict[str, Tensor]:
    """Write a GGUF file.

    Args:
        model: a directory in Hugging Face's format.
        path: the file to write.
        kind: how matrices are stored, all but routers; norms and biases are float32.
        fused: queries, keys and values are one tensor, and so are gates and ups of experts.
        metadata: further keys; dots as double underscores, None leaves a key out.

    Returns:
        The values that the file holds, by Hugging Face's names.
    """
    config = json.loads((model / "config.json").read_text())
    arch = ARCH[config["architectures"][0]]
    writer = GGUFWriter(path, arch)
    add_keys(writer, {**_keys(config, arch), **tokenizer_keys(model, "gpt-2")}, metadata)
    table = gguf.get_tensor_name_map(ARCHES[arch], config["num_hidden_layers"])
    heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
    values: dict[str, Tensor] = {}
    stacks: dict[str, dict[int, np.ndarray]] = {}
    raw: dict[str, tuple[np.ndarray, str]] = {}
    for i, (name, tensor) in enumerate(load_file(model / "model.safetensors").items()):
        own = "F32" if tensor.dim() == 1 or re.search(r"(mlp|moe)\.gate\.weight$", name) else kind
        blocks = to_blocks(tensor, own, seed=i)
        values[name] = dequantised(blocks, own, tensor.shape)
        if arch.startswith("gemma") and name.endswith("norm.weight"):
            blocks, values[name] = to_blocks(tensor + 1, own), tensor + 1 - 1
        rotary = re.search(r"\.([qk])_proj\.", name)
        if rotary and arch in ("llama", "granite"):
            # Blocks lie within a row, so that rows may be moved whole.
            rows = torch.from_numpy(blocks.copy()).view(tensor.shape[0], -1)
            blocks = interleave(rows, heads[rotary[1]]).view(blocks.shape).numpy()
        expert = re.search(r"\.experts\.(\d+)", name)
        if expert:
            stack = stacks.setdefault(name.replace(expert[0], ".experts"), {})
            stack[int(expert[1])] = blocks
            continue
        raw[str(table.get_name(name, try_suffixes=(".weight", ".bias")))] = blocks, own
    for name, stack in stacks.items():
        raw[str(table.get_name(name, try_suffixes=(".weight",)))] = np.stack([stack[e] for e in sorted(stack)]), kind
    for name, (blocks, own) in (_fused(raw) if fused else raw).items():
        add_raw(writer, name, blocks, own)
    rope = config["rope_parameters"]
    if "long_factor" in rope:
        for which in ("long", "short"):
            writer.add_tensor(f"rope_factors_{which}.weight", np.array(rope[f"{which}_factor"], np.float32))
    finish(writer)
    return values


def _fused(raw: dict[str, tuple[np.ndarray, str]]) -> dict[str, tuple[np.ndarray, str]]:
    """Return the tensors as `--fuse-qkv` and `--fuse-gate-up-exps` of llama.cpp's converter write them."""
    found: dict[str, tuple[np.ndarray, str]] = {}
    for name, (blocks, own) in raw.items():
        parts = [name.replace("attn_q.", f"attn_{x}.") for x in "qkv"]
        into, axis = name.replace("attn_q.", "attn_qkv."), 0
        if "ffn_gate_exps." in name:
            parts = [name, name.replace("gate", "up")]
            into, axis = name.replace("gate", "gate_up"), 1
        if into != name:
            found[into] = np.concatenate([raw[part][0] for part in parts], axis), own
        elif not re.search(r"attn_[kv]\.|ffn_up_exps\.", name):
            found[name] = blocks, own
    return found


def dequantised(blocks: np.ndarray, kind: str, shape: tuple[int, ...]) -> Tensor:
    """Return what a tensor's bytes stand for, in float32."""
    values = gguf.quants.dequantize(blocks.view(np.uint8), GGMLQuantizationType[kind])
    return torch.from_numpy(np.array(values, np.float32)).view(shape)


def _keys(config: dict[str, Any], arch: str) -> dict[str, Any]:
    """Return the metadata that converters write."""
    keys = {key: config.get(name) for key, name in _KEYS.items()}
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    if arch not in ("phi3", "granite"):
        keys |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    keys["expert_count"] = config.get("num_local_experts") or config.get("num_experts")
    rope = config["rope_parameters"]
    keys["rope.freq_base_swa"] = rope.get("sliding_attention", {}).get("rope_theta")
    rope = rope.get("full_attention", rope)
    keys["rope.freq_base"] = float(rope["rope_theta"])
    keys["rope.dimension_count"] = int(head_dim * rope.get("partial_rotary_factor", 1.0))
    if rope["rope_type"] in ("linear", "yarn"):
        keys |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": rope["factor"]}
        keys["rope.scaling.original_context_length"] = rope.get("original_max_position_embeddings")
    if arch == "phi3":
        original = rope.get("original_max_position_embeddings") or config["max_position_embeddings"]
        keys["rope.scaling.original_context_length"] = original
        keys["attention.sliding_window"] = config["sliding_window"] or 0
        if "long_factor" in rope:
            scale = config["max_position_embeddings"] / original
            keys["rope.scaling.attn_factor"] = math.sqrt(1 + math.log(scale) / math.log(original))
    else:
        keys["attention.sliding_window"] = config.get("sliding_window")
    return {f"{arch}.{key}": value for key, value in keys.items()}
