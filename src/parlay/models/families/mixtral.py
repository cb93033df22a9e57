"""Mixtral (Jiang et al. 2024, arXiv 2401.04088): a Mistral with a mixture of experts in every layer."""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.style import Experts, Style

# What this family and MiniMax-M2 call their experts' tensors.
NAMES = {
    "mlp.gate.weight": "block_sparse_moe.gate.weight",
    "mlp.experts.{}.gate_proj.weight": "block_sparse_moe.experts.{}.w1.weight",
    "mlp.experts.{}.up_proj.weight": "block_sparse_moe.experts.{}.w3.weight",
    "mlp.experts.{}.down_proj.weight": "block_sparse_moe.experts.{}.w2.weight",
}


def describe(config: ModelConfig) -> ModelConfig:
    config.only(hidden_act="silu", attention_bias=False, mlp_bias=False)
    experts = Experts(
        count=config.count("num_local_experts", 8),
        top_k=config.count("num_experts_per_tok", 2),
        width=config.intermediate_size,
        sparse=(True,) * config.num_layers,
    )
    style = Style(windows=config.windows(lambda layer: True), experts=experts)
    return replace(config, style=style, renamed=config.in_layers(NAMES, experts.count))
