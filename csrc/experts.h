// Mixtures of experts: which experts a row goes to, and the sum of what they answer. The experts are linear layers.
#pragma once

#include "elementary.h"
#include "table.h"

namespace parlay {
namespace {

// The best experts by score, NaN being -inf and ties going to the lowest id, with weights e^score over the sum of all
// or of the chosen.
void route(const RouteArgs& a, int64_t begin, int64_t end) {
  const int64_t padded = (a.experts + kLanes - 1) / kLanes * kLanes;
  float* powers = (float*)scratch(padded * 5);
  bool* taken = (bool*)(powers + padded);
  for (int64_t row = begin; row < end; ++row) {
    const float* scores = a.scores + row * a.experts;
    int32_t* experts = a.chosen_experts + row * a.chosen;
    float* weights = a.weights + row * a.chosen;
    const auto known = [scores](int64_t e) { return scores[e] == scores[e] ? scores[e] : -kInf; };
    memset(taken, 0, padded);
    for (int64_t i = 0; i < a.chosen; ++i) {
      int64_t best = -1;
      for (int64_t e = 0; e < a.experts; ++e)
        if (!taken[e] && (best < 0 || known(e) > known(best))) best = e;
      taken[best] = true;
      experts[i] = (int32_t)best;
    }
    const Vec most = splat(scores[experts[0]]);
    Vec lanes = splat(0.f);
    PARLAY_ROW(first, n, a.experts) {
      const Vec power = exp(load_at(scores, first, n) - most);
      store(powers + first, power);
      lanes = lanes + (n == kLanes ? power : load_some(powers + first, (int)n));
    }
    float total = sum(lanes);
    if (a.normalise) {
      total = 0;
      for (int64_t i = 0; i < a.chosen; ++i) total += powers[experts[i]];
    }
    for (int64_t i = 0; i < a.chosen; ++i) weights[i] = powers[experts[i]] / total;
  }
}

template <class T>
void mix_rows(const MixArgs& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* x = (const T*)a.x + row * a.chosen * a.width;
    const float* weights = a.weights + row * a.chosen;
    T* out = (T*)a.out + row * a.width;
    PARLAY_ROW(first, n, a.width) {
      Vec total = splat(weights[0]) * load_at(x, first, n);
      for (int64_t i = 1; i < a.chosen; ++i) total = fma(splat(weights[i]), load_at(x + i * a.width, first, n), total);
      store_at(out, total, first, n);
    }
  }
}

void mix_experts(const MixArgs& a, int64_t begin, int64_t end) {
  a.bf16 ? mix_rows<bf16>(a, begin, end) : mix_rows<float>(a, begin, end);
}

}  // namespace
}  // namespace parlay
