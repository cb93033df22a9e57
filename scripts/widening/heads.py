"""Draft heads for a widened target: those of the small one, drafting the same tokens.

What the target's width is in a head grows with it, by zeros; what is the head's own keeps its size. The target's
states are the small one's with zeros between, so a head that multiplies those by zeros and adds zeros there computes
what it did, up to the order of sums. Norms over the width are rescaled as the target's are, see `widening.model`.

One epsilon cannot be: an MLP speculator that norms its input adds 1e-6 to a mean, which is over more elements now. A
final norm has made that mean far larger.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from parlay.bench.contenders import FOLDER
from parlay.checkpoints.loader import Checkpoint
from parlay.config import SpeculativeConfig
from parlay.errors import ConfigError, ModelError, shown
from parlay.models.config import ModelConfig
from parlay.models.heads import HeadConfig, read_head
from parlay.models.select import describe_model, resolve_dtype
from parlay.proposers.base import TargetInfo
from parlay.proposers.methods.medusa.format import FILE, read_layout
from parlay.proposers.select import make_proposer, resolve_method
from widening.model import Shape, find_places, is_widened, make_directory, widen, write_json

_CARD = """# {name}

A benchmark artefact: {source}, a draft head for {small}, widened to draft the same for {wide}. It is only for
measuring speed. Made by `scripts/widen.py`.
"""


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a head grows.

    Attributes:
        config: keys of its `config.json` that change.
        axes: of each tensor that grows, how many times the target's width each axis is; 0 is a size of its own.
        scaled: tensors that are divided by the square root of the growth.
        copied: tensors that the head had of the target, by the name that its own copies get.
        file: name of its weights.
    """

    config: Mapping[str, Any]
    axes: Mapping[str, tuple[int, ...]]
    scaled: frozenset[str] = frozenset()
    copied: Mapping[str, str] = field(default_factory=dict)
    file: str = "model.safetensors"


@dataclass(frozen=True, slots=True)
class _Head:
    """A head for the small target, and what its proposer made of it.

    Attributes:
        method: that it is for.
        config: where it lies, and its `config.json`.
        names: of its tensors.
        layers: the config of its decoder layers, if it has such.
        taps: after how many of the target's layers it reads states.
        small: the target.
    """

    method: str
    config: HeadConfig
    names: tuple[str, ...]
    layers: ModelConfig | None
    taps: tuple[int, ...]
    small: ModelConfig


def widen_all(
    model: str, output: Path, shape: Shape, seed: int, heads: Sequence[str], tick: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Write a widened model, unless it is there already, and heads for it, each to `output/heads/METHOD`.

    Args:
        model, output, shape, seed, tick: as `widen` has them.
        heads: names or directories of heads for the small model.

    Returns:
        A row for each thing that was written, as `widen` and `widen_head` return them.

    Raises:
        ConfigError, ModelError: as those; heads are checked before anything is written.
    """
    small = describe_model(model)
    methods: dict[str, str] = {}
    for head in heads:
        method = _read(head, small).method
        if method in methods:
            raise ConfigError(
                f"{shown(methods[method])} and {shown(head)} are both heads for the method {method}; give one of each"
            )
        methods[method] = head
    exists = bool(heads) and is_widened(small, output, shape)
    rows = [] if exists else [widen(model, output, shape, seed, tick)]
    for method, head in methods.items():
        tick(f"{FOLDER}/{method}")
        rows.append(widen_head(head, model, output, output / FOLDER / method))
    return rows


def widen_head(head: str | Path, small: str, wide: Path, output: Path) -> dict[str, Any]:
    """Write a head for a widened target, in the format that it has.

    Args:
        head: name or directory of a head for the small target.
        small: name or directory of that target.
        wide: directory of its widened form.
        output: directory to write; made if missing.

    Returns:
        What was made: `output`, `method`, `parameters` and `gigabytes`; `same_bits` is None and `obstacles` are none,
        for what changes with a head's bits is a draft token.

    Raises:
        ConfigError: `wide` is no widened form of `small`, or the output directory is in use.
        ModelError: a model cannot be found or read, the head is for another target, or it cannot be widened.
    """
    old = describe_model(small)
    new = describe_model(str(wide.resolve()))
    if not is_widened(old, wide, Shape(**{size.name: getattr(new, size.name) for size in fields(Shape)})):
        raise ConfigError(f"{wide} is no widened form of {shown(small)}; make one with scripts/widen.py")
    found = _read(head, old)
    plan = WAYS[found.method](found, new)
    tensors = _tensors(found, plan, new)
    make_directory(output)
    save_file(tensors, output / plan.file, metadata={"format": "pt"})
    card = _CARD.format(
        name=output.resolve().name,
        source=found.config.path.resolve().name,
        small=old.path.resolve().name,
        wide=wide.resolve().name,
    )
    (output / "README.md").write_text(card)
    write_json(output / "config.json", {**found.config.raw, **plan.config})
    weights = [tensor for tensor in tensors.values() if tensor.is_floating_point()]
    return {
        "output": str(output),
        "method": found.method,
        "parameters": sum(tensor.numel() for tensor in weights),
        "gigabytes": sum(tensor.nbytes for tensor in weights) / 1e9,
        "same_bits": None,
        "obstacles": [],
    }


def _read(head: str | Path, small: ModelConfig) -> _Head:
    """Find a head and have its own proposer check that it fits the small target."""
    given = resolve_method(SpeculativeConfig(method=None, options={"model": str(head)}))
    if given.method is None or given.method not in WAYS:
        raise ModelError(
            f"{shown(str(head))} is for the method {given.method}, but only heads for {', '.join(WAYS)} are widened; "
            "a draft model goes with the widened target as it is"
        )
    proposer = make_proposer(given, TargetInfo(small, resolve_dtype("auto", small), small.max_position))
    config = read_head(str(head))
    with Checkpoint(config.path) as weights:
        names = tuple(weights.names)
    found = _Head(
        given.method, config, names, getattr(proposer, "config", None), getattr(proposer, "taps", ()), small
    )
    WAYS[found.method](found, small)  # which says what cannot be widened
    return found


def _tensors(head: _Head, plan: _Plan, wide: ModelConfig) -> dict[str, Tensor]:
    place = find_places(head.small, wide).hidden
    root = (wide.hidden_size / head.small.hidden_size) ** 0.5
    tensors = {}
    with Checkpoint(head.config.path) as weights:
        for name in head.names:
            tensor = weights.read(name).clone()  # what shares memory cannot be written
            if name in plan.scaled:
                tensor = (tensor.double() / root).to(tensor.dtype)
            for axis, times in enumerate(plan.axes.get(name, ())):
                tensor = _grow(tensor, axis, times, place, wide.hidden_size)
            tensors[name] = tensor
    with Checkpoint(head.small.path) as weights:
        tensors |= {name: weights.read(source).clone() for name, source in plan.copied.items()}
    return tensors


def _grow(tensor: Tensor, axis: int, times: int, place: Tensor, width: int) -> Tensor:
    """Return a tensor with an axis of `times` old widths spread over as many new ones; 0 leaves it."""
    if not times:
        return tensor
    shape = list(tensor.shape)
    shape[axis] = times * width
    index = torch.cat([place + i * width for i in range(times)])
    return torch.zeros(shape, dtype=tensor.dtype).index_copy_(axis, index, tensor)


# ------------------------------------------------------------------------------------------------------ the formats


def _medusa(head: _Head, wide: ModelConfig) -> _Plan:
    layout = read_layout(head.names, head.config.flag("original_lm_head", False))
    assert layout is not None
    axes: dict[str, tuple[int, ...]] = {}
    for block in (block for own in layout.blocks for block in own):
        axes |= {f"{block}.weight": (1, 1), f"{block}.bias": (1,)}
    axes |= dict.fromkeys(layout.outputs, (0, 1))
    config = {"hidden_size": wide.hidden_size} if "hidden_size" in head.config.raw else {}
    return _Plan(config, axes, file=FILE)


def _mlp_speculator(head: _Head, wide: ModelConfig) -> _Plan:
    first = next(name for name in head.names if name.endswith("proj.0.weight"))
    inner = head.config.count("inner_dim", 0, least=0) or head.config.count("emb_dim")
    # A norm without weights makes the widened state larger, by the square root of the growth.
    scaled = {first} if head.config.flag("scale_input", False) else set()
    return _Plan({"emb_dim": wide.hidden_size, "inner_dim": inner}, {first: (0, 1)}, frozenset(scaled))


_EAGLE_NORMS = ("input_layernorm.weight", "post_attention_layernorm.weight")
# By the last two parts of a name, or the only ones.
_EAGLE_AXES = {
    "fc.weight": (1, 2),
    "fc.bias": (1,),
    "embed_tokens.weight": (0, 1),
    **{f"{name}_proj.weight": (0, 1) for name in ("q", "k", "v", "gate", "up")},
    **{f"{name}_proj.weight": (1, 0) for name in ("o", "down")},
    **{f"{name}_proj.bias": (1,) for name in ("o", "down")},
    **dict.fromkeys(_EAGLE_NORMS, (1,)),
}


def _eagle(head: _Head, wide: ModelConfig) -> _Plan:
    layers = head.layers
    assert layers is not None
    if layers.style.head_norms:
        raise ModelError(
            f"{head.config.path} cannot be widened: its norms of the width and of single heads have one epsilon; "
            "take a head without q_norm and k_norm"
        )
    ends = {name: ".".join(name.split(".")[-2:]) for name in head.names}
    config = {
        "hidden_size": wide.hidden_size,
        "head_dim": layers.head_dim,
        "rms_norm_eps": layers.rms_norm_eps / (wide.hidden_size / head.small.hidden_size),
    }
    axes = {name: _EAGLE_AXES[end] for name, end in ends.items() if end in _EAGLE_AXES}
    return _Plan(config, axes, frozenset(name for name, end in ends.items() if end in _EAGLE_NORMS))


def _eagle3(head: _Head, wide: ModelConfig) -> _Plan:
    if any(name.startswith(("input_norm.", "fc_norm.", "aux_norm_")) for name in head.names):
        raise ModelError(
            f"{head.config.path} cannot be widened: its norms of the target's states and of its own width have one "
            "epsilon; take a head without norm_before_fc and fc_norm"
        )
    own = "lm_head.weight", "model.embed_tokens.weight"
    sources = {"embed_tokens.weight": own[1], "lm_head.weight": own[head.small.tie_embeddings]}
    config = {
        "target_hidden_size": wide.hidden_size,
        # Of a target with more layers those that are usual would be others.
        "eagle_aux_hidden_state_layer_ids": list(head.taps),
    }
    copied = {name: source for name, source in sources.items() if name not in head.names}
    return _Plan(config, {"fc.weight": (0, len(head.taps))}, copied=copied)


WAYS: Mapping[str, Callable[[_Head, ModelConfig], _Plan]] = {
    "eagle": _eagle,
    "eagle3": _eagle3,
    "medusa": _medusa,
    "mlp_speculator": _mlp_speculator,
}
