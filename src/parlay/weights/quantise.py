"""Plain matrices in blocks of eight or four bits: the slow, obvious twins of csrc/quantise.h, bit for bit.

Each operation is rounded by itself, so that all processors make the same of a checkpoint.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parlay.weights.kinds import BY_NAME, Kind
from parlay.weights.weight import Part, Weight

INT8 = BY_NAME["Q8_0"]
INT4 = BY_NAME["Q4_1"]
_TRIES = 21  # scales that are compared for each block of four bits

_Floats = NDArray[np.float32]
_Fit = tuple[_Floats, _Floats, _Floats]  # of each block: scale, minimum, and how much they explain


def fits(shape: tuple[int, ...]) -> bool:
    """Whether a matrix of this shape can be stored in blocks of `INT8` or `INT4`."""
    return len(shape) == 2 and shape[1] % INT8.block == 0


def to_int8(numbers: Tensor) -> Weight:
    """Return a matrix in eight bits, every 32 inputs with a scale (`Q8_0`).

    Args:
        numbers: finite numbers `[outputs, inputs]`, of a shape that `fits`.
    """
    x = _blocks(numbers)
    scales = _half(np.abs(x).max(axis=1) / np.float32(127))
    levels = _levels(x, scales, -127, 127).astype(np.int8)
    return _weight(INT8, len(numbers), scales, levels.view(np.uint8))


def to_int4(numbers: Tensor) -> Weight:
    """Return a matrix in four bits, every 32 inputs with a scale and a minimum of least squared error (`Q4_1`).

    For each of several steps between levels the best scale and minimum of the levels that it gives follow by linear
    regression; those of the best fit give levels once more.

    Args:
        numbers: finite numbers `[outputs, inputs]`, of a shape that `fits`.
    """
    x = _blocks(numbers)
    low, high = x[:, 0], x[:, 0]
    for column in x.T[1:]:  # of zeros with both signs the first one counts
        low, high = np.where(column < low, column, low), np.where(column > high, column, high)
    y, span = x - low[:, None], high - low
    total = _sum(y)
    best = (span / np.float32(15), np.zeros_like(low), np.zeros_like(low))
    with np.errstate(divide="ignore", invalid="ignore"):
        for i in range(_TRIES):
            inverse = np.where(span != 0, (np.float32(14) + np.float32(0.1) * np.float32(i)) / span, np.float32(0))
            best = _better(best, _fit(y, total, y * inverse[:, None]))
        inverse = np.where(best[0] != 0, np.float32(1) / best[0], np.float32(0))
    best = _better(best, _fit(y, total, (y - best[1][:, None]) * inverse[:, None]))
    scales, least = _half(best[0]), _half(best[1] + low)
    levels = _levels(x - least.astype(np.float32)[:, None], scales, 0, 15)
    return _weight(INT4, len(numbers), scales, least, (levels[:, :16] + levels[:, 16:] * 16).astype(np.uint8))


def _blocks(numbers: Tensor) -> _Floats:
    """Return `[outputs, inputs]` as `[blocks, 32]`."""
    blocks: _Floats = numbers.float().contiguous().numpy().reshape(-1, INT8.block)
    return blocks


def _half(x: _Floats) -> NDArray[np.float16]:
    with np.errstate(over="ignore"):
        return x.astype(np.float16)


def _levels(x: _Floats, scales: NDArray[np.float16], least: int, most: int) -> _Floats:
    """Return the nearest levels `[blocks, 32]`; 0 where there is no scale."""
    each = scales.astype(np.float32)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.clip(np.where(each != 0, np.rint(x / each), 0), least, most).astype(np.float32)


def _sum(x: _Floats) -> _Floats:
    """Return sums `[blocks]`, input after input."""
    total: _Floats = np.zeros(len(x), np.float32)
    for column in x.T:
        total = total + column
    return total


def _fit(y: _Floats, total: _Floats, steps: _Floats) -> _Fit:
    """Return scale and minimum of least squared error for rounded `steps`, and how much they explain, `[blocks]`."""
    n: _Floats = np.full(1, INT4.block, np.float32)
    levels: _Floats = np.clip(np.rint(steps), 0, 15).astype(np.float32)
    each, squares, products = _sum(levels), _sum(levels * levels), _sum(levels * y)
    determinant: _Floats = np.maximum(n * squares - each * each, np.float32(1))
    scale: _Floats = np.divide(n * products - each * total, determinant)
    least: _Floats = np.divide(squares * total - each * products, determinant)
    return scale, least, scale * products + least * total


def _better(a: _Fit, b: _Fit) -> _Fit:
    """Return of each block the fit that explains more, the first of equal ones."""
    wins = b[2] > a[2]
    return np.where(wins, b[0], a[0]), np.where(wins, b[1], a[1]), np.where(wins, b[2], a[2])


def _weight(kind: Kind, outputs: int, *fields: NDArray[np.float16] | NDArray[np.uint8]) -> Weight:
    """Return blocks of which each has these fields, one after another."""
    data = np.concatenate([field.reshape(len(field), -1).view(np.uint8) for field in fields], axis=1)
    return Weight((Part(kind, torch.from_numpy(data).view(outputs, -1)),))
