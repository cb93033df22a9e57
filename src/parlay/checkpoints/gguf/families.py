"""What GGUF files call models: `general.architecture`, its keys and what is special about its tensors.

Source: llama.cpp's converters.
"""

from __future__ import annotations

from dataclasses import replace

from parlay.checkpoints.gguf.family import (
    DEEPSEEK_MOE,
    GATE,
    GRANITE,
    LAST_NORM,
    LATENT_RANKS,
    NEXT,
    WINDOW,
    WINDOWS,
    Family,
    mixture,
)
from parlay.checkpoints.gguf.hybrid_families import HYBRIDS
from parlay.checkpoints.gguf.reader import GGUFFile
from parlay.checkpoints.gguf.uneven_families import UNEVEN
from parlay.errors import ModelError

_LAST_NORMS = LAST_NORM | {"post_ffw_norm": "post_feedforward_layernorm"}
_GEMMA = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_SOFTCAPS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_GELU = {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}

_GEMMA4 = WINDOW | {
    "embedding_length_per_layer_input": "hidden_size_per_layer_input",
    "final_logit_softcapping": "final_logit_softcapping",
}
_FIXED4 = {"hidden_activation": "gelu_pytorch_tanh", "hidden_size_per_layer_input": 0}
_SCALAR = {"layer_output_scale.weight": "layer_scalar"}
_QWEN_MOE = mixture(weights_norm="norm_topk_prob")

FAMILIES = {
    "llama": Family("LlamaForCausalLM", interleaved=True, also=("InternLM3ForCausalLM",)),
    "granite": Family("GraniteForCausalLM", interleaved=True, options=GRANITE, also=("GraniteMoeHybridForCausalLM",)),
    "granitemoe": Family(
        "GraniteMoeForCausalLM",
        interleaved=True,
        options=GRANITE
        | mixture("num_local_experts", width=None, shared_feed_forward_length="shared_intermediate_size"),
        also=("GraniteMoeSharedForCausalLM",),
    ),
    "qwen2": Family("Qwen2ForCausalLM"),
    "qwen2moe": Family(
        "Qwen2MoeForCausalLM",
        options=mixture(shared_feed_forward_length="shared_expert_intermediate_size"),
    ),
    "qwen3": Family("Qwen3ForCausalLM"),
    "qwen3moe": Family("Qwen3MoeForCausalLM", options=_QWEN_MOE, fixed={"norm_topk_prob": True}),
    # The text models of files whose images are in another file.
    "qwen2vl": Family("Qwen2ForCausalLM"),
    "qwen3vl": Family("Qwen3ForCausalLM"),
    "qwen3vlmoe": Family("Qwen3MoeForCausalLM", options=_QWEN_MOE, fixed={"norm_topk_prob": True}),
    "smollm3": Family("SmolLM3ForCausalLM", interleaved=True),
    "mistral3": Family(
        "Ministral3ForCausalLM",
        interleaved=True,
        options={"attention.temperature_scale": "llama_4_scaling_beta"},
        fixed={"sliding_window": None},
    ),
    "seed_oss": Family("SeedOssForCausalLM", LAST_NORM),
    "ernie4_5": Family("Ernie4_5ForCausalLM"),
    "ernie4_5-moe": Family(
        "Ernie4_5_MoeForCausalLM",
        options=mixture(
            "moe_num_experts",
            "moe_k",
            shared_count="moe_num_shared_experts",
            shared_feed_forward_length="shared_intermediate_size",
        )
        | {
            "interleave_moe_layer_step": "moe_layer_interval",
            "leading_dense_block_count": "moe_layer_start_index",
        },
    ),
    "chatglm": Family(
        "GlmForCausalLM",
        {"ffn_up": "mlp.gate_up_proj"},
        fixed={"attention_bias": False},
        partial=True,
    ),
    "glm4": Family(
        "Glm4ForCausalLM",
        _GEMMA | {"ffn_up": "mlp.gate_up_proj"},
        fixed={"attention_bias": False},
        partial=True,
        refused=("rope.dimension_sections",),  # of GLM-4.1V, whose rotary rows are in halves
    ),
    "glm4moe": Family(
        "Glm4MoeForCausalLM",
        LAST_NORM,
        options=DEEPSEEK_MOE,
        fixed={"first_k_dense_replace": 0},
        partial=True,
        also=("SolarOpenForCausalLM",),
    ),
    "dots1": Family(
        "Dots1ForCausalLM",
        options=DEEPSEEK_MOE | WINDOW,
        fixed={"n_group": 1, "topk_group": 1, "sliding_window": None},
    ),
    "deepseek2": Family(
        "DeepseekV3ForCausalLM",
        options=DEEPSEEK_MOE | LATENT_RANKS,
        fixed={"n_group": 1, "topk_group": 1, "norm_topk_prob": False},
        also=("DeepseekV2ForCausalLM", "Glm4MoeLiteForCausalLM", "YoutuForCausalLM"),
        latent=True,
    ),
    "mistral4": Family(
        "Mistral4ForCausalLM",
        options={key: name for key, name in DEEPSEEK_MOE.items() if "group" not in key}
        | LATENT_RANKS
        | {"attention.temperature_scale": "llama_4_scaling_beta"},
        fixed={"norm_topk_prob": False},
        latent=True,
        joined_experts=True,
    ),
    "arcee": Family("ArceeForCausalLM", interleaved=True),
    "cohere2": Family(
        "Cohere2ForCausalLM",
        options=WINDOW | {"logit_scale": "logit_scale"},
        layer_norms=True,
    ),
    "apertus": Family(
        "ApertusForCausalLM",
        numbers={
            f"mlp.act_fn.{name}": (f"xielu.{name}", shape)
            for name, shape in (("alpha_p", (1,)), ("alpha_n", (1,)), ("beta", ()), ("eps", ()))
        },
    ),
    "hunyuan-dense": Family("HunYuanDenseV1ForCausalLM"),
    "hunyuan-moe": Family("HunYuanMoEV1ForCausalLM", options=mixture(chosen="moe_topk")),
    "minimax-m2": Family(
        "MiniMaxM2ForCausalLM",
        options=mixture("num_local_experts", width="intermediate_size"),
        partial=True,
    ),
    "olmo2": Family("Olmo2ForCausalLM", _LAST_NORMS),
    "olmoe": Family("OlmoeForCausalLM", options=mixture(width=None)),
    "exaone4": Family(
        "Exaone4ForCausalLM",
        _LAST_NORMS,
        options=WINDOWS,
        fixed={"sliding_window": None},
        listed=True,
    ),
    "exaone-moe": Family(
        "ExaoneMoeForCausalLM",
        options=WINDOWS
        | mixture(
            shared_count="num_shared_experts",
            weights_scale="routed_scaling_factor",
            weights_norm="norm_topk_prob",
        )
        | {"leading_dense_block_count": "first_k_dense_replace"}
        | NEXT,
        fixed={"sliding_window": None},
        listed=True,
    ),
    "mellum": Family(
        "MellumForCausalLM",
        options=mixture("num_local_experts") | WINDOWS | {"rope.freq_base_swa": "rope_local_base_freq"},
        fixed={"sliding_window": None},
        listed=True,
    ),
    "afmoe": Family(
        "AfmoeForCausalLM",
        _GEMMA | GATE,
        options=WINDOW
        | mixture(shared_count="num_shared_experts", weights_scale="route_scale", weights_norm="route_norm")
        | {
            "leading_dense_block_count": "num_dense_layers",
            "attention.sliding_window_pattern": "sliding_window_pattern",
        },
        fixed={"sliding_window": None, "mup_enabled": True},
        listed=True,
    ),
    "granite_swa": Family(
        "GraniteSWAForCausalLM",
        interleaved=True,
        options=GRANITE | WINDOWS | {"attention.rope_pattern": "no_rope_layers"},
        listed=True,
    ),
    "muse-glimmer": Family(
        "MuseGlimmerForCausalLM",
        _GEMMA | GATE,
        interleaved=True,
        norm_offset=1.0,
        final_offset=False,
        options=WINDOWS | {"final_logit_softcapping": "final_logit_softcapping", "logit_scale": "output_multiplier"},
        listed=True,
        query_scale="qk_scale_factor",
        exportable=False,
    ),
    "gpt-oss": Family(
        "GptOssForCausalLM",
        LAST_NORM,
        options=mixture("num_local_experts", width="intermediate_size") | WINDOWS,
        listed=True,
        scaling={"truncate": False},
    ),
    "phi3": Family(
        "Phi3ForCausalLM",
        {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
        options=WINDOW,
        partial=True,
    ),
    "gemma4": Family(
        "Gemma4ForCausalLM",
        _GEMMA
        | {
            f"{name}_norm_2": f"{own}_feedforward_layernorm_2"
            for name, own in (("pre_ffw", "pre"), ("post_ffw", "post"))
        }
        | {
            "post_ffw_norm_1": "post_feedforward_layernorm_1",
            "inp_gate": "per_layer_input_gate",
            "proj": "per_layer_projection",
            "post_norm": "post_per_layer_input_norm",
        },
        options=_GEMMA4
        | mixture("num_experts", "top_k_experts", feed_forward_length="moe_intermediate_size")
        | {"attention.shared_kv_layers": "num_kv_shared_layers"},
        fixed=_FIXED4,
        heads_vary_by_window=True,
        whole=_SCALAR | {"ffn_gate_inp.scale": "router.scale", "ffn_down_exps.scale": "router.per_expert_scale"},
        outer={
            "per_layer_token_embd": "model.embed_tokens_per_layer",
            "per_layer_model_proj": "model.per_layer_model_projection",
            "per_layer_proj_norm": "model.per_layer_projection_norm",
        },
        also=("Gemma4UnifiedForCausalLM",),
        tokenizer_kind="gemma4",
        joined_experts=True,
    ),
    "gemma4-assistant": Family(
        "Gemma4AssistantForCausalLM",
        _GEMMA,
        options=_GEMMA4 | {"embedding_length_out": "backbone_hidden_size"},
        fixed=_FIXED4,
        heads_vary_by_window=True,
        whole=_SCALAR,
        outer={f"nextn.{name}_projection": f"{name}_projection" for name in ("pre", "post")},
        exportable=False,
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        _GEMMA,
        norm_offset=1.0,
        options=WINDOW | _SOFTCAPS,
        fixed=_GELU,
        wide_layers=46,
    ),
    "gemma3": Family(
        "Gemma3ForCausalLM",
        _GEMMA,
        norm_offset=1.0,
        options=WINDOW
        | {
            "rope.freq_base_swa": "rope_local_base_freq",
            "attention.sliding_window_pattern": "sliding_window_pattern",
            "final_logit_softcapping": "final_logit_softcapping",
        },
        fixed=_GELU
        | {
            "model_type": "gemma3_text",
            "rope_local_base_freq": 10000.0,
            "sliding_window": None,
            "sliding_window_pattern": 6,
        },
        wide_layers=62,
    ),
    **UNEVEN,
    **HYBRIDS,
}
_SOFTMAX = 1  # a router's, among the values of `expert_gating_func`

# Draft heads, which are no models by themselves.
DRAFTER = "dflash"
DRAFTERS = {DRAFTER: Family("DFlashDraftModel", partial=True)}

# Families under a name that others have too; they are recognised by further keys or tensors.
_OLMO3 = Family("Olmo3ForCausalLM", _LAST_NORMS, options=WINDOWS, listed=True)
_MISTRAL = Family("MistralForCausalLM", interleaved=True, options=WINDOW)
_GRANITE_MOE_SWA = Family(
    "GraniteMoeSWAForCausalLM",
    {"ffn_up_shexp": "mlp.shared_expert.gate_up_proj"},
    interleaved=True,
    options=FAMILIES["granite_swa"].options
    | mixture("num_local_experts", width=None, shared_feed_forward_length="shared_intermediate_size"),
    listed=True,
    exportable=False,
)
_MIXTRAL = Family("MixtralForCausalLM", interleaved=True, options=WINDOW | mixture("num_local_experts", width=None))


def family_for(architecture: str, *, recurrent: bool = False, experts: bool = False) -> tuple[str, Family] | None:
    """Return what files call a class of Hugging Face's, and what is known of it, if they are written.

    Args:
        architecture: name of the class.
        recurrent: whether the model has recurrent layers.
        experts: whether it has experts.
    """
    families = [*HYBRIDS.items(), *FAMILIES.items(), ("llama", _MISTRAL), ("llama", _MIXTRAL), ("olmo2", _OLMO3)]
    found = (
        (name, family)
        for name, family in families
        if architecture in (family.architecture, *family.also)
        and family.exportable
        and (recurrent or not family.recurrent)
        and ("expert_count" in family.options or not experts)
    )
    return next(found, None)


def family_of(file: GGUFFile) -> tuple[str, Family]:
    """Return what the file calls its model's architecture, and what is known of it."""
    name = file.text("general.architecture")
    if name in DRAFTERS:
        return name, DRAFTERS[name]
    if name not in FAMILIES:
        raise ModelError(f"{file.path}: the architecture {name!r} is not supported; {', '.join(FAMILIES)} are")
    if name == "llama" and size_of(file, "llama.expert_count", 0):
        return name, _MIXTRAL
    if name == "granite_swa" and size_of(file, "granite_swa.expert_count", 0):
        return name, _GRANITE_MOE_SWA
    if name == "llama" and "llama.attention.sliding_window" in file:
        return name, _MISTRAL
    if name == "olmo2" and "olmo2.attention.sliding_window" in file:
        return name, _OLMO3
    biased = any(stored.endswith("exp_probs_b.bias") for stored in file.tensors)
    if name == "deepseek2" and not biased and file.integer("deepseek2.expert_gating_func", _SOFTMAX) == _SOFTMAX:
        return name, replace(FAMILIES[name], architecture="DeepseekV2ForCausalLM")
    if name == "mistral3" and "mistral3.attention.temperature_scale" not in file:  # Mistral Small and its kin
        return name, FAMILIES["llama"]
    return name, FAMILIES[name]


def size_of(file: GGUFFile, key: str, default: int | None = None) -> int:
    """Return a size that may be stored once, or once per layer; 0 for layers that have none of its kind."""
    if not file.is_array(key):
        return file.integer(key, default)
    values = set(file.numbers(key)) - {0} or {0}
    if len(values) != 1 or not isinstance(min(values), int):
        raise ModelError(f"{file.path}: {key} differs from layer to layer, which is not supported")
    return int(values.pop())
