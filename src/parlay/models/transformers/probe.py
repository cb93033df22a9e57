"""How a class of the transformers library calls attention, detected by a pass without numbers.

The class is built on torch's meta device, where tensors have shapes and no content, and run on a few tokens. This
gives its attention layers, their heads, windows and options before any weight is read; options that parlay's
attention does not support are refused by name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from parlay.models.transformers.attention import KEYWORD, register

_NAME = "parlay_probe"
_ROWS = 4
_FAR = 1 << 16  # positions, where a config does not say how many there are
# Keywords that a class may pass to attention without an effect here.
_HARMLESS = {"position_ids", "cache_position", "is_causal", "sliding_window", "dropout", "scaling", "softcap"}
_OPTION_NAMES = {"s_aux": "sinks (s_aux)"}
_ATTENTION = ("full_attention", "sliding_attention")
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Unsupported(Exception):  # noqa: N818 - a reason on its way to a ModelError
    """Why a class cannot be served, as the rest of a sentence that begins with its name."""


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """One attention layer, as it called.

    Attributes:
        heads: query heads.
        kv_heads: key and value heads.
        head_dim: columns per head.
        window: keys that a row sees at most; 0 is all.
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int


_Record = dict[nn.Module, AttentionLayer]  # what called attention, in order


def probe(cls: Any, config: Any) -> tuple[dict[str, AttentionLayer], nn.Module]:
    """Return the attention layers of a causal language model by name, in the order of calls, and the model itself.

    Args:
        cls: the class; its instance is left on the meta device.
        config: transformers' config of it; its implementations of attention and experts are changed.

    Raises:
        Unsupported: it is recurrent or convolutional, or needs something that attention does not support.
    """
    from transformers import AttentionMaskInterface

    if getattr(config, "is_encoder_decoder", False):
        raise Unsupported("it is an encoder and a decoder")
    if config.get_text_config() is not config:
        raise Unsupported("it is multimodal")
    if getattr(cls, "_is_stateful", False):
        raise Unsupported("it is recurrent")
    others = set(getattr(config, "layer_types", None) or ()) - set(_ATTENTION)
    if others:
        raise Unsupported(f"it has layers of the kind {sorted(others)[0]!r}")
    register(_NAME, _record_call)
    AttentionMaskInterface.register(_NAME, _window)
    config._attn_implementation = _NAME
    config._experts_implementation = "batched_mm"  # the one without loops over what a router chose
    with torch.device("meta"):
        model = cls(config).eval()
    for module in model.modules():
        if isinstance(module, _CONVOLUTIONS):
            raise Unsupported("it is convolutional")
        # Some kinds look at positions, of which there are none here; frequencies do not matter.
        kind = getattr(module, "rope_type", None)
        if kind is not None:
            module.rope_type = dict.fromkeys(kind, "default") if isinstance(kind, dict) else "default"
    if model.base_model is model:
        raise Unsupported("its layers cannot be separated from its head")
    record: _Record = {}
    _run(model, record)
    if not record:
        raise Unsupported("its attention, if it has any, does not go through transformers' attention interface")
    if len({(layer.heads, layer.kv_heads, layer.head_dim) for layer in record.values()}) > 1:
        raise Unsupported("its layers have different heads")
    if len(record) != config.num_hidden_layers:
        raise Unsupported(f"of its {config.num_hidden_layers} layers {len(record)} have attention")
    names = {module: name for name, module in model.named_modules()}
    return {names[module]: layer for module, layer in record.items()}, model


def _run(model: Any, record: _Record) -> None:
    tokens, ones = (make(1, _ROWS, dtype=torch.int64, device="meta") for make in (torch.zeros, torch.ones))
    # With a mask the library does not look for several sequences in the positions.
    inputs = {"input_ids": tokens, "position_ids": tokens, "attention_mask": ones, "use_cache": False}
    try:
        with torch.no_grad():
            model.base_model(**inputs, **{KEYWORD: record})
    except Unsupported:
        raise
    except Exception as error:
        if not getattr(model, "_supports_attention_backend", False):
            reason = "its attention does not go through transformers' attention interface"
        else:
            reason = (
                f"its layers cannot be followed without data ({str(error).splitlines()[0] if str(error) else ''})"
            )
        raise Unsupported(reason) from error


def _record_call(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None, **options: Any
) -> tuple[Tensor, None]:
    """Record a layer's call of attention; answer with as much memory."""
    record: _Record | None = options.pop(KEYWORD, None)
    if record is None:
        raise Unsupported("its layers do not pass keyword arguments on to attention")
    if module in record:
        raise Unsupported("it calls attention several times in a layer")
    _, heads, rows, head_dim = query.shape
    if key.shape[2] != rows or value.shape[2] != rows:
        raise Unsupported("it attends to other rows than its own (cross attention)")
    if value.shape[3] != head_dim or key.shape[3] != head_dim:
        raise Unsupported("its values have another width than its keys")
    if head_dim % 8 or head_dim > 256:
        raise Unsupported(f"its heads have {head_dim} columns, and multiples of 8 up to 256 are supported")
    if attention_mask is None or options.get("is_causal") is False or getattr(module, "is_causal", True) is False:
        raise Unsupported("its attention is not causal")
    if options.get("dropout"):
        raise Unsupported("it uses attention dropout")
    for name, option in options.items():
        # False and None are what a class passes for options that it does not use.
        if name not in _HARMLESS and option is not None and option is not False:
            raise Unsupported(f"it asks attention for {_OPTION_NAMES.get(name, name)}, which is not supported")
    window, hint = int(attention_mask.reshape(-1)[0]), options.get("sliding_window")
    if hint and window and hint != window:
        raise Unsupported(f"its mask shows {window} keys where its sliding window is {hint}")
    record[module] = AttentionLayer(heads, key.shape[1], head_dim, window)
    return query.new_empty(1, rows, heads, head_dim), None


def _window(*, mask_function: Callable[..., Any], config: Any = None, **others: Any) -> Tensor:
    """Return, in place of a mask, how many keys a row sees at most, 0 for all."""
    length = int(getattr(config, "max_position_embeddings", None) or _FAR)
    keys, zero = torch.arange(length), torch.tensor(0)

    def seen(row: int) -> Tensor:
        return torch.as_tensor(mask_function(zero, zero, torch.tensor(row), keys)).expand(length)

    window = int(seen(length - 1).sum())
    for row in {length - 1, length // 2, length // 3, min(5, length - 1)}:
        expected = (keys <= row) & (keys > row - window)
        if not torch.equal(seen(row), expected):
            raise Unsupported("its attention is neither causal nor causal within a window")
    return torch.full((1, 1, 1, 1), window if window < length else 0)
