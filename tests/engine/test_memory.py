"""How large the pool becomes, and when it is refused."""

from typing import Any

import pytest

from parlay import CapacityError
from parlay.config import EngineConfig
from parlay.engine.memory import count_blocks
from parlay.types.cache import CacheSpec

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
        (7 * BLOCK + 999, 1000, {"num_blocks": 7}, f"1000 bytes and the cache {7 * BLOCK}, but only"),
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
