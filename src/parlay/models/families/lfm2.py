"""LFM2 and LFM2.5 (Liquid AI 2025, arXiv 2511.23404): gated short convolutions, and attention in some layers."""

from dataclasses import replace
from typing import Any

from parlay.checkpoints.files import config_file
from parlay.errors import ModelError, shown
from parlay.models.config import ModelConfig
from parlay.models.short_conv import ShortConvs
from parlay.models.style import Style

DEFAULTS: dict[str, Any] = {
    "tie_word_embeddings": True,
    "rope_theta": 1_000_000.0,
    "rms_norm_eps": 1e-5,
}
NAMES = {
    "input_layernorm.weight": "operator_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.o_proj.weight": "self_attn.out_proj.weight",
    "self_attn.q_norm.weight": "self_attn.q_layernorm.weight",
    "self_attn.k_norm.weight": "self_attn.k_layernorm.weight",
}
FINAL = {"model.norm.weight": "model.embedding_norm.weight"}
MLP = {"gate": "w1", "up": "w3", "down": "w2"}
DENSE = {f"mlp.{own}_proj.weight": f"feed_forward.{name}.weight" for own, name in MLP.items()}


def describe(config: ModelConfig) -> ModelConfig:
    config = replace(
        config, intermediate_size=_inner_width(config), rms_norm_eps=config.number("norm_eps", config.rms_norm_eps)
    )
    style = Style(head_norms=True, recurrent=convolutions(config, convolved(config)))
    return replace(config, style=style, renamed=config.in_layers({**NAMES, **DENSE}) | FINAL)


def convolved(config: ModelConfig) -> tuple[bool, ...]:
    """Return of each layer whether it is a convolution.

    Raises:
        ModelError: the list does not fit the layers.
    """
    attention = config.raw.get("full_attn_idxs")
    attention = range(config.num_layers) if attention is None else attention
    if not isinstance(attention, list | range):
        raise ModelError(f"{config_file(config.path)}: full_attn_idxs must list layers, not {shown(attention)}")
    usual = ["full_attention" if i in attention else "conv" for i in range(config.num_layers)]
    return tuple(kind == "conv" for kind in config.kinds("layer_types", ("conv", "full_attention"), usual))


def convolutions(config: ModelConfig, layers: tuple[bool, ...], kernel_size: int = 3) -> ShortConvs:
    """Return the layers that are convolutions, usually of that kernel size.

    Raises:
        ModelError: the convolution's width is not supported.
    """
    kernel_size = config.count("conv_L_cache", kernel_size)
    if not 2 <= kernel_size <= 8:
        raise ModelError(f"{config_file(config.path)}: conv_L_cache={kernel_size} is not supported; 2 to 8 are")
    return ShortConvs(layers, kernel_size, config.flag("conv_bias", False))


def _inner_width(config: ModelConfig) -> int:
    """Return the width of the feed-forward network, which the config may give as that of one without a gate."""
    width = config.count("block_ff_dim", config.intermediate_size)
    if not config.flag("block_auto_adjust_ff_dim", True):
        return width
    width = int(config.number("block_ffn_dim_multiplier", 1.0) * int(2 * width / 3))
    multiple = config.count("block_multiple_of", 256)
    return -(-width // multiple) * multiple
