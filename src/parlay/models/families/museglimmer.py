"""Muse-Glimmer-30B (Meta 2026), text: normalised embeddings, gated attention, norms before and after, and a window in
three of four layers, whose queries and keys alone turn.
"""

from dataclasses import replace
from typing import Any

from parlay.checkpoints.files import config_file
from parlay.errors import ModelError, shown
from parlay.models.config import ModelConfig
from parlay.models.families.graniteswa import with_bases
from parlay.models.style import OutputGate, Style

DEFAULTS: dict[str, Any] = {
    "vocab_size": 202_048,
    "head_dim": 128,
    "num_key_value_heads": 2,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
}


def describe(config: ModelConfig) -> ModelConfig:
    # Some files carry the hidden_act of the class that this one is made from; hidden_activation is what counts.
    key = "hidden_activation" if config.raw.get("hidden_activation") else "hidden_act"
    config.only(**{key: "silu"}, attention_bias=False, mlp_bias=False)
    last = config.num_layers - 1
    style = Style(
        output_gate=OutputGate(separate=True),
        head_norms=True,
        head_norm_weights=False,
        post_norms=True,
        post_norm_eps=config.number("post_norm_eps", 1e-8),
        plus_one=True,
        final_plus_one=False,
        windows=config.windows(lambda layer: (last - layer) % 4 != 0, default=2048),
        score_scale=config.number("qk_scale_factor", 3.87) * config.head_dim**-0.5,
        embedding_norm=True,
        logit_divisor=1 / config.number("output_multiplier", 0.19611613513818404),
        logit_cap=config.number("final_logit_softcapping", 20.0),
    )
    turning = [0.0 if (last - layer) % 4 == 0 else config.rotary.theta for layer in range(config.num_layers)]
    described = with_bases(replace(config, style=style), turning)
    if described.style.local_rotary is not None or described.rotary != config.rotary:
        raise ModelError(  # transformers takes rope_theta for all of them
            f"{config_file(config.path)}: layer_rope_theta={shown(config.raw['layer_rope_theta'])} is not supported; "
            f"each must be 0 or rope_theta, {config.rotary.theta:g}"
        )
    return described
