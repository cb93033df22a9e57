"""A small Llama made big with the same function, so that speed is measured on text that makes sense.

Decoding reads every weight whatever it holds, but a proposer's luck hangs on the text. A model of random weights has
no text; a widened one writes what the trained small one writes, token for token, and is accepted as often. How:
    - the residual stream is padded with zeros. RMS normalisation then divides by a mean over more elements; its
      weights and its epsilon are rescaled, which is exact where the width grows by a power of 4;
    - old heads keep their groups and old inner units their order; what further ones compute meets zeros in the
      output projections;
    - further layers have output projections of zeros and add nothing;
    - random numbers stand wherever they are multiplied by zeros or feed zeros;
    - layers of other kinds, and those that predict further tokens, stay as they are but for inner units, where these
      alone are to be more.

Added zeros change no bit of a sum as long as the others stay in order and in their blocks (see csrc/linear.h and
csrc/norm.h). Widening by the defaults gives the same bits through the native kernels, in bfloat16 and float32. Where
a shape cannot, `obstacles` says why, and the two models agree up to rounding.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from parlay.checkpoints.files import read_json
from parlay.checkpoints.loader import Checkpoint
from parlay.errors import ConfigError, ModelError
from parlay.models.config import ModelConfig
from parlay.models.select import describe_model, resolve_dtype
from parlay.models.tensor_shapes import weight_shapes

_SHARD_BYTES = 500_000_000
_SPREAD = 0.02  # standard deviation of random weights: finite and moderate is all that matters
_NORM_COLUMNS = 32  # the kernel's sums of squares run in this many lanes
_COPIED = (
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "vocab.*",
    "merges.txt",
)
_CARD = """# {name}

A benchmark artefact: {source}, widened to {parameters:,} parameters that compute the same function. It knows nothing
that {source} does not and is only for measuring speed. Made by `scripts/widen.py`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The shape to widen to; from the embedded target the defaults give 730 million parameters.

    Attributes:
        hidden_size: width of the residual stream.
        num_layers: decoder layers.
        num_heads: query heads a layer, each as wide as before.
        num_kv_heads: key heads a layer.
        intermediate_size: inner width of the feed-forward network.
    """

    hidden_size: int = 4096
    num_layers: int = 10
    num_heads: int = 32
    num_kv_heads: int = 8
    intermediate_size: int = 4096


@dataclass(frozen=True)
class Places:
    """Where old elements go: `[old]` new indices along each kind of axis."""

    vocab: Tensor
    hidden: Tensor
    queries: Tensor
    keys: Tensor
    inner: Tensor


# Of each matrix: what its rows and its columns are, and whether numbers beyond the old ones are never of consequence.
_MATRICES = {
    "embed_tokens": ("vocab", "hidden", False),
    "lm_head": ("vocab", "hidden", True),
    "q_proj": ("queries", "hidden", True),
    "k_proj": ("keys", "hidden", True),
    "v_proj": ("keys", "hidden", True),
    "o_proj": ("hidden", "queries", False),
    "gate_proj": ("inner", "hidden", True),
    "up_proj": ("inner", "hidden", True),
    "down_proj": ("hidden", "inner", False),
}


def widen(model: str, output: Path, shape: Shape, seed: int, tick: Callable[[str], None]) -> dict[str, Any]:
    """Write a widened model as a Hugging Face directory, tensor by tensor.

    Args:
        model: name or directory of the small one.
        output: directory to write; made if missing.
        shape: the shape to reach.
        seed: of the random numbers.
        tick: called with a label before every tensor.

    Returns:
        What was made: `output`, `parameters`, `gigabytes`, `same_bits`, and the `obstacles` to it.

    Raises:
        ConfigError: a shape that is smaller somewhere or contradicts itself, or an output directory in use.
        ModelError: the small model cannot be found or read.
    """
    small = describe_model(model)
    _check(small, shape)
    ratio = shape.hidden_size / small.hidden_size
    wide = _config(small, output, shape)
    places, dtype = find_places(small, wide), resolve_dtype("auto", small)
    with Checkpoint(small.path) as weights:
        old_shapes = weight_shapes(small) | _further(weights, small, small)
        shapes = weight_shapes(wide) | _further(weights, small, wide)
    for name, size in shapes.items():
        if len(size) > 1 and size != old_shapes.get(name) and name.split(".")[-2] not in _MATRICES:
            raise ModelError(f"{small.path}: {name} cannot grow; let the intermediate size alone be another")
    parameters = sum(torch.Size(s).numel() for s in shapes.values())

    make_directory(output)
    _write_texts(small, wide, parameters, dtype)
    generator = torch.Generator().manual_seed(seed)
    shards = list(_shards(shapes, dtype.itemsize))
    files = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    with Checkpoint(small.path) as weights:
        for file, names in zip(files, shards, strict=True):
            tensors = {}
            for name in names:
                tick(f"{file}: {name}")
                old = weights.read(name, dtype) if name in old_shapes else None
                tensors[name] = _tensor(name, old, places, shapes[name], dtype, ratio, generator)
            save_file(tensors, output / file, metadata={"format": "pt"})
    index = {
        "metadata": {"total_size": parameters * dtype.itemsize},
        "weight_map": {name: file for file, names in zip(files, shards, strict=True) for name in names},
    }
    write_json(output / "model.safetensors.index.json", index)
    found = obstacles(small, wide)
    return {
        "output": str(output),
        "parameters": parameters,
        "gigabytes": parameters * dtype.itemsize / 1e9,
        "same_bits": not found,
        "obstacles": found,
    }


def is_widened(small: ModelConfig, path: Path, shape: Shape) -> bool:
    """Whether a directory holds a model widened to a shape.

    Sizes, the epsilon, every norm and the embedding are compared. What cannot be read is something else.
    """
    try:
        _check(small, shape)
    except ConfigError:
        return False
    expected = _config(small, path.resolve(), shape)
    same = (*(field.name for field in fields(shape)), "vocab_size", "head_dim", "rms_norm_eps", "tie_embeddings")
    places, dtype = find_places(small, expected), resolve_dtype("auto", small)
    ratio, unused = shape.hidden_size / small.hidden_size, torch.Generator()
    try:
        wide = describe_model(str(expected.path))
        if any(getattr(wide, name) != getattr(expected, name) for name in same):
            return False
        with Checkpoint(small.path) as before, Checkpoint(path) as after:
            after.expect(weight_shapes(wide))
            return all(
                torch.equal(
                    after.read(name, dtype),
                    _tensor(name, before.read(name, dtype), places, after.shape(name), dtype, ratio, unused),
                )
                for name, size in weight_shapes(small).items()
                if len(size) == 1 or name.endswith("embed_tokens.weight")
            )
    except ModelError:
        return False


def make_directory(path: Path) -> None:
    """Make a directory to write to.

    Raises:
        ConfigError: it cannot be made, or something is in it.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"{path} is not an empty directory; name one that does not exist yet")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path} cannot be made: {error.strerror}; name a directory that can") from None


def obstacles(small: ModelConfig, wide: ModelConfig) -> list[str]:
    """Return why the widened model may differ from the small one in the last bits; empty where it cannot."""
    places, found = find_places(small, wide), []
    ratio = wide.hidden_size // small.hidden_size
    # A square root that is a power of two: one bit set, at an even place.
    if wide.hidden_size % small.hidden_size or ratio & (ratio - 1) or ratio.bit_length() % 2 == 0:
        found.append(f"the width grows from {small.hidden_size} to {wide.hidden_size}, not by a power of 4")
    lanes = places.hidden % _NORM_COLUMNS
    if not torch.equal(lanes, torch.arange(small.hidden_size) % _NORM_COLUMNS):
        found.append("the norms would sum the residual stream's elements in other lanes")
    for what, place, width in (
        ("hidden_size", places.hidden, wide.hidden_size),
        ("num_heads and num_kv_heads", places.queries, wide.num_heads * wide.head_dim),
        ("intermediate_size", places.inner, wide.intermediate_size),
    ):
        before = torch.arange(len(place)) // _k_block(len(place))
        if not torch.equal(before.diff() > 0, (place // _k_block(width)).diff() > 0):
            found.append(f"with this {what} sums are cut into blocks at other places")
    return found


def _config(small: ModelConfig, path: Path, shape: Shape) -> ModelConfig:
    """Return what the widened model's config is to be."""
    return replace(
        small,
        path=path,
        rms_norm_eps=small.rms_norm_eps / (shape.hidden_size / small.hidden_size),
        **{field.name: getattr(shape, field.name) for field in fields(shape)},
    )


def _check(small: ModelConfig, shape: Shape) -> None:
    for field in fields(shape):
        given, least = getattr(shape, field.name), getattr(small, field.name)
        if given < least:
            raise ConfigError(f"{field.name}={given} is below the model's own {least}; a model can only grow")
    if shape.num_heads % shape.num_kv_heads:
        raise ConfigError(
            f"num_heads={shape.num_heads} does not divide into {shape.num_kv_heads} groups; "
            "make it a multiple of num_kv_heads"
        )
    if shape.hidden_size % shape.num_heads:
        raise ConfigError(
            f"hidden_size={shape.hidden_size} is no multiple of num_heads={shape.num_heads}, which transformers asks "
            "for; change either"
        )
    group, least = shape.num_heads // shape.num_kv_heads, small.num_heads // small.num_kv_heads
    if group < least:
        raise ConfigError(
            f"{group} heads a group cannot hold the model's {least}; raise num_heads to {least * shape.num_kv_heads}"
        )


def _k_block(inputs: int) -> int:
    """Return how many inputs a linear layer sums before it adds to the total; see csrc/linear.h."""
    return 1024 if inputs > 1024 else 512


def find_places(small: ModelConfig, wide: ModelConfig) -> Places:
    """Return where a model's elements go in its widened form."""
    head = torch.arange(small.num_heads)
    group, new_group = small.num_heads // small.num_kv_heads, wide.num_heads // wide.num_kv_heads
    heads = head // group * new_group + head % group
    within = torch.arange(small.head_dim)
    return Places(
        vocab=torch.arange(small.vocab_size),
        hidden=_columns(small.hidden_size, wide.hidden_size),
        queries=(heads[:, None] * small.head_dim + within).flatten(),
        keys=torch.arange(small.num_kv_heads * small.head_dim),
        inner=_columns(small.intermediate_size, wide.intermediate_size),
    )


def _columns(old: int, new: int) -> Tensor:
    """Return where a linear layer's old inputs go: each of their blocks to the start of a new one, if they fit."""
    index, block, new_block = torch.arange(old), _k_block(old), _k_block(new)
    spread = index // block * new_block + index % block
    return spread if spread[-1] < new else index


def _tensor(
    name: str,
    old: Tensor | None,
    places: Places,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    ratio: float,
    generator: torch.Generator,
) -> Tensor:
    """Return a tensor of the wide model; `old` is what the small one has under that name, if anything."""
    if old is not None and tuple(old.shape) == shape and ratio == 1:
        return old.clone()  # what shares memory cannot be written
    if len(shape) == 1:  # a norm's weight
        wide = torch.ones(shape, dtype=dtype)
        if old is not None:
            wide[places.hidden] = (old.double() / ratio**0.5).to(dtype)
        return wide
    rows, columns, free = _MATRICES[name.split(".")[-2]]
    wide = torch.zeros(shape, dtype=dtype)
    if free:
        wide.normal_(0, _SPREAD, generator=generator)
    if old is not None:
        wide[getattr(places, rows)[:, None], getattr(places, columns)] = old
    return wide


def _further(weights: Checkpoint, small: ModelConfig, wide: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of what a model has beside its own layers: those that predict further tokens."""
    if wide.hidden_size != small.hidden_size:
        return {}
    names = [name for name in weights.names if name.startswith("mtp.")]
    sizes = {small.intermediate_size: wide.intermediate_size}
    inner = [name for name in names if "inner" in _MATRICES.get(name.split(".")[-2], ())]
    return {
        name: tuple(sizes.get(size, size) for size in shape) if name in inner else shape
        for name in names
        for shape in [weights.shape(name)]
    }


def _shards(shapes: dict[str, tuple[int, ...]], itemsize: int) -> Iterator[list[str]]:
    """Yield the names of tensors that go into one file, which stays below the limit unless one alone exceeds it."""
    names: list[str] = []
    size = 0
    for name, shape in shapes.items():
        own = torch.Size(shape).numel() * itemsize
        if names and size + own > _SHARD_BYTES:
            yield names
            names, size = [], 0
        names.append(name)
        size += own
    yield names


def _write_texts(small: ModelConfig, wide: ModelConfig, parameters: int, dtype: torch.dtype) -> None:
    raw = read_json(small.path / "config.json") | {
        "hidden_size": wide.hidden_size,
        "intermediate_size": wide.intermediate_size,
        "num_hidden_layers": wide.num_layers,
        "num_attention_heads": wide.num_heads,
        "num_key_value_heads": wide.num_kv_heads,
        "head_dim": wide.head_dim,
        "rms_norm_eps": wide.rms_norm_eps,
    }
    raw["dtype" if "dtype" in raw else "torch_dtype"] = str(dtype).removeprefix("torch.")
    write_json(wide.path / "config.json", raw)
    for pattern in _COPIED:
        for file in small.path.glob(pattern):
            shutil.copyfile(file, wide.path / file.name)
    card = _CARD.format(name=wide.path.resolve().name, source=small.path.resolve().name, parameters=parameters)
    (wide.path / "README.md").write_text(card)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write an object as a file of JSON for people to read."""
    path.write_text(json.dumps(value, indent=2) + "\n")
