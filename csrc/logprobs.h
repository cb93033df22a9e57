// Log-probabilities of a row of scores, the same bits with every instruction set: sums are of integers, the rest is
// additions and products of doubles.
#pragma once

#include "filter.h"

namespace parlay {
namespace {

void log_softmax(const LogSoftmaxArgs& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const float* scores = a.scores + row * a.vocab;
    float* out = a.out + row * a.vocab;
    int64_t token;
    const float best = highest(scores, a.vocab, &token);
    if (__builtin_isinf(best)) {  // those that have it share everything
      int64_t count = 0;
      for (int64_t v = 0; v < a.vocab; ++v) count += best < 0 || scores[v] == best;
      const float each = (float)-ln((double)count);
      for (int64_t v = 0; v < a.vocab; ++v) out[v] = best < 0 || scores[v] == best ? each : -kInf;
      continue;
    }
    const int64_t units = sum_units(
        a.vocab, [&](int64_t first) { return decay(load_scores(scores, first, a.vocab) - splat(best)); });
    const double shift = ln((double)units) - 2 * kHalfBits * 0x1.62e42fefa39efp-1;  // ln of the sum
    for (int64_t v = 0; v < a.vocab; ++v) {
      const float below = (float)(((double)scores[v] - (double)best) - shift);
      out[v] = below == below ? below : -kInf;
    }
  }
}

}  // namespace
}  // namespace parlay
