"""MiMo-7B (Xiaomi LLM-Core team 2025, arXiv 2505.07608): a Qwen2 with an MTP layer."""

from parlay.models.families import qwen2
from parlay.models.mtp import MTPNames

describe = qwen2.describe
MTP = MTPNames(
    layer="model.mtp_layers.{1}.",
    join="model.mtp_layers.{1}.input_proj.weight",
    token_norm="model.mtp_layers.{1}.token_layernorm.weight",
    state_norm="model.mtp_layers.{1}.hidden_layernorm.weight",
    norm="model.mtp_layers.{1}.final_layernorm.weight",
    state_first=True,
    unnormed=True,
)
