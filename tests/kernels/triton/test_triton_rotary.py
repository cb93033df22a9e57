"""Rotations and what is stored: the reference's bits without a norm, and rows that do not know of each other."""

from typing import Any

import pytest
import torch
from tests.kernels.helpers import DTYPES, random, same_bits
from torch import Tensor

from parlay.kernels.reference import ReferenceKernels
from parlay.kernels.triton.norms import TritonNorms
from parlay.kernels.triton.rotary import TritonRotary

from .test_triton_elementwise import ROWS, as_reference, near, results, thinned

MAX_LEN = 64
BLOCK, BLOCKS = 8, 4  # slots of a block, and blocks


@pytest.fixture
def kernels() -> TritonRotary:
    return TritonRotary()


def table(turning: int) -> Tensor:
    angles = random(MAX_LEN, turning // 2, seed=3, spread=9)
    return torch.cat((angles.cos(), angles.sin()), 1)


def places(rows: int) -> tuple[Tensor, Tensor]:
    """Positions and slots of rows, the second of which is stored nowhere."""
    slots = torch.arange(rows) * 11 % (BLOCK * BLOCKS)
    slots[1:2] = -7
    return (torch.arange(rows) * 37 % MAX_LEN).int(), slots


def shapes(rows: int, heads: int, kv_heads: int, dim: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Queries, keys and values of rows; rotated queries, and caches, all still to be written."""
    q = torch.full((rows, heads, dim), torch.nan, dtype=dtype)
    caches = (torch.full((BLOCKS, kv_heads, BLOCK, dim), 9.0, dtype=dtype) for _ in range(2))
    return random(rows, (heads + 2 * kv_heads) * dim, dtype=dtype), q, *caches


@pytest.mark.parametrize(
    ("shape", "dtype"),
    thinned(3, ((1, 3, 1, 40, 40), (3, 4, 2, 32, 8), (3, 2, 2, 24, 0), (17, 1, 1, 80, 24)), DTYPES),
    ids=str,
)
def test_rotary_store(
    kernels: TritonRotary, device: torch.device, shape: tuple[int, int, int, int, int], dtype: torch.dtype
) -> None:
    rows, heads, kv_heads, dim, turning = shape
    qkv, *written = shapes(rows, heads, kv_heads, dim, dtype)
    given = qkv, *places(rows), table(turning), *written
    as_reference(kernels, device, "rotary_store", *given, exact=True)
    norms = random(dim, dtype=dtype, seed=1), random(dim, dtype=dtype, seed=2)
    as_reference(kernels, device, "rotary_store", *given, *norms, 1e-5)


@pytest.mark.parametrize("width", [8, 40])
def test_values_of_another_width(kernels: TritonRotary, device: torch.device, width: int) -> None:
    _, q, keys, _ = shapes(3, 2, 2, 24, torch.float32)
    qkv, values = random(3, 4 * 24 + 2 * width), torch.full((BLOCKS, 2, BLOCK, width), 9.0)
    as_reference(kernels, device, "rotary_store", qkv, *places(3), table(8), q, keys, values, exact=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_behind_rotation(kernels: TritonRotary, device: torch.device, dtype: torch.dtype) -> None:
    """They are `rms_norm` of what is stored without them."""
    qkv, *written = shapes(3, 1, 1, 40, dtype)
    given = qkv, *places(3), table(40), *written
    norms = random(40, dtype=dtype, seed=1), random(40, dtype=dtype, seed=2)
    plain = results(kernels, "rotary_store", device, *given)
    normed = results(kernels, "rotary_store", device, *given, *norms, 1e-5)
    stored = plain[5] != 9
    for found, before, weight in zip(normed[4:6], plain[4:6], norms, strict=True):
        x = before.view(-1, 40)
        expected = results(TritonNorms(), "rms_norm", device, x, weight, 1e-5, x)[0].view(before.shape)
        near(found[stored] if found is normed[5] else found, expected[stored] if found is normed[5] else expected)
    assert same_bits(normed[6], plain[6])


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_queries_alone(kernels: TritonRotary, device: torch.device, dtype: torch.dtype, norms: bool) -> None:
    """A layer that reads another one's keys gives a cache without heads."""
    cache, q, norm = (
        random(BLOCKS, 2, BLOCK, 40, dtype=dtype),
        random(3, 3 * 40, dtype=dtype),
        random(40, dtype=dtype),
    )
    out = []
    for ours, where in ((kernels, device), (ReferenceKernels(), torch.device("cpu"))):
        whole = cache.clone().to(where)
        found = torch.full((3, 3, 40), torch.nan, dtype=dtype, device=where)
        given = [t.to(where) for t in (q, *places(3), table(16))]
        own = norm.to(where) if norms else None
        ours.rotary_store(*given, found, whole[:, :0], whole[:, :0], own, own, 1e-5)
        assert same_bits(whole.cpu(), cache)
        out.append(found.cpu())
    near(*out)
    assert norms or same_bits(*out)


@pytest.mark.parametrize(
    ("shape", "dtype"), thinned(5, ((1, 3, 72, 16), (17, 1, 40, 8), (3, 2, 140, 24)), DTYPES), ids=str
)
def test_latents(
    kernels: TritonRotary, device: torch.device, shape: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    rows, heads, dim, turning = shape
    query, latent = random(rows, heads, dim, dtype=dtype), random(rows, dim, dtype=dtype, seed=1)
    norm, cache = random(dim - turning, dtype=dtype, seed=2), torch.full((BLOCKS, 1, BLOCK, dim), 9.0, dtype=dtype)
    given = query, latent, norm, 1e-6, *places(rows), table(turning), cache
    as_reference(kernels, device, "latent_store", *given)
    found = results(kernels, "latent_store", device, *given)
    expected = results(ReferenceKernels(), "latent_store", torch.device("cpu"), *given)
    assert same_bits(found[0], expected[0])
    assert same_bits(found[-1][..., :turning], expected[-1][..., :turning])


def entries(cache: Tensor, slots: Tensor) -> Tensor:
    return cache[slots // BLOCK, :, slots % BLOCK].cpu()


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_do_not_know_of_each_other(kernels: TritonRotary, device: torch.device, dtype: torch.dtype) -> None:
    (qkv, q, *caches), (positions, slots), cos_sin = shapes(ROWS, 1, 1, 36, dtype), places(ROWS), table(12)
    norms = [random(36, dtype=dtype, seed=s) for s in (1, 2)]
    latent, norm, cache = random(ROWS, 36, dtype=dtype), random(24, dtype=dtype, seed=1), caches[0][:, :1]

    def rotate(*rows: Any) -> list[Tensor]:
        own = [t.to(device)[slice(*rows)] for t in (qkv, positions, slots, q.clone())]
        stores = [c.clone().to(device) for c in caches]
        kernels.rotary_store(*own[:3], cos_sin.to(device), own[3], *stores, *(n.to(device) for n in norms), 1e-5)
        return [own[3].cpu(), *(entries(c, own[2]) for c in stores)]

    def store(*rows: Any) -> list[Tensor]:
        query = random(ROWS, 1, 36, dtype=dtype, seed=5)
        own = [t.to(device)[slice(*rows)] for t in (query, latent, positions, slots)]
        new = cache.clone().to(device)
        kernels.latent_store(own[0], own[1], norm.to(device), 1e-5, *own[2:], cos_sin.to(device), new)
        return [own[0].cpu(), entries(new, own[3])]

    for work in (rotate, store):
        whole = work(0, ROWS)
        for rows in ((0, 1), (2, 3), (3, ROWS)):
            for part, all_rows in zip(work(*rows), whole, strict=True):
                kept = slots[slice(*rows)] >= 0
                assert same_bits(part[kept], all_rows[slice(*rows)][kept])


def test_no_rows(kernels: TritonRotary, device: torch.device) -> None:
    given = [t.to(device) for t in (*places(0), table(8))]
    qkv, *written = (t.to(device) for t in shapes(0, 2, 1, 16, torch.float32))
    kernels.rotary_store(qkv, *given, *written)
    kernels.latent_store(written[0], qkv[:, :16], torch.ones(8).to(device), 1e-5, *given, written[1])
