"""Any model of a family that GGUF files have, written as one: matrices in blocks or in floats of 16 bits.

The blocks of a matrix are chosen as `Checkpoint` does for an engine's `quantization`, so a file has exactly the
blocks that the engine makes. Norms, biases and routers are float32, as in llama.cpp's converters. A matrix that has
the wanted blocks already is copied. One tensor at a time is in memory; of a stack of experts, the part that is
written.
"""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from shutil import disk_usage
from typing import Any, BinaryIO, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from parlay.checkpoints.gguf.families import Family
from parlay.checkpoints.gguf.names import ROTARY, file_name
from parlay.checkpoints.gguf.parts import GGUFModel
from parlay.checkpoints.gguf.tensors import in_pairs
from parlay.checkpoints.gguf.writer import Entry, Value, encode, header, padding
from parlay.errors import ConfigError, ModelError, shown
from parlay.log import logger
from parlay.models.config import ModelConfig
from parlay.models.export.metadata import family_to_write, metadata, rotary_factors
from parlay.models.latent import EXPAND
from parlay.models.select import check_weights, describe_files, weight_shapes
from parlay.models.stored import open_weights
from parlay.text.gguf_vocabulary import vocabulary
from parlay.types.storage import MADE, Storage
from parlay.weights.kinds import BY_NAME, Kind

Form = Literal["int4", "int8", "bf16", "f16"]
FORMS: tuple[Form, ...] = get_args(Form)

# What plain matrices are stored as, by the form that is wanted or else by the model's dtype.
_FLOATS = {"bf16": BY_NAME["BF16"], "f16": BY_NAME["F16"], "float16": BY_NAME["F16"], "float32": BY_NAME["F32"]}
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_FILE_TYPES = {"f16": 1, "int4": 3, "int8": 7, "bf16": 32}  # llama.cpp's, by what most matrices are
_ROUTERS = ".gate.weight"
# Keys of a file that is read which describe the file and not the model.
_OF_FILES = ("split.", "quantize.", "general.alignment")
# Keys of a config that may differ in a file: where it comes from, and names.
_FREE = ("path", "architecture", "raw", "dtype", "eos_token_ids", "storage", "foreign", "renamed", "fused_mlp")

Tick = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Written:
    """The result of writing a model.

    Attributes:
        path: the file.
        size: its bytes.
        bits: per weight, all tensors together.
    """

    path: Path
    size: int
    bits: float


@dataclass(frozen=True, slots=True)
class _Planned:
    """A tensor of the file, and those of the model that it is made of: one, or a stack of experts."""

    entry: Entry
    sources: tuple[str, ...]


def export(path: Path, output: Path, form: Form, *, force: bool = False, tick: Tick = lambda label: None) -> Written:
    """Write a model as a GGUF file; the name appears only once the file is complete.

    Args:
        path: a directory in Hugging Face's format, or a GGUF file.
        output: the file to write.
        form: of the matrices.
        force: replace a file that is there.
        tick: called with what is going on.

    Raises:
        ConfigError: there is such a file, or it cannot be written there.
        ModelError: the model cannot be read, or a GGUF file cannot hold it.
    """
    check_output(output, force)
    config = describe_files(path)
    name, family = family_to_write(config)
    check_weights(config)
    if config.path.is_file():
        with GGUFModel(path) as file:
            keys = {k: v for k, v in file.verbatim().items() if not k.startswith(_OF_FILES)}
            factors = {n: file.read(n) for n in ROTARY if n in file.tensors}
    else:
        general: dict[str, Value] = {"general.architecture": name, "general.type": "model"}
        general["general.name"] = _name(config.path.resolve())
        told = {
            **general,
            **metadata(config),
            **vocabulary(config.path, name, config.vocab_size, config.eos_token_ids, config.raw),
        }
        keys = {key: encode(value) for key, value in told.items()}
        factors = rotary_factors(config)
    keys["general.file_type"] = encode(_FILE_TYPES[form])
    if form in MADE:
        keys["general.quantization_version"] = encode(2)
    partial = output.with_name(f"{output.name}.{os.getpid()}.partial")
    try:
        with partial.open("xb") as target, _Source(config, family, form) as source:
            size, bits = _write(target, keys, factors, source, tick)
        partial.replace(output)
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error.strerror or error}") from None
    finally:
        partial.unlink(missing_ok=True)
    return Written(output, size, bits)


def check_output(output: Path, force: bool) -> None:
    """Refuse a name that cannot be written to, before anything is done for it.

    Raises:
        ConfigError: it is no name of a GGUF file, there is such a file, or no such directory.
    """
    if output.suffix != ".gguf":
        raise ConfigError(f"{shown(str(output))} must end in .gguf, for by that such files are known")
    if output.is_dir() or not output.parent.is_dir():
        what = "is a directory" if output.is_dir() else f"lies in {output.parent}, which does not exist"
        raise ConfigError(f"{output} {what}; name a file in a directory that exists")
    if output.exists() and not force:
        raise ConfigError(f"{output} exists; name another file, or replace it with --force")


def _name(path: Path) -> str:
    """Return the name of a model's directory; in the hub's cache it is two folders above."""
    cached = path.parent.name == "snapshots"
    return path.parent.parent.name.rpartition("--")[2] if cached else path.name


class _Source:
    """The tensors of a model, in the form that is wanted. A context manager."""

    def __init__(self, config: ModelConfig, family: Family, form: Form) -> None:
        made: Storage = form if form in MADE else "plain"
        self.config = config
        self._family = family
        self._plain = _FLOATS.get(form, _FLOATS.get(config.dtype, BY_NAME["BF16"]))
        self._keeps = form == "int4"  # blocks of four bits that are there
        self._stored = open_weights(config, storage="stored")
        self._made = open_weights(config, storage=made)
        self._own = weight_shapes(config)
        fused = config.style.fused_mlp and "mlp.gate_up_proj" in family.inner.values()
        self.names = weight_shapes(replace(config, style=replace(config.style, fused_mlp=fused)))

    @property
    def loses(self) -> bool:
        """Whether a tensor that was quantised before is quantised otherwise."""
        names = filter(self._stored.quantised, self._own)
        return any(self._stored.kind(name) != self._kind(name) for name in names)

    def plan(self) -> list[_Planned]:
        """Return the tensors of the file, in order."""
        stacks: dict[str, list[str]] = {}
        for name in self.names:
            if name.endswith(EXPAND):  # of which files have keys and values apart
                layer = file_name(name, self._family)[0].removesuffix("attn_kv_b.weight")
                for part in ("attn_k_b", "attn_v_b"):
                    stacks[f"{layer}{part}.weight"] = [name]
            else:
                stacks.setdefault(file_name(name, self._family)[0], []).append(name)
        return [self._planned(name, sources) for name, sources in stacks.items()]

    def _planned(self, name: str, sources: list[str]) -> _Planned:
        shape = self.names[sources[0]]
        if (latent := self.config.style.latent) is not None and sources[0].endswith(EXPAND):
            each = (latent.rank, latent.content) if _is_keys(name) else (latent.value, latent.rank)
            return _Planned(Entry(name, self._plain, (self.config.num_heads, *each)), tuple(sources))
        stacked = file_name(sources[0], self._family)[1] is not None
        return _Planned(
            Entry(name, self._kind(sources[0]), (len(sources), *shape) if stacked else shape), tuple(sources)
        )

    def absorbed_bytes(self, entry: Entry, name: str) -> Tensor:
        """Return each head's keys, turned over, or values of a latent, as `bytes_of`."""
        latent = self.config.style.latent
        assert latent is not None
        whole = self._made.read(name, _DTYPES[entry.kind.name]).view(self.config.num_heads, -1, latent.rank)
        keys, values = whole.tensor_split((latent.content,), dim=1)
        part = keys.transpose(1, 2) if _is_keys(entry.name) else values
        return part.contiguous().view(-1).view(torch.uint8)

    def _part(self, name: str) -> tuple[str, slice]:
        """Return the model's own tensor that one is of, and which of its outputs; some models fuse gate and up."""
        if name in self._own:
            return name, slice(None)
        (width, *_), which = self.names[name], int(".up_proj." in name)
        fused = re.sub(r"(gate|up)_proj", "gate_up_proj", name)
        return fused, slice(which * width, (which + 1) * width)

    def _kind(self, name: str) -> Kind:
        name, _ = self._part(name)
        if len(self._made.shape(name)) == 1 or name.endswith(_ROUTERS):
            return BY_NAME["F32"]
        kind = self._made.kind(name)
        if self._keeps and (stored := self._stored.kind(name)) is not None and stored.exponent is not None:
            return stored
        if kind is None:  # a matrix stays as it is where it does not divide into blocks
            kind = self._plain
        return kind

    def bytes_of(self, name: str) -> Tensor:
        """Return a tensor of the model as the file has it, uint8, in one dimension.

        Raises:
            ModelError: it holds numbers that the form cannot.
        """
        kind = self._kind(name)
        name, outputs = self._part(name)
        if kind.block == 1:
            data = self._made.read(name, _DTYPES[kind.name])
            if offset := self._family.offset(name):
                data = data + offset
        else:
            weights = self._stored if self._stored.kind(name) == kind else self._made
            (part,) = weights.read_weight(name, torch.float32).parts
            data = part.data
        data = data[outputs]
        heads = {"q_proj": self.config.num_heads, "k_proj": self.config.num_kv_heads}.get(name.split(".")[-2])
        if heads is not None and self._family.interleaved:
            data = in_pairs(data, heads)
        return data.contiguous().view(-1).view(torch.uint8)

    def __enter__(self) -> "_Source":
        return self

    def __exit__(self, *error: Any) -> None:
        self._made.__exit__(*error)
        self._stored.__exit__(*error)


def _write(
    target: BinaryIO, keys: dict[str, bytes], factors: dict[str, Tensor], source: _Source, tick: Tick
) -> tuple[int, float]:
    """Write everything; return the bytes of the file, and bits a weight."""
    planned = source.plan()
    rotary = [Entry(name, BY_NAME["F32"], tuple(factor.shape)) for name, factor in factors.items()]
    entries = [*rotary, *(one.entry for one in planned)]
    target.write(header(keys, entries))
    for factor in factors.values():
        _put(target, factor.float().view(torch.uint8).numpy())
    size = target.tell() + sum(one.entry.size + padding(one.entry.size) for one in planned)
    path = Path(target.name)
    if disk_usage(path.parent).free < size - target.tell():
        raise ConfigError(
            f"{path.parent} has too little room for {size / 1e9:.1f} GB; make room or name another place"
        )
    target.truncate(size)
    target.flush()
    _compare(source.config, path)
    if source.loses:
        logger.warning(
            "%s is quantised already and loses accuracy once more; begin with what it was made of, if you can",
            source.config.path,
        )
    for number, one in enumerate(planned, start=1):
        tick(f"{number} of {len(planned)}: {one.entry.name} as {one.entry.kind}")
        _put(target, _joined(source, one))
    target.flush()
    os.fsync(target.fileno())
    weights = sum(int(np.prod(entry.shape)) for entry in entries)
    return size, 8 * sum(entry.size for entry in entries) / weights


def _joined(source: _Source, planned: _Planned) -> Any:
    if planned.sources[0].endswith(EXPAND):
        return source.absorbed_bytes(planned.entry, planned.sources[0]).numpy()
    if len(planned.sources) == 1:
        return source.bytes_of(planned.sources[0]).numpy()
    stack = torch.empty(planned.entry.size, dtype=torch.uint8)
    for part, name in zip(stack.chunk(len(planned.sources)), planned.sources, strict=True):
        part.copy_(source.bytes_of(name))
    return stack.numpy()


def _is_keys(name: str) -> bool:
    """Whether one of a file's two tensors that make up a latent's expansion is that of keys."""
    return name.endswith("attn_k_b.weight")


def _put(target: BinaryIO, data: Any) -> None:
    target.write(data)
    target.write(bytes(padding(data.nbytes)))


def _compare(config: ModelConfig, path: Path) -> None:
    """Refuse a model of which something is lost: its file, read back, must have the same shape and style."""
    read = describe_files(path)
    lost = [f"{name}={shown(ours)}" for name, ours, theirs in _differences(config, read)]
    if lost:
        raise ModelError(
            f"{config.path} has {', '.join(lost)}, which no key of a GGUF file can say; serve the model as it is"
        )


def _differences(ours: Any, theirs: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield what differs between two configs: names and both values. Numbers are compared as files hold them."""
    if type(ours) is type(theirs) and hasattr(ours, "__dataclass_fields__"):
        for field in fields(ours):
            if field.name not in _FREE:
                yield from _differences(getattr(ours, field.name), getattr(theirs, field.name), field.name)
    elif _single(ours) != _single(theirs):
        yield name, ours, theirs


def _single(value: Any) -> Any:
    """Return a value with its numbers as float32."""
    if isinstance(value, dict):
        return {key: _single(one) for key, one in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_single, value))
    return float(np.float32(value)) if isinstance(value, float) else value
