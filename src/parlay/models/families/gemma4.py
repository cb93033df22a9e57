"""Gemma 4, text (Gemma team 2026): E2B, E4B, 12B, 31B, and 26B-A4B with experts beside each network.

Layers without a window have fewer and wider heads, whose values may be what their keys are before the norm. The last
layers of the small models read an earlier layer's keys and values, and each layer has an input of its own.
"""

from dataclasses import replace
from typing import Any

from parlay.checkpoints.files import config_file
from parlay.checkpoints.pieces import expert_pieces
from parlay.errors import ModelError, shown
from parlay.models.config import ModelConfig
from parlay.models.families.gemma2 import cap
from parlay.models.rope import read_rotary
from parlay.models.style import Experts, Heads, Style

DEFAULTS: dict[str, Any] = {
    "vocab_size": 262144,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "hidden_activation": "gelu_pytorch_tanh",
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
    },
}


def describe(config: ModelConfig) -> ModelConfig:
    config.only(attention_bias=False, hidden_activation="gelu_pytorch_tanh")
    if config.raw.get("use_bidirectional_attention") != "vision":  # which is of images' tokens
        config.only(use_bidirectional_attention=None)
    windows = config.windows(lambda layer: (layer + 1) % 6 != 0, default=512)
    shared = config.count_or_zero("num_kv_shared_layers", 0)
    heads = _heads(config, windows, shared)
    wide = 2 if config.flag("use_double_wide_mlp", False) else 1
    widths = tuple(config.intermediate_size * (wide if own.source >= 0 else 1) for own in heads)
    inputs = config.count_or_zero("hidden_size_per_layer_input", 256)
    if inputs and config.count("vocab_size_per_layer_input", config.vocab_size) != config.vocab_size:
        raise ModelError(f"{config_file(config.path)}: vocab_size_per_layer_input must be vocab_size")
    style = Style(
        activation="gelu_tanh",
        head_norms=True,
        value_norms=True,
        post_norms=True,
        windows=windows,
        local_rotary=read_rotary(config.path, config.raw, "sliding_attention"),
        score_scale=1.0,
        logit_cap=cap(config, "final_logit_softcapping", None),
        embedding_scale=config.hidden_size**0.5,
        heads=heads,
        widths=widths if wide > 1 else (),
        layer_scalars=True,
        layer_inputs=inputs,
        experts=_experts(config) if config.flag("enable_moe_block", False) else None,
    )
    names = config.in_layers({"mlp.gate.weight": "router.proj.weight"})
    if style.experts is not None:
        names |= config.stacked(expert_pieces(style.experts.count, style.experts.width, stacks="experts"))
    return replace(config, style=style, tie_embeddings=config.flag("tie_word_embeddings", True), renamed=names)


def _experts(config: ModelConfig) -> Experts:
    return Experts(
        count=config.count("num_experts", None),
        top_k=config.count("top_k_experts", None),
        width=config.count("moe_intermediate_size", None),
        sparse=(True,) * config.num_layers,
        with_mlp=True,
    )


def _heads(config: ModelConfig, windows: tuple[int, ...], shared: int) -> tuple[Heads, ...]:
    """Return each layer's heads."""
    own = config.within("per_layer_config").raw
    alike = config.flag("attention_k_eq_v", False)
    wide = config.count_or_zero("num_global_key_value_heads", 0) if alike else 0
    first, found = config.num_layers - shared, list[Heads]()
    for i, window in enumerate(windows):
        given = own.get(str(i)) or {}
        if not isinstance(given, dict):
            raise ModelError(f"{config_file(config.path)}: per_layer_config of layer {i} must be an object")
        one = replace(config, raw={**config.raw, **given})
        count = one.count("num_key_value_heads", config.num_kv_heads) if window or not wide or given else wide
        width = one.count("head_dim", None) if window or given else config.count("global_head_dim", 512)
        source = -1
        if i >= first:
            source = next((j for j in range(first - 1, -1, -1) if bool(windows[j]) == bool(window)), -1)
            if source < 0:
                raise ModelError(
                    f"{config_file(config.path)}: num_kv_shared_layers={shown(shared)} leaves layer {i} none to read"
                )
        if config.num_heads % count or width % 8 or width > 512:
            raise ModelError(
                f"{config_file(config.path)}: layer {i} has {count} heads of {width} columns, which is not supported "
                f"beside {config.num_heads} heads of queries"
            )
        found.append(Heads(count=count, width=width, values=bool(window) or not alike, source=source))
    return tuple(found)
