"""DeepSeek-V3 and R1 (DeepSeek-AI 2024, arXiv 2412.19437): latent attention, and experts chosen by sigmoids."""

import math
from dataclasses import replace

from parlay.errors import ModelError
from parlay.models.config import ModelConfig
from parlay.models.families import glm4moe
from parlay.models.mtp import DEEPSEEK
from parlay.models.style import Experts, Latent, Style

DEFAULTS = {"head_dim": 64}  # where files have none: heads have widths of their own
MTP = DEEPSEEK


def describe(config: ModelConfig) -> ModelConfig:
    experts = glm4moe.experts(config)
    return with_latents(config, experts, interleaved=config.flag("rope_interleave", True))


def with_latents(config: ModelConfig, experts: Experts | None, *, interleaved: bool) -> ModelConfig:
    """Return the config of a model with latent attention: to the cache it has one head, which is an entry.

    Raises:
        ModelError: sizes are missing or contradict each other.
    """
    latent = Latent(
        query_rank=config.count_or_zero("q_lora_rank", 0),
        kv_rank=config.count("kv_lora_rank", 512),
        nope_dim=config.count("qk_nope_head_dim", 128),
        rope_dim=config.count("qk_rope_head_dim", 64),
        value=config.count("v_head_dim", 128),
        interleaved=interleaved,
    )
    entry = latent.kv_rank + latent.rope_dim
    if entry % 8 or latent.rope_dim % 2:
        raise ModelError(
            f"{config.path}: kv_lora_rank={latent.kv_rank} and qk_rope_head_dim={latent.rope_dim} are not supported; "
            "the second must be even, and their sum a multiple of 8"
        )
    numbers = config.rotary.scaling
    scale = latent.query**-0.5
    if config.rotary.kind != "default" and numbers.get("mscale_all_dim") and numbers.get("factor", 1.0) > 1:
        factor = 0.1 * numbers["mscale_all_dim"] * math.log(numbers["factor"]) + 1.0
        scale *= factor * factor
    bias = config.flag("attention_bias", False)
    return replace(
        config,
        num_kv_heads=1,
        head_dim=entry,
        rotary=replace(config.rotary, partial=latent.rope_dim / entry),
        style=Style(latent=latent, experts=experts, score_scale=scale, output_bias=bias),
        renamed=config.in_layers(glm4moe.NAMES),
    )
