"""Qwen3 with experts (Yang et al. 2025, arXiv 2505.09388): a Qwen3 with a mixture of many small experts."""

from dataclasses import replace

from parlay.checkpoints.files import config_file
from parlay.checkpoints.pieces import expert_pieces
from parlay.errors import ModelError, shown
from parlay.models.config import ModelConfig
from parlay.models.families.qwen2 import last_windows
from parlay.models.style import Experts, Style


def describe(config: ModelConfig) -> ModelConfig:
    config.only(hidden_act="silu", mlp_bias=False)
    experts = Experts(
        count=config.count("num_experts", config.raw.get("num_local_experts", 128)),
        top_k=config.count("num_experts_per_tok", 8),
        width=config.count("moe_intermediate_size", 768),
        normalise=config.flag("norm_topk_prob", False),
        sparse=stepped_layers(config),
    )
    style = Style(**config.attention_biases(), head_norms=True, windows=last_windows(config), experts=experts)
    # Those of Qwen3-VL are stacked, inputs first in its own files and last in those that transformers writes.
    stacks = expert_pieces(experts.count, experts.width, hidden=config.hidden_size)
    return replace(config, style=style, renamed=config.stacked(stacks))


def stepped_layers(config: ModelConfig) -> tuple[bool, ...]:
    """Return which layers have experts: every `decoder_sparse_step`-th that `mlp_only_layers` does not list.

    Raises:
        ModelError: `mlp_only_layers` is not a list.
    """
    step = config.count("decoder_sparse_step", 1)
    dense = config.raw.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise ModelError(f"{config_file(config.path)}: mlp_only_layers must list layers, not {shown(dense)}")
    return tuple(i not in dense and (i + 1) % step == 0 for i in range(config.num_layers))
