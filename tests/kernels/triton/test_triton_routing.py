"""Experts: chosen as the reference chooses them, and rows that do not know of each other."""

import pytest
import torch
from tests.kernels.helpers import DTYPES, random
from torch import Tensor

from parlay.kernels.triton.routing import TritonRouting

from .test_triton_elementwise import ROWS, as_reference, check_rows, results, thinned

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, of infinities
COUNTS = [(6, 2, 1, 1), (24, 4, 4, 2), (40, 3, 20, 3), (21, 5, 3, 2), (5, 2, 5, 3)]


@pytest.fixture
def kernels() -> TritonRouting:
    return TritonRouting()


def written(rows: int, chosen: int) -> tuple[Tensor, Tensor]:
    return torch.full((rows, chosen), -1, dtype=torch.int32), torch.full((rows, chosen), torch.nan)


@pytest.mark.parametrize(
    ("counts", "bias", "sigmoid", "normalise"), thinned(7, COUNTS, *[[False, True]] * 3), ids=str
)
def test_routes(
    kernels: TritonRouting,
    device: torch.device,
    counts: tuple[int, int, int, int],
    bias: bool,
    sigmoid: bool,
    normalise: bool,
) -> None:
    experts, chosen, groups, kept = counts
    for rows, scales in ((1, None), (3, random(experts, seed=2)), (17 if normalise and bias else 2, None)):
        scores, own = random(rows, experts, spread=3), random(experts, seed=1, spread=0.3) if bias else None
        given = scores, *written(rows, chosen), normalise, sigmoid, own, groups, kept
        as_reference(kernels, device, "route", *given, 2.5, scales=scales)


@pytest.mark.parametrize(("experts", "chosen"), [(16, 4), (3, 3), (1, 1), (257, 8), (1000, 3)])
def test_ties_go_to_the_lowest_id(kernels: TritonRouting, device: torch.device, experts: int, chosen: int) -> None:
    scores = random(4, experts, spread=3)
    scores[1] = 1.5
    scores[2, experts // 2 :] = scores[2].max() + 1
    scores[3, ::2] = -torch.inf
    scores[3, experts // 2] = torch.inf
    as_reference(kernels, device, "route", scores[:3], *written(3, chosen), True)
    ids = results(kernels, "route", device, scores, *written(4, chosen), True)[1]
    assert ids.tolist() == (-scores).argsort(dim=1, stable=True)[:, :chosen].tolist()


@pytest.mark.parametrize("sigmoid", [False, True])
def test_what_is_not_a_number_is_chosen_last(kernels: TritonRouting, device: torch.device, sigmoid: bool) -> None:
    scores = torch.full((4, 5), torch.nan)
    scores[0, 3] = -3
    scores[2] = -torch.inf
    scores[3, 1:3] = torch.tensor([-torch.inf, torch.inf])
    ids = results(kernels, "route", device, scores, *written(4, 2), True, sigmoid)[1]
    assert ids[:3].tolist() == [[3, 0], [0, 1], [0, 1]]
    assert ids[3, 0] == 2
    grouped = random(1, 8)
    grouped[0, 2] = torch.nan
    ids = results(kernels, "route", device, grouped, *written(1, 3), True, sigmoid, None, 4, 3)[1]
    assert 2 not in ids.tolist()[0]


def test_groups_that_do_not_fit(kernels: TritonRouting, device: torch.device) -> None:
    scores, ids, weights = (t.to(device) for t in (random(2, 6), *written(2, 3)))
    for groups, kept in ((0, 0), (4, 1), (3, 4), (3, 1), (2, 0)):
        with pytest.raises(ValueError, match="whole groups"):
            kernels.route(scores, ids, weights, True, True, None, groups, kept)


@pytest.mark.parametrize(
    ("shape", "dtype"), thinned(3, ((1, 1, 8), (3, 3, 37), (17, 2, 100), (2, 8, 1030)), DTYPES), ids=str
)
def test_mixtures(
    kernels: TritonRouting, device: torch.device, shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    rows, chosen, width = shape
    x, weights = random(rows, chosen, width, dtype=dtype), random(rows, chosen, seed=1).abs()
    shared, gate = random(rows, width, dtype=dtype, seed=2), random(rows, 1, seed=3, spread=3)
    out = torch.full((rows, width), torch.nan, dtype=dtype)
    as_reference(kernels, device, "mix_experts", x, weights, out, exact=True)
    as_reference(kernels, device, "mix_experts", x, weights, out, shared, exact=True)
    as_reference(kernels, device, "mix_experts", x, weights, shared, shared, gate)


@pytest.mark.parametrize("sigmoid", [False, True])
def test_routes_do_not_know_of_each_other(kernels: TritonRouting, device: torch.device, sigmoid: bool) -> None:
    scores = random(ROWS, 39, spread=2)
    check_rows(kernels, device, "route", scores, *written(ROWS, 4), True, sigmoid)
    check_rows(kernels, device, "route", scores, *written(ROWS, 4), False, sigmoid, random(39, seed=1), 13, 4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_mixtures_do_not_know_of_others(kernels: TritonRouting, device: torch.device, dtype: torch.dtype) -> None:
    x, out = random(ROWS, 3, 100, dtype=dtype), torch.zeros(ROWS, 100, dtype=dtype)
    weights, gate = random(ROWS, 3, seed=1), random(ROWS, 1, seed=2)
    check_rows(kernels, device, "mix_experts", x, weights, out, random(ROWS, 100, dtype=dtype, seed=3), gate)


def test_no_rows(kernels: TritonRouting, device: torch.device) -> None:
    kernels.route(torch.empty(0, 6).to(device), *(t.to(device) for t in written(0, 2)), True)
    kernels.mix_experts(*(torch.empty(*s).to(device) for s in ((0, 2, 8), (0, 2), (0, 8))))
