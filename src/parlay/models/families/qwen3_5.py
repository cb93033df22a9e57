"""Qwen3.5 and 3.6 (Qwen team 2026): gated delta nets, and gated attention in every fourth layer."""

from dataclasses import replace

from parlay.checkpoints.config import FOR_MLX
from parlay.models.config import ModelConfig
from parlay.models.delta_net import DeltaNets
from parlay.models.style import Experts, OutputGate, Style


def describe(config: ModelConfig) -> ModelConfig:
    return with_delta_nets(config, None)


def with_delta_nets(config: ModelConfig, experts: Experts | None, *, fused: bool = False) -> ModelConfig:
    """Return the config with the style of Qwen3-Next and what came after it.

    Args:
        config: the model's config.
        experts: the mixture, if there is one.
        fused: see `DeltaNets`.

    Raises:
        ModelError: an option that is not supported.
    """
    config.only(hidden_act="silu", attention_bias=False)
    nets = DeltaNets(
        layers=_linear_layers(config),
        kernel_size=config.count("linear_conv_kernel_dim", 4),
        key_heads=config.count("linear_num_key_heads", 16),
        value_heads=config.count("linear_num_value_heads", 32),
        key=config.count("linear_key_head_dim", 128),
        value=config.count("linear_value_head_dim", 128),
        fused=fused and not config.flag("linear_rows_apart", False),
        fused_gates=fused,
        tiled=config.flag("linear_heads_tiled", False),
        rates=config.flag("linear_rates", False),
    )
    nets.check(config)
    partial = config.within("rope_parameters").number(
        "partial_rotary_factor", config.number("partial_rotary_factor", 0.25)
    )
    style = Style(
        output_gate=OutputGate() if config.flag("attn_output_gate", True) else None,
        head_norms=True,
        plus_one=not config.flag(FOR_MLX, False),  # MLX stores the sums
        recurrent=nets,
        experts=experts,
    )
    return replace(config, style=style, rotary=replace(config.rotary, partial=partial))


def _linear_layers(config: ModelConfig) -> tuple[bool, ...]:
    every = config.count("full_attention_interval", 4)
    usual = ["full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(config.num_layers)]
    types = config.kinds("layer_types", ("linear_attention", "full_attention"), usual)
    return tuple(kind == "linear_attention" for kind in types)
