"""A request's logits processor with a view of its output; it is not sent, but stays where tokens are sampled."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import overload

from torch import Tensor

from parlay.types.processor import RowProcessor


class OutputTokens(Sequence[int]):
    """The tokens that a request has emitted, as they grow: a view, since a copy in every step would add up."""

    def __init__(self, tokens: Sequence[int], start: int) -> None:
        """See the tokens from `start` on of a list that grows."""
        self._tokens, self._start = tokens, start

    def __len__(self) -> int:
        return len(self._tokens) - self._start

    def __iter__(self) -> Iterator[int]:
        return iter(self._tokens[self._start :])

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...

    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        if isinstance(index, slice):
            first, last, step = index.indices(len(self))
            return (
                self._tokens[self._start + first : max(self._start + last, 0) : step] if step > 0 else [*self][index]
            )
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self._tokens[index if index < 0 else self._start + index]


@dataclass(frozen=True, slots=True)
class BoundProcessor:
    """A request's processor, with the tokens that earlier steps emitted.

    Attributes:
        processor: the request's logits processor.
        output: emitted tokens; they grow when steps are committed, and not while one runs.
    """

    processor: RowProcessor
    output: Sequence[int]

    def process(self, path: Sequence[int], row: Tensor) -> None:
        """Change the row of the token after `path`, see `RowProcessor.process`.

        Raises:
            RequestError: the user's processor fails.
        """
        self.processor.process(self.output, path, row)

    def process_draft(self, path: Sequence[int], row: Tensor) -> None:
        """Change a proposer's row in the same way, see `RowProcessor.process_draft`."""
        self.processor.process_draft(self.output, path, row)


Processors = Mapping[int, BoundProcessor]  # by request; those without a processor are left out
NO_PROCESSORS: Processors = MappingProxyType({})
