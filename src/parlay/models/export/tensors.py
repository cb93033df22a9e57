"""The tensors of a model in the form in which a file is to have them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from parlay.checkpoints.gguf.family import Family
from parlay.checkpoints.gguf.names import file_name
from parlay.checkpoints.gguf.writer import Entry
from parlay.checkpoints.loader import Checkpoint, is_finite
from parlay.errors import ModelError
from parlay.kernels.native_quantise import quantise
from parlay.models.config import ModelConfig
from parlay.models.latent import EXPAND
from parlay.models.tensor_origins import TensorOrigin
from parlay.types.storage import MADE, Storage
from parlay.weights.kinds import BY_NAME, Kind

# What plain matrices are stored as, by the form that is wanted or else by the model's dtype.
_FLOATS = {"bf16": BY_NAME["BF16"], "f16": BY_NAME["F16"], "float16": BY_NAME["F16"], "float32": BY_NAME["F32"]}
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_ROUTERS = ".gate.weight"


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor of the file, and those by the decoder's names that it is made of: one, or a stack of experts."""

    entry: Entry
    sources: tuple[str, ...]


class GGUFTensors:
    """The tensors of a model, or of its MTP layer. A context manager."""

    def __init__(
        self,
        config: ModelConfig,
        family: Family,
        form: str,
        origins: Mapping[str, TensorOrigin],
        opened: Callable[[Storage], Checkpoint],
    ) -> None:
        """Open the model's files.

        Args:
            config: the model's config.
            family: the file's family.
            form: format of the matrices.
            origins: origins of the file's tensors, by the decoder's names.
            opened: opens the model's files; matrices are given as it is told.
        """
        made: Storage = form if form in MADE else "plain"
        self._config, self._family, self._origins = config, family, origins
        self._plain = _FLOATS.get(form, _FLOATS.get(config.dtype, BY_NAME["BF16"]))
        self._keeps = form == "int4"  # blocks of four bits that are there
        self._stored, self._made = opened("stored"), opened(made)

    @property
    def loses(self) -> bool:
        """Whether a tensor that was quantised before is quantised otherwise."""
        return any(
            self._stored.quantised(origin.name) and self._stored.kind(origin.name) != self._kind(name)
            for name, origin in self._origins.items()
        )

    def plan(self) -> list[PlannedTensor]:
        """Return the tensors of the file, in order."""
        stacks: dict[str, list[str]] = {}
        for name in self._origins:
            own, _ = file_name(name, self._family)
            if name.endswith(EXPAND):  # of which files have keys and values apart
                layer = own.removesuffix("attn_kv_b.weight")
                stacks |= {f"{layer}{part}.weight": [name] for part in ("attn_k_b", "attn_v_b")}
            else:
                stacks.setdefault(own, []).append(name)
        return [self._planned(name, sources) for name, sources in stacks.items()]

    def data(self, planned: PlannedTensor) -> Any:
        """Return a tensor of the file as bytes, an array in one dimension.

        Raises:
            ModelError: it holds numbers that the form cannot.
        """
        first, *others = planned.sources
        if first.endswith(EXPAND):
            return self._absorbed(planned.entry, first).numpy()
        if not others:
            return self._bytes(first).numpy()
        stack = torch.empty(planned.entry.size, dtype=torch.uint8)
        for part, name in zip(stack.chunk(len(planned.sources)), planned.sources, strict=True):
            part.copy_(self._bytes(name))
        return stack.numpy()

    def _planned(self, name: str, sources: list[str]) -> PlannedTensor:
        first, latent = sources[0], self._config.style.latent
        if latent is not None and first.endswith(EXPAND):
            each = (latent.kv_rank, latent.nope_dim) if _is_keys(name) else (latent.value, latent.kv_rank)
            return PlannedTensor(Entry(name, self._plain, (self._config.num_heads, *each)), tuple(sources))
        shape, experts = self._shape(first), self._config.style.experts
        if experts is not None and file_name(first, self._family)[1] is not None:
            shape = experts.count, len(sources) // experts.count * shape[0], *shape[1:]
        return PlannedTensor(Entry(name, self._kind(first), shape), tuple(sources))

    def _shape(self, name: str) -> tuple[int, ...]:
        origin = self._origins[name]
        rows, *others = self._made.shape(origin.name)
        return origin.shape_of((rows if origin.outputs is None else len(origin.outputs), *others))

    def _absorbed(self, entry: Entry, name: str) -> Tensor:
        """Return each head's keys, turned over, or values of a latent."""
        latent = self._config.style.latent
        assert latent is not None
        whole = self._made.read(self._origins[name].name, _DTYPES[entry.kind.name])
        keys, values = whole.view(self._config.num_heads, -1, latent.kv_rank).tensor_split((latent.nope_dim,), dim=1)
        part = keys.transpose(1, 2) if _is_keys(entry.name) else values
        return part.contiguous().view(-1).view(torch.uint8)

    def _kind(self, name: str) -> Kind:
        origin = self._origins[name]
        if len(self._made.shape(origin.name)) == 1 or name.endswith(_ROUTERS) or origin.shape:
            return BY_NAME["F32"]
        stored = self._stored.kind(origin.name) if self._keeps and origin.moved else None
        if stored is not None and stored.exponent is not None:
            return stored
        return self._made.kind(origin.name) or self._plain  # it stays where it does not divide into blocks

    def _bytes(self, name: str) -> Tensor:
        """Return a tensor as the file has it, uint8, in one dimension."""
        kind, origin = self._kind(name), self._origins[name]
        if kind.block > 1:
            data = self._blocks(kind, origin)
        else:
            data = self._numbers(kind, origin)
            if self._config.style.plus_one and (offset := self._family.offset(name)):  # files for MLX have it
                data = data + offset
        return data.contiguous().view(-1).view(torch.uint8)

    def _numbers(self, kind: Kind, origin: TensorOrigin) -> Tensor:
        dtype = _DTYPES[kind.name]
        if origin.moved:
            own = self._made.read(origin.name, dtype)
            return own if origin.outputs is None else own[origin.outputs]
        made = origin.numbers(self._made.read(origin.name, torch.float32)).to(dtype)
        if not is_finite(made):
            raise ModelError(f"{self._config.path}: tensor {origin.name!r} has values that are too large for {kind}")
        return made

    def _blocks(self, kind: Kind, origin: TensorOrigin) -> Tensor:
        if origin.moved:
            weights = self._stored if self._stored.kind(origin.name) == kind else self._made
            weight = weights.read_weight(origin.name, torch.float32)
            weight = weight if origin.outputs is None else weight.chosen(origin.outputs)
        else:
            weight = quantise(origin.numbers(self._made.read(origin.name, torch.float32)), kind)
        (part,) = weight.parts
        return part.data

    def __enter__(self) -> "GGUFTensors":
        return self

    def __exit__(self, *error: Any) -> None:
        self._made.__exit__(*error)
        self._stored.__exit__(*error)


def _is_keys(name: str) -> bool:
    """Whether one of a file's two tensors that make up a latent's expansion is that of keys."""
    return name.endswith("attn_k_b.weight")
