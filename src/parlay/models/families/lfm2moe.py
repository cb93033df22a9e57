"""LFM2 with experts (Liquid AI 2025, arXiv 2511.23404): LFM2 with DeepSeek-V3's router, without groups."""

from dataclasses import replace

from parlay.checkpoints.pieces import Piece
from parlay.models.config import ModelConfig
from parlay.models.families import lfm2
from parlay.models.style import Experts, Style

DEFAULTS = lfm2.DEFAULTS
_ROUTER = {
    "mlp.gate.weight": "feed_forward.gate.weight",
    "mlp.gate.e_score_correction_bias": "feed_forward.expert_bias",
}


def describe(config: ModelConfig) -> ModelConfig:
    experts = Experts(
        count=config.count("num_experts", 32),
        top_k=config.count("num_experts_per_tok", 4),
        width=config.count("moe_intermediate_size", 1792),
        normalise=config.flag("norm_topk_prob", True),
        sparse=config.layers_from(config.count_or_zero("num_dense_layers", 2)),
        sigmoid=True,
        selection_bias=config.flag("use_expert_bias", True),
        factor=config.number("routed_scaling_factor", 1.0),
    )
    width, gate_up, down = experts.width, "feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"
    places = {"gate": (gate_up, (0, width, None)), "up": (gate_up, (width, None, None)), "down": (down, (None,) * 3)}
    stacks = {
        f"mlp.experts.{{}}.{own}_proj.weight": Piece(
            name, 0, experts.count, outputs, alone=f"feed_forward.experts.{{}}.{lfm2.MLP[own]}.weight"
        )
        for own, (name, outputs) in places.items()
    }
    names = config.in_layers(lfm2.NAMES | lfm2.DENSE | _ROUTER) | lfm2.FINAL
    config = replace(config, rms_norm_eps=config.number("norm_eps", config.rms_norm_eps))
    style = Style(head_norms=True, recurrent=lfm2.convolutions(config, lfm2.convolved(config)), experts=experts)
    return replace(config, style=style, renamed=names | config.stacked(stacks))
