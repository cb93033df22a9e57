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


def blocks(available: int = 1 << 40, groups: tuple[CacheSpec, ...] = (TARGET,), **options: Any) -> int:
    return count_blocks(EngineConfig(**options), groups, LENGTH, available)


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
