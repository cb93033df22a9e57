"""Sampling in Triton: the same tokens as the slow twin, and where the contract says so the same bits."""

import math
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from parlay.kernels.metadata import Filters
from parlay.kernels.reference import ReferenceKernels
from parlay.kernels.triton.filtering import PIECE
from parlay.kernels.triton.sampling import TritonSampling

from ..helpers import filters_of, random, same_bits  # noqa: TID252
from .test_triton_elementwise import LONG, ON_GPU

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of infinite scores

INF, NAN = float("inf"), float("nan")
LIMITS = [
    (0.0, 0, 0.9), (0.0, 0, 1e-300), (0.0, 0, 1 - 2.0**-53), (0.0, 1, 1.0), (0.0, 50, 1.0), (0.0, 700, 0.7),
    (0.0, 2**40, 0.3), (0.05, -1, 1.0), (1.0, 0, 1.0), (5e-324, 0, 0.99), (0.01, 30, 0.8), (0.0, 0, 1.0),
]  # fmt: skip


@pytest.fixture
def triton() -> TritonSampling:
    return TritonSampling()


def to(device: torch.device, *tensors: Tensor | None) -> list[Tensor | None]:
    return [None if one is None else one.clone().to(device) for one in tensors]


def filters_to(device: torch.device, filters: Filters | None) -> Filters | None:
    return filters and Filters(filters.min_p.to(device), filters.top_k.to(device), filters.top_p.to(device))


def rows_of(vocab: int) -> Tensor:
    """Peaked, flat, tied, tiny, huge, broken: a row of each."""
    normal = random(vocab, seed=vocab)
    share = random(vocab, seed=vocab + 1).abs()
    rows = [
        *(normal * spread for spread in (0.0, 0.01, 1.0, 4.0, 100.0)),
        (normal * 2).round(),
        10 ** (normal * 20).clamp(-44, 1),
        torch.where(share < 0.5, -0.0, 0.0),
        torch.where(share < 0.5, 3e38, -3e38),
        torch.where(share < 0.3, NAN, normal),
        torch.where(share < 1.5, -INF, normal),
        torch.where(share < 0.2, INF, 0.0),
        torch.full((vocab,), -INF),
        torch.full((vocab,), NAN),
    ]
    return torch.stack(rows).float()


def temperatures_of(rows: int) -> Tensor:
    temperatures = torch.linspace(0.1, 2, rows)
    temperatures[1::4] = 0
    temperatures[2::5] = 1e-30
    return temperatures


def keys_of(rows: int) -> tuple[Tensor, Tensor]:
    return random(rows, seed=9).double().view(torch.int64), torch.arange(rows) * 2**31


def pick(
    kernels: TritonSampling | ReferenceKernels,
    device: torch.device,
    scores: Tensor,
    temperatures: Tensor,
    filters: Filters | None,
    ids: Tensor | None,
    children: int,
    keys: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Draw where `children` is 0, else branch."""
    rows = len(scores)
    shape = (rows, children) if children else (rows,)
    tokens = torch.full(shape, -1, device=device)
    probs = torch.full(shape, NAN, device=device)
    given = to(device, scores, temperatures, *(keys or keys_of(rows)))
    filters, ids = filters_to(device, filters), None if ids is None else ids.to(device)
    if children:
        kernels.branch(*given, tokens, probs, filters, ids)
    else:
        kernels.draw(*given, tokens, filters, ids, probs)
        if filters is None:
            alone = torch.full_like(tokens, -1)
            kernels.draw(*given, alone, filters, ids)
            assert torch.equal(alone, tokens)
    assert same_bits(given[0].cpu(), scores), "scores are read only"
    return tokens.cpu(), probs.cpu()


CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("vocab", "children", "named"),
    [
        *((1, 0, False), (2, 16, True), (77, 0, True), (PIECE + 5, 4, True)),
        *(pytest.param(*long, False, marks=LONG) for long in ((77, 4), (PIECE + 5, 0))),
    ],
)
def test_choices(
    triton: TritonSampling, reference: ReferenceKernels, device: torch.device, vocab: int, children: int, named: bool
) -> None:
    scores = rows_of(vocab)[:: 1 if vocab == 77 else 3]
    temperatures = temperatures_of(len(scores))
    ids = torch.randperm(3 * vocab, generator=torch.Generator().manual_seed(1))[:vocab] if named else None
    tokens, probs = pick(triton, device, scores, temperatures, None, ids, children)
    expected, expected_probs = pick(reference, CPU, scores, temperatures, None, ids, children)
    assert torch.equal(tokens, expected)
    torch.testing.assert_close(probs, expected_probs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("children", "named"), [(0, False), pytest.param(4, True, marks=LONG)])
def test_filtered_choices(
    triton: TritonSampling, reference: ReferenceKernels, device: torch.device, children: int, named: bool
) -> None:
    scores, temperatures = rows_of(77)[[2, 3]], torch.tensor([0.8, 0.0])
    filters = filters_of([(0.01, 30, 0.8), (0.0, 3, 1.0)])
    ids = torch.arange(77).flip(0).contiguous() if named else None
    tokens, probs = pick(triton, device, scores, temperatures, filters, ids, children)
    expected, expected_probs = pick(reference, CPU, scores, temperatures, filters, ids, children)
    assert torch.equal(tokens, expected)
    torch.testing.assert_close(probs, expected_probs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("rows", [3, *(pytest.param(rows, marks=LONG) for rows in (1, 17))])
def test_draws_of_rows_alike(
    triton: TritonSampling, reference: ReferenceKernels, device: torch.device, rows: int
) -> None:
    """Flat scores, so that the noise decides."""
    scores, temperatures = random(rows, 301, spread=0.3), torch.full((rows,), 0.8)
    tokens, _ = pick(triton, device, scores, temperatures, None, None, 0)
    assert torch.equal(tokens, pick(reference, CPU, scores, temperatures, None, None, 0)[0])
    assert rows == 1 or len(set(tokens.tolist())) > 1


def test_a_large_vocabulary(triton: TritonSampling, reference: ReferenceKernels, device: torch.device) -> None:
    vocab = 151_936 if device.type == "cuda" else 9_000
    scores, temperatures = random(1, vocab, spread=0.3), torch.ones(1)
    for children in (0, 16) if device.type == "cuda" else (0,):
        tokens, probs = pick(triton, device, scores, temperatures, None, None, children)
        expected, expected_probs = pick(reference, CPU, scores, temperatures, None, None, children)
        assert torch.equal(tokens, expected)
        torch.testing.assert_close(probs, expected_probs, rtol=1e-5, atol=1e-9)


def test_ties_go_to_the_lowest_place(triton: TritonSampling, device: torch.device) -> None:
    """Scores so large that they swallow the noise tie exactly, across pieces."""
    scores = torch.full((1, 2 * PIECE), 1e30)
    scores[0, : PIECE - 3] = 0
    tokens, _ = pick(triton, device, scores, torch.ones(1), None, None, 4)
    assert tokens.tolist() == [[PIECE - 3, PIECE - 2, PIECE - 1, PIECE]]


@pytest.mark.parametrize("children", [0, 4])
def test_a_rows_choice_depends_on_nothing_else(triton: TritonSampling, device: torch.device, children: int) -> None:
    rows = 3
    scores, (seeds, positions) = random(rows, PIECE + 9, spread=2.0), keys_of(rows)
    temperatures, whole = torch.tensor([0.7, 0.0, 1.3]), (scores, seeds, positions)
    together = pick(triton, device, scores, temperatures, None, None, children)
    for row in range(rows):
        own, seed, position = (one[row : row + 1] for one in whole)
        alone = pick(triton, device, own, temperatures[row : row + 1], None, None, children, (seed, position))
        assert torch.equal(alone[0], together[0][row : row + 1])
        assert same_bits(alone[1], together[1][row : row + 1])


def check_processing(
    triton: TritonSampling, device: torch.device, scores: Tensor, temperatures: Tensor, filters: Filters | None
) -> Tensor:
    expected, found = scores.clone(), scores.clone().to(device)
    ReferenceKernels().process(expected, temperatures, filters)
    triton.process(found, temperatures.to(device), filters_to(device, filters))
    assert same_bits(found.cpu(), expected)
    return expected


@pytest.mark.parametrize("vocab", [1, 17, PIECE + 1])
def test_temperature(triton: TritonSampling, device: torch.device, vocab: int) -> None:
    scores = rows_of(vocab)
    temperatures = temperatures_of(len(scores))
    processed = check_processing(triton, device, scores, temperatures, None)
    alone = scores[4:5].clone().to(device)
    triton.process(alone, temperatures[4:5].to(device), None)
    assert same_bits(alone.cpu(), processed[4:5])


def test_each_filter(triton: TritonSampling, device: torch.device) -> None:
    """On a row of every kind where there is a GPU, else on one each."""
    kinds = rows_of(300)
    if device.type == "cuda":
        limits = [one for one in LIMITS for _ in kinds]
        scores, temperatures = kinds.repeat(len(LIMITS), 1), temperatures_of(len(limits))
    else:
        limits = LIMITS
        scores, temperatures = kinds[[3, 5, 6, 2, 9, 4, 7, 3, 0, 10, 2, 11]], torch.full((len(LIMITS),), 0.8)
    processed = check_processing(triton, device, scores, temperatures, filters_of(limits))
    alone = scores[-2:-1].clone().to(device)
    triton.process(alone, temperatures[-2:-1].to(device), filters_to(device, filters_of(limits[-2:-1])))
    assert same_bits(alone.cpu(), processed[-2:-1])


@pytest.mark.parametrize("vocab", [pytest.param(PIECE + 300, marks=LONG)])
def test_filters_over_pieces(triton: TritonSampling, device: torch.device, vocab: int) -> None:
    scores, temperatures = rows_of(vocab)[[5, 11]], torch.tensor([0.8, 1.0])
    limits = [(0.001, 700, 0.9), (0.0, 0, 0.9)]
    processed = check_processing(triton, device, scores, temperatures, filters_of(limits))
    alone = scores[:1].clone().to(device)
    triton.process(alone, temperatures[:1].to(device), filters_to(device, filters_of(limits[:1])))
    assert same_bits(alone.cpu(), processed[:1])


@pytest.mark.parametrize("vocab", [1, 300, PIECE + 3])
def test_logarithms(triton: TritonSampling, reference: ReferenceKernels, device: torch.device, vocab: int) -> None:
    scores = rows_of(vocab)
    expected, found = torch.empty_like(scores), torch.empty_like(scores).to(device)
    reference.log_softmax(scores, expected)
    triton.log_softmax(scores.to(device), found)
    assert same_bits(found.cpu(), expected)
    alone = scores[2:3].clone().to(device)
    triton.log_softmax(alone, alone)
    assert same_bits(alone.cpu(), expected[2:3]), "alone, and in place"


@pytest.mark.parametrize("filters", [None, filters_of([(0.0, 7, 0.9), (0.01, 0, 1.0)])])
def test_laws(
    triton: TritonSampling, reference: ReferenceKernels, device: torch.device, filters: Filters | None
) -> None:
    scores, temperatures = rows_of(77)[[2, 3]], torch.tensor([0.7, 0.0 if filters is None else 1.3])
    expected, found = torch.empty_like(scores), torch.empty_like(scores, device=device)
    reference.log_probs(scores, temperatures, expected, filters)
    triton.log_probs(scores.to(device), temperatures.to(device), found, filters_to(device, filters))
    assert same_bits(found.cpu(), expected)


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("vocab", [1, PIECE + 3])
def test_excess(
    triton: TritonSampling, reference: ReferenceKernels, device: torch.device, vocab: int, reduced: bool
) -> None:
    ids = torch.arange(0, vocab, 3).flip(0).contiguous() if reduced else None
    rows = 17 if ON_GPU else 5
    target = random(rows, vocab, spread=8.0).log_softmax(1)
    draft = random(rows, vocab if ids is None else len(ids), spread=2.0, seed=1).log_softmax(1)
    draft[0, 0] = -INF
    scales = torch.linspace(0, 1, rows, dtype=torch.float64).flip(0).contiguous()
    found = []
    for kernels, where in ((reference, CPU), (triton, device)):
        out, mass, same = (torch.empty(rows, *rest, device=where, dtype=kind) for rest, kind in (
            ((vocab,), torch.float32), ((), torch.float64), ((), torch.float64)))  # fmt: skip
        given = to(where, target, draft, scales)
        kernels.excess(*given, mass, out, *to(where, ids))
        kernels.excess(*given, same, None, *to(where, ids))
        assert same_bits(mass, same)
        found.append((out.cpu(), mass.cpu()))
    assert all(same_bits(one, other) for one, other in zip(*found, strict=True))
    alone = torch.empty(1, device=device, dtype=torch.float64)
    triton.excess(*to(device, target[3:4], draft[3:4], scales[3:4]), alone, None, *to(device, ids))
    assert same_bits(alone.cpu(), found[0][1][3:4])


@pytest.mark.parametrize(("seed", "vocab"), [(0, 71), (1, 1), (0xFEDCBA9876543210, PIECE + 2), (2**64 - 1, 71)])
def test_noise(
    triton: TritonSampling, reference: ReferenceKernels, device: torch.device, seed: int, vocab: int
) -> None:
    for position in (0, 5, 0x123456789AB, 2**63 - 1):
        expected = torch.empty(vocab, dtype=torch.float64)
        found = torch.empty_like(expected, device=device)
        reference.gumbel(seed, position, expected)
        triton.gumbel(seed, position, found)
        assert same_bits(found.cpu(), expected)


@pytest.mark.parametrize("drafts", [1, 3])
@pytest.mark.parametrize(("nodes", "children", "wide", "depth"), [(1, 1, 1, 0), (3, 5, 4, 1), (4, 16, 17, 3)])
def test_growing(
    triton: TritonSampling, reference: ReferenceKernels, device: torch.device,
    drafts: int, nodes: int, children: int, wide: int, depth: int,
) -> None:  # fmt: skip
    generator = torch.Generator().manual_seed(nodes)
    rows, count = drafts * nodes, drafts * wide
    tokens = torch.randint(50, (rows, children), generator=generator)
    # Few values, so that there are ties; and some that are no power of two.
    probs = torch.randint(4, (rows, children), generator=generator) / 3
    worth = torch.randint(4, (rows,), generator=generator) / 3
    above = torch.randint(90, (rows, depth), generator=generator, dtype=torch.int32)
    slots = torch.arange(count, dtype=torch.int32) + 100

    def grown(kernels: TritonSampling | ReferenceKernels, where: torch.device, first: int, last: int) -> list[Tensor]:
        own, kept = slice(first * nodes, last * nodes), slice(first * wide, last * wide)
        number = (last - first) * wide
        given = to(where, tokens[own], probs[own], worth[own])
        make = partial(torch.full, (number,), -1, device=where)
        out, origin, chosen, reached = make(), make(), make(), make(dtype=torch.float32)
        below = torch.full((number, depth + 1), -1, dtype=torch.int32, device=where)
        paths = to(where, slots[kept], above[own])
        kernels.grow(*given, out, reached, origin, chosen, last - first, *paths, below)
        written = [out.cpu(), reached.cpu(), origin.cpu(), chosen.cpu()]
        kernels.grow(*given, out.fill_(-1), reached, origin, chosen, last - first)
        assert torch.equal(out.cpu(), written[0]), "without slots"
        return [*written, below.cpu()]

    expected = grown(reference, CPU, 0, drafts)
    assert all(map(same_bits, grown(triton, device, 0, drafts), expected))
    last = grown(triton, device, drafts - 1, drafts)
    last[2] += (drafts - 1) * nodes
    assert all(same_bits(one, whole[-wide:]) for one, whole in zip(last, expected, strict=True))


@pytest.mark.parametrize("rows", [1, 7, 40, 64])
@pytest.mark.parametrize("depth", [0, 1, 5])
def test_accepting(
    triton: TritonSampling, reference: ReferenceKernels, device: torch.device, rows: int, depth: int
) -> None:
    generator = torch.Generator().manual_seed(rows + depth)
    drawn = torch.randint(3, (rows,), generator=generator)
    roots = torch.randperm(rows, generator=generator)[: max(rows // 8, 1)].sort().values
    parents = torch.full((rows,), -1, dtype=torch.int32)
    tokens = torch.zeros(rows, dtype=torch.int64)
    for begin, end in pairwise([*roots.tolist(), rows]):
        taken = set[tuple[int, int]]()
        for row in range(begin + 1, end):
            parent = int(torch.randint(begin, row, (1,), generator=generator))
            token = next(token for token in range(rows + 3) if (parent, token) not in taken)
            taken.add((parent, token))
            parents[row], tokens[row] = parent, token

    def accepted(kernels: TritonSampling | ReferenceKernels, where: torch.device) -> list[Tensor]:
        make = partial(torch.full, fill_value=-7, dtype=torch.int64, device=where)
        path, emitted, count = make((len(roots), depth + 1)), make((len(roots), depth + 1)), make((len(roots),))
        kernels.accept(*to(where, drawn, tokens, parents, roots), path, emitted, count, 99)
        return [path.cpu(), emitted.cpu(), count.cpu()]

    expected = accepted(reference, CPU)
    assert all(map(torch.equal, accepted(triton, device), expected))
    assert rows < 40 or not depth or 0 < int(expected[2].max()) <= depth


def test_no_rows(triton: TritonSampling, device: torch.device) -> None:
    none = partial(torch.empty, device=device)
    whole = partial(none, dtype=torch.int64)
    scores, noise = none(0, 9), (none(0), whole(0), whole(0))
    triton.draw(scores, *noise, whole(0), None, None, none(0))
    triton.branch(scores, *noise, whole(0, 2), none(0, 2))
    triton.log_probs(scores, none(0), none(0, 9))
    triton.excess(scores, scores, none(0, dtype=torch.float64), none(0, dtype=torch.float64))
    triton.accept(whole(0), whole(0), none(0, dtype=torch.int32), whole(0), whole(0, 2), whole(0, 2), whole(0))
    triton.grow(whole(0, 2), none(0, 2), none(0), whole(0), none(0), whole(0), whole(0), 0)
    assert math.prod(scores.shape) == 0
