// Sixteen float lanes on every instruction set.
//
// A Vec is one AVX-512 register, two AVX2 registers or four of NEON or the baseline, but always sixteen lanes that
// are summed in one order, so a kernel is written once and its sums do not depend on the register width.
// Everything lives in an unnamed namespace: this header is compiled several times with different flags, and a
// shared symbol would let the linker hand AVX-512 code to a machine without it. For the same reason no file
// that includes it uses the standard library's templates.
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(PARLAY_NEON)
#include <arm_neon.h>
#if defined(__ARM_FEATURE_DOTPROD)
#define PARLAY_NEON_DOT 1
#endif
#if defined(__ARM_FEATURE_MATMUL_INT8)
#define PARLAY_NEON_I8MM 1
#endif
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define PARLAY_NEON_BF16 1
#endif
#endif

#define PARLAY_INLINE inline __attribute__((always_inline))

namespace parlay {
namespace {

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define PARLAY_AVX512 1
constexpr int kWidth = 16;
#elif defined(__AVX2__) && defined(__FMA__)
#define PARLAY_AVX2 1
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif
constexpr int kLanes = 16;
constexpr int kParts = kLanes / kWidth;

typedef float Part __attribute__((vector_size(kWidth * 4)));
typedef uint32_t PartU __attribute__((vector_size(kWidth * 4)));
typedef int32_t PartI __attribute__((vector_size(kWidth * 4)));
typedef uint16_t PartH __attribute__((vector_size(kWidth * 2)));

struct bf16 {
  uint16_t bits;
};

struct fp16 {
  uint16_t bits;
};
typedef uint16_t half;  // its bits alone

struct Vec {
  Part p[kParts];
};

#define PARLAY_EACH _Pragma("GCC unroll 4") for (int i = 0; i < kParts; ++i)

PARLAY_INLINE Vec splat(float x) {
  Vec r;
  PARLAY_EACH r.p[i] = x - Part{};
  return r;
}
PARLAY_INLINE Vec operator+(const Vec& a, const Vec& b) {
  Vec r;
  PARLAY_EACH r.p[i] = a.p[i] + b.p[i];
  return r;
}
PARLAY_INLINE Vec operator-(const Vec& a, const Vec& b) {
  Vec r;
  PARLAY_EACH r.p[i] = a.p[i] - b.p[i];
  return r;
}
PARLAY_INLINE Vec operator*(const Vec& a, const Vec& b) {
  Vec r;
  PARLAY_EACH r.p[i] = a.p[i] * b.p[i];
  return r;
}
PARLAY_INLINE Vec operator/(const Vec& a, const Vec& b) {
  Vec r;
  PARLAY_EACH r.p[i] = a.p[i] / b.p[i];
  return r;
}
// Has x computed here and kept in a register. Left to itself, the compiler moves unrolled sums to where they are used,
// and what they add up fills more registers than there are.
template <class P>
PARLAY_INLINE void pin(P& x) {
#if defined(PARLAY_AVX512)
  __asm__("" : "+v"(x));
#elif defined(PARLAY_AVX2)
  __asm__("" : "+x"(x));
#else
  (void)x;
#endif
}

// The larger lane; where one is NaN, or both are zero, b. The compiler takes two instructions for what x86 has one for.
PARLAY_INLINE Vec larger(const Vec& a, const Vec& b) {
  Vec r;
#if defined(PARLAY_AVX512)
  r.p[0] = (Part)_mm512_max_ps((__m512)a.p[0], (__m512)b.p[0]);
#elif defined(PARLAY_AVX2)
  PARLAY_EACH r.p[i] = (Part)_mm256_max_ps((__m256)a.p[i], (__m256)b.p[i]);
#else
  PARLAY_EACH r.p[i] = a.p[i] > b.p[i] ? a.p[i] : b.p[i];
#endif
  return r;
}
// The smaller lane, likewise.
PARLAY_INLINE Vec smaller(const Vec& a, const Vec& b) {
  Vec r;
#if defined(PARLAY_AVX512)
  r.p[0] = (Part)_mm512_min_ps((__m512)a.p[0], (__m512)b.p[0]);
#elif defined(PARLAY_AVX2)
  PARLAY_EACH r.p[i] = (Part)_mm256_min_ps((__m256)a.p[i], (__m256)b.p[i]);
#else
  PARLAY_EACH r.p[i] = a.p[i] < b.p[i] ? a.p[i] : b.p[i];
#endif
  return r;
}
// Where a lane of x is NaN, the lane of other.
PARLAY_INLINE Vec unless_nan(const Vec& x, const Vec& other) {
  Vec r;
  PARLAY_EACH r.p[i] = x.p[i] == x.p[i] ? x.p[i] : other.p[i];
  return r;
}

// a * b + c: one rounding where the instruction set has it, two on the baseline.
PARLAY_INLINE Vec fma(const Vec& a, const Vec& b, const Vec& c) {
  Vec r;
#if defined(PARLAY_AVX512)
  r.p[0] = _mm512_fmadd_ps(a.p[0], b.p[0], c.p[0]);
#elif defined(PARLAY_AVX2)
  PARLAY_EACH r.p[i] = _mm256_fmadd_ps(a.p[i], b.p[i], c.p[i]);
#elif defined(PARLAY_NEON)
  PARLAY_EACH r.p[i] = vfmaq_f32(c.p[i], a.p[i], b.p[i]);
#else
  PARLAY_EACH r.p[i] = a.p[i] * b.p[i] + c.p[i];
#endif
  return r;
}

PARLAY_INLINE Vec load(const float* from) {
  Vec r;  // part by part: a whole Vec of several registers would be copied through memory
  PARLAY_EACH memcpy(&r.p[i], from + i * kWidth, sizeof(Part));
  return r;
}
PARLAY_INLINE void store(float* to, const Vec& v) {
  PARLAY_EACH memcpy(to + i * kWidth, &v.p[i], sizeof(Part));
}

// Sixteen bits to the low half of 32 and back. The compiler's own conversions go through halves of a register.
PARLAY_INLINE PartU widen(const bf16* from) {
#if defined(PARLAY_AVX512)
  return (PartU)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from));
#elif defined(PARLAY_AVX2)
  return (PartU)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)from));
#else
  PartH h;
  memcpy(&h, from, sizeof h);
  return __builtin_convertvector(h, PartU);
#endif
}
PARLAY_INLINE void narrow(bf16* to, const PartU& low) {
#if defined(PARLAY_AVX512)
  _mm256_storeu_si256((__m256i*)to, _mm512_cvtepi32_epi16((__m512i)low));
#else
  const PartH h = __builtin_convertvector(low, PartH);
  memcpy(to, &h, sizeof h);
#endif
}

PARLAY_INLINE Vec load(const bf16* from) {
  Vec r;
  PARLAY_EACH r.p[i] = (Part)(widen(from + i * kWidth) << 16);
  return r;
}

PARLAY_INLINE float half_to_float(half h) {
  const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff;
  uint32_t bits = sign | (exponent + 112) << 23 | fraction << 13;
  if (exponent == 31) bits = sign | 0x7f800000 | fraction << 13;
  float value;
  memcpy(&value, &bits, 4);
  if (exponent == 0) value = (float)fraction * 0x1p-24f * (sign ? -1.f : 1.f);
  return value;
}

PARLAY_INLINE float to_float(fp16 x) { return half_to_float(x.bits); }
PARLAY_INLINE float to_float(bf16 x) {
  const uint32_t bits = (uint32_t)x.bits << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

PARLAY_INLINE Vec load(const fp16* from) {
  Vec r;
#if defined(PARLAY_AVX512)
  r.p[0] = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#elif defined(PARLAY_AVX2)
  PARLAY_EACH r.p[i] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(from + i * kWidth)));
#elif defined(PARLAY_NEON)
  PARLAY_EACH r.p[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t*)(from + i * kWidth))));
#else
  PARLAY_EACH for (int lane = 0; lane < kWidth; ++lane) r.p[i][lane] = half_to_float(from[i * kWidth + lane].bits);
#endif
  return r;
}

PARLAY_INLINE PartU bf16_bits(const Part& p) {  // to nearest, ties to even; NaN stays NaN
  const PartU u = (PartU)p;
  const PartU rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  return p == p ? rounded : (u >> 16) | 0x40;
}
PARLAY_INLINE void store(bf16* to, const Vec& v) {
  PARLAY_EACH narrow(to + i * kWidth, bf16_bits(v.p[i]));
}

// The value that a store to T followed by a load would give.
template <class T>
PARLAY_INLINE Vec rounded(const Vec& v);
template <>
PARLAY_INLINE Vec rounded<float>(const Vec& v) {
  return v;
}
template <>
PARLAY_INLINE Vec rounded<bf16>(const Vec& v) {
  Vec r;
  PARLAY_EACH r.p[i] = (Part)(bf16_bits(v.p[i]) << 16);
  return r;
}

// Stores what is rounded already.
PARLAY_INLINE void store_rounded(float* to, const Vec& v) { store(to, v); }
PARLAY_INLINE void store_rounded(bf16* to, const Vec& v) {
  PARLAY_EACH narrow(to + i * kWidth, (PartU)v.p[i] >> 16);
}

// The first n < 16 lanes; the others are zero. Tails run through the same sixteen-lane code as the body,
// so an element's bits do not depend on where in the row it stands.
template <class T>
PARLAY_INLINE Vec load_some(const T* from, int n) {
  T lanes[kLanes] = {};
  for (int i = 0; i < n; ++i) lanes[i] = from[i];
  return load(lanes);
}
template <class T>
PARLAY_INLINE void store_some(T* to, const Vec& v, int n) {
  T lanes[kLanes];
  store(lanes, v);
  for (int i = 0; i < n; ++i) to[i] = lanes[i];
}

// Calls body(first, n) for every sixteen elements of a row; n < 16 only at the end.
#define PARLAY_ROW(first, n, width)                                                  \
  for (int64_t first = 0, n = 0;                                                     \
       n = (width) - first < kLanes ? (width) - first : kLanes, first < (width);     \
       first += kLanes)

template <class T>
PARLAY_INLINE Vec load_at(const T* row, int64_t first, int64_t n) {
  return n == kLanes ? load(row + first) : load_some(row + first, (int)n);
}
template <class T>
PARLAY_INLINE void store_at(T* row, const Vec& v, int64_t first, int64_t n) {
  if (n == kLanes)
    store(row + first, v);
  else
    store_some(row + first, v, (int)n);
}

// Lanes are added in halves: l with l + 8, then l + 4, l + 2, l + 1. `sums` keeps this order.
PARLAY_INLINE float sum(const Vec& v) {
  float lanes[kLanes];
  store(lanes, v);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}
PARLAY_INLINE float maximum(const Vec& v) {
#if defined(PARLAY_AVX512) || defined(PARLAY_AVX2)  // the same in registers
#if defined(PARLAY_AVX512)
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256((__m512)v.p[0]), _mm512_extractf32x8_ps((__m512)v.p[0], 1));
#else
  const __m256 eight = _mm256_max_ps((__m256)v.p[0], (__m256)v.p[1]);
#endif
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
#else
  float lanes[kLanes];
  store(lanes, v);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
  return lanes[0];
#endif
}

template <int... lane>
struct Lanes {};
template <int n, int... lane>
struct CountLanes : CountLanes<n - 1, n - 1, lane...> {};
template <int... lane>
struct CountLanes<0, lane...> {
  typedef Lanes<lane...> type;
};
typedef CountLanes<kWidth>::type EachLane;

// Folds a into the lower and b into the upper half of every group of 2 * half lanes.
template <int half, int... l>
PARLAY_INLINE Part fold(const Part& a, const Part& b, Lanes<l...>) {
  return __builtin_shufflevector(a, b, (l % (2 * half) < half ? l : kWidth + l - half)...) +
         __builtin_shufflevector(a, b, (l % (2 * half) < half ? l + half : kWidth + l)...);
}
template <int half>
PARLAY_INLINE void fold_all(Part* part) {
  _Pragma("GCC unroll 8") for (int i = 0; i < half; ++i) part[i] = fold<half>(part[i], part[i + half], EachLane());
  if constexpr (half > 1) fold_all<half / 2>(part);
}

// Lane i of the result is sum(v[i]), bit for bit.
PARLAY_INLINE Vec sums(const Vec* v) {
  Vec r;
  _Pragma("GCC unroll 4") for (int g = 0; g < kParts; ++g) {
    Part part[kWidth];
    _Pragma("GCC unroll 16") for (int k = 0; k < kWidth; ++k) {
      Vec x = v[g * kWidth + k];
      _Pragma("GCC unroll 2") for (int n = kParts / 2; n > 0; n /= 2)
        _Pragma("GCC unroll 2") for (int i = 0; i < n; ++i) x.p[i] += x.p[i + n];
      part[k] = x.p[0];
    }
    fold_all<kWidth / 2>(part);
    r.p[g] = part[0];
  }
  return r;
}

// Exchanges the upper half of every group of 2 * half lanes of a with the lower half of b's.
template <int half, int... l>
PARLAY_INLINE void exchange(Part& a, Part& b, Lanes<l...>) {
  const Part lower = __builtin_shufflevector(a, b, (l % (2 * half) < half ? l : kWidth + l - half)...);
  b = __builtin_shufflevector(a, b, (l % (2 * half) < half ? l + half : kWidth + l)...);
  a = lower;
}
// Lane l of part k becomes lane k of part l.
template <int half = kWidth / 2>
PARLAY_INLINE void transpose(Part* part) {
  _Pragma("GCC unroll 16") for (int k = 0; k < kWidth; ++k)
    if (!(k & half)) exchange<half>(part[k], part[k + half], EachLane());
  if constexpr (half > 1) transpose<half / 2>(part);
}

// Bit i says whether a <= b in lane i; NaN is never.
PARLAY_INLINE uint32_t not_above(const Vec& a, const Vec& b) {
#if defined(PARLAY_AVX512)
  return _mm512_cmp_ps_mask(a.p[0], b.p[0], _CMP_LE_OQ);
#elif defined(PARLAY_AVX2)
  uint32_t r = 0;
  PARLAY_EACH r |= (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a.p[i], b.p[i], _CMP_LE_OQ)) << (i * kWidth);
  return r;
#elif defined(PARLAY_NEON)
  PartU bits = {};
  PARLAY_EACH bits |= (PartU)(a.p[i] <= b.p[i]) & (PartU{1, 2, 4, 8} << (i * kWidth));
  return vaddvq_u32(bits);
#else
  uint32_t r = 0;
  PARLAY_EACH for (int l = 0; l < kWidth; ++l) r |= (uint32_t)(a.p[i][l] <= b.p[i][l]) << (i * kWidth + l);
  return r;
#endif
}

}  // namespace
}  // namespace parlay
