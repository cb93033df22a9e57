"""Mixtral (Jiang et al. 2024, arXiv 2401.04088): a Mistral with a mixture of experts in every layer."""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.style import Experts, Style


def describe(config: ModelConfig) -> ModelConfig:
    """Return the config with the family's style.

    Raises:
        ModelError: an option that is not served.
    """
    config.only(hidden_act="silu", attention_bias=False, mlp_bias=False)
    experts = Experts(
        count=config.count("num_local_experts", 8),
        chosen=config.count("num_experts_per_tok", 2),
        width=config.intermediate_size,
        normalise=True,
        sparse=(True,) * config.num_layers,
        prefix="block_sparse_moe",
        names=("w1", "w3", "w2"),
    )
    config.check_experts(experts)
    return replace(config, style=Style(windows=config.windows(lambda layer: True), experts=experts))
