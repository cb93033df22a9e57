"""What GGUF files call tensors, in the words of `models.decoder`, which are mostly Hugging Face's, and back."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate

from parlay.checkpoints.gguf.family import Family
from parlay.checkpoints.gguf.header import TensorInfo

MAX_EXPERTS = 1 << 10  # a layer; twice what any model has
Heads = Callable[[int], tuple[int, int, int]]  # rows of a layer's queries, keys and values

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
    "ffn_latent_down": "mlp.latent_in",
    "ffn_latent_up": "mlp.latent_out",
    **{f"ffn_{x}_shexp": f"mlp.shared_expert.{x}_proj" for x in ("gate", "up", "down")},
}
# A layer's tensors that are stacked, one per expert; `{}` stands for its number.
_EXPERTS = {f"ffn_{x}_exps": f"mlp.experts.{{}}.{x}_proj" for x in ("gate", "up", "down")}
# Those whose names end otherwise.
_WHOLE = {"attn_sinks.weight": "self_attn.sinks", "exp_probs_b.bias": "mlp.gate.e_score_correction_bias"}
# Frequencies of rotary scaling: the config says them too.
ROTARY = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


@dataclass(frozen=True, slots=True)
class Place:
    """Where one of the decoder's tensors is.

    Attributes:
        name: name of the file's tensor.
        index: index in a stack of tensors.
        rows: range of its rows in a tensor that holds several, one behind another.
    """

    name: str
    index: int | None = None
    rows: tuple[int, int] | None = None


def names_of(stored: TensorInfo, family: Family, heads: Heads) -> dict[str, Place]:
    """Return the decoder's name of a tensor, or of each one that it holds, and where it is.

    An unknown one keeps its own name, and is a leftover to the loader. `heads` returns how many rows a layer's
    queries, keys and values have.
    """
    if (whole := re.fullmatch(r"blk\.(0|[1-9][0-9]{0,5})\.(.+)", stored.name)) and whole[2] in family.whole:
        return {f"model.layers.{whole[1]}.{family.whole[whole[2]]}": Place(stored.name)}
    layer = re.fullmatch(
        r"blk\.(0|[1-9][0-9]{0,5})\.((?:nextn\.|shortconv\.)?[a-z_0-9]+)\.(weight|bias)", stored.name
    )
    if not layer:
        part, _, kind = stored.name.rpartition(".")
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
    if part == "attn_qkv" and part not in family.inner and stored.shape[0] == sum(heads(int(index))):
        found, ends = {}, list(accumulate(heads(int(index))))
        for letter, begin, end in zip("qkv", (0, *ends), ends, strict=False):
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
    if family.query_scale and part in ("attn_q_norm", "attn_k_norm"):
        return {}
    inner = family.inner.get(part) or _INNER.get(part) or (part if part.startswith("nextn.") else None)
    return {f"{prefix}{inner}.{kind}" if inner else stored.name: Place(stored.name)}


def file_name(name: str, family: Family) -> tuple[str, int | None]:
    """Return what a file calls one of the decoder's tensors, and which of a stack it is: undoes `names_of`.

    Where a family's files have the gate and the up of experts behind one another, these are neighbours of a stack.
    """
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name)
    stem, _, kind = name.rpartition(".")
    if not layer:
        return f"{_turned(_OUTER | family.outer)[stem]}.{kind}", None
    index, inner = layer.groups()
    if part := _turned(_WHOLE | family.whole).get(inner):
        return f"blk.{index}.{part}", None
    inner = inner.removesuffix(f".{kind}")
    if expert := re.fullmatch(r"mlp\.experts\.(\d+)\.(gate|up|down)_proj", inner):
        number, part = int(expert[1]), expert[2]
        if family.joined_experts and part != "down":
            number, part = 2 * number + (part == "up"), "gate_up"
        return f"blk.{index}.ffn_{part}_exps.{kind}", number
    own = _turned(_INNER | family.inner)
    part = own[inner] if inner in own or not inner.startswith("nextn.") else inner
    return f"blk.{index}.{part}.{kind}", None


def _turned(names: Mapping[str, str]) -> dict[str, str]:
    """Return a file's names by the decoder's; the last one counts."""
    return {own: part for part, own in names.items()}
