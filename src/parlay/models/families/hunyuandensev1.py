"""Hunyuan, dense, and HY-MT 1.5 (Tencent 2025): each head's query and key is normalised after it turned."""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.style import Style

_NAMES = {
    f"self_attn.{x}_norm.weight": f"self_attn.{name}_layernorm.weight" for x, name in (("q", "query"), ("k", "key"))
}


def describe(config: ModelConfig) -> ModelConfig:
    config.only(hidden_act="silu")
    style = Style(**config.attention_biases(), post_rotary_norms=True)
    rotary, dim = config.rotary, config.head_dim
    scaling = config.within("rope_parameters" if config.raw.get("rope_parameters") else "rope_scaling")
    if rotary.kind == "dynamic" and "alpha" in scaling.raw:  # a larger base, whatever a text's length
        larger = rotary.theta * scaling.number("alpha", None) ** (dim / (dim - 2))
        rotary = replace(rotary, kind="default", scaling={}, theta=larger)
    return replace(config, style=style, rotary=rotary, renamed=config.in_layers(_NAMES))
