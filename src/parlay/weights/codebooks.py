"""Codebooks: what entries of eight or four numbers stand for in kinds that store the entries' places.

Source: ggml's grids, as the `gguf` package has them.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

_NAMES = ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M")


@cache
def codebook_of(name: str) -> NDArray[np.uint8]:
    """Return places of numbers among those in a kind's codebook, least first: `[entries, length of an entry]`."""
    from gguf import quants  # only for models that have such weights

    grid = getattr(quants, name)
    grid.init_grid()
    codebook: NDArray[np.uint8] = np.searchsorted(grid.grid_map, grid.grid.reshape(grid.grid_shape)).astype(np.uint8)
    return codebook


def has_codebook(name: str) -> bool:
    """Return whether a kind stores places in a codebook."""
    return name in _NAMES
