"""Quantised weights: the bits of plain ones that hold the same numbers, in fewer bytes."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tests.kernels.helpers import DTYPES, random, same_bits
from torch import Tensor

from parlay.kernels.triton import linear
from parlay.kernels.triton.blocks import BlockPart, layout_of
from parlay.kernels.triton.linear import TritonLinear
from parlay.numerics.selfcheck import random_blocks
from parlay.weights.blocks import unpack
from parlay.weights.kinds import BY_NAME, COMPUTED, Kind
from parlay.weights.quantise import to_int4, to_int8
from parlay.weights.weight import Part, Weight

# One of each layout: how blocks of the others are read is the twin's affair.
LAYOUTS = {layout_of(kind): kind for kind in reversed(COMPUTED)}
kinds = pytest.mark.parametrize("kind", LAYOUTS.values(), ids=str)
dtypes = pytest.mark.parametrize("dtype", DTYPES)


def multiplied(kernels: TritonLinear, x: Tensor, weight: Weight) -> Tensor:
    out = torch.full((len(x), weight.shape[0]), torch.nan, device=kernels.device)
    kernels.linear(x.to(kernels.device), kernels.pack_linear(weight), out)
    return out.cpu()


def plain(weight: Weight, dtype: torch.dtype) -> Weight:
    """The numbers that a weight holds, in no blocks."""
    return Weight.of(weight.numbers().to(dtype))


def check(found: Tensor, expected: Tensor) -> None:
    """A tile of other weights may add its inputs in another order, on a GPU and in the interpreter alike."""
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().amax()))


def mixed(seed: int, dtype: torch.dtype, inputs: int = 256, first: int = 34) -> Weight:
    """Parts of several kinds, two of which are kept alike and are no neighbours, and plain numbers."""
    names = {"Q4_K": first, "Q6_K": 20, "Q5_0": 9, "Q8_0": 10, "Q4_1": 5}
    some = [random_blocks(BY_NAME[name], n, inputs, seed + i) for i, (name, n) in enumerate(names.items())]
    return Weight.stack([*some[:2], Weight.of(random(12, inputs, dtype=dtype, seed=seed)), *some[2:]])


@kinds
@dtypes
def test_products(device: torch.device, kind: Kind, dtype: torch.dtype) -> None:
    inputs = 160 if kind.block == 32 else 256  # the former end within a tile
    weight, x = random_blocks(kind, 40, inputs, seed=1), random(3, inputs, dtype=dtype, seed=2)
    kernels = TritonLinear(device)
    check(multiplied(kernels, x, weight), multiplied(kernels, x, plain(weight, dtype)))


@kinds
@dtypes
def test_embedding(device: torch.device, kind: Kind, dtype: torch.dtype) -> None:
    inputs = 1120 if kind.block == 32 else 1280
    weight, tokens = random_blocks(kind, 9, inputs, seed=1), torch.tensor([4, 0, 8, 4])
    kernels, out = TritonLinear(device), torch.empty(4, inputs, dtype=dtype, device=device)
    kernels.embed_packed(kernels.pack_head(weight), tokens.to(device), out)
    assert torch.equal(out.cpu(), plain(weight, dtype).numbers()[tokens])
    kernels.embed_packed(kernels.pack_head(weight), tokens[:0].to(device), out[:0])


@pytest.mark.parametrize("exponent", [0, 1, 126, 252])
def test_all_codes_of_mxfp4(device: torch.device, exponent: int) -> None:
    """With the least and the largest of scales."""
    kind = BY_NAME["MXFP4"]
    block = torch.tensor([exponent, *(code | (15 - code) << 4 for code in range(16))], dtype=torch.uint8)
    kernels, weight = TritonLinear(device), Weight((Part(kind, block[None]),))
    out, packed = torch.empty(1, 32, device=device), kernels.pack_head(weight)
    kernels.embed_packed(packed, torch.tensor([0], device=device), out)
    assert torch.equal(out.cpu(), weight.numbers())
    check(multiplied(kernels, torch.eye(32), weight), weight.numbers().T.contiguous())


@dtypes
def test_parts_of_several_kinds(device: torch.device, dtype: torch.dtype) -> None:
    kernels, x, weight = TritonLinear(device), random(5, 256, dtype=dtype, seed=2), mixed(1, dtype, first=70)
    packed = kernels.pack_linear(weight)
    assert [part.outputs for part in packed.parts] == [70, 20, 12, 19, 5]  # Q5_0 and Q8_0 are kept alike
    check(multiplied(kernels, x, weight), multiplied(kernels, x, plain(weight, dtype)))


def test_with_halves(device: torch.device) -> None:
    x, half = random(5, 256, dtype=torch.bfloat16, seed=2), Weight.of(random(40, 256, seed=1).half())
    blocks = random_blocks(BY_NAME["Q4_K"], 40, 256, seed=1)
    kernels = TritonLinear(device)
    found = multiplied(kernels, x, Weight.stack([half, blocks, half]))
    alone = [multiplied(kernels, x, weight) for weight in (half, blocks)]
    assert torch.equal(found, torch.cat((*alone, alone[0]), dim=1))


@dtypes
def test_k_in_parts(device: torch.device, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "splits_of", lambda *shape: 4)
    kernels, x, weight = TritonLinear(device), random(4, 512, dtype=dtype, seed=2), mixed(1, dtype, 512)
    found = multiplied(kernels, x, weight)
    check(found, multiplied(kernels, x, plain(weight, dtype)))
    assert same_bits(multiplied(kernels, x[3:], weight), found[3:])


@dtypes
def test_rows_do_not_see_each_other(device: torch.device, dtype: torch.dtype) -> None:
    rows = 70 if torch.cuda.is_available() else 20  # the interpreter's tiles have 16
    kernels, weight, x = TritonLinear(device), mixed(1, dtype), random(rows, 256, dtype=dtype, seed=2)
    whole = multiplied(kernels, x, weight)
    for begin, end in ((rows - 1, rows), (1, 17), (2, rows)):
        assert same_bits(multiplied(kernels, x[begin:end], weight), whole[begin:end])


@dtypes
def test_experts(device: torch.device, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their parts are of several kinds, and K is split; then come others, of which there are fewer."""
    monkeypatch.setattr(linear, "splits_of", lambda *shape: 2)
    kernels = TritonLinear(device)

    def experts(weights: Sequence[Weight], chosen: Sequence[int], x: Tensor) -> None:
        out = torch.full((len(chosen), weights[0].shape[0]), torch.nan, device=device)
        index = torch.tensor(chosen, dtype=torch.int32, device=device)
        kernels.expert_linear(x.to(device), index, [kernels.pack_linear(weight) for weight in weights], out)
        for i, expert in enumerate(chosen):
            row = x[i * len(x) // len(chosen)][None]
            assert same_bits(out[i].cpu(), multiplied(kernels, row, weights[expert])[0])

    experts([mixed(10 * i, dtype) for i in range(3)], (0, 2, 2, 1), random(2, 256, dtype=dtype, seed=9))
    micro = [random_blocks(BY_NAME["MXFP4"], 40, 160, seed) for seed in range(2)]
    experts(micro, (1, 0), random(2, 160, dtype=dtype, seed=9))


def test_layouts_hold_what_blocks_do() -> None:
    for kind in COMPUTED:
        layout, blocks = layout_of(kind), unpack(kind, random_blocks(kind, 2, 512, seed=1).parts[0].data.numpy())
        assert (layout.group, layout.least) == (blocks.group, blocks.least is not None), kind
        if layout.base is not None:
            codes = blocks.levels - layout.base
            assert 0 <= codes.min() <= codes.max() < 1 << layout.bits, kind


@kinds
def test_memory(device: torch.device, kind: Kind) -> None:
    (part,) = TritonLinear(device).pack_linear(random_blocks(kind, 6, 512, seed=1)).parts
    assert isinstance(part, BlockPart)
    tensors = [part.tensor, part.scales, *([] if part.least is None else [part.least])]
    assert sum(each.nbytes for each in tensors) * 8 == 6 * 512 * layout_of(kind).size
    assert all(each.device.type == device.type for each in tensors)


def test_memory_is_as_documented(device: torch.device) -> None:
    page = " ".join((Path(__file__).parents[3] / "docs" / "gpu.md").read_text().split())
    bits = {kind.name: layout_of(kind).size for kind in COMPUTED if kind.block > 1}
    said = ", ".join(f"{name} {bits[name]:g}" for name in ("Q4_0", "Q4_K", "Q8_0", "Q6_K"))
    assert f"with {min(bits.values()):g} to {max(bits.values()):g} bits per weight ({said};" in page


def test_large_weights_are_unpacked_in_slabs(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels, weight, x = TritonLinear(device), mixed(1, torch.bfloat16), random(2, 256, dtype=torch.bfloat16, seed=2)
    whole = multiplied(kernels, x, weight)
    monkeypatch.setattr("parlay.kernels.triton.blocks._SLAB", 256 * 7)
    assert same_bits(multiplied(kernels, x, weight), whole)


def test_what_the_engine_quantises(device: torch.device) -> None:
    x, numbers, kernels = random(3, 64, seed=1), random(32, 64, seed=2), TritonLinear(device)
    for weight in (to_int4(numbers), to_int8(numbers)):
        check(multiplied(kernels, x, weight), multiplied(kernels, x, plain(weight, torch.float32)))
