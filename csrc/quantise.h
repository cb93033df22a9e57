// Plain numbers as blocks of 32 that share a scale, written as a GGUF file stores them: Q8_0 and Q4_1.
//
// Lanes are blocks: sixteen neighbours are quantised at once, their inputs in order. Each product, quotient and sum is
// rounded by itself, so that all processors, and the twin in weights/quantise.py, make the same of a checkpoint.
#pragma once

#include "formats.h"
#include "table.h"
#include "vec.h"

namespace parlay {
namespace {

constexpr int kTries = 21;  // scales that are compared for each block of four bits

// To nearest, ties to even.
PARLAY_INLINE half to_half(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  const half sign = (half)(bits >> 16 & 0x8000);
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return sign | 0x7e00;
  if (bits >= 0x477ff000) return sign | 0x7c00;
  if (bits < 0x38800000) {  // added to a half, it is rounded as the smallest float16 numbers are
    float size;
    memcpy(&size, &bits, 4);
    size += 0.5f;
    memcpy(&bits, &size, 4);
    return sign | (half)(bits - 0x3f000000);
  }
  return sign | (half)((bits + 0xfff + (bits >> 13 & 1) - 0x38000000) >> 13);
}

PARLAY_INLINE Vec to_nearest(const Vec& x) {  // of less than 2^22, ties to even
  const Vec big = splat(0x1.8p23f);
  return x + big - big;
}

// Of sixteen blocks: their numbers, an input after another.
struct Columns {
  Vec x[kChunk];

  template <class T>
  Columns(const T* from, int64_t blocks) {
    alignas(64) float lanes[kChunk][kLanes] = {};
    for (int64_t block = 0; block < blocks; ++block) {
      float row[kChunk];
      for (int i = 0; i < kChunk; i += kLanes) store(row + i, load(from + block * kChunk + i));
      for (int i = 0; i < kChunk; ++i) lanes[i][block] = row[i];
    }
    for (int i = 0; i < kChunk; ++i) x[i] = load(lanes[i]);
  }
};

// float16 of each lane, as a file has it and as a number.
struct Halves {
  half bits[kLanes];
  Vec value;

  explicit Halves(const Vec& from) {
    float lanes[kLanes];
    store(lanes, from);
    for (int i = 0; i < kLanes; ++i) bits[i] = to_half(lanes[i]), lanes[i] = half_to_float(bits[i]);
    value = load(lanes);
  }
};

PARLAY_INLINE Vec where_nonzero(const Vec& x, const Vec& then) {  // elsewhere 0
  Vec r;
  PARLAY_EACH r.p[i] = x.p[i] != 0 ? then.p[i] : Part{};
  return r;
}

// Codes of sixteen blocks, an input after another.
struct Levels {
  float of[kChunk][kLanes];
};

// Writes Q8_0: scale, codes.
void write_bytes(const Columns& c, int64_t blocks, uint8_t* out) {
  Vec most = splat(0.f);
  for (int i = 0; i < kChunk; ++i) most = larger(larger(c.x[i], splat(0.f) - c.x[i]), most);
  const Halves scale(most / splat(127.f));
  Levels level;
  for (int i = 0; i < kChunk; ++i) {
    const Vec whole = where_nonzero(scale.value, to_nearest(c.x[i] / scale.value));
    store(level.of[i], larger(smaller(whole, splat(127.f)), splat(-127.f)));
  }
  for (int64_t block = 0; block < blocks; ++block, out += Q8_0::stored) {
    memcpy(out, scale.bits + block, sizeof(half));
    for (int i = 0; i < kChunk; ++i) out[2 + i] = (uint8_t)(int8_t)level.of[i][block];
  }
}

// What levels 0 to 15 of a block's numbers above its least one make of it: scale and minimum of least squared error,
// and by how much less that is than the squares themselves.
struct Fit {
  Vec scale, least, gain;

  template <class Level>
  Fit(const Vec* y, const Vec& sum, Level level_of) {
    const Vec n = splat((float)kChunk), one = splat(1.f);
    Vec levels = splat(0.f), squares = splat(0.f), products = splat(0.f);
    for (int i = 0; i < kChunk; ++i) {
      const Vec level = larger(smaller(to_nearest(level_of(y[i])), splat(15.f)), splat(0.f));
      levels = levels + level, squares = squares + level * level, products = products + level * y[i];
    }
    const Vec determinant = larger(n * squares - levels * levels, one);  // whole, and 0 where all levels are equal
    scale = (n * products - levels * sum) / determinant;
    least = (squares * sum - levels * products) / determinant;
    gain = scale * products + least * sum;
  }
};

PARLAY_INLINE Vec choose(const Vec& a, const Vec& b, const Vec& then, const Vec& otherwise) {  // then where a > b
  Vec r;
  PARLAY_EACH r.p[i] = a.p[i] > b.p[i] ? then.p[i] : otherwise.p[i];
  return r;
}

// Writes Q4_1: scale, minimum, codes.
void write_nibbles(const Columns& c, int64_t blocks, uint8_t* out) {
  Vec low = c.x[0], high = c.x[0], sum = splat(0.f), y[kChunk];
  for (int i = 1; i < kChunk; ++i) low = smaller(c.x[i], low), high = larger(c.x[i], high);
  for (int i = 0; i < kChunk; ++i) y[i] = c.x[i] - low, sum = sum + y[i];
  const Vec range = high - low;
  Vec scale = range / splat(15.f), least = splat(0.f), gain = splat(0.f);
  for (int i = 0; i < kTries; ++i) {
    const Vec inverse = where_nonzero(range, (splat(14.f) + splat(0.1f) * splat((float)i)) / range);
    const Fit fit(y, sum, [&](const Vec& x) __attribute__((always_inline)) { return x * inverse; });
    scale = choose(fit.gain, gain, fit.scale, scale), least = choose(fit.gain, gain, fit.least, least);
    gain = choose(fit.gain, gain, fit.gain, gain);
  }
  const Vec inverse = where_nonzero(scale, splat(1.f) / scale);
  const Fit fit(y, sum, [&](const Vec& x) __attribute__((always_inline)) { return (x - least) * inverse; });
  scale = choose(fit.gain, gain, fit.scale, scale), least = choose(fit.gain, gain, fit.least, least);
  const Halves factor(scale), minimum(least + low);
  Levels level;
  for (int i = 0; i < kChunk; ++i) {
    const Vec whole = where_nonzero(factor.value, to_nearest((c.x[i] - minimum.value) / factor.value));
    store(level.of[i], larger(smaller(whole, splat(15.f)), splat(0.f)));
  }
  for (int64_t block = 0; block < blocks; ++block, out += Q4_1::stored) {
    memcpy(out, factor.bits + block, sizeof(half));
    memcpy(out + 2, minimum.bits + block, sizeof(half));
    for (int i = 0; i < kChunk / 2; ++i)
      out[4 + i] = (uint8_t)((int)level.of[i][block] | (int)level.of[kChunk / 2 + i][block] << 4);
  }
}

// Rows begin..end of a matrix, each of a.blocks blocks.
template <class T>
void quantise_rows(const QuantiseArgs& a, int64_t begin, int64_t end) {
  const int64_t stored = a.kind == 8 ? Q8_0::stored : Q4_1::stored;
  for (int64_t block = begin * a.blocks; block < end * a.blocks; block += kLanes) {
    const int64_t left = end * a.blocks - block, count = left < kLanes ? left : kLanes;
    const Columns columns((const T*)a.numbers + block * kChunk, count);
    (a.kind == 8 ? write_bytes : write_nibbles)(columns, count, (uint8_t*)a.out + block * stored);
  }
}

void quantise(const QuantiseArgs& a, int64_t begin, int64_t end) {
  if (a.numbers_kind == kF16)
    quantise_rows<fp16>(a, begin, end);
  else if (a.numbers_kind == kBF16)
    quantise_rows<bf16>(a, begin, end);
  else
    quantise_rows<float>(a, begin, end);
}

}  // namespace
}  // namespace parlay
