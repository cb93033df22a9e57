"""A GGUF file's metadata as the `config.json` that Hugging Face would write for the same model.

Source: ggml's `docs/gguf.md` for the keys.
"""

import math
from pathlib import Path
from typing import Any

from parlay.errors import ModelError
from parlay.models.gguf import GGUFFile
from parlay.models.gguf_names import family_of, size_of

_BOS = "tokenizer.ggml.bos_token_id"
# A text, a turn and a message that expects a tool's answer end with tokens of their own.
_ENDS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
_SCALING = {
    "factor": "factor",
    "original_context_length": "original_max_position_embeddings",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
    "attn_factor": "attention_factor",
}


def read_gguf_config(path: Path) -> dict[str, Any]:
    """Return the shape of a GGUF file's model as a `config.json` of Hugging Face would hold it.

    Raises:
        ModelError: the file is damaged, contradicts itself, or holds a model that is not served.
    """
    with GGUFFile(path) as file:
        name, family = family_of(file)
        if file.integer("split.count", 1) > 1:
            raise ModelError(f"{path} is one of several parts of a model; merge them into one file first")
        if size_of(file, f"{name}.expert_count", 0):
            raise ModelError(
                f"{path}: mixtures of experts in GGUF files are not served; use a Hugging Face directory"
            )
        embedding = file.tensors.get("token_embd.weight")
        if embedding is None:
            raise ModelError(f"{path} lacks the tensor 'token_embd.weight'")
        hidden, heads = size_of(file, f"{name}.embedding_length"), size_of(file, f"{name}.attention.head_count")
        layers = size_of(file, f"{name}.block_count")
        head_dim = size_of(file, f"{name}.attention.key_length", hidden // max(heads, 1))
        sizes = {
            "vocab_size": embedding.shape[0],
            "hidden_size": hidden,
            "intermediate_size": size_of(file, f"{name}.feed_forward_length"),
            "num_attention_heads": heads,
            "num_key_value_heads": size_of(file, f"{name}.attention.head_count_kv", heads),
            "head_dim": head_dim,
        }
        _check_sizes(file, sizes, layers)
        if size_of(file, f"{name}.attention.value_length", head_dim) != head_dim:
            raise ModelError(f"{path}: heads whose values are not as wide as their keys are not served")
        options: dict[str, Any] = {}
        for key, hf in family.options.items():
            if f"{name}.{key}" in file:
                options[hf] = (file.integer if hf == "sliding_window" else file.number)(f"{name}.{key}")
        if family.wide_layers:
            options["query_pre_attn_scalar"] = hidden // heads if layers == family.wide_layers else head_dim
        return {
            "architectures": [family.architecture],
            "model_type": name,
            **sizes,
            "num_hidden_layers": layers,
            "rms_norm_eps": file.number(f"{name}.attention.layer_norm_rms_epsilon"),
            "max_position_embeddings": size_of(file, f"{name}.context_length"),
            "tie_word_embeddings": "output.weight" not in file.tensors,
            "dtype": _dtype(file),
            "bos_token_id": file.integer(_BOS) if _BOS in file else None,
            "eos_token_id": [file.integer(key) for key in _ENDS if key in file] or None,
            **_rotary(file, name, head_dim),
            **family.fixed,
            **options,
        }


def _check_sizes(file: GGUFFile, sizes: dict[str, int], layers: int) -> None:
    """Refuse sizes that nothing in the file has, before anybody makes something as large."""
    largest = max(max(stored.shape) for stored in file.tensors.values())
    for key, size in {**sizes, "num_hidden_layers": layers}.items():
        limit = len(file.tensors) if key == "num_hidden_layers" else largest
        if not 1 <= size <= limit:
            raise ModelError(f"{file.path}: {key} is {size}, but the file's tensors allow 1 to {limit}")
    tokens = file.length("tokenizer.ggml.tokens")
    if tokens > sizes["vocab_size"]:
        raise ModelError(f"{file.path} names {tokens} tokens but embeds only {sizes['vocab_size']}")


def _dtype(file: GGUFFile) -> str:
    """Return what to compute in: norms are always stored as float32 and say nothing."""
    kinds = {stored.kind for stored in file.tensors.values() if len(stored.shape) > 1}
    return {frozenset({"F32"}): "float32", frozenset({"F16"}): "float16"}.get(frozenset(kinds), "bfloat16")


def _rotary(file: GGUFFile, name: str, head_dim: int) -> dict[str, Any]:
    theta = file.number(f"{name}.rope.freq_base", 10000.0)
    if not 0 < theta < math.inf:
        raise ModelError(f"{file.path}: {name}.rope.freq_base must be above 0 and finite, not {theta}")
    found: dict[str, Any] = {"rope_theta": theta}
    rotated = size_of(file, f"{name}.rope.dimension_count", head_dim)
    if rotated != head_dim:
        if name != "phi3":
            raise ModelError(f"{file.path}: rotating {rotated} of {head_dim} dimensions a head is not served")
        found["partial_rotary_factor"] = rotated / head_dim
    kind = file.text(f"{name}.rope.scaling.type", "none")
    scaling: dict[str, Any] = {}
    for key, hf in _SCALING.items():
        if f"{name}.rope.scaling.{key}" in file:
            scaling[hf] = file.number(f"{name}.rope.scaling.{key}")
    if "rope_freqs.weight" in file.tensors:
        scaling = _llama3(file, theta, head_dim)
    elif "rope_factors_long.weight" in file.tensors:
        found["original_max_position_embeddings"] = int(scaling.pop("original_max_position_embeddings", 0))
        short, long = (_factors(file, f"rope_factors_{x}.weight", rotated) for x in ("short", "long"))
        scaling = {"rope_type": "longrope", "short_factor": short, "long_factor": long}
    elif kind == "none":
        return found
    else:
        scaling["rope_type"] = kind
    return {**found, "rope_scaling": scaling}


def _factors(file: GGUFFile, name: str, rotated: int) -> list[float]:
    """Return by how much each rotary frequency is divided."""
    stored = file.tensors.get(name)
    if stored is None or stored.shape != (rotated // 2,):
        raise ModelError(f"{file.path}: tensor {name!r} must have {rotated // 2} elements")
    factors = [float(x) for x in file.read(name).tolist()]
    if not all(0 < x < math.inf for x in factors):
        raise ModelError(f"{file.path}: tensor {name!r} must hold numbers above 0")
    return factors


def _llama3(file: GGUFFile, theta: float, head_dim: int) -> dict[str, Any]:
    """Return the parameters of Llama 3.1's scaling; a file holds only what they make of the frequencies.

    Two of them never vary, the factor is the largest divisor, and of the original lengths a power of two fits.
    """
    divisors = _factors(file, "rope_freqs.weight", head_dim)
    factor, low, high = max(divisors), 1.0, 4.0
    for original in (8192, *(2**i for i in range(4, 21))):
        for index, divisor in enumerate(divisors):
            turns = original * theta ** (-2 * index / head_dim) / (2 * math.pi)
            blend = min(max((turns - low) / (high - low), 0.0), 1.0)
            if not math.isclose(divisor * (blend + (1 - blend) / factor), 1.0, rel_tol=1e-4):
                break
        else:
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": original,
            }
    raise ModelError(f"{file.path}: 'rope_freqs.weight' scales rotary frequencies in a way that is not served")
