"""Llama 4 Scout and Maverick (Meta 2025), text.

Most layers see the keys of their own chunk of positions and normalise queries and keys, without weights, after they
turned; in the others nothing turns, and queries grow with their position. A row goes to one expert, whose input is
multiplied with the sigmoid of its score, and to a shared one.
"""

from dataclasses import replace

from parlay.checkpoints.files import config_file
from parlay.checkpoints.pieces import Piece
from parlay.errors import ModelError, shown
from parlay.models.config import ModelConfig
from parlay.models.stored import network_names
from parlay.models.style import Experts, Rotary, Style

DEFAULTS = {"head_dim": 128, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0}
_NAMES = {
    "mlp.gate.weight": "feed_forward.router.weight",
    **network_names("mlp", "feed_forward"),
    **network_names("mlp.shared_expert", "feed_forward.shared_expert"),
}


def describe(config: ModelConfig) -> ModelConfig:
    config.only(hidden_act="silu", num_experts_per_tok=1, sliding_window=8192)
    if config.raw.get("no_rope_layers") == []:  # which released files have for none
        config = replace(config, raw={**config.raw, "no_rope_layers": None})
    period = config.count("no_rope_layer_interval", 4)
    turns = config.flags("no_rope_layers", [(i + 1) % period != 0 for i in range(config.num_layers)])
    types = config.kinds(
        "layer_types",
        ("chunked_attention", "full_attention"),
        ["chunked_attention" if turned else "full_attention" for turned in turns],
    )
    chunk = config.count("attention_chunk_size", 8192)
    experts = _experts(config)
    # A GGUF file does not say it: llama.cpp takes Maverick to be the model without norms.
    normed = config.flag("use_qk_norm", not (config.path.is_file() and experts.count == 128))
    style = Style(
        **config.attention_biases(),
        post_rotary_norms=normed,
        head_norm_weights=not normed,
        nope_unnormed=normed,
        interleaved=True,
        nope=tuple(not turned for turned in turns),
        chunks=tuple(chunk * (kind == "chunked_attention") for kind in types),
        experts=experts,
    )
    return replace(
        config,
        style=style,
        rotary=_growing(config),
        intermediate_size=config.count("intermediate_size_mlp", 16384),
        renamed=config.in_layers(_NAMES) | config.stacked(_stacks(experts)),
    )


def _growing(config: ModelConfig) -> Rotary:
    """Return the rotary embedding, with which queries that do not turn grow."""
    if not config.flag("attn_temperature_tuning", True):
        return config.rotary
    return replace(
        config.rotary,
        query_growth=config.number("attn_scale", 0.1),
        original=config.count("floor_scale", 8192),
        nope_growth=True,
    )


def _experts(config: ModelConfig) -> Experts:
    step = config.count("interleave_moe_layer_step", 1)
    usual = list(range(step - 1, config.num_layers, step))
    listed = usual if config.raw.get("moe_layers") is None else config.raw["moe_layers"]
    if not isinstance(listed, list) or not all(type(i) is int for i in listed):
        raise ModelError(f"{config_file(config.path)}: moe_layers must list numbers of layers, not {shown(listed)}")
    width = config.count("moe_intermediate_size", config.intermediate_size)
    return Experts(
        count=config.count("num_local_experts", 16),
        top_k=1,
        width=width,
        normalise=False,
        sparse=tuple(i in listed for i in range(config.num_layers)),
        sigmoid=True,
        shared=width,
        scaled_inputs=True,
    )


def _stacks(experts: Experts) -> dict[str, Piece]:
    """Return where experts' tensors are: inputs come before outputs, and up's outputs behind gate's."""
    gate_up, count, width = "feed_forward.experts.gate_up_proj", experts.count, experts.width
    return {
        "mlp.experts.{}.gate_proj.weight": Piece(gate_up, 0, count, (0, width, None), turned=True),
        "mlp.experts.{}.up_proj.weight": Piece(gate_up, 0, count, (width, None, None), turned=True),
        "mlp.experts.{}.down_proj.weight": Piece("feed_forward.experts.down_proj", 0, count, turned=True),
    }
