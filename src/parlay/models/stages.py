"""Which layers each stage of a model has."""

import math
from collections.abc import Callable, Mapping
from itertools import pairwise

from parlay.models.config import ModelConfig
from parlay.parallel.pipeline import Pipeline

Shapes = Callable[[ModelConfig], Mapping[str, tuple[int, ...]]]


def stage_starts(config: ModelConfig) -> list[int]:
    """Return with which layers a stage may begin: those behind which none reads keys and values from before them."""
    sources = [heads.source if heads.source >= 0 else layer for layer, heads in enumerate(config.style.heads)]
    return [layer for layer in range(config.num_layers) if min(sources[layer:], default=layer) >= layer]


def own_layers(config: ModelConfig, shapes: Shapes, pipeline: Pipeline) -> tuple[int, int]:
    """Return the first layer of a stage and the first of the next: so many that all read about as many weights.

    The first stage has the output layer too.

    Args:
        config: the model's config.
        shapes: returns the shapes of its tensors, by name.
        pipeline: the stage, and the number of stages.
    """
    if pipeline.stages == 1:
        return 0, config.num_layers
    sizes = [0] * config.num_layers
    for name, shape in shapes(config).items():
        if name.startswith("model.layers."):
            sizes[int(name.split(".")[2])] += math.prod(shape)
    bounds = [*stage_starts(config), config.num_layers]
    parts = [sum(sizes[begin:end]) for begin, end in pairwise(bounds)]
    first, last = pipeline.share(parts, config.vocab_size * config.hidden_size)
    return bounds[first], bounds[last]
