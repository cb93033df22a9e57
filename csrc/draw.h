// Draws a token by the Gumbel-max trick with keyed noise: argmax of score / temperature + G(seed, position, token).
#pragma once

#include "filter.h"
#include "philox.h"

namespace parlay {
namespace {

// Standard Gumbel noise of one 32-bit word; -log1p(-u) as -ln(1 - u), where 1 - u is exact.
PARLAY_INLINE double gumbel_of(uint32_t word) {
  const double u = ((double)word + 0.5) * 0x1p-32;
  return -ln(-ln(1 - u));
}

void gumbel(uint64_t seed, int64_t position, double* out, int64_t vocab) {
  uint32_t words[kNoiseBlock];
  for (int64_t first = 0; first < vocab; first += kNoiseBlock) {
    philox_block(seed, position, first / kNoiseBlock, words);
    const int64_t n = vocab - first < kNoiseBlock ? vocab - first : kNoiseBlock;
    for (int64_t i = 0; i < n; ++i) out[first + i] = gumbel_of(words[i]);
  }
}

struct Best {
  double value;
  int64_t token;
  PARLAY_INLINE void offer(double v, int64_t t) {
    if (v > value || (v == value && t < token)) value = v, token = t;
  }
};

// Words to [0, 1), rounded down.
PARLAY_INLINE Vec fractions(const uint32_t* words) {
  Vec r;
  PARLAY_EACH {
    PartU w;
    memcpy(&w, words + i * kWidth, sizeof w);
    r.p[i] = __builtin_convertvector((PartI)(w >> 8), Part) * 0x1p-24f;
  }
  return r;
}

constexpr float kMostNoise = 22.9f;  // G of the largest word is 33 ln 2 = 22.87

inline int64_t draw_row(const float* scores, float temperature, uint64_t seed, int64_t position, int64_t vocab) {
  int64_t token;
  const float raw = highest(scores, vocab, &token);
  if (temperature == 0 || raw == -kInf) return token;
  const float top = scaled(raw, temperature);
  if (top == -kInf) return 0;
  if (top == kInf) {
    for (token = 0; scaled(scores[token], temperature) != kInf;) ++token;
    return token;
  }
  uint32_t words[kNoiseBlock];
  const uint32_t counter[4] = {(uint32_t)(token >> 2), (uint32_t)position, 0, (uint32_t)((uint64_t)position >> 32)};
  philox_words(counter, (uint32_t)seed, (uint32_t)(seed >> 32), words);
  Best best = {(double)top + gumbel_of(words[token & 3]), token};

  // A token beats `best` only if G > best - s, that is -ln(1 - u) < exp(s - best), and u < -ln(1 - u). So
  // u >= exp(s - best) excludes it without a logarithm. The filter works in single precision relative to
  // the top score; its margins (1e-3 relative, 2^-30 absolute) dwarf its rounding errors, and what passes
  // is judged exactly.
  const Vec divisor = splat(temperature), low = splat(-kInf);
  for (int64_t first = 0; first < vocab; first += kNoiseBlock) {
    const float lead = (float)(best.value - (double)top);
    float s[kNoiseBlock];
    Vec below[4];  // s - top
    Vec most = low;
    for (int i = 0; i < 4; ++i) {
      const int64_t at = first + i * kLanes, n = vocab - at;
      Vec x = low;
      if (n >= kLanes) {
        x = load(scores + at);
      } else if (n > 0) {
        float lanes[kLanes];
        for (int l = 0; l < kLanes; ++l) lanes[l] = l < n ? scores[at + l] : -kInf;
        x = load(lanes);
      }
      x = unless_nan(x / divisor, low);
      store(s + i * kLanes, x);
      below[i] = x - splat(top);
      most = larger(below[i], most);
    }
    if (!not_above(splat(lead - kMostNoise - 0.01f), most)) continue;
    philox_block(seed, position, first / kNoiseBlock, words);
    for (int i = 0; i < 4; ++i) {
      const Vec bound = fma(exp(below[i] - splat(lead)), splat(1.001f), splat(0x1p-30f));
      uint32_t passed = not_above(fractions(words + i * kLanes), bound);
      for (; passed; passed &= passed - 1) {
        const int lane = i * kLanes + __builtin_ctz(passed);
        best.offer((double)s[lane] + gumbel_of(words[lane]), first + lane);
      }
    }
  }
  return best.token;
}

// The same over a list: where in it the winner stands. `tokens` are those of the noise; `top` is the highest of the
// scores. What pads the list never wins.
inline int64_t draw_list(const List& kept, const int32_t* tokens, float top, uint64_t seed, int64_t position) {
  if (kept.size < 2 || top == -kInf) return 0;
  uint32_t words[kLanes];
  Best best = {-(double)kInf, 0};
  for (int64_t first = 0; first < kept.size; first += kLanes) {
    const float lead = (float)(best.value - (double)top);
    const Vec below = load(kept.score + first) - splat(top);
    if (!not_above(splat(lead - kMostNoise - 0.01f), below)) continue;
    philox_tokens(seed, position, tokens + first, words);
    const Vec bound = fma(exp(below - splat(lead)), splat(1.001f), splat(0x1p-30f));
    uint32_t passed = not_above(fractions(words), bound);
    for (; passed; passed &= passed - 1) {
      const int lane = __builtin_ctz(passed);
      best.offer((double)kept.score[first + lane] + gumbel_of(words[lane]), first + lane);
    }
  }
  return best.token;
}

// Which of a row's scores wins.
inline int64_t draw_place(const DrawArgs& a, int64_t row) {
  const float* scores = a.scores + row * a.vocab;
  const float temperature = a.temperatures[row];
  const Filter filter = filter_of(a.filters, row, a.vocab);
  if (temperature == 0 || (filter.keeps_all() && !a.ids))
    return draw_row(scores, temperature, a.seeds[row], a.positions[row], a.vocab);
  float top;
  const List kept = survivors(scores, temperature, filter, a.vocab, &top);
  if (kept.size == 0) return 0;
  int32_t* tokens = kept.token;
  if (a.ids) {
    tokens = (int32_t*)kept.weight;  // which nobody asks for any more
    for (int64_t i = 0; i < kept.size; ++i) tokens[i] = (int32_t)a.ids[kept.token[i]];
    for (int64_t i = kept.size; i % kLanes; ++i) tokens[i] = 0;
  }
  return kept.token[draw_list(kept, tokens, top, a.seeds[row], a.positions[row])];
}

// The sum of e^(score / temperature - top) over all scores.
inline float mass(const float* scores, float top, float temperature, int64_t vocab) {
  const Vec divisor = splat(temperature), low = splat(-kInf);
  Vec lanes = splat(0.f);
  for (int64_t first = 0; first < vocab; first += kLanes)
    lanes = lanes + exp(unless_nan(load_scores(scores, first, vocab) / divisor, low) - splat(top));
  return sum(lanes);
}

// The share of one score in the softmax of all, 0 where that is no number.
inline float share(const float* scores, int64_t place, float temperature, int64_t vocab) {
  int64_t first_best;
  const float top = scaled(highest(scores, vocab, &first_best), temperature), own = scaled(scores[place], temperature);
  if (own == -kInf || top == kInf) return 0;
  float lone[kLanes];
  store(lone, exp(splat(own - top)));
  return lone[0] / mass(scores, top, temperature, vocab);
}

void draw(const DrawArgs& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t place = draw_place(a, row);
    a.out[row] = a.ids ? a.ids[place] : place;
    const float temperature = a.temperatures[row];
    if (a.probs) a.probs[row] = share(a.scores + row * a.vocab, place, temperature == 0 ? 1 : temperature, a.vocab);
  }
}

}  // namespace
}  // namespace parlay
