"""What is known of one of the architectures that GGUF files call `general.architecture`.

Source: llama.cpp's converters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

GATE = {"attn_gate": "self_attn.gate_proj"}
WINDOW = {"attention.sliding_window": "sliding_window"}
WINDOWS = WINDOW | {"attention.sliding_window_pattern": "sliding_window_pattern"}
NEXT = {"nextn_predict_layers": "num_nextn_predict_layers"}
LATENT_RANKS = {"attention.q_lora_rank": "q_lora_rank", "attention.kv_lora_rank": "kv_lora_rank"}
LAST_NORM = {"post_attention_norm": "post_attention_layernorm"}  # in place of `ffn_norm`
GRANITE = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}


@dataclass(frozen=True, slots=True)
class Family:
    """One of `general.architecture`'s values.

    Attributes:
        architecture: the class's name at Hugging Face.
        inner: a layer's tensors that are named otherwise than most families' are.
        interleaved: rotary rows of queries and keys come in pairs where the class has halves.
        norm_offset: what was added to the weights of norms.
        final_offset: whether it was added to the weight of the last norm too.
        options: config keys by the metadata's, beside those that all families have.
        fixed: what every model of the family has unless the file says otherwise.
        wide_layers: the number of layers of the one model whose queries are scaled by hidden size over heads.
        partial: a part of a head's columns may turn.
        listed: whether files list which layers have a window.
        scaling: what the class has beside what files say of rotary scaling.
        also: further classes that are written as this architecture.
        layer_norms: norms subtract the mean, and their key is another; they do not where a file has the usual key.
        refused: keys of files whose numbers mean something else.
        latent: the model has latent attention, and sizes of its own.
        recurrent: what `layer_types` calls the layers that are no attention; empty where there is none.
        single_part_layers: a layer is one of those, attention, a network or experts alone.
        heads_vary_by_window: heads differ between layers with a window and those without.
        value: config key for the width of a recurrent head's values.
        whole: further tensors of a layer, by their whole names in it.
        squeezed: endings of names of tensors without their middle dimension of one.
        flat: endings of names of vectors that are stored as matrices.
        outer: tensors outside of layers that are named otherwise than most families' are.
        recurrent_key: key of a list that tells recurrent layers from others.
        sections: parts of the turning columns, by which coordinate of an image they turn with.
        tokenizer_kind: what files call tokenizers that are not byte-level.
        exportable: whether `export` writes it.
        joined_experts: the gate and the up of experts are stored behind one another.
        queries: config key of a list of how many heads of queries each layer has, where that may differ.
        gating: config key of whether the gate on attention's output is by head, which the tensor's shape says.
        window_rotary: layers with a window have a rotary embedding of their own, which has a key for each number.
        query_scale: config key of a factor on queries, which files have as the weights of their norms.
        value_width: config key of how wide values are, where they may be narrower than keys.
        window_sizes: config keys, by the metadata's that list a size by layer, of the sizes of layers with a window.
        halved: whether only half of the columns that files count turn in layers without a window.
        numbers: tensors of each layer, by their names in it, whose numbers files list among the metadata: the list's
            key, and the tensors' shape.
        sparse: config key of a list of which layers have experts, as the tensors say.
    """

    architecture: str
    inner: dict[str, str] = field(default_factory=dict)
    interleaved: bool = False
    norm_offset: float = 0.0
    final_offset: bool = True
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
    single_part_layers: bool = False
    heads_vary_by_window: bool = False
    value: str = ""
    whole: dict[str, str] = field(default_factory=dict)
    squeezed: tuple[str, ...] = ()
    flat: tuple[str, ...] = ()
    outer: dict[str, str] = field(default_factory=dict)
    recurrent_key: str = "attention.head_count_kv"
    sections: tuple[int, ...] = ()
    tokenizer_kind: str = "llama"
    exportable: bool = True
    joined_experts: bool = False
    queries: str = ""
    gating: str = ""
    window_rotary: bool = False
    query_scale: str = ""
    value_width: str = ""
    window_sizes: dict[str, str] = field(default_factory=dict)
    halved: bool = False
    numbers: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    sparse: str = ""

    def offset(self, name: str) -> float:
        """Return what was added to a tensor: to the weights of norms, but not of those of recurrent layers."""
        bare = "linear_attn" in name or (name == "model.norm.weight" and not self.final_offset)
        return self.norm_offset if "norm" in name and not bare else 0.0


def mixture(
    count: str = "num_experts",
    chosen: str = "num_experts_per_tok",
    width: str | None = "moe_intermediate_size",
    **more: str,
) -> dict[str, str]:
    """Return the options of a mixture: how a class calls them, further ones by their keys without `expert_`."""
    found = {"count": count, "used_count": chosen, **({"feed_forward_length": width} if width else {}), **more}
    return {f"expert_{key}": hf for key, hf in found.items()}


def layer_types(chosen: Iterable[object], kind: str = "sliding_attention") -> list[str]:
    """Return the kinds of layers: those that are chosen are of that kind, the others full attention."""
    return [kind if each else "full_attention" for each in chosen]


DEEPSEEK_MOE = mixture(
    "n_routed_experts",
    shared_count="n_shared_experts",
    weights_scale="routed_scaling_factor",
    weights_norm="norm_topk_prob",
    group_count="n_group",
    group_used_count="topk_group",
) | {"leading_dense_block_count": "first_k_dense_replace", **NEXT}
