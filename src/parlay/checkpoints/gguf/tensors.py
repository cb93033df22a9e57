"""What a GGUF file calls its tensors, in the words of `models.decoder`, which are mostly Hugging Face's.

Source: llama.cpp's converters for what happens to weights on the way into a file, which is undone here: Llama's
rotary rows are interleaved, Gemma's norms are stored plus one, experts are stacked.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parlay.checkpoints.gguf.parts import GGUFModel
from parlay.checkpoints.gguf.reader import GGUFFile, TensorInfo
from parlay.checkpoints.quantised.layers import StoredShape
from parlay.errors import ModelError
from parlay.weights.kinds import READ_AS, Kind

if TYPE_CHECKING:
    from torch import Tensor

    from parlay.weights.weight import Weight

MAX_EXPERTS = 1 << 10  # a layer; twice what any model has

_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_inp_shexp": "mlp.shared_expert.gate",
    **{f"ffn_{x}_shexp": f"mlp.shared_expert.{x}_proj" for x in ("gate", "up", "down")},
}
# A layer's tensors that are stacked, one an expert; `{}` stands for its number.
_EXPERTS = {f"ffn_{x}_exps": f"mlp.experts.{{}}.{x}_proj" for x in ("gate", "up", "down")}
# Those whose names end otherwise.
_WHOLE = {"attn_sinks.weight": "self_attn.sinks", "exp_probs_b.bias": "mlp.gate.e_score_correction_bias"}
_LAST_NORM = {"post_attention_norm": "post_attention_layernorm"}  # in place of `ffn_norm`
_LAST_NORMS = _LAST_NORM | {"post_ffw_norm": "post_feedforward_layernorm"}
_GEMMA = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
# Frequencies of rotary scaling: the config tells of them.
ROTARY = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


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


@dataclass(frozen=True, slots=True)
class Place:
    """Where one of the decoder's tensors is.

    Attributes:
        name: of the file's tensor.
        index: of the tensor in a stack.
        rows: that it has of a tensor that holds several, behind one another.
    """

    name: str
    index: int | None = None
    rows: tuple[int, int] | None = None


class GGUFWeights:
    """The tensors of a GGUF file under the decoder's names; offers what a safetensors file does."""

    def __init__(self, path: Path) -> None:
        """Open a model's file, or all of its parts, and check headers.

        Raises:
            ModelError: it cannot be read, is damaged, or holds a model that is not served.
        """
        self._file = GGUFModel(path)
        self._name, self._family = family_of(self._file)
        self._names: dict[str, Place] = {}
        heads = _heads_of(self._file, self._name)
        for stored in self._file.tensors.values():
            if stored.name not in ROTARY:
                self._names |= _names_of(stored, self._family, heads)
        # Absorbed keys and values, each of which has heads as a dimension: together they are one matrix of the class.
        self._joined = {
            f"model.layers.{stored.name.split('.')[1]}.self_attn.kv_b_proj.weight": stored.name
            for stored in self._file.tensors.values()
            if self._family.latent and stored.name.endswith(".attn_k_b.weight") and len(stored.shape) == 3
        }
        for name, keys in self._joined.items():
            values = self._file.tensors.get(keys.replace("attn_k_b", "attn_v_b"))
            if values is None or len(values.shape) != 3 or values.shape[0] != self._file.tensors[keys].shape[0]:
                raise ModelError(f"{path}: {keys!r} has no matrix of values beside it for each of its heads")
            for own in (keys, values.name):
                self._names.pop(own, None)
            self._names[name] = Place(keys)

    def keys(self) -> list[str]:
        """Return the tensors' names."""
        return list(self._names)

    def get_slice(self, name: str) -> StoredShape:
        """Return what knows a tensor's shape without reading it."""
        place = self._names[name]
        if name in self._joined:
            heads, rank, content = self._file.tensors[place.name].shape
            value = self._file.tensors[place.name.replace("attn_k_b", "attn_v_b")].shape[1]
            return StoredShape([heads * (content + value), rank])
        shape = list(self._file.tensors[place.name].shape[0 if place.index is None else 1 :])
        if name.endswith(self._family.squeezed):
            shape.insert(1, 1)
        if name.endswith(self._family.flat):
            shape = [math.prod(shape)]
        if place.rows is not None:
            shape[0] = len(range(shape[0])[slice(*place.rows)])
        return StoredShape(shape)

    def get_tensor(self, name: str) -> Tensor:
        """Return a tensor as Hugging Face's class would have it; what was quantised comes as float32."""
        place = self._names[name]
        if name in self._joined:
            return self._absorbed(place.name)
        tensor = self._file.read(place.name, place.index)
        tensor = self._halved(name, tensor if place.rows is None else tensor[slice(*place.rows)].contiguous())
        if name.endswith(self._family.squeezed):
            tensor = tensor[:, None]
        if name.endswith(self._family.flat):
            tensor = tensor.reshape(-1)
        return tensor - offset if (offset := self._family.offset(name)) else tensor

    def head_kinds(self, name: str) -> tuple[Kind, Kind] | None:
        """Return how a latent's keys and values are stored, where each head has matrices of its own."""
        if name not in self._joined:
            return None
        keys = self._joined[name]
        return self._file.tensors[keys].kind, self._file.tensors[keys.replace("attn_k_b", "attn_v_b")].kind

    def get_head(self, name: str, head: int, *, values: bool) -> Weight:
        """Return a head's values, `[value, rank]`, or keys, `[rank, content]`, as they are stored in blocks."""
        keys = self._joined[name]
        return self._file.read_blocks(keys.replace("attn_k_b", "attn_v_b") if values else keys, head)

    def _absorbed(self, keys: str) -> Tensor:
        """Return keys and values of a latent as one matrix, `[heads * (content + value), rank]`."""
        import torch

        parts = self._file.read(keys).transpose(1, 2), self._file.read(keys.replace("attn_k_b", "attn_v_b"))
        if parts[0].shape[2] != parts[1].shape[2]:
            raise ModelError(
                f"{self._file.path}: {keys!r} and the values beside it are of latents of different widths"
            )
        whole = torch.cat([part.float() if parts[0].dtype != parts[1].dtype else part for part in parts], dim=1)
        return whole.reshape(-1, whole.shape[2])

    def kind(self, name: str) -> Kind:
        """Return how a tensor is stored."""
        kind = self._file.tensors[self._names[name].name].kind
        return READ_AS.get(kind, kind)

    def get_blocks(self, name: str) -> Weight:
        """Return a matrix of blocks as Hugging Face's class would have it, as it is stored."""
        from parlay.weights.weight import Part, Weight

        place = self._names[name]
        stored = self._file.read_blocks(place.name, place.index)
        stored = stored if place.rows is None else stored.outputs(*place.rows)
        return Weight(tuple(Part(part.kind, self._halved(name, part.data)) for part in stored.parts))

    def _halved(self, name: str, tensor: Tensor) -> Tensor:
        """Return a tensor whose rotary rows come in halves, not in pairs."""
        heads = self._heads(name) if self._family.interleaved else None
        if heads is None:
            return tensor
        if tensor.shape[0] % (2 * heads):
            raise ModelError(
                f"{self._file.path}: tensor {self._names[name].name!r} has {tensor.shape[0]} rows, which are not "
                f"{heads} heads of pairs; the file is damaged"
            )
        pairs = tensor.reshape(heads, -1, 2, *tensor.shape[1:])
        return pairs.transpose(1, 2).reshape(tensor.shape)

    def __enter__(self) -> GGUFWeights:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.__exit__(*error)

    def _heads(self, name: str) -> int | None:
        """Return how many heads a tensor's rows belong to, where they are rotated."""
        heads = size_of(self._file, f"{self._name}.attention.head_count")
        if ".q_proj." in name:
            return heads
        if ".k_proj." in name:
            return size_of(self._file, f"{self._name}.attention.head_count_kv", heads)
        return None


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


def _heads_of(file: GGUFFile, name: str) -> tuple[int, int]:
    """Return how many rows queries have, and keys and values each."""
    heads = size_of(file, f"{name}.attention.head_count")
    width = size_of(file, f"{name}.attention.key_length", size_of(file, f"{name}.embedding_length") // max(heads, 1))
    return heads * width, size_of(file, f"{name}.attention.head_count_kv", heads) * width


def _names_of(stored: TensorInfo, family: Family, heads: tuple[int, int]) -> dict[str, Place]:
    """Return the decoder's name of a tensor, or of each one that it holds, and where it is.

    An unknown one keeps its own name, and is a leftover to the loader.
    """
    if (whole := re.fullmatch(r"blk\.(0|[1-9][0-9]{0,5})\.(.+)", stored.name)) and whole[2] in family.whole:
        return {f"model.layers.{whole[1]}.{family.whole[whole[2]]}": Place(stored.name)}
    layer = re.fullmatch(
        r"blk\.(0|[1-9][0-9]{0,5})\.((?:nextn\.|shortconv\.)?[a-z_0-9]+)\.(weight|bias)", stored.name
    )
    if not layer:
        part, _, kind = stored.name.partition(".")
        outer = _OUTER | family.outer
        return {f"{outer[part]}.{kind}" if part in outer else stored.name: Place(stored.name)}
    index, part, kind = layer.groups()
    prefix = f"model.layers.{index}."
    vector = _WHOLE.get(f"{part}.{kind}") or (f"{_INNER[part]}.{kind}" if part == "ffn_gate_inp_shexp" else "")
    if vector:  # which converters may leave as a matrix of one row
        return {prefix + vector: Place(stored.name, 0 if len(stored.shape) == 2 and stored.shape[0] == 1 else None)}
    dimensions = 3 if kind == "weight" else 2
    if part in _EXPERTS and len(stored.shape) == dimensions and stored.shape[0] <= MAX_EXPERTS:
        names = [f"{prefix}{_EXPERTS[part].format(e)}.{kind}" for e in range(stored.shape[0])]
        return {name: Place(stored.name, e) for e, name in enumerate(names)}
    # What llama.cpp's converter puts behind one another with --fuse-qkv and --fuse-gate-up-exps.
    q, kv = heads
    if part == "attn_qkv" and part not in family.inner and stored.shape[0] == q + 2 * kv:
        found = {}
        for letter, begin, end in ("q", 0, q), ("k", q, q + kv), ("v", q + kv, q + 2 * kv):
            found[f"{prefix}self_attn.{letter}_proj.{kind}"] = Place(stored.name, None, (begin, end))
        return found
    if part == "ffn_gate_up_exps" and len(stored.shape) == dimensions and stored.shape[0] <= MAX_EXPERTS:
        count, both = stored.shape[:2]
        halves = (("ffn_gate_exps", 0, both // 2), ("ffn_up_exps", both // 2, both))
        return {
            f"{prefix}{_EXPERTS[half].format(e)}.{kind}": Place(stored.name, e, (begin, end))
            for half, begin, end in halves
            for e in range(count)
        }
    inner = family.inner.get(part) or _INNER.get(part) or (part if part.startswith("nextn.") else None)
    return {f"{prefix}{inner}.{kind}" if inner else stored.name: Place(stored.name)}


def file_name(name: str, family: Family) -> tuple[str, int | None]:
    """Return what a file calls one of the decoder's tensors, and which of a stack it is: undoes `_names_of`."""
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name)
    stem, _, kind = name.rpartition(".")
    if not layer:
        return f"{ {own: part for part, own in _OUTER.items()}[stem] }.{kind}", None
    index, inner = layer.groups()
    if part := next((part for part, own in _WHOLE.items() if own == inner), None):
        return f"blk.{index}.{part}", None
    inner = inner.removesuffix(f".{kind}")
    if expert := re.fullmatch(r"mlp\.experts\.(\d+)\.(gate|up|down)_proj", inner):
        return f"blk.{index}.ffn_{expert[2]}_exps.{kind}", int(expert[1])
    return f"blk.{index}.{ {own: part for part, own in (_INNER | family.inner).items()}[inner] }.{kind}", None


def in_pairs(tensor: Tensor, heads: int) -> Tensor:
    """Return a tensor whose rotary rows come in pairs, not in halves: undoes what reading does."""
    halves = tensor.reshape(heads, 2, -1, *tensor.shape[1:])
    return halves.transpose(1, 2).reshape(tensor.shape)


def size_of(file: GGUFFile, key: str, default: int | None = None) -> int:
    """Return a size that may be stored once, or once a layer; 0 for layers that have none of its kind."""
    if not file.is_array(key):
        return file.integer(key, default)
    values = set(file.numbers(key)) - {0} or {0}
    if len(values) != 1 or not isinstance(min(values), int):
        raise ModelError(f"{file.path}: {key} differs from layer to layer, which is not served")
    return int(values.pop())
