"""Nemotron-H, Nemotron Nano 2 and Nemotron 3 (NVIDIA 2025, arXiv 2504.03624): one part per layer.

A layer is Mamba-2, attention without rotary embedding, a feed-forward network with squared ReLU, or experts. The
steps of Mamba-2 have no lower bound, as in the authors' code and llama.cpp; transformers takes `time_step_min` in
prompts.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from parlay.checkpoints.files import config_file
from parlay.errors import ModelError, shown
from parlay.models.config import ModelConfig
from parlay.models.mamba import MambaLayers
from parlay.models.mtp import MTPNames
from parlay.models.style import Experts, Style

_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_KINDS = {"linear_attention": "mamba", "full_attention": "attention"}
_NAMES = {
    "input_layernorm.weight": "norm.weight",
    **{f"self_attn.{x}_proj.{kind}": f"mixer.{x}_proj.{kind}" for x in "qkvo" for kind in ("weight", "bias")},
    **{f"mlp.{x}_proj.{kind}": f"mixer.{x}_proj.{kind}" for x in ("up", "down") for kind in ("weight", "bias")},
    **{
        f"mlp.shared_expert.{x}_proj.{kind}": f"mixer.shared_experts.{x}_proj.{kind}"
        for x in ("up", "down")
        for kind in ("weight", "bias")
    },
    **{f"mlp.experts.{{}}.{x}_proj.weight": f"mixer.experts.{{}}.{x}_proj.weight" for x in ("up", "down")},
    **{
        f"mlp.latent_{way}.{kind}": f"mixer.{own}_latent_proj.{kind}"
        for way, own in (("in", "fc1"), ("out", "fc2"))
        for kind in ("weight", "bias")
    },
    "mlp.gate.weight": "mixer.gate.weight",
    "mlp.gate.e_score_correction_bias": "mixer.gate.e_score_correction_bias",
    **{f"mamba.{name}": f"mixer.{name}" for name in ("A_log", "D", "dt_bias", "norm.weight")},
    **{
        f"mamba.{x}.{kind}": f"mixer.{x}.{kind}"
        for x in ("in_proj", "conv1d", "out_proj")
        for kind in ("weight", "bias")
    },
}
# An MTP layer counts as two layers in this family: attention, and experts.
MTP = MTPNames(
    layer="mtp.layers.",
    join="mtp.layers.0.eh_proj.weight",
    token_norm="mtp.layers.0.enorm.weight",
    state_norm="mtp.layers.0.hnorm.weight",
    norm="mtp.layers.1.final_layernorm.weight",
    inner={
        "post_attention_layernorm.weight": "1.norm.weight",
        **{name: ("1." if name.startswith("mlp.") else "0.") + own for name, own in _NAMES.items()},
    },
)


def _kinds(raw: Mapping[str, Any]) -> list[str]:
    """Return what each layer is; empty where a config does not say it in a known way."""
    pattern = raw.get("layers_block_type") or raw.get("layer_types") or raw.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return [_LETTERS.get(letter, letter) for letter in pattern]
    return [_KINDS.get(str(kind), str(kind)) for kind in pattern] if isinstance(pattern, list) else []


def DEFAULTS(raw: Mapping[str, Any]) -> dict[str, Any]:  # noqa: N802 - a name that the loader looks for
    """Return how many layers a config lists that does not count them."""
    return {"num_hidden_layers": len(_kinds(raw))}


def describe(config: ModelConfig) -> ModelConfig:
    config.only(mlp_hidden_act="relu2", mamba_hidden_act="silu", sliding_window=None)
    kinds = _kinds(config.raw)
    if len(kinds) != config.num_layers or {*kinds} - {*_LETTERS.values()}:
        raise ModelError(
            f"{config_file(config.path)}: layers_block_type must list mamba, attention, mlp or moe for each of "
            f"{config.num_layers} layers, not {shown(kinds)}"
        )
    experts = _experts(config, tuple(kind == "moe" for kind in kinds)) if "moe" in kinds else None
    mamba = MambaLayers(
        layers=tuple(kind == "mamba" for kind in kinds),
        kernel_size=config.count("conv_kernel", 4),
        heads=config.count("mamba_num_heads", 128),
        width=config.count("mamba_head_dim", 64),
        groups=config.count("n_groups", 8),
        state=config.count("ssm_state_size", 128),
        conv_bias=config.flag("use_conv_bias", True),
        bias=config.flag("use_bias", False),
        rates=config.flag("linear_rates", False),
    )
    mamba.check(config)
    style = Style(
        activation="relu2",
        gated=False,
        mlp_bias=config.flag("mlp_bias", False),
        nope=(True,) * config.num_layers,
        recurrent=mamba,
        networks=tuple(kind in ("mlp", "moe") for kind in kinds),
        experts=experts,
    )
    names = config.in_layers(_NAMES, experts.count if experts else 0)
    names |= {"model.embed_tokens.weight": "model.embeddings.weight", "model.norm.weight": "model.norm_f.weight"}
    released = {name: str(own).replace("model.", "backbone.", 1) for name, own in names.items()}
    eps = config.number("layer_norm_epsilon", config.rms_norm_eps)
    return replace(config, style=style, renamed=released, rms_norm_eps=eps)


def _experts(config: ModelConfig, sparse: tuple[bool, ...]) -> Experts:
    return Experts(
        count=config.count("n_routed_experts", 8),
        top_k=config.count("num_experts_per_tok", 2),
        width=config.count("moe_intermediate_size", 7688),
        normalise=config.flag("norm_topk_prob", True),
        sparse=sparse,
        sigmoid=True,
        selection_bias=True,
        groups=config.count("n_group", 1),
        kept_groups=config.count("topk_group", 1),
        factor=config.number("routed_scaling_factor", 1.0),
        shared=config.count("moe_shared_expert_intermediate_size", 7688),
        latent=config.count_or_zero("moe_latent_size", 0),
    )
