"""What GGUF files call models: `general.architecture`, its keys and what is special about its tensors.

Source: llama.cpp's converters.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from parlay.checkpoints.gguf.reader import GGUFFile
from parlay.errors import ModelError

_LAST_NORM = {"post_attention_norm": "post_attention_layernorm"}  # in place of `ffn_norm`
_LAST_NORMS = _LAST_NORM | {"post_ffw_norm": "post_feedforward_layernorm"}
_GEMMA = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
# Frequencies of rotary scaling: the config tells of them.


@dataclass(frozen=True, slots=True)
class Family:
    """One of `general.architecture`'s values.

    Attributes:
        architecture: the class's name at Hugging Face.
        inner: a layer's tensors that are named otherwise than most families' are.
        interleaved: rotary rows of queries and keys come in pairs where the class has halves.
        norm_offset: what was added to the weights of norms.
        options: config keys by the metadata's, beside those that all families have.
        fixed: what every model of the family has unless the file says otherwise.
        wide_layers: the number of layers of the one model whose queries are scaled by hidden size over heads.
        partial: a part of a head's columns may turn.
        listed: which layers have a window is written as a list.
        scaling: what the class has beside what files say of rotary scaling.
        also: further classes that are written as this architecture.
        layer_norms: norms subtract the mean, and their key is another.
        refused: keys of files whose numbers mean something else.
        latent: the model has latent attention, and sizes of its own.
        recurrent: what `layer_types` calls the layers that are no attention; empty where all are.
        alone: a layer is one of those, attention, a network or experts alone.
        varied: heads differ between layers with a window and those without.
        value: config key for the width of a recurrent head's values.
        whole: further tensors of a layer, by their whole names in it.
        squeezed: endings of names of tensors without their middle dimension of one.
        flat: endings of names of vectors that are stored as matrices.
        outer: tensors outside of layers that are named otherwise than most families' are.
        written: whether `export` writes it.
    """

    architecture: str
    inner: dict[str, str] = field(default_factory=dict)
    interleaved: bool = False
    norm_offset: float = 0.0
    options: dict[str, str] = field(default_factory=dict)
    fixed: dict[str, Any] = field(default_factory=dict)
    wide_layers: int | None = None
    partial: bool = False
    listed: bool = False
    scaling: dict[str, Any] = field(default_factory=dict)
    also: tuple[str, ...] = ()
    layer_norms: bool = False
    refused: tuple[str, ...] = ()
    latent: bool = False
    recurrent: str = ""
    alone: bool = False
    varied: bool = False
    value: str = ""
    whole: dict[str, str] = field(default_factory=dict)
    squeezed: tuple[str, ...] = ()
    flat: tuple[str, ...] = ()
    outer: dict[str, str] = field(default_factory=dict)
    written: bool = True

    def offset(self, name: str) -> float:
        """Return what was added to a tensor: to the weights of norms, but not of those of recurrent layers."""
        return self.norm_offset if "norm" in name and "linear_attn" not in name else 0.0


_WINDOW = {"attention.sliding_window": "sliding_window"}
_SOFTCAPS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_GELU = {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}

_GEMMA4 = _WINDOW | {
    "embedding_length_per_layer_input": "hidden_size_per_layer_input",
    "final_logit_softcapping": "final_logit_softcapping",
}
_FIXED4 = {"hidden_activation": "gelu_pytorch_tanh", "hidden_size_per_layer_input": 0}
_SCALAR = {"layer_output_scale.weight": "layer_scalar"}
_WINDOWS = _WINDOW | {"attention.sliding_window_pattern": "sliding_window_pattern"}
_GRANITE = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}


def _mixture(count: str = "num_experts", chosen: str = "num_experts_per_tok", **more: str) -> dict[str, str]:
    """Return the options of a mixture: how a class calls them, further ones by their keys without `expert_`."""
    return {"expert_count": count, "expert_used_count": chosen, **{f"expert_{key}": hf for key, hf in more.items()}}


_QWEN_MOE = _mixture(feed_forward_length="moe_intermediate_size", weights_norm="norm_topk_prob")
_DEEPSEEK_MOE = _mixture(
    "n_routed_experts",
    feed_forward_length="moe_intermediate_size",
    shared_count="n_shared_experts",
    weights_scale="routed_scaling_factor",
    weights_norm="norm_topk_prob",
    group_count="n_group",
    group_used_count="topk_group",
) | {
    "leading_dense_block_count": "first_k_dense_replace",
    "nextn_predict_layers": "num_nextn_predict_layers",
}

_CONVOLUTION = {
    "shortconv.conv": "conv.conv",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.out_proj": "conv.out_proj",
}
_DELTA_NET = _LAST_NORM | {
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
_DELTA_OPTIONS = {
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
    "nextn_predict_layers": "num_nextn_predict_layers",
}
_MAMBA = {"in": "in_proj", "conv1d": "conv1d", "norm": "norm", "out": "out_proj"}
_SPACES = {"ssm_a": "mamba.A_log", "ssm_d": "mamba.D", "ssm_dt.bias": "mamba.dt_bias"}
_SHARED = {"shared_feed_forward_length": "shared_expert_intermediate_size"}


def _delta_nets(architecture: str, options: dict[str, str], **fixed: Any) -> Family:
    return Family(
        architecture,
        _DELTA_NET,
        norm_offset=1.0,
        options=_DELTA_OPTIONS | options,
        fixed={"linear_rates": True, **fixed},
        partial=True,
        recurrent="linear_attention",
        value="linear_value_head_dim",
        whole={"ssm_a": "linear_attn.A_log", "ssm_dt.bias": "linear_attn.dt_bias"},
        squeezed=("conv1d.weight",),
        written=False,
    )


def _convolutions(architecture: str, options: dict[str, str]) -> Family:
    return Family(
        architecture,
        _CONVOLUTION,
        options=options | {"shortconv.l_cache": "conv_L_cache"},
        fixed={"block_auto_adjust_ff_dim": False},
        recurrent="conv",
        squeezed=("conv.conv.weight",),
        outer={"token_embd_norm": "model.norm"},
        written=False,
    )


def _nemotron(options: dict[str, str]) -> Family:
    return Family(
        "NemotronHForCausalLM",
        {f"ssm_{own}": f"mamba.{name}" for own, name in _MAMBA.items()},
        options=options
        | {
            "ssm.conv_kernel": "conv_kernel",
            "ssm.state_size": "ssm_state_size",
            "ssm.group_count": "n_groups",
            "ssm.time_step_rank": "mamba_num_heads",
            "nextn_predict_layers": "num_nextn_predict_layers",
        },
        fixed={"linear_rates": True},
        recurrent="mamba",
        alone=True,
        value="mamba_head_dim",
        whole=_SPACES,
        squeezed=("mamba.conv1d.weight",),
        flat=("mamba.A_log", "mamba.D", "mamba.norm.weight"),
        written=False,
    )


FAMILIES = {
    "llama": Family("LlamaForCausalLM", interleaved=True),
    "granite": Family(
        "GraniteForCausalLM", interleaved=True, options=_GRANITE, also=("GraniteMoeHybridForCausalLM",)
    ),
    "granitemoe": Family(
        "GraniteMoeForCausalLM",
        interleaved=True,
        options=_GRANITE | _mixture("num_local_experts", shared_feed_forward_length="shared_intermediate_size"),
        also=("GraniteMoeSharedForCausalLM",),
    ),
    "granitehybrid": Family(
        "GraniteMoeHybridForCausalLM",
        {f"ssm_{own}": f"mamba.{name}" for own, name in _MAMBA.items()},
        interleaved=True,
        options=_GRANITE
        | _mixture("num_local_experts", shared_feed_forward_length="shared_intermediate_size")
        | {
            "ssm.conv_kernel": "mamba_d_conv",
            "ssm.state_size": "mamba_d_state",
            "ssm.group_count": "mamba_n_groups",
            "ssm.time_step_rank": "mamba_n_heads",
            "rope.scaling.finetuned": "rope_finetuned",
        },
        fixed={"linear_rates": True, "rope_finetuned": True, "num_local_experts": 0},
        recurrent="mamba",
        value="mamba_d_head",
        whole=_SPACES,
        squeezed=("mamba.conv1d.weight",),
        flat=("mamba.A_log", "mamba.D", "mamba.norm.weight"),
        written=False,
    ),
    "falcon-h1": Family(
        "FalconH1ForCausalLM",
        {f"ssm_{own}": f"mamba.{name}" for own, name in _MAMBA.items()},
        options={
            "ssm.conv_kernel": "mamba_d_conv",
            "ssm.state_size": "mamba_d_state",
            "ssm.group_count": "mamba_n_groups",
            "ssm.time_step_rank": "mamba_n_heads",
            "ssm.inner_size": "mamba_d_ssm",
        },
        fixed={"linear_rates": True, "mamba_norm_before_gate": False},  # the class's factors are in the weights
        whole=_SPACES | {"ffn_norm": "post_attention_layernorm.weight"},
        squeezed=("mamba.conv1d.weight",),
        flat=("mamba.A_log", "mamba.D", "mamba.norm.weight"),
        written=False,
    ),
    "nemotron_h": _nemotron({}),
    "nemotron_h_moe": _nemotron(
        _mixture(
            "n_routed_experts",
            feed_forward_length="moe_intermediate_size",
            shared_feed_forward_length="moe_shared_expert_intermediate_size",
            weights_scale="routed_scaling_factor",
            weights_norm="norm_topk_prob",
            group_count="n_group",
        )
        | {"moe_latent_size": "moe_latent_size"}
    ),
    "qwen2": Family("Qwen2ForCausalLM"),
    "qwen2moe": Family(
        "Qwen2MoeForCausalLM",
        options=_mixture(
            feed_forward_length="moe_intermediate_size",
            shared_feed_forward_length="shared_expert_intermediate_size",
        ),
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
    "seed_oss": Family("SeedOssForCausalLM", _LAST_NORM),
    "ernie4_5": Family("Ernie4_5ForCausalLM"),
    "ernie4_5-moe": Family(
        "Ernie4_5_MoeForCausalLM",
        options=_mixture(
            "moe_num_experts",
            "moe_k",
            feed_forward_length="moe_intermediate_size",
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
        _LAST_NORM,
        options=_DEEPSEEK_MOE,
        partial=True,
    ),
    "deepseek2": Family(
        "DeepseekV3ForCausalLM",
        options=_DEEPSEEK_MOE | {"attention.q_lora_rank": "q_lora_rank", "attention.kv_lora_rank": "kv_lora_rank"},
        fixed={"n_group": 1, "topk_group": 1, "norm_topk_prob": False},
        also=("DeepseekV2ForCausalLM", "Glm4MoeLiteForCausalLM"),
        latent=True,
    ),
    "kimi-linear": Family(
        "KimiLinearForCausalLM",
        {
            "ssm_norm": "self_attn.o_norm",
            "ssm_beta": "self_attn.b_proj",
            **{f"ssm_{x}": f"self_attn.{x}_proj" for x in ("f_a", "f_b", "g_a", "g_b")},
            **{f"ssm_conv1d_{x}": f"self_attn.{x}_conv1d" for x in "qkv"},
        },
        options=_DEEPSEEK_MOE
        | {
            "attention.q_lora_rank": "q_lora_rank",
            "attention.kv_lora_rank": "kv_lora_rank",
            "ssm.conv_kernel": "linear_conv_kernel_dim",
            "kda.head_dim": "linear_head_dim",
            "attention.head_count": "linear_num_heads",
        },
        fixed={"n_group": 1, "topk_group": 1, "norm_topk_prob": True, "linear_rates": True},
        latent=True,
        recurrent="linear_attention",
        whole={"ssm_a": "self_attn.A_log", "ssm_dt.bias": "self_attn.dt_bias"},
        flat=("self_attn.A_log", *(f"self_attn.{x}_conv1d.weight" for x in "qkv")),
        written=False,
    ),
    "lfm2": _convolutions("Lfm2ForCausalLM", {}),
    "lfm2moe": _convolutions(
        "Lfm2MoeForCausalLM",
        _mixture(feed_forward_length="moe_intermediate_size", weights_scale="routed_scaling_factor")
        | {"leading_dense_block_count": "num_dense_layers"},
    ),
    "qwen35": _delta_nets("Qwen3_5ForCausalLM", {}, linear_heads_tiled=True),
    "qwen35moe": _delta_nets(
        "Qwen3_5MoeForCausalLM",
        _mixture(feed_forward_length="moe_intermediate_size", **_SHARED),
        linear_heads_tiled=True,
    ),
    "qwen3next": _delta_nets(
        "Qwen3NextForCausalLM",
        _mixture(feed_forward_length="moe_intermediate_size", **_SHARED),
        linear_rows_apart=True,
    ),
    "arcee": Family("ArceeForCausalLM", interleaved=True),
    "cohere2": Family(
        "Cohere2ForCausalLM",
        options=_WINDOW | {"logit_scale": "logit_scale"},
        layer_norms=True,
    ),
    "hunyuan-dense": Family("HunYuanDenseV1ForCausalLM"),
    "minimax-m2": Family(
        "MiniMaxM2ForCausalLM",
        options=_mixture("num_local_experts", feed_forward_length="intermediate_size"),
        partial=True,
    ),
    "olmo2": Family("Olmo2ForCausalLM", _LAST_NORMS),
    "olmoe": Family("OlmoeForCausalLM", options=_mixture()),
    "exaone4": Family(
        "Exaone4ForCausalLM",
        _LAST_NORMS,
        options=_WINDOWS,
        fixed={"sliding_window": None},
        listed=True,
    ),
    "mellum": Family(
        "MellumForCausalLM",
        options=_mixture("num_local_experts", feed_forward_length="moe_intermediate_size")
        | _WINDOWS
        | {"rope.freq_base_swa": "rope_local_base_freq"},
        fixed={"sliding_window": None},
        listed=True,
    ),
    "gpt-oss": Family(
        "GptOssForCausalLM",
        _LAST_NORM,
        options=_mixture("num_local_experts", feed_forward_length="intermediate_size") | _WINDOWS,
        listed=True,
        scaling={"truncate": False},
    ),
    "phi3": Family(
        "Phi3ForCausalLM",
        {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
        options=_WINDOW,
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
        | _mixture("num_experts", "top_k_experts", feed_forward_length="moe_intermediate_size")
        | {"attention.shared_kv_layers": "num_kv_shared_layers"},
        fixed=_FIXED4,
        varied=True,
        whole=_SCALAR | {"ffn_gate_inp.scale": "router.scale", "ffn_down_exps.scale": "router.per_expert_scale"},
        outer={
            "per_layer_token_embd": "model.embed_tokens_per_layer",
            "per_layer_model_proj": "model.per_layer_model_projection",
            "per_layer_proj_norm": "model.per_layer_projection_norm",
        },
        written=False,
    ),
    "gemma4-assistant": Family(
        "Gemma4AssistantForCausalLM",
        _GEMMA,
        options=_GEMMA4 | {"embedding_length_out": "backbone_hidden_size"},
        fixed=_FIXED4,
        varied=True,
        whole=_SCALAR,
        outer={f"nextn.{name}_projection": f"{name}_projection" for name in ("pre", "post")},
        written=False,
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        _GEMMA,
        norm_offset=1.0,
        options=_WINDOW | _SOFTCAPS,
        fixed=_GELU,
        wide_layers=46,
    ),
    "gemma3": Family(
        "Gemma3ForCausalLM",
        _GEMMA,
        norm_offset=1.0,
        options=_WINDOW
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
}
_SOFTMAX = 1  # a router's, among the values of `expert_gating_func`

# Three more under names that others have too; they are known by what they have beside.
_OLMO3 = Family("Olmo3ForCausalLM", _LAST_NORMS, options=_WINDOWS, listed=True)
_MISTRAL = Family("MistralForCausalLM", interleaved=True, options=_WINDOW)
_MIXTRAL = Family("MixtralForCausalLM", interleaved=True, options=_WINDOW | _mixture("num_local_experts"))


def family_for(architecture: str) -> tuple[str, Family] | None:
    """Return what files call the architecture of a class of Hugging Face's, and what is known of it, if they do."""
    families = [*FAMILIES.items(), ("llama", _MISTRAL), ("llama", _MIXTRAL), ("olmo2", _OLMO3)]
    found = ((name, family) for name, family in families if architecture in (family.architecture, *family.also))
    return next(found, None)


def family_of(file: GGUFFile) -> tuple[str, Family]:
    """Return what the file calls its model's architecture, and what is known of it."""
    name = file.text("general.architecture")
    if name not in FAMILIES:
        raise ModelError(f"{file.path}: the architecture {name!r} is not served; {', '.join(FAMILIES)} are")
    if name == "llama" and size_of(file, "llama.expert_count", 0):
        return name, _MIXTRAL
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
    """Return a size that may be stored once, or once a layer; 0 for layers that have none of its kind."""
    if not file.is_array(key):
        return file.integer(key, default)
    values = set(file.numbers(key)) - {0} or {0}
    if len(values) != 1 or not isinstance(min(values), int):
        raise ModelError(f"{file.path}: {key} differs from layer to layer, which is not served")
    return int(values.pop())
