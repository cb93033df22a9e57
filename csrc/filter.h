// Which tokens of a row survive min-p, top-k and top-p: by selection, for a nucleus is small and a sort is not.
//
// Survivors are a prefix of the total order (score descending, id ascending). One pass finds the best score, at most
// one sums the probability mass, one collects the tokens above a border that provably excludes no survivor; all
// else happens on that short list. Mass is counted in whole units of 2^-42 of the best token's weight, so that sums
// do not depend on their order and the end of a nucleus is exact.
#pragma once

#include "elementary.h"
#include "table.h"

namespace parlay {
namespace {

constexpr float kInf = __builtin_inff(), kLargest = 0x1.fffffep+127f;

PARLAY_INLINE float scaled(float score, float temperature) {
  const float s = score / temperature;
  return s == s ? s : -kInf;
}

// The highest score, NaN apart, and the first token that has it (0 where nothing is above -inf).
inline float highest(const float* scores, int64_t vocab, int64_t* token) {
  constexpr int64_t kStretch = 2048;
  float top = -kInf;
  *token = 0;
  for (int64_t first = 0; first < vocab; first += kStretch) {
    const int64_t end = first + kStretch < vocab ? first + kStretch : vocab;
    Vec most = splat(-kInf);
    int64_t v = first;
    for (; v + kLanes <= end; v += kLanes) most = larger(load(scores + v), most);
    float here = maximum(most);
    for (; v < end; ++v) here = scores[v] > here ? scores[v] : here;
    if (here > top) top = here, *token = first;
  }
  if (top > -kInf)
    while (scores[*token] != top) ++*token;
  return top;
}

struct Filter {
  double min_p;
  int64_t top_k;  // 0 for all
  double top_p;
  bool keeps_all() const { return min_p <= 0 && top_k == 0 && top_p >= 1; }
};

inline Filter filter_of(const FilterArgs& a, int64_t row, int64_t vocab) {
  if (!a.min_p) return {0, 0, 1};
  const int64_t k = a.top_k[row];
  return {a.min_p[row], k > 0 && k < vocab ? k : 0, a.top_p[row]};
}

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

// Sixteen scores of a row, or as many as there are and -inf after them.
PARLAY_INLINE Vec load_scores(const float* scores, int64_t first, int64_t vocab) {
  if (first + kLanes <= vocab) return load(scores + first);
  float lanes[kLanes];
  for (int l = 0; l < kLanes; ++l) lanes[l] = first + l < vocab ? scores[first + l] : -kInf;
  return load(lanes);
}

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

// A score before temperature that nothing which reaches `least` after it falls short of.
inline float before_temperature(double least, float temperature) {
  const double score = least * temperature;
  const double lower = score - (__builtin_fabs(score) * 1e-6 + (double)temperature * 1e-44);
  return lower < -(double)kLargest ? -kLargest : (float)lower;
}

// A score that at least k tokens reach, from the maxima of small groups; -inf where there are too few groups.
inline float reached_by(const float* scores, int64_t k, int64_t vocab, List& groups) {
  constexpr int64_t kGroup = 16;  // tokens in each
  const int64_t count = vocab / (kGroup * kLanes) * kLanes;
  if (k > count) return -kInf;
  for (int64_t g = 0; g < count; g += kLanes) {
    Vec most = splat(-kInf);
    for (int64_t i = 0; i < kGroup; ++i) most = larger(load(scores + g * kGroup + i * kLanes), most);
    store(groups.score + g, most);
    store(groups.weight + g, splat(1.f));
  }
  groups.size = count;
  return border_of(groups, k * kOne).score;
}

// The tokens whose score is at least `least`, with their scores after temperature.
inline List collect(const float* scores, float least, float temperature, int64_t vocab) {
  List list = empty_list(vocab);
  const Vec border = splat(least), divisor = splat(temperature);
  Vec ids;
  PARLAY_EACH for (int l = 0; l < kWidth; ++l) {
    const int32_t id = i * kWidth + l;
    memcpy((char*)&ids + 4 * id, &id, 4);
  }
  for (int64_t first = 0; first < vocab; first += kLanes) {
    const Vec s = load_scores(scores, first, vocab);
    const uint32_t chosen = not_above(border, s);
    if (!chosen) continue;
    Vec t;
    PARLAY_EACH t.p[i] = (Part)((PartI)ids.p[i] + (int32_t)first);
    pack(list.score + list.size, s, chosen);
    pack(list.token + list.size, t, chosen);
    list.size += __builtin_popcount(chosen);
  }
  pad(list.score, list.weight, list.size);
  for (int64_t i = 0; i < list.size; i += kLanes) store(list.score + i, load(list.score + i) / divisor);
  return list;
}

// The least float that is not below x; x <= 0.
inline float rounded_up(double x) {
  const float f = (float)x;
  return (double)f < x ? float_of(key_of(f) + 1) : f;
}

// The tokens that a filter keeps at a temperature above 0, and the highest score after temperature. No token where
// that is -inf; where it is +inf the first that has it. The list lives in scratch memory.
inline List survivors(const float* scores, float temperature, const Filter& filter, int64_t vocab, float* top) {
  int64_t token;
  const float best = *top = scaled(highest(scores, vocab, &token), temperature);
  List list = empty_list(vocab);
  if (best == -kInf) return list;
  if (best == kInf) {
    token = 0;
    while (scaled(scores[token], temperature) != kInf) ++token;
    list.score[0] = kInf, list.token[0] = (int32_t)token, list.size = 1;
    return list;
  }
  const auto weight_of = [best](const Vec& s) { return decay(s - splat(best)); };

  // Every survivor's score is at least `least`.
  double least = -(double)kInf;
  int64_t total = 0;
  const float floor = filter.min_p > 0 ? rounded_up(ln(filter.min_p < 0x1p-1022 ? 0x1p-1022 : filter.min_p)) : -kInf;
  if (filter.min_p > 0) least = (double)best + (double)floor * (1 + 1e-6);
  if (filter.top_k > 0) {
    const double reached = scaled(reached_by(scores, filter.top_k, vocab, list), temperature);
    least = reached > least ? reached : least;
  }
  if (filter.top_p < 1 && least == -(double)kInf && filter.top_k == 0) {
    const Vec divisor = splat(temperature);
    total = sum_units(vocab, [&](int64_t first) { return weight_of(load_scores(scores, first, vocab) / divisor); });
    // What a nucleus leaves out has total - target units; tokens that have no more than their share of these
    // together have no more than that.
  }
  const auto target_of = [&](int64_t units) {
    const int64_t reached = (int64_t)__builtin_ceil(filter.top_p * (double)units);
    return reached < 1 ? 1 : reached > units ? units : reached;
  };
  if (total > 0) {
    const int64_t share = (total - target_of(total)) / vocab;
    const double below = share > 0 ? ln((double)share) - ln((double)kOne) : -30;
    least = (double)best + (below < -30 ? -30 : below) - 1e-3;
  }
  list = collect(scores, before_temperature(least, temperature), temperature, vocab);

  if (filter.min_p > 0) {
    const Vec at = splat(floor), most = splat(best);
    retain(list, [&](const Vec& s) { return not_above(at, s - most); });
  }
  if (filter.top_k > 0 && filter.top_k < list.size) {
    for (int64_t i = 0; i < list.size; ++i) list.weight[i] = 1;
    cut(list, filter.top_k * kOne);
  }
  if (filter.top_p < 1) {
    for (int64_t i = 0; i < list.size; i += kLanes) store(list.weight + i, weight_of(load(list.score + i)));
    if (total == 0) total = sum_units(list.size, [&](int64_t first) { return load(list.weight + first); });
    cut(list, target_of(total));
  }
  return list;
}

inline void process_row(float* scores, float temperature, const Filter& filter, int64_t vocab) {
  const Vec low = splat(-kInf);
  if (temperature > 0 && filter.keeps_all()) {
    const Vec divisor = splat(temperature);
    PARLAY_ROW(first, n, vocab)
      store_at(scores, unless_nan(load_at(scores, first, n) / divisor, low), first, n);
    return;
  }
  float top;
  int64_t token;
  if (temperature > 0) {
    const List kept = survivors(scores, temperature, filter, vocab, &top);
    PARLAY_ROW(first, n, vocab) store_at(scores, low, first, n);
    for (int64_t i = 0; i < kept.size; ++i) scores[kept.token[i]] = kept.score[i];
  } else {
    top = highest(scores, vocab, &token);
    const float kept = top > -kInf ? scores[token] : top;  // which of the zeros, too
    PARLAY_ROW(first, n, vocab) store_at(scores, low, first, n);
    scores[token] = kept;
  }
}

void process(const ProcessArgs& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row)
    process_row(a.scores + row * a.vocab, a.temperatures[row], filter_of(a.filters, row, a.vocab), a.vocab);
}

}  // namespace
}  // namespace parlay
