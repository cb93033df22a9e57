"""The tensors of a GGUF file as `models.decoder` has them.

Source: llama.cpp's converters for what happens to weights on the way into a file, which is undone here: Llama's
rotary rows are interleaved, Gemma's norms are stored plus one, experts are stacked.
"""

from __future__ import annotations

import math
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from parlay.checkpoints.gguf.families import family_of, size_of
from parlay.checkpoints.gguf.family import Family
from parlay.checkpoints.gguf.names import ROTARY, Place, names_of
from parlay.checkpoints.gguf.parts import GGUFModel
from parlay.checkpoints.gguf.reader import GGUFFile
from parlay.checkpoints.quantised.layers import StoredShape
from parlay.errors import ModelError
from parlay.weights.kinds import READ_AS, Kind

if TYPE_CHECKING:
    from torch import Tensor

    from parlay.weights.weight import Weight


class GGUFWeights:
    """The tensors of a GGUF file under the decoder's names; offers what a safetensors file does."""

    def __init__(self, path: Path) -> None:
        """Open a model's file, or all of its parts, and check headers.

        Raises:
            ModelError: it cannot be read, is damaged, or holds a model that is not supported.
        """
        self._file = GGUFModel(path)
        self._name, self._family = family_of(self._file)
        self._names: dict[str, Place] = {}
        heads = cache(partial(_heads_of, self._file, self._name))
        for stored in self._file.tensors.values():
            if stored.name not in ROTARY:
                self._names |= names_of(stored, self._family, heads)
        self._numbers = _numbers_of(self._file, self._name, self._family)
        # Absorbed keys and values, each of which has heads as a dimension: together they are one matrix of the class.
        self._joined = {
            f"model.layers.{stored.name.split('.')[1]}.self_attn.kv_b_proj.weight": stored.name
            for stored in self._file.tensors.values()
            if self._family.latent and stored.name.endswith(".attn_k_b.weight") and len(stored.shape) == 3
        }
        for name, keys in self._joined.items():
            values = self._file.tensors.get(keys.replace("attn_k_b", "attn_v_b"))
            if values is None or len(values.shape) != 3 or values.shape[0] != self._file.tensors[keys].shape[0]:
                raise ModelError(f"{path}: {keys!r} has no matrix of values beside it for each of its heads")
            for own in (keys, values.name):
                self._names.pop(own, None)
            self._names[name] = Place(keys)

    def keys(self) -> list[str]:
        """Return the tensors' names."""
        return [*self._names, *self._numbers]

    def get_slice(self, name: str) -> StoredShape:
        """Return a tensor's shape without reading it."""
        if name in self._numbers:
            return StoredShape([*self._numbers[name].shape])
        place = self._names[name]
        if name in self._joined:
            heads, rank, content = self._file.tensors[place.name].shape
            value = self._file.tensors[place.name.replace("attn_k_b", "attn_v_b")].shape[1]
            return StoredShape([heads * (content + value), rank])
        shape = list(self._file.tensors[place.name].shape[0 if place.index is None else 1 :])
        if name.endswith(self._family.squeezed):
            shape.insert(1, 1)
        if name.endswith(self._family.flat):
            shape = [math.prod(shape)]
        if place.rows is not None:
            shape[0] = len(range(shape[0])[slice(*place.rows)])
        return StoredShape(shape)

    def get_tensor(self, name: str) -> Tensor:
        """Return a tensor as Hugging Face's class would have it; what was quantised comes as float32."""
        if name in self._numbers:
            return self._numbers[name]
        place = self._names[name]
        if name in self._joined:
            return self._absorbed(place.name)
        tensor = self._file.read(place.name, place.index)
        tensor = self._halved(name, tensor if place.rows is None else tensor[slice(*place.rows)].contiguous())
        if name.endswith(self._family.squeezed):
            tensor = tensor[:, None]
        if name.endswith(self._family.flat):
            tensor = tensor.reshape(-1)
        return tensor - offset if (offset := self._family.offset(name)) else tensor

    def head_kinds(self, name: str) -> tuple[Kind, Kind] | None:
        """Return how a latent's keys and values are stored, where each head has matrices of its own."""
        if name not in self._joined:
            return None
        keys = self._joined[name]
        return self._file.tensors[keys].kind, self._file.tensors[keys.replace("attn_k_b", "attn_v_b")].kind

    def get_head(self, name: str, head: int, *, values: bool) -> Weight:
        """Return a head's values, `[value, rank]`, or keys, `[rank, content]`, as they are stored in blocks."""
        keys = self._joined[name]
        return self._file.read_blocks(keys.replace("attn_k_b", "attn_v_b") if values else keys, head)

    def _absorbed(self, keys: str) -> Tensor:
        """Return keys and values of a latent as one matrix, `[heads * (content + value), rank]`."""
        import torch

        parts = self._file.read(keys).transpose(1, 2), self._file.read(keys.replace("attn_k_b", "attn_v_b"))
        if parts[0].shape[2] != parts[1].shape[2]:
            raise ModelError(
                f"{self._file.path}: {keys!r} and the values beside it are of latents of different widths"
            )
        whole = torch.cat([part.float() if parts[0].dtype != parts[1].dtype else part for part in parts], dim=1)
        return whole.reshape(-1, whole.shape[2])

    def kind(self, name: str) -> Kind:
        """Return how a tensor is stored."""
        kind = self._file.tensors[self._names[name].name].kind
        return READ_AS.get(kind, kind)

    def get_blocks(self, name: str) -> Weight:
        """Return a matrix of blocks as Hugging Face's class would have it, as it is stored."""
        from parlay.weights.weight import Part, Weight

        place = self._names[name]
        stored = self._file.read_blocks(place.name, place.index)
        stored = stored if place.rows is None else stored.outputs(*place.rows)
        return Weight(tuple(Part(part.kind, self._halved(name, part.data)) for part in stored.parts))

    def _halved(self, name: str, tensor: Tensor) -> Tensor:
        """Return a tensor whose rotary rows come in halves, not in pairs."""
        heads = self._heads(name) if self._family.interleaved else None
        if heads is None:
            return tensor
        if tensor.shape[0] % (2 * heads):
            raise ModelError(
                f"{self._file.path}: tensor {self._names[name].name!r} has {tensor.shape[0]} rows, which are not "
                f"{heads} heads of pairs; the file is damaged"
            )
        pairs = tensor.reshape(heads, -1, 2, *tensor.shape[1:])
        return pairs.transpose(1, 2).reshape(tensor.shape)

    def __enter__(self) -> GGUFWeights:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.__exit__(*error)

    def _heads(self, name: str) -> int | None:
        """Return how many heads a tensor's rows belong to, where they are rotated."""
        heads = size_of(self._file, f"{self._name}.attention.head_count")
        if ".q_proj." in name:
            return heads
        if ".k_proj." in name:
            return size_of(self._file, f"{self._name}.attention.head_count_kv", heads)
        return None


def _heads_of(file: GGUFFile, name: str, layer: int) -> tuple[int, int, int]:
    """Return how many rows a layer's queries, keys and values have."""

    def count(key: str, default: int | None = None) -> int:
        values = file.numbers(key) if file.is_array(key) else ()
        return int(values[layer]) if layer < len(values) else file.integer(key, default)

    heads = count(f"{name}.attention.head_count")
    groups = count(f"{name}.attention.head_count_kv", heads)
    width = size_of(file, f"{name}.attention.key_length", size_of(file, f"{name}.embedding_length") // max(heads, 1))
    return heads * width, groups * width, groups * size_of(file, f"{name}.attention.value_length", width)


def _numbers_of(file: GGUFFile, name: str, family: Family) -> dict[str, Tensor]:
    """Return the tensors of each layer whose numbers a file has among its metadata, once for all layers or listed.

    Raises:
        ModelError: a list has another length than there are layers.
    """
    import torch

    layers = size_of(file, f"{name}.block_count")
    found: dict[str, Tensor] = {}
    for inner, (key, shape) in family.numbers.items():
        values = file.numbers(key) if file.is_array(key) else [file.number(key)] * layers
        if len(values) != layers:
            raise ModelError(f"{file.path}: {key} must list a number for each of {layers} layers")
        found |= {f"model.layers.{i}.{inner}": torch.tensor(value).view(shape) for i, value in enumerate(values)}
    return found
