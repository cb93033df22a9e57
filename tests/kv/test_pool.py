"""The pool: three states a block can be in, eviction in order, and a recount that notices every fault."""

from collections.abc import Callable

import pytest

from parlay import CapacityError
from parlay.kv.pool import BlockPool


def test_takes_every_block_once() -> None:
    pool = BlockPool(4, 16)
    assert sorted(pool.take() for _ in range(4)) == [0, 1, 2, 3]
    assert pool.available == 0
    with pytest.raises(CapacityError, match="kv_cache_memory"):
        pool.take()


def test_a_released_block_is_free_again() -> None:
    pool = BlockPool(1, 16)
    pool.release(pool.take())
    assert pool.available == 1
    pool.take()
    pool.check([[0]])


def test_named_content_is_found_until_evicted() -> None:
    pool = BlockPool(2, 16)
    a = pool.take()
    pool.publish(a, b"a")
    pool.release(a)
    assert pool.find(b"a") == a
    assert pool.available == 2
    assert pool.take() != a, "free blocks go before cached ones"
    assert pool.find(b"a") == a
    assert pool.take() == a
    assert pool.find(b"a") is None


def test_eviction_is_oldest_first_and_sharing_renews() -> None:
    pool = BlockPool(3, 16)
    blocks = [pool.take() for _ in range(3)]
    for block in blocks:
        pool.publish(block, bytes([block]))
        pool.release(block)
    pool.share(blocks[0])
    pool.release(blocks[0])
    assert [pool.take() for _ in range(3)] == [blocks[1], blocks[2], blocks[0]]


def test_a_shared_block_needs_every_holder_to_let_go() -> None:
    pool = BlockPool(1, 16)
    block = pool.take()
    pool.publish(block, b"x")
    pool.share(block)
    pool.release(block)
    assert pool.available == 0
    pool.check([[block]])
    pool.release(block)
    assert pool.available == 1


def test_the_first_block_with_a_name_keeps_it() -> None:
    pool = BlockPool(2, 16)
    a, b = pool.take(), pool.take()
    pool.publish(a, b"same")
    pool.publish(b, b"same")
    assert pool.find(b"same") == a
    pool.release(b)
    pool.release(a)
    assert pool.find(b"same") == a
    pool.check([])


def test_validity_lives_as_long_as_the_content() -> None:
    pool = BlockPool(1, 16)
    block = pool.take()
    pool.mark_valid(block, "head")
    assert pool.is_valid(block, "head")
    assert not pool.is_valid(block, "other")
    pool.release(block)
    assert not pool.is_valid(pool.take(), "head"), "nameless content was given back"
    pool.publish(block, b"x")
    pool.mark_valid(block, "head")
    pool.release(block)
    assert pool.is_valid(block, "head"), "cached content keeps its validity"
    assert not pool.is_valid(pool.take(), "head"), "evicted content was forgotten"


def corrupt_free_twice(pool: BlockPool) -> None:
    pool._free.append(pool._free[0])


def corrupt_lose(pool: BlockPool) -> None:
    pool._free.popleft()


def corrupt_references(pool: BlockPool) -> None:
    pool._references[0] += 1


def corrupt_free_while_held(pool: BlockPool) -> None:
    pool._free.append(0)


def corrupt_cached_without_name(pool: BlockPool) -> None:
    pool._cached[pool._free.popleft()] = None


def corrupt_index(pool: BlockPool) -> None:
    pool._by_hash[b"ghost"] = 3


def corrupt_forgotten_name(pool: BlockPool) -> None:
    pool._by_hash.clear()


def corrupt_valid_while_free(pool: BlockPool) -> None:
    pool.mark_valid(pool._free[0], "head")


@pytest.mark.parametrize(
    "corrupt",
    [
        corrupt_free_twice,
        corrupt_lose,
        corrupt_references,
        corrupt_free_while_held,
        corrupt_cached_without_name,
        corrupt_index,
        corrupt_forgotten_name,
        corrupt_valid_while_free,
    ],
)
def test_check_notices(corrupt: Callable[[BlockPool], None]) -> None:
    pool = BlockPool(6, 4)
    held, cached = pool.take(), pool.take()
    pool.publish(cached, b"cached")
    pool.release(cached)
    pool.check([[held]])
    corrupt(pool)
    with pytest.raises(AssertionError):
        pool.check([[held]])


@pytest.mark.parametrize("tables", [[], [[0, 0]], [[0], [0]], [[0, 1]]])
def test_check_notices_wrong_tables(tables: list[list[int]]) -> None:
    pool = BlockPool(3, 4)
    pool.take()
    pool.check([[0]])
    with pytest.raises(AssertionError):
        pool.check(tables)
