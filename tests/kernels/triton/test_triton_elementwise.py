"""Operations on each number by itself: as the reference does them, and rows that do not know of each other."""

from collections.abc import Sequence
from itertools import product
from typing import Any, get_args

import pytest
import torch
from tests.kernels.helpers import BLOCK, DTYPES, ints, random, same_bits
from torch import Tensor

from parlay.kernels.base import Activation
from parlay.kernels.reference import ReferenceKernels
from parlay.kernels.triton.elementwise import TritonElementwise

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, of infinities
ON_GPU = torch.cuda.is_available()
SIZES = ((1, 1), (3, 37), (17, 100), (2, 1030)) if ON_GPU else ((3, 37), (2, 1030))
LONG = [] if ON_GPU else [pytest.mark.soak]  # of what takes the interpreter long
ROWS = 17 if ON_GPU else 5  # of what `check_rows` cuts; no weight is as long


def thinned(every: int, *axes: Sequence[Any]) -> list[Any]:
    """All combinations; without a GPU one of `every`, a number without a common divisor with the axes' lengths."""
    return [pytest.param(*one, marks=LONG if n % every else []) for n, one in enumerate(product(*axes))]


def results(kernels: Any, method: str, device: torch.device, *arguments: Any, **options: Any) -> list[Tensor]:
    """What a method leaves of its tensors, of which it gets copies; one that is given twice is one there, too."""
    copies: dict[int, Tensor] = {}

    def copied(argument: Any) -> Any:
        if not isinstance(argument, Tensor):
            return argument
        if id(argument) not in copies:
            copies[id(argument)] = argument.clone().to(device)
        return copies[id(argument)]

    getattr(kernels, method)(*map(copied, arguments), **{name: copied(v) for name, v in options.items()})
    return [copies[id(argument)].cpu() for argument in arguments if isinstance(argument, Tensor)]


def near(found: Tensor, expected: Tensor) -> None:
    """Float32 to the fifth digit, bfloat16 to two units in the last place."""
    wide = found.dtype is torch.bfloat16
    assert found.dtype is expected.dtype
    torch.testing.assert_close(
        found, expected, rtol=2.0**-6 if wide else 1e-5, atol=2.0**-9 if wide else 1e-6, equal_nan=True
    )


def as_reference(
    kernels: Any, device: torch.device, method: str, *arguments: Any, exact: bool = False, **options: Any
) -> None:
    """Compare what a method leaves of all its tensors with what the reference leaves."""
    found = results(kernels, method, device, *arguments, **options)
    expected = results(ReferenceKernels(), method, torch.device("cpu"), *arguments, **options)
    assert any(not same_bits(e, a) for e, a in zip(expected, tensors(arguments), strict=True))
    for ours, theirs in zip(found, expected, strict=True):
        assert not exact or same_bits(ours, theirs)
        near(ours, theirs)


def tensors(arguments: Sequence[Any]) -> list[Tensor]:
    return [argument for argument in arguments if isinstance(argument, Tensor)]


def check_rows(kernels: Any, device: torch.device, method: str, *arguments: Any, **options: Any) -> None:
    """Some rows of the arguments of `ROWS` rows have the bits by themselves that they have among all."""
    whole = results(kernels, method, device, *arguments, **options)
    for rows in (slice(0, 1), slice(ROWS // 3, ROWS // 3 + 1), slice(3, ROWS)):
        # Parts of a whole, since an address that is no multiple of 16 may change a compiled kernel.
        parts = [a.clone().to(device) if isinstance(a, Tensor) else a for a in arguments]
        parts = [a[rows] if isinstance(a, Tensor) and len(a) == ROWS else a for a in parts]
        cut = {n: v.to(device)[rows] if isinstance(v, Tensor) and len(v) == ROWS else v for n, v in options.items()}
        getattr(kernels, method)(*parts, **cut)
        for part, all_rows in zip(tensors(parts), whole, strict=True):
            assert same_bits(part.cpu(), all_rows[rows] if len(all_rows) == ROWS else all_rows)


@pytest.fixture
def kernels() -> TritonElementwise:
    return TritonElementwise()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), SIZES)
def test_embedding(
    kernels: TritonElementwise, device: torch.device, dtype: torch.dtype, rows: int, width: int
) -> None:
    table, tokens = random(23, width, dtype=dtype), torch.arange(rows) * 7 % 23
    nothing, x = torch.full((rows, width), torch.nan, dtype=dtype), random(rows, width, dtype=dtype, seed=1)
    as_reference(kernels, device, "embed", table, tokens, nothing, exact=True)
    as_reference(kernels, device, "add_embedding", x, table, tokens.int(), exact=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), SIZES)
def test_single_operations(
    kernels: TritonElementwise, device: torch.device, dtype: torch.dtype, rows: int, width: int
) -> None:
    x, other = random(rows, width, dtype=dtype), random(rows, width, dtype=dtype, seed=1, spread=3)
    as_reference(kernels, device, "add_bias", x, other[0].clone(), exact=True)
    as_reference(kernels, device, "scale", x, 0.22, exact=True)
    as_reference(kernels, device, "multiply", x, other, exact=True)
    for gate in ("sigmoid", "softplus"):
        as_reference(kernels, device, "multiply", x, other, gate=gate)
        as_reference(kernels, device, "multiply", x, other[:, :1].contiguous(), gate=gate)
        as_reference(kernels, device, "multiply", x.repeat(1, 3), other, gate=gate)


@pytest.mark.parametrize("activation", get_args(Activation))
@pytest.mark.parametrize("dtype", DTYPES)
def test_activations(
    kernels: TritonElementwise, device: torch.device, dtype: torch.dtype, activation: Activation
) -> None:
    for rows, width in SIZES:
        x = random(rows, 2 * width, dtype=dtype, spread=4)
        out = torch.full((rows, width), torch.nan, dtype=dtype)
        as_reference(kernels, device, "act_mul", x, activation, out, exact=activation.startswith("relu"))
        as_reference(kernels, device, "act_mul", x, activation, out, 0.7, exact=activation.startswith("relu"))
        negative = -x.abs()  # an only number is to change
        as_reference(kernels, device, "activate", negative, activation, exact=activation.startswith("relu"))


@pytest.mark.parametrize("activation", get_args(Activation))
def test_activations_far_out(
    kernels: TritonElementwise, reference: ReferenceKernels, device: torch.device, activation: Activation
) -> None:
    """Tails to nearly five digits where they are numbers of normal size, infinities and what is not a number."""
    x = torch.cat((torch.linspace(-12.5, 12.5, 2001), torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, 80])))
    (found,) = results(kernels, "activate", device, x[None], activation)
    (expected,) = results(reference, "activate", torch.device("cpu"), x[None], activation)
    torch.testing.assert_close(found, expected, rtol=3e-5, atol=1e-37, equal_nan=True)


def test_soft_cap(kernels: TritonElementwise, device: torch.device) -> None:
    x = torch.cat((torch.linspace(-400, 400, 5001), torch.logspace(-30, 1, 999), -torch.logspace(-8, 1, 999)))[None]
    exact = 30 * (x.double() / 30).tanh()
    (found,) = results(kernels, "soft_cap", device, x, 30.0)
    assert ((found.double() - exact).abs() <= 6 * 2.0**-23 * exact.abs() + 1e-37).all()
    (found,) = results(kernels, "soft_cap", device, torch.tensor([[torch.inf, -torch.inf, torch.nan, 0.0]]), 30.0)
    assert found[0, :2].tolist() == [30, -30]
    assert found[0, 2].isnan()
    assert found[0, 3] == 0
    as_reference(kernels, device, "soft_cap", random(3, 37, spread=9), 5.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_xielu(kernels: TritonElementwise, device: torch.device, dtype: torch.dtype) -> None:
    x = torch.cat((torch.linspace(-40, 40, 1999), torch.logspace(-20, 0, 99), -torch.logspace(-20, 0, 99)))
    as_reference(kernels, device, "xielu", x[None].to(dtype), torch.tensor([0.7, 1.1, 0.4, -1e-6]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [8, 40])
def test_copies_read_before_they_write(
    kernels: TritonElementwise, device: torch.device, dtype: torch.dtype, dim: int
) -> None:
    keys, values = (random(3, 2, BLOCK, dim, dtype=dtype, seed=s) for s in (1, 2))
    for sources, targets in (([5], [0]), ([0, 1, 2, 47, 16], [1, 2, 0, 16, 47]), (range(17), range(1, 18))):
        moves = torch.tensor(sources), torch.tensor(targets)
        as_reference(kernels, device, "copy_slots", *moves, keys, values, exact=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_do_not_know_of_others(kernels: TritonElementwise, device: torch.device, dtype: torch.dtype) -> None:
    x, other = random(ROWS, 100, dtype=dtype), random(ROWS, 100, dtype=dtype, seed=1)
    table, tokens = random(23, 100, dtype=dtype), torch.arange(ROWS) * 7 % 23
    check_rows(kernels, device, "embed", table, tokens, torch.zeros_like(x))
    check_rows(kernels, device, "add_embedding", x, table, tokens.int())
    check_rows(kernels, device, "add_bias", x, table[0].clone())
    check_rows(kernels, device, "scale", x, 0.22)
    check_rows(kernels, device, "soft_cap", x.float(), 2.0)
    check_rows(kernels, device, "multiply", x, other, gate="sigmoid")
    check_rows(kernels, device, "multiply", x, other)
    for activation in get_args(Activation):
        check_rows(kernels, device, "activate", x, activation)
        check_rows(kernels, device, "act_mul", x, activation, random(ROWS, 50, dtype=dtype))


def test_no_rows(kernels: TritonElementwise, device: torch.device) -> None:
    x, cache, none = torch.empty(0, 8).to(device), random(1, 1, 4, 8).to(device), torch.empty(0, dtype=torch.int64)
    kernels.embed(random(3, 8).to(device), none.to(device), x)
    kernels.add_embedding(x, random(3, 8).to(device), ints().to(device))
    kernels.act_mul(torch.empty(0, 16).to(device), "silu", x)
    kernels.activate(x, "gelu")
    kernels.scale(x, 2.0)
    kernels.copy_slots(none.to(device), none.to(device), cache, cache)
