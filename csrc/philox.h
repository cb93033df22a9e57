// Philox4x32-10 (Salmon et al. 2011), the counter-based generator behind every draw.
//
// key = seed; counter = (token / 4, low position, stream, high position); token % 4 picks the word.
#pragma once

#include "vec.h"

namespace parlay {
namespace {

constexpr uint32_t kMul0 = 0xd2511f53, kMul1 = 0xcd9e8d57;   // the paper's multipliers
constexpr uint32_t kStep0 = 0x9e3779b9, kStep1 = 0xbb67ae85;  // golden ratio, sqrt(3) - 1

inline void philox_words(const uint32_t* counter, uint32_t key0, uint32_t key1, uint32_t* out) {
  uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
  for (int round = 0; round < 10; ++round, key0 += kStep0, key1 += kStep1) {
    const uint64_t p0 = (uint64_t)kMul0 * c0, p1 = (uint64_t)kMul1 * c2;
    c0 = (uint32_t)(p1 >> 32) ^ c1 ^ key0;
    c1 = (uint32_t)p1;
    c2 = (uint32_t)(p0 >> 32) ^ c3 ^ key1;
    c3 = (uint32_t)p0;
  }
  out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

typedef uint64_t PartU64 __attribute__((vector_size(kWidth * 4)));

// Products of the even 32-bit lanes.
PARLAY_INLINE PartU64 mul_even(const PartU64& a, uint32_t m) {
#if defined(PARLAY_AVX512)
  return (PartU64)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64(m));
#elif defined(PARLAY_AVX2)
  return (PartU64)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(m));
#elif defined(__x86_64__)
  return (PartU64)_mm_mul_epu32((__m128i)a, _mm_set1_epi64x(m));
#elif defined(PARLAY_NEON)
  return (PartU64)vmull_n_u32(vmovn_u64((uint64x2_t)a), m);
#else
  return (a & 0xffffffff) * (uint64_t)m;
#endif
}

PARLAY_INLINE void mul_wide(const PartU& a, uint32_t m, PartU& high, PartU& low) {
  const PartU64 even = mul_even((PartU64)a, m), odd = mul_even((PartU64)a >> 32, m);
  const PartU64 upper = PartU64{} + 0xffffffff00000000u;
  high = (PartU)((even >> 32) | (odd & upper));
  low = (PartU)((even & ~upper) | (odd << 32));
}

template <int... l>
PARLAY_INLINE void zip(const PartU& a, const PartU& b, PartU* out, Lanes<l...>) {
  out[0] = __builtin_shufflevector(a, b, (l % 2 * kWidth + l / 2)...);
  out[1] = __builtin_shufflevector(a, b, (l % 2 * kWidth + (kWidth + l) / 2)...);
}

constexpr int kNoiseBlock = 4 * kLanes;

// The four words of each counter (c0, position, stream 0) whose first part c0 is given.
PARLAY_INLINE void philox_parts(uint64_t seed, int64_t position, PartU& c0, PartU& c1, PartU& c2, PartU& c3) {
  c1 = PartU{} + (uint32_t)position, c2 = PartU{}, c3 = PartU{} + (uint32_t)((uint64_t)position >> 32);
  uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
  for (int round = 0; round < 10; ++round, key0 += kStep0, key1 += kStep1) {
    PartU high0, low0, high1, low1;
    mul_wide(c0, kMul0, high0, low0);
    mul_wide(c2, kMul1, high1, low1);
    c0 = high1 ^ c1 ^ key0;
    c1 = low1;
    c2 = high0 ^ c3 ^ key1;
    c3 = low0;
  }
}

// The words of the tokens 64 * block .. 64 * block + 63 in stream 0.
PARLAY_INLINE void philox_block(uint64_t seed, int64_t position, int64_t block, uint32_t* out) {
  _Pragma("GCC unroll 4") for (int i = 0; i < kParts; ++i) {
    PartU count;
    for (int l = 0; l < kWidth; ++l) count[l] = l;
    PartU c0 = count + (uint32_t)(block * kLanes + i * kWidth), c1, c2, c3;
    philox_parts(seed, position, c0, c1, c2, c3);
    PartU even[2], odd[2], words[4];
    zip(c0, c2, even, EachLane());
    zip(c1, c3, odd, EachLane());
    zip(even[0], odd[0], words, EachLane());
    zip(even[1], odd[1], words + 2, EachLane());
    memcpy(out + i * 4 * kWidth, words, sizeof words);
  }
}

// The words of any sixteen tokens in stream 0.
PARLAY_INLINE void philox_tokens(uint64_t seed, int64_t position, const int32_t* tokens, uint32_t* out) {
  PARLAY_EACH {
    PartU token;
    memcpy(&token, tokens + i * kWidth, sizeof token);
    PartU c0 = token >> 2, c1, c2, c3;
    philox_parts(seed, position, c0, c1, c2, c3);
    const PartU lower = (token & 1) == 0 ? c0 : c1, upper = (token & 1) == 0 ? c2 : c3;
    const PartU word = (token & 2) == 0 ? lower : upper;
    memcpy(out + i * kWidth, &word, sizeof word);
  }
}

}  // namespace
}  // namespace parlay
