"""Granite with windows (Granite team 2026), such as granite-swash-2b: attention sinks, and a window in three of four
layers; some do not turn.
"""

from dataclasses import replace

from parlay.checkpoints.files import config_file
from parlay.errors import ModelError, shown
from parlay.models.config import ModelConfig
from parlay.models.families import granite
from parlay.models.style import Rotary

DEFAULTS = {"tie_word_embeddings": True}


def describe(config: ModelConfig) -> ModelConfig:
    return with_windows(granite.describe(config))


def with_windows(config: ModelConfig) -> ModelConfig:
    """Return a Granite's config with sinks, and with each layer's window and rotary embedding.

    Raises:
        ModelError: an option that is not supported.
    """
    windows = config.windows(lambda layer: layer % 4 != 0, default=128)
    style = replace(config.style, windows=windows, sinks=(True,) * config.num_layers)
    turning = config.flags("no_rope_layers", [1] * config.num_layers)  # which has 1 for a layer that does turn
    return with_bases(replace(config, style=style), [config.rotary.theta * turns for turns in turning])


def with_bases(config: ModelConfig, usual: list[float]) -> ModelConfig:
    """Return the config with the base of each layer's rotary embedding, `layer_rope_theta`; 0 is for none.

    Raises:
        ModelError: these are no numbers, or differ among the layers with a window, or those without.
    """
    found = config.raw.get("layer_rope_theta")
    bases = usual if found is None else found
    if (
        not isinstance(bases, list)
        or len(bases) != config.num_layers
        or not all(isinstance(base, int | float) and 0 <= base < 1e300 for base in bases)
    ):
        raise ModelError(
            f"{config_file(config.path)}: layer_rope_theta must list a number of at least 0 for each of "
            f"{config.num_layers} layers, not {shown(bases)}"
        )
    windows = config.style.windows or (0,) * config.num_layers
    near = {float(base) for base, window in zip(bases, windows, strict=True) if base and window}
    far = {float(base) for base, window in zip(bases, windows, strict=True) if base and not window}
    if max(len(near), len(far)) > 1:
        raise ModelError(
            f"{config_file(config.path)}: layer_rope_theta={shown(bases)} is not supported; it may have one base for "
            "layers with a window and one for those without"
        )
    rotary = replace(config.rotary, theta=min(far, default=config.rotary.theta))
    local: Rotary | None = replace(config.rotary, theta=min(near, default=config.rotary.theta))
    style = replace(
        config.style,
        nope=tuple(not base for base in bases) if not all(bases) else (),
        local_rotary=local if local != rotary else None,
    )
    return replace(config, style=style, rotary=rotary)
