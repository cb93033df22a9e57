"""Kernels of recurrent layers: against their formulas in float64, the twin, and rows however they are cut up."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from crossing import crossed
from torch import Tensor

from parlay.kernels.base import Kernels
from parlay.kernels.metadata import STATE_PIECE, StateMetadata
from parlay.kernels.reference import ReferenceKernels

from .helpers import DTYPES, random, same_bits

SLOTS, PLACES = 5, 20


def view(sequences: list[list[int]], rows: list[list[int]], replayed: list[list[int]] | None = None) -> StateMetadata:
    def table(values: list[list[int]], columns: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int32).view(-1, columns)

    return StateMetadata(table(sequences, 5), table(rows, 4), table(replayed or [], 2))


def chain(count: int, *, source: int = -1, to: int = -1, sequence: int = 0) -> StateMetadata:
    """A text's rows, the state behind the last of which is stored."""
    rows = [[sequence, i - 1, to if i == count - 1 else -1, -1] for i in range(count)]
    return view([[source, 0, 0, 0, count]], rows)


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolution and a recurrence behind it, with their memory.

    Attributes:
        run: writes what rows `[rows, channels]` with gates `[rows, G]` come to.
        channels, gates: columns.
        outputs: columns of the result.
    """

    run: Callable[[Tensor, Tensor, StateMetadata, "Memory"], Tensor]
    channels: int
    gates: int


@dataclass(frozen=True, slots=True)
class Memory:
    tails: Tensor
    rows: Tensor
    stored: Tensor
    kept: Tensor
    gates: Tensor


HEADS, GROUPS, KEYS, VALUES, TAPS = 6, 2, 24, 48, 4


def memory(dtype: torch.dtype, channels: int, gates: int) -> Memory:
    return Memory(
        random(SLOTS, TAPS - 1, channels, dtype=dtype, seed=90),
        torch.zeros(PLACES, channels, dtype=dtype),
        random(SLOTS, HEADS, -(-VALUES // STATE_PIECE), KEYS, STATE_PIECE, seed=91),
        torch.zeros(PLACES, channels, dtype=dtype),
        torch.zeros(PLACES, gates, dtype=dtype),
    )


def layer(kernels: Kernels, name: str, dtype: torch.dtype) -> Layer:
    channels = 2 * GROUPS * KEYS + HEADS * VALUES
    taps, bias = random(TAPS, channels, dtype=dtype, seed=80), random(channels, dtype=dtype, seed=81)
    rate, step_bias, skip = -random(HEADS, seed=82).abs(), random(HEADS, seed=83), random(HEADS, seed=84)
    gates = {"gated_delta": 2 * HEADS, "channels": HEADS + HEADS * KEYS}.get(name, HEADS)
    wide_bias = random(HEADS * KEYS, seed=85)

    def run(x: Tensor, g: Tensor, states: StateMetadata, own: Memory) -> Tensor:
        mixed, out = torch.full_like(x, torch.nan), torch.full((len(x), HEADS * VALUES), torch.nan, dtype=dtype)
        kernels.causal_conv(x, taps, bias, True, states, own.tails, own.rows, mixed)
        where = states, own.stored, own.kept, own.gates, out
        if name == "gated_delta":
            kernels.gated_delta(mixed, g, rate, step_bias, GROUPS, False, *where)
        elif name == "channels":
            b, each = g.split((HEADS, HEADS * KEYS), dim=1)
            kernels.gated_delta(mixed, b.contiguous(), rate, wide_bias, GROUPS, False, *where, each.contiguous())
        elif name == "tiled":
            kernels.gated_delta(mixed, torch.cat((g, g), dim=1), rate, step_bias, GROUPS, True, *where, None, 2.0)
        else:
            kernels.state_space(mixed, g, rate, step_bias, skip, GROUPS, 0.01, 1.5, *where)
        return out

    return Layer(run, channels, gates if name != "tiled" else HEADS)


def made(name: str, kernels: Kernels, dtype: torch.dtype, rows: int) -> tuple[Layer, Tensor, Tensor, Memory]:
    one = layer(kernels, name, dtype)
    own = memory(dtype, one.channels, 2 * HEADS if name == "tiled" else one.gates)
    return one, random(rows, one.channels, dtype=dtype, seed=1), random(rows, one.gates, dtype=dtype, seed=2), own


def state(own: Memory, slot: int) -> Tensor:
    """Return a state `[heads, keys, values]`; the last piece has more columns than there are."""
    return own.stored[slot].transpose(1, 2).flatten(2)[..., :VALUES]


KINDS = ("gated_delta", "tiled", "channels", "state_space")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("taps", [2, 3, 8])
def test_convolution_is_right(kernels: Kernels, dtype: torch.dtype, taps: int) -> None:
    x, weight = random(20, 37, dtype=dtype), random(taps, 37, dtype=dtype, seed=1)
    bias, out = random(37, dtype=dtype, seed=2), torch.full((20, 37), torch.nan, dtype=dtype)
    tails, kept = torch.zeros(1, taps - 1, 37, dtype=dtype), torch.zeros(1, 37, dtype=dtype)
    kernels.causal_conv(x, weight, bias, False, chain(20, to=0), tails, kept, out)
    padded = torch.cat((torch.zeros(taps - 1, 37), x)).double()
    exact = sum(weight[j].double() * padded[j : j + 20] for j in range(taps)) + bias.double()
    torch.testing.assert_close(out.double(), exact, atol=2e-2 if dtype is torch.bfloat16 else 1e-5, rtol=1e-2)
    assert same_bits(tails[0], x[20 - taps + 1 :])


def parts(x: Tensor, h: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield of each token a head's query and key, of length one, and its value."""
    g = h // (HEADS // GROUPS)
    for row in x.double():
        q, k = (row[p * GROUPS * KEYS + g * KEYS :][:KEYS] for p in range(2))
        q, k = (each / (each.square().sum() + 1e-6).sqrt() for each in (q, k))
        yield q, k, row[2 * GROUPS * KEYS + h * VALUES :][:VALUES]


def test_gated_delta_is_right(kernels: Kernels) -> None:
    """Equation 10 of Yang et al. 2024, with the state as a matrix of keys and values."""
    x, gates = random(9, 2 * GROUPS * KEYS + HEADS * VALUES), random(9, 2 * HEADS, seed=1)
    rate, bias = -random(HEADS, seed=2).abs(), random(HEADS, seed=3)
    own, out = memory(torch.float32, x.shape[1], 2 * HEADS), torch.full((9, HEADS * VALUES), torch.nan)
    states = chain(9)
    for write_scale in (1.0, 2.0):
        kernels.gated_delta(
            x, gates, rate, bias, GROUPS, False, states, own.stored, own.kept, own.gates, out, None, write_scale
        )
        for h in range(HEADS):
            state = torch.zeros(KEYS, VALUES, dtype=torch.float64)
            for t, (q, k, v) in enumerate(parts(x, h)):
                step = torch.nn.functional.softplus(gates[t, HEADS + h].double() + bias[h].double())
                beta, decay = write_scale * gates[t, h].double().sigmoid(), (rate[h].double() * step).exp()
                state = decay * (state - beta * torch.outer(k, k @ state)) + beta * torch.outer(k, v)
                exact = (q @ state) / KEYS**0.5
                torch.testing.assert_close(out[t, h * VALUES :][:VALUES].double(), exact, atol=1e-5, rtol=1e-4)


def test_gated_delta_with_a_decay_for_each_channel_is_right(kernels: Kernels) -> None:
    """Equation 1 of Kimi Team 2025, from logits that are large, small and ordinary."""
    x, gates = random(9, 2 * GROUPS * KEYS + HEADS * VALUES), random(9, HEADS, seed=1)
    channels = 6 * random(9, HEADS * KEYS, seed=5)
    channels[3, ::5], channels[4, ::7] = 90.0, -90.0
    rate, bias = -random(HEADS, seed=2).abs(), random(HEADS * KEYS, seed=3)
    own, out = memory(torch.float32, x.shape[1], HEADS + HEADS * KEYS), torch.full((9, HEADS * VALUES), torch.nan)
    where = chain(9), own.stored, own.kept, own.gates, out
    kernels.gated_delta(x, gates, rate, bias, GROUPS, False, *where, channels, 2.0)
    for h in range(HEADS):
        state = torch.zeros(KEYS, VALUES, dtype=torch.float64)
        for t, (q, k, v) in enumerate(parts(x, h)):
            logits = channels[t, h * KEYS :][:KEYS].double() + bias[h * KEYS :][:KEYS].double()
            state = (rate[h].double() * torch.nn.functional.softplus(logits)).exp()[:, None] * state
            state = state + 2 * gates[t, h].double().sigmoid() * torch.outer(k, v - k @ state)
            torch.testing.assert_close(
                out[t, h * VALUES :][:VALUES].double(), (q @ state) / KEYS**0.5, atol=1e-5, rtol=1e-4
            )


def test_state_space_is_right(kernels: Kernels) -> None:
    x, gates = random(9, HEADS * VALUES + 2 * GROUPS * KEYS), random(9, HEADS, seed=1)
    rate, bias, skip = -random(HEADS, seed=2).abs(), random(HEADS, seed=3), random(HEADS, seed=4)
    own, out = memory(torch.float32, x.shape[1], HEADS), torch.full((9, HEADS * VALUES), torch.nan)
    where = chain(9), own.stored, own.kept, own.gates, out
    kernels.state_space(x, gates, rate, bias, skip, GROUPS, 0.3, 0.9, *where)
    for h in range(HEADS):
        g, state = h // (HEADS // GROUPS), torch.zeros(VALUES, KEYS, dtype=torch.float64)
        for t in range(9):
            row = x[t].double()
            v = row[h * VALUES :][:VALUES]
            b, c = (row[HEADS * VALUES + (p * GROUPS + g) * KEYS :][:KEYS] for p in range(2))
            step = torch.nn.functional.softplus(gates[t, h].double() + bias[h].double()).clamp(0.3, 0.9)
            state = (rate[h].double() * step).exp() * state + step * torch.outer(v, b)
            exact = state @ c + skip[h].double() * v
            torch.testing.assert_close(out[t, h * VALUES :][:VALUES].double(), exact, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", KINDS)
def test_a_text_cut_up(kernels: Kernels, dtype: torch.dtype, name: str) -> None:
    """States read from one slot and stored to another: the same bits, on any number of threads."""
    one, x, gates, own = made(name, kernels, dtype, 40)
    whole = one.run(x, gates, chain(40, to=0), own)
    kernels.set_threads(2)
    for cuts in ([17], [1, 2, 3, 39], [16, 32]):
        parts, edges = [], [0, *cuts, 40]
        for number, (a, b) in enumerate(pairwise(edges)):
            states = chain(b - a, source=1 + (number + 1) % 2 if a else -1, to=1 + number % 2)
            parts.append(one.run(x[a:b].contiguous(), gates[a:b].contiguous(), states, own))
        assert same_bits(torch.cat(parts), whole)
        last = 1 + (len(edges) - 2) % 2
        assert same_bits(state(own, last), state(own, 0))
        assert same_bits(own.tails[last], own.tails[0])


# Of a root and seven nodes: the parent of each node, -1 for the root.
SHAPES = {"chain": [-1, 0, 1, 2, 3, 4, 5], "tree": [-1, -1, 0, 0, 1, 4, 2], "branches": [-1, -1, -1, 1, 1, 3, 0]}


@pytest.mark.parametrize("dtype", DTYPES)
@crossed(name=KINDS, shape=tuple(SHAPES))
def test_nodes_and_their_replay(kernels: Kernels, dtype: torch.dtype, name: str, shape: str) -> None:
    """A node's row is that of its path; the next step goes on from any of them by what was kept of them."""
    one, x, gates, own = made(name, kernels, dtype, 21)
    parents, known = SHAPES[shape], 12  # so that nodes begin within a group of 16 rows, and end in the next
    rows = [[0, i - 1, 0 if i == known - 1 else -1, -1] for i in range(known)]
    rows += [[0, known + p if p >= 0 else known - 1, -1, i] for i, p in enumerate(parents)]
    drafted = one.run(
        x[: known + 7].contiguous(), gates[: known + 7].contiguous(), view([[-1, 0, 0, 0, 19]], rows), own
    )
    before = own.stored[0].clone()
    for node in range(7):
        path = [node]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        index = torch.tensor([*range(known), *(known + n for n in path), 19, 20])
        count = len(index)
        alone = one.run(x[index].contiguous(), gates[index].contiguous(), chain(count, to=1), own)
        assert same_bits(drafted[known + node], alone[-3])
        # The next step: it stores behind the first accepted node, behind the last one, and behind its own rows.
        replayed = [[n, {0: 3}.get(i, -1)] for i, n in enumerate(path)]
        if len(path) > 1:
            replayed[-1][1] = 4
        again = view([[0, 0, len(path), 0, 2]], [[0, -1, -1, -1], [0, 0, 2, -1]], replayed)
        further = one.run(x[19:21].contiguous(), gates[19:21].contiguous(), again, own)
        assert same_bits(further, alone[-2:])
        assert same_bits(state(own, 2), state(own, 1))
        assert same_bits(own.tails[2], own.tails[1])
        one.run(
            x[index[: known + 1]].contiguous(), gates[index[: known + 1]].contiguous(), chain(known + 1, to=1), own
        )
        assert same_bits(state(own, 3), state(own, 1))
        assert same_bits(own.tails[3], own.tails[1])
        if len(path) > 1:
            one.run(x[index[:-2]].contiguous(), gates[index[:-2]].contiguous(), chain(count - 2, to=1), own)
            assert same_bits(state(own, 4), state(own, 1))
    assert same_bits(own.stored[0], before)


@pytest.mark.parametrize("name", KINDS)
def test_a_long_draft_is_replayed(kernels: Kernels, name: str) -> None:
    one, x, gates, own = made(name, kernels, torch.float32, 22)
    whole = one.run(x, gates, chain(22, to=0), own)
    nodes = [[0, i - 1, 1 if i == 0 else -1, i - 1 if i else -1] for i in range(20)]
    one.run(x[:20].contiguous(), gates[:20].contiguous(), view([[-1, 0, 0, 0, 20]], nodes), own)
    again = view([[1, 0, 19, 0, 2]], [[0, -1, -1, -1], [0, 0, 2, -1]], [[i, -1] for i in range(19)])
    assert same_bits(one.run(x[20:].contiguous(), gates[20:].contiguous(), again, own), whole[20:])
    assert same_bits(state(own, 2), state(own, 0))


@pytest.mark.parametrize("name", KINDS)
def test_company_does_not_matter(kernels: Kernels, name: str) -> None:
    """Two sequences in one pass, one of them behind sequences without rows."""
    one, x, gates, own = made(name, kernels, torch.float32, 20)
    alone = [one.run(x[a:b].contiguous(), gates[a:b].contiguous(), chain(b - a), own) for a, b in ((0, 7), (7, 20))]
    rows = [[0 if i < 7 else 1, i - 1 if i not in (0, 7) else -1, -1, -1] for i in range(20)]
    both = view([[-1, 0, 0, 0, 7], [-1, 0, 0, 7, 20], [0, 0, 0, 0, 0]], rows)
    assert same_bits(one.run(x, gates, both, own), torch.cat(alone))


@pytest.mark.parametrize("name", KINDS)
def test_rows_that_pad_a_pass_leave_nothing(kernels: Kernels, name: str) -> None:
    """Whatever lies in memory before the table of sequences, which ends with ones without rows."""
    one, x, gates, own = made(name, kernels, torch.float32, 6)
    alone = one.run(x[:4].contiguous(), gates[:4].contiguous(), chain(4, to=2), own)
    kept = [own.tails.clone(), own.stored.clone(), own.rows.clone()]
    own.tails[2], own.stored[2] = 0, 0
    rows = [*chain(4, to=2).rows.tolist(), *[[-1, -1, -1, -1]] * 2]
    states = view([[0, 0, 1, 4, 5], [-1, 0, 0, 0, 4], [0, 0, 0, 0, 0]], rows, [[0, 1]])
    padded = StateMetadata(states.sequences[1:], states.rows, states.replayed)
    assert same_bits(one.run(x, gates, padded, own)[:4], alone)
    assert all(map(same_bits, (own.tails, own.stored, own.rows), kept))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", KINDS)
def test_native_is_near_the_twin(native: Kernels, reference: ReferenceKernels, dtype: torch.dtype, name: str) -> None:
    results, left = [], []
    for kernels in (native, reference):
        one, x, gates, own = made(name, kernels, dtype, 12)
        rows = [[0, i - 1, 3 if i == 3 else -1, -1] for i in range(6)]
        rows += [[0, 5, -1, 4], [0, 6, -1, 5], [0, 5, -1, 6]]
        results.append(one.run(x[:9].contiguous(), gates[:9].contiguous(), view([[2, 0, 0, 0, 9]], rows), own))
        left.append(own)
    tolerance = {"atol": 3e-2, "rtol": 3e-2} if dtype is torch.bfloat16 else {"atol": 1e-4, "rtol": 1e-4}
    torch.testing.assert_close(*results, **tolerance)
    for field in ("tails", "rows", "stored", "kept", "gates"):
        first, second = (getattr(own, field) for own in left)
        if field == "stored":  # the last piece has more columns than there are
            first, second = (x.transpose(2, 3).flatten(3)[..., :VALUES] for x in (first, second))
        torch.testing.assert_close(first, second, **tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gate_first", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_gated_norm(kernels: Kernels, dtype: torch.dtype, gate_first: bool, shared: bool) -> None:
    x, gate = random(5, 72, dtype=dtype), random(5, 72, dtype=dtype, seed=1)
    weight, out = random(24 if shared else 72, dtype=dtype, seed=2), torch.full((5, 72), torch.nan, dtype=dtype)
    kernels.gated_norm(x, gate, weight, 24, 1e-5, gate_first, out)
    opened = torch.nn.functional.silu(gate.double())
    values = x.double() * opened if gate_first else x.double()
    parts = values.view(5, 3, 24)
    normal = (parts / (parts.square().mean(-1, keepdim=True) + 1e-5).sqrt()) * weight.double().view(-1, 24)
    exact = normal.view(5, 72) * (1 if gate_first else opened)
    torch.testing.assert_close(out.double(), exact, atol=4e-2 if dtype is torch.bfloat16 else 1e-5, rtol=2e-2)
    for row in range(5):  # rows by themselves
        one = torch.empty(1, 72, dtype=dtype)
        kernels.gated_norm(x[row : row + 1], gate[row : row + 1], weight, 24, 1e-5, gate_first, one)
        assert same_bits(one[0], out[row])


@pytest.mark.parametrize("dtype", DTYPES)
def test_multiply(kernels: Kernels, dtype: torch.dtype) -> None:
    x, other = random(5, 37, dtype=dtype), random(5, 37, dtype=dtype, seed=1)
    plain, gated = x.clone(), x.clone()
    kernels.multiply(plain, other)
    assert same_bits(plain, x * other)
    kernels.multiply(gated, other, "sigmoid")
    torch.testing.assert_close(gated, x * other.float().sigmoid().to(dtype), atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gate", ["plain", "sigmoid", "softplus"])
@pytest.mark.parametrize("group", [1, 8, 21])
def test_multiply_by_groups_of_columns(kernels: Kernels, dtype: torch.dtype, gate: Any, group: int) -> None:
    """Each number is for neighbouring columns, with the bits that it has where it is written out for each of them."""
    x, other = random(5, 19 * group, dtype=dtype), random(5, 19, dtype=dtype, seed=1)
    other[0, :6] = torch.tensor([0.0, -90.0, 90.0, -20.0, 21.0, -3.0])  # where softplus is next to 0, and to them
    found, wide = x.clone(), x.clone()
    kernels.multiply(found, other, gate)
    kernels.multiply(wide, other.repeat_interleave(group, dim=1), gate)
    assert same_bits(found, wide)
    opened = {"plain": lambda t: t, "sigmoid": torch.sigmoid, "softplus": torch.nn.functional.softplus}[gate]
    exact = x.double().view(5, 19, group) * opened(other.double()).to(dtype).double()[..., None]
    tight = 1e-2 if dtype is torch.bfloat16 else 2e-6
    torch.testing.assert_close(found.double(), exact.view(5, -1), atol=tight / 100, rtol=tight)
    for row in range(5):  # rows by themselves
        one = x[row : row + 1].clone()
        kernels.multiply(one, other[row : row + 1], gate)
        assert same_bits(one[0], found[row])


@pytest.mark.parametrize(("rows", "width"), [(0, 8), (3, 0)])
def test_multiply_of_nothing(kernels: Kernels, rows: int, width: int) -> None:
    """As on a rank without a share."""
    for gate in ("plain", "sigmoid", "softplus"):
        kernels.multiply(torch.empty(rows, width), torch.empty(rows, width), gate)


def test_gates_that_do_not_divide_are_errors() -> None:
    native = pytest.importorskip("parlay.kernels.cpu").NativeKernels()
    with pytest.raises(ValueError, match=r"gates of .* for"):
        native.multiply(random(2, 10), random(2, 4))
    with pytest.raises(TypeError):
        native.multiply(random(2, 10), random(2, 5), "tanh")


def test_what_is_no_number_stays_so(kernels: Kernels) -> None:
    for name in KINDS:
        one, x, gates, own = made(name, kernels, torch.float32, 3)
        gates[1, 0] = torch.nan
        out = one.run(x, gates, chain(3), own)
        assert out[1].isnan().any()
        assert not out[0].isnan().any()


def test_wrong_offsets_are_errors() -> None:
    checked = pytest.importorskip("parlay.kernels.checked").CheckedKernels()
    one, x, gates, own = made("gated_delta", checked, torch.float32, 3)
    right = chain(3, source=0, to=1)
    one.run(x, gates, right, own)
    for change, column, value in (
        ("sequences", 0, SLOTS),
        ("sequences", 4, 4),
        ("rows", 0, 1),
        ("rows", 1, 3),
        ("rows", 2, SLOTS),
        ("rows", 3, PLACES),
    ):
        table = getattr(right, change).clone()
        table[-1, column] = value
        with pytest.raises(IndexError, match=change):
            one.run(x, gates, replace(right, **{change: table}), own)
    behind = view([[0, 0, 1, 0, 3]], right.rows.tolist(), [[PLACES, -1]])
    with pytest.raises(IndexError, match="replayed"):
        one.run(x, gates, behind, own)
