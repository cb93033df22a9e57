"""Attention against the reference, and its contract: bits follow from the logical order of the keys alone."""

import pytest
import torch
from torch import Tensor

from parlay.kernels.base import AttentionMetadata
from parlay.kernels.reference import ReferenceKernels
from parlay.kernels.triton import attention
from parlay.kernels.triton.attention import TritonAttention

from ..helpers import DTYPES, ints, random  # noqa: TID252
from ..test_attention import caches, mixed_view  # noqa: TID252
from .test_triton_elementwise import thinned

SHAPES = ((8, 2, 32), (20, 1, 96), (4, 4, 64), (3, 1, 80))
OPTIONS = ({}, {"window": 9}, {"cap": 5.0}, {"sinks": True}, {"chunk": 9})


def moved(view: AttentionMetadata, device: torch.device) -> AttentionMetadata:
    return AttentionMetadata(*(getattr(view, name).to(device) for name in AttentionMetadata.__dataclass_fields__))


def run(
    device: torch.device, q: Tensor, keys: Tensor, values: Tensor, view: AttentionMetadata, **options: object
) -> Tensor:
    width = q.shape[2] if values.dtype is torch.uint8 else values.shape[3]
    out = torch.full((len(q), q.shape[1] * width), torch.nan, dtype=q.dtype, device=device)
    own = {key: value.to(device) if isinstance(value, Tensor) else value for key, value in options.items()}
    TritonAttention().attention(
        q.to(device), keys.to(device), values.to(device), moved(view, device), q.shape[2] ** -0.5, out, **own
    )
    return out.cpu()


@pytest.mark.parametrize(("options", "shape", "dtype"), thinned(7, OPTIONS, SHAPES, DTYPES), ids=str)
def test_equals_the_reference(
    device: torch.device,
    reference: ReferenceKernels,
    options: dict[str, object],
    shape: tuple[int, int, int],
    dtype: torch.dtype,
) -> None:
    heads, kv_heads, dim = shape
    if "sinks" in options:
        options = {"sinks": random(heads, seed=5)}
    view = mixed_view()
    q = random(len(view.last), heads, dim, dtype=dtype, seed=3)
    keys, values = caches(kv_heads, dim, dtype)
    expected = torch.empty(len(q), heads * dim, dtype=dtype)
    reference.attention(q, keys, values, view, dim**-0.5, expected, **options)
    found = run(device, q, keys, values, view, **options)
    tolerance = 2e-5 if dtype is torch.float32 else 2e-2
    assert torch.allclose(found.float(), expected.float(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("width", [8, 40])
def test_values_of_another_width(device: torch.device, width: int) -> None:
    """Each column is what it is beside others: here beside columns that fill values up, or keys."""
    view, (keys, values) = mixed_view(), caches(1, 40, torch.float32)
    q = random(len(view.last), 3, 40, seed=3)
    wide, dim = run(device, q, keys, values, view), 48 - width
    narrow_q, narrow_keys = (torch.cat((each[..., :dim], each[..., dim:] * 0), -1) for each in (q, keys))
    if dim < 40:
        wide = run(device, narrow_q * (40 / dim) ** 0.5, narrow_keys, values, view)
        q, keys = (each[..., :dim].contiguous() for each in (q, keys))
    found = run(device, q, keys, values[..., :width].contiguous(), view)
    expected = wide.view(len(q), 3, 40)[..., :width]
    assert torch.allclose(found.view(expected.shape), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_do_not_see_each_other(device: torch.device, dtype: torch.dtype) -> None:
    view = mixed_view()
    q = random(len(view.last), 3, 24, dtype=dtype, seed=3)
    keys, values = caches(1, 24, dtype)
    whole = run(device, q, keys, values, view)
    for row in range(len(q)):
        begin, end = view.extra_offsets[row : row + 2].tolist()
        alone = AttentionMetadata(
            view.tables,
            *(each[row : row + 1] for each in (view.row_request, view.first, view.last)),
            ints(0, end - begin),
            view.extra_slots[begin:end],
        )
        assert torch.equal(run(device, q[row : row + 1], keys, values, alone)[0], whole[row])


@pytest.mark.parametrize("dtype", DTYPES)
def test_keys_in_extra_slots_are_the_same_keys(device: torch.device, dtype: torch.dtype) -> None:
    keys, values = caches(1, 24, dtype)
    q, none = random(1, 3, 24, dtype=dtype, seed=3), ints(0)
    table = torch.arange(24, dtype=torch.int32)[None]
    plain = AttentionMetadata(table, none, none, ints(300), ints(0, 0), ints())
    extra = AttentionMetadata(table, none, none, ints(250), ints(0, 50), torch.arange(250, 300, dtype=torch.int32))
    assert torch.equal(run(device, q, keys, values, plain), run(device, q, keys, values, extra))


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_program_or_several(device: torch.device, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a row's chunks are combined by a second kernel is a matter of memory, and none of bits."""
    view = mixed_view()
    keys, values = caches(1, 24, dtype)
    q = random(len(view.last), 3, 24, dtype=dtype, seed=3)
    monkeypatch.setattr(attention, "_CHUNK", 32)
    several = run(device, q, keys, values, view, sinks=random(3, seed=5))
    monkeypatch.setattr(attention, "_ROOM", 0)
    assert torch.equal(run(device, q, keys, values, view, sinks=random(3, seed=5)), several)


def test_tiles_begin_at_multiples(device: torch.device) -> None:
    """What a row sees first is no matter: keys that weigh nothing before it are as good as none."""
    (keys, values), q = caches(1, 24, torch.float32), random(1, 3, 24, seed=3).abs()
    table, none = torch.arange(24, dtype=torch.int32)[None], ints(0)
    keys[0, 0, :9] = -1e4  # the first 9 keys
    found = [
        run(device, q, keys, values, AttentionMetadata(table, none, ints(first), ints(100), ints(0, 0), ints()))
        for first in (0, 9)
    ]
    assert torch.equal(*found)
