"""Block tables and the names of what their blocks hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.kv.pool import BlockPool
from parlay.kv.prefix import block_hash, root_hash
from parlay.kv.table import BlockTable

SIZE = 4


def computed_table(pool: BlockPool, tokens: list[int], salt: str = "") -> BlockTable:
    table = BlockTable(pool, salt)
    assert table.grow(len(tokens))
    table.publish(tokens, len(tokens))
    return table


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (12, 3)])
def test_growing_and_trimming(tokens: int, blocks: int) -> None:
    pool = BlockPool(8, SIZE)
    table = BlockTable(pool)
    assert table.grow(tokens)
    assert len(table.blocks) == blocks
    assert table.grow(max(tokens - 3, 0))
    assert len(table.blocks) == blocks, "growing never shrinks"
    kept = table.blocks[:1]
    table.trim(1)
    assert table.blocks == kept
    pool.check([table.blocks])


def test_growing_takes_all_or_nothing() -> None:
    pool = BlockPool(3, SIZE)
    table = BlockTable(pool)
    assert table.grow(5)
    assert not table.grow(13)
    assert len(table.blocks) == 2
    assert pool.available == 1


def test_a_prefix_is_shared_up_to_the_last_token() -> None:
    pool = BlockPool(8, SIZE)
    tokens = list(range(10))
    first = computed_table(pool, tokens)
    second = BlockTable(pool)
    assert second.adopt_prefix(tokens) == 8
    assert second.blocks == first.blocks[:2]
    third = BlockTable(pool)
    assert third.adopt_prefix(tokens[:8]) == 4, "one token must be left to compute"
    pool.check([first.blocks, second.blocks, third.blocks])


@pytest.mark.parametrize(
    ("tokens", "shared"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7, 9], 8),
        ([0, 1, 2, 3, 4, 5, 6, 9, 9], 4),
        ([9, 1, 2, 3, 4, 5, 6, 7, 9], 0),
        ([4, 5, 6, 7, 0, 1, 2, 3, 9], 0),
        ([0, 1, 2, 3], 0),
        ([0, 1, 2, 3, 0, 1, 2, 3, 9], 4),
    ],
)
def test_only_equal_beginnings_are_shared(tokens: list[int], shared: int) -> None:
    pool = BlockPool(16, SIZE)
    table = computed_table(pool, list(range(9)))
    assert BlockTable(pool).adopt_prefix(tokens) == shared
    assert table.blocks[0] == 0


def test_tenants_never_share() -> None:
    pool = BlockPool(16, SIZE)
    tokens = list(range(9))
    mine = computed_table(pool, tokens, "mine")
    assert BlockTable(pool, "theirs").adopt_prefix(tokens) == 0
    assert BlockTable(pool).adopt_prefix(tokens) == 0
    again = BlockTable(pool, "mine")
    assert again.adopt_prefix(tokens) == 8
    assert again.blocks == mine.blocks[:2]


def test_only_computed_full_blocks_are_published() -> None:
    pool = BlockPool(8, SIZE)
    tokens = list(range(12))
    table = BlockTable(pool)
    table.grow(12)
    for computed, findable in [(3, 0), (4, 4), (7, 4), (9, 8)]:
        table.publish(tokens, computed)
        other = BlockTable(pool)
        assert other.adopt_prefix([*tokens, 99]) == findable
        other.release()


def test_the_end_of_a_prefix_is_evicted_before_its_beginning() -> None:
    pool = BlockPool(3, SIZE)
    tokens = list(range(12))
    computed_table(pool, tokens).release()
    assert pool.available == 3
    other = BlockTable(pool)
    other.grow(1)
    assert BlockTable(pool).adopt_prefix([*tokens, 99]) == 8


def test_a_prefix_valid_for_the_target_may_not_be_for_a_head() -> None:
    pool = BlockPool(8, SIZE)
    tokens = list(range(13))
    table = computed_table(pool, tokens)
    table.mark_valid("head", 0, 9)
    table.release()
    again = BlockTable(pool)
    assert again.adopt_prefix(tokens) == 12
    assert again.valid_tokens("head", 12) == 8
    assert again.valid_tokens("head", 7) == 4
    assert again.valid_tokens("other", 12) == 0


def test_validity_continues_where_it_began() -> None:
    pool = BlockPool(8, SIZE)
    table = BlockTable(pool)
    table.grow(16)
    table.mark_valid("head", 0, 6)
    table.mark_valid("head", 6, 13)
    assert table.valid_tokens("head", 16) == 12


@given(st.lists(st.integers(0, 3), min_size=4, max_size=4), st.lists(st.integers(0, 3), min_size=4, max_size=4))
def test_names(a: list[int], b: list[int]) -> None:
    root = root_hash("")
    assert (block_hash(root, a) == block_hash(root, b)) == (a == b)
    assert block_hash(block_hash(root, a), b) != block_hash(root, b)
    assert block_hash(root_hash("tenant"), a) != block_hash(root, a)


def test_names_know_large_tokens_apart() -> None:
    root = root_hash("")
    assert len({block_hash(root, [t]) for t in (0, 1, 256, 65536, 1 << 31, 1 << 32)}) == 6
