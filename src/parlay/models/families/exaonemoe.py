"""K-EXAONE (LG AI Research 2026), such as 236B-A23B: EXAONE 4's heads and windows, DeepSeek-V3's router, and norms
before attention and the network.
"""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.families import exaone4, glm4moe
from parlay.models.mtp import QWEN

DEFAULTS = {"num_experts": 64, "num_shared_experts": 1, "moe_intermediate_size": 1024, "routed_scaling_factor": 2.5}
MTP = replace(QWEN, dense=True)
_NAMES = glm4moe.NAMES | {"mlp.gate.e_score_correction_bias": "mlp.e_score_correction_bias"}


def describe(config: ModelConfig) -> ModelConfig:
    config.only(swiglu_limits=None)
    count, shared = config.count("num_experts", 64), config.count("num_shared_experts", 1)
    sparse = config.sparse_layers(config.layers_from(config.count_or_zero("first_k_dense_replace", 1)))
    called = {"n_routed_experts": count, "n_shared_experts": shared}
    experts = glm4moe.experts(replace(config, raw={**config.raw, **called}), sparse)
    style = replace(exaone4.describe(config).style, pre_norms=True, post_norms=False, experts=experts)
    return replace(config, style=style, renamed=config.in_layers(_NAMES))
