"""Paged attention.

A row's keys are cut at absolute multiples of `_CHUNK`, whichever blocks or extra slots hold them. Of each chunk a
softmax is made by itself, in tiles of keys, and the chunks' results are combined in order: by the program that is
done last, where chunks of few rows occupy the GPU together, or by the one that made them all. Both do the same
operations.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from parlay.kernels.base import AttentionMetadata
from parlay.kernels.triton.cache_rows import load_rows
from parlay.kernels.triton.launch import EXACT, arrived_last, dot, padded, rounded

_CHUNK = 256  # keys of which one program makes a softmax
_TILE = 64  # keys that it reads at once, of heads of up to `_NARROW` columns; of wider ones in proportion fewer
_NARROW = 128
_COUNTED = 1 << 14  # pairs of a row and a head of keys whose counters are kept
_LEAST = 16  # query heads of a matrix product
_ROOM = 1 << 26  # numbers of all chunks' results; beyond, a program goes through all chunks of its row
_EXTRA = 512  # most nodes on a path of a draft

# What varies with the batch must not be compiled in.
_DATA = ["table_step", "chunks"]
_VIEWS = ["tables", "owner", "first", "last", "extra_offsets", "extra_slots"]


@triton.jit
def _visible(row, first, last, extra_offsets, window, span):
    known = tl.load(last + row)
    total = known + tl.load(extra_offsets + row + 1) - tl.load(extra_offsets + row)
    start = tl.load(first + row)
    if window > 0:
        start = tl.maximum(start, total - window)
    if (span > 0) & (total > 0):
        start = tl.maximum(start, (total - 1) // span * span)
    return start, known, total


@triton.jit
def _merge(best, mass, mixed, own_best, own_mass, own_mixed):
    # The softmax of some keys and of those behind them, as that of all.
    new = tl.maximum(best, own_best)
    before, behind = tl.exp(best - new), tl.exp(own_best - new)
    return new, mass * before + own_mass * behind, mixed * before[:, None] + own_mixed * behind[:, None]


@triton.jit
def _none(sinks, kv_head, each: tl.constexpr, wide: tl.constexpr, group: tl.constexpr, has_sinks: tl.constexpr):
    # The softmax of no keys.
    head = tl.arange(0, group)
    best = tl.full((group,), float("-inf"), tl.float32)
    mass = tl.zeros((group,), tl.float32)
    if has_sinks:
        best = tl.load(sinks + kv_head * each + head, mask=head < each, other=0.0)
        mass = tl.full((group,), 1.0, tl.float32)
    return best, mass, tl.zeros((group, wide), tl.float32)


@triton.jit
def _softmax(
    query, key_cache, value_cache, tables, extra_slots, row_table, extra_at, kv_head, begin, start, known, total, end,
    scale, cap, dim, columns,
    kv_heads: tl.constexpr, block_size: tl.constexpr, lanes: tl.constexpr, wide: tl.constexpr, group: tl.constexpr,
    tile: tl.constexpr,
):  # fmt: skip
    lane, column, key = tl.arange(0, lanes), tl.arange(0, wide), tl.arange(0, tile)
    best = tl.full((group,), float("-inf"), tl.float32)
    mass = tl.zeros((group,), tl.float32)
    mixed = tl.zeros((group, wide), tl.float32)
    # Tiles before the first visible key are skipped: each of the others has one.
    for at in range(tl.maximum(begin, start // tile * tile), end, tile):
        index = at + key
        seen = (index >= start) & (index < total)
        in_table = index < known
        block = tl.load(tables + row_table + index // block_size, mask=seen & in_table, other=0).to(tl.int64)
        extra = tl.load(extra_slots + extra_at + index - known, mask=seen & (index >= known), other=0).to(tl.int64)
        block = tl.where(in_table, block, extra // block_size)
        within = tl.where(in_table, index % block_size, extra % block_size)
        place = (block * kv_heads + kv_head) * block_size + within
        is_number = seen[:, None] & (lane < dim)[None, :]
        keys = load_rows(key_cache, place, lane, is_number, dim, query.dtype)
        scores = dot(query, tl.trans(keys), tl.zeros((group, tile), tl.float32)) * scale
        if cap > 0:
            # tanh by e^x, which the interpreter has too
            power = tl.exp(-2.0 * tl.abs(scores / cap))
            bound = cap * ((1.0 - power) / (1.0 + power))
            scores = tl.where(scores < 0, -bound, bound)
        scores = tl.where(seen[None, :], scores, float("-inf"))
        new = tl.maximum(best, tl.max(scores, 1))
        shares = tl.exp(scores - new[:, None])
        before = tl.exp(best - new)
        is_number = seen[:, None] & (column < columns)[None, :]
        values = load_rows(value_cache, place, column, is_number, columns, query.dtype)
        mass = mass * before + tl.sum(shares, 1)
        mixed = dot(rounded(shares, values.dtype).to(values.dtype), values, mixed * before[:, None])
        best = new
    return best, mass, mixed


@triton.jit(do_not_specialize=_DATA, do_not_specialize_on_alignment=[*_VIEWS, "out"])
def _attend(
    query, key_cache, value_cache, tables, owner, first, last, extra_offsets, extra_slots, sinks, out,
    part_best, part_mass, part_mixed, counters, table_step, chunks, scale, window, span, cap, dim, columns,
    kv_heads: tl.constexpr, block_size: tl.constexpr, heads: tl.constexpr, lanes: tl.constexpr, wide: tl.constexpr,
    group: tl.constexpr, has_sinks: tl.constexpr, alone: tl.constexpr, size: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    # alone: the program goes through all chunks; else it leaves one chunk's result, and the last one combines them.
    row, kv_head = tl.program_id(0), tl.program_id(1)
    start, known, total = _visible(row, first, last, extra_offsets, window, span)
    each: tl.constexpr = heads // kv_heads
    head, lane, column = tl.arange(0, group), tl.arange(0, lanes), tl.arange(0, wide)
    is_query = (head < each)[:, None] & (lane < dim)[None, :]
    is_number = (head < each)[:, None] & (column < columns)[None, :]
    at_head = row.to(tl.int64) * heads + kv_head * each + head[:, None]
    at, to = at_head * dim + lane[None, :], at_head * columns + column[None, :]
    row_table = tl.load(owner + row).to(tl.int64) * table_step
    extra_at = tl.load(extra_offsets + row)
    if alone:
        best, mass, mixed = _none(sinks, kv_head, each, wide, group, has_sinks)
        own_query = tl.load(query + at, mask=is_query, other=0.0)
        for chunk in range(start // size, tl.cdiv(total, size)):
            begin = chunk * size
            own_best, own_mass, own_mixed = _softmax(
                own_query, key_cache, value_cache, tables, extra_slots, row_table, extra_at, kv_head, begin, start,
                known, total, tl.minimum(begin + size, total), scale, cap, dim, columns,
                kv_heads, block_size, lanes, wide, group, tile,
            )  # fmt: skip
            best, mass, mixed = _merge(best, mass, mixed, own_best, own_mass, own_mixed)
        mixed = tl.where(start < total, mixed / mass[:, None], 0.0)
        tl.store(out + to, rounded(mixed, out.dtype.element_ty).to(out.dtype.element_ty), mask=is_number)
    else:
        begin = tl.program_id(2) * size
        line = row.to(tl.int64) * heads + kv_head * each + head
        if (begin < total) & (begin + size > start):
            own_query = tl.load(query + at, mask=is_query, other=0.0)
            own_best, own_mass, own_mixed = _softmax(
                own_query, key_cache, value_cache, tables, extra_slots, row_table, extra_at, kv_head, begin, start,
                known, total, tl.minimum(begin + size, total), scale, cap, dim, columns,
                kv_heads, block_size, lanes, wide, group, tile,
            )  # fmt: skip
            place = line * chunks + tl.program_id(2)
            tl.store(part_best + place, own_best, mask=head < each)
            tl.store(part_mass + place, own_mass, mask=head < each)
            tl.store(part_mixed + place[:, None] * columns + column[None, :], own_mixed, mask=is_number)
        if arrived_last(counters + row * kv_heads + kv_head, chunks):
            best, mass, mixed = _none(sinks, kv_head, each, wide, group, has_sinks)
            for chunk in range(start // size, tl.cdiv(total, size)):
                place = line * chunks + chunk
                own_best = tl.load(part_best + place, mask=head < each, other=0.0, cache_modifier=".cg")
                own_mass = tl.load(part_mass + place, mask=head < each, other=1.0, cache_modifier=".cg")
                own_at = part_mixed + place[:, None] * columns + column[None, :]
                own_mixed = tl.load(own_at, mask=is_number, other=0.0, cache_modifier=".cg")
                best, mass, mixed = _merge(best, mass, mixed, own_best, own_mass, own_mixed)
            mixed = tl.where(start < total, mixed / mass[:, None], 0.0)
            tl.store(out + to, rounded(mixed, out.dtype.element_ty).to(out.dtype.element_ty), mask=is_number)


class TritonAttention:
    """The attention of `Kernels`; see there. Probabilities are rounded to T where they meet the values.

    Attributes:
        longest: most keys that a row sees through its table; the grid of a recorded pass has room for so many.
    """

    longest: int = 1 << 31
    _arrived: Tensor | None = None

    def attention(  # noqa: D102
        self,
        q: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        view: AttentionMetadata,
        scale: float,
        out: Tensor,
        window: int = 0,
        cap: float = 0.0,
        sinks: Tensor | None = None,
        chunk: int = 0,
    ) -> None:
        rows, heads, dim = q.shape
        if not rows or not heads:
            return
        kv_heads, block_size = key_cache.shape[1:3]
        columns = out.shape[1] // heads
        lanes, wide = (max(padded(each), _LEAST) for each in (dim, columns))
        group, widest = max(padded(heads // kv_heads), _LEAST), max(lanes, wide)
        longest = min(view.tables.shape[1] * block_size, self.longest) + min(view.extra_slots.numel(), _EXTRA)
        chunks = triton.cdiv(longest, _CHUNK)
        alone = rows * heads * chunks * columns > _ROOM
        none = torch.empty(0, dtype=torch.float32, device=q.device)
        best, mass, mixed, counters = none, none, none, none
        if not alone:
            best, mass = torch.empty((2, rows * heads * chunks), dtype=torch.float32, device=q.device)
            mixed = torch.empty(rows * heads * chunks * columns, dtype=torch.float32, device=q.device)
            counters = self._zeros(rows * kv_heads, q.device)
        sees = view.first, view.last, view.extra_offsets
        _attend[(rows, kv_heads, 1 if alone else chunks)](
            *(q, key_cache, value_cache, view.tables, view.row_request, *sees, view.extra_slots),
            *(none if sinks is None else sinks, out, best, mass, mixed, counters, view.tables.shape[1], chunks),
            *(float(scale), window, chunk, float(cap), dim, columns, kv_heads, block_size, heads, lanes, wide, group),
            *(sinks is not None, alone, _CHUNK, _TILE * min(_NARROW, widest) // widest),
            num_warps=4,
            num_stages=2 if widest <= 2 * _NARROW else 1,
            **EXACT,
        )

    def _zeros(self, count: int, device: torch.device) -> Tensor:
        """Return counters of programs that have arrived; each is 0 again behind the call."""
        if self._arrived is None:
            self._arrived = torch.zeros(_COUNTED, dtype=torch.int32, device=device)
        return self._arrived if count <= _COUNTED else torch.zeros(count, dtype=torch.int32, device=device)
