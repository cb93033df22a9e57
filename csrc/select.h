// Prefixes of the total order (score descending, id ascending), found by selection: a list of tokens with weights is
// cut to its first ones whose weights reach a target.
//
// Weights are summed as integers, so that no sum depends on its order and a border is exact.
#pragma once

#include "elementary.h"
#include "table.h"

namespace parlay {
namespace {

constexpr float kInf = __builtin_inff();

// Some tokens in ascending order. What follows the last one up to a whole Vec has score -inf and weight 0.
struct List {
  float* score;
  float* weight;
  int32_t* token;
  float* spare_score;  // room for `border_of`
  float* spare_weight;
  int64_t size;
};

inline List empty_list(int64_t vocab) {
  const int64_t room = (vocab + 2 * kLanes) / kLanes * kLanes;
  float* at = (float*)scratch(5 * room * sizeof(float));
  return {at, at + room, (int32_t*)(at + 2 * room), at + 3 * room, at + 4 * room, 0};
}

PARLAY_INLINE void pad(float* score, float* weight, int64_t size) {
  for (int64_t i = size; i % kLanes; ++i) score[i] = -kInf, weight[i] = 0;
}

// Writes the lanes of v that `chosen` names one after another; what lies within sixteen of `to` may be overwritten.
template <class T>
PARLAY_INLINE void pack(T* to, const Vec& v, uint32_t chosen) {
#if defined(PARLAY_AVX512)
  _mm512_storeu_ps(to, _mm512_maskz_compress_ps((__mmask16)chosen, v.p[0]));
#else
  T lanes[kLanes];
  memcpy(lanes, &v, sizeof lanes);
  for (; chosen; chosen &= chosen - 1) *to++ = lanes[__builtin_ctz(chosen)];
#endif
}

PARLAY_INLINE Vec load_tokens(const int32_t* from) {
  Vec r;
  memcpy(&r, from, sizeof r);
  return r;
}

PARLAY_INLINE uint32_t lanes_below(int64_t n) { return n < kLanes ? (1u << n) - 1 : 0xffff; }

// Units: weight 2^42, rounded to the nearest, for a weight from 0 to 1. Fewer than 2^21 tokens fit into int64.
constexpr int kHalfBits = 21;
constexpr float kHalf = 1 << kHalfBits;
constexpr int64_t kOne = (int64_t)1 << 2 * kHalfBits;

inline int64_t units_of(float weight) {
  const double magic = 0x1.8p52;  // adding it rounds to an integer
  return (int64_t)((double)weight * (double)kOne + magic - magic);
}

// The units of weight_at(0), weight_at(16), ... below n.
template <class F>
PARLAY_INLINE int64_t sum_units(int64_t n, F weight_at) {
  constexpr int64_t kStretch = 512 * kLanes;  // a lane's halves stay below 2^31
  int64_t units = 0;
  for (int64_t first = 0; first < n;) {
    const int64_t end = first + kStretch < n ? first + kStretch : n;
    PartI high[kParts] = {}, low[kParts] = {};
    for (; first < end; first += kLanes) {
      const Vec w = weight_at(first);
      PARLAY_EACH {
        const Part a = w.p[i] * kHalf;
        const PartI whole = __builtin_convertvector(a, PartI);
        high[i] += whole;
        const Part rest = (a - __builtin_convertvector(whole, Part)) * kHalf;
        low[i] += (PartI)(rest + 12582912.f) - 0x4b400000;  // as in `decay`: to the nearest integer
      }
    }
    for (int i = 0; i < kParts; ++i)
      for (int l = 0; l < kWidth; ++l) units += ((int64_t)high[i][l] << kHalfBits) + low[i][l];
  }
  return units;
}

// Integers in the order of the floats, and back.
PARLAY_INLINE int64_t key_of(float x) {
  int32_t bits;
  memcpy(&bits, &x, 4);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
PARLAY_INLINE float float_of(int64_t key) {
  const int32_t bits = (int32_t)key ^ (((int32_t)key >> 31) & 0x7fffffff);
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

// Where a prefix of the total order ends: after the first `tied` of the tokens with this score.
struct Border {
  float score;
  int64_t tied;
};

// The end of the shortest prefix that has `target` units (at least 1, at most what there is). Bisects the score:
// first by value, which suits real rows, then by the floats' order, which ends after 32 steps whatever the row.
// Each step leaves only the tokens it could not decide, so that all steps together cost a few passes.
inline Border border_of(const List& list, int64_t target) {
  constexpr int kStepsByValue = 12;
  const float* score = list.score;
  const float* weight = list.weight;
  int64_t n = list.size;
  float least = score[0], most = score[0];
  Vec least_lanes = splat(least), most_lanes = splat(most);
  int64_t v = 0;
  for (; v + kLanes <= n; v += kLanes) {
    least_lanes = smaller(load(score + v), least_lanes);
    most_lanes = larger(load(score + v), most_lanes);
  }
  most = maximum(most_lanes), least = -maximum(splat(0) - least_lanes);
  for (; v < n; ++v) least = score[v] < least ? score[v] : least, most = score[v] > most ? score[v] : most;

  int64_t low = key_of(least), high = key_of(most + 0.f) + 1;  // key_of(-0) is not above key_of(0)
  int64_t above = 0;                                           // units from `high` on
  for (int step = 0; high - low > 1; ++step) {
    int64_t middle = (low + high) >> 1;
    if (step < kStepsByValue) {
      const int64_t by_value = key_of(0.5f * float_of(low) + 0.5f * float_of(high - 1));
      if (by_value > low && by_value < high) middle = by_value;
    }
    const Vec pivot = splat(float_of(middle));
    const int64_t units = sum_units(n, [&](int64_t first) {
      const Vec s = load(score + first), w = load(weight + first);
      Vec r;
      PARLAY_EACH r.p[i] = s.p[i] >= pivot.p[i] ? w.p[i] : Part{};
      return r;
    });
    const bool enough = above + units >= target;
    if (enough) low = middle;
    if (!enough) high = middle, above += units;
    int64_t left = 0;
    for (int64_t first = 0; first < n; first += kLanes) {
      const Vec s = load(score + first), w = load(weight + first);
      const uint32_t upper = not_above(pivot, s), chosen = (enough ? upper : ~upper) & lanes_below(n - first);
      pack(list.spare_score + left, s, chosen);
      pack(list.spare_weight + left, w, chosen);
      left += __builtin_popcount(chosen);
    }
    n = left;
    score = list.spare_score, weight = list.spare_weight;
    pad(list.spare_score, list.spare_weight, n);
  }
  const int64_t each = units_of(weight[0]);  // only tokens at the border are left
  return {float_of(low), (target - above + each - 1) / each};
}

// Keeps the tokens that chosen(scores, lanes) names.
template <class F>
PARLAY_INLINE void retain(List& list, F chosen_of) {
  int64_t left = 0;
  for (int64_t first = 0; first < list.size; first += kLanes) {
    const Vec s = load(list.score + first), t = load_tokens(list.token + first);
    const uint32_t chosen = chosen_of(s) & lanes_below(list.size - first);
    pack(list.score + left, s, chosen);
    pack(list.token + left, t, chosen);
    left += __builtin_popcount(chosen);
  }
  list.size = left;
  pad(list.score, list.weight, left);
}

// Keeps the shortest prefix that has `target` units.
inline void cut(List& list, int64_t target) {
  const Border border = border_of(list, target);
  const Vec at = splat(border.score);
  int64_t tied = border.tied;
  retain(list, [&](const Vec& s) {
    const uint32_t upper = not_above(at, s), beyond = upper & ~not_above(s, at);
    uint32_t ties = upper & ~beyond;
    while (__builtin_popcount(ties) > tied) ties &= ~(0x80000000u >> __builtin_clz(ties));
    tied -= __builtin_popcount(ties);
    return beyond | ties;
  });
}

}  // namespace
}  // namespace parlay
