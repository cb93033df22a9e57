"""Rows of scores on a GPU: temperature, filters, logarithms of shares, all to the same bits as elsewhere.

A row is split into pieces of a fixed length, each of which a program of its own reads. What they find is combined
by maxima and sums of integers, which depend on no order. Where the survivors of a filter end is found as by a radix
sort: a token's key holds its score and, below it, its id, so that keys are in the total order; digit by digit, the
weight of the tokens behind each digit is summed, and the one with the border is gone into.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from parlay.kernels.metadata import Filters
from parlay.kernels.triton.launch import EXACT, padded

PIECE = 1024  # scores of a row that one program reads

_DIGIT_BITS = 4
_DIGITS: tl.constexpr = tl.constexpr(1 << _DIGIT_BITS)
_UNIT: tl.constexpr = tl.constexpr(2.0**42)
_TO_WHOLE: tl.constexpr = tl.constexpr(1.5 * 2.0**52)  # adding it to a double rounds to an integer
_SQRT_HALF: tl.constexpr = tl.constexpr(0x3FE6A09E667F3BCD)  # its bits
_LN2_HIGH: tl.constexpr = tl.constexpr(float.fromhex("0x1.62e42feep-1"))
_LN2_LOW: tl.constexpr = tl.constexpr(float.fromhex("0x1.a39ef35793c76p-33"))
_LN_UNIT: tl.constexpr = tl.constexpr(42 * float.fromhex("0x1.62e42fefa39efp-1"))
_LOG2_E: tl.constexpr = tl.constexpr(float.fromhex("0x1.715476p+0"))
_MAGIC: tl.constexpr = tl.constexpr(1.5 * 2.0**23)
_HIGH: tl.constexpr = tl.constexpr(float.fromhex("0x1.62e4p-1"))
_LOW: tl.constexpr = tl.constexpr(float.fromhex("0x1.7f7d1cp-20"))
_Q4: tl.constexpr = tl.constexpr(float.fromhex("0x1.685188p-10"))
_Q3: tl.constexpr = tl.constexpr(float.fromhex("0x1.123bdep-7"))
_Q2: tl.constexpr = tl.constexpr(float.fromhex("0x1.555b98p-5"))
_Q1: tl.constexpr = tl.constexpr(float.fromhex("0x1.55548ep-3"))
_Q0: tl.constexpr = tl.constexpr(float.fromhex("0x1.fffff8p-2"))

# What may begin anywhere in memory.
_SLICED = ["scores", "temperatures", "min_p", "top_k", "top_p", "state", "next_state", "first", "second"]


@triton.jit
def ln(x):
    """Return the natural logarithm of positive normal doubles, by the operations of `noise.ln`."""
    bits = x.to(tl.int64, bitcast=True)
    exponent = (bits - _SQRT_HALF) >> 52
    f = (bits - (exponent << 52)).to(tl.float64, bitcast=True) - 1.0
    s = f / (f + 2.0)
    z = s * s
    p = z * (1 / 21) + 1 / 19
    for half in tl.static_range(8, 0, -1):
        p = p * z + 1 / (2 * half + 1)
    n = exponent.to(tl.float64)
    twice = s + s
    return n * _LN2_HIGH + (twice + (twice * (p * z) + n * _LN2_LOW))


@triton.jit
def _decay(x):
    """Return e^x of what is not above 0, at least e^-30, by the operations of `reference_sampling.decay`."""
    bounded = tl.maximum(x, -30.0)
    n = (bounded * _LOG2_E + _MAGIC) - _MAGIC
    r = (bounded - n * _HIGH) - n * _LOW
    q = ((((r * _Q4 + _Q3) * r + _Q2) * r + _Q1) * r) + _Q0
    p = (r * r * q + r) + 1.0
    return p * ((n.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)  # a power of two: the product is exact


@triton.jit
def _units(weight):
    whole = (weight.to(tl.float64) * _UNIT + _TO_WHOLE) - _TO_WHOLE
    return whole.to(tl.int64)


@triton.jit
def _probability(log):
    return tl.where(log > -29.0, _decay(tl.minimum(log, 0.0)), 0.0)


@triton.jit
def temperature_of(temperatures, row):
    """Return a row's temperature; 1 where there are none."""
    return 1.0 if temperatures is None else tl.load(temperatures + row)


@triton.jit
def scaled(scores, row, at, vocab, temperature):
    """Return scores after temperature, as they are at 0; -inf where they are no number or beyond the row."""
    x = tl.load(scores + row * vocab + at, mask=at < vocab, other=float("-inf"))
    x = tl.where(x == x, x, float("-inf"))
    y = tl.div_rn(x, tl.where(temperature > 0, temperature, 1.0))
    return tl.where(y == y, y, float("-inf"))


@triton.jit
def _gap(s, best):
    """Return how far scores are below the best; an infinite best is not below itself."""
    same = s == best
    return tl.where(same, 0.0, s - tl.where(same, 0.0, best))


@triton.jit
def _key(s, at, ID_BITS: tl.constexpr):
    """Return keys that are in the total order, none of them twice."""
    bits = (s + 0.0).to(tl.int32, bitcast=True)  # -0 is 0
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) + 2147483648
    return (ordered << ID_BITS) + ((1 << ID_BITS) - 1 - at)


@triton.jit
def _best(tops, row, pieces, WIDTH: tl.constexpr):
    """Return the highest of what the pieces found."""
    lane = tl.arange(0, WIDTH)
    return tl.max(tl.load(tops + row * pieces + lane, mask=lane < pieces, other=float("-inf")), 0)


@triton.jit
def _floor(min_p, row):
    """Return what min-p compares with."""
    share = tl.load(min_p + row)
    return tl.where(share > 0, ln(tl.maximum(share, 2.0**-1022)), float("-inf"))


@triton.jit(do_not_specialize_on_alignment=_SLICED)
def _top(scores, temperatures, tops, places, vocab, pieces, PIECE: tl.constexpr):
    """Find each piece's highest score and where it is first."""
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = piece * PIECE + tl.arange(0, PIECE)
    s = scaled(scores, row, at, vocab, temperature_of(temperatures, row))
    top = tl.max(s, 0)
    tl.store(tops + row * pieces + piece, top)
    tl.store(places + row * pieces + piece, tl.min(tl.where(s == top, at, 2147483647), 0))


@triton.jit(do_not_specialize=["shift"], do_not_specialize_on_alignment=_SLICED)
def _tally(
    scores, temperatures, min_p, tops, first, state, bins, vocab, pieces, shift,
    PIECE: tl.constexpr, WIDTH: tl.constexpr, ID_BITS: tl.constexpr, DIGIT_BITS: tl.constexpr,
):  # fmt: skip
    """Sum, in each piece, the weight behind each digit at `shift`, of the keys that begin like the border.

    A token weighs 1; or with `first`, the border of top-k, its units, if it survived so far.
    """
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = piece * PIECE + tl.arange(0, PIECE)
    s = scaled(scores, row, at, vocab, temperature_of(temperatures, row))
    key = _key(s, at, ID_BITS)
    if first is None:
        weight = (key >= 0).to(tl.int64)
    else:
        gap = _gap(s, _best(tops, row, pieces, WIDTH))
        kept = (key >= tl.load(first + row * 2)) & (gap.to(tl.float64) >= _floor(min_p, row))
        weight = tl.where(kept, _units(_decay(gap)), 0)
    inside = (at < vocab) & ((key >> (shift + DIGIT_BITS)) == tl.load(state + row * 2))
    digit = tl.where(inside, (key >> shift) & (_DIGITS - 1), -1)
    each = tl.arange(0, _DIGITS)
    sums = tl.sum(tl.where(digit[:, None] == each[None, :], weight[:, None], 0), 0)
    tl.store(bins + (row * pieces + piece) * _DIGITS + each, sums)


@triton.jit(do_not_specialize_on_alignment=_SLICED)
def _descend(bins, state, next_state, top_k, top_p, vocab, pieces, BEGIN: tl.constexpr, WIDTH: tl.constexpr):
    """Go into the digit that the border has: the highest one with which the target is reached.

    A row's state is the border's key as far as it is known, and the units that are still to be reached.
    """
    row = tl.program_id(0).to(tl.int64)
    each, lane = tl.arange(0, _DIGITS), tl.arange(0, WIDTH)
    from_pieces = bins + (row * pieces + lane[:, None]) * _DIGITS + each[None, :]
    sums = tl.sum(tl.load(from_pieces, mask=lane[:, None] < pieces, other=0), 0)
    total = tl.sum(sums, 0)
    if not BEGIN:
        target = tl.load(state + row * 2 + 1)
    elif top_p is None:
        k = tl.load(top_k + row)
        target = tl.where((k > 0) & (k < vocab), k, total)
    else:
        share = tl.ceil(tl.load(top_p + row) * total.to(tl.float64))
        target = tl.minimum(tl.maximum(share.to(tl.int64), 1), total)
    beyond = total - tl.cumsum(sums, 0)  # behind higher digits
    chosen = (beyond < target) & (beyond + sums >= target)
    digit = tl.sum(tl.where(chosen, each, 0), 0)
    tl.store(next_state + row * 2, tl.load(state + row * 2) * _DIGITS + digit)
    tl.store(next_state + row * 2 + 1, target - tl.sum(tl.where(chosen, beyond, 0), 0))


@triton.jit(do_not_specialize_on_alignment=_SLICED)
def _sift(
    scores, temperatures, min_p, top_k, top_p, tops, places, first, second, vocab, pieces,
    PIECE: tl.constexpr, WIDTH: tl.constexpr, ID_BITS: tl.constexpr,
):  # fmt: skip
    """Write the scores after temperature that survive: those not below the borders of top-k and top-p."""
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at, lane = piece * PIECE + tl.arange(0, PIECE), tl.arange(0, WIDTH)
    temperature = tl.load(temperatures + row)
    s = scaled(scores, row, at, vocab, temperature)
    best = _best(tops, row, pieces, WIDTH)
    found = tl.load(tops + row * pieces + lane, mask=lane < pieces, other=float("-inf"))
    place = tl.load(places + row * pieces + lane, mask=lane < pieces, other=2147483647)
    lowest = tl.min(tl.where(found == best, place, 2147483647), 0)
    alone = temperature == 0
    kept = at >= 0
    if min_p is not None:
        k, share = tl.load(top_k + row), tl.load(top_p + row)
        key = _key(s, at, ID_BITS)
        kept = (key >= tl.load(first + row * 2)) & (_gap(s, best).to(tl.float64) >= _floor(min_p, row))
        kept = kept & (key >= tl.where(share < 1, tl.load(second + row * 2), 0))
        filters = (tl.load(min_p + row) > 0) | ((k > 0) & (k < vocab)) | (share < 1)
        alone = alone | ((best == float("inf")) & filters)
    kept = tl.where(alone, at == lowest, kept)
    tl.store(scores + row * vocab + at, tl.where(kept, s, float("-inf")), mask=at < vocab)


@triton.jit(do_not_specialize_on_alignment=_SLICED)
def _count(scores, tops, sums, vocab, pieces, PIECE: tl.constexpr, WIDTH: tl.constexpr):
    """Sum each piece's units; where the best is infinite, count those that have it."""
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = piece * PIECE + tl.arange(0, PIECE)
    s = scaled(scores, row, at, vocab, 1.0)
    best = _best(tops, row, pieces, WIDTH)
    units = tl.where(tl.abs(best) == float("inf"), (s == best).to(tl.int64), _units(_decay(_gap(s, best))))
    tl.store(sums + row * pieces + piece, tl.sum(tl.where(at < vocab, units, 0), 0))


@triton.jit(do_not_specialize_on_alignment=[*_SLICED, "out"])
def _logs(scores, tops, sums, out, vocab, pieces, PIECE: tl.constexpr, WIDTH: tl.constexpr):
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at, lane = piece * PIECE + tl.arange(0, PIECE), tl.arange(0, WIDTH)
    s = scaled(scores, row, at, vocab, 1.0)
    best = _best(tops, row, pieces, WIDTH)
    total = ln(tl.sum(tl.load(sums + row * pieces + lane, mask=lane < pieces, other=0), 0).to(tl.float64))
    sick = tl.abs(best) == float("inf")
    base = tl.where(sick, 0.0, best).to(tl.float64)
    logs = (s.to(tl.float64) - base) - (total - _LN_UNIT)
    logs = tl.where(sick, tl.where(s == best, total * -1.0, float("-inf")), logs)
    tl.store(out + row * vocab + at, logs.to(tl.float32), mask=at < vocab)


@triton.jit(do_not_specialize_on_alignment=["target", "draft", "scales", "out"])
def _exceed(target, draft, scales, sums, out, vocab, pieces, PIECE: tl.constexpr):
    """Write the logarithms of what is left, and each piece's units."""
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = piece * PIECE + tl.arange(0, PIECE)
    inside = at < vocab
    has = _probability(tl.load(target + row * vocab + at, mask=inside, other=float("-inf")))
    drafted = _probability(tl.load(draft + row * vocab + at, mask=inside, other=float("-inf")))
    left = tl.maximum(tl.load(scales + row).to(tl.float32) * has - drafted, 0.0)
    tl.store(sums + row * pieces + piece, tl.sum(_units(left), 0))
    if out is not None:
        logs = ln(tl.where(left > 0, left, 1.0).to(tl.float64)).to(tl.float32)
        tl.store(out + row * vocab + at, tl.where(left > 0, logs, float("-inf")), mask=inside)


@triton.jit(do_not_specialize_on_alignment=["mass"])
def _weigh(sums, mass, pieces, WIDTH: tl.constexpr):
    row, lane = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    units = tl.sum(tl.load(sums + row * pieces + lane, mask=lane < pieces, other=0), 0)
    tl.store(mass + row, units.to(tl.float64) * (1 / _UNIT))


class TritonFiltering:
    """What leaves rows of scores; see `SamplingKernels`."""

    def process(self, scores: Tensor, temperatures: Tensor, filters: Filters | None) -> None:  # noqa: D102
        rows, vocab = scores.shape
        pieces = triton.cdiv(vocab, PIECE)
        if not rows:
            return
        tops, places = _tops_of(scores, temperatures)
        limits: list[Tensor | None] = [None] * 3
        borders: list[Tensor | None] = [None] * 2
        if filters is not None:
            limits = [filters.min_p, filters.top_k, filters.top_p]
            first = _border(scores, temperatures, filters, tops, None)
            borders = [first, _border(scores, temperatures, filters, tops, first)]
        _sift[(rows, pieces)](
            scores, temperatures, *limits, tops, places, *borders, vocab, pieces,
            PIECE, padded(pieces), (vocab - 1).bit_length(), num_warps=4, **EXACT,
        )  # fmt: skip

    def log_softmax(self, scores: Tensor, out: Tensor) -> None:  # noqa: D102
        rows, vocab = scores.shape
        pieces = triton.cdiv(vocab, PIECE)
        if not rows:
            return
        tops, _ = _tops_of(scores, None)
        sums = torch.empty((rows, pieces), dtype=torch.int64, device=scores.device)
        grid, width = (rows, pieces), padded(pieces)
        _count[grid](scores, tops, sums, vocab, pieces, PIECE, width, num_warps=4, **EXACT)
        _logs[grid](scores, tops, sums, out, vocab, pieces, PIECE, width, num_warps=4, **EXACT)

    def log_probs(  # noqa: D102
        self, scores: Tensor, temperatures: Tensor, out: Tensor, filters: Filters | None = None
    ) -> None:
        out.copy_(scores)
        self.process(out, temperatures, filters)
        self.log_softmax(out, out)

    def excess(  # noqa: D102
        self,
        target: Tensor,
        draft: Tensor,
        scales: Tensor,
        mass: Tensor,
        out: Tensor | None = None,
        ids: Tensor | None = None,
    ) -> None:
        rows, vocab = target.shape
        pieces = triton.cdiv(vocab, PIECE)
        if not rows:
            return
        if ids is not None:
            draft = torch.full_like(target, float("-inf")).index_copy_(1, ids, draft)
        sums = torch.empty((rows, pieces), dtype=torch.int64, device=target.device)
        _exceed[(rows, pieces)](target, draft, scales, sums, out, vocab, pieces, PIECE, num_warps=4, **EXACT)
        _weigh[(rows,)](sums, mass, pieces, padded(pieces), num_warps=4, **EXACT)


def _tops_of(scores: Tensor, temperatures: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return each piece's highest score after temperature, and its place."""
    rows, vocab = scores.shape
    pieces = triton.cdiv(vocab, PIECE)
    tops = torch.empty((rows, pieces), dtype=torch.float32, device=scores.device)
    places = torch.empty((rows, pieces), dtype=torch.int32, device=scores.device)
    _top[(rows, pieces)](scores, temperatures, tops, places, vocab, pieces, PIECE, num_warps=4, **EXACT)
    return tops, places


def _border(scores: Tensor, temperatures: Tensor, filters: Filters, tops: Tensor, first: Tensor | None) -> Tensor:
    """Return the keys of the last tokens that top-k keeps; with `first`, which are these, those of top-p."""
    rows, vocab = scores.shape
    pieces, id_bits = triton.cdiv(vocab, PIECE), (vocab - 1).bit_length()
    width, levels = padded(pieces), triton.cdiv(32 + id_bits, _DIGIT_BITS)
    bins = torch.empty((rows, pieces, 1 << _DIGIT_BITS), dtype=torch.int64, device=scores.device)
    # A state of its own for each level: no program reads what another writes.
    states = torch.zeros((levels + 1, rows, 2), dtype=torch.int64, device=scores.device)
    top_p = None if first is None else filters.top_p
    for level in range(levels):
        shift = (levels - 1 - level) * _DIGIT_BITS
        _tally[(rows, pieces)](
            scores, temperatures, filters.min_p, tops, first, states[level], bins, vocab, pieces, shift,
            PIECE, width, id_bits, _DIGIT_BITS, num_warps=8, **EXACT,
        )  # fmt: skip
        _descend[(rows,)](
            bins, states[level], states[level + 1], filters.top_k, top_p, vocab, pieces, level == 0, width,
            num_warps=4, **EXACT,
        )  # fmt: skip
    return states[levels]
