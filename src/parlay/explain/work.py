"""The least work of a step: bytes to read and multiplications to do, by component."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from parlay.models.config import ModelConfig
from parlay.models.select import cache_spec, stored_kinds, weight_shapes
from parlay.types.plan import Span


@dataclass(frozen=True, slots=True)
class Work:
    """Work that no implementation can avoid.

    Attributes:
        size: bytes of weights, keys and values to read, each once.
        flops: multiplications and additions.
    """

    size: float = 0.0
    flops: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(self.size + other.size, self.flops + other.flops)


def linear_names(config: ModelConfig) -> dict[tuple[int, int], str]:
    """Return names of a layer's linear layers by (outputs, inputs); those of one shape share a name."""
    names: dict[tuple[int, int], str] = {}
    for name, shape, *_ in config.products():
        names[shape] = f"{names[shape]}, {name}" if shape in names else name
    return names


@dataclass(frozen=True, slots=True)
class Widths:
    """Bytes that a number of a weight takes on average.

    Attributes:
        layers: bytes per number in the linear layers.
        head: bytes per number in the output layer.
    """

    layers: float
    head: float


def widths(config: ModelConfig, dtype: torch.dtype) -> Widths:
    """Return the sizes of a model's weights in the form in which they are multiplied.

    Raises:
        ModelError: its files are missing or damaged.
    """
    kinds = stored_kinds(config)
    if not kinds:
        return Widths(dtype.itemsize, dtype.itemsize)
    shapes = weight_shapes(config)
    size = {name: kind.memory / kind.block for name, kind in kinds.items()}
    head = next(n for n in shapes if n.endswith("embed_tokens.weight" if config.tie_embeddings else "lm_head.weight"))
    layers = [name for name in size if ".layers." in name]
    if not layers:
        return Widths(dtype.itemsize, size.get(head, dtype.itemsize))
    numbers = [math.prod(shapes[name]) for name in layers]
    average = sum(size[name] * count for name, count in zip(layers, numbers, strict=True)) / sum(numbers)
    return Widths(average, size.get(head, dtype.itemsize))


def work_of(
    config: ModelConfig, dtype: torch.dtype, spans: Sequence[Span], each: Widths | None = None
) -> dict[str, Work]:
    """Return the work of a step, by the names that `linear_names` gives, "head" and "attention".

    Args:
        config: the model's config.
        dtype: dtype of activations and cache.
        spans: spans of the step.
        each: bytes per number of the weights; None where these are of `dtype`.
    """
    names, each = linear_names(config), each or Widths(dtype.itemsize, dtype.itemsize)
    rows = sum(len(s.tokens) + len(s.draft) for s in spans)
    result: dict[str, Work] = {}
    for product in config.products():
        numbers = product.shape[0] * product.shape[1]
        own = Work(product.read(rows) * numbers * each.layers, 2.0 * product.times * numbers * rows)
        result[names[product.shape]] = result.get(names[product.shape], Work()) + own
    head_rows = sum(1 + len(s.draft) for s in spans if s.sample)
    head = config.vocab_size * config.hidden_size if head_rows else 0
    result["head"] = Work(head * each.head, 2.0 * head * head_rows)
    # Each request's keys and values are read once for all its rows; a score and a sum for each key that a row sees.
    # A sequence's states are read once and stored once.
    spec = cache_spec(config, dtype)
    heads = config.style.heads or (config.heads_of(0),) * spec.layers
    per_key = sum(2 * (own.queries or config.num_heads) * (own.width + own.value_width) for own in heads)
    keys = sum(s.end + len(s.draft) for s in spans)
    seen = sum(key + 1 for s in spans for key in range(s.start, s.end + len(s.draft)))
    result["attention"] = Work(spec.bytes_per_token * keys + 2 * spec.bytes_per_slot * len(spans), per_key * seen)
    return result
