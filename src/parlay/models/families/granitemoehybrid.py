"""Granite 4 (IBM 2025): Mamba-2 in most layers, or in none, and a feed-forward network beside experts, or alone."""

import math
from dataclasses import replace

from parlay.checkpoints.files import config_file
from parlay.errors import ModelError, shown
from parlay.models.config import ModelConfig
from parlay.models.families import granite, granitemoeshared
from parlay.models.mamba import MambaLayers, step_limits

_NAMES = {
    "mlp.gate_up_proj.weight": "shared_mlp.input_linear.weight",
    "mlp.down_proj.weight": "shared_mlp.output_linear.weight",
}
_RECURRENT = ("mamba", "linear_attention")


def describe(config: ModelConfig) -> ModelConfig:
    kinds = config.raw.get("layer_types") or config.raw.get("layers_block_type")
    if (
        not isinstance(kinds, list)
        or len(kinds) != config.num_layers
        or not all(kind in ("attention", "full_attention", *_RECURRENT) for kind in kinds)
    ):
        raise ModelError(
            f"{config_file(config.path)}: layer_types must list mamba or attention for each of {config.num_layers} "
            f"layers, not {shown(kinds)}"
        )
    if config.raw.get("num_local_experts"):
        described = granitemoeshared.describe(config)
    else:
        described = replace(
            granite.describe(config),
            intermediate_size=config.count("shared_intermediate_size", 1024),
            renamed=config.in_layers(_NAMES),
        )
        described = replace(described, style=replace(described.style, fused_mlp=not config.path.is_file()))
    style = described.style
    if config.raw.get("position_embedding_type") != "rope" and not config.raw.get("rope_finetuned"):
        style = replace(style, nope=(True,) * config.num_layers)
    if any(kind in _RECURRENT for kind in kinds):
        style = replace(style, recurrent=_mamba(config, tuple(kind in _RECURRENT for kind in kinds)))
    return replace(described, style=style)


def _mamba(config: ModelConfig, layers: tuple[bool, ...]) -> MambaLayers:
    heads = config.count("mamba_n_heads", 128)
    width = config.raw.get("mamba_d_head", "auto")
    inner = config.count("mamba_expand", 2) * config.hidden_size
    least, most = step_limits(config, config.raw.get("time_step_limit") or (0.0, math.inf))
    found = MambaLayers(
        layers=layers,
        kernel_size=config.count("mamba_d_conv", 4),
        heads=heads,
        width=inner // heads if width == "auto" else config.count("mamba_d_head", None),
        groups=config.count("mamba_n_groups", 1),
        state=config.count("mamba_d_state", 256),
        conv_bias=config.flag("mamba_conv_bias", True),
        bias=config.flag("mamba_proj_bias", False),
        least_step=least,
        most_step=most,
        rates=config.flag("linear_rates", False),
    )
    found.check(config)
    return found
