"""Products with quantised weights, in numpy: the slow, obvious twin of csrc/quantised.h, bit for bit.

A row is quantised to eight bits, every 32 inputs with a scale of their own. Within a group of the weight's inputs
sums are exact integers; between groups they are float32, in order of inputs, each product and sum rounded by itself.
So bits depend on neither the number of rows nor the processor.
"""

from dataclasses import dataclass

import numpy as np

from parlay.weights.blocks import Blocks, Floats, Ints

CHUNK = 32  # inputs of a row that share a scale
_LARGEST = np.float32(127)
_LEAST = np.finfo(np.float32).tiny  # scales below are 0


@dataclass(frozen=True, slots=True)
class Quantised:
    """Rows in eight bits.

    Attributes:
        levels: `[rows, inputs]`, -127 to 127.
        scales: `[rows, inputs / 32]`; not a number where an input of the 32 is not finite.
    """

    levels: Ints
    scales: Floats


def quantise(x: Floats) -> Quantised:
    """Return rows `[rows, inputs]` in eight bits, rounded to nearest, ties to even."""
    parts = x.reshape(len(x), -1, CHUNK)
    largest = np.abs(parts).max(axis=2)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scales, inverse = largest / _LARGEST, _LARGEST / largest
        usable = np.isfinite(largest) & (scales >= _LEAST)
        levels = np.where(usable[:, :, None], np.rint(parts * inverse[:, :, None]), 0)
    scales = np.where(usable, scales, np.where(np.isfinite(largest), np.float32(0), np.float32(np.nan)))
    return Quantised(np.nan_to_num(levels).astype(np.int32).reshape(x.shape), scales)


def product(x: Floats, weight: Blocks) -> Floats:
    """Return `x weight^T`, float32 `[rows, outputs]`, for `x` of `[rows, inputs]`."""
    rows, group = quantise(x), weight.group
    total = np.zeros((len(x), len(weight.levels)), np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        for g in range(weight.scales.shape[1]):
            some = slice(g * group, (g + 1) * group)
            levels, scales = rows.levels[:, some], rows.scales[:, g * group // CHUNK, None]
            sums = (levels @ weight.levels[:, some].T).astype(np.float32)
            total = total + sums * (weight.scales[:, g] * scales)
            if weight.least is not None:
                total = total + weight.least[:, g] * (scales * levels.sum(axis=1, keepdims=True).astype(np.float32))
    return total
