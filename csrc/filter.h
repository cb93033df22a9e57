// Which tokens of a row survive min-p, top-k and top-p: by selection, for a nucleus is small and a sort is not.
//
// Survivors are a prefix of the total order. One pass finds the best score, at most one sums the probability mass,
// one collects the tokens above a border that provably excludes no survivor; all else happens on that short list.
// Mass is counted in units of 2^-42 of the best token's weight.
#pragma once

#include "select.h"

namespace parlay {
namespace {

constexpr float kLargest = 0x1.fffffep+127f;

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

// Sixteen scores of a row, or as many as there are and -inf after them.
PARLAY_INLINE Vec load_scores(const float* scores, int64_t first, int64_t vocab) {
  if (first + kLanes <= vocab) return load(scores + first);
  float lanes[kLanes];
  for (int l = 0; l < kLanes; ++l) lanes[l] = first + l < vocab ? scores[first + l] : -kInf;
  return load(lanes);
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
  const auto target_of = [&filter](int64_t units) {
    const int64_t target = (int64_t)__builtin_ceil(filter.top_p * (double)units);
    return target < 1 ? 1 : target > units ? units : target;
  };

  double least = -(double)kInf;  // no survivor's score is below it
  float floor = -kInf;
  int64_t total = 0;
  if (filter.min_p > 0) {
    floor = rounded_up(ln(filter.min_p < 0x1p-1022 ? 0x1p-1022 : filter.min_p));
    least = (double)best + (double)floor * (1 + 1e-6);
  }
  if (filter.top_k > 0) {
    const double reached = scaled(reached_by(scores, filter.top_k, vocab, list), temperature);
    least = reached > least ? reached : least;
  }
  if (filter.min_p <= 0 && filter.top_k == 0) {  // top-p alone
    const Vec divisor = splat(temperature);
    total = sum_units(vocab, [&](int64_t first) { return weight_of(load_scores(scores, first, vocab) / divisor); });
    // A nucleus may leave out total - target units. Tokens of no more than their share of these are no more together.
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
