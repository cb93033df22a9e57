"""Small random checkpoints of every family, made with the transformers library."""

import copy
import json
from pathlib import Path
from typing import Any

import torch
from checkpoints import EOS, VOCAB, write_byte_tokenizer
from safetensors.torch import load_file, save_file
from torch import Tensor

# What they have in common; a family adds to it or overrides.
SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": EOS,
    "tie_word_embeddings": False,
}
FACTORS = {"short_factor": [1.0 + 0.1 * i for i in range(8)], "long_factor": [2.0 + 0.5 * i for i in range(8)]}


def rope(kind: str, **numbers: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1000.0, **numbers}}


def growing() -> dict[str, Any]:
    """Return keys with which queries grow with their position, as those of Mistral's models do."""
    numbers = {"llama_4_scaling_beta": 0.3, "mscale": 1.0, "mscale_all_dim": 1.0}
    return rope("yarn", factor=8.0, original_max_position_embeddings=16, **numbers)


# Latent attention, with widths that are no powers of two, and experts.
DENSE_LATENT: dict[str, Any] = {
    "num_attention_heads": 5,
    "num_key_value_heads": 5,
    "q_lora_rank": 40,
    "kv_lora_rank": 56,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 24,
}
LATENT: dict[str, Any] = {
    **DENSE_LATENT,
    "n_routed_experts": 9,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "n_shared_experts": 2,
    "routed_scaling_factor": 1.5,
}

KIMI: dict[str, Any] = {key: value for key, value in LATENT.items() if key != "n_routed_experts"}

# Gated delta nets, and a gate behind attention.
LINEAR: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 16,
    "head_dim": 32,
}

MAMBA: dict[str, Any] = {
    "head_dim": None,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 24,
    "shared_intermediate_size": 112,
}

GEMMA4: dict[str, Any] = {
    "vocab_size_per_layer_input": VOCAB,
    "hidden_size_per_layer_input": 0,
    "global_head_dim": 32,
    "sliding_window": 13,
    "final_logit_softcapping": 8.0,
    "tie_word_embeddings": True,
}
# Transformers bounds the steps of prompts, but not those of decoding, from below.
SPACES: dict[str, Any] = {
    "mamba_num_heads": 4,
    "mamba_head_dim": 32,
    "ssm_state_size": 24,
    "n_groups": 2,
    "time_step_min": 1e-9,
}

SCORED: dict[str, Any] = {
    "n_routed_experts": 9,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "n_shared_experts": 1,
    "routed_scaling_factor": 1.5,
}
TRINITY: dict[str, Any] = {
    "num_hidden_layers": 4,
    "sliding_window": 13,
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "route_scale": 1.7,
}
SCOUT: dict[str, Any] = {
    "num_hidden_layers": 4,
    "intermediate_size": 40,
    "intermediate_size_mlp": 112,
    "num_local_experts": 5,
    "floor_scale": 7,
    "attn_scale": 0.4,
}
NORTH: dict[str, Any] = {
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "sliding_window": 9,
    "logit_scale": 0.25,
    "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention"],
    "tie_word_embeddings": True,
}
LAGUNA: dict[str, Any] = {
    "sliding_window": 13,
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "shared_expert_intermediate_size": 48,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
}
MIMO: dict[str, Any] = {
    "num_hidden_layers": 4,
    "num_key_value_heads": 1,
    "head_dim": 24,
    "v_head_dim": 16,
    "sliding_window": 13,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "n_routed_experts": 9,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
}
STEP: dict[str, Any] = {
    "pad_token_id": 1,
    "num_hidden_layers": 4,
    "num_sliding_attention_heads": 6,
    "sliding_window": 13,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "mlp_layer_types": ["dense", "dense", "sparse", "sparse"],
    "n_routed_experts": 9,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "share_expert_dim": 56,
    "moe_router_scaling_factor": 1.7,
    "swiglu_limits": [None, 0.0, 0.5, 0.25],
    "swiglu_limits_shared": [0.0, 0.4, 0.3, 0.0],
    "rope_parameters": {
        "full_attention": {
            "rope_type": "llama3",
            "rope_theta": 5000.0,
            "partial_rotary_factor": 0.5,
            "factor": 2.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 32.0,
            "original_max_position_embeddings": 64,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0},
    },
}
LFM3: dict[str, Any] = {"num_hidden_layers": 6, "sliding_window": 13, "norm_eps": 1e-5, "tie_word_embeddings": True}

# name: (transformers' prefix of class names, changes)
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-linear": ("Llama", rope("linear", factor=4.0)),
    "llama-dynamic": ("Llama", rope("dynamic", factor=4.0) | {"max_position_embeddings": 32}),
    "llama-dynamic-within": ("Llama", rope("dynamic", factor=4.0)),
    "llama-yarn": ("Llama", rope("yarn", factor=8.0, original_max_position_embeddings=64)),
    "llama-yarn-more": (
        "Llama",
        rope(
            "yarn",
            factor=8.0,
            original_max_position_embeddings=64,
            beta_fast=8.0,
            beta_slow=2.0,
            mscale=1.5,
            mscale_all_dim=0.7,
            truncate=False,
        ),
    ),
    "llama-longrope-short": ("Llama", rope("longrope", original_max_position_embeddings=128, factor=4.0, **FACTORS)),
    "llama-longrope-long": ("Llama", rope("longrope", original_max_position_embeddings=32, factor=4.0, **FACTORS)),
    "mistral": ("Mistral", {"sliding_window": 21}),
    "mistral-unlimited": ("Mistral", {"sliding_window": None, "head_dim": 32}),
    "qwen2": ("Qwen2", {"head_dim": None}),
    "qwen2-windows": (
        "Qwen2",
        {"head_dim": None, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"tie_word_embeddings": True}),
    "qwen3-biases": ("Qwen3", {"attention_bias": True}),
    "granite": (
        "Granite",
        {
            "head_dim": None,
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.3,
            "residual_multiplier": 0.6,
            "logits_scaling": 2.5,
        },
    ),
    "granite-biases": (
        "Granite",
        {"head_dim": None, "attention_bias": True, "mlp_bias": True, "attention_multiplier": 0.2},
    ),
    "hyperclovax": (
        "HyperCLOVAX",
        {
            "head_dim": None,
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.3,
            "residual_multiplier": 0.6,
            "logits_scaling": 0.4,
        },
    ),
    "hyperclovax-plain": ("HyperCLOVAX", {"use_post_norm": False}),
    "granite4": (  # as granite-4.0-micro and granite-4.0-1b have it
        "GraniteMoeHybrid",
        {
            "head_dim": None,
            "shared_intermediate_size": 112,
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "position_embedding_type": "rope",
            "layer_types": ["full_attention"] * 3,
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.3,
            "residual_multiplier": 0.6,
            "logits_scaling": 2.5,
            "tie_word_embeddings": True,
        },
    ),
    "granite4-h": (
        "GraniteMoeHybrid",
        {
            **MAMBA,
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "position_embedding_type": "nope",
            "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
            "num_hidden_layers": 4,
            "attention_multiplier": 0.3,
            "residual_multiplier": 0.6,
            "logits_scaling": 2.5,
            "tie_word_embeddings": True,
        },
    ),
    "granite4-h-experts": (
        "GraniteMoeHybrid",
        {
            **MAMBA,
            "mamba_n_groups": 2,
            "mamba_d_state": 40,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.3,
            "residual_multiplier": 0.4,
        },
    ),
    "phi3": ("Phi3", {"head_dim": None}),
    "phi3-partial": (
        "Phi3",
        {
            "head_dim": None,
            "sliding_window": 30,
            "original_max_position_embeddings": 32,
            **rope(
                "longrope",
                partial_rotary_factor=0.75,
                original_max_position_embeddings=32,
                **{k: v[:6] for k, v in FACTORS.items()},
            ),
        },
    ),
    "gemma2": (
        "Gemma2",
        {
            "query_pre_attn_scalar": 20,
            "sliding_window": 13,
            "tie_word_embeddings": True,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma3": (
        "Gemma3",
        {
            "query_pre_attn_scalar": 20,
            "sliding_window": 13,
            "num_hidden_layers": 4,
            "tie_word_embeddings": True,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 50000.0},
            },
        },
    ),
    "gemma4": (  # as 12B and 31B
        "Gemma4Text",
        {
            **GEMMA4,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        },
    ),
    "gemma4-inputs": (  # as E2B and E4B
        "Gemma4Text",
        {
            **GEMMA4,
            "hidden_size_per_layer_input": 24,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "num_hidden_layers": 6,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
        },
    ),
    "gemma4unified": (  # as 12B
        "Gemma4UnifiedText",
        {
            "global_head_dim": 32,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "sliding_window": 13,
            "final_logit_softcapping": 8.0,
            "tie_word_embeddings": True,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        },
    ),
    "gemma4-experts": (  # as 26B-A4B
        "Gemma4Text",
        {
            **GEMMA4,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "num_hidden_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"],
            "enable_moe_block": True,
            "num_experts": 6,
            "top_k_experts": 2,
            "moe_intermediate_size": 40,
        },
    ),
    "mixtral": ("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "qwen3moe": (
        "Qwen3Moe",
        {
            "num_experts": 9,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    ),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 5, "attention_bias": True}),
    "smollm3-listed": (
        "SmolLM3",
        {"no_rope_layers": [0, 1, 0], "use_sliding_window": True, "sliding_window": 11, "tie_word_embeddings": True},
    ),
    "seedoss": ("SeedOss", {"head_dim": 24}),
    "ernie4_5": ("Ernie4_5", {"use_bias": True}),
    "ernie4_5-tied": ("Ernie4_5", {"use_bias": False, "tie_word_embeddings": True, "head_dim": 32}),
    "glm": ("Glm", {"attention_bias": True}),
    "glm4": ("Glm4", {"attention_bias": True, "head_dim": 32}),
    "exaone4": ("Exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 3}),
    "exaone4-windows": ("Exaone4", {"sliding_window": 9, "sliding_window_pattern": 2}),
    "ministral3": (
        "Ministral3",
        growing(),
    ),
    "qwen2moe": (
        "Qwen2Moe",
        {
            "head_dim": None,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 40,
            "shared_expert_intermediate_size": 56,
            "mlp_only_layers": [1],
        },
    ),
    "granitemoe": (
        "GraniteMoe",
        {
            "head_dim": None,
            "num_local_experts": 5,
            "num_experts_per_tok": 3,
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.3,
            "residual_multiplier": 0.6,
            "logits_scaling": 2.5,
        },
    ),
    "granitemoeshared": (
        "GraniteMoeShared",
        {
            "head_dim": None,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 56,
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.3,
            "residual_multiplier": 0.4,
        },
    ),
    "deepseekv3": ("DeepseekV3", {**LATENT, "n_group": 3, "topk_group": 2, "first_k_dense_replace": 1}),
    "deepseekv3-yarn": (
        "DeepseekV3",
        {
            **LATENT,
            **rope("yarn", factor=8.0, original_max_position_embeddings=32, mscale=1.0, mscale_all_dim=0.7),
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 2,
            "rope_interleave": False,
            "attention_bias": True,
        },
    ),
    "deepseekv2": (
        "DeepseekV2",
        {
            **LATENT,
            "q_lora_rank": None,
            "first_k_dense_replace": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
        },
    ),
    "mistral4": (
        "Mistral4",
        {
            **LATENT,
            "head_dim": None,
            **growing(),
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
        },
    ),
    "youtu": ("Youtu", {**DENSE_LATENT, "tie_word_embeddings": True}),
    "exaonemoe": (
        "ExaoneMoe",
        {
            "sliding_window": 9,
            "sliding_window_pattern": 2,
            "num_experts": 9,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "num_shared_experts": 2,
        },
    ),
    "glm4moelite": (
        "Glm4MoeLite",
        {**LATENT, "head_dim": None, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.8, "v_head_dim": 32},
    ),
    "glm4moe": (
        "Glm4Moe",
        {
            "n_routed_experts": 9,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "n_group": 3,
            "topk_group": 2,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "use_qk_norm": True,
            "attention_bias": True,
            "routed_scaling_factor": 1.7,
        },
    ),
    "ernie4_5_moe": (
        "Ernie4_5_Moe",
        {"moe_num_experts": 7, "moe_k": 2, "moe_intermediate_size": 40, "moe_layer_start_index": 1},
    ),
    "mellum": (
        "Mellum",
        {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 40,
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "sliding_window": 9,
        },
    ),
    "gptoss": (
        "GptOss",
        {
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "sliding_window": 9,
            **rope("yarn", factor=8.0, original_max_position_embeddings=64, truncate=False),
        },
    ),
    "step3p5": ("Step3p5", STEP),
    "step3p5-alike": (
        "Step3p5",
        {
            **STEP,
            "num_sliding_attention_heads": None,
            "swiglu_limits": None,
            "query_pre_attn_scalar": 20,
            "rope_parameters": {kind: {"rope_type": "default", "rope_theta": 900.0} for kind in STEP["layer_types"]},
        },
    ),
    "mimov2flash": ("MiMoV2Flash", MIMO),
    "mimov2flash-wide": (  # values as wide as blocks of an int8 cache, and a factor on experts
        "MiMoV2Flash",
        {
            **MIMO,
            "head_dim": 96,
            "v_head_dim": 32,
            "n_group": 3,
            "topk_group": 2,
            "attention_bias": True,
            "attention_value_scale": None,
            "routed_scaling_factor": 1.5,
        },
    ),
    "olmo2": ("Olmo2", {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 96}),
    "olmo2-dynamic": ("Olmo2", rope("dynamic", factor=4.0) | {"max_position_embeddings": 32}),
    "olmo3": (
        "Olmo3",
        {
            "sliding_window": 9,
            "num_hidden_layers": 4,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
                "full_attention": {
                    "rope_type": "yarn",
                    "factor": 8.0,
                    "original_max_position_embeddings": 64,
                    "rope_theta": 500.0,
                },
            },
        },
    ),
    "olmoe": ("Olmoe", {"head_dim": None, "num_experts": 6, "num_experts_per_tok": 2}),
    "minimaxm2": (
        "MiniMaxM2",
        {
            "num_local_experts": 7,
            "num_experts_per_tok": 2,
            **rope("default", partial_rotary_factor=0.5),
        },
    ),
    "hyv3": (
        "HYV3",
        {
            "num_experts": 7,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "num_shared_experts": 2,
            "router_scaling_factor": 1.7,
        },
    ),
    "arcee": ("Arcee", {"mlp_bias": True, "head_dim": 24}),
    "apertus": ("Apertus", {"head_dim": None, "attention_bias": True}),
    "hunyuan": ("HunYuanDenseV1", {"head_dim": 32}),
    "hunyuan-alpha": ("HunYuanDenseV1", rope("dynamic", factor=1.0, alpha=50.0)),
    "cohere2": (
        "Cohere2",
        {
            "head_dim": None,
            "logit_scale": 0.25,
            "sliding_window": 9,
            "layer_types": ["sliding_attention"] * 2 + ["full_attention"],
            "tie_word_embeddings": True,
        },
    ),
    "llama4": (  # as Scout, but for its step
        "Llama4Text",
        {
            **SCOUT,
            "interleave_moe_layer_step": 2,
            "attention_chunk_size": 13,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500.0,
                "factor": 16.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 1.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "llama4-plain": (  # as Maverick
        "Llama4Text",
        {
            **SCOUT,
            "use_qk_norm": False,
            "attn_temperature_tuning": False,
            "attention_bias": True,
            "no_rope_layer_interval": 2,
            "attention_chunk_size": 32,
        },
    ),
    "cohere2moe": (
        "Cohere2Moe",
        {
            **NORTH,
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
            "prefix_dense_intermediate_size": 112,
            "num_shared_experts": 2,
            "expert_selection_fn": "sigmoid",
            "rms_norm_eps": 1e-5,
        },
    ),
    "cohere2moe-softmax": (
        "Cohere2Moe",
        {
            **NORTH,
            "first_k_dense_replace": 1,
            "prefix_dense_sliding_window_pattern": 2,
            "sliding_window_pattern": 3,
            "layer_types": None,
            "num_shared_experts": 1,
            "shared_expert_combination_strategy": "sum",
        },
    ),
    "cohere2moe-shares": (
        "Cohere2Moe",
        {**NORTH, "expert_selection_fn": "sigmoid", "norm_topk_prob": False, "tie_word_embeddings": False},
    ),
    "lfm2": (
        "Lfm2",
        {
            "head_dim": None,
            "num_hidden_layers": 4,
            "block_multiple_of": 32,
            "layer_types": ["conv", "conv", "full_attention", "conv"],
            "tie_word_embeddings": True,
        },
    ),
    "lfm2-biases": (
        "Lfm2",
        {
            "head_dim": None,
            "conv_bias": True,
            "conv_L_cache": 5,
            "block_auto_adjust_ff_dim": False,
            "layer_types": ["full_attention", "conv", "conv"],
            "tie_word_embeddings": True,
        },
    ),
    "lfm2moe": (
        "Lfm2Moe",
        {
            "head_dim": None,
            "num_experts": 7,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 40,
            "num_dense_layers": 1,
            "routed_scaling_factor": 1.4,
            "layer_types": ["conv", "full_attention", "conv"],
            "tie_word_embeddings": True,
        },
    ),
    "qwen3_5": ("Qwen3_5Text", {**LINEAR, "num_hidden_layers": 4}),
    "qwen3_5-alike": (
        "Qwen3_5Text",
        {
            **LINEAR,
            "linear_num_key_heads": 3,
            "linear_num_value_heads": 3,
            "linear_value_head_dim": 48,
            "linear_conv_kernel_dim": 3,
            "layer_types": ["full_attention", "linear_attention", "linear_attention"],
            "tie_word_embeddings": True,
        },
    ),
    "qwen3_5moe": (
        "Qwen3_5MoeText",
        {
            **LINEAR,
            "num_experts": 9,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "shared_expert_intermediate_size": 56,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        },
    ),
    "qwen3next": (
        "Qwen3Next",
        {
            **LINEAR,
            "num_experts": 9,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "shared_expert_intermediate_size": 56,
            "mlp_only_layers": [1],
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        },
    ),
    "olmohybrid": (
        "OlmoHybrid",
        {
            "head_dim": None,
            "num_key_value_heads": 4,
            "num_hidden_layers": 4,
            "linear_key_head_dim": 24,
            "linear_value_head_dim": 48,
            "rope_parameters": {"rope_type": "default", "rope_theta": None},
        },
    ),
    "olmohybrid-rotary": (
        "OlmoHybrid",
        {
            "head_dim": None,
            "layer_types": ["full_attention", "linear_attention", "linear_attention"],
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 32,
            "linear_allow_neg_eigval": False,
            "linear_conv_kernel_dim": 3,
            "rms_norm_eps": 1e-3,
            **rope("default"),
        },
    ),
    "kimilinear": (
        "KimiLinear",
        {
            **KIMI,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "q_lora_rank": None,
            "head_dim": None,
            "num_hidden_layers": 4,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "n_shared_experts": 1,
            "n_group": 1,
            "topk_group": 1,
            "linear_head_dim": 32,
            "linear_num_heads": 4,
            "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
        },
    ),
    "kimilinear-groups": (
        "KimiLinear",
        {
            **KIMI,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "head_dim": None,
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "n_shared_experts": 2,
            "n_group": 2,
            "topk_group": 1,
            "linear_head_dim": 80,
            "linear_num_heads": 2,
            "linear_conv_kernel_dim": 3,
            "layer_types": ["full_attention", "linear_attention", "linear_attention"],
            "mlp_layer_types": ["sparse", "dense", "sparse"],
        },
    ),
    "falconh1": (
        "FalconH1",
        {
            "mamba_d_ssm": 96,
            "mamba_n_heads": 6,
            "mamba_d_state": 24,
            "mamba_n_groups": 2,
            "embedding_multiplier": 1.7,
            "lm_head_multiplier": 0.4,
            "mlp_multipliers": [0.9, 0.6],
            "key_multiplier": 0.7,
            "attention_in_multiplier": 1.1,
            "attention_out_multiplier": 0.8,
            "ssm_multipliers": [0.4, 0.25, 0.3, 0.5, 0.35],
            "ssm_in_multiplier": 1.3,
            "ssm_out_multiplier": 0.6,
        },
    ),
    "falconh1-norm": (
        "FalconH1",
        {
            "mamba_d_ssm": 128,
            "mamba_n_heads": 4,
            "mamba_d_state": 16,
            "mamba_rms_norm": True,
            "mamba_norm_before_gate": False,
            "mamba_conv_bias": False,
            "tie_word_embeddings": True,
        },
    ),
    "nemotronh": (
        "NemotronH",
        {
            "num_hidden_layers": 5,
            "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention", "mlp"],
            **SPACES,
        },
    ),
    "nemotronh-experts": (
        "NemotronH",
        {
            "num_hidden_layers": 4,
            "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
            **SPACES,
            "n_groups": 1,
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 40,
            "moe_shared_expert_intermediate_size": 56,
            "n_group": 2,
            "topk_group": 1,
            "routed_scaling_factor": 1.5,
        },
    ),
    "nemotronh-latents": (  # as Nemotron 3 Super
        "NemotronH",
        {
            "num_hidden_layers": 4,
            "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
            **SPACES,
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 40,
            "moe_latent_size": 48,
            "moe_shared_expert_intermediate_size": 56,
            "n_group": 1,
            "topk_group": 1,
        },
    ),
    "opt": ("OPT", {"ffn_dim": 96, "word_embed_proj_dim": 64, "head_dim": None, "tie_word_embeddings": True}),
    "qwen3moe-weights-as-they-are": (
        "Qwen3Moe",
        {"num_experts": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 24, "norm_topk_prob": False},
    ),
    "graniteswa": (
        "GraniteSWA",
        {
            "head_dim": None,
            "num_hidden_layers": 5,
            "sliding_window": 11,
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.3,
            "residual_multiplier": 0.6,
            "logits_scaling": 2.5,
            "tie_word_embeddings": True,
        },
    ),
    "graniteswa-bases": (
        "GraniteSWA",
        {
            "head_dim": None,
            "num_hidden_layers": 4,
            "sliding_window": 7,
            "attention_multiplier": 0.3,
            "attention_bias": True,
            "layer_rope_theta": [0, 500.0, 500.0, 0],
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        },
    ),
    "graniteswa-two-bases": (
        "GraniteSWA",
        {
            "head_dim": None,
            "num_hidden_layers": 4,
            "sliding_window": 7,
            "attention_multiplier": 0.3,
            "layer_rope_theta": [9000.0, 500.0, 0, 500.0],
        },
    ),
    "granitemoeswa": (
        "GraniteMoeSWA",
        {
            "head_dim": None,
            "num_hidden_layers": 4,
            "sliding_window": 9,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "attention_multiplier": 0.3,
            "residual_multiplier": 0.6,
        },
    ),
    "granitemoeswa-shared": (
        "GraniteMoeSWA",
        {
            "head_dim": None,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 48,
            "attention_multiplier": 0.3,
            "layer_rope_theta": [0, 700.0, 700.0],
        },
    ),
    "solaropen": ("SolarOpen", SCORED),
    "solaropen-biases": (
        "SolarOpen",
        {**SCORED, "attention_bias": True, "norm_topk_prob": False, "n_shared_experts": 2},
    ),
    "dots1": ("Dots1", {**SCORED, "first_k_dense_replace": 1, "norm_topk_prob": True, "max_window_layers": 3}),
    "dots1-windows": (
        "Dots1",
        {
            **SCORED,
            "n_group": 3,
            "topk_group": 2,
            "sliding_window": 11,
            "max_window_layers": 1,
            "attention_bias": True,
        },
    ),
    "hunyuanmoe": ("HunYuanMoEV1", {"num_experts": 6, "moe_topk": 3, "attention_bias": True}),
    "hunyuanmoe-alpha": (
        "HunYuanMoEV1",
        {"num_experts": 4, "moe_topk": [2] * 3, **rope("dynamic", alpha=1000.0, factor=1.0)},
    ),
    "afmoe": ("Afmoe", TRINITY),
    "afmoe-plain": (
        "Afmoe",
        {**TRINITY, "mup_enabled": True, "attention_bias": True, "num_dense_layers": 2, "num_shared_experts": 1},
    ),
    "laguna": ("Laguna", LAGUNA),
    "laguna-heads": (  # as XS has it
        "Laguna",
        {
            **LAGUNA,
            "num_hidden_layers": 4,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
            "num_attention_heads_per_layer": [4, 6, 8, 4],
            "moe_routed_scaling_factor": 2.5,
        },
    ),
    "laguna-columns": (
        "Laguna",
        {**LAGUNA, "gating": "per-element", "mlp_layer_types": ["dense", "sparse", "dense"]},
    ),
    "lfm3": ("Lfm3", LFM3),
    "lfm3-plain": (
        "Lfm3",
        {**LFM3, "use_sandwich_norm": False, "use_attention_gate": False, "conv_bias": True, "conv_L_cache": 4},
    ),
}

# Classes that no family file serves.
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", {"head_dim": None, "tie_word_embeddings": True}),
    "gptneox": ("GPTNeoX", {"head_dim": None}),
    "gptbigcode": ("GPTBigCode", {"head_dim": None, "multi_query": True}),
    "starcoder2": ("Starcoder2", {"head_dim": None, "sliding_window": 11}),
    "cohere": ("Cohere", {"logit_scale": 0.25, "tie_word_embeddings": True, "use_qk_norm": True}),
    "phi": ("Phi", {"head_dim": None}),
    "gemma": ("Gemma", {"tie_word_embeddings": True}),
    "vaultgemma": (
        "VaultGemma",
        {
            "query_pre_attn_scalar": 20,
            "sliding_window": 13,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "flexolmo": ("FlexOlmo", {"num_experts": 6, "num_experts_per_tok": 2}),
}


def write_family(
    path: Path, name: str, *, seed: int = 0, noise: float = 0.0, calm: float = 1.0, scale: float = 1.0, **more: Any
) -> Path:
    """Write the checkpoint `name` of FAMILIES with random weights; `more` overrides its config.

    `noise`, `calm` and `scale` are those of `checkpoints.write_llama`.
    """
    import transformers

    prefix, changes = (FAMILIES | OTHERS)[name]
    suffix = "TextConfig" if prefix == "Gemma3" else "Config"
    values = {k: v for k, v in {**SMALL, **changes, **more}.items() if v is not None or k not in ("head_dim",)}
    torch.manual_seed(0)
    if prefix == "Step3p5":
        model = transformers.Step3p7ForConditionalGeneration(step_config(values)).float()
    else:
        config = getattr(transformers, prefix + suffix)(**values)
        suffix = "LMHeadModel" if prefix == "GPT2" else "ForCausalLM"
        model = getattr(transformers, prefix.removesuffix("Text") + suffix)(config).float()
    generator = torch.Generator().manual_seed(seed)
    disturbance = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            _fill(parameter_name, parameter, generator, disturbance, noise)
            if parameter_name == "lm_head.weight":
                parameter *= scale
            if parameter_name.endswith(
                ("o_proj.weight", "down_proj.weight", "down_proj", "out_proj.weight", "fc2.weight", "w2.weight")
            ):
                parameter *= calm
        for buffer_name, buffer in model.named_buffers():
            if buffer_name.endswith("layer_scalar"):
                buffer.copy_(0.7 + 0.2 * torch.rand(1, generator=generator))
            if buffer_name.endswith("e_score_correction_bias"):
                buffer += 0.3 * torch.randn(buffer.shape, generator=generator)
    model.save_pretrained(path)
    if prefix == "Step3p5":
        leave_text(path)
    if prefix == "OlmoHybrid":
        _cut_by_widths(path / "model.safetensors")
    write_byte_tokenizer(path, VOCAB)
    return path


def step_config(text: dict[str, Any]) -> Any:
    """Return the config of a Step-3.7, outside of which the library has no text model of Step."""
    import transformers

    vision = {"width": 16, "layers": 1, "heads": 2, "image_size": 28, "patch_size": 14, "mlp_ratio": 1.0}
    text = {key: value for key, value in text.items() if key not in ("architectures", "model_type")}
    return transformers.Step3p7Config(text_config=copy.deepcopy(text), vision_config=vision)


def leave_text(path: Path) -> None:
    """Make a Step-3.5 of a Step-3.7: its text model alone, as that was released."""
    weights = load_file(path / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if "vi" not in name.split(".")[0]}
    save_file(kept, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())["text_config"]
    config |= {"architectures": ["Step3p5ForCausalLM"], "model_type": "step3p5", "dtype": "float32"}
    (path / "config.json").write_text(json.dumps(config))


def _cut_by_widths(file: Path) -> None:
    """Cut convolutions as released files have them: transformers writes three parts of one width."""
    tensors = load_file(file)
    for name in [name for name in tensors if "q_conv1d" in name]:
        names = [name.replace("q_conv1d", f"{x}_conv1d") for x in "qkv"]
        widths = [len(tensors[each.replace("conv1d", "proj")]) for each in names]
        parts = torch.cat([tensors[each] for each in names]).split(widths)
        tensors |= {each: part.clone() for each, part in zip(names, parts, strict=True)}
    save_file(tensors, file, metadata={"format": "pt"})


def _fill(
    name: str, parameter: Tensor, generator: torch.Generator, disturbance: torch.Generator, noise: float
) -> None:
    draw = torch.randn(parameter.shape, generator=generator)
    if name.endswith("A_log"):  # states that last for a text
        parameter.copy_(0.5 * draw - 2)
    elif parameter.dim() == 1:
        parameter += (0.3 if name.endswith("bias") else 0.1) * draw
    else:
        spread = 0.5 if "embed" in name else 1.5 * parameter.shape[-1] ** -0.5
        draw += noise * torch.randn(parameter.shape, generator=disturbance)
        parameter.copy_(spread * draw)


def reference(path: Path, tokens: list[int]) -> Tensor:
    """Return transformers' logits `[tokens, vocab]` in float32."""
    import transformers

    kind: Any = transformers.AutoModelForCausalLM
    own: dict[str, Any] = {}
    text = json.loads((path / "config.json").read_text())
    if text.get("model_type") == "step3p5":
        kind, own = transformers.Step3p7ForConditionalGeneration, {"config": step_config(text)}
    if json.loads((path / "config.json").read_text()).get("model_type") == "mistral4":  # which it does not know
        kind = transformers.Mistral4ForCausalLM
    model = kind.from_pretrained(path, dtype=torch.float32, attn_implementation="eager", **own)
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0]
