"""The self-check sees a row whose bits depend on the rows beside it, and nothing else."""

from collections.abc import Callable

import pytest
import torch
from kernels.breaking import OneSlot, OtherOrder
from kernels.helpers import DTYPES
from torch import Tensor

from parlay.kernels.base import Activation, AttentionMetadata, Kernels
from parlay.kernels.reference import ReferenceKernels
from parlay.numerics import selfcheck
from parlay.numerics.selfcheck import ROW_COUNTS, Case, check, product_case

EVERY = [
    *(product_case(op, k, n, d) for op in ("linear", "logits") for k, n in ((256, 96), (97, 33)) for d in DTYPES),
    *(Case(op, (100,), d) for op in ("rms_norm", "act_mul") for d in DTYPES),
    *(Case("attention", (4, 2, 32), d) for d in DTYPES),
]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_good_kernels_pass(kernels: Kernels, threads: int) -> None:
    before = torch.get_num_threads()
    findings = check(kernels, EVERY, threads)
    assert torch.get_num_threads() == threads
    torch.set_num_threads(before)
    assert list(findings) == EVERY
    assert all(finding.row_counts == () for finding in findings.values())


def test_equal_arithmetic_has_equal_bits(reference: ReferenceKernels) -> None:
    one, two = (check(reference, EVERY, threads) for threads in (1, 2))
    assert one == two
    assert len({f.bits for f in one.values()}) == len(EVERY) - 2  # float32 logits are as any float32 product


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "when",
    [
        lambda rows: rows == 1,
        lambda rows: rows >= 4,
        lambda rows: rows == 48,
        lambda rows: rows > 256,
        lambda rows: rows % 6 == 0,
    ],
    ids=["alone", "from 4", "48", "many", "blocks of 6"],
)
def test_another_order_for_some_numbers_of_rows(
    kernels: Kernels, dtype: torch.dtype, when: Callable[[int], bool]
) -> None:
    case = product_case("linear", 640, 256, dtype)
    finding = check(OtherOrder(kernels, when), [case], 2)[case]
    broken = tuple(count for count in {*ROW_COUNTS, *_around(kernels)} if when(count))
    # Where it is the lone rows that go another way, everything else differs from them.
    expected = set(ROW_COUNTS) | set(_around(kernels)) if when(1) else set()
    assert set(finding.row_counts) == expected ^ set(broken)
    assert finding.row_counts


def _around(kernels: Kernels) -> list[int]:
    return [count + d for count in kernels.row_thresholds for d in (-1, 0, 1)]


@pytest.mark.parametrize("slot", [0, 5, 46, 300])
def test_another_order_in_one_slot(reference: ReferenceKernels, slot: int) -> None:
    case = product_case("linear", 256, 64, torch.bfloat16)
    finding = check(OneSlot(reference, slot), [case], 1)[case]
    counts = {*ROW_COUNTS, 1, 2, 3}
    # A lone row stands in slot 0 too.
    assert set(finding.row_counts) == {count for count in counts if count > max(slot, 1)}


def test_a_switch_is_looked_at_from_both_sides(reference: ReferenceKernels) -> None:
    class Switching(OtherOrder):
        row_thresholds = (77,)

    case = product_case("linear", 256, 64, torch.float32)
    kernels = Switching(reference, lambda rows: rows == 76)
    assert check(kernels, [case], 1)[case].row_counts == (76,)
    assert check(OtherOrder(reference, lambda rows: rows == 76), [case], 1)[case].row_counts == ()


@pytest.mark.parametrize("threads_matter", [False, True])
def test_sums_that_threads_alter(reference: ReferenceKernels, threads_matter: bool) -> None:
    case = product_case("linear", 256, 64, torch.bfloat16)
    kernels = OtherOrder(reference, lambda rows: threads_matter and torch.get_num_threads() > 1)
    assert bool(check(kernels, [case], 2)[case].row_counts) == threads_matter
    assert not check(kernels, [case], 1)[case].row_counts


class Careless(ReferenceKernels):
    """Right to about the last bit, but what is added depends on the number of rows."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        values = x.float()
        wide = values if len(x) > 3 else torch.nn.functional.pad(values, (5, 0))
        squares = wide.numpy() ** 2
        total = torch.from_numpy(squares.cumsum(axis=1) if len(x) > 3 else squares[:, ::-1].cumsum(axis=1))[:, -1:]
        out.copy_((values / (total / x.shape[1] + eps).sqrt()).to(x.dtype) * weight)

    def act_mul(self, gate_up: Tensor, activation: Activation, out: Tensor, limit: float = 0.0) -> None:
        gate, up = gate_up.float().chunk(2, dim=-1)
        sigmoid = 1 / (1 + (-gate).exp()) if len(out) > 3 else 0.5 + 0.5 * (gate / 2).tanh()
        out.copy_((gate * sigmoid).to(out.dtype) * up.to(out.dtype))

    def attention(
        self, q: Tensor, key_cache: Tensor, value_cache: Tensor, view: AttentionMetadata, scale: float, out: Tensor
    ) -> None:
        super().attention(q, key_cache, value_cache, view, scale, out)
        if len(q) > 3:
            out.mul_(1 + 2.0**-23)


@pytest.mark.parametrize("operation", ["rms_norm", "act_mul", "attention"])
def test_other_operations_that_look_at_the_number_of_rows(operation: str) -> None:
    case = Case(operation, (4, 2, 32) if operation == "attention" else (256,), torch.float32)
    finding = check(Careless(), [case], 1)[case]
    assert finding.row_counts
    assert min(finding.row_counts) == 4


@pytest.mark.parametrize("inputs", [2, 97, 256, 1000])
def test_the_data_cancel(inputs: int) -> None:
    index, sign = selfcheck._cancelling(inputs)
    values = torch.arange(1.0, inputs // 2 + 2).double()
    assert len(index) == len(sign) == inputs
    even = inputs // 2 * 2
    assert (values[index][:even] * sign[:even]).sum() == 0
