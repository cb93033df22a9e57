"""Architectures of GGUF files whose layers are unlike each other in their experts.

Source: llama.cpp's converters.
"""

from parlay.checkpoints.gguf.family import Family, mixture

MIXTURES = {
    "cohere2moe": Family(
        "Cohere2MoeForCausalLM",
        options=mixture(
            feed_forward_length="moe_intermediate_size",
            shared_count="num_shared_experts",
            gating_func="expert_selection_fn",
            weights_norm="norm_topk_prob",
        )
        | {
            "logit_scale": "logit_scale",
            "attention.sliding_window": "sliding_window",
            "attention.sliding_window_pattern": "sliding_window_pattern",
            "leading_dense_block_count": "first_k_dense_replace",
            "nextn_predict_layers": "num_nextn_predict_layers",
        },
        fixed={"expert_selection_fn": "sigmoid", "norm_topk_prob": False},
        layer_norms=True,
        listed=True,
    ),
    "llama4": Family(
        "Llama4ForCausalLM",
        options=mixture("num_local_experts", feed_forward_length="moe_intermediate_size")
        | {
            "feed_forward_length": "intermediate_size_mlp",
            "interleave_moe_layer_step": "interleave_moe_layer_step",
            "attention.sliding_window": "sliding_window",
        },
    ),
    "hy_v3": Family(
        "HYV3ForCausalLM",
        options=mixture(
            feed_forward_length="moe_intermediate_size",
            shared_feed_forward_length="shared_intermediate_size",
            weights_scale="router_scaling_factor",
            weights_norm="route_norm",
        )
        | {"nextn_predict_layers": "num_nextn_predict_layers"},
        whole={"exp_probs_b": "mlp.gate.e_score_correction_bias"},
        sparse="mlp_layer_types",
    ),
}
