"""Recurrent layers: the twin's results up to rounding, and a row's bits however its path is cut up or shared."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels import test_recurrent as cases
from kernels.helpers import DTYPES, random, same_bits
from kernels.test_recurrent import KINDS, PLACES, SHAPES, SLOTS, Memory, chain, made, view
from parlay.kernels.metadata import STATE_PIECE, StateMetadata
from parlay.kernels.reference import ReferenceKernels
from parlay.kernels.triton import recurrent
from parlay.kernels.triton.recurrent import TritonRecurrent

from .test_triton_elementwise import LONG, ON_GPU, thinned

WIDE, NARROW = DTYPES


class OnDevice:
    """The Triton kernels for tensors of the CPU, which hold afterwards what the kernels left on the device.

    Attributes:
        convolution: whose `causal_conv` is called; None for theirs.
    """

    def __init__(self, device: torch.device, convolution: ReferenceKernels | None = None) -> None:
        self._device = device
        self._convolution = convolution

    def set_threads(self, threads: int) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name == "causal_conv" and self._convolution is not None:
            return self._convolution.causal_conv
        method = getattr(TritonRecurrent(), name)

        def call(*given: Any) -> None:
            moved = [self._moved(value) for value in given]
            method(*moved)
            for one, other in zip(given, moved, strict=True):
                if isinstance(one, Tensor) and one is not other:
                    one.copy_(other)

        return call

    def _moved(self, value: Any) -> Any:
        if isinstance(value, StateMetadata):
            return StateMetadata(
                *(getattr(value, name).to(self._device) for name in ("sequences", "rows", "replayed"))
            )
        return value.to(self._device) if isinstance(value, Tensor) else value


@pytest.fixture
def kernels(device: torch.device) -> OnDevice:
    return OnDevice(device)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sizes of the layers that the cases are made of, which the interpreter is quick with."""

    def resize(heads: int = 1, groups: int = 1, values: int = 16) -> None:
        for name, value in (("HEADS", heads), ("GROUPS", groups), ("KEYS", 12), ("VALUES", values)):
            monkeypatch.setattr(cases, name, value)
        if not ON_GPU:
            monkeypatch.setattr(recurrent, "_COLUMNS", 16)

    return resize


def everything() -> StateMetadata:
    """Of 13 rows: a tree behind what is replayed and what is known, a text from nothing, a row, and no row."""
    sequences = [[2, 0, 3, 0, 8], [-1, 0, 0, 8, 12], [0, 3, 3, 12, 13], [0, 0, 0, 0, 0]]
    rows = [[0, -1, -1, -1], [0, 0, 3, -1]]
    rows += [[0, 1, -1, 4], [0, 1, -1, 5], [0, 2, -1, 6], [0, 2, -1, 9], [0, 3, -1, 7], [0, 4, -1, 8]]
    rows += [[1, i - 1 if i > 8 else -1, 4 if i == 11 else -1, -1] for i in range(8, 12)] + [[2, -1, -1, -1]]
    return view(sequences, rows, [[10, -1], [11, 1], [12, -1]])


def filled(own: Memory) -> Memory:
    """Memory of which nothing is zero that could be read."""
    kept = {name: random(*getattr(own, name).shape, seed=95) for name in ("rows", "kept", "gates")}
    return replace(own, **{name: values.to(own.kept.dtype) for name, values in kept.items()})


def near(found: Tensor, exact: Tensor) -> None:
    tolerance = 2**-6 if found.dtype is torch.bfloat16 else 1e-5
    scale = float(exact.float().abs().amax())
    torch.testing.assert_close(found, exact, rtol=tolerance, atol=tolerance * min(scale, 1.0) / 4)


@pytest.mark.parametrize(
    ("form", "dtype"), thinned(5, [(2, True, False), (3, False, True), (4, True, True)], DTYPES), ids=str
)
def test_convolution(
    kernels: OnDevice, reference: ReferenceKernels, form: tuple[int, bool, bool], dtype: torch.dtype
) -> None:
    taps, with_bias, silu = form
    width = 300  # more than a program does, and no multiple of anything
    x, weight = random(13, width, dtype=dtype), random(taps, width, dtype=dtype, seed=1)
    bias = random(width, dtype=dtype, seed=2) if with_bias else None
    results = []
    for each in (kernels, reference):
        tails, kept = random(SLOTS, taps - 1, width, dtype=dtype, seed=3), random(PLACES, width, dtype=dtype, seed=4)
        out = torch.full_like(x, torch.nan)
        each.causal_conv(x, weight, bias, silu, everything(), tails, kept, out)
        results.append((out, tails, kept))
    near(results[0][0], results[1][0])
    for found, exact in zip(results[0][1:], results[1][1:], strict=True):
        assert same_bits(found, exact)


def test_longest_convolution(kernels: OnDevice, reference: ReferenceKernels) -> None:
    """Its taps reach through the rows, all that is replayed, and the tail, or to before the beginning."""
    x, weight = random(13, 20), random(8, 20, seed=1)
    results = []
    for each in (kernels, reference):
        tails, kept, out = random(SLOTS, 7, 20, seed=3), random(PLACES, 20, seed=4), torch.full_like(x, torch.nan)
        each.causal_conv(x, weight, None, False, everything(), tails, kept, out)
        results.append((out, tails, kept))
    for found, exact in zip(*results, strict=True):
        assert same_bits(found, exact)  # without fused products these are the twin's sums


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *(("gated_delta", NARROW), ("tiled", WIDE), ("state_space", NARROW)),
        *(pytest.param(name, WIDE, marks=LONG) for name in ("gated_delta", "channels", "state_space")),
        *(pytest.param(name, NARROW, marks=LONG) for name in ("tiled", "channels")),
    ],
)
def test_recurrence(
    device: torch.device, small: Callable[..., None], reference: ReferenceKernels, dtype: torch.dtype, name: str
) -> None:
    groups = 2 if ON_GPU or name == "tiled" else 1
    small(heads=2 * groups, groups=groups)
    results, left = [], []
    for each in (OnDevice(device, reference), reference):
        one, x, gates, own = made(name, each, dtype, 13)
        left.append(filled(own))
        results.append(one.run(x, gates, everything(), left[-1]))
    near(*results)
    near(*(own.stored[..., :16] for own in left))  # the last piece has more columns than there are
    for field in ("kept", "gates"):
        assert same_bits(getattr(left[0], field), getattr(left[1], field))


@pytest.mark.parametrize("name", ["channels", "state_space"])
def test_several_pieces(
    device: torch.device, small: Callable[..., None], reference: ReferenceKernels, name: str
) -> None:
    small(heads=2, groups=1, values=48)
    results, left = [], []
    for each in (OnDevice(device, reference), reference):
        one, x, gates, own = made(name, each, torch.float32, 3)
        results.append(one.run(x, gates, chain(3, source=1, to=4), own))
        left.append(own.stored)
    near(*results)
    near(*(stored.transpose(2, 3).flatten(3)[..., :48] for stored in left))
    assert left[0].shape[-1] == STATE_PIECE


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        *(pytest.param("gated_delta", shape, torch.float32, marks=LONG) for shape in SHAPES),
        ("gated_delta", "tree", torch.bfloat16),
        pytest.param("channels", "tree", torch.float32, marks=LONG),
        ("state_space", "branches", torch.float32),
    ],
)
def test_nodes_and_their_replay(
    kernels: OnDevice, small: Callable[..., None], dtype: torch.dtype, name: str, shape: str
) -> None:
    """A node's row has the bits that it has at the end of a text, and so has the row behind its replay."""
    small()
    one, x, gates, own = made(name, kernels, dtype, 10)
    parents = SHAPES[shape]
    rows = [[0, -1, -1, -1], [0, 0, 0, -1]] + [[0, 2 + p if p >= 0 else 1, -1, i] for i, p in enumerate(parents)]
    drafted = one.run(x[:9].contiguous(), gates[:9].contiguous(), view([[-1, 0, 0, 0, 9]], rows), own)
    for node in (5, 6):
        path = [node]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        index = torch.tensor([0, 1, *(2 + n for n in path), 9])
        alone = one.run(x[index].contiguous(), gates[index].contiguous(), chain(len(index), to=1), own)
        assert same_bits(drafted[[0, 1, *(2 + n for n in path)]], alone[:-1])
        again = view([[0, 0, len(path), 0, 1]], [[0, -1, 2, -1]], [[n, -1] for n in path])
        assert same_bits(one.run(x[9:].contiguous(), gates[9:].contiguous(), again, own), alone[-1:])
        assert same_bits(own.stored[2, ..., :16], own.stored[1, ..., :16])
        assert same_bits(own.tails[2], own.tails[1])


@pytest.mark.parametrize(
    "name", ["gated_delta", "state_space", *(pytest.param(name, marks=LONG) for name in ("channels", "tiled"))]
)
def test_rows_in_company(kernels: OnDevice, small: Callable[..., None], name: str) -> None:
    """Rows of a sequence alone, and among others: the same bits."""
    small()
    one, x, gates, own = made(name, kernels, torch.float32, 13)
    whole = one.run(x, gates, everything(), filled(own))
    states = everything()
    for number, (begin, end) in enumerate(((0, 8), (8, 12), (12, 13))):
        part = slice(begin, end)
        sequence, rows = states.sequences[number : number + 1].clone(), states.rows[part].clone()
        sequence[:, 3:] -= begin
        rows[:, 0] = 0
        rows[:, 1] = torch.where(rows[:, 1] < 0, -1, rows[:, 1] - begin)
        alone = StateMetadata(sequence, rows, states.replayed)
        assert same_bits(one.run(x[part].contiguous(), gates[part].contiguous(), alone, filled(own)), whole[part])


def test_rows_that_are_none(kernels: OnDevice, small: Callable[..., None]) -> None:
    """What a pass before left behind a padded table's own rows is not looked at, nor are passes without rows."""
    small()
    one, x, gates, own = made("gated_delta", kernels, torch.float32, 4)
    states = view(
        [[1, 0, 0, 0, 2], *[[0] * 5] * 3],
        [[0, -1, -1, -1], [0, 0, 2, -1], [0, 1, 3, 5], [1, -1, 3, 6]],
        [[7, 3], [0, 0]],
    )
    before, own = filled(own), filled(own)
    out = one.run(x, gates, states, own)
    assert out[:2].isfinite().all()
    assert out[2:].isnan().all()
    for field in ("rows", "kept", "gates"):
        assert same_bits(getattr(own, field), getattr(before, field))
    assert same_bits(own.tails[3], cases.memory(torch.float32, one.channels, one.gates).tails[3])
    assert len(one.run(x[:0], gates[:0], view([], []), own)) == 0


@pytest.mark.parametrize("x", [-100.0, -20.0, -7.0, 0.0, 30.0, 100.0, torch.inf, torch.nan])
@pytest.mark.parametrize("least", [0.0, 0.3])
def test_steps_of_any_size(kernels: OnDevice, reference: ReferenceKernels, x: float, least: float) -> None:
    """A state is the step itself here, so the step's own error shows."""
    results = []
    for each in (kernels, reference):
        stored, out = torch.zeros(1, 1, 1, 1, 32), torch.empty(1, 16)
        one = torch.ones(1)
        memory = stored, torch.zeros(1, 18), torch.zeros(1, 1), out
        gate = torch.full((1, 1), x)
        each.state_space(
            torch.ones(1, 18), gate, -one, one * 0, one * 0, 1, least, torch.inf, chain(1, to=0), *memory
        )
        results.append(torch.cat((stored[0, 0, 0, :, :16], out)))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-30, equal_nan=True)


def test_what_is_no_number_stays_so(kernels: OnDevice, small: Callable[..., None]) -> None:
    small()
    cases.test_what_is_no_number_stays_so(kernels)  # type: ignore[arg-type]


@pytest.mark.skipif(not ON_GPU, reason="the interpreter takes minutes")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", KINDS)
def test_all_that_others_must(kernels: Any, name: str, dtype: torch.dtype) -> None:
    """The tests of the other implementations, at their sizes."""
    cases.test_a_text_cut_up(kernels, dtype, name)
    for shape in SHAPES:
        cases.test_nodes_and_their_replay(kernels, dtype, name, shape)
    cases.test_a_long_draft_is_replayed(kernels, name)
    cases.test_company_does_not_matter(kernels, name)


@pytest.mark.skipif(not ON_GPU, reason="the interpreter takes minutes")
def test_formulas(kernels: Any) -> None:
    cases.test_gated_delta_is_right(kernels)
    cases.test_gated_delta_with_a_decay_for_each_channel_is_right(kernels)
    cases.test_state_space_is_right(kernels)
