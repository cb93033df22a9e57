"""Hunyuan with experts, such as A13B (Tencent 2025): the dense one's attention, and an expert that all rows go to."""

from dataclasses import replace
from typing import Any

from parlay.checkpoints.files import config_file
from parlay.errors import ModelError, shown
from parlay.models.config import ModelConfig
from parlay.models.families import hunyuandensev1
from parlay.models.stored import network_names
from parlay.models.style import Experts

_NAMES = {
    "mlp.gate.weight": "mlp.gate.wg.weight",
    **network_names("mlp.shared_expert", "mlp.shared_mlp"),
}


def describe(config: ModelConfig) -> ModelConfig:
    config = replace(
        config, raw={**config.raw, **{key: _alike(config, key) for key in _BY_LAYER if key in config.raw}}
    )
    config.only(use_cla=False, moe_layer_num_skipped=0, num_shared_expert=1)
    width = config.intermediate_size
    config.only(moe_intermediate_size=width)
    described = hunyuandensev1.describe(config)
    experts = Experts(
        count=config.count("num_experts", config.raw.get("num_local_experts")),
        top_k=config.count("moe_topk", config.raw.get("num_experts_per_tok", 1)),
        width=width,
        sparse=(True,) * config.num_layers,
        shared=width,
    )
    style = replace(described.style, experts=experts)
    return replace(described, style=style, renamed={**described.renamed, **config.in_layers(_NAMES)})


_BY_LAYER = "num_experts", "moe_topk", "num_shared_expert", "moe_intermediate_size"


def _alike(config: ModelConfig, key: str) -> Any:
    """Return a number that a config may list for each layer.

    Raises:
        ModelError: layers differ.
    """
    listed = config.raw[key]
    if not isinstance(listed, list):
        return listed
    if len(listed) != config.num_layers or any(each != listed[0] for each in listed):
        raise ModelError(
            f"{config_file(config.path)}: {key}={shown(listed)} is not supported; it must be the same in all of "
            f"{config.num_layers} layers"
        )
    return listed[0]
