"""A GGUF model in several files: `NAME-00001-of-00003.gguf` and so on, each with its share of the tensors.

Source: llama.cpp's `gguf-split`. The first part has the metadata; each says which one it is (`split.no`, from 0), of
how many (`split.count`), and how many tensors all of them have (`split.tensors.count`).
"""

from __future__ import annotations

import re
from glob import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from parlay.checkpoints.gguf.reader import GGUFFile
from parlay.errors import ModelError

_PART = re.compile(r"(.*)-([0-9]{5})-of-([0-9]{5})(\.gguf)", re.DOTALL | re.IGNORECASE)
_WEIGHTS = (".safetensors", ".bin", ".pt")


def first_part(path: Path) -> Path:
    """Return the file that has a model's metadata: of one in parts the first, else `path` itself."""
    match = _PART.fullmatch(path.name)
    return path.with_name(f"{match[1]}-00001-of-{match[3]}{match[4]}") if match else path


def whole_name(path: Path) -> str:
    """Return a file's name without what says which part it is."""
    return _PART.sub(r"\1\4", path.name)


def parts_pattern(name: str) -> str:
    """Return a pattern, as for `fnmatch`, of a file's name and those of the other parts of its model."""
    match = _PART.fullmatch(name)
    return f"{escape(match[1])}-?????-of-{match[3]}{match[4]}" if match else escape(name)


def all_parts(path: Path) -> list[Path]:
    """Return a file, or those beside it that its name says are parts of the same model, as far as they exist."""
    match = _PART.fullmatch(path.name)
    if match is None:
        return [path]
    names = (f"{match[1]}-{number:05}-of-{match[3]}{match[4]}" for number in range(1, int(match[3]) + 1))
    return [file for file in map(path.with_name, names) if file.is_file()]


def gguf_models(folder: Path) -> list[Path]:
    """Return the GGUF models in a directory, of one in parts the first; encoders of images (mmproj) are none."""
    files = (
        file for file in folder.iterdir() if file.suffix.lower() == ".gguf" and "mmproj" not in file.name.lower()
    )
    return sorted({first_part(file) for file in files})


def model_file(path: Path) -> Path:
    """Return what to open for a path: the first part, or the one GGUF model of a directory without other weights."""
    try:
        if path.is_dir():
            plain = any(file.suffix in _WEIGHTS for file in path.iterdir())
            models = [] if plain else gguf_models(path)
        else:
            models = [first_part(path)]
    except OSError:  # the code that reads it reports why it cannot
        return path
    return models[0] if len(models) == 1 and models[0].is_file() else path


class GGUFModel(GGUFFile):
    """All files of a model as if they were one; `path` is the first one."""

    def __init__(self, path: Path) -> None:
        """Open a file, and where it is one part of a model, the others.

        Raises:
            ModelError: one is missing, damaged or of another model, or two have the same tensor.
        """
        first = first_part(path)
        if first != path and not first.is_file():
            raise ModelError(f"{first} does not exist, which {path} is a part of; fetch all parts into one directory")
        super().__init__(first)
        self._others: list[GGUFFile] = []
        self._where: dict[str, GGUFFile] = {}  # the tensors of the other parts
        count = self.integer("split.count", 1)
        if count <= 1:  # 0 in a file that llama.cpp's `gguf-split --merge` wrote
            return
        name = _PART.fullmatch(first.name)
        if name is None or int(name[3]) != count or self.integer("split.no") != 0:
            raise ModelError(
                f"{first} is part {self.integer('split.no') + 1} of {count}, which its name must say: the first ends "
                f"in -00001-of-{count:05}.gguf; give the parts the names that they were written with"
            )
        for number in range(1, count):
            self._add_part(first.with_name(f"{name[1]}-{number + 1:05}-of-{name[3]}{name[4]}"), number, count)
        total = self.integer("split.tensors.count")
        if len(self.tensors) != total:
            raise ModelError(
                f"{first} says that the parts of its model have {total} tensors, but they have {len(self.tensors)}; "
                "fetch them again"
            )

    def _add_part(self, path: Path, number: int, count: int) -> None:
        if not path.is_file():
            raise ModelError(f"{path} does not exist, part {number + 1} of {count} of a model; fetch it too")
        part = GGUFFile(path)
        numbers = part.integer("split.no", 0), part.integer("split.count", 1)
        if numbers != (number, count):
            raise ModelError(
                f"{path} says that it is part {numbers[0] + 1} of {numbers[1]}; it was renamed or is of another "
                "model, fetch it again"
            )
        key = "general.architecture"
        if key in part and part.text(key) != self.text(key):
            raise ModelError(f"{path} is a part of another model than {self.path}; fetch it again")
        twice = next((name for name in part.tensors if name in self.tensors), None)
        if twice is not None:
            other = self._where.get(twice, self).path
            raise ModelError(
                f"{path} has the tensor {twice!r}, and so has {other}; one of them is of another model, fetch both"
            )
        self.tensors |= part.tensors
        self._where |= dict.fromkeys(part.tensors, part)
        self._others.append(part)

    def raw(self, name: str, index: int | None = None) -> tuple[NDArray[np.uint8], tuple[int, ...]]:
        """Return the bytes of a tensor, or of one in a stack, and its shape."""
        part = self._where.get(name)
        return super().raw(name, index) if part is None else part.raw(name, index)

    @property
    def header(self) -> bytes:
        """Everything before the tensors, part after part."""
        return b"".join((super().header, *(part.header for part in self._others)))

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        for part in self._others:
            part.__exit__(*error)
