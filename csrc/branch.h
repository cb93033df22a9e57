// Chooses the tokens that a draft may branch into: the first few in the order of score / temperature + noise.
#pragma once

#include "draw.h"

namespace parlay {
namespace {

constexpr int kSeen = 16;  // values among which a sampled token's probability is its share
constexpr double kSharpness = 2;

// The first `most` in the total order (value descending, place ascending) of what is offered.
struct Leaders {
  int most, count = 0;
  double value[kSeen];
  int64_t place[kSeen];

  bool before(double v, int64_t p, int i) const { return v > value[i] || (v == value[i] && p < place[i]); }
  double least() const { return count < most ? -(double)kInf : value[most - 1]; }
  void offer(double v, int64_t p) {
    if (v == -(double)kInf || (count == most && !before(v, p, most - 1))) return;
    int i = count < most ? count++ : most - 1;
    for (; i > 0 && before(v, p, i - 1); --i) value[i] = value[i - 1], place[i] = place[i - 1];
    value[i] = v, place[i] = p;
  }
};

PARLAY_INLINE Vec kept_scores(const float* scores, int64_t first, int64_t vocab) {
  return unless_nan(load_scores(scores, first, vocab), splat(-kInf));
}

// Without noise.
inline void lead_raw(Leaders& found, const float* scores, int64_t vocab) {
  for (int64_t first = 0; first < vocab; first += kLanes) {
    const Vec x = kept_scores(scores, first, vocab);
    uint32_t passed = not_above(splat((float)found.least()), x) & lanes_below(vocab - first);
    if (!passed) continue;
    float lanes[kLanes];
    store(lanes, x);
    for (; passed; passed &= passed - 1) {
      const int lane = __builtin_ctz(passed);
      found.offer((double)lanes[lane], first + lane);
    }
  }
}

// With noise; `token_at` gives the tokens of sixteen places. As in `draw_row`, most are excluded without a logarithm.
template <class Load, class Words>
PARLAY_INLINE void lead_noisy(Leaders& found, float top, int64_t size, Load load_at, Words words_at) {
  for (int64_t first = 0; first < size; first += kLanes) {
    const Vec s = load_at(first);
    uint32_t passed = lanes_below(size - first);
    uint32_t words[kLanes];
    if (found.count == found.most && top < kInf) {  // beyond a sick score nothing can be told by differences
      const float lead = (float)(found.least() - (double)top);
      const Vec below = s - splat(top);
      if (!(not_above(splat(lead - kMostNoise - 0.01f), below) & passed)) continue;
      words_at(first, words);
      const Vec bound = fma(exp(below - splat(lead)), splat(1.001f), splat(0x1p-30f));
      passed &= not_above(fractions(words), bound);
      if (!passed) continue;
    } else {
      words_at(first, words);
    }
    float lanes[kLanes];
    store(lanes, s);
    for (; passed; passed &= passed - 1) {
      const int lane = __builtin_ctz(passed);
      found.offer((double)lanes[lane] + gumbel_of(words[lane]), first + lane);
    }
  }
}

// The leaders of a row that is sampled, as places in its scores.
inline void lead_sampled(Leaders& found, const DrawArgs& a, int64_t row) {
  const float* scores = a.scores + row * a.vocab;
  const float temperature = a.temperatures[row];
  const Filter filter = filter_of(a.filters, row, a.vocab);
  const uint64_t seed = a.seeds[row];
  const int64_t position = a.positions[row];
  if (filter.keeps_all()) {
    int64_t best;
    const float top = scaled(highest(scores, a.vocab, &best), temperature);
    if (top == -kInf) return;
    int64_t block = -1;
    uint32_t words[kNoiseBlock];
    lead_noisy(
        found, top, a.vocab,
        [&](int64_t first) {
          return unless_nan(load_scores(scores, first, a.vocab) / splat(temperature), splat(-kInf));
        },
        [&](int64_t first, uint32_t* out) {
          if (a.ids) {
            int32_t tokens[kLanes];
            for (int l = 0; l < kLanes; ++l) tokens[l] = first + l < a.vocab ? (int32_t)a.ids[first + l] : 0;
            philox_tokens(seed, position, tokens, out);
            return;
          }
          if (first / kNoiseBlock != block) {
            block = first / kNoiseBlock;
            philox_block(seed, position, block, words);
          }
          memcpy(out, words + first % kNoiseBlock, kLanes * sizeof(uint32_t));
        });
    return;
  }
  float top;
  const List kept = survivors(scores, temperature, filter, a.vocab, &top);
  if (kept.size == 0 || top == -kInf) return;
  int32_t* tokens = kept.token;
  if (a.ids) {
    tokens = (int32_t*)kept.weight;  // which nobody asks for any more
    for (int64_t i = 0; i < kept.size; ++i) tokens[i] = (int32_t)a.ids[kept.token[i]];
    for (int64_t i = kept.size; i % kLanes; ++i) tokens[i] = 0;
  }
  lead_noisy(
      found, top, kept.size, [&](int64_t first) { return load(kept.score + first); },
      [&](int64_t first, uint32_t* out) { philox_tokens(seed, position, tokens + first, out); });
  for (int i = 0; i < found.count; ++i) found.place[i] = kept.token[found.place[i]];
}

void branch(const BranchArgs& b, int64_t begin, int64_t end) {
  const DrawArgs& a = b.draw;
  for (int64_t row = begin; row < end; ++row) {
    const float* scores = a.scores + row * a.vocab;
    const bool sampled = a.temperatures[row] != 0;
    Leaders found{sampled ? kSeen : (int)b.children};
    if (sampled)
      lead_sampled(found, a, row);
    else
      lead_raw(found, scores, a.vocab);
    double all = 0;
    if (sampled)
      for (int i = 0; i < found.count; ++i) all += __builtin_exp(kSharpness * (found.value[i] - found.value[0]));
    else if (found.count)
      all = mass(scores, (float)found.value[0], 1, a.vocab);
    const double sharpness = sampled ? kSharpness : 1;
    for (int64_t i = 0; i < b.children; ++i) {
      const bool any = i < found.count;
      const int64_t place = any ? found.place[i] : 0;
      a.out[row * b.children + i] = a.ids ? a.ids[place] : place;
      const bool number = any && found.value[0] < (double)kInf;
      const float prob = number ? (float)(__builtin_exp(sharpness * (found.value[i] - found.value[0])) / all) : 0;
      a.probs[row * b.children + i] = prob;
    }
  }
}

}  // namespace
}  // namespace parlay
