"""Step-3.5-Flash and the text model of Step-3.7-Flash (StepFun 2026): a gate for each head, more heads of queries and
another rotary embedding in layers with a window, DeepSeek-V3's router, and limits within some networks.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from parlay.checkpoints.files import config_file
from parlay.checkpoints.pieces import Piece
from parlay.errors import ModelError, shown
from parlay.models.config import ModelConfig
from parlay.models.mtp import DEEPSEEK
from parlay.models.rope import read_rotary
from parlay.models.stored import network_names
from parlay.models.style import Experts, Heads, OutputGate, Style

_NAMES = {
    "self_attn.gate_proj.weight": "self_attn.g_proj.weight",
    "mlp.gate.weight": "moe.gate.weight",
    "mlp.gate.e_score_correction_bias": "moe.router_bias",
    **network_names("mlp.shared_expert", "share_expert"),
}
_NEXT = "model.layers.{0}."
MTP = replace(
    DEEPSEEK,
    norm=_NEXT + "transformer.shared_head.norm.weight",
    head=_NEXT + "transformer.shared_head.output.weight",
    dense=True,
    unnormed=True,
    late_norm=True,
)
_KINDS = "full_attention", "sliding_attention"
# Lists that released configs have for MTP layers too.
_LISTED = "layer_types", "mlp_layer_types", "swiglu_limits", "swiglu_limits_shared"
# The library's names of keys by those of released configs.
_OTHERS = {
    "num_attention_groups": "num_key_value_heads",
    "moe_num_experts": "n_routed_experts",
    "moe_top_k": "num_experts_per_tok",
    "share_expert_dims": "share_expert_dim",
}


def DEFAULTS(raw: Mapping[str, Any]) -> dict[str, Any]:  # noqa: N802 - a name that the loader looks for
    """Return what released configs have under other names, and rotary embeddings, which they list by layer."""
    found = {"head_dim": 128, "num_key_value_heads": 8, "rms_norm_eps": 1e-5}
    found |= {own: raw[key] for key, own in _OTHERS.items() if key in raw}
    bases, parts = raw.get("rope_theta", 10000.0), raw.get("partial_rotary_factors")
    kinds = raw.get("layer_types")
    kinds = [kind for kind in kinds if kind in _KINDS] if isinstance(kinds, list) else []
    rotary: dict[str, Any] = {}
    for kind in _KINDS:
        layer = kinds.index(kind) if kind in kinds else 0
        base = bases[layer] if isinstance(bases, list) and layer < len(bases) else bases
        rotary[kind] = {"rope_theta": base}
        if isinstance(parts, list) and layer < len(parts):
            rotary[kind]["partial_rotary_factor"] = parts[layer]
    return found | {"rope_parameters": rotary}


def describe(config: ModelConfig) -> ModelConfig:
    config.only(hidden_act="silu", attention_bias=False, mlp_bias=False, yarn_only_types=["full_attention"])
    config.only(use_head_wise_attn_gate=True, use_qk_norm=True, zero_centered=True, att_impl_type="GQA")
    config = _own_layers(config)
    windows = config.windows(lambda layer: False, default=None) if config.raw.get("layer_types") else ()
    windows = windows if any(windows) else ()
    counts = config.num_heads, _near_queries(config)
    kinds = tuple(window > 0 for window in windows)
    scalar = config.number("query_pre_attn_scalar", config.head_dim) if _given(config, "query_pre_attn_scalar") else 0
    style = Style(
        output_gate=OutputGate(separate=True, by_head=True),
        head_norms=True,
        plus_one=True,
        windows=windows,
        local_rotary=read_rotary(config.path, config.raw, "sliding_attention") if windows else None,
        score_scale=scalar**-0.5 if scalar not in (0, config.head_dim) else None,
        heads=tuple(Heads(count=config.num_kv_heads, width=config.head_dim, queries=counts[near]) for near in kinds)
        if counts[0] != counts[1]
        else (),
        limits=_limits(config, "swiglu_limits_shared"),
        experts=_experts(config),
    )
    names = config.in_layers(_NAMES) | config.stacked(_stacks(style.experts.count if style.experts else 0))
    return replace(config, style=style, renamed=names)


def _given(config: ModelConfig, key: str) -> bool:
    return config.raw.get(key) is not None


def _own_layers(config: ModelConfig) -> ModelConfig:
    """Return the config with lists of the model's own layers, and with the kinds of the others apart."""
    count, raw = config.num_layers, dict(config.raw)
    for key in _LISTED:
        listed = raw.get(key)
        if isinstance(listed, list) and len(listed) == count + config.count_or_zero("num_nextn_predict_layers", 0):
            raw[key] = listed[:count]
            if key == "layer_types" and raw.get("mtp_layer_types") is None:
                raw["mtp_layer_types"] = listed[count:]
    return replace(config, raw=raw)


def _near_queries(config: ModelConfig) -> int:
    """Return how many heads of queries layers with a window have."""
    other = config.within("attention_other_setting")
    other.only(num_attention_groups=config.num_kv_heads, head_dim=config.head_dim)
    found = other.count("num_attention_heads", config.num_heads)
    if _given(config, "num_sliding_attention_heads"):
        found = config.count("num_sliding_attention_heads", None)
    if found % config.num_kv_heads:
        raise ModelError(
            f"{config_file(config.path)}: num_sliding_attention_heads must be a multiple of {config.num_kv_heads}, "
            f"not {found}"
        )
    return found


def _limits(config: ModelConfig, key: str) -> tuple[float, ...]:
    """Return the limits of each layer; empty where there are none."""
    listed = config.raw.get(key)
    if listed is None:
        return ()
    if (
        not isinstance(listed, list)
        or len(listed) != config.num_layers
        or not all(each is None or (type(each) in (int, float) and 0 <= each < 1e30) for each in listed)
    ):
        raise ModelError(
            f"{config_file(config.path)}: {key} must list a number of at least 0 for each of {config.num_layers} "
            f"layers, not {shown(listed)}"
        )
    found = tuple(float(each or 0) for each in listed)
    return found if any(found) else ()


def _experts(config: ModelConfig) -> Experts | None:
    config.only(use_moe_router_bias=True, norm_expert_weight=True, moe_router_activation="sigmoid")
    listed = config.raw.get("moe_layers_enum")
    listed = [part.strip() for part in listed.split(",")] if isinstance(listed, str) else listed
    if listed is not None and not (isinstance(listed, list) and all(str(each).isdecimal() for each in listed)):
        raise ModelError(f"{config_file(config.path)}: moe_layers_enum must list layers, not {shown(listed)}")
    chosen = set(range(3, config.num_layers)) if listed is None else {int(each) for each in listed}
    sparse = config.sparse_layers([i in chosen for i in range(config.num_layers)])
    if not any(sparse):
        return None
    return Experts(
        count=config.count("n_routed_experts", config.raw.get("num_local_experts", 288)),
        top_k=config.count("num_experts_per_tok", 8),
        width=config.count("moe_intermediate_size", 1280),
        sparse=sparse,
        sigmoid=True,
        selection_bias=True,
        factor=config.number("moe_router_scaling_factor", 1.0),
        shared=config.count("share_expert_dim", 1280),
        limits=_limits(config, "swiglu_limits"),
    )


def _stacks(count: int) -> dict[str, Piece]:
    """Return where experts' tensors are: in a stack for each of their matrices."""
    parts = "gate_proj", "up_proj", "down_proj"
    return {f"mlp.experts.{{}}.{part}.weight": Piece(f"moe.{part}.weight", 0, count) for part in parts}
