"""A KV cache in eight bits: the twin's bytes, and attention that reads them."""

import pytest
import torch

from parlay.kernels.base import AttentionMetadata
from parlay.kernels.reference import ReferenceKernels
from parlay.kernels.reference_cache_rows import in_bytes, in_numbers
from parlay.kernels.triton.elementwise import TritonElementwise
from parlay.kernels.triton.rotary import TritonRotary
from parlay.types.cache import row_bytes

from ..helpers import BLOCK, DTYPES, ints, random, same_bits  # noqa: TID252
from ..test_attention import mixed_view  # noqa: TID252
from ..test_cache_rows import extremes  # noqa: TID252
from .test_triton_attention import run
from .test_triton_elementwise import as_reference, results, thinned

SHAPES = ((4, 2, 32), (3, 1, 96), (2, 2, 256))


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # of scales, in the interpreter
@pytest.mark.parametrize(("shape", "dtype"), thinned(5, SHAPES, DTYPES), ids=str)
def test_keys_and_values(device: torch.device, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    heads, kv_heads, dim = shape
    rows, angles = 11, random(64, dim // 2, seed=3, spread=9)
    qkv = extremes(rows, (heads + 2 * kv_heads) * dim, dtype)
    positions, slots = torch.arange(rows, dtype=torch.int32), torch.tensor([3, 95, 16, 15, 0, 40, 7, 8, 9, -1, 50])
    q = torch.zeros((rows, heads, dim), dtype=dtype)
    stores = [torch.full((6, kv_heads, BLOCK, row_bytes(dim)), 9, dtype=torch.uint8) for _ in range(2)]
    given = qkv, positions, slots, torch.cat((angles.cos(), angles.sin()), 1), q, *stores
    found = results(TritonRotary(), "rotary_store", device, *given)
    expected = results(ReferenceKernels(), "rotary_store", torch.device("cpu"), *given)
    for ours, twin, before in zip(found[5:], expected[5:], stores, strict=True):
        assert torch.equal(ours, twin)
        assert not torch.equal(ours, before)


def test_values_of_another_width(device: torch.device) -> None:
    qkv, q = random(3, 4 * 96 + 2 * 64), torch.zeros(3, 2, 96)
    stores = [torch.full((2, 2, BLOCK, row_bytes(dim)), 9, dtype=torch.uint8) for dim in (96, 64)]
    given = qkv, torch.arange(3).int(), torch.tensor([3, 30, 5]), random(8, 8), q, *stores
    as_reference(TritonRotary(), device, "rotary_store", *given, exact=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_latents(device: torch.device, dtype: torch.dtype) -> None:
    """What is stored in eight bits of the numbers that are stored otherwise."""
    rows, dim, turning = 8, 96, 32
    query, latent, norm = (random(*of, dtype=dtype) for of in ((rows, 3, dim), (rows, dim), (dim - turning,)))
    slots, positions = torch.tensor([0, 5, -1, 2, 11, 6, 7, 8]), torch.arange(rows, dtype=torch.int32)
    given = query, latent, norm, 1e-6, positions, slots, random(rows, turning, seed=3)
    stored = torch.zeros(3, 1, 4, row_bytes(dim), dtype=torch.uint8)
    plain, found = torch.zeros(3, 1, 4, dim, dtype=dtype, device=device), stored.to(device)
    for cache in (plain, found):
        own = [each.clone().to(device) if isinstance(each, torch.Tensor) else each for each in given]
        TritonRotary().latent_store(*own, cache)
    assert torch.equal(found.cpu(), in_bytes(plain.cpu()))
    assert found.any()


@pytest.mark.parametrize("window", [0, 20])
@pytest.mark.parametrize(("shape", "dtype"), thinned(3, ((8, 2, 32), (2, 1, 96), (20, 1, 576)), DTYPES), ids=str)
def test_attention_is_that_over_the_numbers_that_it_reads(
    device: torch.device, shape: tuple[int, int, int], dtype: torch.dtype, window: int
) -> None:
    heads, kv_heads, dim = shape
    caches = [in_bytes(random(24, kv_heads, BLOCK, dim, dtype=dtype, seed=seed)) for seed in (1, 2)]
    numbers, view = [in_numbers(cache, dtype) for cache in caches], mixed_view()
    q = random(len(view.last), heads, dim, dtype=dtype, seed=3)
    found = run(device, q, *caches, view, window=window)
    assert same_bits(found, run(device, q, *numbers, view, window=window))
    begin, end = view.extra_offsets[1:3].tolist()
    own = [each[1:2] for each in (view.row_request, view.first, view.last)]
    alone = AttentionMetadata(view.tables, *own, ints(0, end - begin), view.extra_slots[begin:end])
    assert same_bits(run(device, q[1:2], *caches, alone, window=window)[0], found[1])


def test_slots_are_copied(device: torch.device) -> None:
    stores = [in_bytes(random(3, 2, 4, 64, seed=seed)) for seed in (1, 2)]
    as_reference(
        TritonElementwise(), device, "copy_slots", torch.tensor([1, 5]), torch.tensor([5, 11]), *stores, exact=True
    )
