"""Which layers each stage of a model has."""

import math
from collections.abc import Callable, Mapping

from parlay.models.config import ModelConfig
from parlay.parallel.pipeline import Pipeline

Shapes = Callable[[ModelConfig], Mapping[str, tuple[int, ...]]]


def own_layers(config: ModelConfig, shapes: Shapes, pipeline: Pipeline) -> tuple[int, int]:
    """Return the first layer of a stage and the first of the next: so many that all read about as many weights.

    The first stage has the output layer too.

    Args:
        config: of the model.
        shapes: returns those of its tensors, by name.
        pipeline: the stage.
    """
    if pipeline.stages == 1:
        return 0, config.num_layers
    sizes = [0] * config.num_layers
    for name, shape in shapes(config).items():
        if name.startswith("model.layers."):
            sizes[int(name.split(".")[2])] += math.prod(shape)
    return pipeline.share(sizes, config.vocab_size * config.hidden_size)
