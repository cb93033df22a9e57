"""Tokens drawn on a GPU: the argmax of score / temperature + G(seed, position, token), and what a draft needs.

Every piece of a row leaves its best tokens, with what they are worth in double precision; a second kernel takes the
best of these, of equals the lowest id. The noise is made in registers.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from parlay.kernels.metadata import Filters
from parlay.kernels.triton.filtering import PIECE, TritonFiltering, ln, scaled
from parlay.kernels.triton.launch import EXACT, padded

_SEEN = 16  # values among which a sampled token's probability is its share
_NOWHERE: tl.constexpr = tl.constexpr(2**31 - 1)
_SLICED = [
    "scores",
    "kept",
    "temperatures",
    "seeds",
    "positions",
    "ids",
    "out",
    "probs",
]  # may begin anywhere in memory


@triton.jit
def _noise(word):
    """Return standard Gumbel noise of 32-bit words."""
    u = (word.to(tl.float64) + 0.5) * 2.0**-32
    return ln(ln(1.0 - u) * -1.0) * -1.0


@triton.jit
def _words(seed, position, counter):
    """Return the four words of Philox at each counter."""
    low = (position & 0xFFFFFFFF).to(tl.uint32)
    high = ((position >> 32) & 0xFFFFFFFF).to(tl.uint32)
    return tl.philox(seed, counter.to(tl.uint32), low, low * 0, high)


@triton.jit
def _noise_in_order(seed, position, begin, PIECE: tl.constexpr):
    """Return the noise of PIECE tokens from `begin`, which is a multiple of four."""
    a, b, c, d = _words(seed, position, begin // 4 + tl.arange(0, PIECE // 4))
    return _noise(tl.interleave(tl.interleave(a, c), tl.interleave(b, d)))


@triton.jit
def _noise_of(seed, position, token):
    """Return the noise of any tokens."""
    a, b, c, d = _words(seed, position, token // 4)
    place = token % 4
    return _noise(tl.where(place < 2, tl.where(place == 0, a, b), tl.where(place == 2, c, d)))


@triton.jit
def _leaders(value, place, KEEP: tl.constexpr):
    """Return the first KEEP in the order (value descending, place ascending), at -inf where there are no more."""
    lane = tl.arange(0, KEEP)
    values = tl.full([KEEP], float("-inf"), tl.float64)
    places = tl.full([KEEP], 0, tl.int32)
    for i in range(KEEP):
        best = tl.max(value, 0)
        first = tl.min(tl.where(value == best, place, _NOWHERE), 0)
        values = tl.where(lane == i, best, values)
        places = tl.where(lane == i, first, places)
        value = tl.where(place == first, float("-inf"), value)
    return values, places


@triton.jit
def _powers(x, top):
    """Return e^(x - top), 0 of -inf; of no use where `top` is +inf."""
    low = x == float("-inf")
    return tl.where(low, 0.0, tl.exp(tl.where(low, 0.0, x) - tl.where(top == float("-inf"), 0.0, top)))


@triton.jit(do_not_specialize_on_alignment=_SLICED)
def _contend(
    scores, kept, temperatures, seeds, positions, ids, values, places, tops, masses, vocab, pieces,
    PIECE: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Leave the best of each piece, and if asked for its highest score and the sum of e^(score - highest)."""
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = piece * PIECE + tl.arange(0, PIECE)
    temperature = tl.load(temperatures + row)
    plain = scaled(scores, row, at, vocab, temperature)
    s = plain
    if kept is not None:  # filters have no effect without noise
        s = tl.where(temperature > 0, scaled(kept, row, at, vocab, 1.0), plain)
    value = s.to(tl.float64)
    if temperature > 0:
        seed, position = tl.load(seeds + row), tl.load(positions + row)
        if ids is None:
            value += _noise_in_order(seed, position, piece * PIECE, PIECE)
        else:
            value += _noise_of(seed, position, tl.load(ids + at, mask=at < vocab, other=0))
    best, place = _leaders(value, at, KEEP)
    to = (row * pieces + piece) * KEEP + tl.arange(0, KEEP)
    tl.store(values + to, best)
    tl.store(places + to, place)
    if tops is not None:
        top = tl.max(plain, 0)
        tl.store(tops + row * pieces + piece, top)
        tl.store(masses + row * pieces + piece, tl.sum(_powers(plain, top), 0))


@triton.jit(do_not_specialize_on_alignment=_SLICED)
def _choose(
    scores, temperatures, ids, values, places, tops, masses, out, probs, vocab, pieces, wanted,
    WIDTH: tl.constexpr, PIECES: tl.constexpr, KEEP: tl.constexpr, LEAD: tl.constexpr,
):  # fmt: skip
    """Choose the first `wanted` of the leaders of all pieces.

    With LEAD noisy ones are worth their share among the leaders.
    """
    row = tl.program_id(0).to(tl.int64)
    lane, own = tl.arange(0, WIDTH), tl.arange(0, KEEP)
    inside, at = lane < pieces * KEEP, row * pieces * KEEP + lane
    value = tl.load(values + at, mask=inside, other=float("-inf"))
    best, place = _leaders(value, tl.load(places + at, mask=inside, other=_NOWHERE), KEEP)
    some = best > float("-inf")
    place = tl.where(some, place, 0)
    token = place.to(tl.int64)
    if ids is not None:
        token = tl.load(ids + place)
    tl.store(out + row * wanted + own, token, mask=own < wanted)
    if probs is not None:
        temperature = tl.load(temperatures + row)
        piece = tl.arange(0, PIECES)
        found = tl.load(tops + row * pieces + piece, mask=piece < pieces, other=float("-inf"))
        mass = tl.load(masses + row * pieces + piece, mask=piece < pieces, other=0.0)
        top = tl.max(found, 0)
        share = _powers(scaled(scores, row, place, vocab, temperature), top) / tl.sum(mass * _powers(found, top), 0)
        sick = top == float("inf")
        if LEAD:
            first = tl.max(best, 0)
            power = _powers(2.0 * tl.where(some, best - tl.where(some, first, 0.0), best).to(tl.float32), 0.0)
            lead = power / tl.sum(power, 0)
            share = tl.where(temperature > 0, lead, share)
            sick = tl.where(temperature > 0, first == float("inf"), sick)
        tl.store(probs + row * wanted + own, tl.where(some, tl.where(sick, 0.0, share), 0.0), mask=own < wanted)


@triton.jit(do_not_specialize=["seed", "position"], do_not_specialize_on_alignment=["out"])
def _gumbel(out, seed, position, vocab, PIECE: tl.constexpr):
    piece = tl.program_id(0)
    at = piece * PIECE + tl.arange(0, PIECE)
    noise = _noise_in_order(seed.to(tl.int64), position.to(tl.int64), piece * PIECE, PIECE)
    tl.store(out + at, noise, mask=at < vocab)


@triton.jit(
    do_not_specialize=["nodes", "children", "wide", "depth"],
    do_not_specialize_on_alignment=["tokens", "probs", "worth", "out", "out_worth", "origin", "chosen", "slots",
                                    "above", "below"],
)  # fmt: skip
def _grow(
    tokens, probs, worth, out, out_worth, origin, chosen, slots, above, below, nodes, children, wide, depth,
    WIDTH: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Choose one draft's nodes, the best first."""
    draft = tl.program_id(0).to(tl.int64)
    lane, level = tl.arange(0, WIDTH), tl.arange(0, DEPTH)
    inside, first = lane < nodes * children, draft * nodes
    parent = tl.load(worth + first + lane // children, mask=inside, other=0.0)
    own = tl.load(probs + first * children + lane, mask=inside, other=0.0)
    left = tl.where(inside, parent * own, float("-inf"))
    for place in range(wide):
        best = tl.max(left, 0)
        at = tl.min(tl.where(left == best, lane, _NOWHERE), 0)
        left = tl.where(lane == at, float("-inf"), left)
        row, to = first + at // children, draft * wide + place
        tl.store(out + to, tl.load(tokens + first * children + at))
        tl.store(out_worth + to, best)
        tl.store(origin + to, row)
        tl.store(chosen + to, at.to(tl.int64))
        if below is not None:
            path = tl.load(above + row * depth + level, mask=level < depth, other=0)
            tl.store(below + to * (depth + 1) + level, path, mask=level < depth)
            tl.store(below + to * (depth + 1) + depth, tl.load(slots + to))


@triton.jit(
    do_not_specialize=["rows", "most", "filler"],
    do_not_specialize_on_alignment=["drawn", "tokens", "parents", "roots", "path", "emitted", "accepted"],
)
def _accept(drawn, tokens, parents, roots, path, emitted, accepted, rows, most, filler, ROWS: tl.constexpr):
    """Walk one sequence's draft."""
    sequence = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, ROWS)
    inside = lane < rows
    token = tl.load(tokens + lane, mask=inside, other=0)
    parent = tl.load(parents + lane, mask=inside, other=-1)
    row = tl.load(roots + sequence)
    count = row * 0
    alive = row >= 0
    for place in range(most):
        choice = tl.load(drawn + row)
        tl.store(path + sequence * most + place, row)
        tl.store(emitted + sequence * most + place, tl.where(alive, choice, filler))
        child = tl.min(tl.where((parent == row) & (token == choice), lane, ROWS), 0)
        alive = alive & (child < ROWS) & (place + 1 < most)
        count += alive.to(tl.int64)
        row = tl.where(alive, child.to(tl.int64), row)
    tl.store(accepted + sequence, count)


class TritonSampling(TritonFiltering):
    """`SamplingKernels`; see there for what each method does."""

    def draw(  # noqa: D102
        self,
        scores: Tensor,
        temperatures: Tensor,
        seeds: Tensor,
        positions: Tensor,
        out: Tensor,
        filters: Filters | None = None,
        ids: Tensor | None = None,
        probs: Tensor | None = None,
    ) -> None:
        self._pick(scores, temperatures, seeds, positions, out, probs, filters, ids, 1, 1)

    def branch(  # noqa: D102
        self,
        scores: Tensor,
        temperatures: Tensor,
        seeds: Tensor,
        positions: Tensor,
        out: Tensor,
        probs: Tensor,
        filters: Filters | None = None,
        ids: Tensor | None = None,
    ) -> None:
        self._pick(scores, temperatures, seeds, positions, out, probs, filters, ids, out.shape[1], _SEEN)

    def _pick(
        self,
        scores: Tensor,
        temperatures: Tensor,
        seeds: Tensor,
        positions: Tensor,
        out: Tensor,
        probs: Tensor | None,
        filters: Filters | None,
        ids: Tensor | None,
        wanted: int,
        keep: int,
    ) -> None:
        rows, vocab = scores.shape
        pieces = triton.cdiv(vocab, PIECE)
        if not rows:
            return
        kept = None
        if filters is not None:
            kept = scores.clone()
            self.process(kept, temperatures, filters)
        values = torch.empty((rows, pieces, keep), dtype=torch.float64, device=scores.device)
        places = torch.empty((rows, pieces, keep), dtype=torch.int32, device=scores.device)
        tops = masses = None
        if probs is not None:
            tops = torch.empty((rows, pieces), dtype=torch.float32, device=scores.device)
            masses = torch.empty_like(tops)
        _contend[(rows, pieces)](
            scores, kept, temperatures, seeds, positions, ids, values, places, tops, masses, vocab, pieces,
            PIECE, keep, num_warps=4, **EXACT,
        )  # fmt: skip
        _choose[(rows,)](
            scores, temperatures, ids, values, places, tops, masses, out, probs, vocab, pieces, wanted,
            padded(pieces * keep), padded(pieces), keep, keep > 1, num_warps=4, **EXACT,
        )  # fmt: skip

    def gumbel(self, seed: int, position: int, out: Tensor) -> None:  # noqa: D102
        vocab = len(out)
        if vocab:
            signed = seed - 2**64 if seed >= 2**63 else seed
            _gumbel[(triton.cdiv(vocab, PIECE),)](out, signed, position, vocab, PIECE, num_warps=4, **EXACT)

    def grow(  # noqa: D102
        self,
        tokens: Tensor,
        probs: Tensor,
        worth: Tensor,
        out: Tensor,
        out_worth: Tensor,
        origin: Tensor,
        chosen: Tensor,
        drafts: int,
        slots: Tensor | None = None,
        above: Tensor | None = None,
        below: Tensor | None = None,
    ) -> None:
        if not drafts:
            return
        rows, children = tokens.shape
        nodes, wide = rows // drafts, len(out) // drafts
        if slots is None or above is None:
            below = None
        depth = above.shape[1] if above is not None else 0
        _grow[(drafts,)](
            tokens, probs, worth, out, out_worth, origin, chosen, slots, above, below, nodes, children, wide, depth,
            padded(nodes * children), padded(depth), num_warps=1, **EXACT,
        )  # fmt: skip

    def accept(  # noqa: D102
        self,
        drawn: Tensor,
        tokens: Tensor,
        parents: Tensor,
        roots: Tensor,
        path: Tensor,
        emitted: Tensor,
        accepted: Tensor,
        filler: int = 0,
    ) -> None:
        if len(roots):
            _accept[(len(roots),)](
                drawn, tokens, parents, roots, path, emitted, accepted, len(drawn), path.shape[1], filler,
                padded(len(drawn)), num_warps=1, **EXACT,
            )  # fmt: skip
