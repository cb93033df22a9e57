"""The layers of an assistant: Gemma 4's with queries alone, whose keys and values are its target's."""

from dataclasses import replace
from typing import Any

from parlay.checkpoints.files import config_file
from parlay.errors import ModelError, shown
from parlay.models.config import ModelConfig, parse_config
from parlay.models.families import gemma4
from parlay.models.heads import HeadConfig
from parlay.models.style import Heads
from parlay.proposers.target_keys import kv_source_layer


def describe_layers(head: HeadConfig, target: ModelConfig) -> ModelConfig:
    """Return the config of an assistant's layers; `Heads.source` says which of the target's layers each one reads.

    Raises:
        ModelError: the target has no such layers, or the config is not an assistant's.
    """
    text = head.raw.get("text_config", head.raw)  # a GGUF file has no two of them
    if not isinstance(text, dict):
        raise ModelError(f"{config_file(head.path)}: text_config must be an object, not {shown(text)}")
    # All of its layers share another model's keys and values, which its family does not know.
    raw: dict[str, Any] = {**gemma4.DEFAULTS, "hidden_size_per_layer_input": 0, **text, "num_kv_shared_layers": 0}
    config = parse_config(head.path, raw)
    config.only(hidden_size_per_layer_input=0, enable_moe_block=False, use_double_wide_mlp=False)
    config.count("sliding_window", 512)
    config = gemma4.describe(config)
    windows = config.style.windows
    pairs = zip(config.style.heads, windows, strict=True)
    heads = [_with_source(own, bool(window), head, target) for own, window in pairs]
    # As transformers counts from the newest token, the window has one key more than that of the target's own rows.
    style = replace(config.style, heads=tuple(heads), windows=tuple(window + (window > 0) for window in windows))
    return replace(config, style=style, tie_embeddings=head.flag("tie_word_embeddings", True), renamed={})


def _with_source(own: Heads, window: bool, head: HeadConfig, target: ModelConfig) -> Heads:
    """Return the heads of a layer with the target's layer that it reads."""
    source = kv_source_layer(target, window=window)
    found = None if source is None else target.heads_of(source)
    if source is None or found is None or (found.count, found.width) != (own.count, own.width):
        has = "no such layer" if found is None else f"{found.count} heads of {found.width} there"
        raise ModelError(
            f"the assistant {head.path} reads keys and values of a layer with{'' if window else 'out'} a window, "
            f"{own.count} heads of {own.width} columns, but the target {target.path} has {has}; give the Gemma 4 "
            "model that the assistant was made for"
        )
    return replace(own, source=source)
