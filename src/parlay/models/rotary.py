"""Rotary position embedding: frequencies fixed at load from the longest sequence, never by the call.

Sources: Su et al. 2021 (arXiv 2104.09864), half-split form. Scalings: `linear` Chen et al. 2023 (arXiv 2306.15595);
`dynamic` and `yarn` Peng et al. 2023 (arXiv 2309.00071); `llama3` Dubey et al. 2024 (arXiv 2407.21783); `longrope`
Ding et al. 2024 (arXiv 2402.13753).
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from parlay.errors import ModelError
from parlay.models.config import ModelConfig
from parlay.models.style import Rotary

_ORIGINAL = "original_max_position_embeddings"
RotaryTables = tuple[Tensor, Tensor | None]  # of a layer: see `layer_tables`


def cos_sin_table(config: ModelConfig, length: int, rotary: Rotary | None = None, width: int | None = None) -> Tensor:
    """Return `[length, R]` float32: cosines in the first half of each row, sines in the second.

    R is how many columns of a head turn. `dynamic` and `longrope` choose their frequencies by `length`, which
    others choose by the length of each call; so a sequence has the same frequencies from its first token to its last.

    Args:
        config: the model's shape.
        length: the longest sequence.
        rotary: another embedding than the config's.
        width: columns of a head, where they are not the config's.

    Raises:
        ModelError: the config's numbers do not fit its heads.
    """
    if width is not None:
        config = replace(config, head_dim=width)
    frequencies, size = frequencies_of(config, length, rotary)
    angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies[None, :]
    return torch.cat((angles.cos() * size, angles.sin() * size), dim=1).contiguous()


def layer_tables(config: ModelConfig, length: int) -> list[RotaryTables]:
    """Return each layer's `cos_sin_table`, and that of its queries where it differs.

    Args:
        config: the model's shape.
        length: the longest sequence.

    Raises:
        ModelError: the config's numbers do not fit its heads.
    """
    style, rotary = config.style, config.rotary
    windowed = [bool(style.windows and style.windows[layer]) for layer in range(config.num_layers)]
    widths = [config.heads_of(layer).width for layer in range(config.num_layers)]
    far = next((width for width, near in zip(widths, windowed, strict=True) if not near), config.head_dim)
    near = next((width for width, near in zip(widths, windowed, strict=True) if near), config.head_dim)
    everywhere = cos_sin_table(config, length, width=far)
    local = cos_sin_table(config, length, style.local_rotary, near) if style.local_rotary else None
    # Pairs of columns with rotation by 0: one is enough, except for latents.
    pairs = style.latent.rope_dim // 2 if style.latent is not None else 1
    still = torch.tensor([1.0, 0.0]).repeat_interleave(pairs).expand(length, 2 * pairs).contiguous()
    growth = None if style.latent is not None else query_growth(rotary, length)
    queries = None if growth is None or rotary.nope_growth else everywhere * growth
    still_queries = None
    if growth is not None and rotary.nope_growth:  # all columns grow
        still_queries = torch.tensor([1.0, 0.0]).repeat_interleave(far // 2) * growth

    def table(layer: int) -> RotaryTables:
        if style.nope and style.nope[layer]:
            return still, still_queries
        return (local, None) if windowed[layer] and local is not None else (everywhere, queries)

    return [table(layer) for layer in range(config.num_layers)]


def query_growth(rotary: Rotary, length: int) -> Tensor | None:
    """Return the factors on queries at each position, float32 `[length, 1]`; None where they do not grow."""
    if not rotary.query_growth:
        return None
    periods = (torch.arange(length) + rotary.nope_growth).div(rotary.original, rounding_mode="floor").float()
    return (1 + rotary.query_growth * torch.log(1 + periods))[:, None]


def halves(config: ModelConfig, heads: int) -> Tensor:
    """Return the order of interleaved heads' columns that makes them half-split.

    Scores are sums over a head's columns, so that their order is free as long as queries and keys have the same.

    Returns:
        int64 `[heads * head_dim]`.
    """
    first = torch.arange(rotary_dim(config, config.rotary))
    rest = torch.arange(len(first), config.head_dim)
    one = torch.cat((first[0::2], first[1::2], rest))
    return (torch.arange(heads)[:, None] * config.head_dim + one).view(-1)


def frequencies_of(config: ModelConfig, length: int, rotary: Rotary | None = None) -> tuple[Tensor, float]:
    """Return the frequencies of a model's positions, float32 `[R / 2]`, and a factor on cosines and sines.

    Args:
        config: the model's shape.
        length: the longest sequence.
        rotary: another embedding than the config's.

    Raises:
        ModelError: the config's numbers do not fit its heads.
    """
    rotary = rotary or config.rotary
    dim = rotary_dim(config, rotary)
    if dim < 2 or dim % 2:
        raise ModelError(f"{config.path}: partial_rotary_factor={rotary.partial} of {config.head_dim} columns is odd")
    try:
        frequencies, size = _frequencies(config, rotary, dim, length)
    except (ArithmeticError, ValueError):  # each number is sound, but not all of them together
        frequencies, size = torch.tensor(math.nan), 1.0
    if not frequencies.isfinite().all() or not math.isfinite(size):
        raise ModelError(f"{config.path}: the numbers of the rotary embedding ({rotary.kind}) give no frequencies")
    return frequencies, size


def rotary_dim(config: ModelConfig, rotary: Rotary) -> int:
    """Return how many of a head's columns are rotated, rounded down."""
    if rotary.kind == "proportional":  # the columns that do not turn have a frequency of 0
        return config.head_dim
    return int(config.head_dim * rotary.partial + 1e-6)


def _frequencies(config: ModelConfig, rotary: Rotary, dim: int, length: int) -> tuple[Tensor, float]:
    """Return the frequencies `[dim / 2]`, and a factor on cosines and sines."""
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    numbers, theta = rotary.scaling, rotary.theta
    if rotary.kind == "dynamic":
        # The base grows until the slowest frequency is `linear`'s and the fastest stays.
        excess = max(length / numbers[_ORIGINAL], 1.0)
        theta *= (numbers["factor"] * excess - (numbers["factor"] - 1)) ** (dim / (dim - 2))
    frequencies = 1.0 / (theta**exponents)
    if rotary.kind == "proportional":
        still = torch.arange(dim // 2) >= int(rotary.partial * dim // 2)
        return frequencies.masked_fill(still, 0.0) / numbers.get("factor", 1.0), 1.0
    if rotary.kind == "linear":
        return frequencies / numbers["factor"], 1.0
    if rotary.kind == "llama3":
        return frequencies * _llama3(frequencies, numbers), 1.0
    if rotary.kind == "yarn":
        return _yarn(frequencies, rotary, dim), _yarn_size(numbers)
    if rotary.kind == "longrope":
        return _longrope(config, rotary, exponents, length), _longrope_size(numbers)
    return frequencies, 1.0


def llama3_divisors(rotary: Rotary, dim: int) -> Tensor:
    """Return by how much `llama3` divides each frequency of a head of `dim` columns, float32 `[dim / 2]`."""
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    return 1.0 / _llama3(1.0 / (rotary.theta**exponents), rotary.scaling)


def _llama3(frequencies: Tensor, numbers: dict[str, float]) -> Tensor:
    """Return the share that is left of each frequency."""
    factor, low, high = (numbers[k] for k in ("factor", "low_freq_factor", "high_freq_factor"))
    # Wavelengths longer than original/low are slowed by `factor`, shorter than original/high are kept,
    # and those between are blended.
    turns = numbers[_ORIGINAL] * frequencies / (2 * math.pi)
    blend = ((turns - low) / (high - low)).clamp(0, 1)
    return blend + (1 - blend) / factor


def _yarn(frequencies: Tensor, rotary: Rotary, dim: int) -> Tensor:
    numbers = rotary.scaling

    def column(turns: float) -> float:
        """The column whose frequency turns so often within the original context."""
        return dim * math.log(numbers[_ORIGINAL] / (turns * 2 * math.pi)) / (2 * math.log(rotary.theta))

    # Columns before the one that turns beta_fast times are kept, those after beta_slow's are slowed by `factor`.
    first, last = column(numbers.get("beta_fast", 32.0)), column(numbers.get("beta_slow", 1.0))
    if numbers.get("truncate", 1.0):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    slowed = ((torch.arange(dim // 2).float() - first) / (last - first or 0.001)).clamp(0, 1)
    return frequencies / numbers["factor"] * slowed + frequencies * (1 - slowed)


def _yarn_size(numbers: dict[str, float]) -> float:
    def size(weight: float) -> float:
        return 0.1 * weight * math.log(numbers["factor"]) + 1.0 if numbers["factor"] > 1 else 1.0

    if "attention_factor" in numbers:
        return numbers["attention_factor"]
    if "mscale" in numbers and "mscale_all_dim" in numbers:
        return size(numbers["mscale"]) / size(numbers["mscale_all_dim"])
    return size(1.0)


def _longrope(config: ModelConfig, rotary: Rotary, exponents: Tensor, length: int) -> Tensor:
    long = length > rotary.scaling[_ORIGINAL]
    divisors = rotary.long_factor if long else rotary.short_factor
    if len(divisors) != len(exponents):
        key = "long_factor" if long else "short_factor"
        raise ModelError(f"{config.path}: {key} has {len(divisors)} numbers, but {len(exponents)} frequencies")
    return 1.0 / (torch.tensor(divisors) * rotary.theta**exponents)


def _longrope_size(numbers: dict[str, float]) -> float:
    if "attention_factor" in numbers:
        return numbers["attention_factor"]
    if numbers["factor"] <= 1:
        return 1.0
    return math.sqrt(1 + math.log(numbers["factor"]) / math.log(numbers[_ORIGINAL]))
