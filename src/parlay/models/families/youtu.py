"""Youtu-LLM-2B (Tencent 2026): DeepSeek-V3's latent attention in a dense model."""

from parlay.models.config import ModelConfig
from parlay.models.families.deepseekv3 import with_latents

DEFAULTS = {"head_dim": 64, "q_lora_rank": 1536, "tie_word_embeddings": True}


def describe(config: ModelConfig) -> ModelConfig:
    config.only(hidden_act="silu", mlp_bias=False)
    return with_latents(config, None, interleaved=config.flag("rope_interleave", True))
