"""What a GGUF file calls its tensors, in Hugging Face's words.

Source: llama.cpp's `convert_hf_to_gguf.py` for what happens to weights on the
way into a file, which is undone here: Llama's rotary rows are interleaved, Gemma's norms are stored plus one.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor

from parlay.errors import ModelError
from parlay.models.gguf import GGUFFile

_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
# Frequencies of rotary scaling: the config tells of them.
_ROTARY = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


@dataclass(frozen=True, slots=True)
class Family:
    """One of `general.architecture`'s values.

    Attributes:
        architecture: the class's name at Hugging Face.
        inner: a layer's tensors that are named otherwise than most families' are.
        interleaved: rotary rows of queries and keys come in pairs instead of halves.
        norm_offset: what was added to the weights of norms.
        options: config keys by the metadata's, beside those that all families have.
        fixed: what every model of the family has and no file says.
        wide_layers: the number of layers of the one model whose queries are scaled by hidden size over heads.
    """

    architecture: str
    inner: dict[str, str] = field(default_factory=dict)
    interleaved: bool = False
    norm_offset: float = 0.0
    options: dict[str, str] = field(default_factory=dict)
    fixed: dict[str, Any] = field(default_factory=dict)
    wide_layers: int | None = None


_WINDOW = {"attention.sliding_window": "sliding_window"}
_SOFTCAPS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_GELU = {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}

FAMILIES = {
    "llama": Family("LlamaForCausalLM", interleaved=True),
    "qwen2": Family("Qwen2ForCausalLM"),
    "qwen3": Family("Qwen3ForCausalLM"),
    "phi3": Family("Phi3ForCausalLM", {"ffn_up": "mlp.gate_up_proj"}, options=_WINDOW),
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
        options=_WINDOW | {"rope.freq_base_swa": "rope_local_base_freq"},
        fixed=_GELU | {"model_type": "gemma3_text", "rope_local_base_freq": 10000.0, "sliding_window_pattern": 6},
        wide_layers=62,
    ),
}


class GGUFWeights:
    """The tensors of a GGUF file under Hugging Face's names; offers what a safetensors file does."""

    def __init__(self, path: Path) -> None:
        """Open a file and check its header.

        Raises:
            ModelError: it cannot be read, is damaged, or holds a model that is not served.
        """
        self._file = GGUFFile(path)
        self._name, self._family = family_of(self._file)
        self._names = {
            hf: ours for ours in self._file.tensors if (hf := _hugging_face(ours, self._family)) not in _ROTARY
        }

    def keys(self) -> list[str]:
        """Return the tensors' names."""
        return list(self._names)

    def get_slice(self, name: str) -> "_Slice":
        """Return what knows a tensor's shape without reading it."""
        return _Slice(list(self._file.tensors[self._names[name]].shape))

    def get_tensor(self, name: str) -> Tensor:
        """Return a tensor as Hugging Face's class would have it; what was quantised comes as float32."""
        tensor = self._file.read(self._names[name])
        if self._family.interleaved and (heads := self._heads(name)):
            if tensor.shape[0] % (2 * heads):
                raise ModelError(
                    f"{self._file.path}: tensor {self._names[name]!r} has {tensor.shape[0]} rows, which are not "
                    f"{heads} heads of pairs; the file is damaged"
                )
            pairs = tensor.reshape(heads, -1, 2, *tensor.shape[1:])
            return pairs.transpose(1, 2).reshape(tensor.shape)
        if self._family.norm_offset and "norm" in name:
            return tensor - self._family.norm_offset
        return tensor

    def __enter__(self) -> "GGUFWeights":
        self._file.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.__exit__(kind, error, trace)

    def _heads(self, name: str) -> int | None:
        """Return how many heads a tensor's rows belong to, where they are rotated."""
        heads = size_of(self._file, f"{self._name}.attention.head_count")
        if ".q_proj." in name:
            return heads
        if ".k_proj." in name:
            return size_of(self._file, f"{self._name}.attention.head_count_kv", heads)
        return None


@dataclass(frozen=True, slots=True)
class _Slice:
    shape: list[int]

    def get_shape(self) -> list[int]:
        return self.shape


def family_of(file: GGUFFile) -> tuple[str, Family]:
    """Return what the file calls its model's architecture, and what is known of it."""
    name = file.text("general.architecture")
    if name not in FAMILIES:
        raise ModelError(f"{file.path}: the architecture {name!r} is not served; {', '.join(FAMILIES)} are")
    return name, FAMILIES[name]


def _hugging_face(name: str, family: Family) -> str:
    """Return Hugging Face's name of a tensor; an unknown one keeps its own, and is a leftover to the loader."""
    layer = re.fullmatch(r"blk\.(0|[1-9][0-9]{0,5})\.([a-z_]+)\.(weight|bias)", name)
    if layer:
        index, part, kind = layer.groups()
        inner = family.inner.get(part) or _INNER.get(part)
        return f"model.layers.{index}.{inner}.{kind}" if inner else name
    part, _, kind = name.partition(".")
    return f"{_OUTER[part]}.{kind}" if part in _OUTER else name


def size_of(file: GGUFFile, key: str, default: int | None = None) -> int:
    """Return a size that may be stored once, or once a layer."""
    if not file.is_array(key):
        return file.integer(key, default)
    values = set(file.numbers(key))
    if len(values) != 1 or not isinstance(min(values), int):
        raise ModelError(f"{file.path}: {key} differs from layer to layer, which is not served")
    return int(values.pop())
