"""Kimi Linear (Kimi Team 2025, arXiv 2510.26692): Kimi delta attention, and latent attention in every fourth layer.

Nothing turns with the position. Experts are chosen as in DeepSeek-V3.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from parlay.checkpoints.files import config_file
from parlay.errors import ModelError
from parlay.models.config import ModelConfig
from parlay.models.families import deepseekv3, glm4moe
from parlay.models.kimi_delta import KimiDeltaLayers
from parlay.models.stored import network_names

_NAMES = {
    "mlp.gate.weight": "block_sparse_moe.gate.weight",
    "mlp.gate.e_score_correction_bias": "block_sparse_moe.gate.e_score_correction_bias",
    **{
        f"mlp.experts.{{}}.{x}_proj.weight": f"block_sparse_moe.experts.{{}}.{own}.weight"
        for x, own in (("gate", "w1"), ("down", "w2"), ("up", "w3"))
    },
    # transformers writes a network without experts so; the authors' files have the decoder's names.
    **network_names("mlp", "block_sparse_moe"),
    **network_names("mlp.shared_expert", "block_sparse_moe.shared_experts"),
}
# What this family's configs call what DeepSeek-V3's call otherwise.
_KEYS = {
    "num_experts": "n_routed_experts",
    "num_experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
    "moe_renormalize": "norm_topk_prob",
    "num_expert_group": "n_group",
}


def DEFAULTS(raw: Mapping[str, Any]) -> dict[str, Any]:  # noqa: N802 - a name that the loader looks for
    """Return what configs of this family call otherwise; heads have widths of their own."""
    known = {"model_max_length": "max_position_embeddings", **_KEYS}
    return {"head_dim": 64} | {name: raw[own] for own, name in known.items() if raw.get(own) is not None}


def describe(config: ModelConfig) -> ModelConfig:
    config.only(mla_use_nope=True, moe_router_activation_func="sigmoid", moe_layer_freq=1)
    linear = config.within("linear_attn_config")
    layers = KimiDeltaLayers(
        layers=_linear_layers(config, linear),
        kernel_size=linear.count("short_conv_kernel_size", config.raw.get("linear_conv_kernel_dim", 4)),
        heads=linear.count("num_heads", config.raw.get("linear_num_heads", 32)),
        width=linear.count("head_dim", config.raw.get("linear_head_dim", 128)),
        rates=config.flag("linear_rates", False),
    )
    layers.check(config)
    experts = glm4moe.experts(config)
    experts = replace(experts, sparse=config.sparse_layers(experts.sparse))
    described = deepseekv3.with_latents(config, experts, interleaved=False)
    style = replace(described.style, recurrent=layers, nope=(True,) * config.num_layers)
    return replace(described, style=style, renamed=config.in_layers(_NAMES, experts.count))


def _linear_layers(config: ModelConfig, linear: ModelConfig) -> tuple[bool, ...]:
    """Return which layers are Kimi delta attention; configs count layers from 1, or list their kinds."""
    usual, count = None, config.num_layers
    scans, attends = (linear.raw.get(key) for key in ("kda_layers", "full_attn_layers"))
    if config.raw.get("layer_types") is None and isinstance(scans, list) and isinstance(attends, list):
        if sorted(map(str, scans + attends)) != sorted(str(i + 1) for i in range(count)):
            raise ModelError(
                f"{config_file(config.path)}: kda_layers and full_attn_layers must list each of {count} layers once"
            )
        usual = ["linear_attention" if i + 1 in scans else "full_attention" for i in range(count)]
    kinds = config.kinds("layer_types", ("linear_attention", "full_attention"), usual)
    return tuple(kind == "linear_attention" for kind in kinds)
