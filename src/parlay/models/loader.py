"""Reading weights, strictly: what is missing, left over or of another shape is known before any data is read."""

import json
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from parlay.errors import ModelError


class Checkpoint:
    """The tensors of a model directory, by name; read one at a time, as asked for. Use it as a context manager."""

    def __init__(self, path: Path) -> None:
        """Open the safetensors file or shards in directory `path`; only headers are read.

        Raises:
            ModelError: there are none, or one is corrupt.
        """
        self._path = path
        self._stack = ExitStack()
        self._files: dict[Path, Any] = {}
        self._where: dict[str, Path] = {}
        for file in _weight_files(path):
            try:
                handle = self._stack.enter_context(safe_open(file, framework="pt"))
            except (OSError, SafetensorError) as error:
                raise ModelError(f"{file} cannot be read: {error}") from None
            self._files[file] = handle
            for name in handle.keys():  # noqa: SIM118 - not a mapping
                self._where[name] = file

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape without reading it."""
        return tuple(self._files[self._where[name]].get_slice(name).get_shape())

    def expect(self, shapes: Mapping[str, tuple[int, ...]], ignorable: Iterable[str] = ()) -> None:
        """Compare the headers with what a family needs.

        Args:
            shapes: every tensor that will be read.
            ignorable: endings of names that may stand in a file without being read.

        Raises:
            ModelError: a tensor is missing, left over, or of another shape; the message names it.
        """
        missing = sorted(set(shapes) - set(self._where))
        if missing:
            raise ModelError(f"{self._path} lacks the tensor {missing[0]!r}{_more(missing)}")
        ignored = tuple(ignorable)
        extra = sorted(n for n in self._where if n not in shapes and not n.endswith(ignored))
        if extra:
            raise ModelError(
                f"{self._path} has a tensor that its config does not explain: {extra[0]!r}{_more(extra)}"
            )
        for name, shape in shapes.items():
            if self.shape(name) != shape:
                raise ModelError(
                    f"{self._path}: tensor {name!r} has shape {list(self.shape(name))}, "
                    f"but the config says {list(shape)}"
                )

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        """Return a tensor, converted to `dtype`."""
        tensor: Tensor = self._files[self._where[name]].get_tensor(name)
        return tensor.to(dtype).contiguous()


def _weight_files(path: Path) -> list[Path]:
    index = path / "model.safetensors.index.json"
    if index.is_file():
        try:
            files = sorted({path / name for name in json.loads(index.read_text())["weight_map"].values()})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{index} cannot be read: {error}") from None
    else:
        files = [path / "model.safetensors"]
    for file in files:
        if not file.is_file():
            raise ModelError(f"{file} does not exist; weights are read from safetensors files")
    return files


def _more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
