"""Reading weights, strictly: what is missing, left over or of another shape is known before any data is read.

Leftovers that a family explains, such as MTP layers, are handed back by name.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from parlay.checkpoints.files import dtype_of, read_json
from parlay.checkpoints.gguf.tensors import GGUFWeights
from parlay.checkpoints.headers import open_safetensors, weight_files, written_for_mlx
from parlay.checkpoints.pickled import Pickled
from parlay.checkpoints.pieces import Piece, Pieces, is_switch, switch_pieces
from parlay.checkpoints.quantised.bitsandbytes import BitsAndBytesLayers
from parlay.checkpoints.quantised.compressed_tensors import ScaledLayers
from parlay.checkpoints.quantised.config import read_quantisation
from parlay.checkpoints.quantised.gptq import GPTQLayers
from parlay.checkpoints.quantised.layers import QuantisedLayers
from parlay.checkpoints.quantised.mlx import MLXLayers
from parlay.checkpoints.quantised.mxfp4 import MXFP4Layers
from parlay.checkpoints.readable import Readable
from parlay.checkpoints.towers import tower_names
from parlay.errors import ModelError, shown
from parlay.kernels.native_quantise import quantise
from parlay.types.progress import OnRead, ignore
from parlay.types.storage import MADE, Storage
from parlay.weights.kinds import COMPUTED, HALF, Kind
from parlay.weights.quantise import INT4, INT8, fits
from parlay.weights.weight import Weight

_HOST = torch.device("cpu")  # where files are read, wherever tensors are made around it
_PICKLED = (".bin", ".pt")
_LAYERS = {
    "awq": GPTQLayers,
    "gptq": GPTQLayers,
    "scaled": ScaledLayers,
    "codebook": BitsAndBytesLayers,
    "mxfp4": MXFP4Layers,
    "mlx": MLXLayers,
}
_QUANTISED = ("weight_scale", "weight_scale_inv", "weight_packed", "qweight")  # what tensors of few bits come with
_LOOKED_UP = ("embed_positions.weight",)  # and added
_NEVER_QUANTISED = (*_LOOKED_UP, ".gate.weight")  # and a router's
_OUTERMOST = ("embed_tokens.weight", "lm_head.weight")  # eight bits at least: every token passes through them


class Checkpoint:
    """The tensors of a model directory or GGUF file, by name; read one at a time, when used. A context manager.

    Attributes:
        for_mlx: whether safetensors were written for MLX, whose convolutions have channels last.
    """

    def __init__(
        self,
        path: Path,
        *,
        head: bool = False,
        storage: Storage = "plain",
        on_read: OnRead = ignore,
        renamed: Mapping[str, str | Piece] | None = None,
        tower: bool = False,
        beside: tuple[str, ...] = (),
    ) -> None:
        """Open the weights in directory `path`, safetensors or else `.bin`, or GGUF file `path`.

        Of safetensors and GGUF files only headers are read here.

        Args:
            path: directory or file of the weights.
            head: those of a draft head are wanted, beside which its target's may lie; they become the target's dtype.
            storage: how `read_weight` gives matrices.
            on_read: called with every tensor that was read.
            renamed: the files' own names of tensors that are known under other names here, or the stacks that have
                them; those that are not there are no matter.
            tower: only the text model's tensors are wanted, under the names that it has alone.
            beside: beginnings of the names of further tensors that are wanted then.

        Raises:
            ModelError: there are none, or one is corrupt.
        """
        self._path = path
        self._storage, self._on_read = storage, on_read
        self._stack = ExitStack()
        self.for_mlx = False
        self._files: dict[Path, Any] = {}
        self._where: dict[str, Path] = {}
        for file in weight_files(path, head):
            self._files[file] = handle = self._open(file)
            for name in handle.keys():  # noqa: SIM118 - not a mapping
                self._where[name] = file
        raw = {} if head else _config(path)
        self._halves = path.is_file() or dtype_of(raw) == "float16"
        # A head says so by its tensors: beside it may lie its target's config.
        own = not head or any(name.endswith(_QUANTISED) for name in self._where)
        packing = read_quantisation(path, _config(path)) if own else None
        if packing is not None:
            kind = _LAYERS[packing.method]
            layers = kind(packing, {name: self._files[file] for name, file in self._where.items()})
            self._files[path] = layers
            self._where = {name: file for name, file in self._where.items() if name not in layers.parts}
            self._where |= dict.fromkeys(layers.keys(), path)
        self._stored: dict[str, str] = {}
        if tower:
            self._keep_tower(beside)
        self._pieces = self._find_pieces(renamed or {})

    def _find_pieces(self, renamed: Mapping[str, str | Piece]) -> Pieces:
        """Rename tensors, and return those that are parts of stacks."""
        switches = {name: self._opened(name) for name in self._where if is_switch(name)}
        shapes = {name: file.get_slice(own).get_shape() for name, (file, own) in switches.items()}
        renamed = {**renamed, **switch_pieces(shapes)}
        alone = {name: own if isinstance(own, str) else own.alone for name, own in renamed.items()}
        self._rename({name: own for name, own in alone.items() if own})
        pieces = {name: p for name, p in renamed.items() if isinstance(p, Piece) and p.name in self._where}
        stacks = {piece.name: self._where[piece.name] for piece in pieces.values()}
        found = Pieces(self._path, pieces, {name: self._opened(name) for name in stacks})
        self._where |= {name: stacks[piece.name] for name, piece in pieces.items()}
        self._where = {name: file for name, file in self._where.items() if name not in stacks}
        return found

    def _keep_tower(self, beside: tuple[str, ...]) -> None:
        if beside and all(name.startswith(beside) for name in self._where):  # which alone are there
            return
        self._rename(tower_names(self._path, self._where))
        kept = [name for name in self._where if name in self._stored or name.startswith(beside)]
        self._where = {name: self._where[name] for name in kept}

    def _rename(self, names: Mapping[str, str]) -> None:
        """Rename tensors: `names` has the new names as keys, and those so far as values."""
        found = {name: own for name, own in names.items() if own in self._where}
        where = {name: self._where.pop(own) for name, own in found.items()}
        self._stored |= {name: self._stored.pop(own, own) for name, own in found.items()}
        self._where |= where

    def _open(self, file: Path) -> Any:
        if file.suffix in _PICKLED:
            return Pickled(file)
        if file == self._path:
            return self._stack.enter_context(GGUFWeights(file))
        opened = self._stack.enter_context(open_safetensors(file, "pt"))
        self.for_mlx |= written_for_mlx(opened)
        return opened

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def names(self) -> list[str]:
        """Names of all tensors, sorted."""
        return sorted(self._where)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape without reading it."""
        file, own = self._file(name)
        shape = tuple(file.get_slice(own).get_shape())
        return (shape[0], shape[2], shape[1]) if self._channels_last(shape) else shape

    def _channels_last(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor is a convolution as MLX has it, `[channels, taps, 1]`."""
        return self.for_mlx and len(shape) == 3 and shape[2] == 1

    def _file(self, name: str) -> tuple[Any, str]:
        """Return the open file that has a tensor, and its name there."""
        if name in self._pieces:
            return self._pieces, name
        return self._opened(name)

    def _opened(self, name: str) -> tuple[Any, str]:
        return self._files[self._where[name]], self._stored.get(name, name)

    def equal(self, one: str, other: str) -> bool:
        """Whether two tensors hold the same numbers."""
        if self.quantised(one) or self.quantised(other) or self.shape(one) != self.shape(other):
            return False
        first, second = (file.get_tensor(own) for file, own in (self._file(one), self._file(other)))
        return first.dtype == second.dtype and torch.equal(first, second)

    def expect(
        self, shapes: Mapping[str, tuple[int, ...]], ignorable: Iterable[str] = (), further: Iterable[str] = ()
    ) -> tuple[str, ...]:
        """Compare the headers with what a family needs.

        Args:
            shapes: every tensor that will be read.
            ignorable: endings of names that may stand in a file without being read.
            further: beginnings of names that are no part of the model but may be of use to a proposer.

        Returns:
            The names of those further tensors.

        Raises:
            ModelError: a tensor is missing, left over, or of another shape; the message names it.
        """
        missing = sorted(set(shapes) - set(self._where))
        if missing:
            raise ModelError(f"{self._path} lacks the tensor {shown(missing[0])}{more(missing)}")
        ignored, wanted = tuple(ignorable), tuple(further)
        extra = sorted(n for n in self._where if n not in shapes and not n.endswith(ignored))
        leftovers = tuple(name for name in extra if name.startswith(wanted))
        extra = [name for name in extra if not name.startswith(wanted)]
        if extra:
            raise ModelError(
                f"{self._path} has a tensor that its config does not explain: {shown(extra[0])}{more(extra)}"
            )
        for name, shape in shapes.items():
            if self.shape(name) != shape:
                raise ModelError(
                    f"{self._path}: tensor {shown(name)} has shape {list(self.shape(name))}, "
                    f"but the config says {list(shape)}"
                )
        return leftovers

    def read(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """Return a tensor, converted to `dtype` unless that is None, where torch makes tensors now.

        Raises:
            ModelError: some value is not finite, or too large for `dtype`.
        """
        return torch.as_tensor(self._counted(name, dtype))

    def _counted(self, name: str, dtype: torch.dtype | None) -> Tensor:
        with _HOST:
            tensor = self._read(name, dtype)
        self._on_read(tensor.nbytes)
        return tensor

    def _read(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        file, own = self._file(name)
        stored: Tensor = file.get_tensor(own)
        if self._channels_last(tuple(stored.shape)):
            stored = stored.transpose(1, 2)
        dtype = dtype or stored.dtype
        tensor = stored.to(dtype).contiguous()
        if not is_finite(tensor):
            raise self._not_finite(name, "" if stored.dtype is dtype else f" in {dtype}".replace("torch.", ""))
        return tensor

    def kind(self, name: str) -> Kind | None:
        """Return the blocks, or float16, that `read_weight` gives a matrix in; None for other numbers."""
        (file, own), shape = self._file(name), self.shape(name)
        if self._storage == "stored" and len(shape) == 2 and not name.endswith(_LOOKED_UP):
            if not isinstance(file, GGUFWeights | QuantisedLayers):
                half = self._halves and file.get_slice(own).get_dtype() == HALF.name
                return HALF if half else None
            kind = file.kind(own)
            return kind if kind in (*COMPUTED, HALF) else None
        return made_kind(name, shape, self._storage)

    def quantised(self, name: str) -> bool:
        """Whether a tensor is stored in small integers of any kind, whatever it is read as."""
        file, own = self._file(name)
        return isinstance(file, QuantisedLayers) or (isinstance(file, GGUFWeights) and file.kind(own).block > 1)

    def size(self, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype, plain: Collection[str] = ()) -> int:
        """Return the bytes of some tensors once they are read.

        Args:
            shapes: shapes by name; some may have fewer outputs than the file has.
            dtype: dtype of plain numbers.
            plain: matrices that are read by `read`, the others being read by `read_weight`.
        """
        total = 0
        for name, shape in shapes.items():
            kind, numbers = None if name in plain else self.kind(name), math.prod(shape)
            total += numbers * dtype.itemsize if kind is None else numbers // kind.block * kind.memory
        return total

    def read_weight(self, name: str, dtype: torch.dtype) -> Weight:
        """Return a matrix for the kernels, in the host's memory, plain numbers converted to `dtype`.

        Raises:
            ModelError: some value is not finite, or too large for `dtype`.
        """
        with _HOST:
            return self._read_weight(name, dtype)

    def _read_weight(self, name: str, dtype: torch.dtype) -> Weight:
        kind = self.kind(name)
        if kind is None or kind is HALF:
            return Weight.of(self._counted(name, None if kind else dtype))
        weight: Weight
        if self._storage in MADE:
            weight = quantise(self._read(name), kind)
        else:
            file, own = self._file(name)
            weight = file.get_blocks(own)
        if not weight.finite():
            raise self._not_finite(name)
        self._on_read(sum(part.data.nbytes for part in weight.parts))
        return weight

    def head_kinds(self, name: str) -> tuple[Kind | None, Kind | None]:
        """Return the blocks of which `read_head` gives a head's keys and values; None for what it does not give."""
        file, own = self._file(name)
        found = file.head_kinds(own) if self._storage == "stored" and isinstance(file, GGUFWeights) else None
        keys, values = (kind if kind in COMPUTED else None for kind in found or (None, None))
        return keys, values

    def read_head(self, name: str, head: int, *, values: bool) -> Weight:
        """Return a head's part of a latent's expansion as it is stored: its values, or its keys turned over.

        Raises:
            ModelError: some value is not finite.
        """
        file, own = self._file(name)
        assert isinstance(file, GGUFWeights)
        with _HOST:
            weight = file.get_head(own, head, values=values)
        if not weight.finite():
            raise self._not_finite(name)
        self._on_read(sum(part.data.nbytes for part in weight.parts))
        return weight

    def _not_finite(self, name: str, dtype: str = "") -> ModelError:
        return ModelError(
            f"{self._where[name]}: tensor {shown(name)} holds values that are infinite or not numbers{dtype}; "
            "the checkpoint is damaged"
        )


def made_kind(name: str, shape: tuple[int, ...], storage: Storage) -> Kind | None:
    """Return the blocks that are made of a matrix of plain numbers in one of `MADE`; None if it stays as it is."""
    if storage not in MADE or not fits(shape) or name.endswith(_NEVER_QUANTISED):
        return None
    return INT4 if storage == "int4" and not name.endswith(_OUTERMOST) else INT8


class TensorReader:
    """A part of a checkpoint whose tensors' names begin alike, such as a layer; reads them by the rest."""

    def __init__(
        self, weights: Readable, dtype: torch.dtype, prefix: str, renamed: Mapping[str, str] | None = None
    ) -> None:
        """Read from `weights` in `dtype`; `renamed` says which names stand for others."""
        self._weights, self._dtype, self._prefix = weights, dtype, prefix
        self._renamed = renamed or {}

    @property
    def dtype(self) -> torch.dtype:
        """What plain numbers become."""
        return self._dtype

    def __call__(self, name: str) -> Tensor:
        """Return a tensor of plain numbers."""
        return self._weights.read(self._full(name), self._dtype)

    def exact(self, name: str) -> Tensor:
        """Return a tensor of plain numbers as float32, whatever the others become."""
        return self._weights.read(self._full(name), torch.float32)

    def weight(self, name: str) -> Weight:
        """Return a matrix as the kernels multiply with it."""
        return self._weights.read_weight(self._full(name), self._dtype)

    def head_kinds(self, name: str) -> tuple[Kind | None, Kind | None]:
        """As `Checkpoint.head_kinds`."""
        return self._weights.head_kinds(self._full(name))

    def head(self, name: str, head: int, *, values: bool) -> Weight:
        """As `Checkpoint.read_head`."""
        return self._weights.read_head(self._full(name), head, values=values)

    def _full(self, name: str) -> str:
        return self._prefix + self._renamed.get(name, name)


def file_format(path: Path) -> str:
    """Return what a model's weights are read from: "gguf", "safetensors" or "pt".

    Raises:
        ModelError: there are none.
    """
    if path.is_file():
        return "gguf"
    return "pt" if weight_files(path)[0].suffix in _PICKLED else "safetensors"


def _config(path: Path) -> dict[str, Any]:
    """Return the `config.json` of a model's directory; nothing where there is none."""
    file = path / "config.json"
    return read_json(file) if path.is_dir() and file.is_file() else {}


def is_finite(tensor: Tensor) -> bool:
    """Whether no number is infinite or not a number."""
    # One pass at the speed of memory; NaN wins over any minimum and maximum.
    return not tensor.numel() or all(math.isfinite(end.item()) for end in torch.aminmax(tensor))


def more(names: list[str]) -> str:
    """Return how a message goes on that has named the first of several."""
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
