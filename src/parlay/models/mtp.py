"""Multi-token prediction (MTP): a layer that comes with a model and predicts the token after the next one.

A few models bring along several. The second reads what the first computed for a position, and the embedding of the
token after the next one, and predicts the token behind that; and so on.

It reads the model's hidden state of a position and the embedding of the token after it, each normalised, through a
projection; then it is one of the model's own decoder layers, with attention, and with experts if the model has any,
and a norm. The model's output layer gives logits of what it computes, which stands for the hidden state when the
layer runs again.

Source: DeepSeek-AI 2024 (arXiv 2412.19437), section 2.2; names of tensors as in the checkpoints of each family.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from parlay.checkpoints.config import TOWER
from parlay.checkpoints.loader import Checkpoint
from parlay.checkpoints.pieces import Piece
from parlay.errors import ModelError
from parlay.models.config import MOST_LAYERS, ModelConfig
from parlay.models.tensor_shapes import weight_shapes
from parlay.types.progress import OnRead, ignore
from parlay.types.storage import Storage

_WHOLE = ("layer", "join", "token_norm", "state_norm", "norm", "head")
# What a style has of each layer, beside experts.
_LISTED = "windows", "chunks", "nope", "heads", "widths", "sinks"
_BESIDE = "mtp.", "model.mtp."  # names of tensors beside a text model's, in files of multimodal ones


@dataclass(frozen=True, slots=True, kw_only=True)
class MTPNames:
    """What a family's files call the tensors of such a layer, and which of the model's own layers it is like.

    `{0}`, or `{}`, stands for its number among all layers, `{1}` for that among the MTP layers.

    Attributes:
        layer: what the names of the decoder layer's own tensors begin with.
        join: the projection.
        token_norm, state_norm: norms of what it reads.
        norm: the norm of what the layer computes.
        head: its own output layer, where files have it; empty where it is the model's in any case.
        inner: what the files call tensors in the layer, where it is not as in the model's own layers; `{}` in these
            stands for the number of each expert.
        window: whether it is like a layer with a window, if the model has windows and its config does not say.
        rotated: whether its queries and keys turn even if those of the layers that it is like do not.
        dense: whether it has a feed-forward network, if the model has experts.
        state_first: whether the projection reads the state before the embedding.
        unnormed: whether the state that it reads is the model's before its final norm.
        late_norm: whether that of what it computes is for the output layer alone: another layer reads what is before.
    """

    layer: str
    join: str
    token_norm: str
    state_norm: str
    norm: str
    head: str = ""
    inner: Mapping[str, str] = field(default_factory=dict)
    window: bool = False
    rotated: bool = False
    dense: bool = False
    state_first: bool = False
    unnormed: bool = False
    late_norm: bool = False

    def of(self, layers: int, place: int = 0, before: str = "") -> "MTPNames":
        """Return the names of such a layer of a model.

        Args:
            layers: number of the model's other layers.
            place: index among the model's MTP layers.
            before: what some exporters put before names.
        """
        known = {key: getattr(self, key) for key in _WHOLE}
        return self.called({key: name and before + name.format(layers + place, place) for key, name in known.items()})

    def called(self, names: Mapping[str, str]) -> "MTPNames":
        """Return the same layer by other names."""
        changes: dict[str, str] = dict(names)
        return replace(self, **changes)  # type: ignore[arg-type] # keys of `_WHOLE`


_NEXT = "model.layers.{}."
QWEN = MTPNames(
    layer="mtp.layers.{1}.",
    join="mtp.fc.weight",
    token_norm="mtp.pre_fc_norm_embedding.weight",
    state_norm="mtp.pre_fc_norm_hidden.weight",
    norm="mtp.norm.weight",
)
DEEPSEEK = MTPNames(
    layer=_NEXT,
    join=_NEXT + "eh_proj.weight",
    token_norm=_NEXT + "enorm.weight",
    state_norm=_NEXT + "hnorm.weight",
    norm=_NEXT + "shared_head.norm.weight",
)
_GGUF = {
    "layer": _NEXT,
    "join": _NEXT + "nextn.eh_proj.weight",
    "token_norm": _NEXT + "nextn.enorm.weight",
    "state_norm": _NEXT + "nextn.hnorm.weight",
    "norm": _NEXT + "nextn.shared_head_norm.weight",
    "head": _NEXT + "nextn.shared_head_head.weight",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MTPLayer:
    """Such a layer of a model.

    Attributes:
        config: config of a model that has this layer alone.
        names: names of its tensors.
        like: the number of the model's layer that it is like.
        renamed: see `ModelConfig.renamed`; for all MTP layers that files have.
    """

    config: ModelConfig
    names: MTPNames
    like: int
    renamed: Mapping[str, str | Piece] = field(default_factory=dict)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the name and shape of every tensor."""
        hidden, names = self.config.hidden_size, self.names
        every, first = weight_shapes(self.config), _NEXT.format(0)
        own = {name.replace(first, names.layer): shape for name, shape in every.items() if name.startswith(first)}
        norms = names.token_norm, names.state_norm, names.norm
        head = {names.head: (self.config.vocab_size, hidden)} if names.head else {}
        return {**own, **dict.fromkeys(norms, (hidden,)), names.join: (hidden, 2 * hidden), **head}

    def open(self, storage: Storage, on_read: OnRead = ignore) -> Checkpoint:
        """Open the files that have it; matrices are given as `storage` says.

        Raises:
            ModelError: they are missing or damaged.
        """
        return _open(self.config, storage, on_read, self.renamed if self.config.path.is_dir() else {})


def stacked(layers: Sequence[MTPLayer]) -> ModelConfig:
    """Return the config of a model that has several such layers, alike, and no others."""
    count, config = len(layers), layers[0].config
    style, experts = config.style, config.style.experts
    if experts is not None:
        experts = replace(experts, sparse=experts.sparse * count)
    listed = {key: getattr(style, key) * count for key in _LISTED}
    style = replace(style, experts=experts, **listed)
    return replace(config, num_layers=count, style=style)


def find_mtp(config: ModelConfig, known: MTPNames) -> tuple[MTPLayer, ...]:
    """Return a model's MTP layers, as many as its files have under the names of its family.

    Raises:
        ModelError: files are missing or damaged.
    """
    with _open(config) as weights:
        found = set(weights.names)
    if config.path.is_file():
        known = replace(known.called({**_GGUF, "head": known.head and _GGUF["head"]}), inner={})
    prefixes = ("", "model.")
    before = next((before for before in prefixes if known.of(config.num_layers, 0, before).join in found), None)
    if before is None:
        return ()
    every = [known.of(config.num_layers, 0, before)]
    while len(every) < MOST_LAYERS:
        names = known.of(config.num_layers, len(every), before)
        own = any(name.startswith(names.layer) for name in found)  # where files have one projection for all
        if names == every[-1] or names.join not in found or not own:
            break
        every.append(names)
    every = [names if names.head in found else replace(names, head="") for names in every]
    layers = [_layer(config, names) for names in every]
    renamed = {name: own for layer in layers for name, own in layer.renamed.items()}
    return tuple(replace(layer, renamed=renamed) for layer in layers)


def plan_mtp(config: ModelConfig, known: MTPNames, place: int = 0) -> MTPLayer:
    """Return an MTP layer that a model may have, by the names that its family has for it.

    Raises:
        ModelError: the model has no layer that it could be like.
    """
    shared = any(heads.source >= 0 or not heads.values for heads in config.style.heads)
    if shared or config.style.layer_inputs:
        raise ModelError(f"{config.path} shares KV caches between layers, for which MTP layers are not supported")
    if known.late_norm:
        raise ModelError(
            f"the MTP layers of {config.path} read states before the norm of their output layers, for "
            "which none is trained; train a head of another kind"
        )
    return _layer(config, known.of(config.num_layers, place))


def _layer(config: ModelConfig, names: MTPNames) -> MTPLayer:
    index = _similar_layer(config, names)
    style, kept, prefix = config.style, slice(index, index + 1), f"model.layers.{index}."
    experts = None if names.dense else style.experts
    if experts is not None:
        experts = replace(experts, sparse=(True,), limits=())
    style = replace(
        style,
        recurrent=None,
        networks=(),
        limits=(),
        experts=experts,
        **{key: getattr(style, key)[kept] for key in _LISTED},
    )
    if names.rotated:
        style = replace(style, nope=())
    renamed: dict[str, str | Piece] = {}
    for name, own in names.inner.items():
        numbers = range(experts.count if experts is not None and "{}" in name else 1)
        renamed |= {names.layer + name.format(e): names.layer + own.format(e) for e in numbers}
    for name, known in {} if renamed else config.renamed.items():
        if name.startswith(prefix):
            renamed[name.replace(prefix, names.layer, 1)] = _moved(known, name, prefix, names.layer)
    alone = replace(config, num_layers=1, style=style, renamed={})
    return MTPLayer(config=alone, names=names, like=index, renamed=renamed)


def _similar_layer(config: ModelConfig, names: MTPNames) -> int:
    """Return the number of the last of the model's layers that it is like."""
    style = config.style
    attends = [
        i
        for i in range(config.num_layers)
        if not (style.recurrent and style.recurrent.layers[i]) and not (style.networks and style.networks[i])
    ]
    if not attends:
        raise ModelError(f"{config.path} has no layer of attention alone, and it can have no MTP layer")
    kinds = config.raw.get("mtp_layer_types")
    window = "sliding_attention" in kinds if isinstance(kinds, list) else names.window
    alike = [i for i in attends if not style.windows or bool(style.windows[i]) == window]
    return (alike or attends)[-1]


def _moved(own: str | Piece, name: str, prefix: str, to: str) -> str | Piece:
    """Return a file's name of a tensor of a layer as one of another layer's."""
    if isinstance(own, str):
        return own.replace(prefix, to, 1)
    alone = own.alone or name
    return replace(own, name=own.name.replace(prefix, to, 1), alone=alone.replace(prefix, to, 1))


def _open(
    config: ModelConfig,
    storage: Storage = "plain",
    on_read: OnRead = ignore,
    renamed: Mapping[str, str | Piece] | None = None,
) -> Checkpoint:
    tower = TOWER in config.raw
    return Checkpoint(config.path, storage=storage, on_read=on_read, renamed=renamed, tower=tower, beside=_BESIDE)
