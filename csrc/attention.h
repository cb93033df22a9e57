// Attention of each (row, head) over its own keys, in one order that only the keys' logical indices decide.
//
// Keys are taken in tiles of sixteen, cut at absolute multiples of sixteen. Lane i of a tile is the key with
// logical index 16 t + i, wherever it lies in memory, so a key reached through the block table and one reached
// through a draft's slots give the same bits. Scores of all keys are kept, then exponentiated once against the
// row's maximum; even and odd keys add their values in two chains that are joined at the end.
#pragma once

#include "elementary.h"
#include "table.h"

namespace parlay {
namespace {

// How many heads and vectors of columns share one pass; registers decide, bits do not depend on it.
#if defined(PARLAY_AVX512)
constexpr int kHeads = 2, kColumns = 4;
#else
constexpr int kHeads = 1, kColumns = 2;
#endif

template <class T>
PARLAY_INLINE Vec load_half(const T* from) {
  return load_some(from, 8);
}
template <>
PARLAY_INLINE Vec load_half(const float* from) {
  float lanes[kLanes] = {};
  memcpy(lanes, from, 32);
  return load(lanes);
}

// Scores of one tile of keys for H heads; q is fp32 and padded to whole vectors with zeros.
template <class T, int H>
PARLAY_INLINE void score_tile(const T* keys, const int64_t* at, const float* q, int64_t q_stride, int64_t dim,
                              float scale, float* scores, int64_t stride) {
  const int64_t whole = dim / kLanes;
  Vec dots[H][kLanes];
  for (int i = 0; i < kLanes; ++i) {
    const T* key = keys + at[i];
    Vec dot[H] = {};
    for (int64_t c = 0; c < whole; ++c) {
      const Vec k = load(key + c * kLanes);
      for (int h = 0; h < H; ++h) dot[h] = fma(k, load(q + h * q_stride + c * kLanes), dot[h]);
    }
    if (dim % kLanes) {
      const Vec k = load_half(key + whole * kLanes);
      for (int h = 0; h < H; ++h) dot[h] = fma(k, load(q + h * q_stride + whole * kLanes), dot[h]);
    }
    for (int h = 0; h < H; ++h) dots[h][i] = dot[h];
  }
  for (int h = 0; h < H; ++h) store(scores + h * stride, sums(dots[h]) * splat(scale));
}

// Scores to weights exp(score - maximum) in place; returns their sum.
PARLAY_INLINE float exponentiate(float* scores, int64_t padded) {
  Vec most = load(scores);
  for (int64_t j = kLanes; j < padded; j += kLanes) most = larger(load(scores + j), most);
  const Vec maximum_score = splat(maximum(most));
  Vec total = splat(0.f);
  for (int64_t j = 0; j < padded; j += kLanes) {
    const Vec weight = exp(load(scores + j) - maximum_score);
    store(scores + j, weight);
    total = total + weight;
  }
  return sum(total);
}

// Weighted sum of C vectors of columns of the values begin..end for H heads, joined into `out`.
template <class T, int H, int C, bool half>
PARLAY_INLINE void add_values(const T* values, const int64_t* at, const float* weights, int64_t stride,
                              int64_t begin, int64_t end, Vec out[H][C]) {
  Vec chain[2][H][C] = {};
  const auto add = [&](int64_t j, int odd) __attribute__((always_inline)) {
    const T* value = values + at[j];
    for (int c = 0; c < C; ++c) {
      const Vec v = half ? load_half(value) : load(value + c * kLanes);
      for (int h = 0; h < H; ++h) chain[odd][h][c] = fma(splat(weights[h * stride + j]), v, chain[odd][h][c]);
    }
  };
  if (begin & 1) add(begin++, 1);
  for (; begin + 1 < end; begin += 2) {
    add(begin, 0);
    add(begin + 1, 1);
  }
  if (begin < end) add(begin, 0);
  for (int h = 0; h < H; ++h)
    for (int c = 0; c < C; ++c) out[h][c] = chain[0][h][c] + chain[1][h][c];
}

// One row of one kv head, as the caller of attend() sees it.
template <class T>
struct Row {
  const T* keys;       // cache, at this kv head
  const T* values;     //
  const int64_t* at;   // element offsets by index - base, padded to whole tiles
  int64_t begin, end;  // visible keys by index - base
  float* scores;       // [kHeads, padded]
  int64_t padded, dim;
  float scale;
};

template <class T, int H, int C, bool half>
PARLAY_INLINE void write_columns(const Row<T>& r, int64_t column, const float* totals, T* out) {
  Vec sums_of[H][C];
  add_values<T, H, C, half>(r.values + column, r.at, r.scores, r.padded, r.begin, r.end, sums_of);
  for (int h = 0; h < H; ++h)
    for (int c = 0; c < C; ++c) {
      const Vec mean = sums_of[h][c] / splat(totals[h]);
      T* to = out + h * r.dim + column + c * kLanes;
      half ? store_some(to, mean, 8) : store(to, mean);
    }
}

template <class T, int H>
void attend(const Row<T>& r, const float* q, int64_t q_stride, T* out) {
  for (int64_t j = 0; j < r.padded; j += kLanes)
    score_tile<T, H>(r.keys, r.at + j, q, q_stride, r.dim, r.scale, r.scores + j, r.padded);
  float totals[H];
  for (int h = 0; h < H; ++h) {
    float* scores = r.scores + h * r.padded;
    for (int64_t j = 0; j < r.begin; ++j) scores[j] = -__builtin_inff();
    for (int64_t j = r.end; j < r.padded; ++j) scores[j] = -__builtin_inff();
    totals[h] = exponentiate(scores, r.padded);
  }
  int64_t column = 0;
  for (; column + kColumns * kLanes <= r.dim; column += kColumns * kLanes)
    write_columns<T, H, kColumns, false>(r, column, totals, out);
  for (; column + kLanes <= r.dim; column += kLanes) write_columns<T, H, 1, false>(r, column, totals, out);
  if (column < r.dim) write_columns<T, H, 1, true>(r, column, totals, out);
}

// Element offsets (of kv head 0) of the keys a row sees, from the tile border at or before its first key.
inline void locate(const AttentionArgs& a, int64_t row, int64_t base, int64_t padded, int64_t* at) {
  const int64_t block_stride = a.kv_heads * a.block_size * a.head_dim;
  const int32_t* table = a.tables + a.row_request[row] * a.max_blocks;
  int64_t n = 0;
  for (int64_t key = base; key < a.last[row];) {
    const int64_t offset = key % a.block_size;
    int64_t stop = key - offset + a.block_size;
    if (stop > a.last[row]) stop = a.last[row];
    int64_t from = table[key / a.block_size] * block_stride + offset * a.head_dim;
    for (; key < stop; ++key, from += a.head_dim) at[n++] = from;
  }
  // Where first == last, keys from the tile border on may lie before `last`; extras continue at `last`.
  for (int32_t e = a.extra_offsets[row]; e < a.extra_offsets[row + 1]; ++e)
    at[n++] = a.extra_slots[e] / a.block_size * block_stride + a.extra_slots[e] % a.block_size * a.head_dim;
  for (; n < padded; ++n) at[n] = at[n - 1];  // padding reads a real key; its score is replaced
}

template <class T>
void attention_tasks(const AttentionArgs& a, int64_t begin, int64_t tasks, int64_t stride) {
  const int64_t dim = a.head_dim, group = a.heads / a.kv_heads;
  const int64_t q_stride = (dim + kLanes - 1) / kLanes * kLanes;
  int64_t located = -1;
  int64_t* at = nullptr;
  float *scores = nullptr, *q = nullptr;
  Row<T> r{};
  for (int64_t task = begin; task < tasks; task += stride) {
    const int64_t row = task / a.kv_heads, kv_head = task % a.kv_heads;
    T* out = (T*)a.out + (row * a.heads + kv_head * group) * dim;
    const int64_t base = a.first[row] / kLanes * kLanes;
    const int64_t end = a.last[row] + a.extra_offsets[row + 1] - a.extra_offsets[row] - base;
    const int64_t seen = end - (a.first[row] - base);
    if (seen <= 0) {
      memset((void*)out, 0, group * dim * sizeof(T));
      continue;
    }
    if (row != located) {
      r.padded = (end + kLanes - 1) / kLanes * kLanes;
      char* memory = (char*)scratch(r.padded * (8 + kHeads * 4) + kHeads * q_stride * 4);
      scores = (float*)memory;
      q = scores + kHeads * r.padded;
      at = (int64_t*)(q + kHeads * q_stride);
      locate(a, row, base, r.padded, at);
      located = row;
    }
    const int64_t head_start = kv_head * a.block_size * dim;
    r.keys = (const T*)a.key_cache + head_start;
    r.values = (const T*)a.value_cache + head_start;
    r.at = at;
    r.begin = a.first[row] - base;
    r.end = end;
    r.scores = scores;
    r.dim = dim;
    r.scale = a.scale;
    const T* rows_q = (const T*)a.q + (row * a.heads + kv_head * group) * dim;
    for (int64_t h = 0; h < group; h += kHeads) {
      const int64_t count = group - h < kHeads ? group - h : kHeads;
      for (int64_t i = 0; i < count; ++i)
        PARLAY_ROW(first, n, dim) store(q + i * q_stride + first, load_at(rows_q + (h + i) * dim, first, n));
      if (count == kHeads)
        attend<T, kHeads>(r, q, q_stride, out + h * dim);
      else
        attend<T, 1>(r, q, q_stride, out + h * dim);
    }
  }
}

void attention(const AttentionArgs& a, int64_t begin, int64_t tasks, int64_t stride) {
  a.bf16 ? attention_tasks<bf16>(a, begin, tasks, stride) : attention_tasks<float>(a, begin, tasks, stride);
}

}  // namespace
}  // namespace parlay
