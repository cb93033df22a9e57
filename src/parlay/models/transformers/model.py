"""Decoder-only models without a family file: the transformers library's class, with parlay's kernels inside.

Its attention layers call the kernels over the paged cache, and its linear layers, activations and norms are replaced
where the kernels have an equivalent; what is left between them is torch's. Whether rows stay independent is detected
by the self-check, which runs the whole model. No code from a checkpoint is ever run.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from parlay.checkpoints.config import architecture_of, read_ids
from parlay.checkpoints.files import dtype_of
from parlay.checkpoints.loader import Checkpoint, is_finite, made_kind, more
from parlay.checkpoints.quantised.config import quantization_of
from parlay.errors import ModelError, brief
from parlay.kernels.base import AttentionMetadata, Kernels
from parlay.kernels.native_quantise import quantise
from parlay.models.config import ModelConfig, check_sizes
from parlay.models.context import Buffers, ForwardContext, LayerCache
from parlay.models.stored import open_weights
from parlay.models.style import LibraryModel, Product, Rotary
from parlay.models.transformers.attention import KEYWORD, AttentionCall, PagedAttention, attend, register
from parlay.models.transformers.modules import KernelHead, RotaryTable, is_linear, is_rotary, replacement, weight_of
from parlay.models.transformers.probe import AttentionLayer, Unsupported, probe
from parlay.models.transformers.survey import OperationRecorder
from parlay.parallel.group import Group
from parlay.types.progress import OnRead, ignore
from parlay.types.storage import MADE
from parlay.weights.kinds import Kind
from parlay.weights.weight import Weight

_TRIAL = 13  # tokens
_BLOCK = 16
# Root mean square of a row's difference from the class's own logits, over the logits' spread.
_TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 0.2}
_OF_BLOCKS = 0.3  # the same where activations meet blocks, and are rounded to eight bits


def describe(path: Path, raw: dict[str, Any]) -> ModelConfig:
    """Return the shape of a model that the transformers library has a class for.

    Args:
        path: the model directory.
        raw: the content of its `config.json`.

    Raises:
        ModelError: the library or the class is missing, or it is no decoder that parlay can run.
    """
    layers, model = _probed(path, raw)
    config, first = model.config, next(iter(layers.values()))
    products = Counter(
        (name.rpartition(".")[2], tuple(weight_of(module).shape))
        for name, module in model.named_modules()
        if is_linear(module) and module is not model.get_output_embeddings()
    )
    described = ModelConfig(
        path=path,
        architecture=type(model).__name__,
        vocab_size=model.get_input_embeddings().weight.shape[0],
        hidden_size=int(config.hidden_size),
        intermediate_size=_widest(getattr(config, "intermediate_size", None) or 4 * config.hidden_size),
        num_layers=len(layers),
        num_heads=first.heads,
        num_kv_heads=first.kv_heads,
        head_dim=first.head_dim,
        rms_norm_eps=1e-6,
        rotary=Rotary(theta=10000.0),  # the class computes its own
        tie_embeddings=bool(getattr(config, "tie_word_embeddings", True)),
        max_position=int(getattr(config, "max_position_embeddings", None) or 2048),
        dtype=dtype_of(raw),
        eos_token_ids=read_ids(raw.get("eos_token_id", getattr(config, "eos_token_id", None))),
        raw=raw,
        library_model=LibraryModel(
            library=_library(),
            products=tuple(
                Product(name, (shape[0], shape[1]), times, times) for (name, shape), times in products.items()
            ),
        ),
    )
    check_sizes(described)
    return described


def _widest(size: int | list[int]) -> int:
    """Return the width of the widest layer, where a config has one for all or one for each."""
    return max(map(int, size)) if isinstance(size, list | tuple) else int(size)


class TransformersModel:
    """A class of the transformers library with its weights, rebuilt.

    Attributes:
        leftovers: none; the class says what its checkpoints may hold.
        rest: operations of torch in a pass that are not known to be row-invariant, by their names.
    """

    leftovers: tuple[str, ...] = ()

    @staticmethod
    def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
        """Return the name and shape of every parameter that the class makes, as it calls them."""
        _, model = _probed(config.path, config.raw)
        return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}

    @staticmethod
    def expect(config: ModelConfig, weights: Checkpoint) -> tuple[str, ...]:
        """Return the leftovers. Names are compared when weights are read: the library may map them."""
        return ()

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype,
        max_model_len: int,
        kernels: Kernels,
        group: Group,
        on_read: OnRead = ignore,
    ) -> None:
        """Read the weights as a `CausalModel`, replace modules, and compare with what the class computes by itself.

        The group is of one rank, and `on_read` is not called, since the library reads all tensors at once.

        Raises:
            ModelError: the weights do not fit the config, or the rebuilt model computes something else.
        """
        if group.size > 1:
            raise ModelError(f"{config.path}: {config.architecture} cannot be split among ranks; use one")
        self.config = config
        self.dtype = dtype
        self._kernels = kernels
        layers, empty = _probed(config.path, config.raw)
        model = _load(config, type(empty), dtype)
        stored = _stored(config, model)
        tolerance = max(_TOLERANCES[dtype], _OF_BLOCKS if stored else 0.0)
        _fix_frequencies(model, max_model_len)
        tokens = torch.randint(config.vocab_size, (_TRIAL,), generator=torch.Generator().manual_seed(0))
        tokens = tokens[:max_model_len]
        try:
            with torch.no_grad():
                expected = model(input_ids=tokens[None], use_cache=False).logits[0, :, : config.tokens].float()
            self._base, self._causal = _rebuild(model, kernels, dtype, stored)
            windows = {model.get_submodule(name): layer.window for name, layer in layers.items()}
            self._attention = PagedAttention(windows)
            # From here on a call of the whole is a call of the head alone, with what it does to logits.
            setattr(model, model.base_model_prefix, _Identity())
            self._try(tokens, expected, tolerance)
            with OperationRecorder(self._causal, self._base, self._attention) as survey:
                self._logits_in_pieces(tokens, (len(tokens),))
        except ModelError:
            raise
        except Unsupported as error:
            raise _unsupported(config.path, config.architecture, str(error)) from None
        except Exception as error:  # a class may read attributes of the modules that were replaced
            reason = f"its class does not run with parlay's modules ({_first_line(error)})"
            raise _unsupported(config.path, config.architecture, reason) from error
        self.rest = survey.rest

    def forward(self, tokens: Tensor, context: ForwardContext) -> Tensor:
        """Run rows through the layers, storing their keys and values.

        Args:
            tokens: `[rows]` int64.
            context: where the rows stand and what they see.

        Returns:
            Hidden states after the final norm, `[rows, hidden]`.
        """
        call = {KEYWORD: AttentionCall(context, self._attention)}
        positions = context.positions[None].long()
        with torch.no_grad():
            output = self._base(input_ids=tokens[None], position_ids=positions, use_cache=False, **call)
        hidden: Tensor = output[0][0]
        return hidden.contiguous()

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits `[rows, vocab]` of hidden states `[rows, hidden]`."""
        with torch.no_grad():
            found: Tensor = self._causal(inputs_embeds=hidden[None], use_cache=False).logits[0]
        return found[:, : self.config.tokens].float().contiguous()

    def _try(self, tokens: Tensor, expected: Tensor, tolerance: float) -> None:
        """Compare logits with those of the original class, and those computed in pieces with the whole."""
        spread = max(float(expected.std()), 1e-6)
        whole = self._logits_in_pieces(tokens, (len(tokens),))
        pieces = self._logits_in_pieces(tokens, (*range(1, len(tokens), 5), len(tokens)))

        def differ(a: Tensor, b: Tensor) -> float:
            # The median over rows: in a mixture of experts a near tie may choose other experts in some.
            return float((a - b).pow(2).mean(1).sqrt().median()) / spread

        # `not ... <`: NaN is refused too.
        if not differ(whole, expected) < tolerance:
            raise Unsupported(f"its logits differ from transformers' by {differ(whole, expected):.2g} of the spread")
        if not differ(pieces, whole) < tolerance / 10:
            raise Unsupported(
                "its logits change when a text is computed in pieces, so something besides attention and "
                "position_ids tells rows apart"
            )

    def _logits_in_pieces(self, tokens: Tensor, ends: tuple[int, ...]) -> Tensor:
        config = self.config
        shape = (1, config.num_kv_heads, _BLOCK, config.head_dim)
        cache = tuple(
            LayerCache(torch.zeros(shape, dtype=self.dtype), torch.zeros(shape, dtype=self.dtype))
            for _ in range(config.num_layers)
        )
        parts = []
        for start, end in zip((0, *ends), ends, strict=False):
            rows = torch.arange(start, end, dtype=torch.int32)
            none = torch.zeros(len(rows) + 1, dtype=torch.int32)
            view = AttentionMetadata(
                torch.zeros((1, 1), dtype=torch.int32), none[1:], none[1:], rows + 1, none, torch.zeros(0).int()
            )
            buffers = Buffers(len(rows), self.dtype)
            context = ForwardContext(self._kernels, rows, rows.long(), view, cache, buffers)
            parts.append(self.logits(self.forward(tokens[start:end], context)))
        return torch.cat(parts)


class _Identity(nn.Module):
    """Takes the place of the layers and returns its input."""

    def forward(self, *tokens: None, inputs_embeds: Tensor, **others: Any) -> "_HiddenStates":
        return _HiddenStates((inputs_embeds,))


class _HiddenStates(tuple[Tensor]):
    """The output of layers: hidden states, first or by name, and nothing else."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Tensor | None:
        return self[0] if name == "last_hidden_state" else None


def _class(path: Path, raw: dict[str, Any]) -> tuple[Any, Any]:
    """Return the library's class that a config names and its own form of the config."""
    architecture = architecture_of(raw)
    try:
        import transformers
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
    except ImportError:
        raise ModelError(
            f"{path}: {brief(architecture)} has no family here and needs the transformers library; "
            "pip install 'parlay[transformers]'"
        ) from None
    try:
        config = transformers.AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        found = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), ())
    except Exception as error:  # its checks may raise anything
        raise Unsupported(f"transformers cannot read its config ({_first_line(error)})") from None
    classes: tuple[Any, ...] = found if isinstance(found, tuple) else (found,)
    cls = next((c for c in classes if c.__name__ == architecture), None)
    if cls is None:
        kind = "it is an encoder and a decoder" if config.is_encoder_decoder else "it is no decoder-only model"
        raise Unsupported(f"{kind} of the transformers library")
    return cls, config


def _probed(path: Path, raw: dict[str, Any]) -> tuple[dict[str, AttentionLayer], Any]:
    """Return the attention layers of the library's class that a config names, and an instance without weights."""
    try:
        cls, config = _class(path, raw)
        with _silenced():
            return probe(cls, config)
    except ModelError:
        raise
    except Unsupported as error:
        raise _unsupported(path, architecture_of(raw), str(error)) from None
    except Exception as error:  # the class rejects its config
        reason = f"transformers cannot build it ({_first_line(error)})"
        raise _unsupported(path, architecture_of(raw), reason) from None


def _load(config: ModelConfig, cls: Any, dtype: torch.dtype) -> Any:
    """Return the class with its weights, of which none is missing, left over or infinite."""
    with Checkpoint(config.path) as weights:  # says what is wrong with files
        source: dict[str, Any] = {"pretrained_model_name_or_path": config.path}
        if quantization_of(config.raw):  # of which the library would want others' code
            numbers = {name: weights.read(name, dtype) for name in weights.names}
            _, own = _class(config.path, config.raw)
            for key in {"quantization", "quantization_config", "compression_config"} & vars(own).keys():
                delattr(own, key)
            source = {"pretrained_model_name_or_path": None, "config": own, "state_dict": numbers}
    try:
        with _silenced():
            model, info = cls.from_pretrained(
                **source,
                dtype=dtype,
                attn_implementation="eager",
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except Exception as error:  # of many kinds
        raise ModelError(f"{config.path}: its weights do not fit its config: {_first_line(error)}") from None
    wrong = {"lacks the tensor": "missing_keys", "has a tensor that its config does not explain:": "unexpected_keys"}
    for words, key in wrong.items():
        names = sorted(map(str, info[key]))
        if names:
            raise ModelError(f"{config.path} {words} {names[0]!r}{more(names)}")
    model.eval().requires_grad_(False)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_floating_point() and not is_finite(tensor):
            raise ModelError(
                f"{config.path}: tensor {name!r} holds values that are infinite or not numbers; "
                "the checkpoint is damaged"
            )
    return model


def _linear_layers(model: Any) -> dict[str, Any]:
    """Return a class's linear layers by the names of their weights."""
    return {f"{name}.weight": module for name, module in model.named_modules() if is_linear(module)}


def stored_kinds(config: ModelConfig) -> dict[str, Kind]:
    """Return which blocks the matrices of linear layers are computed in; those of plain numbers are left out.

    Raises:
        ModelError: files are missing or damaged, or the class is not supported.
    """
    if config.storage == "stored" and not quantization_of(config.raw):
        return {}  # the files need not be looked into
    layers = _linear_layers(_probed(config.path, config.raw)[1])
    with open_weights(config) as weights:
        kinds = {
            name: made_kind(name, tuple(weight_of(module).shape), config.storage)
            if config.storage in MADE
            else weights.kind(name)
            for name, module in layers.items()
            if config.storage in MADE or (name in weights.names and weights.quantised(name))
        }
    return {name: kind for name, kind in kinds.items() if kind is not None}


def _stored(config: ModelConfig, model: Any) -> dict[str, Weight]:
    """Return the matrices that stay in blocks, whose numbers the class gets too: it is to compute the same model."""
    found: dict[str, Weight] = {}
    if kinds := stored_kinds(config) if config.storage != "plain" else {}:
        layers = _linear_layers(model)
        with open_weights(config) as weights:
            for name, kind in kinds.items():
                weight = weight_of(layers[name])
                made = config.storage in MADE
                found[name] = quantise(weight, kind) if made else weights.read_weight(name, weight.dtype)
                weight.copy_(found[name].numbers())
    return found


def _fix_frequencies(model: Any, length: int) -> None:
    """Replace rotary embeddings by tables of `length` positions."""
    for name, module in list(model.named_modules()):
        if is_rotary(module):
            model.set_submodule(name, RotaryTable(module, length))


def _rebuild(model: Any, kernels: Kernels, dtype: torch.dtype, stored: dict[str, Weight]) -> tuple[Any, Any]:
    """Put the kernels into a model; return its layers and the model itself.

    Args:
        model: the model, with its weights.
        kernels: the operations to run with.
        dtype: the model's dtype.
        stored: matrices that stay in blocks, by name; they are taken out.
    """
    register(KEYWORD, attend)
    head = model.get_output_embeddings()
    # By name, so that each weight's memory is free once it is packed.
    for name in [name for name, _ in model.named_modules() if name]:
        module, blocks = model.get_submodule(name), stored.pop(f"{name}.weight", None)
        if module is head:
            new: nn.Module | None = KernelHead(kernels, blocks or weight_of(module), getattr(module, "bias", None))
            head = None
        else:
            new = replacement(module, kernels, dtype, blocks)
        if new is not None:
            model.set_submodule(name, new)
    model.set_attn_implementation(KEYWORD)
    return model.base_model, model


@contextmanager
def _silenced() -> Iterator[None]:
    """Keep the library's progress bars and reports off the terminal; errors are raised."""
    from transformers.utils import logging

    library: Any = logging
    verbosity, bars = library.get_verbosity(), library.is_progress_bar_enabled()
    library.set_verbosity(library.CRITICAL)
    library.disable_progress_bar()
    try:
        yield
    finally:
        library.set_verbosity(verbosity)
        if bars:
            library.enable_progress_bar()


def _library() -> str:
    import transformers

    return f"transformers-{transformers.__version__}"


def _first_line(error: Exception) -> str:
    return brief((str(error).strip().splitlines() or [type(error).__name__])[0])


def _unsupported(path: Path, architecture: str, reason: str) -> ModelError:
    return ModelError(
        f"{path}: {brief(architecture)} is not supported: {brief(reason)}; parlay's own families are, and decoders "
        "whose every layer attends through transformers' attention interface"
    )
