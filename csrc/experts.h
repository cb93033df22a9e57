// Mixtures of experts: which experts a row goes to, and the sum of what they answer. The experts are linear layers.
#pragma once

#include "elementary.h"
#include "table.h"

namespace parlay {
namespace {

PARLAY_INLINE Vec sigmoid(const Vec& x) { return splat(1.f) / (splat(1.f) + exp(splat(0.f) - x)); }

// The greatest of `count` values that are not taken, ties going to the first; -1 where all are.
PARLAY_INLINE int64_t best_of(const float* values, const bool* taken, int64_t count) {
  int64_t best = -1;
  for (int64_t i = 0; i < count; ++i)
    if (!taken[i] && (best < 0 || values[i] > values[best])) best = i;
  return best;
}

// Takes the experts of all groups but the best, a group's value being the sum of its best two.
void leave_groups(const RouteArgs& a, const float* choice, float* sums, bool* left, bool* taken) {
  const int64_t size = a.experts / a.groups;
  memset(left, 0, a.groups);
  for (int64_t g = 0; g < a.groups; ++g) {
    const float* values = choice + g * size;
    const int64_t first = best_of(values, taken, size);
    taken[first] = true;
    const int64_t second = best_of(values, taken, size);
    taken[first] = false;
    sums[g] = second < 0 ? values[first] : values[first] + values[second];
  }
  for (int64_t i = 0; i < a.kept_groups; ++i) left[best_of(sums, left, a.groups)] = true;
  for (int64_t e = 0; e < a.experts; ++e) taken[e] = !left[e / size];
}

// The best experts by score, or by the weight of all plus a bias, NaN being -inf and ties going to the lowest id.
// Weights are e^score over the sum of all or of the chosen, or sigmoids.
void route(const RouteArgs& a, int64_t begin, int64_t end) {
  const int64_t padded = (a.experts + kLanes - 1) / kLanes * kLanes;
  float* powers = (float*)scratch(padded * 14);
  float *choice = powers + padded, *sums = choice + padded;
  bool *taken = (bool*)(sums + padded), *left = taken + padded;
  for (int64_t row = begin; row < end; ++row) {
    const float* scores = a.scores + row * a.experts;
    int32_t* experts = a.chosen_experts + row * a.chosen;
    float* weights = a.weights + row * a.chosen;
    float most = -kInf;
    for (int64_t e = 0; e < a.experts; ++e) {
      choice[e] = scores[e] == scores[e] ? scores[e] : -kInf;
      if (choice[e] > most) most = choice[e];
    }
    if (most == -kInf) most = scores[0];
    Vec lanes = splat(0.f);
    PARLAY_ROW(first, n, a.experts) {
      const Vec score = load_at(scores, first, n), power = a.sigmoid ? sigmoid(score) : exp(score - splat(most));
      store(powers + first, power);
      lanes = lanes + (n == kLanes ? power : load_some(powers + first, (int)n));
    }
    float total = a.sigmoid ? 1 : sum(lanes);
    if (a.bias || (a.sigmoid && a.groups > 1))  // sigmoids of high scores are alike
      for (int64_t e = 0; e < a.experts; ++e) {
        const float value = powers[e] / total + (a.bias ? a.bias[e] : 0);
        choice[e] = value == value ? value : -kInf;
      }
    memset(taken, 0, padded);
    if (a.groups > 1) leave_groups(a, choice, sums, left, taken);
    for (int64_t i = 0; i < a.chosen; ++i) {
      const int64_t best = best_of(choice, taken, a.experts);
      taken[best] = true;
      experts[i] = (int32_t)best;
    }
    if (a.normalise) {
      total = a.sigmoid ? 1e-20f : 0;  // all may be too small for a number
      for (int64_t i = 0; i < a.chosen; ++i) total += powers[experts[i]];
    }
    for (int64_t i = 0; i < a.chosen; ++i) {
      weights[i] = powers[experts[i]] / total * a.factor;
      if (a.scales) weights[i] *= a.scales[experts[i]];
    }
  }
}

template <class T>
void mix_rows(const MixArgs& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T *x = (const T*)a.x + row * a.chosen * a.width, *shared = (const T*)a.shared + row * a.width;
    const float* weights = a.weights + row * a.chosen;
    const Vec share = a.gate ? sigmoid(splat(a.gate[row])) : splat(1.f);
    T* out = (T*)a.out + row * a.width;
    PARLAY_ROW(first, n, a.width) {
      Vec total = splat(weights[0]) * load_at(x, first, n);
      for (int64_t i = 1; i < a.chosen; ++i) total = fma(splat(weights[i]), load_at(x + i * a.width, first, n), total);
      if (a.shared) total = fma(share, load_at(shared, first, n), total);
      store_at(out, total, first, n);
    }
  }
}

void mix_experts(const MixArgs& a, int64_t begin, int64_t end) {
  a.bf16 ? mix_rows<bf16>(a, begin, end) : mix_rows<float>(a, begin, end);
}

}  // namespace
}  // namespace parlay
