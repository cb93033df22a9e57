"""What a step has to do at least: bytes to read and multiplications to do, by component."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from parlay.models.config import ModelConfig
from parlay.models.select import cache_spec
from parlay.types.plan import Span


@dataclass(frozen=True, slots=True)
class Work:
    """Work that no implementation gets around.

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
    for name, shape, _ in config.products():
        names[shape] = f"{names[shape]}, {name}" if shape in names else name
    return names


def work_of(config: ModelConfig, dtype: torch.dtype, spans: Sequence[Span]) -> dict[str, Work]:
    """Return what a step of these spans has to do, by the names that `linear_names` gives, "head" and "attention"."""
    names = linear_names(config)
    rows = sum(len(s.tokens) + len(s.draft) for s in spans)
    result: dict[str, Work] = {}
    # Of experts, at least those of one row are read.
    for _, shape, times in config.products():
        weights = times * shape[0] * shape[1]
        result[names[shape]] = result.get(names[shape], Work()) + Work(weights * dtype.itemsize, 2.0 * weights * rows)
    head_rows = sum(1 + len(s.draft) for s in spans if s.sample)
    head = config.vocab_size * config.hidden_size if head_rows else 0
    result["head"] = Work(head * dtype.itemsize, 2.0 * head * head_rows)
    # Each request's keys and values are read once for all its rows; a score and a sum for each key that a row sees.
    per_token = cache_spec(config, dtype).bytes_per_token
    per_key = 4 * config.num_layers * config.num_heads * config.head_dim
    keys = sum(s.end + len(s.draft) for s in spans)
    seen = sum(key + 1 for s in spans for key in range(s.start, s.end + len(s.draft)))
    result["attention"] = Work(per_token * keys, per_key * seen)
    return result
