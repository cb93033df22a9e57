"""Norms, rotary embedding, activations, linear layers and copies: against float64, and native against the twin."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from parlay import env
from parlay.kernels.base import Activation, Kernels
from parlay.kernels.linear import BACKENDS, Backend
from parlay.kernels.reference import ReferenceKernels

from .helpers import BLOCK, DTYPES, act_mul, cancelling, head, multiply, normalise, random, same_bits

WIDTHS = (8, 100, 256, 1000)


def close(actual: Tensor, exact: Tensor, roundings: int) -> bool:
    """Within `roundings` roundings to the dtype, relative to each element or to 1 where it is smaller."""
    unit = torch.finfo(actual.dtype).eps
    return bool(((actual.double() - exact).abs() <= roundings * unit * exact.abs().clamp(min=1)).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm_is_right(kernels: Kernels, dtype: torch.dtype, width: int) -> None:
    x, weight = random(5, width, dtype=dtype, spread=3), random(width, dtype=dtype, seed=1)
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    assert close(normalise(kernels, x, weight), exact, 2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm_of_a_sum(kernels: Kernels, dtype: torch.dtype, width: int) -> None:
    x, delta = random(5, width, dtype=dtype), random(5, width, dtype=dtype, seed=1)
    weight = random(width, dtype=dtype, seed=2)
    residual, out = x.clone(), torch.full_like(x, torch.nan)
    kernels.rms_norm(residual, weight, 1e-5, out, delta=delta)
    assert same_bits(residual, x + delta)
    assert same_bits(out, normalise(kernels, x + delta, weight))


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_may_write_over_their_input(kernels: Kernels, dtype: torch.dtype) -> None:
    x, weight = random(3, 100, dtype=dtype), random(100, dtype=dtype, seed=1)
    expected = normalise(kernels, x, weight)
    kernels.rms_norm(x, weight, 1e-5, x)
    assert same_bits(x, expected)


@pytest.mark.parametrize("width", WIDTHS)
def test_bf16_norm_rounds_where_transformers_does(kernels: Kernels, width: int) -> None:
    x, weight = random(20, width, dtype=torch.bfloat16), random(width, dtype=torch.bfloat16, seed=1)
    values = x.float()
    expected = weight * (values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)
    # A sum in another order may carry a value across a rounding border, once in thousands.
    assert (normalise(kernels, x, weight) != expected).sum() <= 3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(8, 2, 32), (2, 2, 8), (3, 1, 40), (4, 4, 80), (2, 1, 256)])
def test_rotary_store(
    native: Kernels, reference: ReferenceKernels, dtype: torch.dtype, heads: int, kv_heads: int, dim: int
) -> None:
    """The twin against the formula in float64; the native kernels have the twin's bits."""
    rows = 6
    qkv = random(rows, (heads + 2 * kv_heads) * dim, dtype=dtype)
    positions = torch.tensor([0, 1, 2, 50, 7, 63], dtype=torch.int32)
    slots = torch.tensor([3, 95, 16, 15, 0, 40])
    angles = random(64, dim // 2, seed=3, spread=9)
    cos_sin = torch.cat((angles.cos(), angles.sin()), 1)
    results = []
    for kernels in (reference, native):
        q = torch.full((rows, heads, dim), torch.nan, dtype=dtype)
        caches = [torch.full((6, kv_heads, BLOCK, dim), 9.0, dtype=dtype) for _ in range(2)]
        kernels.rotary_store(qkv, positions, slots, cos_sin, q, *caches)
        results.append((q, *caches))
    for ours, twin in zip(*results, strict=True):
        assert same_bits(ours, twin)

    q, keys, values = results[0]
    parts = qkv.view(rows, -1, dim)
    cos, sin = cos_sin[positions.long()].double()[:, None].chunk(2, -1)
    a, b = parts.double().chunk(2, -1)
    exact = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    assert close(q, exact[:, :heads], 3)
    flat_keys, flat_values = (c.transpose(1, 2).reshape(6 * BLOCK, kv_heads, dim) for c in (keys, values))
    assert close(flat_keys[slots], exact[:, heads : heads + kv_heads], 3)
    assert same_bits(flat_values[slots], parts[:, heads + kv_heads :])
    untouched = torch.ones(6 * BLOCK, dtype=torch.bool).index_fill(0, slots, value=False)
    assert (flat_keys[untouched] == 9).all()
    assert (flat_values[untouched] == 9).all()


def test_rows_without_a_slot_are_stored_nowhere(native: Kernels, reference: ReferenceKernels) -> None:
    qkv, slots = random(4, 4 * 8), torch.tensor([-1, 5, -7, 0])
    for kernels in (reference, native):
        q = torch.full((4, 2, 8), torch.nan)
        caches = [torch.full((2, 1, BLOCK, 8), 9.0) for _ in range(2)]
        kernels.rotary_store(qkv, torch.arange(4, dtype=torch.int32), slots, torch.zeros(4, 0), q, *caches)
        assert same_bits(q.view(4, 16), qkv[:, :16].contiguous())
        for cache, first in zip(caches, (16, 24), strict=True):
            flat = cache.view(2 * BLOCK, 8)
            assert same_bits(flat[[5, 0]], qkv[[1, 3], first : first + 8])
            assert (flat != 9).any(1).sum() == 2


def silu(x: Tensor) -> Tensor:
    return x / (1 + (-x).exp())


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (-x * 0.5**0.5).erfc()


def gelu_tanh(x: Tensor) -> Tensor:
    # Half of 1 + tanh z as torch computes it is 0 where it should be small: this is its other form.
    return x / (1 + (-2 * (2 / math.pi) ** 0.5 * (x + 0.044715 * x**3)).exp())


def relu(x: Tensor) -> Tensor:
    return x.clamp(min=0)


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": relu,
}


def test_activations_are_what_torch_calls_them() -> None:
    x = torch.linspace(-20, 20, 4001, dtype=torch.float64)
    functions = torch.nn.functional
    torch.testing.assert_close(silu(x), functions.silu(x))
    torch.testing.assert_close(gelu(x), functions.gelu(x))
    torch.testing.assert_close(gelu_tanh(x), functions.gelu(x, approximate="tanh"))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_act_mul_is_right(kernels: Kernels, dtype: torch.dtype, width: int, activation: Activation) -> None:
    gate_up = random(5, 2 * width, dtype=dtype, spread=2)
    gate, up = gate_up.double().chunk(2, -1)
    exact = ACTIVATIONS[activation](gate)
    if dtype is torch.bfloat16:
        exact = exact.bfloat16().double()
    assert close(act_mul(kernels, gate_up, activation), exact * up, 3)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_over_the_whole_range(kernels: Kernels, activation: Activation) -> None:
    """Within a few units in the last place wherever the result is normal; large and special values are sane.

    A gelu's tail is exp of a number that grows with x^2 and is itself rounded, so its error does too.
    """
    far = {"silu": 87.0, "gelu": 13.0, "gelu_tanh": 9.6, "relu": 87.0}[activation]
    gate = torch.cat((torch.linspace(-far, 87, 100_001), -torch.logspace(-30, 0.9, 1000), torch.zeros(7)))
    out = act_mul(kernels, torch.stack((gate, torch.ones_like(gate))).reshape(1, -1), activation)[0].double()
    exact = ACTIVATIONS[activation](gate.double())
    error = (out - exact).abs() / exact.abs().clamp(min=2.0**-126)
    growth = 1 if activation == "silu" else 1 + gate.double().clamp(max=0).square()
    assert (error <= 4 * 2.0**-23 * growth).all()
    special = torch.tensor([[torch.inf, 200.0, -200.0, -1e30, torch.nan, -0.0, 0.0, 1e30, 1, 1, 1, 1, 1, 1, 1, 1]])
    out = act_mul(kernels, special, activation)[0]
    assert out.isnan().tolist() == [False] * 4 + [True] + [False] * 3
    assert out[0] == torch.inf
    assert out[1] == 200
    assert out[2:4].abs().max() < 1e-36
    assert out[5:7].tolist() == [0, 0]
    assert out[7] == torch.tensor(1e30)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_act_mul_treats_every_column_alike(kernels: Kernels, activation: Activation) -> None:
    """The same value gives the same bits in a row's vector body and in its tail, at every width."""
    values = random(64, seed=5, spread=4)
    alone = act_mul(kernels, torch.stack((values, torch.ones(64)), 1), activation)
    for width in range(1, 40):
        gate_up = torch.cat((values[:, None].expand(64, width), torch.ones(64, width)), 1).contiguous()
        assert same_bits(act_mul(kernels, gate_up, activation), alone.expand(64, width))


SHAPES = ((256, 512), (96, 160), (640, 256), (256, 200), (1024, 48), (1536, 33), (2050, 17), (34, 7), (75, 9))


def assert_linear_is_right(kernels: Kernels, dtype: torch.dtype, inputs: int, outputs: int) -> None:
    x, weight = random(9, inputs, dtype=dtype), random(outputs, inputs, dtype=dtype, seed=1)
    exact = x.double() @ weight.double().T
    size = (x.double().abs() @ weight.double().abs().T).max()
    for out in (multiply(kernels, x, weight), head(kernels, x, weight)):
        # float32 sums of `inputs` products, then one rounding to the output's dtype
        bound = 2.0**-24 * inputs**0.5 * size + exact.abs() * torch.finfo(out.dtype).eps / 2
        assert ((out.double() - exact).abs() <= bound).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_linear_is_right(kernels: Kernels, dtype: torch.dtype, inputs: int, outputs: int) -> None:
    assert_linear_is_right(kernels, dtype, inputs, outputs)


@pytest.mark.parametrize("outputs", [1, 15, 17])
@pytest.mark.parametrize("inputs", [1, 3, 33, 513])
@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_of_odd_shapes(native: Kernels, dtype: torch.dtype, inputs: int, outputs: int) -> None:
    x, weight = random(3, inputs, dtype=dtype), random(outputs, inputs, dtype=dtype, seed=1)
    exact = x.double() @ weight.double().T
    assert ((head(native, x, weight).double() - exact).abs() <= 2.0**-20 * inputs).all()


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_linear_sums_in_onednns_order(
    native: Kernels, reference: ReferenceKernels, inputs: int, outputs: int
) -> None:
    """Cancelling data leaves nothing but rounding errors, and even those agree where both use FMA."""
    if native.name == "native-baseline":
        pytest.skip("no FMA")
    if not torch.cpu._is_avx512_supported() or env.arithmetic():
        pytest.skip("oneDNN has another order without AVX-512")
    x, weight = cancelling(9, inputs, outputs, torch.float32)
    assert same_bits(multiply(native, x, weight), multiply(reference, x, weight))


@pytest.mark.parametrize(("inputs", "outputs"), [(256, 512), (640, 256), (1024, 48), (1536, 33), (2050, 17)])
def test_bf16_products_are_onednns_too(native: Kernels, inputs: int, outputs: int) -> None:
    """With AVX512's bfloat16 instructions oneDNN keeps the same order, and all our variants have its roundings."""
    if not torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported() or env.arithmetic():
        pytest.skip("oneDNN has another order without bfloat16 instructions, and with AMX's")
    if native.name in ("native-neonbf16", "native-amx"):
        pytest.skip("BFDOT and tiles round another way")
    x, weight = cancelling(9, inputs, outputs, torch.bfloat16)
    assert same_bits(multiply(native, x, weight), multiply(ReferenceKernels("onednn"), x, weight))


def summed_in_blocks(x: Tensor, weight: Tensor, *, fused: bool) -> Tensor:
    """Multiply as `csrc/linear.h` promises, a step of K at a time: the twin that no library has a part in.

    In double precision a product of two float32 is exact, so that adding it to a sum rounds as a fused step does.
    """
    block = 1024 if x.shape[1] > 1024 else 512
    order = np.arange(x.shape[1])
    if x.dtype is torch.bfloat16:
        order = order ^ 1  # of each pair the second first
    total = np.zeros((x.shape[0], weight.shape[0]), np.float32)
    rows, columns = x.double().numpy(), weight.double().numpy()
    for first in range(0, x.shape[1], block):
        own = np.zeros_like(total)
        for k in order[first : first + block]:
            product = np.outer(rows[:, k], columns[:, k])
            own = (own + (product if fused else product.astype(np.float32))).astype(np.float32)
        total += own
    return torch.from_numpy(total)


def summed_in_tiles(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply as `csrc/tiles.h` does: of 32 inputs the even and the odd ones, then both together to the total."""
    total = np.zeros((x.shape[0], weight.shape[0]), np.float32)
    rows, columns = x.double().numpy(), weight.double().numpy()
    for first in range(0, x.shape[1], 32):
        halves = [np.zeros_like(total), np.zeros_like(total)]
        for k in range(first, min(first + 32, x.shape[1])):
            halves[k % 2] = (halves[k % 2] + np.outer(rows[:, k], columns[:, k])).astype(np.float32)
        total += halves[0] + halves[1]
    return torch.from_numpy(total)


def to_odd(total: np.ndarray, more: np.ndarray) -> np.ndarray:
    """Return the float32 of two sums that is exact, or else of the two neighbours the odd one; too small is zero."""
    a, b = total.astype(np.float64), more.astype(np.float64)
    exact = a + b
    left = (a - (exact - (exact - a))) + (b - (exact - a))  # what the sum of doubles leaves out
    near = exact.astype(np.float32)
    bits = near.view(np.int32)
    error = (exact - near) + left
    inwards = np.where(error * np.sign(near) < 0, bits - 1, bits)  # truncated
    odd = np.where(error != 0, inwards | 1, bits).view(np.float32)
    return np.where(np.abs(odd) < np.finfo(np.float32).tiny, np.copysign(0, odd), odd).astype(np.float32)


def summed_in_pairs(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply as ARM's BFDOT does (Arm Architecture Reference Manual): a pair's products, their sum, the total."""
    block = 1024 if x.shape[1] > 1024 else 512
    total = np.zeros((x.shape[0], weight.shape[0]), np.float32)
    rows, columns = x.float().numpy(), weight.float().numpy()
    for first in range(0, x.shape[1], block):
        own = np.zeros_like(total)
        for k in range(first, min(first + block, x.shape[1]), 2):
            products = [np.outer(rows[:, i], columns[:, i]) for i in (k, k + 1)]
            own = to_odd(own, to_odd(*products))
        total += own
    return torch.from_numpy(total)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("inputs", "outputs"), [(514, 40), (1024, 48), (1536, 33), (2050, 17), (74, 64)])
def test_the_order_in_which_products_are_summed(
    native: Kernels, dtype: torch.dtype, inputs: int, outputs: int
) -> None:
    """With every instruction set but tiles, whole blocks of 512 or 1,024 inputs, each from zero."""
    x, weight = cancelling(3, inputs, outputs, dtype)
    if native.name == "native-amx" and dtype is torch.bfloat16:
        expected = summed_in_tiles(x, weight)
    elif native.name == "native-neonbf16" and dtype is torch.bfloat16:
        expected = summed_in_pairs(x, weight)
    else:
        expected = summed_in_blocks(x, weight, fused=native.name != "native-baseline")
    assert same_bits(head(native, x, weight), expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_every_way_of_the_twin_is_right(backend: Backend, dtype: torch.dtype, inputs: int, outputs: int) -> None:
    assert_linear_is_right(ReferenceKernels(backend), dtype, inputs, outputs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_native_results_are_the_twins_up_to_roundings(
    native: Kernels, reference: ReferenceKernels, dtype: torch.dtype, width: int
) -> None:
    x, delta = random(5, width, dtype=dtype), random(5, width, dtype=dtype, seed=1)
    weight, gate_up = random(width, dtype=dtype, seed=2), random(5, 2 * width, dtype=dtype, seed=3, spread=3)
    results = []
    for kernels in (reference, native):
        residual, out = x.clone(), torch.full_like(x, torch.nan)
        kernels.rms_norm(residual, weight, 1e-5, out, delta=delta)
        results.append((residual, out, normalise(kernels, x, weight), act_mul(kernels, gate_up, "silu")))
    for twin, ours in zip(*results, strict=True):
        assert close(ours, twin.double(), 6)  # each may be three from the truth


def test_logits_of_bf16_are_not_rounded(kernels: Kernels) -> None:
    x, weight = random(4, 256, dtype=torch.bfloat16), random(512, 256, dtype=torch.bfloat16, seed=1)
    logits = head(kernels, x, weight)
    assert not same_bits(logits, logits.bfloat16().float())


@pytest.mark.parametrize("dtype", DTYPES)
def test_copy_slots_reads_all_before_it_writes(kernels: Kernels, dtype: torch.dtype) -> None:
    keys, values = random(4, 2, BLOCK, 8, dtype=dtype), random(4, 2, BLOCK, 8, dtype=dtype, seed=1)
    # Down, up and around: no order of single copies is right for all three.
    source, target = torch.tensor([5, 6, 40, 33, 34, 50, 51]), torch.tensor([4, 5, 6, 34, 35, 51, 50])
    expected = []
    for cache in (keys, values):
        flat = cache.transpose(1, 2).reshape(4 * BLOCK, 2, 8).clone()
        flat[target] = flat[source].clone()
        expected.append(flat.view(4, BLOCK, 2, 8).transpose(1, 2).contiguous())
    kernels.copy_slots(source, target, keys, values)
    assert same_bits(keys, expected[0])
    assert same_bits(values, expected[1])


def test_copy_of_nothing(kernels: Kernels) -> None:
    cache = random(1, 1, BLOCK, 8)
    none = torch.zeros(0, dtype=torch.int64)
    kernels.copy_slots(none, none, cache, cache)
    assert same_bits(cache, random(1, 1, BLOCK, 8))
