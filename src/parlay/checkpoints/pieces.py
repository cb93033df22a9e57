"""Experts' matrices that files have stacked: `[experts, outputs, inputs]` in place of one or two for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parlay.checkpoints.quantised.layers import StoredShape
from parlay.errors import ModelError, shown

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Piece:
    """A matrix or a bias of a stack.

    Attributes:
        name: of the stack.
        index: which of them.
        count: how many there are.
        outputs: start, stop and step of its outputs among those of the stack.
        turned: the stack has inputs before outputs.
        alone: its name in files that have it by itself; empty where that is its own.
    """

    name: str
    index: int
    count: int
    outputs: tuple[int | None, int | None, int | None] = (None, None, None)
    turned: bool = False
    alone: str = ""


class Pieces:
    """Pieces by their names; reads as a file does."""

    def __init__(self, path: Path, pieces: Mapping[str, Piece], tensors: Mapping[str, Any]) -> None:
        """Check the stacks.

        Args:
            path: of the model.
            pieces: by name.
            tensors: the open file of every stack, by its name.

        Raises:
            ModelError: a stack has another number of matrices than the config says.
        """
        self._pieces, self._tensors = pieces, tensors
        for piece in {piece.name: piece for piece in pieces.values()}.values():
            shape = self._stack(piece).get_shape()
            if len(shape) not in (2, 3) or shape[0] != piece.count:
                raise ModelError(
                    f"{path}: tensor {shown(piece.name)} has shape {list(shape)}, but the config says that there are "
                    f"{piece.count} experts"
                )

    def __contains__(self, name: str) -> bool:
        return name in self._pieces

    def get_slice(self, name: str) -> StoredShape:
        """Return what knows a piece's shape without reading it."""
        piece = self._pieces[name]
        stack = self._stack(piece)
        _, *shape = stack.get_shape()
        if piece.turned:
            shape.reverse()
        return StoredShape([len(range(shape[0])[slice(*piece.outputs)]), *shape[1:]], stack.get_dtype())

    def get_tensor(self, name: str) -> Tensor:
        """Return a piece, `[outputs, inputs]` or `[outputs]`."""
        piece = self._pieces[name]
        stack = self._stack(piece)
        if isinstance(stack, StoredShape):
            tensor: Tensor = self._tensors[piece.name].get_tensor(piece.name)[piece.index]
        else:  # of safetensors nothing else is read
            tensor = stack[piece.index : piece.index + 1][0]
        return (tensor.T if piece.turned else tensor)[slice(*piece.outputs)].contiguous()

    def _stack(self, piece: Piece) -> Any:
        return self._tensors[piece.name].get_slice(piece.name)
