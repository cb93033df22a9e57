"""The config of a block drafter, in any of its formats.

These are that of the authors (`dflash_config` among the keys of a language model), that of the `speculators` library
(`transformer_layer_config` among its own keys), and flat ones, such as those of transformers' assistants.

Sources of the keys' meaning: vLLM's `qwen3_dflash.py`, `speculators`' `models/dflash`, transformers'
`muse_glimmer_assistant`.
"""

from dataclasses import dataclass
from typing import Any

from parlay.checkpoints.files import class_names
from parlay.errors import ModelError, shown
from parlay.models.config import ModelConfig
from parlay.models.heads import HeadConfig
from parlay.models.select import exposes_hidden_states
from parlay.runner.graphs import MOST_ROWS

_BLOCK = 16  # rows of a block, where a config does not say
_SLIDING, _FULL = "sliding_attention", "full_attention"
_ASSISTANT = "museglimmerassistant"  # part of the class name of transformers' own assistants
_LISTED, _COUNTED = "target_layer_ids", "aux_hidden_state_layer_ids"  # last layer that has run; number of layers


@dataclass(frozen=True, slots=True)
class AttentionPattern:
    """Which keys the rows of a block attend to in a layer.

    Attributes:
        causal: whether a row of a block sees none of those behind it.
        window: number of keys that it sees up to its own; 0 is all.
    """

    causal: bool = False
    window: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockConfig:
    """The keys of a block drafter besides those of its layers.

    Attributes:
        settings: all keys side by side, the inner ones first.
        layers: keys that describe its layers.
        block: number of rows of a block.
        anchored: whether the first row, which is the newest token's, predicts a token too.
        mask: token id in all other rows.
        taps: counts of the target's layers after which its states are read, ascending.
        patterns: attention pattern of each layer.
        interleaved: whether the two columns of a rotary pair are adjacent in the files.
        embedding_scale, value_scale, logit_scale: factors on embeddings, values and logits.
        logit_cap: soft cap of logits; 0 is none.
        length: number of tokens that its makers propose to draft, at most `drafted`.
    """

    settings: HeadConfig
    layers: dict[str, Any]
    block: int
    anchored: bool
    mask: int
    taps: tuple[int, ...]
    patterns: tuple[AttentionPattern, ...]
    interleaved: bool
    embedding_scale: float
    value_scale: float
    logit_scale: float
    logit_cap: float
    length: int

    @property
    def drafted(self) -> int:
        """How many tokens a block predicts."""
        return self.block - (not self.anchored)


def read_block_config(head: HeadConfig, *, anchored: bool = False) -> BlockConfig:
    """Return a block drafter's config.

    Args:
        head: the config.
        anchored: whether the first row predicts a token, where a config does not say; in the library's dialect it
            then does not.

    Raises:
        ModelError: keys are missing or hold what is not supported.
    """
    inner, nested = _object(head, "dflash_config"), _object(head, "transformer_layer_config")
    layers = nested or head.raw
    own = {key: value for key, value in head.raw.items() if value is not None}
    settings = HeadConfig(head.path, {**layers, **own, **{k: v for k, v in inner.items() if v is not None}})
    if not settings.flag("use_aux_hidden_state", True):
        raise ModelError(
            f"{head.file}: use_aux_hidden_state=False is not supported; only heads that read states "
            "between the target's layers are"
        )
    size = settings.count("block_size", _BLOCK, least=2)
    if size > MOST_ROWS:
        raise ModelError(f"{head.file}: block_size={size} is not supported; at most {MOST_ROWS} is")
    anchored = settings.flag("sample_from_anchor", anchored and not nested and _COUNTED not in settings.raw)
    drafted = size - (not anchored)
    neox = settings.flag("is_neox_style", settings.flag("rope_is_neox_style", True))
    return BlockConfig(
        settings=settings,
        layers=layers,
        block=size,
        anchored=anchored,
        mask=settings.count("mask_token_id", least=0),
        taps=_taps(settings),
        patterns=_patterns(head, settings, inner, size),
        interleaved=not neox,
        embedding_scale=settings.number("input_embedding_scale", 1.0),
        value_scale=settings.number("attention_value_scale", 1.0),
        logit_scale=settings.number("output_multiplier", settings.number("logit_scale", 1.0)),
        logit_cap=settings.number("final_logit_softcapping", 0.0, least=0.0),
        length=proposed_length(head, drafted) or drafted,
    )


def check_taps(head: HeadConfig, taps: tuple[int, ...], target: ModelConfig) -> None:
    """Refuse a head that reads states which its target does not expose, or layers which it does not have.

    Raises:
        ModelError: it does.
    """
    layers = target.num_layers
    if not exposes_hidden_states(target):
        raise ModelError(
            f"the draft head {head.path} reads states between the layers of its target, but the architecture of "
            f"{target.path} exposes none; take another method"
        )
    if taps[-1] > layers:
        raise ModelError(
            f"the draft head {head.path} reads its target after {taps[-1]} layers, but that has only {layers}; the "
            "head was made for another target"
        )


def _object(head: HeadConfig, key: str) -> dict[str, Any]:
    value = head.raw.get(key) or {}
    if not isinstance(value, dict):
        raise ModelError(f"{head.file}: {key} must be an object, not {shown(value)}")
    return value


def _taps(settings: HeadConfig) -> tuple[int, ...]:
    inside = settings.raw.get(_LISTED) is not None
    key = _LISTED if inside else _COUNTED
    listed = settings.raw.get(key)
    if not isinstance(listed, list) or not _ascending(listed):
        raise ModelError(
            f"{settings.file}: {key} must list numbers of layers, each above the one before, not {shown(listed)}"
        )
    return tuple(i + inside for i in listed)


def _ascending(numbers: list[Any]) -> bool:
    whole = all(type(i) is int and i >= 0 for i in numbers)
    return bool(numbers) and whole and sorted(set(numbers)) == numbers


def _patterns(
    head: HeadConfig, settings: HeadConfig, inner: dict[str, Any], block: int
) -> tuple[AttentionPattern, ...]:
    """Return what the rows of each layer see: causal layers have a window, unless the config says otherwise."""
    layers, types = settings.count("num_hidden_layers"), settings.raw.get("layer_types")
    everywhere = settings.flag("use_swa", False)
    if types is None:
        types = [_FULL] * layers
    if not isinstance(types, list) or len(types) != layers or not {*types} <= {_SLIDING, _FULL}:
        raise ModelError(
            f"{head.file}: layer_types must list {layers} times {_SLIDING!r} or {_FULL!r}, not {shown(types)}"
        )
    if everywhere and _SLIDING not in types:
        types = [_SLIDING] * layers
    assistant = any(_ASSISTANT in name.lower().replace("_", "") for name in class_names(head.raw))
    causal = head.raw.get("is_causal")
    causal = inner.get("causal") if causal is None else causal
    if not isinstance(causal, bool | None):
        raise ModelError(f"{head.file}: causal must be true or false, not {shown(causal)}")
    if causal is None and (assistant or settings.flag("sliding_window_non_causal", False)):
        causal = False
    window = 0
    if _SLIDING in types:
        # The assistants' window is as many keys before a row, which comes on top.
        window = settings.count("swa_window_size", settings.raw.get("sliding_window")) + assistant
        if window < block:
            raise ModelError(f"{head.file}: a window of {window} keys is smaller than its block")
    return tuple(
        AttentionPattern(kind == _SLIDING if causal is None else causal, window if kind == _SLIDING else 0)
        for kind in types
    )


def proposed_length(head: HeadConfig, most: int) -> int | None:
    """Return the draft length that a config of `speculators` proposes, if it does and that is at most `most`."""
    inner = head.raw.get("speculators_config")
    methods = inner.get("proposal_methods") if isinstance(inner, dict) else None
    first = methods[0] if isinstance(methods, list) and methods else None
    length = first.get("speculative_tokens") if isinstance(first, dict) else None
    return length if type(length) is int and 1 <= length <= most else None
