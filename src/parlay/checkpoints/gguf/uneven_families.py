"""Architectures of GGUF files whose layers are unlike each other: in heads, rotary embeddings or experts.

Source: llama.cpp's converters.
"""

from parlay.checkpoints.gguf.family import GATE, NEXT, WINDOW, WINDOWS, Family, mixture

UNEVEN = {
    "laguna": Family(
        "LagunaForCausalLM",
        GATE,
        options=WINDOWS
        | mixture(
            shared_feed_forward_length="shared_expert_intermediate_size",
            weights_scale="moe_routed_scaling_factor",
        )
        | {"leading_dense_block_count": "num_dense_layers"},
        fixed={"sliding_window": None, "sliding_window_pattern": 4},
        partial=True,
        listed=True,
        queries="num_attention_heads_per_layer",
        gating="gating",
        window_rotary=True,
    ),
    "mimo2": Family(
        "MiMoV2FlashForCausalLM",
        {"layer_output_norm": "nextn.shared_head_norm"},
        options=WINDOW
        | mixture("n_routed_experts", group_count="n_group", group_used_count="topk_group")
        | {
            "attention.sliding_window_pattern": "sliding_window_pattern",
            "attention.value_scale": "attention_value_scale",
        }
        | NEXT,
        fixed={"n_group": 1, "topk_group": 1, "attention_value_scale": None},
        partial=True,
        listed=True,
        window_rotary=True,
        value_width="v_head_dim",
        window_sizes={"attention.head_count_kv": "swa_num_key_value_heads"},
        sparse="mlp_layer_types",
    ),
    "step35": Family(
        "Step3p5ForCausalLM",
        GATE,
        norm_offset=1.0,
        options=WINDOWS
        | mixture(
            "n_routed_experts",
            shared_feed_forward_length="share_expert_dim",
            weights_scale="moe_router_scaling_factor",
            weights_norm="norm_expert_weight",
        )
        | {
            "leading_dense_block_count": "first_k_dense_replace",
            "swiglu_clamp_exp": "swiglu_limits",
            "swiglu_clamp_shexp": "swiglu_limits_shared",
        }
        | NEXT,
        fixed={"sliding_window": None},
        partial=True,
        listed=True,
        window_rotary=True,
        window_sizes={"attention.head_count": "num_sliding_attention_heads"},
        halved=True,
        sparse="mlp_layer_types",
    ),
    "cohere2moe": Family(
        "Cohere2MoeForCausalLM",
        options=mixture(
            shared_count="num_shared_experts",
            gating_func="expert_selection_fn",
            weights_norm="norm_topk_prob",
        )
        | {"logit_scale": "logit_scale"}
        | WINDOWS
        | {"leading_dense_block_count": "first_k_dense_replace"}
        | NEXT,
        fixed={"expert_selection_fn": "sigmoid", "norm_topk_prob": False},
        layer_norms=True,
        listed=True,
    ),
    "llama4": Family(
        "Llama4ForCausalLM",
        options=mixture("num_local_experts")
        | {
            "feed_forward_length": "intermediate_size_mlp",
            "interleave_moe_layer_step": "interleave_moe_layer_step",
        }
        | WINDOW,
    ),
    "hy_v3": Family(
        "HYV3ForCausalLM",
        options=mixture(
            shared_feed_forward_length="shared_intermediate_size",
            weights_scale="router_scaling_factor",
            weights_norm="route_norm",
        )
        | NEXT,
        whole={"exp_probs_b": "mlp.gate.e_score_correction_bias"},
        sparse="mlp_layer_types",
    ),
}
