"""What a request's parameters do to its logits before temperature and filters.

Order: penalties, bias, the user's own processors, then whatever forbids tokens, so that what is forbidden stays so.
Rows are edited with numpy: single additions, products and quotients, whose bits depend on their operands alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from torch import Tensor

from parlay.types.params import SamplingParams
from parlay.types.processor import RowProcessor


class Processor(ABC):
    """One link of a request's chain; see `RowProcessor`.

    Attributes:
        pure: whether it may be called at nodes that are never emitted, and is worth it for guesses.
    """

    pure: ClassVar[bool] = True

    @abstractmethod
    def process(self, known: Sequence[int], path: Sequence[int], row: Tensor) -> None:
        """Change `row` in place."""

    def guide(self, known: Sequence[int], path: Sequence[int], row: Tensor) -> None:
        """Change a proposer's row in place."""
        if self.pure:
            self.process(known, path, row)


class Chain:
    """A request's processors, applied one after another."""

    def __init__(self, links: Sequence[Processor]) -> None:
        self._links = tuple(links)

    def process(self, known: Sequence[int], path: Sequence[int], row: Tensor) -> None:
        """Apply every link."""
        for link in self._links:
            link.process(known, path, row)

    def guide(self, known: Sequence[int], path: Sequence[int], row: Tensor) -> None:
        """Apply the pure links, to a proposer's row."""
        for link in self._links:
            link.guide(known, path, row)


class Bias(Processor):
    """Adds to some tokens' logits."""

    def __init__(self, bias: Mapping[int, float]) -> None:
        self._ids = np.array(list(bias), dtype=np.int64)
        self._bias = np.array(list(bias.values()), dtype=np.float32)

    def process(self, known: Sequence[int], path: Sequence[int], row: Tensor) -> None:
        """Add."""
        row.numpy()[self._ids] += self._bias


def prepare(params: SamplingParams, further: Sequence[Processor] = ()) -> RowProcessor | None:
    """Return what changes a request's logits, or None where nothing does.

    Args:
        params: of the request.
        further: links to put at the end.
    """
    links: list[Processor] = []
    if params.logit_bias:
        links.append(Bias(params.logit_bias))
    links.extend(further)
    return Chain(links) if links else None
