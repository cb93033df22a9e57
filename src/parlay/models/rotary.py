"""Rotary position embedding: frequencies fixed at load, never by the call.

Source: Su et al. 2021 (arXiv 2104.09864), half-split form; the `llama3` scaling as in Llama 3.1's reference.
"""

import math

import torch
from torch import Tensor

from parlay.models.config import ModelConfig, Rotary


def cos_sin_table(config: ModelConfig, length: int) -> Tensor:
    """Return `[length, head_dim]` float32: cosines in the first half of each row, sines in the second."""
    frequencies = _frequencies(config.rotary, config.head_dim)
    angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies[None, :]
    return torch.cat((angles.cos(), angles.sin()), dim=1).contiguous()


def _frequencies(rotary: Rotary, head_dim: int) -> Tensor:
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (rotary.theta**exponents)
    if rotary.kind == "llama3":
        return _llama3(frequencies, rotary)
    return frequencies


def _llama3(frequencies: Tensor, rotary: Rotary) -> Tensor:
    factor, low, high = (rotary.scaling[k] for k in ("factor", "low_freq_factor", "high_freq_factor"))
    original = rotary.scaling["original_max_position_embeddings"]
    # Wavelengths longer than original/low are slowed by `factor`, shorter than original/high are kept,
    # and those between are blended.
    turns = original * frequencies / (2 * math.pi)
    blend = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (blend + (1 - blend) / factor)
