"""How many cache blocks there are, and whether they and the weights fit; computed before any weights are read."""

from collections.abc import Sequence
from dataclasses import dataclass

from parlay.config import EngineConfig
from parlay.errors import CapacityError, sized
from parlay.types.cache import NO_CAPACITY, CacheSpec, StateCapacity

# The cache, by default: at most a quarter of the memory that weights leave free, and no more than 1 GiB or a few
# sequences of full length, whichever is more. Pages take memory when they are first written.
_SHARE, _MODEST, _SEQUENCES = 4, 1 << 30, 4


# States of recurrent layers: two for each sequence that runs, and as many checkpoints as sequences; in all at most a
# quarter of the memory that weights leave free. Draft nodes: as many for each sequence as drafts usually have, twice,
# since those accepted stay for a step.
_SLOTS, _NODES = 3, 16


@dataclass(frozen=True, slots=True)
class Memory:
    """An engine's memory.

    Attributes:
        weights: bytes of all models.
        blocks, block_size: number of cache blocks, and tokens per block.
        bytes_per_token: bytes of cache per token.
        states: bytes of the states of recurrent layers, and of the inputs of draft nodes, once all have been used.
        room: number of these states and inputs.
    """

    weights: int
    blocks: int
    block_size: int
    bytes_per_token: int
    states: int = 0
    room: StateCapacity = NO_CAPACITY

    @property
    def tokens(self) -> int:
        """How many tokens the cache has room for."""
        return self.blocks * self.block_size

    @property
    def cache(self) -> int:
        """Bytes of the cache once all of it has been used."""
        return self.tokens * self.bytes_per_token


def state_room(config: EngineConfig, groups: Sequence[CacheSpec], available: int, weights: int) -> StateCapacity:
    """Return how much room there is for states of recurrent layers.

    Args:
        config: the engine's options.
        groups: every layer group.
        available: bytes of memory that are free.
        weights: bytes that the weights of all models will take.

    Raises:
        CapacityError: one sequence would not fit.
    """
    each = sum(group.bytes_per_slot * _SLOTS + group.bytes_per_place * _NODES for group in groups)
    if not each:
        return NO_CAPACITY
    left = max(available - weights, 0) // _SHARE
    sequences = min(config.max_num_seqs, left // each)
    if sequences < 1:
        raise CapacityError(
            f"the states of one sequence take {sized(each)}, but only {sized(left)} are left for them; take a "
            "smaller model, or free memory"
        )
    return StateCapacity(sequences * _SLOTS, sequences * _NODES)


def count_blocks(
    config: EngineConfig, groups: Sequence[CacheSpec], max_model_len: int, available: int, weights: int = 0
) -> int:
    """Return the size of the pool.

    Args:
        config: the engine's options.
        groups: every layer group that shares the pool's block ids.
        max_model_len: longest sequence.
        available: bytes of memory that are free.
        weights: bytes that the weights of all models will take.

    Raises:
        CapacityError: one sequence of full length would not fit, or weights and cache together would not.
    """
    per_block = max(1, config.block_size * sum(g.bytes_per_token for g in groups))  # a rank may have no key heads
    one_sequence = -(-max_model_len // config.block_size)
    share = config.gpu_memory_utilization
    limit = available if share is None else int(share * available)
    limit_name = f"{sized(limit)} are free" + ("" if share is None else f" under gpu_memory_utilization={share}")
    if config.num_blocks is not None:
        blocks = config.num_blocks
    elif config.kv_cache_memory is not None:
        blocks = config.kv_cache_memory // per_block
    else:
        if weights >= limit:
            raise CapacityError(
                f"the weights take {sized(weights)} but only {limit_name}; "
                "take a smaller model or dtype, or free memory"
            )
        left = limit - weights
        modest = max(_MODEST // per_block, _SEQUENCES * one_sequence)
        blocks = left // per_block if share else min(modest, left // _SHARE // per_block)
        blocks = min(one_sequence * config.max_num_seqs, blocks)
    if blocks < one_sequence:
        raise CapacityError(
            f"the cache holds {blocks * config.block_size} tokens, fewer than max_model_len={max_model_len}; lower "
            f"max_model_len, or raise kv_cache_memory to {one_sequence * per_block}"
        )
    if weights + blocks * per_block > limit:
        raise CapacityError(
            f"the weights would take {sized(weights)} and the cache {sized(blocks * per_block)}, but only "
            f"{limit_name}; lower kv_cache_memory or num_blocks"
        )
    return blocks
