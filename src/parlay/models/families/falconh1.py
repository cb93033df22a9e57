"""Falcon-H1 (TII 2025, arXiv 2507.22448): attention beside Mamba-2 in every layer, and factors on most of it."""

import math
from dataclasses import replace

from parlay.checkpoints.files import config_file
from parlay.errors import ModelError, shown
from parlay.models.config import ModelConfig
from parlay.models.mamba import MambaLayers, step_limits
from parlay.models.stored import network_names
from parlay.models.style import Style

_NAMES = {
    "post_attention_layernorm.weight": "pre_ff_layernorm.weight",
    **network_names("mlp", "feed_forward"),
}


def describe(config: ModelConfig) -> ModelConfig:
    config.only(hidden_act="silu", attention_bias=False, mlp_bias=False, mamba_proj_bias=False, projectors_bias=False)
    heads, inner = config.count("mamba_n_heads", 128), config.count_or_zero("mamba_d_ssm", 1024)
    inner = inner or config.count("mamba_expand", 2) * config.hidden_size
    width = config.raw.get("mamba_d_head", "auto")
    width = inner // heads if width in ("auto", None) else config.count("mamba_d_head", None)
    if width * heads != inner:
        raise ModelError(f"{config.path}: {heads} Mamba heads of {width} columns are not mamba_d_ssm={inner} columns")
    least, most = step_limits(config, config.raw.get("time_step_limit") or (0.0, math.inf))
    into, (gate, down) = config.number("ssm_in_multiplier", 1.0), _factors(config, "mlp_multipliers", 2)
    z, x, b, c, steps = (into * each for each in _factors(config, "ssm_multipliers", 5))
    mamba = MambaLayers(
        layers=(True,) * config.num_layers,
        kernel_size=config.count("mamba_d_conv", 4),
        heads=heads,
        width=width,
        groups=config.count("mamba_n_groups", 1),
        state=config.count("mamba_d_state", 256),
        conv_bias=config.flag("mamba_conv_bias", True),
        least_step=least,
        most_step=most,
        rates=config.flag("linear_rates", False),
        normed=config.flag("mamba_rms_norm", False),
        gate_first=not config.flag("mamba_norm_before_gate", True),
        scales=(z, x, b, c, steps),
        output_scale=config.number("ssm_out_multiplier", 1.0),
    )
    mamba.check(config)
    # Queries, keys and values are linear in their input.
    attended = config.number("attention_in_multiplier", 1.0)
    style = Style(
        recurrent=mamba,
        recurrent_parallel=True,
        score_scale=attended**2 * config.number("key_multiplier", 1.0) * config.head_dim**-0.5,
        attention_scale=attended * config.number("attention_out_multiplier", 1.0),
        gate_scale=gate,
        network_scale=down,
        embedding_scale=config.number("embedding_multiplier", 1.0),
        logit_divisor=1 / config.number("lm_head_multiplier", 1.0),
    )
    names = config.in_layers(_NAMES) | {"model.norm.weight": "model.final_layernorm.weight"}
    return replace(config, style=style, renamed=names)


def folded(config: ModelConfig) -> tuple[ModelConfig, dict[str, float]]:
    """Return the config of the same model with all factors in its weights, and these by endings of tensors' names.

    Those of Mamba-2 are in `MambaLayers`.
    """
    style, into = config.style, config.number("attention_in_multiplier", 1.0)
    plain = Style(recurrent=style.recurrent, recurrent_parallel=True, score_scale=config.head_dim**-0.5)
    factors = {
        "embed_tokens.weight": style.embedding_scale,
        "lm_head.weight": 1 / style.logit_divisor,
        "self_attn.q_proj.weight": into,
        "self_attn.k_proj.weight": into * config.number("key_multiplier", 1.0),
        "self_attn.v_proj.weight": into,
        "self_attn.o_proj.weight": config.number("attention_out_multiplier", 1.0),
        "mlp.gate_proj.weight": style.gate_scale,
        "mlp.down_proj.weight": style.network_scale,
    }
    return replace(config, style=plain), factors


def _factors(config: ModelConfig, key: str, count: int) -> tuple[float, ...]:
    """Return a list of so many factors.

    Raises:
        ModelError: it is something else.
    """
    values = config.raw.get(key) or [1.0] * count
    if not isinstance(values, list) or len(values) != count or not all(type(v) in (int, float) for v in values):
        raise ModelError(f"{config_file(config.path)}: {key} must list {count} numbers, not {shown(values)}")
    return tuple(map(float, values))
