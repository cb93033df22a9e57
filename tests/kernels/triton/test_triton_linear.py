"""Products: the reference's up to rounding, and a row's bits whatever stands beside it."""

import pytest
import torch
from tests.kernels.helpers import DTYPES, random

from parlay.kernels.reference import ReferenceKernels
from parlay.kernels.triton import linear
from parlay.kernels.triton.linear import Tile, TritonLinear
from parlay.weights.weight import Weight

ON_GPU = torch.cuda.is_available()  # elsewhere the interpreter takes long
SHAPES = ((32, 40), (64, 256), (100, 1100), (129, 1536)) if ON_GPU else ((32, 40), (64, 256), (70, 1100))


def on(weight: Weight, kernels: TritonLinear, x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    out = torch.full((len(x), weight.shape[0]), torch.nan, dtype=dtype or x.dtype, device=kernels.device)
    kernels.linear(x.to(kernels.device), kernels.pack_linear(weight), out)
    return out.cpu()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_product(device: torch.device, outputs: int, inputs: int, dtype: torch.dtype) -> None:
    x, weight = random(19, inputs, dtype=dtype, seed=1), random(outputs, inputs, dtype=dtype, seed=2)
    found = on(Weight.of(weight), TritonLinear(device), x, torch.float32)
    exact = x.double() @ weight.double().T
    size = (x.double().abs() @ weight.double().abs().T).amax()
    assert float((found.double() - exact).abs().amax() / size) < 1e-5


def test_product_of_many_rows(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "tile_of", lambda *_: Tile(128, 128, 64, 8, 3))
    monkeypatch.setattr(linear, "splits_of", lambda *_: 3)
    x, weight = random(140, 520, dtype=torch.bfloat16, seed=1), random(130, 520, dtype=torch.bfloat16, seed=2)
    found = on(Weight.of(weight), TritonLinear(device), x, torch.float32)
    assert torch.allclose(found, x.float() @ weight.float().T, atol=1e-3)


@pytest.mark.parametrize(("outputs", "inputs"), [(130, 400), (130, 128)])
def test_blocks_that_the_gpu_copies(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, outputs: int, inputs: int
) -> None:
    """On hardware they have the bits of few rows; the interpreter's products have other bits in other shapes."""
    monkeypatch.setattr(linear, "copies_blocks", lambda device: True)
    monkeypatch.setattr(linear, "splits_of", lambda *_: 2)
    x, matrix = (random(n, inputs, dtype=torch.bfloat16, seed=n) for n in (140, outputs))
    some = matrix[:20]  # which are not copied
    weight = Weight.stack([Weight.of(matrix), Weight.of(some.half()), Weight.of(matrix)])
    found = on(weight, TritonLinear(device), x, torch.float32)
    assert torch.allclose(found, x.float() @ torch.cat((matrix, some, matrix)).float().T, atol=1e-3)
    few = on(weight, TritonLinear(device), x[130:], torch.float32)
    assert torch.equal(few, found[130:]) or device.type == "cpu"


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_do_not_see_each_other(device: torch.device, dtype: torch.dtype) -> None:
    all_rows, outputs, inputs = (140, 100, 1536) if ON_GPU else (70, 70, 300)
    some = (1, 2, 16, 17, 33, 64, 65, 129) if ON_GPU else (1, 17, 65)
    kernels, x = TritonLinear(device), random(all_rows, inputs, dtype=dtype, seed=1)
    weight = Weight.of(random(outputs, inputs, dtype=dtype, seed=2))
    whole = on(weight, kernels, x, torch.float32)
    for rows in some:
        for begin in (0, 3, all_rows - rows) if ON_GPU else (3, all_rows - rows):
            own = on(weight, kernels, x[begin : begin + rows].clone(), torch.float32)
            assert torch.equal(own, whole[begin : begin + rows])


def test_k_is_split_alike_for_all_rows(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "splits_of", lambda *shape: 4)
    x, weight = random(70, 520, dtype=torch.bfloat16, seed=1), random(70, 520, dtype=torch.bfloat16, seed=2)
    found = on(Weight.of(weight), TritonLinear(device), x, torch.float32)
    assert torch.allclose(found, x.float() @ weight.float().T, atol=1e-3)
    assert torch.equal(on(Weight.of(weight), TritonLinear(device), x[67:], torch.float32), found[67:])


def test_halves(device: torch.device) -> None:
    weight, x = random(48, 256, seed=2).half(), random(5, 256, dtype=torch.bfloat16, seed=1)
    found = on(Weight.of(weight), TritonLinear(device), x, torch.float32)
    assert torch.allclose(found, x.float() @ weight.float().T, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_experts(device: torch.device, dtype: torch.dtype, reference: ReferenceKernels) -> None:
    kernels = TritonLinear(device)
    matrices = [random(40, 300, dtype=dtype, seed=seed) for seed in range(5)]
    x, experts = random(3, 300, dtype=dtype, seed=9), torch.tensor([0, 4, 4, 1, 3, 2])
    out = torch.empty(6, 40, dtype=dtype, device=device)
    packed = [kernels.pack_linear(matrix) for matrix in matrices]
    kernels.expert_linear(x.to(device), experts.int().to(device), packed, out)
    for i, expert in enumerate(experts.tolist()):
        assert torch.equal(out[i].cpu(), on(Weight.of(matrices[expert]), kernels, x[i // 2][None])[0])
