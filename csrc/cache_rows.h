// Rows of the KV cache in eight bits: blocks of 32 numbers that share a scale, as GGUF's Q8_0 stores them.
//
// A row depends on its own numbers alone: it has the same bits however it came into the cache. A number is read as
// scale * code, rounded to T.
#pragma once

#include "quantise.h"
#include "table.h"
#include "vec.h"

namespace parlay {
namespace {

constexpr int64_t kMostDim = 1024;  // elements of a head; operations.cpp sees to it

constexpr half kNaN = 0x7e00;

constexpr int64_t row_bytes(int64_t dim) { return dim / kChunk * Q8_0::stored; }

// A block's scale in all lanes.
PARLAY_INLINE Vec scale_at(const uint8_t* block) {
  const half scale = half_at(block);
#if defined(PARLAY_AVX512)
  return {(Part)_mm512_cvtph_ps(_mm256_set1_epi16((int16_t)scale))};
#elif defined(PARLAY_AVX2)
  const Part all = (Part)_mm256_cvtph_ps(_mm_set1_epi16((int16_t)scale));
  return {all, all};
#else
  return splat(half_to_float(scale));
#endif
}

PARLAY_INLINE Vec load(const int8_t* from) {
  Vec r;
#if defined(PARLAY_AVX512)
  r.p[0] = (Part)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from)));
#elif defined(PARLAY_AVX2)
  PARLAY_EACH r.p[i] = (Part)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(from + i * kWidth))));
#else
  typedef int8_t PartB __attribute__((vector_size(kWidth)));
  PARLAY_EACH {
    PartB b;
    memcpy(&b, from + i * kWidth, sizeof b);
    r.p[i] = __builtin_convertvector(__builtin_convertvector(b, PartI), Part);
  }
#endif
  return r;
}

// Stores a block's numbers, whose products with a float16 scale are NaN or within what bfloat16 has normal numbers for:
// none of the cases that `store` has more instructions for.
PARLAY_INLINE void store_block(bf16* to, const Vec& a, const Vec& b) {
#if defined(PARLAY_AVX512) && defined(__AVX512BF16__)
  _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh((__m512)b.p[0], (__m512)a.p[0]));
#else
  const auto rounded = [](const Part& p) __attribute__((always_inline)) {
    const PartU u = (PartU)p;
    return (u + 0x7fff + (u >> 16 & 1)) >> 16;
  };
#if defined(PARLAY_AVX2)
  const auto pack = [&](bf16* here, const Vec& v) __attribute__((always_inline)) {
    const __m256i both = _mm256_packus_epi32((__m256i)rounded(v.p[0]), (__m256i)rounded(v.p[1]));
    _mm256_storeu_si256((__m256i*)here, _mm256_permute4x64_epi64(both, 0xd8));
  };
  pack(to, a);
  pack(to + kLanes, b);
#else
  PARLAY_EACH narrow(to + i * kWidth, rounded(a.p[i]));
  PARLAY_EACH narrow(to + kLanes + i * kWidth, rounded(b.p[i]));
#endif
#endif
}
PARLAY_INLINE void store_block(float* to, const Vec& a, const Vec& b) {
  store(to, a);
  store(to + kLanes, b);
}

// Reads a row of `dim` numbers.
template <class T>
PARLAY_INLINE void read_row(const uint8_t* from, int64_t dim, T* to) {
  for (int64_t d = 0; d < dim; d += kChunk, from += Q8_0::stored) {
    const Vec scale = scale_at(from);
    const int8_t* codes = (const int8_t*)from + sizeof(half);
    store_block(to + d, load(codes) * scale, load(codes + kLanes) * scale);
  }
}

// Writes a row of `dim` numbers. Blocks with one that is not finite read as NaN. The twin is weights/quantise.py.
template <class T>
PARLAY_INLINE void write_row(const T* from, int64_t dim, uint8_t* to) {
  for (int64_t d = 0; d < dim; d += kChunk, to += Q8_0::stored) {
    Vec x[kChunk / kLanes], most = splat(0.f), none = splat(0.f);
    for (int i = 0; i < kChunk / kLanes; ++i) {
      x[i] = load(from + d + i * kLanes);
      most = larger(larger(x[i], splat(0.f) - x[i]), most);
      none = none + (x[i] - x[i]);  // 0, or NaN
    }
    const bool finite = sum(none) == 0;
    const half bits = finite ? to_half(maximum(most) / 127.f) : kNaN;
    const Vec scale = splat(finite ? half_to_float(bits) : 0.f);
    memcpy(to, &bits, sizeof bits);
    for (int i = 0; i < kChunk / kLanes; ++i) {
      float levels[kLanes];
      const Vec whole = where_nonzero(scale, to_nearest(x[i] / scale));
      store(levels, larger(smaller(whole, splat(127.f)), splat(-127.f)));
      for (int lane = 0; lane < kLanes; ++lane) to[sizeof bits + i * kLanes + lane] = (uint8_t)(int8_t)levels[lane];
    }
  }
}

}  // namespace
}  // namespace parlay
