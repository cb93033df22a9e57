"""North-Mini-Code (Cohere 2026): Command A's layers with experts, whose sum may be averaged with a shared one."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from parlay.checkpoints.files import config_file
from parlay.errors import ModelError, shown
from parlay.models.config import ModelConfig
from parlay.models.families import cohere2, glm4moe
from parlay.models.mtp import DEEPSEEK
from parlay.models.style import Experts

DEFAULTS = {"head_dim": 128}
MTP = replace(DEEPSEEK, rotated=True)
_SIGMOIDS = {"softmax": False, "sigmoid": True, 1: False, 2: True}  # the numbers are those of GGUF files
_SHARES = {"average": 0.5, "sum": 1.0}


def describe(config: ModelConfig) -> ModelConfig:
    first = config.count_or_zero("first_k_dense_replace", 0)
    usual = ["dense" if i < first else "sparse" for i in range(config.num_layers)]
    kinds = config.kinds("mlp_layer_types", ("dense", "sparse"), usual)
    before = config.count("prefix_dense_sliding_window_pattern", 1)
    after = config.count("sliding_window_pattern", 4)
    periods = [(i + 1, before) if i < first else (i - first + 1, after) for i in range(config.num_layers)]
    types = [("full_attention", "sliding_attention")[place % period != 0] for place, period in periods]
    types = config.raw.get("layer_types") or types
    described = cohere2.describe(replace(config, raw={**config.raw, "layer_types": types}))
    style = replace(
        described.style,
        nope=tuple(
            still and not (kind == "dense" and before == 1)
            for still, kind in zip(described.style.nope, kinds, strict=True)
        ),
        experts=_experts(config, tuple(kind == "sparse" for kind in kinds)),
    )
    eps = described.rms_norm_eps
    if config.raw.get("rms_norm_eps") is not None:
        style, eps = replace(style, layer_norms=False), config.rms_norm_eps
    return replace(
        described,
        raw=config.raw,
        style=style,
        rms_norm_eps=eps,
        intermediate_size=config.count_or_zero("prefix_dense_intermediate_size", 0) or config.intermediate_size,
        renamed=config.in_layers(glm4moe.NAMES),
    )


def _experts(config: ModelConfig, sparse: tuple[bool, ...]) -> Experts:
    width = config.count("moe_intermediate_size", config.intermediate_size)
    sigmoid = bool(_named(config, "expert_selection_fn", _SIGMOIDS, "softmax"))
    shared = config.count_or_zero("num_shared_experts", 0)
    share = _named(config, "shared_expert_combination_strategy", _SHARES, "average") if shared else 1.0
    return Experts(
        count=config.count("num_experts", 8),
        top_k=config.count("num_experts_per_tok", 2),
        width=width,
        normalise=not sigmoid or config.flag("norm_topk_prob", True),
        sparse=sparse,
        sigmoid=sigmoid,
        factor=share,
        shared=shared * width,
        shared_factor=share,
    )


def _named(config: ModelConfig, key: str, supported: Mapping[Any, float], default: str) -> float:
    """Return what a key's word means.

    Raises:
        ModelError: it is none of those that are supported.
    """
    word = config.raw.get(key, default)
    if not isinstance(word, str | int) or word not in supported:
        words = " or ".join(each for each in supported if isinstance(each, str))
        raise ModelError(f"{config_file(config.path)}: {key} must be {words}, not {shown(word)}")
    return supported[word]
