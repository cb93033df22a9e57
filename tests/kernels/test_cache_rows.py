"""A KV cache in eight bits: what is stored, and attention that reads it."""

import numpy as np
import pytest
import torch
from torch import Tensor

from parlay.kernels.base import Kernels
from parlay.kernels.reference import ReferenceKernels
from parlay.kernels.reference_cache_rows import in_bytes, in_numbers
from parlay.types.cache import row_bytes

from .helpers import BLOCK, DTYPES, attend, random, same_bits
from .test_attention import mixed_view
from .test_attention_bits import many_rows, view_of

gguf = pytest.importorskip("gguf")


def extremes(rows: int, width: int, dtype: torch.dtype) -> Tensor:
    """Numbers of many sizes: zeros, some whose scale is too small or too large, some that are not finite."""
    x = random(rows, width, dtype=dtype, spread=3)
    for row, factor in enumerate((0, 1e-9, 1e-6, 1e5, 1e9)):
        x[row] *= factor
    x[5, 0], x[6, width // 2], x[7, -1] = torch.nan, torch.inf, -torch.inf
    return x


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 2, 32), (3, 1, 96), (2, 2, 256)])
def test_the_native_kernels_store_what_the_twin_does(
    native: Kernels, reference: ReferenceKernels, dtype: torch.dtype, heads: int, kv_heads: int, dim: int
) -> None:
    rows = 11
    qkv = extremes(rows, (heads + 2 * kv_heads) * dim, dtype)
    positions, slots = torch.arange(rows, dtype=torch.int32), torch.tensor([3, 95, 16, 15, 0, 40, 7, 8, 9, -1, 50])
    angles = random(64, dim // 2, seed=3, spread=9)
    cos_sin, results = torch.cat((angles.cos(), angles.sin()), 1), []
    for kernels in (reference, native):
        q = torch.full((rows, heads, dim), torch.nan, dtype=dtype)
        caches = [torch.full((6, kv_heads, BLOCK, row_bytes(dim)), 9, dtype=torch.uint8) for _ in range(2)]
        kernels.rotary_store(qkv, positions, slots, cos_sin, q, *caches)
        results.append(caches)
    for ours, twin in zip(*results, strict=True):
        assert torch.equal(ours, twin)


@pytest.mark.parametrize("dtype", DTYPES)
def test_latents(native: Kernels, reference: ReferenceKernels, dtype: torch.dtype) -> None:
    rows, heads, dim, turning, results = 8, 3, 96, 32, []
    query, latent, norm = (random(*of, dtype=dtype) for of in ((rows, heads, dim), (rows, dim), (dim - turning,)))
    slots, positions = torch.tensor([0, 5, -1, 2, 11, 6, 7, 8]), torch.arange(rows, dtype=torch.int32)
    cos_sin = random(rows, turning, seed=3)
    for kernels in (reference, native):
        cache = torch.zeros(3, 1, 4, row_bytes(dim), dtype=torch.uint8)
        kernels.latent_store(query.clone(), latent, norm, 1e-6, positions, slots, cos_sin, cache)
        results.append(cache)
    assert torch.equal(*results)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_number_is_near_what_is_read(dtype: torch.dtype) -> None:
    """Half a step of its block, and of T; as the `gguf` package reads such blocks."""
    x = random(50, 64, dtype=dtype, spread=3)
    stored = in_bytes(x)
    whole = gguf.dequantize(stored.view(-1, 34).numpy(), gguf.GGMLQuantizationType.Q8_0).reshape(50, 64)
    assert same_bits(in_numbers(stored, dtype), torch.from_numpy(whole).to(dtype))
    steps = x.float().view(50, 2, 32).abs().amax(-1, keepdim=True).expand(50, 2, 32).reshape(50, 64).numpy() / 127
    assert (np.abs(whole - x.float().numpy()) <= steps * 0.502).all()


def test_what_is_not_finite_is_lost_with_its_block_alone() -> None:
    x = extremes(11, 64, torch.float32)
    assert in_numbers(in_bytes(x), torch.float32).view(11, 2, 32).isnan().any(-1).nonzero().tolist() == [
        [4, 0], [4, 1], [5, 0], [6, 1], [7, 1]
    ]  # fmt: skip


@pytest.mark.parametrize("window", [0, 20])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"), [(8, 2, 32), (3, 3, 64), (2, 1, 96), (6, 1, 128), (20, 1, 576)]
)
def test_attention_is_that_over_the_numbers_that_it_reads(
    kernels: Kernels, dtype: torch.dtype, heads: int, kv_heads: int, dim: int, window: int
) -> None:
    caches = [in_bytes(random(24, kv_heads, BLOCK, dim, dtype=dtype, seed=seed)) for seed in (1, 2)]
    numbers = [in_numbers(cache, dtype) for cache in caches]
    q, view, found = random(6, heads, dim, dtype=dtype), mixed_view(), []
    for keys, values in (caches, numbers):
        found.append(torch.empty(6, heads * dim, dtype=dtype))
        kernels.attention(q, keys, values, view, dim**-0.5, found[-1], window)
    assert same_bits(*found)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block", [8, 16])
def test_rows_that_share_their_reading(native: Kernels, dtype: torch.dtype, block: int) -> None:
    """Prompts, windows, chains and trees, by themselves and together."""
    slots, rows = 3 * 320 + 256, many_rows()
    caches = [in_bytes(random(slots // block, 2, block, 64, dtype=dtype, seed=seed)) for seed in (1, 2)]
    numbers = [in_numbers(cache, dtype) for cache in caches]
    q, view = random(300, 8, 64, dtype=dtype, seed=3), view_of(rows, block)
    expected = attend(native, q, *numbers, view)
    for threads in (1, 3):
        native.set_threads(threads)
        assert same_bits(attend(native, q, *caches, view), expected)
    for i in range(0, 300, 7):
        assert same_bits(attend(native, q[i : i + 1], *caches, view_of(rows[i : i + 1], block)), expected[i : i + 1])


def test_slots_are_copied(kernels: Kernels) -> None:
    keys, values = (in_bytes(random(3, 2, 4, 64, seed=seed)) for seed in (1, 2))
    before = keys.clone(), values.clone()
    kernels.copy_slots(torch.tensor([1, 5]), torch.tensor([5, 11]), keys, values)
    for now, then in zip((keys, values), before, strict=True):
        assert torch.equal(now[1, :, 1], then[0, :, 1])
        assert torch.equal(now[2, :, 3], then[1, :, 1])


def test_arguments_that_do_not_fit(native: Kernels) -> None:
    q, out, view = random(1, 2, 40), torch.empty(1, 80), mixed_view()
    wrong = torch.zeros(24, 1, BLOCK, row_bytes(32), dtype=torch.uint8)
    with pytest.raises(ValueError, match="multiple of 32"):
        native.attention(q, wrong, wrong, view, 1.0, out)
    right = torch.zeros(24, 1, BLOCK, 40)
    with pytest.raises(ValueError, match=r"keys are float32 .*, values uint8"):
        native.attention(q, right, wrong, view, 1.0, out)
