"""Norms: the reference's up to the order of a sum, and rows that do not know of each other."""

import pytest
import torch
from tests.kernels.helpers import DTYPES, random, same_bits
from torch import Tensor

from parlay.kernels.triton.norms import TritonNorms

from .test_triton_elementwise import ROWS, as_reference, check_rows, near, results, thinned

SIZES = ((1, 8), (3, 37), (17, 100), (2, 1500))
HEADS = ((1, 3, 2, 40), (3, 2, 1, 16), (17, 1, 1, 8), (3, 2, 0, 20))


@pytest.fixture
def kernels() -> TritonNorms:
    return TritonNorms()


@pytest.mark.parametrize(("size", "dtype", "plus_one"), thinned(3, SIZES, DTYPES, [False, True]), ids=str)
def test_rms_norms(
    kernels: TritonNorms, device: torch.device, size: tuple[int, int], dtype: torch.dtype, plus_one: bool
) -> None:
    rows, width = size
    x, delta = random(rows, width, dtype=dtype, spread=3), random(rows, width, dtype=dtype, seed=1)
    weight, out = random(width, dtype=dtype, seed=2), torch.full_like(x, torch.nan)
    as_reference(kernels, device, "rms_norm", x, weight, 1e-5, out, plus_one)
    as_reference(kernels, device, "rms_norm", x, weight, 1e-5, x, plus_one)
    as_reference(kernels, device, "rms_norm", x, weight, 1e-5, out, plus_one, delta)
    sums, *_, normed = results(kernels, "rms_norm", device, x, weight, 1e-5, delta, plus_one, delta)
    assert same_bits(sums, x + delta)
    assert same_bits(normed, results(kernels, "rms_norm", device, x + delta, weight, 1e-5, out, plus_one)[-1])


@pytest.mark.parametrize(("size", "dtype"), thinned(3, SIZES, DTYPES), ids=str)
def test_layer_norms(kernels: TritonNorms, device: torch.device, size: tuple[int, int], dtype: torch.dtype) -> None:
    rows, width = size
    x, delta = random(rows, width, dtype=dtype, spread=3), random(rows, width, dtype=dtype, seed=1)
    x += 4  # far from 0
    weight, bias = random(width, dtype=dtype, seed=2), random(width, dtype=dtype, seed=3)
    out = torch.full_like(x, torch.nan)
    as_reference(kernels, device, "layer_norm", x, weight, bias, 1e-5, out)
    as_reference(kernels, device, "layer_norm", x, weight, bias, 1e-5, x)
    as_reference(kernels, device, "layer_norm", x, weight, bias, 1e-5, out, delta)
    sums, *_, normed = results(kernels, "layer_norm", device, x, weight, bias, 1e-5, delta, delta)
    assert same_bits(sums, x + delta)
    assert same_bits(normed, results(kernels, "layer_norm", device, x + delta, weight, bias, 1e-5, out)[-1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_weight_is_met_where_transformers_meets_it(
    kernels: TritonNorms, device: torch.device, dtype: torch.dtype
) -> None:
    """Numbers are rounded before the weight. A sum in another order seldom moves one across a border."""
    x, weight = random(20, 200, dtype=dtype), random(200, dtype=dtype, seed=1)
    wide = x.float()
    normal = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
    found = results(kernels, "rms_norm", device, x, weight, 1e-5, torch.empty_like(x))[-1]
    if dtype is torch.bfloat16:
        assert (found != normal.to(dtype) * weight).sum() <= 12
        assert (found != (normal * weight.float()).to(dtype)).sum() > 100
    near(found, normal.to(dtype) * weight)


@pytest.mark.parametrize(
    ("shape", "dtype", "form"), thinned(5, HEADS, DTYPES, ["plain", "plus one", "values"]), ids=str
)
def test_head_norm(
    kernels: TritonNorms, device: torch.device, shape: tuple[int, int, int, int], dtype: torch.dtype, form: str
) -> None:
    rows, heads, kv_heads, dim = shape
    plus_one, values = form == "plus one", form == "values"
    qkv = random(rows, (heads + 2 * kv_heads) * dim, dtype=dtype, spread=3)
    q, k, v = (random(dim, dtype=dtype, seed=s) for s in (1, 2, 3))
    given = v if values else None
    as_reference(kernels, device, "head_norm", qkv, q, k, heads, 1e-5, plus_one, given)
    parts = results(kernels, "head_norm", device, qkv, q, k, heads, 1e-5, plus_one, given)[0].view(rows, -1, dim)
    if not values and kv_heads:
        assert same_bits(parts[:, -kv_heads:], qkv.view(rows, -1, dim)[:, -kv_heads:])
    first = qkv[:, :dim].contiguous()
    assert same_bits(parts[:, 0], results(kernels, "rms_norm", device, first, q, 1e-5, first, plus_one)[0])


def squares_of(kernels: TritonNorms, device: torch.device, qkv: Tensor, heads: int, kv_heads: int) -> list[Tensor]:
    nothing = [torch.full((len(qkv), n), torch.nan) for n in (heads, kv_heads)]
    return results(kernels, "head_squares", device, qkv, *nothing)[1:]


@pytest.mark.parametrize(("shape", "dtype"), thinned(3, HEADS, DTYPES), ids=str)
def test_joint_norm(
    kernels: TritonNorms, device: torch.device, shape: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    rows, heads, kv_heads, dim = shape
    qkv = random(rows, (heads + 2 * kv_heads) * dim, dtype=dtype, spread=3)
    weights = random(heads * dim, dtype=dtype, seed=1), random(kv_heads * dim, dtype=dtype, seed=2)
    own = squares_of(kernels, device, qkv, heads, kv_heads)
    exact = qkv.double().view(rows, -1, dim).square().sum(-1)[:, : heads + kv_heads]
    torch.testing.assert_close(torch.cat(own, 1).double(), exact, rtol=1e-5, atol=0)
    if kv_heads:
        as_reference(kernels, device, "joint_norm", qkv, *weights, *own, heads, 1e-5)
    else:  # the reference has no mean of nothing
        results(kernels, "joint_norm", device, qkv, *weights, *own, heads, 1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_joint_norm_on_ranks(kernels: TritonNorms, device: torch.device, dtype: torch.dtype) -> None:
    """A rank with some of the heads finds the bits that it would find with all of them."""
    heads, kv_heads, dim = 6, 3, 40
    qkv = random(2, (heads + 2 * kv_heads) * dim, dtype=dtype, spread=3)
    weights = random(heads * dim, dtype=dtype, seed=1), random(kv_heads * dim, dtype=dtype, seed=2)
    own = squares_of(kernels, device, qkv, heads, kv_heads)
    whole = results(kernels, "joint_norm", device, qkv, *weights, *own, heads, 1e-5)[0]
    q, k, v = (part[:, : n * dim] for part, n in zip(qkv.split((240, 120, 120), 1), (2, 1, 1), strict=True))
    part = torch.cat((q, k, v), 1).contiguous()
    few = squares_of(kernels, device, part, 2, 1)
    assert same_bits(few[0], own[0][:, :2])
    assert same_bits(few[1], own[1][:, :1])
    narrow = weights[0][: 2 * dim].contiguous(), weights[1][:dim].contiguous()
    found = results(kernels, "joint_norm", device, part, *narrow, *own, 2, 1e-5)[0]
    assert same_bits(found[:, : 2 * dim], whole[:, : 2 * dim])
    assert same_bits(found[:, 2 * dim : 3 * dim], whole[:, heads * dim : (heads + 1) * dim])
    assert same_bits(found[:, 3 * dim :], v)


@pytest.mark.parametrize(
    ("shape", "dtype", "shared", "gate_first"),
    thinned(5, ((1, 1, 100), (3, 4, 20), (17, 1, 37)), DTYPES, [False, True], [False, True]),
    ids=str,
)
def test_gated_norm(
    kernels: TritonNorms,
    device: torch.device,
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    shared: bool,
    gate_first: bool,
) -> None:
    rows, groups, group = shape
    x, gate = (random(rows, groups * group, dtype=dtype, seed=s, spread=3) for s in (0, 1))
    weight, out = random(group if shared else groups * group, dtype=dtype, seed=2), torch.full_like(x, torch.nan)
    as_reference(kernels, device, "gated_norm", x, gate, weight, group, 1e-5, gate_first, out)
    as_reference(kernels, device, "gated_norm", x, gate, weight, group, 1e-5, gate_first, x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_do_not_know_of_each_other(kernels: TritonNorms, device: torch.device, dtype: torch.dtype) -> None:
    x, y, out = (random(ROWS, 111, dtype=dtype, seed=s) for s in range(3))
    weight, bias, head = (random(n, dtype=dtype, seed=s) for s, n in ((3, 111), (4, 111), (5, 37)))
    check_rows(kernels, device, "rms_norm", x, weight, 1e-5, out)
    check_rows(kernels, device, "rms_norm", x, weight, 1e-5, out, True, y)
    check_rows(kernels, device, "layer_norm", x, weight, bias, 1e-5, out)
    check_rows(kernels, device, "layer_norm", x, weight, bias, 1e-5, out, y)
    check_rows(kernels, device, "head_norm", x, head, head, 1, 1e-5)
    check_rows(kernels, device, "gated_norm", x, y, head, 37, 1e-5, False, out)
    squares = random(ROWS, 2).abs(), random(ROWS, 1).abs()
    check_rows(kernels, device, "head_squares", x, squares[1], squares[1].clone())
    check_rows(kernels, device, "joint_norm", x, head, head, *squares, 1, 1e-5)


def test_no_rows(kernels: TritonNorms, device: torch.device) -> None:
    x, weight, squares = (torch.empty(*shape).to(device) for shape in ((0, 32), (32,), (0, 2)))
    kernels.rms_norm(x, weight, 1e-5, x)
    kernels.layer_norm(x, weight, weight, 1e-5, x, x)
    kernels.head_norm(x, weight[:8], weight[:8], 2, 1e-5)
    kernels.head_squares(x, squares, squares[:, :1])
    kernels.joint_norm(x, weight[:16], weight[:8], squares, squares, 2, 1e-5)
    kernels.gated_norm(x, x, weight, 32, 1e-5, False, x)
