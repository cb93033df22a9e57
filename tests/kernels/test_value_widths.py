"""Values that are not as wide as keys: each column is what it is beside others."""

import pytest
import torch
from torch import Tensor

from parlay.kernels.base import AttentionMetadata, Kernels
from parlay.kernels.reference_cache_rows import in_bytes
from parlay.types.cache import row_bytes

from .helpers import BLOCK, DTYPES, random, same_bits
from .test_attention import caches, exact_attention, mixed_view
from .test_attention_bits import cancelling_cache, many_rows, view_of

WIDTHS = (24, 16), (32, 72), (192, 128)  # of keys and of values


def attend(kernels: Kernels, q: Tensor, keys: Tensor, values: Tensor, view: AttentionMetadata, width: int) -> Tensor:
    out = torch.full((len(q), q.shape[1], width), torch.nan, dtype=q.dtype)
    kernels.attention(q, keys, values, view, q.shape[2] ** -0.5, out.view(len(q), -1))
    return out


def pieces(values: Tensor, width: int) -> list[Tensor]:
    """Return pieces of so many columns, the last one filled up."""
    whole = torch.nn.functional.pad(values, (0, -values.shape[3] % width))
    return [one.contiguous() for one in whole.split(width, -1)]


def in_pieces(kernels: Kernels, q: Tensor, keys: Tensor, values: Tensor, view: AttentionMetadata) -> Tensor:
    """As `attend`, of pieces of the values that are as wide as keys."""
    each = [attend(kernels, q, keys, one, view, keys.shape[3]) for one in pieces(values, keys.shape[3])]
    return torch.cat(each, -1)[..., : values.shape[3]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("dim", "width"), WIDTHS)
def test_attention(kernels: Kernels, dtype: torch.dtype, dim: int, width: int) -> None:
    q, view = random(6, 4, dim, dtype=dtype), mixed_view()
    keys, values = caches(2, dim, dtype)[0], caches(2, width, dtype)[1]
    found = attend(kernels, q, keys, values, view, width)
    assert same_bits(found, in_pieces(kernels, q, keys, values, view))
    exact = exact_attention(q, keys, values, view).view(6, 4, width)
    assert ((found.double() - exact).abs() <= 2e-6 + exact.abs() * torch.finfo(dtype).eps).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stored", [False, True], ids=["numbers", "bytes"])
@pytest.mark.parametrize(("dim", "width"), [(96, 64), (32, 96)])
def test_rows_that_share_their_reading(
    native: Kernels, dtype: torch.dtype, dim: int, width: int, *, stored: bool
) -> None:
    keys, values = cancelling_cache(2, dim, dtype, 16)[0], cancelling_cache(2, width, dtype, 16)[1]
    parts = pieces(values, dim)
    if stored:
        keys, values, *parts = (in_bytes(each) for each in (keys, values, *parts))
    rows, q = many_rows(), random(300, 8, dim, dtype=dtype, seed=3)
    expected = torch.cat([attend(native, q, keys, one, view_of(rows, 16), dim) for one in parts], -1)[..., :width]
    for threads in (1, 3):
        native.set_threads(threads)
        assert same_bits(attend(native, q, keys, values, view_of(rows, 16), width), expected)
    for i in range(0, 300, 11):
        alone = attend(native, q[i : i + 1], keys, values, view_of(rows[i : i + 1], 16), width)
        assert same_bits(alone[0], expected[i])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("dim", "width"), [(24, 16), (16, 40)])
def test_what_is_stored(kernels: Kernels, dtype: torch.dtype, dim: int, width: int) -> None:
    """Values behind queries and keys, whose bits are those that they have beside values as wide as they are."""
    rows, heads, kv_heads = 5, 4, 2
    turning, still = random(rows, 6 * dim, dtype=dtype), random(rows, kv_heads * width, dtype=dtype, seed=1)
    slots, positions = torch.tensor([3, 31, -1, 15, 16]), torch.arange(rows, dtype=torch.int32)
    angles, found = random(rows, 4, seed=3), []
    for own in (still, torch.zeros(rows, kv_heads * dim, dtype=dtype)):
        q = torch.full((rows, heads, dim), torch.nan, dtype=dtype)
        keys = torch.full((2, kv_heads, BLOCK, dim), 9.0, dtype=dtype)
        values = torch.full((2, kv_heads, BLOCK, own.shape[1] // kv_heads), 9.0, dtype=dtype)
        qkv = torch.cat((turning, own), 1)
        kernels.rotary_store(qkv, positions, slots, torch.cat((angles.cos(), angles.sin()), 1), q, keys, values)
        found.append((q, keys, values))
    assert all(same_bits(*both) for both in list(zip(*found, strict=True))[:2])
    flat = found[0][2].transpose(1, 2).reshape(2 * BLOCK, -1)
    assert same_bits(flat[slots[slots >= 0]], still[slots >= 0])
    assert (flat != 9).any(1).sum() == 4


def test_what_is_stored_in_bytes(kernels: Kernels) -> None:
    qkv, slots = random(3, 2 * 64 + 32), torch.tensor([0, 17, 5])
    keys, values = (torch.zeros((2, 1, BLOCK, row_bytes(width)), dtype=torch.uint8) for width in (64, 32))
    q = torch.empty(3, 1, 64)
    kernels.rotary_store(qkv, torch.arange(3, dtype=torch.int32), slots, torch.zeros(3, 0), q, keys, values)
    for cache, first, width in (keys, 64, 64), (values, 128, 32):
        assert torch.equal(cache.view(2 * BLOCK, -1)[slots], in_bytes(qkv[:, first : first + width].contiguous()))


def test_slots_are_copied(kernels: Kernels) -> None:
    keys, values = random(3, 2, 4, 24, seed=1), random(3, 2, 4, 16, seed=2)
    before = keys.clone(), values.clone()
    kernels.copy_slots(torch.tensor([1, 5]), torch.tensor([5, 11]), keys, values)
    for now, then in zip((keys, values), before, strict=True):
        assert torch.equal(now[1, :, 1], then[0, :, 1])
        assert torch.equal(now[2, :, 3], then[1, :, 1])
        assert torch.equal(now[0], then[0])
