"""Reading a checkpoint's `config.json`."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from parlay.checkpoints.config import architecture_of, read_ids
from parlay.checkpoints.files import config_file, dtype_of
from parlay.checkpoints.pieces import Piece
from parlay.errors import ModelError, brief, shown
from parlay.models.rope import longest, read_rotary
from parlay.models.style import AttentionBiases, Heads, LibraryModel, Product, Rotary, Style
from parlay.types.cache import KVCacheDtype
from parlay.types.storage import Storage

# What some families call differently.
_OTHER_NAMES = {"intermediate_size": "ffn_dim"}
# Far beyond any model, and small enough that a config of nonsense is refused within a moment.
_LARGEST = (1 << 31) - 1
_LARGEST_FLOAT = 1e300
_MOST_EXPERTS = 1 << 16
MOST_LAYERS = 1 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of a decoder-only model, in a Hugging Face `config.json`'s words. Sizes are element counts.

    `raw` is that file's content, for what only one family reads; `style` is what follows from it. `library_model` is
    set where a class of another library computes the model. `storage` says how matrices are stored in memory,
    `kv_cache_dtype` how keys and values are. `renamed` has the files' own names of tensors that a family names
    otherwise, or the stacks that have them. `most_tokens` is set where the last rows of a draft model's vocabulary
    are left out.

    Raises:
        ModelError: there are too many experts, or too few for a row.
    """

    path: Path
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rotary: Rotary
    tie_embeddings: bool
    max_position: int
    dtype: str
    eos_token_ids: tuple[int, ...]
    raw: dict[str, Any] = field(default_factory=dict, repr=False)
    style: Style = field(default_factory=Style)
    library_model: LibraryModel | None = None
    storage: Storage = "stored"
    kv_cache_dtype: KVCacheDtype = "auto"
    renamed: Mapping[str, str | Piece] = field(default_factory=dict)
    most_tokens: int | None = None

    def __post_init__(self) -> None:
        """Refuse experts of which a row could not go to as many as it is to."""
        if (experts := self.style.experts) is None:
            return
        self._limit_experts(experts.count)
        if experts.count % experts.groups or experts.kept_groups > experts.groups:
            raise ModelError(
                f"{config_file(self.path)}: {experts.count} experts do not divide into {experts.groups} groups of "
                f"which {experts.kept_groups} are kept"
            )
        if experts.top_k > (most := experts.count // experts.groups * experts.kept_groups):
            raise ModelError(
                f"{config_file(self.path)}: num_experts_per_tok={experts.top_k} is more than the {most} experts that "
                "a token can go to"
            )

    def _limit_experts(self, count: int) -> None:
        """Refuse more experts per layer than any model has, before anything is made for each."""
        if count * self.num_layers > _MOST_EXPERTS:
            raise ModelError(
                f"{config_file(self.path)}: {count} experts in each of {self.num_layers} layers are more than the "
                f"{_MOST_EXPERTS} that are supported"
            )

    @property
    def tokens(self) -> int:
        """How many tokens it has logits for."""
        return self.vocab_size if self.most_tokens is None else self.most_tokens

    def heads_of(self, layer: int) -> Heads:
        """Return the heads of a layer's keys and values."""
        own = self.style.heads
        return own[layer] if own else Heads(count=self.num_kv_heads, width=self.head_dim)

    def queries_of(self, layer: int) -> int:
        """Return how many heads of queries a layer has."""
        return self.heads_of(layer).queries or self.num_heads

    def network_width(self, layer: int) -> int:
        """Return the inner width of a layer's feed-forward network."""
        return self.style.widths[layer] if self.style.widths else self.intermediate_size

    @property
    def extra_intermediates(self) -> int:
        """How many states of a row stages hand on besides the two that all models have."""
        return int(self.style.layer_inputs > 0)  # what the inputs of later layers are made of

    def only(self, **supported: Any) -> None:
        """Refuse other values of some keys than these; a key that is missing passes.

        Raises:
            ModelError: it names the key.
        """
        for key, value in supported.items():
            if self.raw.get(key, value) != value:
                raise ModelError(
                    f"{self.path}: {key}={shown(self.raw[key])} is not supported; only {key}={shown(value)} is"
                )

    def flag(self, key: str, default: bool) -> bool:
        """Return a key that holds true or false."""
        value = self.raw.get(key, default)
        if not isinstance(value, bool):
            raise ModelError(f"{config_file(self.path)}: {key} must be true or false, not {shown(value)}")
        return value

    def attention_biases(self, default: bool = False) -> AttentionBiases:
        """Return whether attention's projections have biases, all of them, by `attention_bias`."""
        bias = self.flag("attention_bias", default)
        return {"qkv_bias": bias, "output_bias": bias}

    def number(self, key: str, default: float | None) -> float:
        """Return a key that holds a number above 0; None as a default is an error where it is missing."""
        value = self.raw.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _LARGEST_FLOAT:
            raise ModelError(f"{config_file(self.path)}: {key} must be a number above 0, not {shown(value)}")
        return float(value)

    def count(self, key: str, default: int | None) -> int:
        """Return a key that holds a whole number above 0; None as a default is an error where it is missing."""
        value = self.number(key, default)
        if value != int(value):
            raise ModelError(f"{config_file(self.path)}: {key} must be a whole number, not {shown(value)}")
        return int(value)

    def count_or_zero(self, key: str, default: int) -> int:
        """Return a key that holds a whole number of at least 0; null is 0."""
        return self.count(key, default) if self.raw.get(key, default) else 0

    def flags(self, key: str, default: Sequence[int]) -> tuple[bool, ...]:
        """Return a key that lists true or false, or 1 or 0, for each layer."""
        values = self.raw.get(key)
        values = default if values is None else values
        if not isinstance(values, Sequence) or len(values) != self.num_layers or not all(v in (0, 1) for v in values):
            raise ModelError(
                f"{config_file(self.path)}: {key} must list 0 or 1 for each of {self.num_layers} layers, "
                f"not {shown(values)}"
            )
        return tuple(map(bool, values))

    def kinds(self, key: str, supported: Sequence[str], default: Sequence[str] | None = None) -> tuple[str, ...]:
        """Return a key that has a word for each layer; None as a default is an error where it is missing.

        Raises:
            ModelError: it does not fit, or has a word that is not supported.
        """
        found = default if self.raw.get(key) is None else self.raw[key]
        if (
            not isinstance(found, list | tuple)
            or len(found) != self.num_layers
            or not all(x in supported for x in found)
        ):
            *others, last = supported
            raise ModelError(
                f"{config_file(self.path)}: {key} must list {', '.join(others)} or {last} for each of "
                f"{self.num_layers} layers, not {shown(found)}"
            )
        return tuple(found)

    def layers_from(self, first: int) -> tuple[bool, ...]:
        """Return of each layer whether it is `first`, counted from 0, or behind it."""
        return tuple(i >= first for i in range(self.num_layers))

    def sparse_layers(self, usual: Sequence[bool]) -> tuple[bool, ...]:
        """Return which layers have experts by `mlp_layer_types`, or as usual where that is missing."""
        words = ["sparse" if has else "dense" for has in usual]
        return tuple(kind == "sparse" for kind in self.kinds("mlp_layer_types", ("sparse", "dense"), words))

    def within(self, key: str) -> "ModelConfig":
        """Return the config with the content of a key, an object, in place of its own."""
        inner = self.raw.get(key) or {}
        if not isinstance(inner, dict):
            raise ModelError(f"{config_file(self.path)}: {key} must be an object, not {shown(inner)}")
        return replace(self, raw=inner)

    def in_layers(self, names: Mapping[str, str], experts: int = 0) -> dict[str, str | Piece]:
        """Return what `renamed` holds where some tensors of every layer have other names in the files.

        `{}` in a name stands for the number of each of so many experts.
        """
        self._limit_experts(experts)
        found: dict[str, str | Piece] = {}
        for layer in (f"model.layers.{i}." for i in range(self.num_layers)):
            for name, own in names.items():
                numbers = range(experts) if "{}" in name else (0,)
                found |= {layer + name.format(e): layer + own.format(e) for e in numbers}
        return found

    def stacked(self, names: Mapping[str, Piece]) -> dict[str, str | Piece]:
        """Return what `renamed` holds where the files may have experts' tensors stacked.

        `{}` in a name stands for the number of each of the experts, which the pieces leave open.
        """
        for piece in names.values():
            self._limit_experts(piece.count)
        return {
            f"model.layers.{i}.{name.format(e)}": replace(
                piece,
                name=f"model.layers.{i}.{piece.name}",
                index=e,
                alone=piece.alone and f"model.layers.{i}.{piece.alone.format(e)}",
            )
            for i in range(self.num_layers)
            for name, piece in names.items()
            for e in range(piece.count)
        }

    def windows(self, sliding: Callable[[int], bool], default: int | None = None) -> tuple[int, ...]:
        """Return how many keys each layer sees at most, 0 for all.

        Args:
            sliding: whether a layer has the window, unless `layer_types` says so.
            default: `sliding_window` where it is missing; null there means that no layer has one.

        Raises:
            ModelError: `layer_types` does not fit, or `sliding_window` is no length.
        """
        if self.raw.get("sliding_window", default) is None:
            return ()
        window = self.count("sliding_window", default)
        types = self.raw.get("layer_types")
        if types is None:
            types = [("full_attention", "sliding_attention")[sliding(i)] for i in range(self.num_layers)]
        if not isinstance(types, list) or len(types) != self.num_layers:
            raise ModelError(f"{config_file(self.path)}: layer_types must list {self.num_layers} layers")
        for kind in types:
            if kind not in ("full_attention", "sliding_attention"):
                raise ModelError(f"{self.path}: layer_types has {shown(kind)}, which is not supported")
        return tuple(window * (kind == "sliding_attention") for kind in types)

    @property
    def recurrent(self) -> bool:
        """Whether any layer is recurrent: those of such a family may all be attention."""
        return self.style.recurrent is not None and any(self.style.recurrent.layers)

    def products(self) -> list[Product]:
        """Return the linear layers but the output layer."""
        if self.library_model is not None:
            return list(self.library_model.products)
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        hidden, experts, layers = self.hidden_size, self.style.experts, self.num_layers
        sparse, recurrent = sum(experts.sparse) if experts else 0, self.style.recurrent
        alone, scans = sum(self.style.networks), sum(recurrent.layers) if recurrent is not None else 0
        attends = layers - alone - (0 if self.style.recurrent_parallel else scans)
        gate = self.style.output_gate
        products = [
            ("qkv", (q * (2 if gate is not None and not gate.separate else 1) + 2 * kv, hidden), attends),
            ("out", (hidden, q), attends),
        ]
        if recurrent is not None:
            products += [(name, shape, scans) for name, shape in recurrent.products(hidden)]
        if self.style.heads:
            products = self._products_of_heads()
        products += self._products_of_gates(attends)
        if (latent := self.style.latent) is not None:
            queries = self.num_heads * latent.query
            products = [
                *products[2:],
                ("query latents", (latent.query_rank, hidden), attends if latent.query_rank else 0),
                ("queries", (queries, latent.query_rank or hidden), attends),
                ("latents", (self.head_dim, hidden), attends),
                ("absorbed keys", (self.head_dim, latent.query), attends * self.num_heads),
                ("absorbed values", (latent.value, self.head_dim), attends * self.num_heads),
                ("out", (hidden, self.num_heads * latent.value), attends),
            ]
            products = [product for product in products if product[-1]]

        def network(name: str, inner: int, times: int, outer: int = hidden) -> list[tuple[str, tuple[int, int], int]]:
            up = ("gate up", (2 * inner, outer)) if self.style.gated else ("up", (inner, outer))
            return [(name + up[0], up[1], times), (f"{name}down", (outer, inner), times)] if times else []

        if self.style.widths:
            for width in dict.fromkeys(self.style.widths):
                products += network(
                    "" if width == self.intermediate_size else "wide ", width, self.style.widths.count(width)
                )
        else:
            replaced = 0 if experts is not None and experts.with_mlp else sparse
            products += network("", self.intermediate_size, (alone or layers) - replaced)
        if width := self.style.layer_inputs:
            products += [
                ("layer inputs", (layers * width, hidden), 1),
                ("layer input gate", (width, hidden), layers),
                ("layer input", (hidden, width), layers),
            ]
        if experts is None:
            return [Product(*product, product[-1]) for product in products]
        products += network("shared ", experts.shared, sparse if experts.shared else 0)
        if width := experts.latent:
            products += [("experts' latents", (width, hidden), sparse), ("experts' sum", (hidden, width), sparse)]
        chosen = network("experts' ", experts.width, sparse * experts.top_k, experts.latent or hidden)
        return [Product(*product, product[-1]) for product in products] + [
            Product(*product, sparse * experts.count) for product in chosen
        ]

    def _products_of_heads(self) -> list[tuple[str, tuple[int, int], int]]:
        """Return the linear layers of attention whose heads differ from layer to layer."""
        found: list[tuple[str, tuple[int, int], int]] = []
        for heads in dict.fromkeys(replace(one, source=min(one.source, 0)) for one in self.style.heads):
            times = sum(replace(one, source=min(one.source, 0)) == heads for one in self.style.heads)
            count = heads.queries or self.num_heads
            q, mixed = count * heads.width, count * heads.value_width
            stored = 0 if heads.source == 0 else heads.count * (heads.width + heads.value_width)
            kind = f"{'shared' if heads.source == 0 else heads.count} heads of {heads.width}"
            kind += f" for {heads.queries}" if heads.queries else ""
            found += [
                (f"qkv, {kind}", (q + stored, self.hidden_size), times),
                (f"out, {kind}", (self.hidden_size, mixed), times),
            ]
        return found

    def _products_of_gates(self, attends: int) -> list[tuple[str, tuple[int, int], int]]:
        """Return what projects to gates of attention's output, in so many layers."""
        gate = self.style.output_gate
        if gate is None or not gate.separate:
            return []
        heads = self.style.heads or (self.heads_of(0),) * attends
        widths = [(one.queries or self.num_heads) * (1 if gate.by_head else one.value_width) for one in heads]
        return [("attention gate", (width, self.hidden_size), widths.count(width)) for width in dict.fromkeys(widths)]


def parse_config(path: Path, raw: dict[str, Any]) -> ModelConfig:
    """Return the shape of a model from the content of its `config.json`, wherever that comes from.

    Args:
        path: the model directory.
        raw: the content; it is kept.

    Raises:
        ModelError: keys are missing, sizes contradict each other, or an architecture or option is not supported.
    """
    raw = {**raw, **{new: raw[old] for new, old in _OTHER_NAMES.items() if old in raw and new not in raw}}
    try:
        rotary = read_rotary(path, raw)
        heads, hidden = _size(raw, "num_attention_heads"), _size(raw, "hidden_size")
        config = ModelConfig(
            path=path,
            architecture=architecture_of(raw),
            vocab_size=_size(raw, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=_size(raw, "intermediate_size"),
            num_layers=_size(raw, "num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=_size(raw, "num_key_value_heads", heads),
            head_dim=_size(raw, "head_dim", hidden // heads),
            rms_norm_eps=1e-6 if raw.get("rms_norm_eps") is None else float(raw["rms_norm_eps"]),
            rotary=rotary,
            tie_embeddings=_tied(raw),
            max_position=longest(rotary, _size(raw, "max_position_embeddings", 2048)),
            dtype=dtype_of(raw),
            eos_token_ids=read_ids(raw.get("eos_token_id")),
            raw=raw,
        )
    except KeyError as error:
        raise ModelError(f"{config_file(path)} lacks the key {error}") from None
    except (TypeError, ValueError, OverflowError, ZeroDivisionError) as error:
        raise ModelError(f"{config_file(path)} cannot be read: {brief(str(error))}") from None
    check_sizes(config)
    return config


def _size(raw: dict[str, Any], key: str, default: int | None = None) -> int:
    """Return a whole number; null and 0 stand for the default, where there is one."""
    value = raw[key] if default is None else raw.get(key) or default
    if type(value) is not int:
        raise TypeError(f"{key} must be a whole number, not {shown(value)}")
    return value


def _tied(raw: dict[str, Any]) -> bool:
    value = raw.get("tie_word_embeddings", False)
    if not isinstance(value, bool):
        raise TypeError(f"tie_word_embeddings must be true or false, not {shown(value)}")
    return value


def check_sizes(config: ModelConfig) -> None:
    """Refuse sizes that contradict each other or are not supported.

    Raises:
        ModelError: it names the size.
    """
    file = config_file(config.path)
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "head_dim", "max_position")
    for name in sizes:
        most = MOST_LAYERS if name == "num_layers" else _LARGEST
        if not 1 <= getattr(config, name) <= most:
            raise ModelError(f"{file}: {name} must be at least 1 and at most {most}, not {getattr(config, name)}")
    numbers = {"rms_norm_eps": config.rms_norm_eps, "rope_theta": config.rotary.theta}
    for name, value in numbers.items():
        if not 0 < value < math.inf:
            raise ModelError(f"{file}: {name} must be above 0 and finite, not {value}")
    if config.num_kv_heads < 1 or config.num_heads % config.num_kv_heads:
        raise ModelError(f"{file}: {config.num_heads} heads do not divide into {config.num_kv_heads} groups")
    if config.head_dim % 8 or config.head_dim > 256:
        raise ModelError(f"{file}: head_dim {config.head_dim} is not supported; multiples of 8 up to 256 are")
