"""GLM-4.5, 4.6 and 4.7 (GLM team 2025, arXiv 2508.06471): DeepSeek-V3's router, and half of a head's columns turn."""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.mtp import DEEPSEEK
from parlay.models.stored import network_names
from parlay.models.style import Experts, Style

NAMES = network_names("mlp.shared_expert", "mlp.shared_experts")
MTP = DEEPSEEK


def describe(config: ModelConfig) -> ModelConfig:
    config.only(mlp_bias=False)
    bias = config.flag("qkv_bias", config.flag("attention_bias", False))
    style = Style(qkv_bias=bias, head_norms=config.flag("use_qk_norm", False), experts=experts(config))
    partial = config.within("rope_parameters").number(
        "partial_rotary_factor", config.number("partial_rotary_factor", 0.5)
    )
    rotary = replace(config.rotary, partial=partial)
    return replace(config, style=style, rotary=rotary, renamed=config.in_layers(NAMES))


def experts(config: ModelConfig, sparse: tuple[bool, ...] | None = None) -> Experts:
    """Return the mixture, in DeepSeek-V3's words.

    Args:
        config: the model's config.
        sparse: whether each layer has experts, where `first_k_dense_replace` does not say it.

    Raises:
        ModelError: an option that is not supported.
    """
    config.only(hidden_act="silu")
    width = config.count("moe_intermediate_size", 1408)
    return Experts(
        count=config.count("n_routed_experts", config.raw.get("num_local_experts", 128)),
        top_k=config.count("num_experts_per_tok", 8),
        width=width,
        normalise=config.flag("norm_topk_prob", True),
        sparse=config.layers_from(config.count_or_zero("first_k_dense_replace", 1)) if sparse is None else sparse,
        sigmoid=True,
        selection_bias=True,
        groups=config.count("n_group", 1),
        kept_groups=config.count("topk_group", 1),
        factor=config.number("routed_scaling_factor", 1.0),
        shared=width * config.count_or_zero("n_shared_experts", 1),
    )
