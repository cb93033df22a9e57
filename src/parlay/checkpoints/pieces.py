"""Experts' matrices that files have stacked: `[experts, outputs, inputs]` in place of one or two for each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parlay.checkpoints.quantised.layers import StoredShape
from parlay.errors import ModelError, shown

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

# A network, by whatever name, and which of its matrices.
_SWITCH = re.compile(r"\.\w+\.(switch_mlp|experts)\.((?:gate|up|down)_proj\.)")


@dataclass(frozen=True, slots=True)
class Piece:
    """A matrix or a bias of a stack.

    Attributes:
        name: name of the stack.
        index: index in the stack.
        count: number of matrices in the stack.
        outputs: start, stop and step of its outputs among those of the stack.
        turned: the stack has inputs before outputs.
        inputs: number of inputs, where stacks of either order exist and their shape says which this is.
        alone: its name in files that have it by itself; empty where that is its own.
    """

    name: str
    index: int
    count: int
    outputs: tuple[int | None, int | None, int | None] = (None, None, None)
    turned: bool = False
    inputs: int = 0
    alone: str = ""

    def is_turned(self, shape: Sequence[int]) -> bool:
        """Return whether a stack of this shape has inputs before outputs."""
        return self.turned or (bool(self.inputs) and shape[-1] != self.inputs)


def expert_pieces(count: int, width: int, *, stacks: str = "mlp.experts", hidden: int = 0) -> dict[str, Piece]:
    """Return the pieces of a layer's experts whose gates and other first matrices lie behind each other in one stack.

    Args:
        count: number of experts.
        width: inner width of an expert.
        stacks: what the names of the two stacks begin with.
        hidden: width of what they read, where stacks of either order exist.
    """
    gate_up, inner = f"{stacks}.gate_up_proj", width if hidden else 0
    return {
        "mlp.experts.{}.gate_proj.weight": Piece(gate_up, 0, count, (0, width, None), inputs=hidden),
        "mlp.experts.{}.up_proj.weight": Piece(gate_up, 0, count, (width, None, None), inputs=hidden),
        "mlp.experts.{}.down_proj.weight": Piece(f"{stacks}.down_proj", 0, count, inputs=inner),
    }


def switch_pieces(shapes: Mapping[str, Sequence[int]]) -> dict[str, Piece]:
    """Return the pieces of experts that MLX has stacked, by the names that they have alone.

    Args:
        shapes: shapes of a checkpoint's tensors, by name.
    """
    return {
        switch_name(name, expert): Piece(name, expert, shape[0])
        for name, shape in shapes.items()
        if is_switch(name) and len(shape) > 1
        for expert in range(shape[0])
    }


def is_switch(name: str) -> bool:
    """Whether a tensor is of experts that MLX has stacked (mlx-lm's `SwitchGLU`)."""
    return _SWITCH.search(name) is not None


def switch_name(name: str, expert: int) -> str:
    """Return the name of an expert's part of such a stack."""
    return _SWITCH.sub(rf".mlp.experts.{expert}.\2", name)


class Pieces:
    """Pieces by their names; reads as a file does."""

    def __init__(self, path: Path, pieces: Mapping[str, Piece], tensors: Mapping[str, tuple[Any, str]]) -> None:
        """Check the stacks.

        Args:
            path: path of the model.
            pieces: pieces by name.
            tensors: the open file of every stack, and the name that it has there, by the one that pieces know.

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
        """Return a piece's shape without reading it."""
        piece = self._pieces[name]
        stack = self._stack(piece)
        _, *shape = stack.get_shape()
        if piece.is_turned(shape):
            shape.reverse()
        return StoredShape([len(range(shape[0])[slice(*piece.outputs)]), *shape[1:]], stack.get_dtype())

    def get_tensor(self, name: str) -> Tensor:
        """Return a piece, `[outputs, inputs]` or `[outputs]`."""
        piece = self._pieces[name]
        stack = self._stack(piece)
        if isinstance(stack, StoredShape):
            file, own = self._tensors[piece.name]
            tensor: Tensor = file.get_tensor(own)[piece.index]
        else:  # of safetensors nothing else is read
            tensor = stack[piece.index : piece.index + 1][0]
        return (tensor.T if piece.is_turned(tensor.shape) else tensor)[slice(*piece.outputs)].contiguous()

    def _stack(self, piece: Piece) -> Any:
        file, own = self._tensors[piece.name]
        return file.get_slice(own)
