"""What blocks hold, unpacked in numpy: integers, a scale for each group of them and, in some kinds, a minimum.

The slow, obvious twin of csrc/formats.h. Source: ggml's block structs and their dequantisation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parlay.weights.codebooks import codebook_of
from parlay.weights.kinds import Kind

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Whole = NDArray[np.integer[Any]]

_LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int32)
_THREE = (8, 25, 43)  # sizes that a codebook's codes mean
_EIGHT = (4, 12, 20, 28, 36, 44, 52, 62)
_EIGHTH = np.float32(0.125)
_ODD = (1, 3, 5, 7, 9, 11, 13, 15)
_MICRO = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int32)  # E2M1, doubled


@dataclass(frozen=True, slots=True)
class Blocks:
    """Numbers `scale * level + least`.

    Attributes:
        levels: `[n, numbers]`.
        scales: `[n, groups]`, of equally many numbers each.
        least: `[n, groups]`, or None where it is 0.
    """

    levels: Ints
    scales: Floats
    least: Floats | None

    @property
    def group(self) -> int:
        """Numbers that share a scale."""
        return int(self.levels.shape[1] // self.scales.shape[1])

    def numbers(self) -> Floats:
        """Return what is stored, float32 `[n, numbers]`."""
        numbers: Floats = self.levels.astype(np.float32) * self.scales.repeat(self.group, axis=1)
        return numbers if self.least is None else numbers + self.least.repeat(self.group, axis=1)


def unpack(kind: Kind, stored: Bytes) -> Blocks:
    """Return what rows of blocks hold.

    Args:
        kind: one of `COMPUTED`.
        stored: `[n, blocks * kind.size]`, as a file has them.
    """
    n = len(stored)
    one = _READERS[kind.name](np.ascontiguousarray(stored).reshape(-1, kind.size))
    least = None if one.least is None else one.least.reshape(n, -1)
    return Blocks(one.levels.reshape(n, -1), one.scales.reshape(n, -1), least)


def _half(b: Bytes, at: int) -> Floats:
    """Return a float16 of each block, `[n, 1]`."""
    return np.ascontiguousarray(b[:, at : at + 2]).view(np.float16).astype(np.float32)


def _halves(b: Bytes) -> Ints:
    """Return the low four bits of all bytes, then the high ones."""
    return np.concatenate((b & 15, b >> 4), axis=1).astype(np.int32)


def _bits(b: Bytes) -> Ints:
    return np.unpackbits(b, axis=1, bitorder="little").astype(np.int32)


def _pairs(b: Bytes) -> Ints:
    """Return pairs of bits: of every 32 bytes the lowest ones first."""
    parts = b.reshape(len(b), -1, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    return parts.reshape(len(b), -1).astype(np.int32)


def _q2_k(b: Bytes) -> Blocks:
    scales = _half(b, 80) * (b[:, :16] & 15).astype(np.float32)
    return Blocks(_pairs(b[:, 16:80]), scales, -_half(b, 82) * (b[:, :16] >> 4).astype(np.float32))


def _q3_k(b: Bytes) -> Blocks:
    high = (b[:, None, :32] >> np.arange(8, dtype=np.uint8)[:, None] & 1).reshape(len(b), -1).astype(np.int32)
    packed = b[:, 96:108]
    upper = packed[:, None, 8:] >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    scales = (_halves(packed[:, :8]) | upper.reshape(len(b), -1).astype(np.int32) << 4) - 32
    return Blocks((_pairs(b[:, 32:96]) | high << 2) - 4, _half(b, 108) * scales.astype(np.float32), None)


def _sixes(b: Bytes) -> tuple[Floats, Floats]:
    """Return eight scales and eight minimums of six bits from twelve bytes."""
    first, second, third = b[:, :4], b[:, 4:8], b[:, 8:12]
    scales = np.concatenate((first & 63, third & 15 | first >> 6 << 4), axis=1)
    least = np.concatenate((second & 63, third >> 4 | second >> 6 << 4), axis=1)
    return scales.astype(np.float32), least.astype(np.float32)


def _fours(b: Bytes) -> Ints:
    """Return four bits each: of every 32 bytes the low ones first."""
    parts = np.stack((b & 15, b >> 4), axis=1).reshape(len(b), 2, -1, 32)
    return parts.transpose(0, 2, 1, 3).reshape(len(b), -1).astype(np.int32)


def _q4_k(b: Bytes) -> Blocks:
    scales, least = _sixes(b[:, 4:16])
    return Blocks(_fours(b[:, 16:]), _half(b, 0) * scales, -_half(b, 2) * least)


def _q5_k(b: Bytes) -> Blocks:
    scales, least = _sixes(b[:, 4:16])
    high = b[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    levels = _fours(b[:, 48:]) | high.reshape(len(b), -1).astype(np.int32) << 4
    return Blocks(levels, _half(b, 0) * scales, -_half(b, 2) * least)


def _q6_k(b: Bytes) -> Blocks:
    low = b[:, :128].reshape(len(b), 2, 1, 64) >> np.array([0, 4], np.uint8)[:, None] & 15
    levels = low.reshape(len(b), -1).astype(np.int32) | _pairs(b[:, 128:192]) << 4
    scales = _half(b, 208) * b[:, 192:208].view(np.int8).astype(np.float32)
    return Blocks(levels - 32, scales, None)


def _iq4_xs(b: Bytes) -> Blocks:
    upper = np.ascontiguousarray(b[:, 2:4]).view(np.uint16) >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    lower = np.stack((b[:, 4:8] & 15, b[:, 4:8] >> 4), axis=2).reshape(len(b), -1)
    scales = (lower.astype(np.int32) | upper.astype(np.int32) << 4) - 32
    nibbles = _halves(b[:, 8:].reshape(-1, 16)).reshape(len(b), -1)
    return Blocks(_LEVELS[nibbles], _half(b, 0) * scales.astype(np.float32), None)


def _nibbles(b: Bytes) -> Ints:
    """Return four bits each, the low ones of a byte before the high ones."""
    return np.stack((b & 15, b >> 4), axis=2).reshape(len(b), -1).astype(np.int32)


def _words(b: Bytes, kind: type[np.unsignedinteger[Any]]) -> NDArray[np.int64]:
    return np.ascontiguousarray(b).view(kind).astype(np.int64)


def _from_codebook(name: str, sizes: Sequence[int], entries: Whole, negative: Ints, scales: Floats) -> Blocks:
    """Return blocks whose levels are sizes from a codebook, some of them negative.

    Args:
        name: name of the kind.
        sizes: sizes that the codebook's codes stand for.
        entries: indices of entries of the codebook, `[n, numbers / length of an entry]`.
        negative: bits `[n, numbers]`.
        scales: `[n, groups]`.
    """
    levels = np.array(sizes, np.int32)[codebook_of(name)[entries]].reshape(len(entries), -1)
    return Blocks(np.where(negative == 1, -levels, levels), scales, None)


def _signs(sevens: Ints) -> Ints:
    """Return the signs of eight numbers each, of which seven are stored: an even number is negative."""
    bits = sevens[..., None] >> np.arange(7) & 1
    return np.concatenate((bits, bits.sum(axis=-1, keepdims=True) & 1), axis=-1).reshape(len(sevens), -1)


def _odd(scales: Ints) -> Floats:
    return (2 * scales + 1).astype(np.float32)


def _iq2_xxs(b: Bytes) -> Blocks:
    parts = b[:, 2:].reshape(len(b), 8, 8)
    rest = _words(parts[:, :, 4:], np.uint32)
    scales = _EIGHTH * _half(b, 0) * _odd(rest[:, :, 0] >> 28)
    signs = _signs((rest >> np.array([0, 7, 14, 21]) & 127).reshape(len(b), -1))
    return _from_codebook("IQ2_XXS", _THREE, parts[:, :, :4].reshape(len(b), -1), signs, scales)


def _iq2_xs(b: Bytes) -> Blocks:
    both = _words(b[:, 2:66], np.uint16)
    scales = _EIGHTH * _half(b, 0) * _odd(_nibbles(b[:, 66:]))
    return _from_codebook("IQ2_XS", _THREE, both & 511, _signs(both >> 9), scales)


def _iq2_s(b: Bytes) -> Blocks:
    high = (b[:, 66:74, None] >> np.array([0, 2, 4, 6], np.uint8) & 3).reshape(len(b), -1)
    scales = _EIGHTH * _half(b, 0) * _odd(_nibbles(b[:, 74:]))
    return _from_codebook("IQ2_S", _THREE, b[:, 2:34] | high.astype(np.int32) << 8, _bits(b[:, 34:66]), scales)


def _iq3_xxs(b: Bytes) -> Blocks:
    rest = _words(b[:, 66:], np.uint32)
    signs = _signs((rest[:, :, None] >> np.array([0, 7, 14, 21]) & 127).reshape(len(b), -1))
    return _from_codebook("IQ3_XXS", _EIGHT, b[:, 2:66], signs, 2 * _EIGHTH * _half(b, 0) * _odd(rest >> 28))


def _iq3_s(b: Bytes) -> Blocks:
    entries = b[:, 2:66] | _bits(b[:, 66:74]) << 8
    return _from_codebook("IQ3_S", _ODD, entries, _bits(b[:, 74:106]), _half(b, 0) * _odd(_nibbles(b[:, 106:])))


def _moved(name: str, entries: Whole, less: Ints, scales: Floats) -> Blocks:
    """Return blocks of -1, 0 and 1 with an eighth added to each, or taken away; levels are in eighths.

    Args:
        name: name of the kind.
        entries: indices of entries of its codebook, `[n, numbers / 8]`.
        less: bits, 1 where the eighth is taken away, `[n, numbers / 8]`.
        scales: `[n, groups]`, of levels.
    """
    threes = np.array([-8, 0, 8], np.int32)[codebook_of(name)[entries]]
    return Blocks((threes + (1 - 2 * less[..., None])).reshape(len(entries), -1), scales, None)


def _iq1_s(b: Bytes) -> Blocks:
    rest = _words(b[:, 34:], np.uint16)
    high = (rest[:, :, None] >> np.array([0, 3, 6, 9]) & 7).reshape(len(b), -1)
    scales = _EIGHTH * _half(b, 0) * _odd(rest >> 12 & 7)
    return _moved("IQ1_S", b[:, 2:34] | high << 8, (rest >> 15).repeat(4, axis=1), scales)


def _iq1_m(b: Bytes) -> Blocks:
    words, high = _words(b[:, 48:], np.uint16), _nibbles(b[:, 32:48])
    factor = (words >> 12 << np.array([0, 4, 8, 12])).sum(axis=1, keepdims=True).astype(np.uint16)
    small = (words[:, :, None] >> np.array([0, 3, 6, 9]) & 7).reshape(len(b), -1)
    scales = factor.view(np.float16).astype(np.float32) * _EIGHTH * _odd(small)
    return _moved("IQ1_M", b[:, :32] | (high & 7) << 8, high >> 3, scales)


def _threes(b: Bytes, digits: int) -> Ints:
    """Return digits to the base 3 of bytes that are fractions of 256, the first ones of all bytes first."""
    powers = np.array([1, 3, 9, 27, 81][:digits], np.uint8)[:, None]
    return ((b[:, None] * powers).astype(np.int32) * 3 >> 8).reshape(len(b), -1)


def _tq1_0(b: Bytes) -> Blocks:
    digits = np.concatenate((_threes(b[:, :32], 5), _threes(b[:, 32:48], 5), _threes(b[:, 48:52], 4)), axis=1)
    return Blocks(digits - 1, _half(b, 52).repeat(8, axis=1), None)


_READERS: dict[str, Callable[[Bytes], Blocks]] = {
    "Q4_0": lambda b: Blocks(_halves(b[:, 2:]) - 8, _half(b, 0), None),
    "Q4_1": lambda b: Blocks(_halves(b[:, 4:]), _half(b, 0), _half(b, 2)),
    "Q5_0": lambda b: Blocks((_halves(b[:, 6:]) | _bits(b[:, 2:6]) << 4) - 16, _half(b, 0), None),
    "Q5_1": lambda b: Blocks(_halves(b[:, 8:]) | _bits(b[:, 4:8]) << 4, _half(b, 0), _half(b, 2)),
    "Q8_0": lambda b: Blocks(b[:, 2:].view(np.int8).astype(np.int32), _half(b, 0), None),
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": lambda b: Blocks(_LEVELS[_halves(b[:, 2:])], _half(b, 0), None),
    "IQ4_XS": _iq4_xs,
    "IQ2_XXS": _iq2_xxs,
    "IQ2_XS": _iq2_xs,
    "IQ2_S": _iq2_s,
    "IQ3_XXS": _iq3_xxs,
    "IQ3_S": _iq3_s,
    "IQ1_S": _iq1_s,
    "IQ1_M": _iq1_m,
    "TQ1_0": _tq1_0,
    "TQ2_0": lambda b: Blocks(_pairs(b[:, :64]) - 1, _half(b, 64).repeat(8, axis=1), None),
    "MXFP4": lambda b: Blocks(
        _MICRO[_halves(b[:, 1:])], np.ldexp(np.float32(1), b[:, :1].astype(np.int32) - 128), None
    ),
}
