"""SmolLM3 (Bakouch et al. 2025, "SmolLM3: smol, multilingual, long-context reasoner"): a Llama of which some layers,
by default every fourth, have no rotary embedding (NoPE, Kazemnejad et al. 2023, arXiv 2305.19466).
"""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.families import llama


def describe(config: ModelConfig) -> ModelConfig:
    style = llama.describe(config).style
    every = config.count("no_rope_layer_interval", 4)
    usual = [int((layer + 1) % every != 0) for layer in range(config.num_layers)]
    turns = config.flags("no_rope_layers", usual)  # which has 1 for a layer that does turn
    windows = config.windows(lambda layer: not turns[layer]) if config.flag("use_sliding_window", False) else ()
    return replace(config, style=replace(style, nope=tuple(not one for one in turns), windows=windows))
