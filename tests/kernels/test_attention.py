"""Attention against float64, and its contract: bits follow from the logical order of the keys alone."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from parlay.kernels.base import AttentionMetadata, Kernels
from parlay.kernels.reference import ReferenceKernels

from .helpers import BLOCK, DTYPES, attend, ints, random, same_bits, table_view

SHAPES = (
    (8, 2, 32),
    (4, 4, 64),
    (3, 1, 80),
    (2, 2, 96),
    (8, 2, 128),
    (2, 1, 8),
    (3, 3, 40),
    (2, 1, 256),
    (72, 1, 8),
    (20, 1, 576),
)
LENGTHS = (1, 15, 16, 17, 31, 32, 33, 65)


def caches(kv_heads: int, dim: int, dtype: torch.dtype, blocks: int = 24) -> tuple[Tensor, Tensor]:
    return (
        random(blocks, kv_heads, BLOCK, dim, dtype=dtype, seed=1),
        random(blocks, kv_heads, BLOCK, dim, dtype=dtype, seed=2),
    )


def slots_of(view: AttentionMetadata, row: int) -> list[int]:
    table = view.tables[view.row_request[row]].tolist()
    seen = [table[k // BLOCK] * BLOCK + k % BLOCK for k in range(int(view.first[row]), int(view.last[row]))]
    return seen + view.extra_slots[view.extra_offsets[row] : view.extra_offsets[row + 1]].tolist()


def exact_attention(q: Tensor, keys: Tensor, values: Tensor, view: AttentionMetadata) -> Tensor:
    rows, heads, dim = q.shape
    group = heads // keys.shape[1]
    flat = [c.transpose(1, 2).reshape(-1, *c.shape[1::2]).double() for c in (keys, values)]
    out = torch.zeros(rows, heads, values.shape[3], dtype=torch.float64)
    for row in range(rows):
        k, v = (f[slots_of(view, row)].repeat_interleave(group, 1) for f in flat)
        weights = (torch.einsum("hd,khd->hk", q[row].double(), k) * dim**-0.5).softmax(-1)
        out[row] = torch.einsum("hk,khd->hd", weights, v)
    return out.view(rows, -1)


def mixed_view() -> AttentionMetadata:
    """Plain rows, a draft's rows, a window and a row that sees only itself; two requests."""
    return AttentionMetadata(
        tables=torch.randperm(24, generator=torch.Generator().manual_seed(7)).view(2, 12).int(),
        row_request=ints(0, 0, 1, 1, 0, 1),
        first=ints(0, 0, 0, 5, 17, 0),
        last=ints(1, 100, 33, 64, 80, 0),
        extra_offsets=ints(0, 0, 0, 2, 2, 5, 6),
        extra_slots=ints(11, 200, 30, 31, 95, 17),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
def test_attention_is_right(kernels: Kernels, dtype: torch.dtype, heads: int, kv_heads: int, dim: int) -> None:
    q, (keys, values), view = random(6, heads, dim, dtype=dtype), caches(kv_heads, dim, dtype), mixed_view()
    out = attend(kernels, q, keys, values, view)
    exact = exact_attention(q, keys, values, view)
    # A float32 sum of weights times values of size up to 4, then one rounding.
    assert ((out.double() - exact).abs() <= 2e-6 + exact.abs() * torch.finfo(dtype).eps).all()


def test_sharp_scores_and_a_far_context(kernels: Kernels) -> None:
    """Scores in the hundreds over 380 keys: exp must neither overflow nor lose the few that matter."""
    q, (keys, values) = random(1, 2, 32, spread=60), caches(1, 32, torch.float32)
    view = table_view(torch.randperm(24).view(1, 24), [0], [380])
    out = attend(kernels, q, keys, values, view)
    torch.testing.assert_close(out.double(), exact_attention(q, keys, values, view), atol=2e-4, rtol=0)


def test_a_row_without_keys_gets_zeros(kernels: Kernels) -> None:
    q, (keys, values) = random(2, 2, 32), caches(2, 32, torch.float32)
    out = attend(kernels, q, keys, values, table_view(torch.zeros(1, 4), [0, 0], [0, 5]))
    assert (out[0] == 0).all()
    assert (out[1] != 0).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(8, 2, 32), (3, 1, 80), (4, 4, 64)])
def test_table_and_extra_slots_give_the_same_bits(
    kernels: Kernels, dtype: torch.dtype, heads: int, kv_heads: int, dim: int
) -> None:
    """The key at a logical index is the same key, however the row reaches it and wherever it lies."""
    keys, values = caches(kv_heads, dim, dtype)
    table = torch.randperm(24, generator=torch.Generator().manual_seed(1)).int()[None, :12]
    elsewhere = torch.tensor([b for b in range(24) if b not in table[0].tolist()])
    for length in LENGTHS:
        q = random(1, heads, dim, dtype=dtype, seed=length)
        expected = attend(kernels, q, keys, values, table_view(table, [0], [length]))
        whole = slots_of(table_view(table, [0], [length]), 0)
        for extras in {1, min(2, length), min(17, length), length}:
            # The last `extras` keys move to scattered slots of other blocks, in no order.
            moved = (elsewhere[:, None] * BLOCK + torch.arange(BLOCK)).flatten()
            moved = moved[torch.randperm(len(moved), generator=torch.Generator().manual_seed(extras))][:extras]
            their_keys, their_values = keys.clone(), values.clone()
            originals = torch.tensor(whole[length - extras :])
            ReferenceKernels().copy_slots(originals, moved, their_keys, their_values)
            for cache in (their_keys, their_values):  # what is not seen must not matter, even NaN
                cache[originals // BLOCK, :, originals % BLOCK] = torch.nan
            view = AttentionMetadata(table, ints(0), ints(0), ints(length - extras), ints(0, extras), moved.int())
            assert same_bits(attend(kernels, q, their_keys, their_values, view), expected), (length, extras)


@pytest.mark.parametrize("dtype", DTYPES)
def test_physical_blocks_do_not_matter(kernels: Kernels, dtype: torch.dtype) -> None:
    keys, values = caches(2, 32, dtype)
    q, table = random(8, 8, 32, dtype=dtype), torch.arange(12)[None]
    expected = attend(kernels, q, keys, values, table_view(table, [0] * 8, list(LENGTHS)))
    order = torch.randperm(24, generator=torch.Generator().manual_seed(3))
    place = order.argsort()
    out = attend(kernels, q, keys[order], values[order], table_view(place[table], [0] * 8, list(LENGTHS)))
    assert same_bits(out, expected)


@pytest.mark.parametrize("block_size", [1, 4, 16, 24, 64])
def test_the_block_size_does_not_matter(kernels: Kernels, block_size: int) -> None:
    keys, values = random(192, 2, 32, seed=1), random(192, 2, 32, seed=2)
    q, outs = random(3, 4, 32), []
    for size in (16, block_size):
        paged = [c.view(-1, size, 2, 32).transpose(1, 2).contiguous() for c in (keys, values)]
        view = table_view(torch.arange(192 // size)[None], [0] * 3, [33, 150, 192])
        outs.append(attend(kernels, q, *paged, view))
    assert same_bits(*outs)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_batch_gives_each_row_its_own_bits(kernels: Kernels, data: st.DataObject) -> None:
    """Rows of random views, drawn again in another company, order and number."""
    count = data.draw(st.integers(1, 8))
    dtype = data.draw(st.sampled_from(DTYPES))
    keys, values = caches(2, 32, dtype)
    tables = torch.stack([torch.randperm(24, generator=torch.Generator().manual_seed(i)) for i in range(3)]).int()
    rows = []
    for i in range(count):
        first = data.draw(st.sampled_from([0, 0, 0, 3, 16, 20]))
        last = data.draw(st.integers(first, 200))
        extras = data.draw(st.lists(st.integers(0, 24 * BLOCK - 1), max_size=5, unique=True))
        rows.append((i % 3, first, last, extras, random(1, 4, 32, dtype=dtype, seed=i)))

    def run(chosen: list[int]) -> Tensor:
        picked = [rows[i] for i in chosen]
        offsets = [0]
        for row in picked:
            offsets.append(offsets[-1] + len(row[3]))
        view = AttentionMetadata(
            tables,
            ints(*(r[0] for r in picked)),
            ints(*(r[1] for r in picked)),
            ints(*(r[2] for r in picked)),
            ints(*offsets),
            ints(*(slot for r in picked for slot in r[3])),
        )
        return attend(kernels, torch.cat([r[4] for r in picked]), keys, values, view)

    together = run(list(range(count)))
    chosen = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=6))
    assert same_bits(run(chosen), together[chosen])
