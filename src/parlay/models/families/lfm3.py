"""LFM3 (Liquid AI 2026), such as 1.7B: LFM2 with norms after each part, a gate on each head's output, and a window in
half of the layers with attention.
"""

from dataclasses import replace
from typing import Any

from parlay.models.config import ModelConfig
from parlay.models.families.lfm2 import DENSE, FINAL, convolutions
from parlay.models.rope import read_rotary
from parlay.models.style import OutputGate, Style

DEFAULTS: dict[str, Any] = {
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        "full_attention": {"rope_type": "proportional", "rope_theta": 1_000_000.0, "partial_rotary_factor": 0.5},
    },
}
_TWO_NORMS = {
    "input_layernorm.weight": "operator_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
}
_FOUR_NORMS = {
    "input_layernorm.weight": "operator_norm.weight",
    "post_attention_layernorm.weight": "post_operator_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "post_feedforward_layernorm.weight": "post_ffn_norm.weight",
}


def describe(config: ModelConfig) -> ModelConfig:
    usual = [("conv", "full_attention", "sliding_attention")[_usual(i)] for i in range(config.num_layers)]
    types = config.kinds("layer_types", ("conv", "full_attention", "sliding_attention"), usual)
    attention = ["full_attention" if kind == "conv" else kind for kind in types]
    config = replace(config, rms_norm_eps=config.number("norm_eps", config.rms_norm_eps))
    after = config.flag("use_sandwich_norm", True)
    style = Style(
        **config.attention_biases(),
        output_gate=OutputGate(separate=True, by_head=True) if config.flag("use_attention_gate", True) else None,
        head_norms=True,
        post_norms=after,
        windows=replace(config, raw={**config.raw, "layer_types": attention}).windows(lambda layer: False, 256),
        local_rotary=read_rotary(config.path, config.raw, "sliding_attention"),
        recurrent=convolutions(config, tuple(kind == "conv" for kind in types), kernel_size=7),
    )
    names = config.in_layers({**(_FOUR_NORMS if after else _TWO_NORMS), **DENSE}) | FINAL
    return replace(config, style=style, renamed=names)


def _usual(layer: int) -> int:
    """Return the kind of a layer: every fourth sees all, and every fourth but the first has a window."""
    return 1 if layer % 4 == 2 else 2 if layer % 4 == 0 and layer else 0
