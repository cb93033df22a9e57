"""From a model's files to a model: read its config, pick the family, load."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor

from parlay.checkpoints.config import TOWER, architecture_of, read_raw
from parlay.checkpoints.find import find_model
from parlay.checkpoints.hub import DEFAULT, Hub
from parlay.checkpoints.loader import Checkpoint, file_format
from parlay.checkpoints.quantised.config import method_of, quantization_of
from parlay.errors import ConfigError, ModelError, brief, nearest, shown
from parlay.kernels.base import Kernels
from parlay.log import logger
from parlay.models.config import ModelConfig, parse_config
from parlay.models.context import ForwardContext
from parlay.models.decoder import Decoder
from parlay.models.layers import is_power_of_two
from parlay.models.mtp import QWEN, MTPLayer, MTPNames, find_mtp, plan_mtp
from parlay.models.stages import own_layers, stage_starts
from parlay.models.stored import as_saved, open_weights
from parlay.models.transformers import model as transformers_model
from parlay.parallel.group import ALONE, Group
from parlay.registry import Registry
from parlay.types.cache import NUMBERS_PER_SCALE, CacheKind, CacheSpec, KVCacheDtype
from parlay.types.progress import OnRead, ignore
from parlay.types.storage import MADE, LoadFormat, Storage
from parlay.weights.kinds import Kind

_SUFFIX = "ForCausalLM"
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

# Family files are found by name: LlamaForCausalLM lives in llama.py.
families = Registry("parlay.models.families", "model family", needs=("describe",))


class CausalModel(Protocol):
    """The interface of a family file's `Model`; a file without one has `Decoder`.

    `weight_shapes` and `expect` need no instance. Beside it the file has `describe(config)`. It takes what
    `parse_config` read, and returns it with the family's style and with what the family reads otherwise, such as the
    names that files have for tensors (`renamed`). It raises a ModelError that names a key with a value that the
    family does not serve. The file may have `DEFAULTS`, what configs without some keys mean, or a function that makes
    them of a config; `MTP`, what files call an MTP layer, where that is not as in Qwen's; and `folded`, see below.

    Attributes:
        config, dtype: what it was made with.
        leftovers: names of the checkpoint's tensors that are no part of the model but may be of use to a proposer.
    """

    config: ModelConfig
    dtype: torch.dtype
    leftovers: tuple[str, ...]

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype,
        max_model_len: int,
        kernels: Kernels,
        group: Group,
        on_read: OnRead = ignore,
    ) -> None:
        """Read the weights.

        Args:
            config: the model's shape and style.
            dtype: dtype of weights and activations.
            max_model_len: the longest sequence; tables of positions are as long.
            kernels: the operations to run with.
            group: the ranks among which the model is split.
            on_read: called with every tensor that was read.

        Raises:
            ModelError: the weights do not fit the config.
        """
        ...

    @staticmethod
    def weight_shapes(config: ModelConfig) -> Mapping[str, tuple[int, ...]]:
        """Return the name and shape of every tensor that is read."""
        ...

    @classmethod
    def expect(cls, config: ModelConfig, weights: Checkpoint) -> tuple[str, ...]:
        """Compare a checkpoint's headers with the config; return the leftovers, or raise a ModelError."""
        ...

    def forward(self, tokens: Tensor, context: ForwardContext) -> Tensor:
        """Return hidden states after the final norm, `[rows, hidden]`."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits, `[rows, vocab]`."""
        ...


def records_logits(model: CausalModel) -> TypeGuard[Decoder]:
    """Whether a model's logits are computed by kernels alone, so that they can be recorded."""
    return isinstance(model, Decoder) and is_power_of_two(model.config.style.logit_divisor)


def describe_model(name: str, hub: Hub = DEFAULT) -> ModelConfig:
    """Return the shape of a model by name, directory or GGUF file, reading no weights.

    Args:
        name: the model's name or path, see `find_model`.
        hub: the hub to look on, see `find_model`.

    Raises:
        ModelError: it cannot be found or read, or its architecture is not supported.
        ConfigError: a revision of what is not on the hub.
    """
    return describe_files(find_model(name, hub))


def describe_files(path: Path) -> ModelConfig:
    """Return the shape of a model that was found, see `describe_model`."""
    raw = read_raw(path)
    architecture = architecture_of(raw)
    if architecture.endswith(_SUFFIX) and _family(architecture) in families.names():
        family = families.load(_family(architecture))
        given = getattr(family, "DEFAULTS", {})
        defaults: dict[str, Any] = given(raw) if callable(given) else given
        described: ModelConfig = family.describe(parse_config(path, {**defaults, **raw}))
        return as_saved(described)
    if path.is_file() or TOWER in raw:
        supported = ", ".join(families.names())
        raise ModelError(f"{path}: {brief(architecture)} is not supported; these families are: {supported}")
    return transformers_model.describe(path, raw)


def describe_layers(family: str, path: Path, raw: Mapping[str, Any]) -> ModelConfig:
    """Return the shape and style of layers of a family, described by keys of the configs of its models.

    Raises:
        ModelError: keys are missing or hold what the family does not serve.
    """
    own = families.load(family)
    described: ModelConfig = own.describe(parse_config(path, {**getattr(own, "DEFAULTS", {}), **raw}))
    return described


def resolve_dtype(requested: str, config: ModelConfig) -> torch.dtype:
    """Return the dtype of activations and cache: what was requested, or with `auto` the checkpoint's.

    float16, whose range is too small, is for weights alone: where a checkpoint's stay in it, activations are float32.

    Raises:
        ConfigError: a dtype that is not supported.
    """
    name = config.dtype if requested == "auto" else requested
    if name == config.dtype == "float16":
        # Beside weights that keep all their bits, activations of bfloat16 would lose three of them at every layer.
        kept = config.storage == "stored" and config.library_model is None and not quantization_of(config.raw)
        name = "float32" if kept else "bfloat16"
        logger.info("%s is stored as float16; activations and cache are %s", config.path, name)
    if name == "float16":
        raise ConfigError(
            f"dtype 'float16' is not supported for {config.path}, which is stored as {config.dtype}; take "
            "'bfloat16', whose range is larger, or 'float32'"
        )
    if name not in _DTYPES and requested == "auto":
        known = " or ".join(map(repr, _DTYPES))
        raise ConfigError(
            f"{config.path}: its config names the dtype {shown(name)}, which is not supported; give dtype={known}"
        )
    if name not in _DTYPES:
        raise ConfigError(f"dtype {shown(name)} is not supported{nearest(name, _DTYPES)}")
    return _DTYPES[name]


def describe_as(
    path: Path,
    storage: Storage,
    requested: str | None = None,
    load_format: LoadFormat = "auto",
    kv_cache_dtype: KVCacheDtype = "auto",
) -> ModelConfig:
    """Return the shape of a model that was found, to be read in a certain form.

    Args:
        path: the model's directory or GGUF file.
        storage: what becomes of its matrices.
        requested: one that is made, such as "int8", or the quantisation that the checkpoint is said to have.
        load_format: the format that the files are said to have; "auto" stands for any.
        kv_cache_dtype: dtype of the cached keys and values.

    Raises:
        ConfigError: it has another one, or none can be made of this model; or its keys do not fit the cache's dtype.
        ModelError: see `describe_files`.
    """
    config = replace(describe_files(path), storage=storage, kv_cache_dtype=kv_cache_dtype)
    own = "gguf" if config.path.is_file() else method_of(config.raw)
    if requested not in (None, *MADE, own):
        has = f"is quantised by {own}" if own else "is not quantised"
        raise ConfigError(f"quantization={shown(requested)}, but {config.path} {has}; leave it out")
    if load_format not in ("auto", own) and load_format != (found := file_format(config.path)):
        raise ConfigError(f"load_format={shown(load_format)}, but {config.path} is read as {found}; leave it out")
    heads = [config.heads_of(layer) for layer in range(config.num_layers)]
    widths = {width for own in heads for width in (own.width, own.value_width)}
    if kv_cache_dtype == "int8" and (odd := [width for width in sorted(widths) if width % NUMBERS_PER_SCALE]):
        raise ConfigError(
            f"kv_cache_dtype='int8' needs heads of a multiple of {NUMBERS_PER_SCALE} elements, and those of "
            f"{config.path} have {odd[0]}; leave it out"
        )
    return config


def layer_cache_kinds(config: ModelConfig) -> tuple[CacheKind, ...]:
    """Return what each of a model's layers keeps of a sequence."""
    recurrent, networks = config.style.recurrent, config.style.networks
    found: list[CacheKind] = ["keys"] * config.num_layers
    for i in range(config.num_layers):
        if networks and networks[i]:
            found[i] = "nothing"
        elif recurrent is not None and recurrent.layers[i]:
            found[i] = "both" if config.style.recurrent_parallel else "states"
    return tuple(found)


def cache_spec(config: ModelConfig, dtype: torch.dtype, group: Group = ALONE) -> CacheSpec:
    """Return what the model's layers keep of a token, on one of the ranks among which it is split."""
    first, last = own_layers(config, weight_shapes, group.pipeline)
    if config.style.heads:
        kept_heads = config.style.heads[first:last]
        shares = [group.share(group.bounds(heads.count)) for heads in kept_heads]
        heads = tuple(
            (end - begin, *((own.width, own.value_width) if own.source < 0 else (0, 0)))
            for own, (begin, end) in zip(kept_heads, shares, strict=True)
        )
        sources = tuple(own.source - first if own.source >= 0 else -1 for own in kept_heads)
        return CacheSpec(last - first, 0, 0, dtype.itemsize, config.kv_cache_dtype, heads=heads, sources=sources)
    latent = config.style.latent is not None  # of which every rank has all
    begin, end = (0, 1) if latent else group.share(group.bounds(config.num_kv_heads))
    kept, recurrent = layer_cache_kinds(config)[first:last], config.style.recurrent
    return CacheSpec(
        kept.count("keys") + kept.count("both"),
        end - begin,
        config.head_dim,
        dtype.itemsize,
        config.kv_cache_dtype,
        values=not latent,
        recurrent=recurrent.spec(config.hidden_size, group) if recurrent is not None and config.recurrent else None,
        pattern=kept if {*kept} - {"keys"} else (),
    )


def weight_shapes(config: ModelConfig) -> Mapping[str, tuple[int, ...]]:
    """Return the name and shape of every tensor that a model reads, which follow from its config."""
    return _class(config).weight_shapes(config)


def check_weights(config: ModelConfig) -> None:
    """Compare the headers of a model's files with its config, before anything is made as large as they say.

    Raises:
        ModelError: files are missing or damaged, or do not fit the config.
    """
    with open_weights(config, storage="plain") as weights:
        _class(config).expect(config, weights)


def stored_kinds(config: ModelConfig) -> dict[str, Kind]:
    """Return which blocks, or float16, a model's matrices are computed in; those of plain numbers are left out.

    Raises:
        ModelError: files are missing or damaged.
    """
    if config.storage == "plain":
        return {}
    if config.library_model is not None:
        return transformers_model.stored_kinds(config)
    plain = not quantization_of(config.raw) and config.dtype != "float16"
    if config.storage == "stored" and plain and not config.path.is_file():
        return {}  # the files need not be looked into
    with open_weights(config) as weights:
        kinds = {name: weights.kind(name) for name in weight_shapes(config) if name in weights.names}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def mtp_layers(config: ModelConfig, path: Path | None = None) -> tuple[MTPLayer, ...]:
    """Return the MTP layers that its files have, or others at `path`.

    Each reads what the one before it has computed.

    Raises:
        ModelError: files are missing or damaged.
    """
    if not exposes_hidden_states(config):
        return ()
    return find_mtp(replace(config, path=path or config.path), _mtp_names(config))


def possible_mtp_layer(config: ModelConfig, place: int = 0) -> MTPLayer:
    """Return an MTP layer that a model might have, whether or not its files have one.

    Args:
        config: the model's config.
        place: index among the model's MTP layers.

    Raises:
        ModelError: it cannot have one.
    """
    if not exposes_hidden_states(config):
        raise ModelError(f"the architecture of {config.path} has no MTP layer")
    return plan_mtp(config, _mtp_names(config), place)


def _mtp_names(config: ModelConfig) -> MTPNames:
    names: MTPNames = getattr(families.load(_family(config.architecture)), "MTP", QWEN)
    return names


def folded(config: ModelConfig) -> tuple[ModelConfig, dict[str, float]]:
    """Return the config of the same model with all factors in its weights, and these by endings of tensors' names.

    So GGUF files have them, of families whose file says which they are.
    """
    made = getattr(families.load(_family(config.architecture)), "folded", None)
    return (config, {}) if made is None else made(config)


def exposes_hidden_states(config: ModelConfig) -> bool:
    """Whether proposers can use a model's embedding and the states between its layers, as every `Decoder` does."""
    return config.library_model is None and issubclass(_class(config), Decoder)


def load_model(
    config: ModelConfig,
    dtype: torch.dtype,
    max_model_len: int,
    kernels: Kernels,
    group: Group = ALONE,
    on_read: OnRead = ignore,
) -> CausalModel:
    """Read a model's weights, or a rank's share of them, and tell of every tensor that was read.

    Raises:
        ModelError: the weights do not fit the config.
        ConfigError: several ranks cannot share this model.
    """
    check_ranks(config, group.size, group.pipeline.stages)
    return _class(config)(config, dtype, max_model_len, kernels, group, on_read)


def load_embed_and_lm_head(config: ModelConfig, dtype: torch.dtype, kernels: Kernels) -> CausalModel:
    """Read a model's embedding and output layer whole, for a proposer that runs them on one rank of several.

    Raises:
        ModelError: the weights do not fit the config.
    """
    family: Callable[..., CausalModel] = _class(config)
    return family(config, dtype, 1, kernels, ALONE, layers=0)


def check_ranks(config: ModelConfig, size: int, stages: int = 1) -> None:
    """Make sure that a model can be split into stages, and their layers among so many ranks.

    Raises:
        ConfigError: it cannot.
    """
    if stages > 1 and not exposes_hidden_states(config):
        what = f"pipeline_parallel_size={stages}"
        raise ConfigError(f"{what} is not supported for {config.architecture}; leave it at 1")
    if stages > config.num_layers:
        raise ConfigError(
            f"pipeline_parallel_size={stages} exceeds the model's {config.num_layers} layers; each stage needs one"
        )
    if stages > (parts := len(stage_starts(config))):
        raise ConfigError(
            f"pipeline_parallel_size={stages} is more than the {parts} stages into which {config.path} can be split, "
            "since its last layers share an earlier layer's KV cache; lower it, or use tensor_parallel_size"
        )
    if size > 1 and config.library_model is not None:
        raise ConfigError(
            f"tensor_parallel_size={size} is not supported for {config.architecture}, which a class of transformers "
            "computes; leave it at 1"
        )


def _class(config: ModelConfig) -> type[CausalModel]:
    if config.library_model is not None:
        return transformers_model.TransformersModel
    default: Any = Decoder
    family: type[CausalModel] = getattr(families.load(_family(config.architecture)), "Model", default)
    return family


def _family(architecture: str) -> str:
    return architecture.removesuffix(_SUFFIX).lower()
