// What attention takes at a time: 64 keys of one kv head, packed like a panel of linear's weights, one key a lane; and
// the queries that see them, with what they have gathered so far.
#pragma once

#include "elementary.h"
#include "linear.h"

namespace parlay {
namespace {

constexpr int64_t kKeys = 64;  // a block; part of the order in attention.h

// Keys begin..end of a block.
struct Range {
  int64_t begin, end;
};

// One block of keys of one kv head.
template <class T>
struct KeyBlock {
  const T* keys;         // cache, at this kv head
  const T* values;       //
  const int64_t* at;     // [64], elements from there to each key
  const int64_t* ahead;  // [64], the same of the next block, perhaps stale; null where nothing is to be fetched
  const int64_t *value_at, *value_ahead;  // the same of values: where these are as wide as keys, the same arrays
  T* packed;             // [64 / 16, padded dim / Step::width, 16, Step::width]
  float* wide;           // [64, padded columns], the values in float32
  bool widened;
  // For tiles of the processor:
  T* pairs;                       // [64 / 32, padded columns / 16, 16, 16, 2], values of two keys beside each other
  bool finite;                    // whether all of these are
  const T* rows[kKeys / kLanes];  // of a few queries: where sixteen keys lie, instead of `packed`,
  int64_t apart[kKeys / kLanes];  // and how far from each other
};

// The queries of a task and what they have gathered so far.
template <class T>
struct Queries {
  const typename Step<T>::X* q;  // [n, stride]
  float* most;    // [n], greatest score
  float* lanes;   // [n, 16], sums of weights
  float* totals;  // [n, padded columns], weighted sums of values
  int64_t dim, padded, stride;      // of queries and keys
  int64_t columns, padded_columns;  // of values
  float scale, cap;
};

// Packs the tile that begins at key `first`, all sixteen keys of it.
template <class T>
PARLAY_INLINE void pack_tile(const KeyBlock<T>& b, int64_t first, int64_t dim, int64_t padded) {
  const int64_t bytes = dim * (int64_t)sizeof(T), tile_bytes = kLanes * padded * (int64_t)sizeof(T);
  char* to = (char*)b.packed + first / kLanes * tile_bytes;
  // Words of 32 bits, one float or a pair of bf16, are turned from [key, word] to [word, key] in squares.
  for (int64_t at = 0; at < bytes; at += kWidth * 4, to += kWidth * kLanes * 4)
    for (int g = 0; g < kParts; ++g) {
      Part square[kWidth];
      _Pragma("GCC unroll 16") for (int k = 0; k < kWidth; ++k) {
        const char* from = (const char*)(b.keys + b.at[first + g * kWidth + k]) + at;
        if (at + kWidth * 4 <= bytes) {
          memcpy(&square[k], from, kWidth * 4);
        } else {
          square[k] = Part{};
          memcpy(&square[k], from, bytes - at);
        }
      }
      transpose(square);
      _Pragma("GCC unroll 16") for (int k = 0; k < kWidth; ++k)
        memcpy(to + k * kLanes * 4 + g * kWidth * 4, &square[k], kWidth * 4);
    }
}

// cap * tanh(score / cap), for whole tiles.
PARLAY_INLINE void soften(float* scores, int64_t begin, int64_t end, float cap) {
  const Vec most = splat(cap);
  for (int64_t k = begin; k < end; k += kLanes) store(scores + k, most * tanh(load(scores + k) / most));
}

// Takes note of a block's greatest score; returns by what the query's earlier totals are to be scaled.
PARLAY_INLINE float rise(float block_most, float* most) {
  if (!(block_most > *most)) return 1;
  float factors[kLanes];
  store(factors, exp(splat(*most - block_most)));
  *most = block_most;
  return factors[0];
}

// Scores of N tiles to weights in place; returns by what the query's earlier totals are to be scaled.
template <int N>
PARLAY_INLINE float weigh_tiles(float* scores, float* most, float* lanes) {
  Vec own[N];
  _Pragma("GCC unroll 4") for (int n = 0; n < N; ++n) own[n] = load(scores + n * kLanes);
  Vec greatest = own[0];
  _Pragma("GCC unroll 4") for (int n = 1; n < N; ++n) greatest = larger(own[n], greatest);
  const float factor = rise(maximum(greatest), most);
  const Vec subtrahend = splat(*most);
  Vec sum = splat(0.f);
  _Pragma("GCC unroll 4") for (int n = 0; n < N; ++n) {
    const Vec weight = exp(own[n] - subtrahend);
    store(scores + n * kLanes, weight);
    sum = sum + weight;
  }
  store(lanes, fma(load(lanes), splat(factor), sum));
  return factor;
}

// As weigh_tiles, of the keys begin..end.
PARLAY_INLINE float weigh(float* scores, int64_t begin, int64_t end, float* most, float* lanes) {
  const int64_t first = begin / kLanes * kLanes, last = (end + kLanes - 1) / kLanes * kLanes;
  for (int64_t k = first; k < begin; ++k) scores[k] = -__builtin_inff();
  for (int64_t k = end; k < last; ++k) scores[k] = -__builtin_inff();
  switch ((last - first) / kLanes) {
    case 4: return weigh_tiles<4>(scores + first, most, lanes);
    case 3: return weigh_tiles<3>(scores + first, most, lanes);
    case 2: return weigh_tiles<2>(scores + first, most, lanes);
    default: return weigh_tiles<1>(scores + first, most, lanes);
  }
}

}  // namespace
}  // namespace parlay
