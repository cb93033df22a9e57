"""GGUF files of block drafters (`dflash`), as the `config.json` that their authors would write for the same head.

Source: llama.cpp's `conversion/qwen.py` for the keys, and its `src/models/dflash.cpp`.
"""

from pathlib import Path
from typing import Any

from parlay.checkpoints.gguf.config import SIZES, read_gguf_config
from parlay.checkpoints.gguf.families import DRAFTER, DRAFTERS, size_of
from parlay.checkpoints.gguf.family import layer_types
from parlay.checkpoints.gguf.parts import GGUFModel
from parlay.checkpoints.gguf.reader import GGUFFile
from parlay.checkpoints.gguf.rotary import read_rotary_keys

_MASK = "tokenizer.ggml.mask_token_id"
# Classes by a tensor that only such a head has, and what all others are.
_CLASSES = {"markov_w1.weight": "DSparkDraftModel", "selector_hidden.weight": "DFlash2DraftModel"}
_PLAIN = "DFlashDraftModel"
# Keys of the config by the metadata's, where they have one.
_KEYS = {
    "block_size": "block_size",
    "attention.causal": "causal",
    "attention.value_scale": "attention_value_scale",
    "embedding_scale": "input_embedding_scale",
    "logit_scale": "output_multiplier",
    "final_logit_softcapping": "final_logit_softcapping",
    "sample_from_anchor": "sample_from_anchor",
    "conv_kernel_size": "conv_kernel_size",
    "conv_group_size": "conv_group_size",
    "selector_rank": "selector_rank",
    "selector_top_k": "selector_top_k",
}


def is_drafter(file: GGUFFile) -> bool:
    """Whether a file holds a block drafter."""
    return file.text("general.architecture", "") == DRAFTER


def drafter_class(file: GGUFFile) -> str:
    """Return the class of the block drafter in a file."""
    return next((name for part, name in _CLASSES.items() if part in file.tensors), _PLAIN)


def read_gguf_head(path: Path) -> dict[str, Any]:
    """Return the config of a draft head in a GGUF file.

    Raises:
        ModelError: the file is damaged, contradicts itself, or holds what is not supported.
    """
    with GGUFModel(path) as file:
        if is_drafter(file):
            return drafter_config(file)
    return read_gguf_config(path)


def drafter_config(file: GGUFFile) -> dict[str, Any]:
    """Return the config of the block drafter in a file.

    Raises:
        ModelError: keys are missing or hold nonsense.
    """
    heads = max(size_of(file, f"{DRAFTER}.attention.head_count"), 1)
    defaults = {
        "attention.head_count_kv": heads,
        "attention.key_length": size_of(file, f"{DRAFTER}.embedding_length") // heads,
    }
    sizes = {hf: size_of(file, f"{DRAFTER}.{key}", defaults.get(key)) for key, hf in SIZES.items()}
    own: dict[str, Any] = {
        hf: file.value(f"{DRAFTER}.{key}") for key, hf in _KEYS.items() if f"{DRAFTER}.{key}" in file
    }
    own["target_layer_ids"] = [int(count) - 1 for count in file.numbers(f"{DRAFTER}.target_layers")]
    own["mask_token_id"] = file.integer(_MASK)
    window = size_of(file, f"{DRAFTER}.attention.sliding_window", 0)
    pattern = f"{DRAFTER}.attention.sliding_window_pattern"
    if window and file.is_array(pattern):
        own["layer_types"] = layer_types(file.numbers(pattern))
        own["sliding_window"] = window
    reduced = {"draft_vocab_size": file.tensors["d2t"].shape[0]} if "d2t" in file.tensors else {}
    return {
        "architectures": [drafter_class(file)],
        "model_type": DRAFTER,
        **sizes,
        "vocab_size": _tokens(file),
        **reduced,
        "hidden_act": file.text(f"{DRAFTER}.hidden_activation", "silu"),
        "rms_norm_eps": file.number(f"{DRAFTER}.attention.layer_norm_rms_epsilon"),
        **read_rotary_keys(file, DRAFTER, DRAFTERS[DRAFTER], sizes["head_dim"]),
        "markov_rank": file.tensors["markov_w1.weight"].shape[1] if "markov_w1.weight" in file.tensors else 0,
        "dflash_config": own,
    }


def _tokens(file: GGUFFile) -> int:
    """Return the size of the target's vocabulary."""
    for name in ("token_embd.weight", "markov_w1.weight", "selector_predecessor.weight"):
        if name in file.tensors:
            return file.tensors[name].shape[0]
    if "output.weight" in file.tensors and "d2t" not in file.tensors:
        return file.tensors["output.weight"].shape[0]
    return file.length("tokenizer.ggml.tokens") or file.integer(f"{DRAFTER}.vocab_size")
