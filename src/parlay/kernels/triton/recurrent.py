"""Kernels of recurrent layers: a causal convolution over each channel, and a state that every row updates.

All rows of a path go through one and the same update in their order, whether they are replayed, are a text's own or a
draft's: there is one loop, with one body, so that the compiler cannot add in one order here and in another one there.
"""

import triton
import triton.language as tl
from torch import Tensor

from parlay.kernels.metadata import STATE_PIECE, StateMetadata
from parlay.kernels.triton.elementwise import sigmoid, softplus
from parlay.kernels.triton.launch import EXACT, padded, rounded

# Columns of a head's state that a program updates, in the registers of one warp, or of two for long keys: the sums of
# a row are then over few lanes, and hardly wait for another warp. It divides 16, so heads and pieces have no tail.
_COLUMNS = 8
_BLOCK = 256  # columns of a row that a program convolves or copies


@triton.jit
def _sequence_of(sequences, rows, count, row):
    """Return a row's sequence, and whether it is one: of padded tables the rest may be of a pass before."""
    number = tl.load(rows + 4 * row)
    known = (number >= 0) & (number < count)
    sequence = sequences + 5 * tl.where(known, number, 0)
    return sequence, known & (tl.load(sequence + 3) <= row) & (row < tl.load(sequence + 4))


@triton.jit
def _before(x, kept, tails, rows, sequence, replayed, row, end, columns, C: tl.constexpr, L: tl.constexpr, BACK):
    """Return what a path had so many rows before `row`; a row of -1 is the one replayed last before `end`."""
    slot, first = tl.load(sequence).to(tl.int64), tl.load(sequence + 1)
    at, over = row, (row < 0).to(tl.int32)  # over: how far before the sequence's first row
    for _ in tl.static_range(BACK):
        at = tl.load(rows + 4 * at + 1, mask=at >= 0, other=-1)
        over += (at < 0).to(tl.int32)
    begun = (at >= 0) | (end - over >= first) | (slot >= 0)
    if at >= 0:
        source = x + at.to(tl.int64) * C
    elif end - over >= first:
        source = kept + tl.load(replayed + 2 * (end - over)).to(tl.int64) * C
    else:
        source = tails + (slot * (L - 1) + L - 1 - (over - (end - first))) * C
    return tl.load(source + columns, mask=columns < tl.where(begun, C, 0), other=0.0)


@triton.jit(
    do_not_specialize=["count"],
    do_not_specialize_on_alignment=[
        "x", "weight", "bias", "tails", "kept", "out", "sequences", "rows", "replayed"
    ],
)  # fmt: skip
def _convolve(
    x,
    weight,
    bias,
    tails,
    kept,
    out,
    sequences,
    rows,
    replayed,
    count,
    C: tl.constexpr,
    L: tl.constexpr,
    BIAS: tl.constexpr,
    SILU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    sequence, exists = _sequence_of(sequences, rows, count, row)
    if exists:
        mask = columns < C
        first, last = tl.load(sequence + 1), tl.load(sequence + 2)
        total = tl.zeros((BLOCK,), tl.float32)
        for j in tl.static_range(L):
            past = _before(x, kept, tails, rows, sequence, replayed, row, last, columns, C, L, L - 1 - j)
            total += tl.load(weight + j * C + columns, mask=mask, other=0.0).to(tl.float32) * past.to(tl.float32)
        if BIAS:
            total += tl.load(bias + columns, mask=mask, other=0.0).to(tl.float32)
        if SILU:
            total = total * sigmoid(total)
        total = rounded(total, out.dtype.element_ty).to(out.dtype.element_ty)
        tl.store(out + row.to(tl.int64) * C + columns, total, mask=mask)

        to, place = tl.load(rows + 4 * row + 2).to(tl.int64), tl.load(rows + 4 * row + 3).to(tl.int64)
        if place >= 0:
            own = tl.load(x + row.to(tl.int64) * C + columns, mask=mask)
            tl.store(kept + place * C + columns, own, mask=mask)
        if to >= 0:
            for back in tl.static_range(L - 1):
                past = _before(x, kept, tails, rows, sequence, replayed, row, last, columns, C, L, back)
                tl.store(tails + (to * (L - 1) + L - 2 - back) * C + columns, past, mask=mask)
        if row == tl.load(sequence + 3):  # one program is to leave what is stored while rows are replayed
            none = tl.load(rows + 4 * row + 1)
            for i in range(first, last):
                to = tl.load(replayed + 2 * i + 1).to(tl.int64)
                if to >= 0:
                    for back in tl.static_range(L - 1):
                        past = _before(x, kept, tails, rows, sequence, replayed, none, i + 1, columns, C, L, back)
                        tl.store(tails + (to * (L - 1) + L - 2 - back) * C + columns, past, mask=mask)


@triton.jit(
    do_not_specialize=["count"],
    do_not_specialize_on_alignment=["x", "gates", "channels", "kept", "kept_gates", "sequences", "rows"],
)
def _keep(
    x,
    gates,
    channels,
    kept,
    kept_gates,
    sequences,
    rows,
    count,
    WIDTH: tl.constexpr,
    GATES: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Store a row and its gates at its place, if it has one."""
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    _, exists = _sequence_of(sequences, rows, count, row)
    place = tl.load(rows + 4 * row + 3).to(tl.int64)
    if exists & (place >= 0):
        at = row.to(tl.int64)
        own = tl.load(x + at * WIDTH + columns, mask=columns < WIDTH)
        tl.store(kept + place * WIDTH + columns, own, mask=columns < WIDTH)
        to = kept_gates + place * (GATES + CHANNELS) + columns
        tl.store(to, tl.load(gates + at * GATES + columns, mask=columns < GATES), mask=columns < GATES)
        if CHANNELS > 0:
            each = tl.load(channels + at * CHANNELS + columns, mask=columns < CHANNELS)
            tl.store(to + GATES, each, mask=columns < CHANNELS)


@triton.jit
def _next_row(rows, row, end, at):
    """Return the first row from `row` on that is to be reached: not one that is on the way to another.

    Where the state is behind `at`, a row of another branch costs the whole way to it, so only leaves are gone to. A
    row that is taken for a leaf, since its children are far behind it, is merely gone through once more.
    """
    passing = row < end
    while passing:
        passing = tl.load(rows + 4 * row + 1) != at
        if passing:
            others = row + 1 + tl.arange(0, 64)
            parents = tl.load(rows + 4 * others + 1, mask=others < end, other=-1)
            passing = tl.max((parents == row).to(tl.int32), axis=0) > 0
        if passing:
            row += 1
            passing = row < end
    return row


@triton.jit
def _way(rows, target, at, root):
    """Return the first row on the way to `target` that a state behind `at` has not passed, and that row's parent."""
    row, parent = target, tl.load(rows + 4 * target + 1)
    while (parent != at) & (parent > root):
        row = parent
        parent = tl.load(rows + 4 * row + 1)
    return row, parent


@triton.jit
def _cells(head, keys, columns, K: tl.constexpr, V: tl.constexpr, PIECE: tl.constexpr):
    """Return where a slot has these columns of a head's state."""
    piece = head * ((V + PIECE - 1) // PIECE) + columns // PIECE
    return piece[None, :] * (K * PIECE) + keys[:, None] * PIECE + columns[None, :] % PIECE


@triton.jit
def _length(x):
    return tl.sqrt_rn(tl.sum(x * x, axis=0) + 1e-6)


@triton.jit
def _updated(
    state, row_x, row_gates, row_channels, rate, bias, head, columns, keys, query_scale, write_scale, least_step,
    most_step,
    H: tl.constexpr, G: tl.constexpr, K: tl.constexpr, V: tl.constexpr, DELTA: tl.constexpr, CHANNELS: tl.constexpr,
    TILED: tl.constexpr,
):  # fmt: skip
    """Return some columns of a head's state behind a row, and that row's query and value."""
    QUERY: tl.constexpr = 0 if DELTA else H * V + G * K
    KEY: tl.constexpr = G * K if DELTA else H * V
    VALUE: tl.constexpr = 2 * G * K if DELTA else 0
    group = head % G if TILED else head // (H // G)
    there = keys < K
    key = tl.load(row_x + KEY + group * K + keys, mask=there, other=0.0).to(tl.float32)
    query = tl.load(row_x + QUERY + group * K + keys, mask=there, other=0.0).to(tl.float32)
    value = tl.load(row_x + VALUE + head * V + columns).to(tl.float32)
    gate = tl.load(row_gates + head).to(tl.float32)
    if CHANNELS:
        free = tl.load(row_channels + head * K + keys, mask=there, other=0.0).to(tl.float32)
    elif DELTA:
        free = tl.load(row_gates + H + head).to(tl.float32)
    else:
        free = gate
    step = softplus(free + bias)
    if DELTA:
        key *= tl.div_rn(1.0, _length(key))
        query *= tl.div_rn(query_scale, _length(query))
    else:
        step = tl.where(step < least_step, least_step, step)
        step = tl.where(step > most_step, most_step, step)
    decay = tl.exp(rate * step)
    if CHANNELS:
        state *= decay[:, None]
    else:
        state *= decay
    share = (value - tl.sum(state * key[:, None], axis=0)) * (write_scale * sigmoid(gate)) if DELTA else value * step
    return state + key[:, None] * share[None, :], query, value


@triton.jit
def _read(state, query, value, skip, DELTA: tl.constexpr, dtype: tl.constexpr):
    """Return what a row's query reads of the state behind the row."""
    read = tl.sum(state * query[:, None], axis=0)
    if not DELTA:
        read += tl.load(skip) * value
    return rounded(read, dtype).to(dtype)


@triton.jit(
    do_not_specialize_on_alignment=[
        "x", "gates", "channels", "rate", "step_bias", "skip", "sequences", "rows", "replayed", "stored", "kept",
        "kept_gates", "out",
    ]
)  # fmt: skip
def _recur(
    x, gates, channels, rate, step_bias, skip, sequences, rows, replayed, stored, kept, kept_gates, out, query_scale,
    write_scale, least_step, most_step,
    H: tl.constexpr, G: tl.constexpr, K: tl.constexpr, V: tl.constexpr, DELTA: tl.constexpr, CHANNELS: tl.constexpr,
    TILED: tl.constexpr, PIECE: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Go through the rows of a sequence, for some columns of a head's state."""
    sequence, head = sequences + 5 * tl.program_id(0), tl.program_id(1)
    WIDTH: tl.constexpr = 2 * G * K + H * V
    GATES: tl.constexpr = H if CHANNELS or not DELTA else 2 * H
    KEPT_GATES: tl.constexpr = GATES + (H * K if CHANNELS else 0)
    SLOT: tl.constexpr = H * ((V + PIECE - 1) // PIECE) * K * PIECE
    keys, columns = tl.arange(0, BLOCK_K), tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    there = keys < K
    cells = _cells(head, keys, columns, K, V, PIECE)
    head_rate = tl.load(rate + head)
    bias = tl.load(step_bias + head * K + keys, mask=there, other=0.0) if CHANNELS else tl.load(step_bias + head)

    slot = tl.load(sequence).to(tl.int64)
    begin, end = tl.load(sequence + 3), tl.load(sequence + 4)
    begun = (slot >= 0) & (begin < end)
    # The state is behind the row `at`; `base` is the one behind the last row that is no draft's, `root`. What is
    # replayed comes as rows before `begin`.
    state = tl.load(stored + slot * SLOT + cells, mask=keys[:, None] < tl.where(begun, K, 0), other=0.0)
    base, at, root = state, -1, -1
    first, last = tl.load(sequence + 1), tl.load(sequence + 2)
    target = tl.where(begin < end, begin - (last - first), end)
    while target < end:
        row = target
        if target < begin:
            item = replayed + 2 * (last - begin + target)
            source = tl.load(item).to(tl.int64)
            to, place = tl.load(item + 1), -1
            row_x, row_gates = kept + source * WIDTH, kept_gates + source * KEPT_GATES
            row_channels = row_gates + GATES
        else:
            row, parent = _way(rows, target, at, root)
            if parent != at:
                state = base
            to, place = tl.load(rows + 4 * row + 2), tl.load(rows + 4 * row + 3)
            row_x, row_gates = x + row.to(tl.int64) * WIDTH, gates + row.to(tl.int64) * GATES
            row_channels = channels + row.to(tl.int64) * (H * K)
        state, query, value = _updated(
            state, row_x, row_gates, row_channels, head_rate, bias, head, columns, keys, query_scale, write_scale,
            least_step, most_step, H, G, K, V, DELTA, CHANNELS, TILED,
        )  # fmt: skip
        if to >= 0:
            tl.store(stored + to.to(tl.int64) * SLOT + cells, state, mask=there[:, None])
        if place < 0:
            base = state
        if target < begin:
            target += 1
        else:
            read = _read(state, query, value, skip + head, DELTA, out.dtype.element_ty)
            tl.store(out + row.to(tl.int64) * (H * V) + head * V + columns, read)
            at = row
            if place < 0:
                root = row
            if row == target:
                target = _next_row(rows, row + 1, end, at)


class TritonRecurrent:
    """That part of `Kernels`; see there for what each method does."""

    def causal_conv(  # noqa: D102
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        silu: bool,
        states: StateMetadata,
        tails: Tensor,
        kept: Tensor,
        out: Tensor,
    ) -> None:
        taps, width = weight.shape
        rows = min(len(x), len(states.rows))
        if rows == 0 or len(states.sequences) == 0:
            return
        _convolve[(rows, triton.cdiv(width, _BLOCK))](
            x,
            weight,
            weight if bias is None else bias,
            tails,
            kept,
            out,
            states.sequences,
            states.rows,
            states.replayed,
            len(states.sequences),
            C=width,
            L=taps,
            BIAS=bias is not None,
            SILU=silu,
            BLOCK=_BLOCK,
            **EXACT,
        )

    def gated_delta(  # noqa: D102
        self,
        x: Tensor,
        gates: Tensor,
        rate: Tensor,
        step_bias: Tensor,
        groups: int,
        tiled: bool,
        states: StateMetadata,
        stored: Tensor,
        kept: Tensor,
        kept_gates: Tensor,
        out: Tensor,
        channels: Tensor | None = None,
        write_scale: float = 1.0,
    ) -> None:
        memory = stored, kept, kept_gates
        factors = write_scale, 0.0, 0.0
        self._recur(x, gates, channels, rate, step_bias, None, groups, tiled, factors, states, memory, out)

    def state_space(  # noqa: D102
        self,
        x: Tensor,
        gates: Tensor,
        rate: Tensor,
        step_bias: Tensor,
        skip: Tensor,
        groups: int,
        least_step: float,
        most_step: float,
        states: StateMetadata,
        stored: Tensor,
        kept: Tensor,
        kept_gates: Tensor,
        out: Tensor,
    ) -> None:
        memory = stored, kept, kept_gates
        factors = 1.0, least_step, most_step
        self._recur(x, gates, None, rate, step_bias, skip, groups, False, factors, states, memory, out)

    @staticmethod
    def _recur(
        x: Tensor,
        gates: Tensor,
        channels: Tensor | None,
        rate: Tensor,
        step_bias: Tensor,
        skip: Tensor | None,
        groups: int,
        tiled: bool,
        factors: tuple[float, float, float],
        states: StateMetadata,
        memory: tuple[Tensor, Tensor, Tensor],
        out: Tensor,
    ) -> None:
        """Update states row by row; without `skip` by the delta rule. Factors are of writes, and bounds of steps."""
        stored, kept, kept_gates = memory
        _, heads, _, keys, _ = stored.shape
        values, each = out.shape[1] // heads, 0 if channels is None else channels.shape[1]
        rows = min(len(x), len(states.rows))
        if rows == 0 or len(states.sequences) == 0:
            return
        own = x, gates, gates if channels is None else channels
        _recur[(len(states.sequences), heads, values // _COLUMNS)](
            *(*own, rate, step_bias, rate if skip is None else skip),
            *(states.sequences, states.rows, states.replayed, stored, kept, kept_gates, out),
            *(keys**-0.5, *map(float, factors)),
            H=heads,
            G=groups,
            K=keys,
            V=values,
            DELTA=skip is None,
            CHANNELS=channels is not None,
            TILED=tiled,
            PIECE=STATE_PIECE,
            COLUMNS=_COLUMNS,
            BLOCK_K=padded(keys),
            num_warps=max(1, padded(keys) * _COLUMNS // 1024),
            **EXACT,
        )
        _keep[(rows, triton.cdiv(max(x.shape[1], gates.shape[1], each), _BLOCK))](
            *(*own, kept, kept_gates, states.sequences, states.rows, len(states.sequences)),
            WIDTH=x.shape[1],
            GATES=gates.shape[1],
            CHANNELS=each,
            BLOCK=_BLOCK,
            **EXACT,
        )
