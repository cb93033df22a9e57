// Draws a token by the Gumbel-max trick with keyed noise: argmax of score / temperature + G(seed, position, token).
#pragma once

#include "elementary.h"
#include "philox.h"
#include "table.h"

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

constexpr float kInf = __builtin_inff();

PARLAY_INLINE float scaled(float score, float temperature) {
  const float s = score / temperature;
  return s == s ? s : -kInf;
}

// The highest score, NaN apart, and the first token that has it (0 where nothing is above -inf).
inline float highest(const float* scores, int64_t vocab, int64_t* token) {
  const Vec low = splat(-kInf);
  Vec most = low;
  const int64_t whole = vocab / kLanes * kLanes;
  for (int64_t v = 0; v < whole; v += kLanes) most = larger(load(scores + v), most);
  float top = maximum(most);
  for (int64_t v = whole; v < vocab; ++v) top = scores[v] > top ? scores[v] : top;
  *token = 0;
  if (top > -kInf)
    while (scores[*token] != top) ++*token;
  return top;
}

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

void draw(const DrawArgs& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row)
    a.out[row] =
        draw_row(a.scores + row * a.vocab, a.temperatures[row], a.seeds[row], a.positions[row], a.vocab);
}

}  // namespace
}  // namespace parlay
