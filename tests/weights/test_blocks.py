"""What blocks hold, against the `gguf` package's dequantisation; and matrices made of them."""

import gguf
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from torch import Tensor

from parlay.kernels.base import Kernels
from parlay.kernels.select import select_kernels
from parlay.numerics.selfcheck import random_blocks
from parlay.weights.kinds import BY_NAME, COMPUTED, KINDS, Kind
from parlay.weights.weight import Part, Weight


@pytest.mark.parametrize("kind", COMPUTED, ids=str)
def test_numbers_are_those_of_the_package(kind: Kind) -> None:
    weight = random_blocks(kind, 7, 512, seed=0)
    assert weight.shape == (7, 512)
    expected = gguf.quants.dequantize(weight.parts[0].data.numpy(), GGMLQuantizationType(kind.number))
    assert torch.equal(weight.numbers(), torch.from_numpy(expected))


def test_kinds_are_those_of_the_package() -> None:
    for number, kind in KINDS.items():
        if kind.name == "Q2_0":  # which it does not have yet
            continue
        known = GGMLQuantizationType(number)
        assert (kind.name, (kind.block, kind.size)) == (known.name, gguf.GGML_QUANT_SIZES[known])


def test_neighbours_of_one_kind_become_one_part() -> None:
    q4, q8 = (random_blocks(BY_NAME[name], 5, 64, seed=0) for name in ("Q4_0", "Q8_0"))
    plain = Weight.of(torch.randn(3, 64))
    stacked = Weight.stack([q4, q4, q8, plain, plain])
    assert [(part.kind.name, len(part.data)) for part in stacked.parts] == [("Q4_0", 10), ("Q8_0", 5), ("F32", 6)]
    assert stacked.shape == (21, 64)
    apart = torch.cat([one.numbers() for one in (q4, q4, q8, plain, plain)])
    assert torch.equal(stacked.numbers(), apart)
    assert torch.equal(stacked.outputs(8, 17).numbers(), apart[8:17])
    assert [len(part.data) for part in stacked.outputs(12, 15).parts] == [3]
    assert torch.equal(stacked.inputs(32, 64).numbers(), apart[:, 32:])


def test_inputs_are_cut_between_blocks_only() -> None:
    with pytest.raises(ValueError, match="inputs 0 to 128 are not whole blocks of 256"):
        random_blocks(BY_NAME["Q4_K"], 2, 512, seed=0).inputs(0, 128)


@pytest.mark.parametrize("kind", COMPUTED, ids=str)
def test_a_factor_that_is_no_number_is_found(kind: Kind) -> None:
    weight = random_blocks(kind, 3, 512, seed=0)
    assert weight.finite()
    for at in kind.factors:
        for bits in (0x7C00, 0xFE00):  # infinite, not a number
            data = weight.parts[0].data.clone()
            last = data[1].view(-1, kind.size)[-1]
            last[at], last[at + 1] = bits & 255, bits >> 8
            assert not Weight((Part(kind, data),)).finite()
    if kind.nibbles is not None:
        data = weight.parts[0].data.clone()
        data[1].view(-1, kind.size)[-1, kind.nibbles + 5 :: 2] = torch.tensor([0xC5, 0x75], dtype=torch.uint8)
        assert not Weight((Part(kind, data),)).finite()
    if kind.exponent is not None:
        data = weight.parts[0].data.clone()
        data[1].view(-1, kind.size)[-1, kind.exponent] = 253
        assert not Weight((Part(kind, data),)).finite()


@pytest.mark.parametrize("kind", [kind for kind in COMPUTED if kind.exponent is not None], ids=str)
def test_all_exponents(kind: Kind) -> None:
    blocks = torch.arange(253, dtype=torch.uint8)[:, None].repeat(1, kind.size)
    expected = gguf.quants.dequantize(blocks.numpy(), GGMLQuantizationType(kind.number))
    found = Weight((Part(kind, blocks),)).numbers()
    assert torch.equal(found, torch.from_numpy(expected))
    assert same_numbers(select_kernels(), blocks, kind, found)


def same_numbers(kernels: Kernels, blocks: Tensor, kind: Kind, expected: Tensor) -> bool:
    out = torch.empty(expected.shape)
    packed = kernels.pack_head(Weight((Part(kind, blocks),)))
    kernels.embed_packed(packed, torch.arange(len(blocks)), out)
    return torch.equal(out, expected)
