"""The bits of a row do not depend on the number of rows, its place, the other rows or the threads."""

from collections.abc import Callable, Iterable
from typing import get_args

import pytest
import torch
from crossing import crossed
from torch import Tensor

from parlay.kernels.base import Activation, Kernels

from .breaking import OtherOrder
from .helpers import (
    DTYPES,
    EMULATED,
    act_mul,
    attend,
    cancelling,
    draw,
    filters_of,
    head,
    multiply,
    normalise,
    process,
    random,
    same_bits,
    table_view,
)

ROWS = 20 if EMULATED else 300
SOME_ROWS = (1, 2, 3, 5, 16, 33, 64, 150)
MANY_ROWS = (*range(1, 14), 16, 33, 48, 49, 64, 97, 257)

Rows = Callable[[Tensor], Tensor]  # row numbers -> their results


def check(kernels: Kernels, rows: Rows, numbers: tuple[int, ...] = SOME_ROWS, count: int = ROWS) -> None:
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    torch.set_num_threads(1)
    kernels.set_threads(1)
    expected = rows(torch.arange(count))
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        kernels.set_threads(threads)
        assert same_bits(rows(torch.arange(count)), expected), f"{threads} threads"
        for number in (n for n in numbers if n <= count):
            for chosen in (order[:number], torch.arange(count - number, count)):
                assert same_bits(rows(chosen), expected[chosen]), f"{number} rows, {threads} threads"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [96, 250])
def test_norm(kernels: Kernels, dtype: torch.dtype, width: int) -> None:
    x, weight = random(ROWS, width, dtype=dtype), random(width, dtype=dtype, seed=1)
    check(kernels, lambda rows: normalise(kernels, x[rows], weight))


@crossed(activation=get_args(Activation), width=[96, 250], dtype=DTYPES)
def test_act_mul(kernels: Kernels, dtype: torch.dtype, width: int, activation: Activation) -> None:
    gate_up = random(ROWS, 2 * width, dtype=dtype, spread=3)
    check(kernels, lambda rows: act_mul(kernels, gate_up[rows], activation))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rotary_store(kernels: Kernels, dtype: torch.dtype) -> None:
    qkv = random(ROWS, 8 * 40, dtype=dtype)
    positions, slots = torch.arange(ROWS).flip(0).int(), torch.randperm(ROWS)
    cos_sin = random(ROWS, 40, seed=1)

    def rows(chosen: Tensor) -> Tensor:
        q = torch.empty(len(chosen), 4, 40, dtype=dtype)
        keys, values = torch.zeros(20, 2, 16, 40, dtype=dtype), torch.zeros(20, 2, 16, 40, dtype=dtype)
        kernels.rotary_store(qkv[chosen], positions[chosen], slots[chosen], cos_sin, q, keys, values)
        stored = keys[slots[chosen] // 16, :, slots[chosen] % 16]
        return torch.cat((q.flatten(1), stored.flatten(1)), 1)

    check(kernels, rows)


@pytest.mark.parametrize("dtype", DTYPES)
def test_latent_store(kernels: Kernels, dtype: torch.dtype) -> None:
    query, latent = random(ROWS, 3, 72, dtype=dtype), random(ROWS, 72, dtype=dtype, seed=2)
    positions, slots = torch.arange(ROWS).flip(0).int(), torch.randperm(ROWS)
    cos_sin, norm = random(ROWS, 16, seed=1), random(56, dtype=dtype, seed=3)

    def rows(chosen: Tensor) -> Tensor:
        turned, cache = query[chosen].clone(), torch.zeros(20, 1, 16, 72, dtype=dtype)
        where = positions[chosen], slots[chosen], cos_sin
        kernels.latent_store(turned, latent[chosen], norm, 1e-6, *where, cache)
        return torch.cat((turned.flatten(1), cache[slots[chosen] // 16, 0, slots[chosen] % 16]), 1)

    check(kernels, rows)


@crossed(shape=[(256, 512), (640, 256), (96, 160), (1536, 50)], dtype=DTYPES)
def test_linear(kernels: Kernels, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    x, weight = cancelling(ROWS, *shape, dtype)
    check(kernels, products(kernels, "linear", x, weight), MANY_ROWS)


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits(kernels: Kernels, dtype: torch.dtype) -> None:
    x, weight = cancelling(ROWS, 256, 1000, dtype)
    check(kernels, products(kernels, "logits", x, weight), numbers=(1, 2, 3, 5, 8, 13, 48, 70))


def products(kernels: Kernels, operation: str, x: Tensor, weight: Tensor) -> Rows:
    """Return the function from row numbers to `linear`'s or `logits`' results, the weight packed once."""
    head = operation == "logits"
    packed = kernels.pack_head(weight) if head else kernels.pack_linear(weight)

    def rows(chosen: Tensor) -> Tensor:
        out = torch.full((len(chosen), len(weight)), torch.nan, dtype=torch.float32 if head else x.dtype)
        (kernels.logits if head else kernels.linear)(x[chosen], packed, out)
        return out

    return rows


def check_row_counts(kernels: Kernels, rows: Rows, counts: Iterable[int], distinct: int) -> None:
    """In calls of each size, on 1, 2 and 4 threads, each distinct row must have the bits it has alone.

    Rows repeat with a period that shares no factor with any block of rows, so that each meets every place.
    """
    torch.set_num_threads(1)
    kernels.set_threads(1)
    alone = torch.cat([rows(torch.tensor([i])) for i in range(distinct)])
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        kernels.set_threads(threads)
        for count in counts:
            chosen = torch.arange(count) % distinct
            assert same_bits(rows(chosen), alone[chosen]), f"{count} rows, {threads} threads"


SPREAD = (*range(1, 66, 3), 95, 96, 97, 128, 192, 193, 255, 257, 384, 511, 512, 513, 720, 999, 1000)


@pytest.mark.parametrize(
    ("operation", "dtype", "shape"),
    [
        pytest.param(operation, dtype, shape, marks=pytest.mark.soak if (i + j + k) % 2 else ())
        for i, operation in enumerate(("linear", "logits"))
        for j, dtype in enumerate(DTYPES)
        for k, shape in enumerate(((256, 96), (1100, 70)))
    ],
)
@pytest.mark.parametrize(
    "counts", [SPREAD, pytest.param(range(1, 1001), marks=pytest.mark.soak)], ids=["some", "all"]
)
def test_every_number_of_rows(
    kernels: Kernels, operation: str, dtype: torch.dtype, shape: tuple[int, int], counts: Iterable[int]
) -> None:
    x, weight = cancelling(11, *shape, dtype)
    check_row_counts(kernels, products(kernels, operation, x, weight), counts, distinct=11)


@pytest.mark.parametrize("operation", ["linear", "logits"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_place(kernels: Kernels, operation: str, dtype: torch.dtype) -> None:
    """One row in every place of calls of several sizes, among rows that are not even numbers."""
    x, weight = cancelling(1, 256, 40, dtype)
    strange = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e38]).to(dtype)
    neighbours = strange.repeat(64)[None]
    rows = products(kernels, operation, torch.cat((x, neighbours)), weight)
    alone = rows(torch.tensor([0]))
    for count in (2, 5, 6, 7, 49, 100):
        for place in range(count):
            chosen = torch.ones(count, dtype=torch.int64)
            chosen[place] = 0
            assert same_bits(rows(chosen)[place : place + 1], alone), f"place {place} of {count}"


def test_the_check_sees_one_other_order(reference: Kernels) -> None:
    x, weight = cancelling(11, 256, 96, torch.bfloat16)
    broken = OtherOrder(reference, lambda rows: rows == 513)
    with pytest.raises(AssertionError, match="513 rows, 1 threads"):
        check_row_counts(broken, products(broken, "linear", x, weight), SPREAD, distinct=11)


def test_cancelling_data_would_show_another_order() -> None:
    """The data of these tests must not be blind: summing K backwards changes nearly every result."""
    x, weight = cancelling(8, 256, 64, torch.float32)
    products = x[:, None] * weight
    forwards, backwards = torch.zeros(8, 64), torch.zeros(8, 64)
    for k in range(256):
        forwards += products[..., k]
        backwards += products[..., 255 - k]
    assert (forwards.bfloat16() != backwards.bfloat16()).float().mean() > 0.8


@crossed(shape=[(8, 2, 32), (3, 1, 80), (20, 1, 72)], dtype=DTYPES)
def test_attention(kernels: Kernels, dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    (heads, kv_heads, dim), count = shape, 45
    q = random(count, heads, dim, dtype=dtype)
    keys, values = (random(30, kv_heads, 16, dim, dtype=dtype, seed=s) for s in (1, 2))
    tables = torch.stack([torch.randperm(30)[:8] for _ in range(3)])
    lengths = [n % 33 + 1 if n % 3 else n + 60 for n in range(count)]

    def rows(chosen: Tensor) -> Tensor:
        numbers = chosen.tolist()
        view = table_view(tables, [n % 3 for n in numbers], [lengths[n] for n in numbers])
        return attend(kernels, q[chosen], keys, values, view)

    check(kernels, rows, numbers=(1, 2, 5, 33), count=count)


def test_draw(kernels: Kernels) -> None:
    scores = random(ROWS, 200, spread=2)
    temperatures = torch.arange(ROWS) % 4 * 0.5
    seeds = torch.arange(ROWS) * 2**40 - 2**47

    def rows(chosen: Tensor) -> Tensor:
        return draw(kernels, scores[chosen], temperatures[chosen], seeds[chosen], chosen)

    check(kernels, rows, numbers=(1, 2, 3, 64))


def test_filtered(kernels: Kernels) -> None:
    scores = random(ROWS, 600, spread=2)
    temperatures = (torch.arange(ROWS) % 4 * 0.5).clamp(min=0.1)
    limits = [(n % 2 * 0.01, n % 3 * 40, 1 - n % 5 * 0.2) for n in range(ROWS)]

    def rows(chosen: Tensor) -> Tensor:
        filters = filters_of([limits[n] for n in chosen.tolist()])
        drawn = draw(kernels, scores[chosen], temperatures[chosen], chosen, chosen, filters)
        return torch.cat((process(kernels, scores[chosen], temperatures[chosen], filters), drawn[:, None]), 1)

    check(kernels, rows, numbers=(1, 2, 3, 64))


def test_multiplying_in_pieces_is_multiplying_at_once(kernels: Kernels) -> None:
    """A prompt in chunks: the same rows in calls of every size."""
    x, weight = cancelling(61, 256, 96, torch.bfloat16)
    for function in (multiply, head):
        whole = function(kernels, x, weight)
        for size in (1, 2, 7, 16):
            pieces = [function(kernels, x[i : i + size], weight) for i in range(0, 61, size)]
            assert same_bits(torch.cat(pieces), whole)
