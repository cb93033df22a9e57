"""ERNIE 4.5 with experts, such as 21B-A3B (Baidu ERNIE team 2025, "ERNIE 4.5 technical report").

Experts are chosen by softmax plus a bias.
"""

from dataclasses import replace

from parlay.checkpoints.files import config_file
from parlay.checkpoints.pieces import Piece
from parlay.errors import ModelError, shown
from parlay.models.config import ModelConfig
from parlay.models.families import ernie4_5
from parlay.models.mtp import MTPNames
from parlay.models.stored import network_names
from parlay.models.style import Experts

_NAMES = network_names("mlp.shared_expert", "mlp.shared_experts", ("weight", "bias"))
# Its MTP layer ends with the model's own norm.
MTP = MTPNames(
    layer="model.mtp_block.{1}.",
    join="model.mtp_linear_proj.{1}.weight",
    token_norm="model.mtp_emb_norm.{1}.weight",
    state_norm="model.mtp_hidden_norm.{1}.weight",
    norm="model.norm.weight",
    dense=True,
)
_BIAS = {"mlp.gate.e_score_correction_bias": Piece("mlp.moe_statics.e_score_correction_bias", 0, 1)}


def describe(config: ModelConfig) -> ModelConfig:
    described = ernie4_5.describe(config)
    first, last = (_layer(config, f"moe_layer_{end}_index", default) for end, default in (("start", 1), ("end", -1)))
    step = config.count("moe_layer_interval", 1)
    width = config.count("moe_intermediate_size", 1536)
    experts = Experts(
        count=config.count("moe_num_experts", config.raw.get("num_local_experts", 64)),
        top_k=config.count("moe_k", config.raw.get("num_experts_per_tok", 6)),
        width=width,
        sparse=tuple((i + 1) % step == 0 and first <= i <= last for i in range(config.num_layers)),
        selection_bias=True,
        shared=width * config.count_or_zero("moe_num_shared_experts", 2),
    )
    return replace(
        described,
        style=replace(described.style, experts=experts),
        renamed=config.in_layers(_NAMES) | config.stacked(_BIAS),
    )


def _layer(config: ModelConfig, key: str, default: int) -> int:
    """Return the number of a layer; -1 is the last."""
    value = config.raw.get(key, default)
    if type(value) is not int or not -1 <= value < config.num_layers:
        raise ModelError(f"{config_file(config.path)}: {key} must be a layer's number or -1, not {shown(value)}")
    return value % config.num_layers
