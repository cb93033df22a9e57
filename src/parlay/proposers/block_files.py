"""Tensor names in the files of block drafters, and the file of a separate mask embedding."""

from pathlib import Path

from torch import Tensor

from parlay.checkpoints.loader import is_finite
from parlay.checkpoints.pickled import plain, read_pickled
from parlay.errors import ModelError, shown

EMBEDDING, OUTPUT = "embed_tokens.weight", "lm_head.weight"  # the head's own, where the target's are not used
OFFSETS, KNOWN = "d2t", "t2d"  # of a reduced vocabulary: from its ids to the target's, and which of these there are
FUSE, CONTEXT_NORM, NORM = "fc.weight", "hidden_norm.weight", "norm.weight"
BEFORE, AFTER = "input_layernorm.weight", "post_attention_layernorm.weight"  # of a layer
SINKS = "self_attn.attention_sink_bias"  # of a layer, named `self_attn.sinks` elsewhere
OWN_MASK = "mask_embedding.pt"  # file beside the weights: a mask's embedding, in place of its token's

_PROJECTIONS = tuple(f"self_attn.{part}_proj.{kind}" for part in "qkvo" for kind in ("weight", "bias"))
_NETWORK = tuple(f"mlp.{part}_proj.{kind}" for part in ("gate", "up", "down") for kind in ("weight", "bias"))
_INNER = (*_PROJECTIONS, *_NETWORK, "self_attn.q_norm.weight", "self_attn.k_norm.weight", BEFORE, AFTER)

# Names in transformers' assistants and in EAGLE's first layer, by the names that are used here.
_OF_DIRECTORIES = {
    FUSE: "encoder.fc.weight",
    CONTEXT_NORM: "encoder.output_norm_enc.weight",
    **{f"layers.0.{name}": f"midlayer.{name}" for name in (*_INNER, SINKS)},
}
# Names in GGUF files, as these are read; layers have the names of any model's.
_OF_FILES = {
    CONTEXT_NORM: "enc.output_norm.weight",
    NORM: "model.norm.weight",
    EMBEDDING: "model.embed_tokens.weight",
    "markov_head.markov_w1.weight": "markov_w1.weight",
    "markov_head.markov_w2.weight": "markov_w2.weight",
    "confidence_head.proj.weight": "conf_proj.weight",
    "confidence_head.proj.bias": "conf_proj.bias",
    "candidate_selector.predecessor_codebook": "selector_predecessor.weight",
    "candidate_selector.successor_codebook": "selector_successor.weight",
    "candidate_selector.hidden_projection.weight": "selector_hidden.weight",
}
_OF_LAYERS = {
    "attention_conv.base_kernel": "attn_conv_base",
    "attention_conv.kernel_projection.weight": "attn_conv_proj.weight",
    "mlp_conv.base_kernel": "ffn_conv_base",
    "mlp_conv.kernel_projection.weight": "ffn_conv_proj.weight",
}


def other_names(path: Path, layers: int) -> dict[str, str]:
    """Return what a head's files may call tensors, by the names that are used here."""
    if not path.is_file():
        return _OF_DIRECTORIES
    found = dict(_OF_FILES)
    for i in range(layers):
        found |= {f"layers.{i}.{name}": f"model.layers.{i}.{name}" for name in _INNER}
        found[f"layers.{i}.{SINKS}"] = f"model.layers.{i}.self_attn.sinks"
        found |= {f"layers.{i}.{name}": f"blk.{i}.{own}" for name, own in _OF_LAYERS.items()}
    return found


def read_mask(file: Path, mask: int, width: int) -> Tensor:
    """Return a mask's embedding from a file beside the weights, `[width]`: alone, or with the mask's token.

    Raises:
        ModelError: it holds something else.
    """
    content = read_pickled(file)
    if isinstance(content, dict):
        token = content.get("mask_token_id", mask)
        if token != mask:
            raise ModelError(f"{file} is of the mask's token {shown(token)}, but the config says {mask}")
        content = content.get("embedding")
    if not isinstance(content, Tensor) or not plain(content) or content.numel() != width:
        raise ModelError(f"{file} must hold the {width} numbers of a mask's embedding")
    if not content.is_floating_point() or not is_finite(content):
        raise ModelError(f"{file} holds values that are infinite or not numbers; the checkpoint is damaged")
    return content.reshape(width)
