"""Products with quantised weights: every instruction set against the twin, and the twin against plain arithmetic."""

from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from parlay.kernels.base import Kernels
from parlay.kernels.reference import ReferenceKernels
from parlay.kernels.reference_quantised import product, quantise
from parlay.numerics.selfcheck import random_blocks
from parlay.weights.blocks import unpack
from parlay.weights.kinds import BY_NAME, COMPUTED, Kind
from parlay.weights.weight import Part, Weight

from .helpers import DTYPES, random, same_bits
from .test_row_invariance import MANY_ROWS, ROWS, check

kinds = pytest.mark.parametrize("kind", COMPUTED, ids=str)


def multiplied(kernels: Kernels, x: Tensor, weight: Weight, *, head: bool = False) -> Tensor:
    packed = kernels.pack_head(weight) if head else kernels.pack_linear(weight)
    out = torch.full((len(x), weight.shape[0]), torch.nan, dtype=torch.float32 if head else x.dtype)
    (kernels.logits if head else kernels.linear)(x, packed, out)
    return out


@cache
def of_the_twin(reference: ReferenceKernels, kind: Kind, dtype: torch.dtype) -> tuple[Weight, Tensor, Tensor, Tensor]:
    """A weight, rows, their products, and their logits: once for all instruction sets."""
    weight, x = random_blocks(kind, 75, 768, seed=1), random(29, 768, dtype=dtype, seed=2)
    return weight, x, multiplied(reference, x, weight), multiplied(reference, x, weight, head=True)


@kinds
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_twins_bits(native: Kernels, reference: ReferenceKernels, kind: Kind, dtype: torch.dtype) -> None:
    """Whatever the number of rows, with outputs that do not fill a panel; and as float32 logits."""
    weight, x, expected, logits = of_the_twin(reference, kind, dtype)
    for rows in (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 29):
        assert same_bits(multiplied(native, x[:rows], weight), expected[:rows]), rows
    assert same_bits(multiplied(native, x, weight, head=True), logits)


@kinds
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_largest_sums_fit(native: Kernels, reference: ReferenceKernels, kind: Kind, sign: float) -> None:
    """All codes have all their bits, and all inputs the largest size: sums of sixteen bits must not overflow."""
    ordinary = random_blocks(kind, 64, 512, seed=1).parts[0].data.view(-1, kind.size)
    blocks = torch.full_like(ordinary, 255)
    places = [i for at in kind.factors for i in (at, at + 1)] + ([] if kind.exponent is None else [kind.exponent])
    places += [] if kind.nibbles is None else [kind.nibbles + i for i in range(8)]
    blocks[:, places] = ordinary[:, places]
    weight = Weight((Part(kind, blocks.view(64, -1)),))
    x = torch.full((8, 512), sign)
    expected = multiplied(reference, x, weight)
    for rows in (1, 3, 4, 8):
        assert same_bits(multiplied(native, x[:rows], weight), expected[:rows]), rows


@kinds
def test_rows_do_not_know_of_each_other(kernels: Kernels, kind: Kind) -> None:
    weight = random_blocks(kind, 96, 512, seed=1)
    x = random(ROWS, 512, dtype=torch.bfloat16, seed=2)
    packed = kernels.pack_linear(weight)

    def rows(chosen: Tensor) -> Tensor:
        out = torch.empty(len(chosen), 96, dtype=torch.bfloat16)
        kernels.linear(x[chosen], packed, out)
        return out

    numbers = MANY_ROWS[COMPUTED.index(kind) % 4 :: 4] if kernels.name != "reference" else (1, 7)
    check(kernels, rows, numbers)


@kinds
def test_looked_up_rows_are_what_the_package_says(kernels: Kernels, kind: Kind) -> None:
    weight = random_blocks(kind, 70, 256, seed=3)
    tokens = torch.tensor([0, 69, 33, 33, 5])
    packed = kernels.pack_head(weight)
    for dtype in DTYPES:
        out = torch.full((5, 256), torch.nan, dtype=dtype)
        kernels.embed_packed(packed, tokens, out)
        assert same_bits(out, weight.numbers()[tokens].to(dtype))


@kinds
def test_the_twin_computes_products(kind: Kind) -> None:
    """Up to what eight bits for each input leave."""
    x, weight = random(6, 512, seed=4).numpy(), random_blocks(kind, 40, 512, seed=5)
    exact = x.astype(np.float64) @ weight.numbers().double().numpy().T
    found = product(x, unpack(kind, weight.parts[0].data.numpy()))
    assert np.abs(found - exact).max() < 0.02 * np.abs(exact).std() * 3


def test_activations_are_rounded_to_eight_bits() -> None:
    x = np.zeros((1, 128), np.float32)
    x[0, 32:36] = [-127.0, 63.5, 0.5, 1.5]  # a scale of 1; ties go to the even neighbour
    x[0, 64] = 1e-40  # too small for a scale
    x[0, 96] = np.inf
    rows = quantise(x)
    assert rows.scales[0].tolist()[:3] == [0, 1, 0]
    assert np.isnan(rows.scales[0, 3])
    assert rows.levels[0, 32:36].tolist() == [-127, 64, 0, 2]
    assert not rows.levels[0, 64:].any()


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan, 3e38, 1e-40])
def test_extreme_inputs(native: Kernels, reference: ReferenceKernels, value: float) -> None:
    weight = random_blocks(BY_NAME["Q4_1"], 32, 96, seed=6)
    x = random(3, 96, seed=7)
    x[1, 40] = value
    found, expected = multiplied(native, x, weight), multiplied(reference, x, weight)
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(), expected.nan_to_num())
    assert bool(found[1].isnan().all()) == (not np.isfinite(np.float32(value)))
    assert not found[[0, 2]].isnan().any()


def test_parts_of_several_kinds_lie_beside_each_other(native: Kernels, reference: ReferenceKernels) -> None:
    """As of queries, keys and values in a mixed file; one part has plain numbers."""
    plain = random(40, 256, dtype=torch.bfloat16, seed=8, spread=0.1)
    parts = [random_blocks(BY_NAME["Q4_K"], 50, 256, 1), Weight.of(plain), random_blocks(BY_NAME["Q6_K"], 33, 256, 2)]
    x = random(5, 256, dtype=torch.bfloat16, seed=9)
    found = multiplied(native, x, Weight.stack(parts))
    assert same_bits(found, torch.cat([multiplied(native, x, part) for part in parts], 1))
    assert same_bits(found[:, :50], multiplied(reference, x, parts[0]))


def test_experts_are_quantised_layers(kernels: Kernels) -> None:
    def expert(seed: int) -> Weight:
        return Weight.stack([random_blocks(BY_NAME[kind], 24, 64, seed) for kind in ("Q4_0", "Q8_0")])

    weights = [kernels.pack_linear(expert(seed)) for seed in range(4)]
    ids = torch.randint(0, 3, (12,), generator=torch.Generator().manual_seed(0)).int()
    x = random(6, 64, dtype=torch.bfloat16, seed=9)
    out = torch.full((12, 48), torch.nan, dtype=torch.bfloat16)
    kernels.expert_linear(x, ids, weights, out)
    for i, number in enumerate(ids.tolist()):
        expected = torch.empty(1, 48, dtype=torch.bfloat16)
        kernels.linear(x[i // 2][None], weights[number], expected)
        assert same_bits(out[i][None], expected)


def test_memory_is_what_is_counted_with() -> None:
    """But for small scales and exponents, of which panels have a byte or two each."""
    from parlay.kernels import _native

    for kind in COMPUTED:
        assert 1 <= _native.packed_bytes(kind.block, kind.number) / 32 / kind.memory <= 1.06, kind


def test_a_kind_without_products_is_refused(native: Kernels) -> None:
    """It is dequantised when it is loaded; packed as it is, it would be an empty panel."""
    kind = BY_NAME["NVFP4"]
    weight = Weight((Part(kind, torch.zeros(64, kind.size, dtype=torch.uint8)),))
    with pytest.raises(ValueError, match="dequantise the weight first"):
        native.pack_linear(weight)
