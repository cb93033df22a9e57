"""What each machine of an engine has to hold, and what cache all of them have room for."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from parlay.config import EngineConfig
from parlay.engine.memory import count_blocks, state_room
from parlay.errors import CapacityError, sized
from parlay.models.config import ModelConfig
from parlay.models.select import cache_spec
from parlay.parallel.group import Group, RankPosition
from parlay.runner.footprint import weight_bytes
from parlay.types.cache import CacheSpec, StateCapacity


@dataclass(frozen=True, slots=True)
class MachineMemory:
    """What one machine has to hold.

    Attributes:
        weights: bytes of weights.
        groups: the layer groups of which it keeps tokens, all on the pool's block ids.
    """

    weights: int
    groups: tuple[CacheSpec, ...]

    @property
    def bytes_per_token(self) -> int:
        """Bytes that a token takes here; 0 on a rank without key heads."""
        return sum(group.bytes_per_token for group in self.groups)

    def state_bytes(self, room: StateCapacity) -> int:
        """Return the bytes of all states that there is room for."""
        return sum(group.state_bytes(room) for group in self.groups)


def memory_by_machine(
    config: EngineConfig, model: ModelConfig, dtype: torch.dtype, drafts: MachineMemory, drafters: int = 1
) -> tuple[MachineMemory, ...]:
    """Return what each machine has to hold, that of rank 0 first.

    Args:
        config: the engine's options.
        model: the target.
        dtype: dtype of activations and cache.
        drafts: memory that ranks that draft hold beside the target's layers, counted whole on each of them.
        drafters: number of ranks that draft.

    Raises:
        ModelError: files are missing or damaged.
    """
    size = config.machines
    weights = weight_bytes(model, dtype) // size
    # Ranks of one machine hold all of the model together.
    tp_size = config.tensor_parallel_size if size > 1 else 1
    specs = [cache_spec(model, dtype, RankPosition(rank, size, tp_size).group(None, None)) for rank in range(size)]
    return tuple(
        MachineMemory(weights + drafts.weights, (spec, *drafts.groups))
        if rank < drafters
        else MachineMemory(weights, (spec,))
        for rank, spec in enumerate(specs)
    )


def check_room(
    model: ModelConfig, dtype: torch.dtype, group: Group, tokens: int, room: StateCapacity, available: int
) -> None:
    """Make sure that this rank's share of the weights and of the cache fits into its machine, before it is made.

    Args:
        model: the target.
        dtype: dtype of activations and cache.
        group: this rank's position among the ranks.
        tokens: number of tokens that the cache has room for.
        room: capacity for states of recurrent layers.
        available: bytes of this machine's memory that are free.

    Raises:
        CapacityError: it does not fit.
        ModelError: files are missing or damaged.
    """
    weights = weight_bytes(model, dtype) // (group.size * group.pipeline.stages)
    spec = cache_spec(model, dtype, group)
    cache = tokens * spec.bytes_per_token + spec.state_bytes(room)
    if weights + cache > available:
        raise CapacityError(
            f"this rank's weights would take {sized(weights)} and its cache {sized(cache)}, but only "
            f"{sized(available)} are free on its machine; lower the engine's kv_cache_memory or num_blocks, or free "
            "memory there"
        )


def count_on_all(
    config: EngineConfig, machines: Sequence[MachineMemory], max_model_len: int, available: int
) -> tuple[int, StateCapacity]:
    """Return the size of the pool that every machine has room for, and the room for states.

    All are taken to have as much memory as this one.

    Raises:
        CapacityError: one sequence would not fit, see `count_blocks` and `state_room`.
    """
    room = min(state_room(config, load.groups, available, load.weights) for load in machines)
    blocks = min(
        count_blocks(config, load.groups, max_model_len, available, load.weights + load.state_bytes(room))
        for load in machines
    )
    return blocks, room
