"""How large the pool becomes, and when it is refused."""

from typing import Any

import pytest
import torch
from checkpoints import write_llama

from parlay import CapacityError
from parlay.config import EngineConfig
from parlay.engine.machine_memory import MachineMemory, check_room, count_on_all, memory_by_machine
from parlay.engine.memory import count_blocks
from parlay.models.config import ModelConfig
from parlay.models.select import describe_model
from parlay.parallel.group import Group
from parlay.types.cache import CacheSpec, StateCapacity

TARGET, DRAFT = CacheSpec(3, 2, 16, 4), CacheSpec(1, 1, 8, 4)
PER_TOKEN = 2 * 3 * 2 * 16 * 4
LENGTH = 100  # seven blocks of 16


def blocks(
    available: int = 1 << 40, groups: tuple[CacheSpec, ...] = (TARGET,), weights: int = 0, **options: Any
) -> int:
    return count_blocks(EngineConfig(**options), groups, LENGTH, available, weights)


def test_room_for_every_sequence_at_full_length() -> None:
    assert blocks(max_num_seqs=5) == 35
    assert blocks(max_num_seqs=5, block_size=1) == 500


def test_a_quarter_of_what_is_free_at_most() -> None:
    assert blocks(4 * 9 * 16 * PER_TOKEN) == 9
    assert blocks(4 * 10 * 16 * PER_TOKEN - 1) == 9


def test_what_the_user_says() -> None:
    assert blocks(num_blocks=8) == 8
    assert blocks(kv_cache_memory=20 * 16 * PER_TOKEN) == 20
    assert blocks(num_blocks=8, kv_cache_memory=1) == 8


def test_every_group_counts() -> None:
    assert TARGET.bytes_per_token == PER_TOKEN
    both = PER_TOKEN + 2 * 8 * 4
    assert blocks(groups=(TARGET, DRAFT), kv_cache_memory=20 * 16 * both - 1) == 19


@pytest.mark.parametrize(
    ("available", "options"),
    [
        (1 << 40, {"num_blocks": 6}),
        (1 << 40, {"kv_cache_memory": 7 * 16 * PER_TOKEN - 1}),
        (4 * 7 * 16 * PER_TOKEN - 1, {}),
        (1000, {"num_blocks": 7}),
    ],
)
def test_too_little(available: int, options: dict[str, int]) -> None:
    with pytest.raises(CapacityError, match="lower"):
        blocks(available, **options)


BLOCK = 16 * PER_TOKEN


def test_a_quarter_of_what_the_weights_leave() -> None:
    assert blocks(1000 + 4 * 9 * BLOCK, weights=1000) == 9
    assert blocks(999 + 4 * 9 * BLOCK, weights=1000) == 8


def test_a_share_for_weights_and_cache_together() -> None:
    assert blocks(2000 + 2 * 9 * BLOCK, weights=1000, gpu_memory_utilization=0.5) == 9
    assert blocks(1998 + 2 * 9 * BLOCK, weights=1000, gpu_memory_utilization=0.5) == 8
    assert blocks(max_num_seqs=2, gpu_memory_utilization=0.5) == 14, "no more than can be used"


@pytest.mark.parametrize(
    ("available", "weights", "options", "match"),
    [
        (1000, 1000, {}, "the weights take 1000 bytes but only 1000 bytes are free"),
        (1999, 1000, {"gpu_memory_utilization": 0.5}, "only 999 bytes are free under gpu_memory_utilization=0.5"),
        (7 * BLOCK + 999, 1000, {"num_blocks": 7}, f"1000 bytes and the cache {7 * BLOCK} bytes, but only"),
        (
            2 * 7 * BLOCK + 1998,
            1000,
            {"kv_cache_memory": 7 * BLOCK, "gpu_memory_utilization": 0.5},
            "under gpu_memory_utilization=0.5; lower kv_cache_memory",
        ),
    ],
    ids=str,
)
def test_weights_and_cache_do_not_fit(available: int, weights: int, options: dict[str, Any], match: str) -> None:
    with pytest.raises(CapacityError, match=match):
        blocks(available, weights=weights, **options)
    assert blocks(2 * available + 4 * 7 * BLOCK, weights=weights, **options) >= 7


# ------------------------------------------------------------------------------------------------ several machines

HEADS = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    """Of four layers and three key heads."""
    shape = {"num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": HEADS, "hidden_size": 96}
    return describe_model(str(write_llama(tmp_path_factory.mktemp("memory") / "target", **shape)))


def split(model: ModelConfig, drafts: MachineMemory, drafters: int = 1, **options: Any) -> list[tuple[int, int]]:
    """Return layers times key heads of the target, and groups, on each machine."""
    found = memory_by_machine(EngineConfig(**options), model, torch.float32, drafts, drafters)
    return [(load.groups[0].layers * load.groups[0].kv_heads, len(load.groups)) for load in found]


AWAY = {"rank_address": "10.0.0.1:29500"}
NOTHING = MachineMemory(0, ())
A_DRAFT = MachineMemory(100, (DRAFT,))


def test_ranks_of_one_machine_hold_all_together(model: ModelConfig) -> None:
    for ranks in ({}, {"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}):
        assert split(model, A_DRAFT, **ranks) == [(4 * HEADS, 2)]


def test_each_machine_holds_its_own_heads_or_layers(model: ModelConfig) -> None:
    assert split(model, NOTHING, tensor_parallel_size=2, **AWAY) == [(4, 1), (8, 1)]
    assert split(model, NOTHING, tensor_parallel_size=4, **AWAY) == [(0, 1), (4, 1), (4, 1), (4, 1)]
    assert split(model, NOTHING, pipeline_parallel_size=3, **AWAY) == [(3, 1), (6, 1), (3, 1)]
    ray = {"distributed_executor_backend": "ray"}
    assert split(model, NOTHING, tensor_parallel_size=3, **ray) == [(4, 1)] * 3


def test_who_drafts_holds_the_draft_too(model: ModelConfig) -> None:
    assert split(model, A_DRAFT, tensor_parallel_size=2, **AWAY) == [(4, 2), (8, 1)]
    first, second, third, _ = memory_by_machine(
        EngineConfig(tensor_parallel_size=4, **AWAY), model, torch.float32, A_DRAFT, drafters=2
    )
    assert first.weights == second.weights == third.weights + 100
    assert (first.bytes_per_token, second.bytes_per_token) == (64, third.bytes_per_token + 64)


def test_the_pool_is_what_every_machine_has_room_for() -> None:
    narrow, wide, none = CacheSpec(3, 1, 16, 4), CacheSpec(3, 2, 16, 4), CacheSpec(3, 0, 16, 4)

    def counted(available: int, *machines: MachineMemory, **options: Any) -> int:
        return count_on_all(EngineConfig(**options), machines, LENGTH, available)[0]

    assert counted(1 << 40, MachineMemory(0, (narrow,)), MachineMemory(0, (wide,)), kv_cache_memory=20 * BLOCK) == 20
    assert (
        counted(1 << 40, MachineMemory(0, (narrow,)), MachineMemory(0, (narrow,)), kv_cache_memory=20 * BLOCK) == 40
    )
    assert counted(1000 + 4 * 9 * BLOCK, MachineMemory(1000, (wide,)), MachineMemory(0, (wide,))) == 9
    assert counted(4 * 9 * BLOCK, MachineMemory(0, (none,)), MachineMemory(0, (wide,))) == 9
    with pytest.raises(CapacityError, match="the weights take 2000 bytes but only 1000"):
        counted(1000, MachineMemory(2000, (none,)), MachineMemory(0, (wide,)))


def test_a_rank_with_less_memory_says_so(model: ModelConfig) -> None:
    (load, _) = memory_by_machine(EngineConfig(tensor_parallel_size=2, **AWAY), model, torch.float32, NOTHING)
    need = load.weights + 100 * load.bytes_per_token
    check_room(model, torch.float32, Group(0, 2), 100, StateCapacity(), need)
    with pytest.raises(CapacityError, match=f"only {need - 1} bytes are free on its machine; lower the engine's"):
        check_room(model, torch.float32, Group(0, 2), 100, StateCapacity(), need - 1)
