"""Any model of a family that GGUF files have, written as one: matrices in blocks or in floats of 16 bits.

The blocks of a matrix are chosen as `Checkpoint` does for an engine's `quantization`, so a file has exactly the
blocks that the engine makes. Norms, biases, routers and convolutions are float32, as in llama.cpp's converters. A
matrix that has the wanted blocks already is copied. One tensor at a time is in memory; of a stack of experts, the
part that is written.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from shutil import disk_usage
from typing import Any, BinaryIO, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from parlay.checkpoints.config import FOR_MLX
from parlay.checkpoints.gguf.families import FAMILIES
from parlay.checkpoints.gguf.names import ROTARY
from parlay.checkpoints.gguf.parts import GGUFModel
from parlay.checkpoints.gguf.writer import Entry, Value, encode, header, padding
from parlay.errors import ConfigError, ModelError, shown
from parlay.log import logger
from parlay.models.config import ModelConfig
from parlay.models.export.layout import as_gguf_config, has_mtp, mtp_origins, origins
from parlay.models.export.metadata import family_to_write, metadata, rotary_factors
from parlay.models.export.tensors import GGUFTensors
from parlay.models.select import check_weights, describe_files, mtp_layers
from parlay.models.stored import open_weights
from parlay.text.gguf_vocabulary import vocabulary
from parlay.types.storage import MADE
from parlay.weights.kinds import BY_NAME

Form = Literal["int4", "int8", "bf16", "f16"]
FORMS: tuple[Form, ...] = get_args(Form)

_FILE_TYPES = {"f16": 1, "int4": 3, "int8": 7, "bf16": 32}  # llama.cpp's, by what most matrices are
# Keys of a file that is read which describe the file and not the model.
_OF_FILES = ("split.", "quantize.", "general.alignment")
# Keys of a config that may differ in a file: where it comes from, and names.
_FREE = ("path", "architecture", "raw", "dtype", "eos_token_ids", "storage", "library_model", "renamed")

Tick = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """The result of writing a model.

    Attributes:
        path: the file.
        size: size of the file in bytes.
        bits: per weight, all tensors together.
    """

    path: Path
    size: int
    bits: float


def export(
    path: Path, output: Path, form: Form, *, force: bool = False, tick: Tick = lambda label: None
) -> ExportedFile:
    """Write a model as a GGUF file; the name appears only once the file is complete.

    Args:
        path: a directory in Hugging Face's format, or a GGUF file.
        output: the file to write.
        form: format of the matrices.
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
    further = mtp_layers(config)
    if further and not has_mtp(family):
        logger.warning("%s: its MTP layer is left out; files of %s have no place for it", path, name)
        further = ()
    keys, factors = _described(config, name, [layer.config for layer in further])
    keys["general.file_type"] = encode(_FILE_TYPES[form])
    if form in MADE:
        keys["general.quantization_version"] = encode(2)
    partial = output.with_name(f"{output.name}.{os.getpid()}.partial")
    try:
        with ExitStack() as stack:
            own = origins(config, family)
            tensors = GGUFTensors(config, family, form, own, lambda kind: open_weights(config, storage=kind))
            sets = [stack.enter_context(tensors)]
            for number, layer in enumerate(further, config.num_layers):
                more = mtp_origins(number, layer, family)
                sets.append(stack.enter_context(GGUFTensors(layer.config, family, form, more, layer.open)))
            with partial.open("xb") as target:
                size, bits = _write(target, keys, factors, sets, as_gguf_config(config, family), tick)
        partial.replace(output)
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error.strerror or error}") from None
    finally:
        partial.unlink(missing_ok=True)
    return ExportedFile(output, size, bits)


def _described(
    config: ModelConfig, name: str, further: Sequence[ModelConfig]
) -> tuple[dict[str, bytes], dict[str, Tensor]]:
    """Return the metadata of a model's file, and the tensors that scale rotary frequencies."""
    if config.path.is_file():
        with GGUFModel(config.path) as file:
            kept = {k: v for k, v in file.verbatim().items() if not k.startswith(_OF_FILES)}
            return kept, {n: file.read(n) for n in ROTARY if n in file.tensors}
    general: dict[str, Value] = {"general.architecture": name, "general.type": "model"}
    general["general.name"] = _name(config.path.resolve())
    told = {
        **general,
        **metadata(config, further),
        **_numbers(config, name),
        **vocabulary(config.path, name, config.vocab_size, config.eos_token_ids, config.raw),
    }
    return {key: encode(value) for key, value in told.items()}, rotary_factors(config)


def _numbers(config: ModelConfig, name: str) -> dict[str, Value]:
    """Return the numbers of each layer that files of an architecture have among their metadata."""
    if not (numbers := FAMILIES[name].numbers):
        return {}
    with open_weights(config, storage="plain") as weights:
        return {
            key: [float(weights.read(f"model.layers.{i}.{inner}")) for i in range(config.num_layers)]
            for inner, (key, _) in numbers.items()
        }


def check_output(output: Path, force: bool) -> None:
    """Refuse a name that cannot be written to, before anything is done for it.

    Raises:
        ConfigError: it is no name of a GGUF file, there is such a file, or no such directory.
    """
    if output.suffix != ".gguf":
        raise ConfigError(f"{shown(str(output))} must end in .gguf")
    if output.is_dir() or not output.parent.is_dir():
        what = "is a directory" if output.is_dir() else f"lies in {output.parent}, which does not exist"
        raise ConfigError(f"{output} {what}; give a file in an existing directory")
    if output.exists() and not force:
        raise ConfigError(f"{output} exists; name another file, or replace it with --force")


def _name(path: Path) -> str:
    """Return the name of a model's directory; in the hub's cache it is two folders above."""
    cached = path.parent.name == "snapshots"
    return path.parent.parent.name.rpartition("--")[2] if cached else path.name


def _write(
    target: BinaryIO,
    keys: dict[str, bytes],
    factors: dict[str, Tensor],
    sets: Sequence[GGUFTensors],
    filed: ModelConfig,
    tick: Tick,
) -> tuple[int, float]:
    """Write everything; return the bytes of the file, and bits per weight."""
    planned = [(tensors, one) for tensors in sets for one in tensors.plan()]
    rotary = [Entry(name, BY_NAME["F32"], tuple(factor.shape)) for name, factor in factors.items()]
    entries = [*rotary, *(one.entry for _, one in planned)]
    target.write(header(keys, entries))
    for factor in factors.values():
        _put(target, factor.float().view(torch.uint8).numpy())
    size = target.tell() + sum(one.entry.size + padding(one.entry.size) for _, one in planned)
    path = Path(target.name)
    if disk_usage(path.parent).free < size - target.tell():
        raise ConfigError(
            f"{path.parent} has too little space for {size / 1e9:.1f} GB; free some or give another directory"
        )
    target.truncate(size)
    target.flush()
    _compare(filed, path)
    if any(tensors.loses for tensors in sets):
        logger.warning(
            "%s is already quantised and loses accuracy again; start from the original model if you can",
            filed.path,
        )
    for number, (tensors, one) in enumerate(planned, start=1):
        tick(f"{number} of {len(planned)}: {one.entry.name} as {one.entry.kind}")
        _put(target, tensors.data(one))
    target.flush()
    os.fsync(target.fileno())
    weights = sum(int(np.prod(entry.shape)) for entry in entries)
    return size, 8 * sum(entry.size for entry in entries) / weights


def _put(target: BinaryIO, data: Any) -> None:
    target.write(data)
    target.write(bytes(padding(data.nbytes)))


def _compare(config: ModelConfig, path: Path) -> None:
    """Refuse a model of which something is lost: its file, read back, must have the same shape and style."""
    try:
        read = describe_files(path)
    except ModelError as error:
        reason = str(error).replace(str(path), "it")
        raise ModelError(f"{config.path} cannot be put into a GGUF file: {reason}") from None
    if FOR_MLX in config.raw:  # norms are written as other files have them
        config = replace(config, style=replace(config.style, plus_one=read.style.plus_one))
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
