"""How many cache blocks there are, decided before any weights are read."""

from collections.abc import Sequence

from parlay.config import EngineConfig
from parlay.errors import CapacityError
from parlay.types.cache import CacheSpec

_SHARE = 4  # of free memory, unless the user says otherwise: one part in four


def count_blocks(config: EngineConfig, groups: Sequence[CacheSpec], max_model_len: int, available: int) -> int:
    """Return the size of the pool.

    Args:
        config: the engine's options.
        groups: every layer group that shares the pool's block ids.
        max_model_len: longest sequence.
        available: bytes of memory that are free.

    Raises:
        CapacityError: one sequence of full length would not fit.
    """
    per_block = config.block_size * sum(g.bytes_per_token for g in groups)
    one_sequence = -(-max_model_len // config.block_size)
    if config.num_blocks is not None:
        blocks = config.num_blocks
    elif config.kv_cache_memory is not None:
        blocks = config.kv_cache_memory // per_block
    else:
        blocks = min(one_sequence * config.max_num_seqs, available // _SHARE // per_block)
    if blocks < one_sequence:
        raise CapacityError(
            f"the cache has room for {blocks * config.block_size} tokens but one sequence may have "
            f"{max_model_len}; lower max_model_len or give the cache {one_sequence * per_block} bytes "
            f"(kv_cache_memory)"
        )
    if blocks * per_block > available:
        raise CapacityError(
            f"the cache would take {blocks * per_block} bytes but only {available} are free; "
            "lower kv_cache_memory or num_blocks"
        )
    return blocks
