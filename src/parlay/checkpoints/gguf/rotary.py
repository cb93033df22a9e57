"""What a GGUF file says of the rotary embedding, as the keys of a `config.json`.

Source: ggml's `docs/gguf.md` for the keys.
"""

import math
from itertools import product
from typing import Any

from parlay.checkpoints.gguf.families import size_of
from parlay.checkpoints.gguf.family import Family
from parlay.checkpoints.gguf.reader import GGUFFile
from parlay.errors import ModelError

# Config keys of YaRN by the metadata's.
YARN = {
    "factor": "factor",
    "original_context_length": "original_max_position_embeddings",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
    "yarn_attn_factor": "attention_factor",
}


def rotary_keys(file: GGUFFile, name: str, family: Family, head_dim: int) -> dict[str, Any]:
    """Return `read_rotary_keys`, by kind of layer where layers with a window have an embedding of their own."""
    keys = read_rotary_keys(file, name, family, head_dim)
    if not family.window_rotary:
        return keys
    whole = keys.pop("rope_scaling", {"rope_type": "default"})
    base, partial = keys.pop("rope_theta"), keys.pop("partial_rotary_factor", 1.0)
    rotated = size_of(file, f"{name}.rope.dimension_count", head_dim)
    turning = size_of(file, f"{name}.rope.dimension_count_swa", rotated)
    near = {
        "rope_theta": file.number(f"{name}.rope.freq_base_swa", base),
        "partial_rotary_factor": turning / head_dim,
    }
    return keys | {
        "rope_parameters": {
            "full_attention": {**whole, "rope_theta": base, "partial_rotary_factor": partial},
            "sliding_attention": {"rope_type": "default", **near},
        }
    }


def read_rotary_keys(file: GGUFFile, name: str, family: Family, head_dim: int) -> dict[str, Any]:
    """Return the keys of a config about the rotary embedding."""
    theta = file.number(f"{name}.rope.freq_base", 10000.0)
    if not 0 < theta < math.inf:
        raise ModelError(f"{file.path}: {name}.rope.freq_base must be above 0 and finite, not {theta}")
    found: dict[str, Any] = {"rope_theta": theta}
    rotated = size_of(file, f"{name}.rope.dimension_count", head_dim) // (2 if family.halved else 1)
    if family.partial:  # said even where it is all of them, as some classes suppose otherwise
        found["partial_rotary_factor"] = rotated / head_dim
    elif rotated != head_dim:
        raise ModelError(f"{file.path}: rotating {rotated} of {head_dim} dimensions a head is not supported")
    # Files of 2023 have the second key. A factor of 0 says that there is none.
    factor = file.number(f"{name}.rope.scaling.factor", file.number(f"{name}.rope.scale_linear", 0.0))
    kind = file.text(f"{name}.rope.scaling.type", "linear" if factor else "none")
    scaling: dict[str, Any] = {}
    if "rope_freqs.weight" in file.tensors:
        scaling = _llama3(file, theta, rotated)
    elif "rope_factors_long.weight" in file.tensors:
        # The scale on cosines and sines that files hold beside follows from the lengths.
        original = f"{name}.rope.scaling.original_context_length"
        found["original_max_position_embeddings"] = file.integer(original)
        short, long = (_factors(file, f"rope_factors_{x}.weight", rotated) for x in ("short", "long"))
        scaling = {"rope_type": "longrope", "short_factor": short, "long_factor": long}
    elif kind == "none" or (kind == "linear" and factor == 0):
        return found
    else:
        whole = -1.0, float(kind == "yarn")  # all of YaRN, or nothing of it
        for key, neutral in (("attn_factor", (1.0,)), ("yarn_ext_factor", whole)):
            if file.number(f"{name}.rope.scaling.{key}", neutral[0]) not in neutral:
                raise ModelError(f"{file.path}: {name}.rope.scaling.{key} is not supported")
        scaling = {"rope_type": kind, "factor": factor}
        for key, hf in YARN.items() if kind == "yarn" else ():
            if f"{name}.rope.scaling.{key}" in file:
                scaling[hf] = file.value(f"{name}.rope.scaling.{key}")
        if multiplier := file.number(f"{name}.rope.scaling.yarn_log_multiplier", 0.0):
            # llama.cpp supposes the first one; of latent attention it writes a tenth, and takes both to be alike.
            both = dict.fromkeys(("mscale", "mscale_all_dim"), round(10 * multiplier, 6))
            scaling |= both if family.latent else {"mscale": 1.0, "mscale_all_dim": multiplier}
        if kind == "yarn":
            scaling |= family.scaling
    return {**found, "rope_scaling": scaling}


def _factors(file: GGUFFile, name: str, rotated: int) -> list[float]:
    """Return by how much each rotary frequency is divided; beyond those that turn may be ones, of other layers."""
    stored = file.tensors.get(name)
    if stored is None or len(stored.shape) != 1 or stored.shape[0] < rotated // 2:
        raise ModelError(f"{file.path}: tensor {name!r} must have {rotated // 2} elements")
    # As decimals, like float32 numbers of the metadata.
    whole = [float(str(x)) for x in file.read(name).numpy()]
    factors = whole[: rotated // 2]
    if not set(whole[len(factors) :]) <= {1.0}:
        raise ModelError(f"{file.path}: tensor {name!r} must have {rotated // 2} elements")
    if not all(0 < x < math.inf for x in factors):
        raise ModelError(f"{file.path}: tensor {name!r} must hold numbers above 0")
    return factors


def _llama3(file: GGUFFile, theta: float, rotated: int) -> dict[str, Any]:
    """Return the parameters of Llama 3.1's scaling; a file holds only what they make of the frequencies.

    One of them never varies, another is 4 but in Step-3.5 and in Llama 4, which blends nothing; the factor is the
    largest divisor, and of the original lengths a power of two fits.
    """
    divisors = _factors(file, "rope_freqs.weight", rotated)
    factor, low = max(divisors), 1.0
    for high, original in product((4.0, 32.0, 1.0), (8192, *(2**i for i in range(4, 21)))):
        for index, divisor in enumerate(divisors):
            turns = original * theta ** (-2 * index / rotated) / (2 * math.pi)
            blend = min(max((turns - low) / (high - low), 0.0), 1.0) if high > low else float(turns > low)
            if not math.isclose(divisor * (blend + (1 - blend) / factor), 1.0, rel_tol=1e-4):
                break
        else:
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": 1.0,
                "high_freq_factor": high,
                "original_max_position_embeddings": original,
            }
    raise ModelError(f"{file.path}: 'rope_freqs.weight' scales rotary frequencies in a way that is not supported")
