"""A model's config as the metadata of a GGUF file: what `checkpoints.gguf.config` reads, written.

What no key can express, such as `dynamic` scaling, is not checked here: the written file is read back.

Source: ggml's `docs/gguf.md` for the keys.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from parlay.checkpoints.gguf.config import EPS, SIZES
from parlay.checkpoints.gguf.families import FAMILIES, family_for
from parlay.checkpoints.gguf.family import Family
from parlay.checkpoints.gguf.rotary import YARN
from parlay.checkpoints.gguf.writer import Value
from parlay.errors import ModelError
from parlay.models.config import ModelConfig
from parlay.models.export.layout import as_gguf_config
from parlay.models.rotary import llama3_divisors, rotary_dim
from parlay.models.style import Experts


def family_to_write(config: ModelConfig) -> tuple[str, Family]:
    """Return a file's name of the model's architecture, and what is known of it.

    Raises:
        ModelError: files do not have it.
    """
    style, found = config.style, None
    if config.library_model is None:
        has = {"recurrent": style.recurrent is not None, "experts": style.experts is not None}
        found = family_for(config.architecture, **has)
    if found is None:
        written = (family for family in FAMILIES.values() if family.exportable)
        known = ", ".join(dict.fromkeys(name for f in written for name in (f.architecture, *f.also)))
        raise ModelError(
            f"{config.path}: parlay writes no GGUF files of {config.architecture}; it does of {known}, "
            "MistralForCausalLM, MixtralForCausalLM and Olmo3ForCausalLM"
        )
    return found


def metadata(config: ModelConfig, further: Sequence[ModelConfig] = ()) -> dict[str, Value]:
    """Return the keys that describe a model's shape; `further` has the MTP layers that come with it.

    Raises:
        ModelError: files do not have its architecture, or llama.cpp would compute something else.
    """
    name, family = family_to_write(config)
    config = as_gguf_config(config, family)
    values = _values(config, len(further))
    supposed = "norm_topk_prob" in family.options.values() and family.fixed.get("norm_topk_prob", True)
    if values["norm_topk_prob"] is False and supposed:
        raise ModelError(f"{config.path}: norm_topk_prob=false cannot be written; readers of GGUF files assume true")
    keys = {**SIZES, **family.options}
    given = {key: values.get(hf) for key, hf in keys.items()}
    found = {key: value for key, value in given.items() if value not in (None, family.fixed.get(keys[key]))}
    if family.listed and config.style.windows:
        more = further if family.window_sizes else ()  # in files that tell kinds of layers apart by this list
        windows = config.style.windows + tuple(max(layer.style.windows) for layer in more)
        found["attention.sliding_window_pattern"] = [window > 0 for window in windows]
    if config.style.experts and (config.style.experts.sigmoid or family.latent):
        found["expert_gating_func"] = 1 + config.style.experts.sigmoid  # softmax or sigmoid
    if name == "phi3" and not config.style.windows:
        found["attention.sliding_window"] = 0  # which says that there is none
    found["attention.value_length"] = config.heads_of(0).value_width
    if (latent := config.style.latent) is not None:
        found["attention.value_length"] = latent.kv_rank
        found["attention.key_length_mla"] = latent.query
        found["attention.value_length_mla"] = latent.value
        found["vocab_size"] = config.vocab_size
    for key, _ in (EPS[config.style.layer_norms], *((EPS[True],) if family.single_part_layers else ())):
        found[key] = config.rms_norm_eps
    if family.sections:  # of positions in images
        found["rope.dimension_sections"] = _sections(config, family.sections)
    found |= _rotary(config) | _by_layer(config, family, further)
    if family.halved:
        found["rope.dimension_count"] = 2 * rotary_dim(config, config.rotary)
    return {f"{name}.{key}": value for key, value in found.items()}


def _sections(config: ModelConfig, usual: tuple[int, ...]) -> list[int]:
    given = config.within("rope_parameters").raw.get("mrope_section")
    sections = list(given) if isinstance(given, list) and all(type(each) is int for each in given) else [*usual]
    return [*sections, 0, 0, 0, 0][:4]


def _by_layer(config: ModelConfig, family: Family, further: Sequence[ModelConfig]) -> dict[str, Value]:
    """Return what differs from layer to layer, and the sizes of recurrent layers."""
    style, recurrent = config.style, config.style.recurrent
    if style.heads and family.heads_vary_by_window:
        return _by_kind(config)
    if recurrent is None:
        each = [(layer, i) for layer in (config, *further) for i in range(layer.num_layers)]
        counts = {
            "attention.head_count": [layer.queries_of(i) for layer, i in each],
            "attention.head_count_kv": [layer.heads_of(i).count for layer, i in each],
        }
        near, found = style.local_rotary, dict[str, Value]()
        found |= {key: listed for key, listed in counts.items() if style.heads and len({*listed}) > 1}
        if family.window_rotary and near is not None and any(style.windows):
            found |= {"rope.freq_base_swa": near.theta, "rope.dimension_count_swa": rotary_dim(config, near)}
        return found
    if unsupported := recurrent.gguf_unsupported():
        raise ModelError(f"{config.path} has {unsupported}, which llama.cpp does not read; serve the model as it is")
    found = {**recurrent.gguf_sizes()}
    attends = [
        not scans and not (style.networks and style.networks[i]) for i, scans in enumerate(recurrent.layers)
    ] + [True] * len(further)
    if family.recurrent and family.recurrent_key == "attention.head_count_kv":
        found[family.recurrent_key] = [config.num_kv_heads * each for each in attends]
    elif family.recurrent:
        found[family.recurrent_key] = [not each for each in attends]
    if family.single_part_layers:
        sparse = style.experts.sparse if style.experts is not None else style.networks
        if sparse != style.networks:
            raise ModelError(
                f"{config.path} has layers that are a feed-forward network alone beside others that are experts, "
                "which a GGUF file cannot hold; serve the model as it is"
            )
        found["feed_forward_length"] = [
            config.intermediate_size * each for each in (*sparse, *([True] * len(further)))
        ]
    return found


def _by_kind(config: ModelConfig) -> dict[str, Value]:
    """Return what differs between layers that have a window and others."""
    style = config.style
    counts = [heads.count for heads in style.heads]
    widths = [config.network_width(i) for i in range(config.num_layers)]
    far, near = _width_of(config, near=False), _width_of(config, near=True)
    return {
        "attention.sliding_window_pattern": [window > 0 for window in style.windows],
        "attention.head_count_kv": counts if len({*counts}) > 1 else counts[0],
        "attention.key_length": far,
        "attention.value_length": far,
        "attention.key_length_swa": near,
        "attention.value_length_swa": near,
        "attention.shared_kv_layers": sum(heads.source >= 0 for heads in style.heads),
        "feed_forward_length": widths if len({*widths}) > 1 else widths[0],
        "embedding_length_per_layer_input": style.layer_inputs,
        "rope.dimension_count": far,
        "rope.dimension_count_swa": near,
        "rope.freq_base_swa": (style.local_rotary or config.rotary).theta,
    }


def _width_of(config: ModelConfig, *, near: bool) -> int:
    """Return the width of heads in layers that have a window, or in the others."""
    each = zip(config.style.heads, config.style.windows, strict=True)
    return {bool(window): heads.width for heads, window in each}.get(near, config.head_dim)


def rotary_factors(config: ModelConfig) -> dict[str, Tensor]:
    """Return the tensors that scale rotary frequencies, float32."""
    rotary = config.rotary
    if rotary.kind == "longrope":
        factors = {"long": rotary.long_factor, "short": rotary.short_factor}
        return {f"rope_factors_{which}.weight": torch.tensor(values) for which, values in factors.items()}
    if rotary.kind == "proportional":  # a column that does not turn has its frequency divided by a huge number
        width = _width_of(config, near=False)
        still = torch.arange(width // 2) >= int(rotary.partial * width // 2)
        return {"rope_freqs.weight": torch.ones(width // 2).masked_fill(still, 1e30)}
    if rotary.kind == "llama3":
        own, near = rotary_dim(config, rotary), config.style.local_rotary
        divisors = llama3_divisors(rotary, own)
        others = rotary_dim(config, near) - own if near is not None else 0  # which no layer with a window divides
        return {"rope_freqs.weight": torch.cat((divisors, torch.ones(max(others, 0) // 2)))}
    return {}


def _values(config: ModelConfig, further: int) -> dict[str, Any]:
    """Return a model's values, by the names of Hugging Face's configs; None is what it does not have."""
    style, experts = config.style, config.style.experts
    return {
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers + further,
        "num_nextn_predict_layers": further or None,
        "intermediate_size": config.intermediate_size,
        "intermediate_size_mlp": config.intermediate_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.raw.get("max_position_embeddings") or config.max_position,
        "sliding_window": max(style.windows, default=0) or None,
        "sliding_window_pattern": style.windows.index(0) + 1 if 0 in style.windows else None,
        "attn_logit_softcapping": style.score_cap or None,
        "final_logit_softcapping": style.logit_cap or None,
        "rope_local_base_freq": style.local_rotary.theta if style.local_rotary else None,
        "attention_multiplier": style.score_scale,
        "embedding_multiplier": style.embedding_scale,
        "residual_multiplier": style.residual_scale,
        "logits_scaling": style.logit_divisor,
        "logit_scale": 1 / style.logit_divisor,
        "num_experts": experts.count if experts else None,
        "num_local_experts": experts.count if experts else None,
        "num_experts_per_tok": experts.top_k if experts else None,
        "moe_intermediate_size": experts.width if experts else None,
        "norm_topk_prob": experts.normalise if experts else None,
        "swiglu_limits_shared": [*style.limits, *[0.0] * further] if style.limits else None,
        "attention_value_scale": style.attention_scale if style.attention_scale != 1 else None,
        "q_lora_rank": (style.latent.query_rank or None) if style.latent else None,
        "kv_lora_rank": style.latent.kv_rank if style.latent else None,
        "llama_4_scaling_beta": config.rotary.query_growth or None,
        "rope_finetuned": not style.nope,
        "no_rope_layers": [not still for still in style.nope] or None,
        "shared_intermediate_size": config.intermediate_size,  # of experts see below
        **(_mixture(experts, further) if experts else _without_experts(config)),
    }


def _without_experts(config: ModelConfig) -> dict[str, Any]:
    """Return what dense models have in files of an architecture that is for mixtures."""
    return {
        "first_k_dense_replace": config.num_layers,
        "moe_intermediate_size": config.intermediate_size,
        "n_shared_experts": 0,
    }


def _mixture(experts: Experts, further: int) -> dict[str, Any]:
    """Return what only some mixtures have, beside so many MTP layers."""
    shared, limits = experts.shared or None, experts.limits
    dense = next((i for i, sparse in enumerate(experts.sparse) if sparse), len(experts.sparse))
    return {
        "moe_num_experts": experts.count,
        "moe_k": experts.top_k,
        "moe_topk": experts.top_k,
        "expert_selection_fn": 1 + experts.sigmoid,
        "n_routed_experts": experts.count,
        "moe_num_shared_experts": experts.shared // experts.width,
        "n_shared_experts": experts.shared // experts.width,
        "shared_intermediate_size": shared,
        "shared_expert_intermediate_size": shared,
        "moe_layer_interval": 1,
        "interleave_moe_layer_step": dense + 1,
        "moe_layer_start_index": dense,
        "first_k_dense_replace": dense,
        "routed_scaling_factor": experts.factor,
        "n_group": experts.groups,
        "topk_group": experts.kept_groups,
        "num_dense_layers": dense,
        "num_shared_experts": experts.shared // experts.width,
        "route_scale": experts.factor,
        "router_scaling_factor": experts.factor,
        "route_norm": experts.normalise,
        "moe_routed_scaling_factor": experts.factor,
        "moe_router_scaling_factor": experts.factor,
        "norm_expert_weight": experts.normalise,
        "share_expert_dim": shared,
        "swiglu_limits": [*limits, *[0.0] * further] if limits else None,
        "top_k_experts": experts.top_k,
        "moe_shared_expert_intermediate_size": shared,
        "moe_latent_size": experts.latent or None,
    }


def _rotary(config: ModelConfig) -> dict[str, Value]:
    rotary, scaling = config.rotary, config.rotary.scaling
    found: dict[str, Value] = {
        "rope.freq_base": rotary.theta,
        "rope.dimension_count": config.style.latent.rope_dim if config.style.latent else rotary_dim(config, rotary),
    }
    names = {"linear": {"factor": "factor"}, "yarn": YARN}.get(rotary.kind, {})
    if names:
        found["rope.scaling.type"] = rotary.kind
    for key, hf in names.items():
        if hf in scaling:
            length = hf == "original_max_position_embeddings"
            found[f"rope.scaling.{key}"] = int(scaling[hf]) if length else scaling[hf]
    if "mscale_all_dim" in scaling:
        # For latent attention llama.cpp has a tenth of it there.
        found["rope.scaling.yarn_log_multiplier"] = scaling["mscale_all_dim"] / (10 if config.style.latent else 1)
    if rotary.kind == "longrope":
        original = scaling["original_max_position_embeddings"]
        found["rope.scaling.original_context_length"] = int(original)
        # llama.cpp takes the scale on cosines and sines from here; computing it from the lengths gives the same.
        found["rope.scaling.attn_factor"] = math.sqrt(1 + math.log(max(scaling["factor"], 1)) / math.log(original))
    return found
