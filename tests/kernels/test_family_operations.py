"""Operations that some families need: against float64, native against the twin, and rows by themselves."""

from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from parlay.kernels.base import Activation, AttentionMetadata, Kernels
from parlay.kernels.reference import ReferenceKernels

from .helpers import BLOCK, DTYPES, attend, ints, random, same_bits, table_view
from .test_attention import caches, exact_attention, mixed_view, slots_of
from .test_elementwise import ACTIVATIONS, close
from .test_row_invariance import ROWS, check

WIDTHS = (8, 37, 256, 1000)


def layer_norm(kernels: Kernels, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    out = torch.full_like(x, torch.nan)
    kernels.layer_norm(x, weight, bias, 1e-5, out)
    return out


def in_place(work: Callable[[Tensor], object], x: Tensor) -> Tensor:
    x = x.clone()
    work(x)
    return x


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_layer_norm_is_right(kernels: Kernels, dtype: torch.dtype, width: int) -> None:
    x = (random(5, width, spread=3) + 40).to(dtype)  # far from 0: a difference of squares would be lost
    weight, bias = random(width, dtype=dtype, seed=1), random(width, dtype=dtype, seed=2)
    distance = x.double() - x.double().mean(-1, keepdim=True)
    normal = distance / (distance.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    exact = normal * weight.double() + bias.double()
    error = (layer_norm(kernels, x, weight, bias).double() - exact).abs()
    # The mean is rounded to float32 at a size of 40, before it is subtracted.
    assert (error <= torch.finfo(dtype).eps * exact.abs().clamp(min=1) + 3e-5).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_layer_norm_of_a_sum(kernels: Kernels, dtype: torch.dtype, width: int) -> None:
    x, delta = random(5, width, dtype=dtype), random(5, width, dtype=dtype, seed=1)
    weight, bias = random(width, dtype=dtype, seed=2), random(width, dtype=dtype, seed=3)
    residual = x.clone()
    out = delta.clone()
    kernels.layer_norm(residual, weight, bias, 1e-5, out, out)
    assert same_bits(residual, x + delta)
    assert same_bits(out, layer_norm(kernels, x + delta, weight, bias))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_norm_whose_weight_is_stored_less_one(kernels: Kernels, dtype: torch.dtype, width: int) -> None:
    x, weight = random(5, width, dtype=dtype, spread=3), random(width, dtype=dtype, seed=1, spread=0.1)
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * (1 + weight.double())
    out = torch.full_like(x, torch.nan)
    kernels.rms_norm(x, weight, 1e-5, out, True)
    assert close(out, exact, 1 if dtype is torch.bfloat16 else 4)
    residual, both = x.clone(), torch.full_like(x, torch.nan)
    kernels.rms_norm(residual, weight, 1e-5, both, True, torch.zeros_like(x))
    assert same_bits(both, out)


@pytest.mark.parametrize("plus_one", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_head_norm_is_a_norm_of_each_head(kernels: Kernels, dtype: torch.dtype, plus_one: bool) -> None:
    heads, kv_heads, dim = 3, 2, 40
    qkv = random(5, (heads + 2 * kv_heads) * dim, dtype=dtype)
    q_weight, k_weight = random(dim, dtype=dtype, seed=1), random(dim, dtype=dtype, seed=2)
    out = in_place(lambda x: kernels.head_norm(x, q_weight, k_weight, heads, 1e-5, plus_one), qkv)
    before, after = qkv.view(5, -1, dim), out.view(5, -1, dim)
    for head in range(heads + 2 * kv_heads):
        expected = before[:, head].contiguous()
        if head < heads + kv_heads:
            kernels.rms_norm(expected, q_weight if head < heads else k_weight, 1e-5, expected, plus_one)
        assert same_bits(after[:, head].contiguous(), expected)
    ones = torch.ones(dim, dtype=dtype)
    whole = in_place(lambda x: kernels.head_norm(x, q_weight, k_weight, heads, 1e-5, plus_one, ones), qkv)
    assert same_bits(whole.view(5, -1, dim)[:, :-kv_heads].contiguous(), after[:, :-kv_heads].contiguous())
    values = before[:, -kv_heads:].contiguous().view(-1, dim)
    kernels.rms_norm(values, ones, 1e-5, values, plus_one)
    assert same_bits(whole.view(5, -1, dim)[:, -kv_heads:].contiguous(), values.view(5, kv_heads, dim))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(3, 2, 40), (6, 1, 16), (1, 1, 8)])
def test_joint_norms(kernels: Kernels, dtype: torch.dtype, heads: int, kv_heads: int, dim: int) -> None:
    """Of all heads together, and by ranks that have some of them, with the same bits."""
    qkv = random(5, (heads + 2 * kv_heads) * dim, dtype=dtype, spread=3)
    q, k, v = qkv.split((heads * dim, kv_heads * dim, kv_heads * dim), 1)
    weights = random(heads * dim, dtype=dtype, seed=1), random(kv_heads * dim, dtype=dtype, seed=2)

    def squares(x: Tensor, n: int, m: int) -> tuple[Tensor, Tensor]:
        found = torch.full((5, n), torch.nan), torch.full((5, m), torch.nan)
        kernels.head_squares(x, *found)
        return found

    own = squares(qkv, heads, kv_heads)
    for found, part in zip(own, (q, k), strict=True):
        exact = part.double().reshape(5, -1, dim).square().sum(-1)
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=0)
    out = in_place(lambda x: kernels.joint_norm(x, *weights, *own, heads, 1e-5), qkv)
    for part, weight, new in zip(
        (q, k), weights, out.split((heads * dim, kv_heads * dim, kv_heads * dim), 1)[:2], strict=True
    ):
        mean = part.double().square().mean(-1, keepdim=True)
        assert close(new, part.double() / (mean + 1e-5).sqrt() * weight.double(), 4)
    assert same_bits(out[:, -kv_heads * dim :].contiguous(), v.contiguous())
    if heads > 1 and heads % kv_heads == 0:  # a rank with the first query head and the first key head
        part = torch.cat((q[:, :dim], k[:, :dim], v[:, :dim]), 1).contiguous()
        few = [weight[:dim].contiguous() for weight in weights]
        alone = in_place(lambda x: kernels.joint_norm(x, *few, *own, 1, 1e-5), part)
        assert same_bits(alone[:, :dim].contiguous(), out[:, :dim].contiguous())
        assert same_bits(alone[:, dim : 2 * dim].contiguous(), out[:, heads * dim : (heads + 1) * dim].contiguous())


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_behind_rotation(kernels: Kernels, dtype: torch.dtype) -> None:
    rows, heads, kv_heads, dim = 5, 3, 2, 40
    qkv, angles = random(rows, (heads + 2 * kv_heads) * dim, dtype=dtype), random(9, dim // 2, seed=3, spread=9)
    cos_sin, positions, slots = torch.cat((angles.cos(), angles.sin()), 1), ints(1, 2, 0, 8, 5), torch.arange(rows)
    weights = random(dim, dtype=dtype, seed=1), random(dim, dtype=dtype, seed=2)

    def rotate(*norms: Any) -> tuple[Tensor, Tensor]:
        q = torch.full((rows, heads, dim), torch.nan, dtype=dtype)
        keys, values = (torch.full((1, kv_heads, BLOCK, dim), torch.nan, dtype=dtype) for _ in range(2))
        kernels.rotary_store(qkv, positions, slots, cos_sin, q, keys, values, *norms)
        return q, keys[0, :, :rows].transpose(0, 1).contiguous()

    for found, plain, weight in zip(rotate(*weights, 1e-5), rotate(), weights, strict=True):
        expected = plain.view(-1, dim).clone()
        kernels.rms_norm(expected, weight, 1e-5, expected)
        assert same_bits(found.view(-1, dim), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("dim", "turning"), [(72, 16), (40, 8), (576, 64)])
def test_latents_are_rotated_and_normalised(kernels: Kernels, dtype: torch.dtype, dim: int, turning: int) -> None:
    """As `rotary_store` and `rms_norm` do it; of a row with a negative slot nothing is stored."""
    rows, heads = 5, 3
    query, latent = random(rows, heads, dim, dtype=dtype), random(rows, dim, dtype=dtype, seed=1)
    angles, norm = random(9, turning // 2, seed=3, spread=9), random(dim - turning, dtype=dtype, seed=2)
    cos_sin, positions = torch.cat((angles.cos(), angles.sin()), 1), ints(1, 2, 0, 8, 5)
    slots = torch.tensor([0, 5, -1, 2, 11])
    whole = torch.cat((query.view(rows, -1), latent, latent), 1)
    turned = torch.empty_like(query)
    keys, values = (torch.zeros(3, 1, 4, dim, dtype=dtype) for _ in range(2))
    kernels.rotary_store(whole, positions, slots, cos_sin, turned, keys, values)
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            kernels.rms_norm(
                latent[row : row + 1, turning:].contiguous(), norm, 1e-6, normal := torch.empty_like(norm[None])
            )
            keys[slot // 4, 0, slot % 4, turning:] = normal[0]
    cache, own = torch.zeros_like(keys), query.clone()
    kernels.latent_store(own, latent, norm, 1e-6, positions, slots, cos_sin, cache)
    assert same_bits(own, turned)
    assert same_bits(cache, keys)


@pytest.mark.parametrize("activation", get_args(Activation))
@pytest.mark.parametrize("dtype", DTYPES)
def test_activate_is_act_mul_by_one(kernels: Kernels, dtype: torch.dtype, activation: Activation) -> None:
    x = random(5, 100, dtype=dtype, spread=3)
    product = torch.empty_like(x)
    one = torch.full_like(x, 0 if activation == "clamped_swiglu" else 1)  # that one adds 1 by itself
    kernels.act_mul(torch.cat((x, one), 1), activation, product)
    out = in_place(lambda y: kernels.activate(y, activation), x)
    assert same_bits(out, product)
    if activation in ACTIVATIONS:  # the other has a test of its own
        assert close(out, ACTIVATIONS[activation](x.double()), 3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_additions_and_products_are_torchs(kernels: Kernels, dtype: torch.dtype, width: int) -> None:
    x, bias, table = random(5, width, dtype=dtype), random(width, dtype=dtype, seed=1), random(9, width, dtype=dtype)
    index = ints(3, 8, 0, 3, 1)
    assert same_bits(in_place(lambda y: kernels.add_bias(y, bias), x), x + bias)
    assert same_bits(in_place(lambda y: kernels.add_embedding(y, table, index), x), x + table[index.long()])
    product = (x.float() * torch.tensor(0.22)).to(dtype)
    assert same_bits(in_place(lambda y: kernels.scale(y, 0.22), x), product)


def test_soft_cap_over_the_whole_range(kernels: Kernels) -> None:
    x = torch.cat((torch.linspace(-400, 400, 50_001), torch.logspace(-30, 1, 1000), -torch.logspace(-8, 1, 1000)))[
        None
    ]
    exact = 30 * (x.double() / 30).tanh()
    out = in_place(lambda y: kernels.soft_cap(y, 30.0), x)
    assert ((out.double() - exact).abs() <= 6 * 2.0**-23 * exact.abs() + 1e-37).all()
    special = torch.tensor([[torch.inf, -torch.inf, torch.nan, 0.0]])
    out = in_place(lambda y: kernels.soft_cap(y, 30.0), special)
    assert out[0, :2].tolist() == [30, -30]
    assert out[0, 2].isnan()
    assert out[0, 3] == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("turning", [0, 8, 24, 40])
def test_rotary_of_some_columns(
    native: Kernels, reference: ReferenceKernels, dtype: torch.dtype, turning: int
) -> None:
    """The first columns turn as a head of that size would, the others stay; a twin and its kernels agree."""
    rows, heads, kv_heads, dim = 5, 3, 2, 40
    qkv, angles = random(rows, (heads + 2 * kv_heads) * dim, dtype=dtype), random(9, turning // 2, seed=3, spread=9)
    cos_sin, positions, slots = torch.cat((angles.cos(), angles.sin()), 1), ints(1, 2, 0, 8, 5), torch.arange(rows)

    def rotate(kernels: Kernels, data: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
        q = torch.full((rows, heads, dim), torch.nan, dtype=dtype)
        keys, values = (torch.full((1, kv_heads, BLOCK, dim), torch.nan, dtype=dtype) for _ in range(2))
        kernels.rotary_store(data, positions, slots, cos_sin, q, keys, values)
        return q, keys[0, :, :rows].transpose(0, 1), values[0, :, :rows].transpose(0, 1)

    results = [rotate(kernels, qkv, dim) for kernels in (native, reference)]
    for ours, twin in zip(*results, strict=True):
        assert same_bits(ours, twin)
    q, keys, values = results[0]
    parts = qkv.view(rows, -1, dim)
    assert same_bits(q[..., turning:], parts[:, :heads, turning:])
    assert same_bits(keys[..., turning:], parts[:, heads : heads + kv_heads, turning:])
    assert same_bits(values, parts[:, heads + kv_heads :])
    if turning:
        alone = rotate(native, parts[..., :turning].reshape(rows, -1).contiguous(), turning)
        assert same_bits(q[..., :turning], alone[0])
        assert same_bits(keys[..., :turning], alone[1])


def windowed(view: AttentionMetadata, window: int, chunk: int = 0) -> AttentionMetadata:
    """The same view, cut by hand: everything that a row still sees becomes an extra slot or lies in the table."""
    first, last, offsets, extra = [], [], [0], []
    for row in range(len(view.first)):
        own = view.extra_slots[view.extra_offsets[row] : view.extra_offsets[row + 1]].tolist()
        end = int(view.last[row]) + len(own)
        begin = max(int(view.first[row]), (end - 1) // chunk * chunk if chunk else end - window)
        lost = max(begin - int(view.last[row]), 0)
        first.append(begin)
        last.append(int(view.last[row]) + lost)
        extra += own[lost:]
        offsets.append(len(extra))
    return AttentionMetadata(view.tables, view.row_request, ints(*first), ints(*last), ints(*offsets), ints(*extra))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("window", "chunk"), [*((n, 0) for n in (1, 2, 3, 20, 64, 1000)), (0, 1), (0, 16), (0, 33)])
def test_a_window_or_chunk_is_a_view_cut_short(kernels: Kernels, dtype: torch.dtype, window: int, chunk: int) -> None:
    q, (keys, values) = random(6, 8, 32, dtype=dtype), caches(2, 32, dtype)
    tables = torch.randperm(24, generator=torch.Generator().manual_seed(7)).view(2, 12).int()
    view = AttentionMetadata(
        tables,
        ints(0, 0, 1, 1, 0, 1),
        ints(0, 0, 0, 5, 17, 0),
        ints(1, 100, 33, 64, 80, 1),
        ints(0, 0, 0, 2, 2, 5, 6),
        ints(11, 200, 30, 31, 95, 17),
    )
    out = torch.full((6, 256), torch.nan, dtype=dtype)
    kernels.attention(q, keys, values, view, 32**-0.5, out, window, chunk=chunk)
    cut = windowed(view, window, chunk)
    assert same_bits(out, attend(kernels, q, keys, values, cut))
    assert len(slots_of(cut, 1)) == ((100 - 1) % chunk + 1 if chunk else min(window, 100))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cap", [0.5, 20.0])
def test_capped_scores(kernels: Kernels, dtype: torch.dtype, cap: float) -> None:
    q, (keys, values), view = random(6, 8, 32, dtype=dtype, spread=3), caches(2, 32, dtype), mixed_view()
    out = torch.full((6, 256), torch.nan, dtype=dtype)
    kernels.attention(q, keys, values, view, 0.25, out, 0, cap)
    flat = [c.transpose(1, 2).reshape(-1, 2, 32).double() for c in (keys, values)]
    for row in range(5):
        k, v = (f[slots_of(view, row)].repeat_interleave(4, 1) for f in flat)
        scores = cap * (torch.einsum("hd,khd->hk", q[row].double(), k) * 0.25 / cap).tanh()
        exact = torch.einsum("hk,khd->hd", scores.softmax(-1), v).view(-1)
        assert (out[row].double() - exact).abs().max() <= (2e-5 if dtype is torch.float32 else 2.0**-7 * 2)
    assert (attend(kernels, q, keys, values, view, 0.25).double() - out.double()).abs().max() > 0.05
    assert exact_attention(q, keys, values, view).shape == out.shape


@pytest.mark.parametrize("dtype", DTYPES)
def test_squared_relu(kernels: Kernels, dtype: torch.dtype) -> None:
    x = random(5, 100, dtype=dtype, spread=6)
    assert close(in_place(lambda y: kernels.activate(y, "relu2"), x), x.double().clamp(min=0).square(), 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_limits(kernels: Kernels, dtype: torch.dtype, activation: Activation) -> None:
    """Those of both factors of what an activation gives: each is the nearest number within, and NaN stays."""
    limit, gate_up = 0.7, random(5, 90, dtype=dtype, spread=2)
    one = torch.ones(5, 45, dtype=dtype)
    gate_up[4, 3], gate_up[3, 50] = torch.nan, torch.nan
    alone, out = torch.empty_like(one), torch.empty_like(one)
    kernels.act_mul(torch.cat((gate_up[:, :45], one), 1), activation, alone)
    kernels.act_mul(gate_up, activation, out, limit)
    factors = alone.clamp(max=limit), gate_up[:, 45:].clamp(-limit, limit)
    assert torch.equal(out.nan_to_num(9), (factors[0] * factors[1]).nan_to_num(9))
    assert out.isnan().sum() == 2
    assert (factors[0] != alone).sum() > 20


@pytest.mark.parametrize("dtype", DTYPES)
def test_xielu_is_transformers(kernels: Kernels, dtype: torch.dtype) -> None:
    from transformers.activations import XIELUActivation

    theirs = XIELUActivation(0.9, 0.7, 0.4, -0.05, dtype=torch.float64)
    p, n = torch.nn.functional.softplus(theirs.alpha_p).item(), torch.nn.functional.softplus(theirs.alpha_n).item()
    numbers = torch.tensor([p, 0.4 + n, 0.4, -0.05])
    near, far = torch.logspace(-20, 0, 201), torch.linspace(0, 100, 402)
    x = torch.cat((near, far, -near, -far))[None].to(dtype)
    with torch.no_grad():
        exact = theirs(x.double())
    assert close(in_place(lambda y: kernels.xielu(y, numbers), x), exact, 6)
    odd = in_place(lambda y: kernels.xielu(y, numbers), torch.tensor([[torch.inf, torch.nan, 0.0]], dtype=dtype))[0]
    assert odd[0] == torch.inf
    assert odd[1].isnan()
    assert abs(odd[2] - (0.4 + n) * torch.expm1(torch.tensor(-0.05))) < 1e-3


@pytest.mark.parametrize("dtype", DTYPES)
def test_clamped_swiglu(kernels: Kernels, dtype: torch.dtype) -> None:
    gate, up = random(5, 100, dtype=dtype, spread=6), random(5, 100, dtype=dtype, seed=1, spread=6)
    out = torch.empty_like(gate)
    kernels.act_mul(torch.cat((gate, up), 1), "clamped_swiglu", out)
    x = gate.double().clamp(max=7)
    assert close(out, x * (1.702 * x).sigmoid() * (up.double().clamp(-7, 7) + 1), 4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [0, 9])
def test_sinks(kernels: Kernels, dtype: torch.dtype, window: int) -> None:
    """A sink is a key of that score whose value is 0: above all scores and below them; rows that see none."""
    q, (keys, values), view = random(6, 8, 32, dtype=dtype, spread=3), caches(2, 32, dtype), mixed_view()
    sinks = torch.tensor([-50.0, -2.0, 0.0, 1.5, 3.0, 10.0, 40.0, -torch.inf])
    out = torch.full((6, 256), torch.nan, dtype=dtype)
    kernels.attention(q, keys, values, view, 0.25, out, window, 0.0, sinks)
    flat = [c.transpose(1, 2).reshape(-1, 2, 32).double() for c in (keys, values)]
    for row in range(6):
        k, v = (f[slots_of(view, row)][-window:].repeat_interleave(4, 1) for f in flat)
        scores = torch.einsum("hd,khd->hk", q[row].double(), k) * 0.25
        weights = torch.cat((scores, sinks.double()[:, None]), 1).softmax(-1)[:, :-1]
        exact = torch.einsum("hk,khd->hd", weights, v).view(-1)
        assert (out[row].double() - exact).abs().max() <= (2e-5 if dtype is torch.float32 else 2.0**-7 * 2)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("sigmoid", [False, True])
@pytest.mark.parametrize(("experts", "chosen", "groups", "kept"), [(6, 2, 1, 1), (24, 4, 4, 2), (40, 3, 20, 3)])
def test_routes_by_shares(
    kernels: Kernels, experts: int, chosen: int, groups: int, kept: int, sigmoid: bool, bias: bool
) -> None:
    """As the routers of GLM-4.5 and ERNIE 4.5 in transformers, in float64."""
    scores, own = random(20, experts, spread=3), random(experts, seed=1, spread=0.3)
    ids, weights = torch.full((20, chosen), -1, dtype=torch.int32), torch.full((20, chosen), torch.nan)
    kernels.route(scores, ids, weights, True, sigmoid, own if bias else None, groups, kept, 2.5)
    shares = scores.double().sigmoid() if sigmoid else scores.double().softmax(1)
    choice = shares + own if bias else shares if sigmoid else scores.double()
    by_group = choice.view(20, groups, -1)
    best = by_group.topk(2)[0].sum(2).topk(kept)[1]
    left = torch.zeros(20, groups, dtype=torch.bool).scatter(1, best, True)
    order = by_group.where(left[..., None], -torch.inf).view(20, -1).topk(chosen)[1]
    assert ids.tolist() == order.tolist()
    exact = shares.gather(1, order)
    torch.testing.assert_close(weights.double(), 2.5 * exact / exact.sum(1, keepdim=True), atol=1e-6, rtol=1e-6)


def test_high_scores_whose_sigmoids_are_alike(kernels: Kernels) -> None:
    ids, weights = torch.empty(1, 2, dtype=torch.int32), torch.empty(1, 2)
    kernels.route(torch.tensor([[20.0, 25.0, 30.0, 19.0]]), ids, weights, False, True)
    assert ids.tolist() == [[2, 1]]
    assert weights.tolist() == [[1.0, 1.0]]


def test_groups_that_do_not_fit(native: Kernels) -> None:
    ids, weights = torch.empty(2, 3, dtype=torch.int32), torch.empty(2, 3)
    for groups, kept in ((0, 0), (4, 1), (3, 4), (3, 1), (2, 0)):
        with pytest.raises(ValueError, match="whole groups"):
            native.route(random(2, 6), ids, weights, True, True, None, groups, kept)


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize(("experts", "chosen"), [(5, 2), (16, 4), (40, 8), (3, 3), (1, 1), (257, 1), (1000, 3)])
def test_route(kernels: Kernels, experts: int, chosen: int, normalise: bool) -> None:
    scores = random(20, experts, spread=3)
    scores[3] = 1.5  # all alike: the lowest ids
    scores[4, experts // 2 :] = scores[4].max() + 1
    ids, weights = torch.full((20, chosen), -1, dtype=torch.int32), torch.full((20, chosen), torch.nan)
    kernels.route(scores, ids, weights, normalise)
    order = (-scores).argsort(dim=1, stable=True)[:, :chosen]
    assert ids.tolist() == order.tolist()
    assert ids[3].tolist() == list(range(chosen))
    exact = scores.double().softmax(1).gather(1, order)
    if normalise:
        exact /= exact.sum(1, keepdim=True)
    torch.testing.assert_close(weights.double(), exact, atol=1e-6, rtol=1e-6)
    scales = random(experts, seed=1)
    kernels.route(scores, ids, weights, normalise, scales=scales)
    torch.testing.assert_close(weights.double(), exact * scales.double()[order], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("count", [1, 15, 16, 255, 256, 257, 511, 900])
def test_the_best_of_many(kernels: Kernels, count: int) -> None:
    """Wherever it stands, the first of equals, whatever is not a number."""
    scores = random(count + 3, count, spread=3)
    scores[range(count), range(count)] = 50
    scores[:, count // 2] = scores[:, count // 2].clamp(min=torch.tensor(40.0))
    scores[count] = -torch.inf
    scores[count + 1] = torch.nan
    scores[count + 2] = torch.nan
    scores[count + 2, -1] = -3.0
    scores[0, 1:] = 50
    ids, weights = torch.full((count + 3, 1), -1, dtype=torch.int32), torch.empty(count + 3, 1)
    kernels.route(scores, ids, weights, False)
    assert ids[:, 0].tolist() == [*range(count), 0, 0, count - 1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_experts_are_linear_layers(kernels: Kernels, dtype: torch.dtype) -> None:
    """Each row's answer has the bits of `linear` with the expert's weight, for shared inputs and for own ones."""
    weights = [kernels.pack_linear(random(24, 40, dtype=dtype, seed=s)) for s in range(4)]
    ids = torch.randint(0, 3, (30,), generator=torch.Generator().manual_seed(0)).int()  # nobody chose the last
    for rows in (10, 30):
        x = random(rows, 40, dtype=dtype, seed=9)
        out = torch.full((30, 24), torch.nan, dtype=dtype)
        kernels.expert_linear(x, ids, weights, out)
        for i, expert in enumerate(ids.tolist()):
            expected = torch.empty(1, 24, dtype=dtype)
            kernels.linear(x[i * rows // 30][None], weights[expert], expected)
            assert same_bits(out[i][None], expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_mix_experts(kernels: Kernels, dtype: torch.dtype, width: int) -> None:
    x, weights = random(5, 3, width, dtype=dtype), random(5, 3, seed=1).abs()
    out = torch.full((5, width), torch.nan, dtype=dtype)
    kernels.mix_experts(x, weights, out)
    mixed = (x.double() * weights.double()[..., None]).sum(1)
    assert close(out, mixed, 3)
    shared, gate = random(5, width, dtype=dtype, seed=2), random(5, 1, seed=3, spread=3)
    kernels.mix_experts(x, weights, out, shared)
    assert close(out, mixed + shared.double(), 3)
    whole = shared.clone()
    kernels.mix_experts(x, weights, whole, whole, gate)
    assert close(whole, mixed + gate.double().sigmoid() * shared.double(), 3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_do_not_know_of_each_other(kernels: Kernels, dtype: torch.dtype) -> None:
    width, dim = 100, 20
    x, weight, bias = random(ROWS, width, dtype=dtype), random(width, dtype=dtype, seed=1), random(width, dtype=dtype)
    check(kernels, lambda rows: layer_norm(kernels, x[rows], weight, bias))
    head = random(dim, dtype=dtype, seed=2)
    check(kernels, lambda rows: in_place(lambda y: kernels.head_norm(y, head, head, 1, 1e-5), x[rows]))
    check(kernels, lambda rows: in_place(lambda y: kernels.soft_cap(y, 2.0), x[rows].float()))
    check(kernels, lambda rows: in_place(lambda y: kernels.activate(y, "gelu"), x[rows]))
    answers, parts = random(ROWS, 3, width, dtype=dtype, seed=4), random(ROWS, 3, seed=5)

    def mix(rows: Tensor) -> Tensor:
        out = torch.empty(len(rows), width, dtype=dtype)
        kernels.mix_experts(answers[rows], parts[rows], out)
        return out

    check(kernels, mix)


def test_routes_do_not_know_of_each_other(kernels: Kernels) -> None:
    scores = random(ROWS, 37, spread=2)

    def route(rows: Tensor) -> Tensor:
        ids, weights = torch.empty(len(rows), 4, dtype=torch.int32), torch.empty(len(rows), 4)
        kernels.route(scores[rows], ids, weights, True)
        return torch.cat((ids.float(), weights), 1)

    check(kernels, route)


@pytest.mark.parametrize("dtype", DTYPES)
def test_windows_and_caps_do_not_know_of_other_rows(kernels: Kernels, dtype: torch.dtype) -> None:
    count = 24
    q, (keys, values) = random(count, 4, 32, dtype=dtype), caches(2, 32, dtype)
    tables = torch.stack([torch.randperm(24)[:8] for _ in range(3)])

    def rows(chosen: Tensor) -> Tensor:
        numbers = chosen.tolist()
        view = table_view(tables, [n % 3 for n in numbers], [n * 5 + 1 for n in numbers])
        out = torch.empty(len(numbers), 128, dtype=dtype)
        kernels.attention(q[chosen], keys, values, view, 0.2, out, 30, 3.0)
        return out

    check(kernels, rows, numbers=(1, 2, 5, 16), count=count)
