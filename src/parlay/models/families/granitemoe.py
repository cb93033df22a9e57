"""Granite 3 with experts (Granite team 2024, "Granite 3.0 language models"), such as 3.1-3b-a800m.

`GraniteMoeShared` differs by an expert that all rows go to.
"""

from dataclasses import replace

from parlay.checkpoints.pieces import Piece
from parlay.models.config import ModelConfig
from parlay.models.families import granite
from parlay.models.style import Experts

_NAMES = {
    "mlp.gate.weight": "block_sparse_moe.router.layer.weight",
    "mlp.shared_expert.gate_up_proj.weight": "shared_mlp.input_linear.weight",
    "mlp.shared_expert.down_proj.weight": "shared_mlp.output_linear.weight",
}


def describe(config: ModelConfig) -> ModelConfig:
    described = granite.describe(config)
    count, width = config.count("num_local_experts", 8), config.intermediate_size
    experts = Experts(
        count=count,
        top_k=config.count("num_experts_per_tok", 2),
        width=width,
        sparse=(True,) * config.num_layers,
        shared=config.count_or_zero("shared_intermediate_size", 0),
    )
    inputs, outputs = (f"block_sparse_moe.{name}_linear.weight" for name in ("input", "output"))
    stacked = config.stacked(
        {
            "mlp.experts.{}.gate_proj.weight": Piece(inputs, 0, count, (None, width, None)),
            "mlp.experts.{}.up_proj.weight": Piece(inputs, 0, count, (width, None, None)),
            "mlp.experts.{}.down_proj.weight": Piece(outputs, 0, count),
        }
    )
    style = replace(described.style, experts=experts, fused_mlp=not config.path.is_file(), mlp_bias=False)
    return replace(described, style=style, renamed=config.in_layers(_NAMES) | stacked)
