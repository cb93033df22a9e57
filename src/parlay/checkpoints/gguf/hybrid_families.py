"""What GGUF files call models with recurrent layers.

Source: llama.cpp's converters.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from parlay.checkpoints.gguf.family import DEEPSEEK_MOE, GRANITE, LAST_NORM, LATENT_RANKS, NEXT, Family, mixture

_CONVOLUTION = {
    "shortconv.conv": "conv.conv",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.out_proj": "conv.out_proj",
}
_DELTA_NET = LAST_NORM | {
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
_DELTA_OPTIONS = {
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
    **NEXT,
}
# Layers of Mamba-2, whatever a family calls their sizes.
_MAMBA = Family(
    "",
    {
        "ssm_in": "mamba.in_proj",
        "ssm_conv1d": "mamba.conv1d",
        "ssm_norm": "mamba.norm",
        "ssm_out": "mamba.out_proj",
    },
    fixed={"linear_rates": True},
    whole={"ssm_a": "mamba.A_log", "ssm_d": "mamba.D", "ssm_dt.bias": "mamba.dt_bias"},
    squeezed=("mamba.conv1d.weight",),
    flat=("mamba.A_log", "mamba.D", "mamba.norm.weight"),
)
_MAMBA_SIZES = {
    "ssm.conv_kernel": "mamba_d_conv",
    "ssm.state_size": "mamba_d_state",
    "ssm.group_count": "mamba_n_groups",
    "ssm.time_step_rank": "mamba_n_heads",
}
_SECTIONS = 11, 11, 10, 0
_SHARED = {"shared_feed_forward_length": "shared_expert_intermediate_size"}


def _delta_nets(architecture: str, options: dict[str, str], sections: tuple[int, ...] = (), **fixed: Any) -> Family:
    return Family(
        architecture,
        _DELTA_NET,
        norm_offset=1.0,
        options=_DELTA_OPTIONS | options,
        fixed={"linear_rates": True, **fixed},
        partial=True,
        recurrent="linear_attention",
        value="linear_value_head_dim",
        whole={"ssm_a": "linear_attn.A_log", "ssm_dt.bias": "linear_attn.dt_bias"},
        squeezed=("conv1d.weight",),
        recurrent_key="attention.recurrent_layers",
        sections=sections,
    )


def _convolutions(architecture: str, options: dict[str, str]) -> Family:
    return Family(
        architecture,
        _CONVOLUTION,
        options=options | {"shortconv.l_cache": "conv_L_cache"},
        fixed={"block_auto_adjust_ff_dim": False},
        recurrent="conv",
        squeezed=("conv.conv.weight",),
        outer={"token_embd_norm": "model.norm"},
    )


def _nemotron(options: dict[str, str]) -> Family:
    return replace(
        _MAMBA,
        architecture="NemotronHForCausalLM",
        inner=LAST_NORM | _MAMBA.inner,  # an MTP layer has experts behind attention
        options=options
        | {
            "ssm.conv_kernel": "conv_kernel",
            "ssm.state_size": "ssm_state_size",
            "ssm.group_count": "n_groups",
            "ssm.time_step_rank": "mamba_num_heads",
        }
        | NEXT,
        recurrent="mamba",
        single_part_layers=True,
        value="mamba_head_dim",
    )


HYBRIDS = {
    "granitehybrid": replace(
        _MAMBA,
        architecture="GraniteMoeHybridForCausalLM",
        interleaved=True,
        options=GRANITE
        | mixture("num_local_experts", width=None, shared_feed_forward_length="shared_intermediate_size")
        | _MAMBA_SIZES
        | {"rope.scaling.finetuned": "rope_finetuned"},
        fixed=_MAMBA.fixed | {"rope_finetuned": True, "num_local_experts": 0},
        recurrent="mamba",
        value="mamba_d_head",
    ),
    "falcon-h1": replace(
        _MAMBA,
        architecture="FalconH1ForCausalLM",
        options=_MAMBA_SIZES | {"ssm.inner_size": "mamba_d_ssm"},
        fixed=_MAMBA.fixed | {"mamba_norm_before_gate": False},  # the class's factors are in the weights
        whole=_MAMBA.whole | {"ffn_norm": "post_attention_layernorm.weight"},
    ),
    "nemotron_h": _nemotron({}),
    "nemotron_h_moe": _nemotron(
        mixture(
            "n_routed_experts",
            shared_feed_forward_length="moe_shared_expert_intermediate_size",
            weights_scale="routed_scaling_factor",
            weights_norm="norm_topk_prob",
            group_count="n_group",
            group_used_count="topk_group",
        )
        | {"moe_latent_size": "moe_latent_size"}
    ),
    "kimi-linear": Family(
        "KimiLinearForCausalLM",
        {
            "ssm_norm": "self_attn.o_norm",
            "ssm_beta": "self_attn.b_proj",
            **{f"ssm_{x}": f"self_attn.{x}_proj" for x in ("f_a", "f_b", "g_a", "g_b")},
            **{f"ssm_conv1d_{x}": f"self_attn.{x}_conv1d" for x in "qkv"},
        },
        options=DEEPSEEK_MOE
        | LATENT_RANKS
        | {
            "ssm.conv_kernel": "linear_conv_kernel_dim",
            "kda.head_dim": "linear_head_dim",
            "attention.head_count": "linear_num_heads",
        },
        fixed={"n_group": 1, "topk_group": 1, "norm_topk_prob": True, "linear_rates": True},
        latent=True,
        recurrent="linear_attention",
        whole={"ssm_a": "self_attn.A_log", "ssm_dt.bias": "self_attn.dt_bias"},
        flat=("self_attn.A_log", *(f"self_attn.{x}_conv1d.weight" for x in "qkv")),
    ),
    "lfm2": _convolutions("Lfm2ForCausalLM", {}),
    "lfm2moe": _convolutions(
        "Lfm2MoeForCausalLM",
        mixture() | {"leading_dense_block_count": "num_dense_layers"},
    ),
    "qwen35": _delta_nets("Qwen3_5ForCausalLM", {}, _SECTIONS, linear_heads_tiled=True),
    "qwen35moe": _delta_nets(
        "Qwen3_5MoeForCausalLM",
        mixture(**_SHARED),
        sections=_SECTIONS,
        linear_heads_tiled=True,
    ),
    "qwen3next": _delta_nets(
        "Qwen3NextForCausalLM",
        mixture(**_SHARED),
        linear_rows_apart=True,
    ),
}
