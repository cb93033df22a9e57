"""A model's config as the metadata of a GGUF file: what `checkpoints.gguf.config` reads, written.

What no key can express, such as `dynamic` scaling, is not checked here: the written file is read back.

Source: ggml's `docs/gguf.md` for the keys.
"""

import math
from typing import Any

import torch
from torch import Tensor

from parlay.checkpoints.gguf.config import EPS, SIZES, YARN
from parlay.checkpoints.gguf.families import FAMILIES, Family, family_for
from parlay.checkpoints.gguf.writer import Value
from parlay.errors import ModelError
from parlay.models.config import ModelConfig
from parlay.models.rotary import llama3_divisors, turning
from parlay.models.style import Experts


def family_to_write(config: ModelConfig) -> tuple[str, Family]:
    """Return a file's name of the model's architecture, and what is known of it.

    Raises:
        ModelError: files do not have it.
    """
    found = None if config.foreign is not None else family_for(config.architecture)
    if found is None or not found[1].written:
        written = (family for family in FAMILIES.values() if family.written)
        known = ", ".join(dict.fromkeys(name for f in written for name in (f.architecture, *f.also)))
        raise ModelError(
            f"{config.path}: parlay writes no GGUF files of {config.architecture}; it does of {known}, "
            "MistralForCausalLM, MixtralForCausalLM and Olmo3ForCausalLM"
        )
    return found


def metadata(config: ModelConfig) -> dict[str, Value]:
    """Return the keys that describe a model's shape.

    Raises:
        ModelError: files do not have its architecture, or llama.cpp would compute something else.
    """
    name, family = family_to_write(config)
    values = _values(config)
    supposed = "norm_topk_prob" in family.options.values() and family.fixed.get("norm_topk_prob", True)
    if values["norm_topk_prob"] is False and supposed:
        raise ModelError(f"{config.path}: norm_topk_prob=false cannot be written; who reads such files supposes true")
    keys = {**SIZES, **family.options}
    given = {key: values.get(hf) for key, hf in keys.items()}
    found = {key: value for key, value in given.items() if value not in (None, family.fixed.get(keys[key]))}
    if family.listed and config.style.windows:
        found["attention.sliding_window_pattern"] = [window > 0 for window in config.style.windows]
    if config.style.experts and (config.style.experts.sigmoid or family.latent):
        found["expert_gating_func"] = 1 + config.style.experts.sigmoid  # softmax or sigmoid
    if name == "phi3" and not config.style.windows:
        found["attention.sliding_window"] = 0  # which says that there is none
    found["attention.value_length"] = config.head_dim
    if (latent := config.style.latent) is not None:
        found["attention.value_length"] = latent.rank
        found["attention.key_length_mla"] = latent.query
        found["attention.value_length_mla"] = latent.value
        found["vocab_size"] = config.vocab_size
    found[EPS[family.layer_norms][0]] = config.rms_norm_eps
    return {f"{name}.{key}": value for key, value in {**found, **_rotary(config)}.items()}


def rotary_factors(config: ModelConfig) -> dict[str, Tensor]:
    """Return the tensors that scale rotary frequencies, float32."""
    rotary = config.rotary
    if rotary.kind == "longrope":
        factors = {"long": rotary.long_factor, "short": rotary.short_factor}
        return {f"rope_factors_{which}.weight": torch.tensor(values) for which, values in factors.items()}
    if rotary.kind == "llama3":
        return {"rope_freqs.weight": llama3_divisors(rotary, config.head_dim)}
    return {}


def _values(config: ModelConfig) -> dict[str, Any]:
    """Return a model's values, by the names of Hugging Face's configs; None is what it does not have."""
    style, experts = config.style, config.style.experts
    return {
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "intermediate_size": config.intermediate_size,
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
        "num_experts_per_tok": experts.chosen if experts else None,
        "moe_intermediate_size": experts.width if experts else None,
        "norm_topk_prob": experts.normalise if experts else None,
        "q_lora_rank": (style.latent.query_rank or None) if style.latent else None,
        "kv_lora_rank": style.latent.rank if style.latent else None,
        "llama_4_scaling_beta": config.rotary.query_growth or None,
        **(_mixture(experts) if experts else {}),
    }


def _mixture(experts: Experts) -> dict[str, Any]:
    """Return what only some mixtures have."""
    shared = experts.shared or None
    return {
        "moe_num_experts": experts.count,
        "moe_k": experts.chosen,
        "n_routed_experts": experts.count,
        "moe_num_shared_experts": experts.shared // experts.width,
        "n_shared_experts": experts.shared // experts.width,
        "shared_intermediate_size": shared,
        "shared_expert_intermediate_size": shared,
        "moe_layer_interval": 1,
        "moe_layer_start_index": experts.sparse.index(True),
        "first_k_dense_replace": experts.sparse.index(True),
        "routed_scaling_factor": experts.factor,
        "n_group": experts.groups,
        "topk_group": experts.kept_groups,
        "num_nextn_predict_layers": None,  # they are not written
    }


def _rotary(config: ModelConfig) -> dict[str, Value]:
    rotary, scaling = config.rotary, config.rotary.scaling
    found: dict[str, Value] = {
        "rope.freq_base": rotary.theta,
        "rope.dimension_count": config.style.latent.turning if config.style.latent else turning(config, rotary),
    }
    names = {"linear": {"factor": "factor"}, "yarn": YARN}.get(rotary.kind, {})
    if names:
        found["rope.scaling.type"] = rotary.kind
    for key, hf in names.items():
        if hf in scaling:
            length = hf == "original_max_position_embeddings"
            found[f"rope.scaling.{key}"] = int(scaling[hf]) if length else scaling[hf]
    if "mscale_all_dim" in scaling:
        # Of latent attention llama.cpp has a tenth there, for reasons of its own.
        found["rope.scaling.yarn_log_multiplier"] = scaling["mscale_all_dim"] / (10 if config.style.latent else 1)
    if rotary.kind == "longrope":
        original = scaling["original_max_position_embeddings"]
        found["rope.scaling.original_context_length"] = int(original)
        # llama.cpp takes the scale on cosines and sines from here; computing it from the lengths gives the same.
        found["rope.scaling.attn_factor"] = math.sqrt(1 + math.log(max(scaling["factor"], 1)) / math.log(original))
    return found
