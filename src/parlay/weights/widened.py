"""Blocks of one and two bits as blocks of four, which hold the same numbers: the kernels have the latter.

Source: ggml's `dequantize_row_q1_0` and `dequantize_row_q2_0`.

    Q1_0    float16 d, 16 bytes of 128 bits, the first one lowest: d where a bit is set, else -d
    Q2_0    float16 d, 16 bytes of 64 levels of two bits, the first one lowest: d * (level - 1)
    Q4_0    float16 d, 16 bytes of 32 levels of four bits, of two in a byte the higher 16 places on: d * (level - 8)
"""

import numpy as np
from numpy.typing import NDArray

from parlay.weights.kinds import BY_NAME, READ_AS, Kind

_ZERO = {BY_NAME["Q1_0"]: (7, 2), BY_NAME["Q2_0"]: (7, 1)}  # of four bits: the least level, and the step to the next


def widened(kind: Kind, blocks: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a matrix's blocks as those of `READ_AS[kind]`.

    Args:
        kind: kind of the blocks.
        blocks: `[outputs, bytes]`.

    Returns:
        `[outputs, bytes]`.
    """
    bits = 8 * (kind.size - 2) // kind.block
    packed = blocks.reshape(-1, kind.size)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    levels = (packed[:, 2:, None] >> shifts) & ((1 << bits) - 1)
    least, step = _ZERO[kind]
    wide = READ_AS[kind]
    four = (levels.reshape(len(packed), -1, wide.block) * step + least).astype(np.uint8)
    pairs = four[..., : wide.block // 2] | four[..., wide.block // 2 :] << 4
    scales = np.broadcast_to(packed[:, None, :2], (*pairs.shape[:2], 2))
    return np.concatenate((scales, pairs), axis=-1).reshape(len(blocks), -1)
