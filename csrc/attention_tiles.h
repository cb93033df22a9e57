// Attention in bfloat16 on processors that multiply tiles (AMX): 16 queries see a block of keys at once.
//
// A score is a sum as linear's: it starts at zero and takes 32 dimensions after another. A weight is taken as the sum
// of two bfloat16, which misses it by less than 2^-16 of itself; values are summed 32 keys after another, first with
// the greater parts of their weights. What a query does not see has a weight of zero, which changes no sum as long as
// the value beside it is finite. Four queries or fewer, such as those of one row, are multiplied from the right.
#pragma once

#include <initializer_list>

#include "attention_block.h"
#include "tiles.h"

namespace parlay {
namespace {

template <class T>
constexpr bool kTiled = false;

// So many queries are multiplied from the right, with keys as they lie; none by vectors.
template <class T>
constexpr int64_t kFew = 0;

// What a thread sets up before it lets queries see keys: nothing where vectors multiply.
template <class T>
struct Multiplier {
  explicit Multiplier(int64_t) {}
};

#if defined(PARLAY_TILES)

template <>
constexpr bool kTiled<bf16> = true;

template <>
constexpr int64_t kFew<bf16> = 4;
constexpr int64_t kFour = kFew<bf16>;

template <>
struct Multiplier<bf16> : Tiles {
  explicit Multiplier(int64_t queries) : Tiles(shapes(queries)) {}
  static TileShapes shapes(int64_t queries) {
    TileShapes found(queries < kTileRows ? queries : kTileRows);
    if (queries <= kFour)
      for (int tile : {PARLAY_SUM10, PARLAY_SUM11}) found.set(tile, kTileRows, kFour * sizeof(float));
    return found;
  }
};

constexpr int64_t kTile = kTileRows * kLanes * 2;  // elements of a tile of pairs

// Asks for a key of the next block and its value: long contexts come from memory, and their blocks lie anywhere.
PARLAY_INLINE void fetch_next(const Queries<bf16>& s, const KeyBlock<bf16>& b, int64_t k) {
  constexpr int64_t apart = kLine / (int64_t)sizeof(bf16);
  for (int64_t d = 0; d < s.dim; d += apart) __builtin_prefetch(b.keys + b.ahead[k] + d, 0, 2);
  for (int64_t d = 0; d < s.columns; d += apart) __builtin_prefetch(b.values + b.value_ahead[k] + d, 0, 2);
}

// Packs the values of the keys begin..end in pairs, but for those of the keys kept_begin..kept_end, which are packed;
// what fills up the halves of the block that these lie in is zero. Returns whether all that it packed is finite.
inline bool pack_values(const Queries<bf16>& s, const KeyBlock<bf16>& b, bool fetch, int64_t begin, int64_t end,
                        int64_t kept_begin, int64_t kept_end) {
  const int64_t columns = s.columns, padded = s.padded_columns;
  // Words of two rows by turns: the first sixteen of both, and the others.
  const __m512i each = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i low = _mm512_or_si512(each, _mm512_slli_epi32(_mm512_add_epi32(each, _mm512_set1_epi32(32)), 16));
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  __m512i greatest = _mm512_setzero_si512();  // of the numbers without their signs
  for (int64_t k = begin / kTileInputs * kTileInputs; k < (end + kTileInputs - 1) / kTileInputs * kTileInputs; k += 2) {
    if (k >= kept_begin && k + 2 <= kept_end) continue;
    if (fetch && b.ahead) {
      fetch_next(s, b, k);
      fetch_next(s, b, k + 1);
    }
    const bool first = k >= begin && k < end, second = k + 1 >= begin && k + 1 < end;
    bf16* to = b.pairs + k / kTileInputs * (padded / kLanes) * kTile + k % kTileInputs * kLanes;
    for (int64_t d = 0; d < padded; d += 2 * kLanes, to += 2 * kTile) {
      const int64_t left = columns - d < 2 * kLanes ? columns - d : 2 * kLanes;
      const __mmask32 there = left < 2 * kLanes ? ((__mmask32)1 << left) - 1 : ~(__mmask32)0;
      const __m512i even = _mm512_maskz_loadu_epi16(first ? there : 0, b.values + (first ? b.value_at[k] + d : 0));
      const __m512i odd = _mm512_maskz_loadu_epi16(second ? there : 0, b.values + (second ? b.value_at[k + 1] + d : 0));
      const __m512i larger_of = _mm512_max_epu16(_mm512_add_epi16(even, even), _mm512_add_epi16(odd, odd));
      greatest = _mm512_max_epu16(greatest, larger_of);
      _mm512_storeu_si512(to, _mm512_permutex2var_epi16(even, low, odd));
      _mm512_storeu_si512(to + kTile, _mm512_permutex2var_epi16(even, high, odd));
    }
  }
  return !_mm512_cmpge_epu16_mask(greatest, _mm512_set1_epi16((int16_t)0xff00));
}

// Scores of a tile of queries against N tiles of keys.
template <int N>
PARLAY_INLINE void score_tiles(const bf16* q, int64_t stride, const bf16* keys, int64_t padded, float* scores) {
  constexpr int64_t row = kKeys * sizeof(float);
  PARLAY_TILE_MEMORY(q);
  PARLAY_TILE_MEMORY(keys);
  _tile_zero(PARLAY_SUM00);
  if constexpr (N > 1) _tile_zero(PARLAY_SUM01);
  if constexpr (N > 2) _tile_zero(PARLAY_SUM10);
  if constexpr (N > 3) _tile_zero(PARLAY_SUM11);
  const int64_t apart = kLanes * padded;  // two tiles of keys
  for (int64_t d = 0; d < padded; d += kTileInputs, keys += kTile) {
    _tile_loadd(PARLAY_X0, q + d, stride * sizeof(bf16));
    _tile_loadd(PARLAY_W0, keys, kLine);
    _tile_dpbf16ps(PARLAY_SUM00, PARLAY_X0, PARLAY_W0);
    if constexpr (N > 1) {
      _tile_loadd(PARLAY_W1, keys + apart, kLine);
      _tile_dpbf16ps(PARLAY_SUM01, PARLAY_X0, PARLAY_W1);
    }
    if constexpr (N > 2) {
      _tile_loadd(PARLAY_W0, keys + 2 * apart, kLine);
      _tile_dpbf16ps(PARLAY_SUM10, PARLAY_X0, PARLAY_W0);
    }
    if constexpr (N > 3) {
      _tile_loadd(PARLAY_W1, keys + 3 * apart, kLine);
      _tile_dpbf16ps(PARLAY_SUM11, PARLAY_X0, PARLAY_W1);
    }
  }
  _tile_stored(PARLAY_SUM00, scores, row);
  if constexpr (N > 1) _tile_stored(PARLAY_SUM01, scores + kLanes, row);
  if constexpr (N > 2) _tile_stored(PARLAY_SUM10, scores + 2 * kLanes, row);
  if constexpr (N > 3) _tile_stored(PARLAY_SUM11, scores + 3 * kLanes, row);
  PARLAY_TILE_MEMORY(scores);
}

// Weighted sums of N tiles of columns, of the halves begin..end of a block, `apart` elements from each other.
template <int N>
PARLAY_INLINE void sum_tiles(const bf16 (*weights)[kTileRows][kKeys], const bf16* pairs, int64_t apart, int64_t begin,
                             int64_t end, float* sums) {
  constexpr int64_t row = kKeys * sizeof(bf16);
  PARLAY_TILE_MEMORY(weights);
  PARLAY_TILE_MEMORY(pairs);
  _tile_zero(PARLAY_SUM00);
  _tile_zero(PARLAY_SUM01);
  if constexpr (N > 2) {
    _tile_zero(PARLAY_SUM10);
    _tile_zero(PARLAY_SUM11);
  }
  for (int64_t half = begin; half < end; ++half) {
    const bf16* at = pairs + half * apart;
    _tile_loadd(PARLAY_X0, &weights[0][0][half * kTileInputs], row);
    _tile_loadd(PARLAY_X1, &weights[1][0][half * kTileInputs], row);
    _tile_loadd(PARLAY_W0, at, kLine);
    _tile_dpbf16ps(PARLAY_SUM00, PARLAY_X0, PARLAY_W0);
    _tile_dpbf16ps(PARLAY_SUM00, PARLAY_X1, PARLAY_W0);
    _tile_loadd(PARLAY_W1, at + kTile, kLine);
    _tile_dpbf16ps(PARLAY_SUM01, PARLAY_X0, PARLAY_W1);
    _tile_dpbf16ps(PARLAY_SUM01, PARLAY_X1, PARLAY_W1);
    if constexpr (N > 2) {
      _tile_loadd(PARLAY_W0, at + 2 * kTile, kLine);
      _tile_dpbf16ps(PARLAY_SUM10, PARLAY_X0, PARLAY_W0);
      _tile_dpbf16ps(PARLAY_SUM10, PARLAY_X1, PARLAY_W0);
      _tile_loadd(PARLAY_W1, at + 3 * kTile, kLine);
      _tile_dpbf16ps(PARLAY_SUM11, PARLAY_X0, PARLAY_W1);
      _tile_dpbf16ps(PARLAY_SUM11, PARLAY_X1, PARLAY_W1);
    }
  }
  constexpr int64_t to = 4 * kLanes * sizeof(float);
  _tile_stored(PARLAY_SUM00, sums, to);
  _tile_stored(PARLAY_SUM01, sums + kLanes, to);
  if constexpr (N > 2) {
    _tile_stored(PARLAY_SUM10, sums + 2 * kLanes, to);
    _tile_stored(PARLAY_SUM11, sums + 3 * kLanes, to);
  }
  PARLAY_TILE_MEMORY(sums);
}

// Weights of 16 keys in two parts, the second what the first has rounded away.
PARLAY_INLINE void split(const __m512& weight, bf16* most, bf16* rest) {
  const __m256bh first = _mm512_cvtneps_pbh(weight);
  const __m512i back = _mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)first), 16);
  _mm256_store_si256((__m256i*)most, (__m256i)first);
  _mm256_store_si256((__m256i*)rest, (__m256i)_mm512_cvtneps_pbh(_mm512_sub_ps(weight, _mm512_castsi512_ps(back))));
}

// As weigh, of a query that sees the whole block: its weights in two parts, from scores that are not scaled yet.
PARLAY_INLINE float weigh_block(const float* scores, float scale, bf16* greater, bf16* rest, float* most,
                                float* lanes) {
  constexpr int tiles = kKeys / kLanes;
  Vec own[tiles];
  _Pragma("GCC unroll 4") for (int t = 0; t < tiles; ++t) own[t] = load(scores + t * kLanes) * splat(scale);
  Vec greatest = own[0];
  _Pragma("GCC unroll 4") for (int t = 1; t < tiles; ++t) greatest = larger(own[t], greatest);
  const float factor = rise(maximum(greatest), most);
  const Vec subtrahend = splat(*most);
  Vec sum = splat(0.f);
  _Pragma("GCC unroll 4") for (int t = 0; t < tiles; ++t) {
    const Vec weight = exp(own[t] - subtrahend);
    split((__m512)weight.p[0], greater + t * kLanes, rest + t * kLanes);
    sum = sum + weight;
  }
  store(lanes, fma(load(lanes), splat(factor), sum));
  return factor;
}

// The part of a block that some queries see, by what `range` says of each.
template <class Of>
PARLAY_INLINE Range hull(int64_t query, int64_t count, Of range) {
  Range all = {kKeys, 0};
  for (int64_t r = 0; r < count; ++r) {
    const Range own = range(query + r);
    all.begin = own.begin < all.begin ? own.begin : all.begin, all.end = own.end > all.end ? own.end : all.end;
  }
  return all;
}

// Makes weights of scores that are not scaled yet, zero where a query does not see a key, and adds the values of all
// keys to the totals. N is how many tiles of columns are summed at once.
template <int N, class Of>
PARLAY_INLINE void gather(const Queries<bf16>& s, int64_t query, int64_t count, const KeyBlock<bf16>& b, Range all,
                          Of range, float (*scores)[kKeys]) {
  alignas(64) float sums[kTileRows][4 * kLanes];
  alignas(64) bf16 weights[2][kTileRows][kKeys];
  float factors[kTileRows];
  const int64_t half = all.begin / kTileInputs, halves = (all.end + kTileInputs - 1) / kTileInputs;
  for (int64_t r = 0; r < count; ++r) {
    const Range own = range(query + r);
    float *top = s.most + query + r, *lanes = s.lanes + (query + r) * kLanes;
    if (own.begin == 0 && own.end == kKeys && !(s.cap > 0)) {
      factors[r] = weigh_block(scores[r], s.scale, weights[0][r], weights[1][r], top, lanes);
      continue;
    }
    const int64_t from = own.begin / kLanes * kLanes, to = (own.end + kLanes - 1) / kLanes * kLanes;
    for (int64_t k = from; k < to; k += kLanes) store(scores[r] + k, load(scores[r] + k) * splat(s.scale));
    if (s.cap > 0) soften(scores[r], from, to, s.cap);
    factors[r] = weigh(scores[r], own.begin, own.end, top, lanes);
    for (int64_t k = half * kTileInputs; k < halves * kTileInputs; k += kLanes) {
      const __m512 weight = k >= from && k < to ? _mm512_loadu_ps(scores[r] + k) : _mm512_setzero_ps();
      split(weight, weights[0][r] + k, weights[1][r] + k);
    }
  }
  const int64_t apart = s.padded_columns / kLanes * kTile;  // two halves
  for (int64_t column = 0; column < s.padded_columns; column += N * kLanes) {
    const bf16* pairs = b.pairs + column / kLanes * kTile;
    const int64_t left = s.padded_columns - column, columns = left < N * kLanes ? left : N * kLanes;
    if (columns == N * kLanes)
      sum_tiles<N>(weights, pairs, apart, half, halves, sums[0]);
    else
      sum_tiles<2>(weights, pairs, apart, half, halves, sums[0]);
    for (int64_t r = 0; r < count; ++r)
      for (int64_t c = 0; c < columns; c += kLanes) {
        float* total = s.totals + (query + r) * s.padded_columns + column + c;
        store(total, fma(load(total), splat(factors[r]), load(sums[r] + c)));
      }
  }
}

// Lets at most 16 queries see keys of a block that are packed.
template <class Of>
void see_tiles(const Queries<bf16>& s, int64_t query, int64_t count, const KeyBlock<bf16>& b, Of range) {
  alignas(64) float scores[kTileRows][kKeys];
  const Range all = hull(query, count, range);
  const int64_t first = all.begin / kLanes, tiles = (all.end + kLanes - 1) / kLanes - first;
  const bf16 *q = s.q + query * s.stride, *keys = b.packed + first * kLanes * s.padded;
  float* at = scores[0] + first * kLanes;
  if (tiles == 4) score_tiles<4>(q, s.stride, keys, s.padded, at);
  if (tiles == 3) score_tiles<3>(q, s.stride, keys, s.padded, at);
  if (tiles == 2) score_tiles<2>(q, s.stride, keys, s.padded, at);
  if (tiles == 1) score_tiles<1>(q, s.stride, keys, s.padded, at);
  gather<4>(s, query, count, b, all, range, scores);
}

// A few queries are the right operand, as pairs of dimensions `[padded dim / 2, 4, 2]`, and keys the left one, as they
// lie in the cache: turning so many keys would take longer than multiplying them. The sums are the same.
PARLAY_INLINE void lay_query(const bf16* q, int64_t number, int64_t dim, bf16* to) {
  for (int64_t d = 0; d < dim; ++d) to[(d / 2 * kFour + number) * 2 + d % 2] = q[d];
}

// Scores of one tile of keys, `[16, 4]`.
PARLAY_INLINE void score_few(const bf16* q, const bf16* keys, int64_t stride, int64_t padded, float* scores) {
  PARLAY_TILE_MEMORY(q);
  PARLAY_TILE_MEMORY(keys);
  _tile_zero(PARLAY_SUM10);
  for (int64_t d = 0; d < padded; d += kTileInputs) {
    _tile_loadd(PARLAY_W0, keys + d, stride * sizeof(bf16));
    _tile_loadd(PARLAY_SUM11, q + d * kFour, kFour * sizeof(float));
    _tile_dpbf16ps(PARLAY_SUM10, PARLAY_W0, PARLAY_SUM11);
  }
  _tile_stored(PARLAY_SUM10, scores, kFour * sizeof(float));
  PARLAY_TILE_MEMORY(scores);
}

// Lets at most 4 queries see keys of a block, which lie where `rows` says.
template <class Of>
void see_few(const Queries<bf16>& s, int64_t query, int64_t count, const KeyBlock<bf16>& b, Of range) {
  alignas(64) float turned[kKeys][kFour], scores[kFour][kKeys];
  const Range all = hull(query, count, range);
  const int64_t from = all.begin / kLanes, to = (all.end + kLanes - 1) / kLanes;
  for (int64_t t = from; t < to; ++t) score_few(s.q, b.rows[t], b.apart[t], s.padded, turned[t * kLanes]);
  for (int64_t r = 0; r < count; ++r) {
    const int row = (int)(query + r);  // of the keys 0..3 and 4..7, and again for those eight further on
    const __m512i lanes = _mm512_add_epi32(
        _mm512_set1_epi32(row), _mm512_set_epi32(28, 24, 20, 16, 12, 8, 4, 0, 28, 24, 20, 16, 12, 8, 4, 0));
    for (int64_t t = from; t < to; ++t) {
      const float* at = turned[t * kLanes];
      const __m512 low = _mm512_permutex2var_ps(_mm512_load_ps(at), lanes, _mm512_load_ps(at + 16));
      const __m512 high = _mm512_permutex2var_ps(_mm512_load_ps(at + 32), lanes, _mm512_load_ps(at + 48));
      _mm512_store_ps(scores[r] + t * kLanes, _mm512_mask_blend_ps(0xff00, low, high));
    }
  }
  gather<2>(s, query, count, b, all, range, scores);
}

#endif

}  // namespace
}  // namespace parlay
