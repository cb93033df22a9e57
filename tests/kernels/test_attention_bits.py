"""Attention shares its reading of keys among rows; each row's bits must be those it has alone.

The data cancels: what is left of a weighted sum is its rounding error, so another order of adding shows. On plain
random data it would hide behind the rounding to bfloat16.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
from crossing import crossed
from torch import Tensor

from parlay.kernels.base import AttentionMetadata, Kernels

from .helpers import DTYPES, attend, ints, random, same_bits
from .test_attention import exact_attention

BORDERS = (15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257)
KEYS, REQUESTS, SCRATCH = 320, 3, 256  # keys a request, requests, slots of draft nodes
SHAPES = ((8, 2, 64), (7, 1, 40), (2, 2, 128), (72, 1, 8))


@dataclass(frozen=True)
class Row:
    """What one row sees: the keys first..last-1 of a request, then slots."""

    request: int
    first: int
    last: int
    extras: tuple[int, ...] = ()


@cache
def _cancelling_cache(kv_heads: int, dim: int, dtype: torch.dtype, block: int) -> tuple[Tensor, Tensor]:
    """Seven keys, then the same seven mixed with opposite values, and so on; `[blocks, KV, block, D]` twice."""
    slots = REQUESTS * KEYS + SCRATCH
    sevens = (slots + 13) // 14
    generator = np.random.default_rng(5)
    order = torch.from_numpy(generator.permuted(np.tile(np.arange(7), (sevens, 1)), axis=1))
    caches = []
    for seed, sign in ((1, 1), (2, -1)):
        half = random(sevens, 7, kv_heads, dim, dtype=dtype, seed=seed)
        again = sign * half.gather(1, order[..., None, None].expand_as(half))
        flat = torch.cat((half, again), 1).reshape(-1, kv_heads, dim)[:slots]
        caches.append(flat.view(-1, block, kv_heads, dim).transpose(1, 2).contiguous())
    return caches[0], caches[1]


def tables(block: int) -> Tensor:
    return torch.arange(REQUESTS * KEYS // block, dtype=torch.int32).view(REQUESTS, -1)


def view_of(rows: Sequence[Row], block: int) -> AttentionMetadata:
    return AttentionMetadata(
        tables(block),
        ints(*(r.request for r in rows)),
        ints(*(r.first for r in rows)),
        ints(*(r.last for r in rows)),
        ints(*np.cumsum([0, *(len(r.extras) for r in rows)]).tolist()),
        ints(*(slot for r in rows for slot in r.extras)),
    )


def tree(request: int, last: int, nodes: int, seed: int) -> Iterator[Row]:
    """A root and nodes below it, each with a random parent; slots in no order."""
    generator = np.random.default_rng(seed)
    slots = REQUESTS * KEYS + generator.permutation(SCRATCH)
    paths: list[tuple[int, ...]] = [()]
    yield Row(request, 0, last)
    for node in range(nodes):
        paths.append((*paths[generator.integers(len(paths))], int(slots[node])))
        yield Row(request, 0, last, paths[-1])


def many_rows() -> list[Row]:
    """300 rows: a prompt, a prompt with a window, drafts as chains and trees, decoding at every border."""
    rows = [Row(0, 0, last) for last in range(1, 71)]
    rows += [Row(1, max(0, last - 40), last) for last in range(50, 120)]
    rows += [Row(request, 0, last) for last in BORDERS for request in (2, 0)]
    rows += [Row(1, last - 15, last) for last in BORDERS]
    for seed, last in enumerate((1, 15, 62, 64, 255)):
        rows += tree(seed % REQUESTS, last, 12, seed)
    rows += [Row(2, 0, 250 + i) for i in range(10)]
    rows += [Row(0, 33, 33), Row(0, 16, 16, (970, 961)), Row(0, 0, 0, (1000,)), Row(1, 30, 62, (990, 991, 992))]
    rows += [Row(1, 0, last) for last in range(200, 200 + 300 - len(rows))]
    return rows


def cancelling_cache(kv_heads: int, dim: int, dtype: torch.dtype, block: int) -> tuple[Tensor, Tensor]:
    keys, values = _cancelling_cache(kv_heads, dim, dtype, block)
    return keys.clone(), values.clone()


@crossed(shape=SHAPES, dtype=DTYPES)
def test_a_row_has_its_bits_in_any_company(native: Kernels, dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    heads, kv_heads, dim = shape
    keys, values = cancelling_cache(kv_heads, dim, dtype, 16)
    rows, q = many_rows(), random(300, heads, dim, dtype=dtype, seed=3)
    alone = torch.cat([attend(native, q[i : i + 1], keys, values, view_of([row], 16)) for i, row in enumerate(rows)])
    assert (alone != 0).any(1).sum() == 299  # all but the row without keys
    order = np.random.default_rng(4).permutation(300)
    batches = [np.arange(300), order, order[:97], np.arange(280)[::-1]]
    batches += [np.arange(count) + (37 * count) % (300 - count) for count in (*range(1, 14), 16, 24, 33, 64)]
    for number, batch in enumerate(batches):
        native.set_threads((1, 2, 4)[number % 3])
        out = attend(native, q[batch.copy()], keys, values, view_of([rows[i] for i in batch], 16))
        assert same_bits(out, alone[batch.copy()]), (number, len(batch))


@crossed(window=[None, 5, 64, 100], dtype=DTYPES)
def test_chunks_and_block_sizes_do_not_matter(native: Kernels, dtype: torch.dtype, window: int | None) -> None:
    """A prompt of 300 tokens at once, one by one, in chunks, and in blocks of other sizes; with a sliding window."""
    rows = [Row(1, max(0, last - window) if window else 0, last) for last in range(1, 301)]
    q, outs = random(300, 4, 64, dtype=dtype, seed=3), []
    for block in (8, 16, 32):
        keys, values = cancelling_cache(2, 64, dtype, block)
        for chunk in (300, 7, 64, *([1] if block == 16 else [])):
            native.set_threads(1 + chunk % 3)
            starts = range(0, 300, chunk)
            parts = [
                attend(native, q[at : at + chunk], keys, values, view_of(rows[at : at + chunk], block))
                for at in starts
            ]
            outs.append(torch.cat(parts))
    assert all(same_bits(out, outs[0]) for out in outs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_do_not_feel_what_their_neighbours_see(native: Kernels, dtype: torch.dtype) -> None:
    """Rows of one block share its keys; one that does not see a key must not meet its NaN, not even times zero."""
    keys, values = cancelling_cache(2, 32, dtype, 16)
    q = random(20, 4, 32, dtype=dtype, seed=3)
    rows = [Row(0, max(0, last - 30), last) for last in range(60, 80)]
    expected = attend(native, q, keys, values, view_of(rows, 16))
    for each in (keys, values):
        for key in (35, 70):
            each[key // 16, :, key % 16] = torch.nan
    out = attend(native, q, keys, values, view_of(rows, 16))
    for i, row in enumerate(rows):
        sees = row.first <= 35 < row.last or row.first <= 70 < row.last
        assert out[i].isnan().all() if sees else same_bits(out[i], expected[i])


@pytest.mark.parametrize("heads", [1, 3])
def test_tables_hold_nothing_before_the_windows(native: Kernels, heads: int) -> None:
    """Blocks that no window reaches may be gone, and entries behind the last key were never there."""
    keys, values = cancelling_cache(1, 32, torch.float32, 16)
    q, rows = random(6, heads, 32), [Row(1, last - 50, last) for last in range(200, 206)]
    expected, view = attend(native, q, keys, values, view_of(rows, 16)), view_of(rows, 16)
    view.tables[:, : 150 // 16] = 2**30
    view.tables[:, 206 // 16 + 1 :] = 2**30
    assert same_bits(attend(native, q, keys, values, view), expected)


def test_the_error_does_not_grow_with_the_context(native: Kernels) -> None:
    """Totals are sums over blocks of 64 keys, so 8,000 keys lose no more than a few hundred."""
    keys, values = random(500, 1, 16, 64, seed=1), random(500, 1, 16, 64, seed=2)
    table, q = torch.arange(500, dtype=torch.int32)[None], random(2, 2, 64)
    view = AttentionMetadata(table, ints(0, 0), ints(0, 0), ints(7990, 8000), ints(0, 0, 0), ints())
    error = attend(native, q, keys, values, view).double() - exact_attention(q, keys, values, view)
    assert error.abs().max() <= 2e-7
