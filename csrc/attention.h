// Attention of each (row, head) over its own keys, in one order that only the keys' logical indices decide.
//
// Keys are taken in blocks of 64, cut at absolute multiples of 64, and softmax runs over them online: a block's
// scores are exponentiated against the greatest score so far, its values are summed apart, and the running totals
// are scaled to the new maximum before the block is added (Milakov and Gimelshein 2018, arXiv 1805.02867). Within a
// block a score sums its products by dimension (bf16: in pairs), lane i of the weights' sum takes the keys
// i, i + 16, i + 32, i + 48, and values are added key by key. A key is where its logical index says, wherever it
// lies in memory, so one reached through the block table and one reached through a draft's slots give the same bits.
//
// What is shared changes no bits: a task is a few adjacent rows of one request against one kv head, which reads each
// block of keys once for all rows and heads that see the same part of it. Keys are packed like a panel of linear's
// weights, one key a lane. A cache in bytes is read block by block into rows of T, which take the place of the cache.
#pragma once

#include "attention_block.h"
#include "attention_tiles.h"
#include "cache_rows.h"
#include "table.h"

namespace parlay {
namespace {

// How many queries, tiles of sixteen keys and vectors of columns share one pass; registers decide.
#if defined(PARLAY_AVX512)
constexpr int kQueries = 4, kTiles = 4, kColumns = 4;
#elif defined(PARLAY_AVX2) || defined(PARLAY_NEON)
constexpr int kQueries = 6, kTiles = 1, kColumns = 1;
#else
constexpr int kQueries = 2, kTiles = 1, kColumns = 1;
#endif

// From more queries than this on it pays to widen a block's values once.
constexpr int64_t kWorthWidening = 8;

// Accumulators stay in registers only where their loops are gone early.
#define PARLAY_UNROLL _Pragma("GCC unroll 6")

template <class T>
PARLAY_INLINE void widen(const KeyBlock<T>& b, int64_t begin, int64_t end, int64_t columns, int64_t padded) {
  for (int64_t k = begin; k < end; ++k)
    PARLAY_ROW(column, n, columns) store(b.wide + k * padded + column, load_at(b.values + b.value_at[k], column, n));
}

// Value k of the block.
template <class V, class T>
PARLAY_INLINE const V* value_of(const KeyBlock<T>& b, int64_t k, int64_t padded) {
  if constexpr (sizeof(V) == sizeof(T))
    return b.values + b.value_at[k];
  else
    return b.wide + k * padded;
}

// Scores of R queries against N tiles.
template <class T, int R, int N>
PARLAY_INLINE void score(const Queries<T>& s, int64_t query, const KeyBlock<T>& b, int64_t tile,
                         float (*scores)[kKeys]) {
  typedef Step<T> S;
  const typename S::X* q = s.q + query * s.stride;
  const T* packed = b.packed + tile * kLanes * s.padded;
  Vec dots[R][N] = {};
  for (int64_t d = 0; d < s.dim; d += S::width) {
    PARLAY_UNROLL for (int part = 0; part < S::parts; ++part) {
      typename S::Weight keys[N];
      PARLAY_UNROLL for (int n = 0; n < N; ++n) keys[n] = S::weight(packed + (n * s.padded + d) * kLanes, part);
      PARLAY_UNROLL for (int r = 0; r < R; ++r) {
        const typename S::Input in = S::input(q + r * s.stride + d, part);
        PARLAY_UNROLL for (int n = 0; n < N; ++n) dots[r][n] = S::add(dots[r][n], in, keys[n]);
      }
    }
  }
  PARLAY_UNROLL for (int r = 0; r < R; ++r)
    PARLAY_UNROLL for (int n = 0; n < N; ++n) store(scores[r] + (tile + n) * kLanes, dots[r][n] * splat(s.scale));
}

// Scales the totals of R queries in C vectors of columns, and adds the weighted values of the keys begin..end, which
// are in T or widened to V = float. Meanwhile it may fetch the next block: long contexts come from memory, and their
// blocks lie anywhere.
template <class V, int R, int C, bool half, class T>
PARLAY_INLINE void add_columns(const KeyBlock<T>& b, bool fetch, int64_t column, const float (*weights)[kKeys],
                               const float* factors, int64_t begin, int64_t end, float* totals, int64_t stride) {
  Vec sums_of[R][C] = {};
  for (int64_t k = begin; k < end; ++k) {
    if (fetch)
      for (int64_t i = 0; i < C * kLanes; i += 64 / (int64_t)sizeof(T)) {
        __builtin_prefetch(b.keys + b.ahead[k] + column + i, 0, 2);
        __builtin_prefetch(b.values + b.value_ahead[k] + column + i, 0, 2);
      }
    const V* value = value_of<V>(b, k, stride) + column;
    PARLAY_UNROLL for (int c = 0; c < C; ++c) {
      const Vec v = half ? load_some(value, 8) : load(value + c * kLanes);
      PARLAY_UNROLL for (int r = 0; r < R; ++r) sums_of[r][c] = fma(splat(weights[r][k]), v, sums_of[r][c]);
    }
  }
  PARLAY_UNROLL for (int r = 0; r < R; ++r)
    PARLAY_UNROLL for (int c = 0; c < C; ++c) {
      float* total = totals + r * stride + column + c * kLanes;
      store(total, fma(load(total), splat(factors[r]), sums_of[r][c]));
    }
}

template <class V, int R, class T>
PARLAY_INLINE void add_values(const KeyBlock<T>& b, bool fetch, const float (*weights)[kKeys], const float* factors,
                              int64_t begin, int64_t end, float* totals, const Queries<T>& s) {
  const int64_t columns = s.columns, stride = s.padded_columns;
  int64_t column = 0;
  for (; column + kColumns * kLanes <= columns; column += kColumns * kLanes)
    add_columns<V, R, kColumns, false>(b, fetch, column, weights, factors, begin, end, totals, stride);
  for (; column + kLanes <= columns; column += kLanes)
    add_columns<V, R, 1, false>(b, fetch, column, weights, factors, begin, end, totals, stride);
  if (column < columns) add_columns<V, R, 1, true>(b, fetch, column, weights, factors, begin, end, totals, stride);
  if (fetch && columns < s.dim)  // what keys have beyond the columns of values
    for (int64_t k = begin; k < end; ++k)
      for (int64_t d = columns; d < s.dim; d += kLine / (int64_t)sizeof(T)) __builtin_prefetch(b.keys + b.ahead[k] + d, 0, 2);
}

// Lets R queries see the keys begin..end of a block.
template <class T, int R>
void see(const Queries<T>& s, int64_t query, const KeyBlock<T>& b, bool fetch, int64_t begin, int64_t end) {
  float weights[R][kKeys], factors[R];
  int64_t tile = begin / kLanes;
  const int64_t tiles = (end + kLanes - 1) / kLanes;
  for (; tile + kTiles <= tiles; tile += kTiles) score<T, R, kTiles>(s, query, b, tile, weights);
  for (; tile < tiles; ++tile) score<T, R, 1>(s, query, b, tile, weights);
  if (s.cap > 0)
    for (int r = 0; r < R; ++r) soften(weights[r], begin / kLanes * kLanes, tiles * kLanes, s.cap);
  for (int r = 0; r < R; ++r)
    factors[r] = weigh(weights[r], begin, end, s.most + query + r, s.lanes + (query + r) * kLanes);
  float* totals = s.totals + query * s.padded_columns;
  if (b.widened)
    add_values<float, R>(b, fetch, weights, factors, begin, end, totals, s);
  else
    add_values<T, R>(b, fetch, weights, factors, begin, end, totals, s);
}

template <class T, int R = kQueries>
PARLAY_INLINE void see_some(const Queries<T>& s, int64_t query, int64_t count, const KeyBlock<T>& b, bool fetch,
                            int64_t begin, int64_t end) {
  if (count == R)
    see<T, R>(s, query, b, fetch, begin, end);
  else if constexpr (R > 1)
    see_some<T, R - 1>(s, query, count, b, fetch, begin, end);
}

// Adjacent rows of one request against one kv head.
template <class T>
struct Task {
  const AttentionArgs& a;
  int64_t row, rows, group;
  KeyBlock<T> block;
  Queries<T> queries;
  int64_t at[kKeys], ahead[kKeys];
  int64_t narrow_at[kKeys], narrow_ahead[kKeys];  // of values that are not as wide as keys
  const uint8_t *key_bytes, *value_bytes;  // the cache at this kv head, where it is in bytes: `block` has rows of T
  int64_t kept_begin, kept_end;  // keys of the block, whole tiles of them, that are packed from the table
  bool fresh;                    // nothing of the block is

  int64_t last(int64_t r) const { return a.last[row + r]; }
  int64_t end(int64_t r) const { return last(r) + a.extra_offsets[row + r + 1] - a.extra_offsets[row + r]; }
  int64_t first(int64_t r) const {
    const int64_t first = a.first[row + r];
    const int64_t near = a.chunk ? (end(r) - 1) / a.chunk * a.chunk : end(r) - a.window;
    return first > near ? first : near;
  }

  // The part of the block at `start` that a row sees; empty where end_in <= begin_in.
  int64_t begin_in(int64_t r, int64_t start) const {
    return first(r) > start ? first(r) - start : 0;
  }
  int64_t end_in(int64_t r, int64_t start) const { return end(r) < start + kKeys ? end(r) - start : kKeys; }

  // Elements of a row of the cache, of so many numbers: numbers, or bytes.
  int64_t row_size(int64_t dim) const { return a.cache_in_bytes ? row_bytes(dim) : dim; }

  bool alike() const { return a.value_dim == a.head_dim; }
  int64_t* value_at() { return alike() ? at : narrow_at; }
  int64_t* value_ahead() { return alike() ? ahead : narrow_ahead; }

  // Finds the keys begin..end of the block at `start` where row r sees them, and their values.
  void locate(int64_t r, int64_t start, int64_t begin, int64_t end, int64_t* keys, int64_t* values) const {
    locate_rows(r, start, begin, end, row_size(a.head_dim), keys);
    if (!alike()) locate_rows(r, start, begin, end, row_size(a.value_dim), values);
  }

  // Finds rows of `size` elements.
  void locate_rows(int64_t r, int64_t start, int64_t begin, int64_t end, int64_t size, int64_t* to) const {
    const int64_t block_stride = a.stored * a.block_size * size;
    const int32_t* table = a.tables + a.row_request[row + r] * a.max_blocks;
    const int32_t* extra = a.extra_slots + a.extra_offsets[row + r];
    const int64_t through_table = last(r) - start < end ? last(r) - start : end;
    int64_t k = begin;
    while (k < through_table) {
      const int64_t id = (start + k) / a.block_size, offset = start + k - id * a.block_size;
      const int64_t stop = k - offset + a.block_size < through_table ? k - offset + a.block_size : through_table;
      for (int64_t from = table[id] * block_stride + offset * size; k < stop; ++k, from += size)
        to[k] = from;
    }
    for (; k < end; ++k) {
      const int64_t slot = extra[start + k - last(r)];
      to[k] = slot / a.block_size * block_stride + slot % a.block_size * size;
    }
  }

  // Reads the keys begin..end of a cache in bytes, but for kept_begin..kept, and asks for those of the next block.
  void read_bytes(int64_t begin, int64_t end, int64_t kept) {
    const int64_t dim = a.head_dim, columns = a.value_dim;
    for (int64_t k = begin; k < end; at[k] = k * dim, value_at()[k] = k * columns, ++k) {
      if (k >= kept_begin && k < kept) continue;
      if (fresh) {
        for (int64_t byte = 0; byte < row_bytes(dim); byte += kLine) __builtin_prefetch(key_bytes + ahead[k] + byte, 0, 2);
        for (int64_t byte = 0; byte < row_bytes(columns); byte += kLine)
          __builtin_prefetch(value_bytes + value_ahead()[k] + byte, 0, 2);
      }
      read_row(key_bytes + at[k], dim, (T*)block.keys + k * dim);
      read_row(value_bytes + value_at()[k], columns, (T*)block.values + k * columns);
    }
  }

  bool few() const { return rows * group <= kFew<T>; }

  // Notes where the tile that begins at key k lies, of which keys known..until are seen; copies it if it does not lie
  // in one piece. What lies where no key is seen is no matter.
  void lay_tile(int64_t k, int64_t start, int64_t known, int64_t until, int64_t through_table) {
    const int64_t dim = a.head_dim, padded = queries.padded, tile = k / kLanes;
    if (dim == padded && until <= through_table && (start + k) % a.block_size + kLanes <= a.block_size) {
      block.rows[tile] = block.keys + at[known] - (known - k) * dim;
      block.apart[tile] = dim;
      return;
    }
    T* to = block.packed + tile * kLanes * padded;
    block.rows[tile] = to;
    block.apart[tile] = padded;
    for (int64_t i = 0; i < kLanes; ++i, to += padded) {
      memcpy((void*)to, block.keys + at[k + i], dim * sizeof(T));
      memset((void*)(to + dim), 0, (padded - dim) * sizeof(T));
    }
  }

  // As locate, and packs the keys and widens the values, for `count` rows.
  void pack(int64_t r, int64_t count, int64_t start, int64_t begin, int64_t end) {
    locate(r, start, begin, end, at, narrow_at);
    // Rows that end in slots of their own share the tiles before these: the table is the same for all of them.
    const int64_t through_table = last(r) - start < end ? last(r) - start : end;
    const int64_t kept = through_table < kept_end ? through_table : kept_end;
    if (a.cache_in_bytes) read_bytes(begin, end, kept);
    // The rest of a tile repeats a key that is there; nobody looks at its scores.
    const int64_t tiles_begin = begin / kLanes * kLanes, tiles_end = (end + kLanes - 1) / kLanes * kLanes;
    for (int64_t k = tiles_begin; k < begin; ++k) at[k] = at[begin];
    for (int64_t k = end; k < tiles_end; ++k) at[k] = at[begin];
    for (int64_t k = tiles_begin; k < tiles_end; k += kLanes)
      if (k < kept_begin || k + kLanes > kept) {
        if (few())
          lay_tile(k, start, k > begin ? k : begin, k + kLanes < end ? k + kLanes : end, through_table);
        else
          pack_tile(block, k, a.head_dim, queries.padded);
      }
    if constexpr (kTiled<T>) {
      block.finite = pack_values(queries, block, fresh, begin, end, kept_begin, kept);
    } else {
      block.widened = sizeof(T) < 4 && count * group > kWorthWidening;
      if (block.widened) widen(block, begin, end, a.value_dim, queries.padded_columns);
    }
    kept_begin = (begin + kLanes - 1) / kLanes * kLanes;
    kept_end = block.finite ? through_table / kLanes * kLanes : 0;
    fresh = false;
  }

  // Lets the queries of `count` rows see what they do of the packed keys; vectors take rows that see the same.
  void see_keys(int64_t r, int64_t count, int64_t start) {
    constexpr int64_t most = kTiled<T> ? kLanes : kQueries;
    const int64_t n = count * group, pieces = (n + most - 1) / most;
    for (int64_t i = 0; i < pieces; ++i) {
      const int64_t from = n * i / pieces, to = n * (i + 1) / pieces;
      if constexpr (kTiled<T>) {
        const auto range = [&](int64_t query) {
          return Range{begin_in(query / group, start), end_in(query / group, start)};
        };
        if (few())
          see_few(queries, r * group + from, to - from, block, range);
        else
          see_tiles(queries, r * group + from, to - from, block, range);
      } else {
        see_some(queries, r * group + from, to - from, block, i == 0 && block.ahead, begin_in(r, start), end_in(r, start));
      }
    }
  }

  void see_block(int64_t start) {
    kept_begin = kept_end = 0, fresh = true;
    // First the rows that find all they see of the block in the table: they share its keys.
    const auto shares = [&](int64_t r) {
      return end_in(r, start) > begin_in(r, start) && last(r) >= start + end_in(r, start);
    };
    int64_t begin = kKeys, stop = 0, longest = 0, sharing = 0;
    for (int64_t r = 0; r < rows; ++r)
      if (shares(r)) {
        ++sharing;
        if (begin_in(r, start) < begin) begin = begin_in(r, start);
        if (end_in(r, start) > stop) stop = end_in(r, start), longest = r;
      }
    if (begin < stop) pack(longest, sharing, start, begin, stop);
    // Tiles multiply what a row does not see with zero, so where not all is finite it is packed for those who see it.
    const bool apart = kTiled<T> && !block.finite;
    for (int64_t r = 0, count = 1; r < rows; r += count, count = 1)
      if (shares(r)) {
        const int64_t from = begin_in(r, start), to = end_in(r, start);
        const auto joins = [&](int64_t next) {
          return (kTiled<T> && !apart) || (begin_in(next, start) == from && end_in(next, start) == to);
        };
        while (r + count < rows && shares(r + count) && joins(r + count)) ++count;
        if (apart) pack(r, count, start, from, to);
        see_keys(r, count, start);
      }
    // Then those that end in slots of their own.
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t from = begin_in(r, start), to = end_in(r, start);
      if (to <= from || shares(r)) continue;
      pack(r, 1, start, from, to);
      see_keys(r, 1, start);
    }
  }
};

// Scratch memory of a task: the packed keys, and for each of its n queries what Queries holds.
template <class T>
struct Memory {
  char *packed, *wide, *q, *totals, *lanes, *most, *keys, *values;
  Memory(int64_t n, int64_t padded, int64_t stride, int64_t columns, int64_t read_dim, int64_t read_columns) {
    const int64_t packed_bytes = kKeys * padded * sizeof(T), q_bytes = (n * stride * sizeof(typename Step<T>::X) + 63) / 64 * 64;
    const int64_t query_bytes = (n * (columns + kLanes + 1) * 4 + 63) / 64 * 64, read = kKeys * read_dim * sizeof(T);
    packed = (char*)scratch(packed_bytes + kKeys * columns * 4 + q_bytes + query_bytes + read + kKeys * read_columns * sizeof(T));
    wide = packed + packed_bytes;
    q = wide + kKeys * columns * 4;
    totals = q + q_bytes;
    lanes = totals + n * columns * 4;
    most = lanes + n * kLanes * 4;
    keys = totals + query_bytes;
    values = keys + read;
  }
};

template <class T>
void attend(const AttentionArgs& a, int64_t row, int64_t rows, int64_t kv_head, int64_t kv_heads) {
  const int64_t dim = a.head_dim, columns = a.value_dim, group = a.heads / a.kv_heads, n = rows * group * kv_heads;
  // Whole squares of pack_tile, whole vectors of columns.
  const int64_t padded = (dim + 31) / 32 * 32, padded_columns = (columns + 31) / 32 * 32;
  const int64_t stride = kTiled<T> ? padded : dim;
  const bool few = rows * group <= kFew<T>;
  // A tile may reach beyond the last query.
  const Memory<T> memory(few ? kFew<T> * kv_heads : kTiled<T> ? n + kLanes : n, padded, stride, padded_columns,
                         a.cache_in_bytes ? dim : 0, a.cache_in_bytes ? columns : 0);
  typedef typename Step<T>::X X;
  X* q = (X*)memory.q;
  float *totals = (float*)memory.totals, *lanes = (float*)memory.lanes, *most = (float*)memory.most;
  memset((void*)totals, 0, n * padded_columns * 4);
  memset((void*)lanes, 0, n * kLanes * 4);
  for (int64_t i = 0; i < n; ++i) {
    most[i] = -__builtin_inff();
    if (a.sinks) {  // a key without a value, seen first
      most[i] = a.sinks[(kv_head + i / (rows * group)) * group + i % group];
      lanes[i * kLanes] = 1;
    }
  }
  // A head's queries lie together, those of a row beside each other.
  const int64_t head_size = few ? kFew<T> * padded : rows * group * stride;
  const auto place = [&](int64_t h, int64_t r) { return (row + r) * a.heads + (kv_head + h) * group; };
  if (few) memset((void*)q, 0, kv_heads * head_size * sizeof(X));
  for (int64_t h = 0; h < kv_heads; ++h)
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t g = 0; g < group; ++g) {
        const T* from = (const T*)a.q + (place(h, r) + g) * dim;
        X* to = q + h * head_size;
        if (few) {
          if constexpr (kTiled<T>) lay_query(from, r * group + g, dim, to);
          continue;
        }
        to += (r * group + g) * stride;
        copy_row(to, from, dim);
        memset((void*)(to + dim), 0, (stride - dim) * sizeof(X));
      }

  const Multiplier<T> multiplier(rows * group < kLanes ? rows * group : kLanes);
  Task<T> task{a, row, rows, group, {}, {}, {}, {}, {}, {}, nullptr, nullptr, 0, 0, true};
  int64_t start = task.first(0), stop = task.end(0), longest = 0;
  for (int64_t r = 1; r < rows; ++r) {
    if (task.first(r) < start) start = task.first(r);
    if (task.end(r) > stop) stop = task.end(r);
    if (a.last[row + r] > a.last[row + longest]) longest = r;
  }
  for (start = start / kKeys * kKeys; start < stop; start += kKeys) {
    const int64_t left = task.last(longest) - start - kKeys;
    task.locate(longest, start + kKeys, 0, left < kKeys ? left : kKeys, task.ahead, task.narrow_ahead);
    for (int64_t h = 0, i = 0; h < kv_heads; ++h, i += rows * group) {
      const int64_t first_row = (kv_head + h) * a.stored / a.kv_heads * a.block_size;
      const int64_t first_key = first_row * task.row_size(dim), first_value = first_row * task.row_size(columns);
      const T *keys = (const T*)memory.keys, *values = (const T*)memory.values;
      if (a.cache_in_bytes)
        task.key_bytes = (const uint8_t*)a.key_cache + first_key, task.value_bytes = (const uint8_t*)a.value_cache + first_value;
      else
        keys = (const T*)a.key_cache + first_key, values = (const T*)a.value_cache + first_value;
      task.block = {keys, values, task.at, a.cache_in_bytes ? nullptr : task.ahead, task.value_at(), task.value_ahead(),
                    (T*)memory.packed, (float*)memory.wide, false, (T*)memory.wide, true, {}, {}};
      task.queries = {q + h * head_size, most + i, lanes + i * kLanes, totals + i * padded_columns, dim, padded, stride,
                      columns, padded_columns, a.scale, a.cap};
      task.see_block(start);
    }
  }

  for (int64_t h = 0, i = 0; h < kv_heads; ++h)
    for (int64_t r = 0; r < rows; ++r) {
      T* out = (T*)a.out + place(h, r) * columns;
      for (int64_t g = 0; g < group; ++g, ++i, out += columns) {
        // A row that saw nothing has totals of zero.
        const Vec weight = splat(task.end(r) > task.first(r) ? sum(load(lanes + i * kLanes)) : 1.f);
        PARLAY_ROW(column, width, columns) store_at(out, load(totals + i * padded_columns + column) / weight, column, width);
      }
    }
}

void attention(const AttentionArgs& a, int64_t row, int64_t rows, int64_t kv_head, int64_t kv_heads) {
  a.bf16 ? attend<bf16>(a, row, rows, kv_head, kv_heads) : attend<float>(a, row, rows, kv_head, kv_heads);
}

}  // namespace
}  // namespace parlay
