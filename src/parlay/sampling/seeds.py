"""Seeds: 64-bit integers derived so that neither batch nor schedule can change them."""

_MASK = (1 << 64) - 1


def mix(seed: int, index: int) -> int:
    """Return the seed of item `index` under `seed`; item 0 keeps the seed itself.

    SplitMix64's finaliser (Steele, Lea, Flood 2014) over the seed advanced by `index` golden gammas.
    """
    if index == 0:
        return seed & _MASK
    z = (seed + index * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


_ARRIVALS = 1 << 63  # an index that no completion has


def arrival_seed(engine_seed: int, ordinal: int) -> int:
    """Return the seed of the request without one that came as number `ordinal`, from 0 on.

    It is none of `mix(engine_seed, index)`, which a request that was given the engine's seed uses.
    """
    return mix(mix(engine_seed, _ARRIVALS), ordinal + 1)


def signed(seed: int) -> int:
    """Return the int64 with the same bits, as tensors hold seeds."""
    seed &= _MASK
    return seed - (1 << 64) if seed >> 63 else seed
