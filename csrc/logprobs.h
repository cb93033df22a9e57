// Log-probabilities of a row of scores, and what classical verification makes of two rows of them. The same bits with
// every instruction set: sums are of integers, the rest is single additions and products.
#pragma once

#include "filter.h"

namespace parlay {
namespace {

constexpr float kFaintest = -29.f;  // log-probability; a unit is 2^-42, e^-29.1

inline void log_softmax_row(const float* scores, float* out, int64_t vocab) {
  int64_t token;
  const float best = highest(scores, vocab, &token);
  if (__builtin_isinf(best)) {  // those that have it share everything
    int64_t count = 0;
    for (int64_t v = 0; v < vocab; ++v) count += best < 0 || scores[v] == best;
    const float each = (float)-ln((double)count);
    for (int64_t v = 0; v < vocab; ++v) out[v] = best < 0 || scores[v] == best ? each : -kInf;
    return;
  }
  const int64_t units =
      sum_units(vocab, [&](int64_t first) { return decay(load_scores(scores, first, vocab) - splat(best)); });
  const double shift = ln((double)units) - 2 * kHalfBits * 0x1.62e42fefa39efp-1;  // ln of the sum
  for (int64_t v = 0; v < vocab; ++v) {
    const float below = (float)(((double)scores[v] - (double)best) - shift);
    out[v] = below == below ? below : -kInf;
  }
}

void log_softmax(const LogSoftmaxArgs& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row)
    log_softmax_row(a.scores + row * a.vocab, a.out + row * a.vocab, a.vocab);
}

// The distribution that a row's token is drawn from: what `process` leaves, as log-probabilities.
void log_probs(const LogProbsArgs& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    float* out = a.out + row * a.vocab;
    memcpy(out, a.scores + row * a.vocab, a.vocab * sizeof(float));
    process_row(out, a.temperatures[row], filter_of(a.filters, row, a.vocab), a.vocab);
    log_softmax_row(out, out, a.vocab);
  }
}

// Probabilities of sixteen log-probabilities; less than a unit counts as nothing.
PARLAY_INLINE Vec probabilities(const Vec& logs) {
  const Vec powers = decay(smaller(logs, splat(0.f)));
  Vec r;
  PARLAY_EACH r.p[i] = logs.p[i] > kFaintest ? powers.p[i] : (Part){};
  return r;
}

// What is left of one distribution, scaled, where another was tried in vain.
void excess(const ExcessArgs& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const float* target = a.target + row * a.vocab;
    const float* draft = a.draft + row * a.drafted;
    if (a.ids) {
      float* spread = (float*)scratch(a.vocab * sizeof(float));
      for (int64_t v = 0; v < a.vocab; ++v) spread[v] = -kInf;
      for (int64_t d = 0; d < a.drafted; ++d) spread[a.ids[d]] = draft[d];
      draft = spread;
    }
    const Vec scale = splat((float)a.scales[row]);
    const auto left = [&](int64_t first) {
      return larger(scale * probabilities(load_scores(target, first, a.vocab)) -
                        probabilities(load_scores(draft, first, a.vocab)),
                    splat(0.f));
    };
    a.mass[row] = (double)sum_units(a.vocab, left) / (double)kOne;
    if (!a.out) continue;
    float* out = a.out + row * a.vocab;
    for (int64_t first = 0; first < a.vocab; first += kLanes) {
      float lanes[kLanes];
      store(lanes, left(first));
      for (int64_t l = 0; l < kLanes && first + l < a.vocab; ++l)
        out[first + l] = lanes[l] > 0 ? (float)ln((double)lanes[l]) : -kInf;
    }
  }
}

}  // namespace
}  // namespace parlay
