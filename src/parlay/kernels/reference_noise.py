"""Keyed noise, the slow twin: Philox4x32-10 (Salmon et al. 2011) and Gumbel variates made of its words."""

import numpy as np
import numpy.typing as npt

DoubleArray = npt.NDArray[np.float64]
WordArray = npt.NDArray[np.uint64]

_LOW = np.uint64(0xFFFFFFFF)


def philox(counter: WordArray, key: tuple[int, int]) -> WordArray:
    """Return the four words of Philox4x32-10 for each counter; `[n, 4]` of 32-bit values in uint64."""
    c0, c1, c2, c3 = (counter[:, i] for i in range(4))
    shift = np.uint64(32)
    for step in range(10):
        key0 = np.uint64((key[0] + step * 0x9E3779B9) & 0xFFFFFFFF)
        key1 = np.uint64((key[1] + step * 0xBB67AE85) & 0xFFFFFFFF)
        product0, product1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (
            (product1 >> shift) ^ c1 ^ key0,
            product1 & _LOW,
            (product0 >> shift) ^ c3 ^ key1,
            product0 & _LOW,
        )
    return np.stack((c0, c1, c2, c3), axis=1)


def ln(x: DoubleArray) -> DoubleArray:
    """Return the natural logarithm of positive normal doubles, by the same operations as the native one."""
    bits = x.view(np.int64)
    exponent = (bits - 0x3FE6A09E667F3BCD) >> 52  # x = 2^exponent m with m in [sqrt 1/2, sqrt 2)
    f = (bits - (exponent << 52)).view(np.float64) - 1
    s = f / (2 + f)
    z = s * s
    p = np.full_like(z, 1 / 21)
    for odd in range(19, 1, -2):
        p = p * z + 1 / odd
    n = exponent.astype(np.float64)
    twice = s + s
    high, low = float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")  # of ln 2
    return n * high + (twice + (twice * (p * z) + n * low))


def gumbel_noise(seed: int, position: int, vocab: int) -> DoubleArray:
    """Return `G(seed, position, token)` of the tokens below `vocab`."""
    counter = np.zeros(((vocab + 3) // 4, 4), dtype=np.uint64)
    counter[:, 0] = np.arange(len(counter), dtype=np.uint64)
    counter[:, 1] = position & 0xFFFFFFFF
    counter[:, 3] = position >> 32
    words = philox(counter, (seed & 0xFFFFFFFF, seed >> 32)).reshape(-1)[:vocab]
    u = (words.astype(np.float64) + 0.5) * 2.0**-32
    return -ln(-ln(1 - u))
