// out = x weight^T for quantised weights: exact integer sums within a group of inputs, float32 between groups.
//
// A row is quantised to eight bits first, each 32 inputs with a scale of their own (the largest is 127). Then, group
// after group of the weight's format in order of inputs, whatever the number of rows and the instruction set:
//   total += float(sum of code * x) * (weight's scale * row's scale)
//   total += minimum * (row's scale * float(sum of x))        in formats with a minimum
// with each product and sum rounded by itself, so that all processors, and the twin, give the same bits.
//
// As in linear.h lanes lie along the outputs, and up to kRows rows take one pass over the weights, whose codes are
// unpacked once for all of them.
#pragma once

#include "formats.h"
#include "linear.h"
#include "rows.h"
#include "table.h"
#include "vec.h"

namespace parlay {
namespace {

// 32 inputs of a row; a cache line.
struct alignas(64) Chunk {
  int8_t x[kChunk];
  float scale;
  int32_t sums[2], sum;    // of x: of each half, and of all
  float parts[2], part;    // the same times the scale
};

// Integers of the lanes.
struct Ints {
  PartI p[kParts];
};

PARLAY_INLINE int32_t greatest(const PartI& x) {  // of lanes of at least 0
#if defined(PARLAY_AVX512)
  return _mm512_reduce_max_epi32((__m512i)x);
#elif defined(PARLAY_NEON)
  return vmaxvq_s32(x);
#else
  int32_t most = 0;
  for (int lane = 0; lane < kWidth; ++lane) most = x[lane] > most ? x[lane] : most;
  return most;
#endif
}

// Writes integers that fit into bytes; returns their sum.
PARLAY_INLINE int32_t store_bytes(int8_t* to, const Ints& x) {
#if defined(PARLAY_AVX512)
  _mm_storeu_si128((__m128i*)to, _mm512_cvtepi32_epi8((__m512i)x.p[0]));
  return _mm512_reduce_add_epi32((__m512i)x.p[0]);
#elif defined(PARLAY_AVX2)
  const __m256i pairs = _mm256_permute4x64_epi64(_mm256_packs_epi32((__m256i)x.p[0], (__m256i)x.p[1]), 0xd8);
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
  _mm_storeu_si128((__m128i*)to, bytes);
  const __m256i all = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
  const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
#elif defined(PARLAY_NEON)
  const int16x8_t low = vcombine_s16(vmovn_s32(x.p[0]), vmovn_s32(x.p[1]));
  const int16x8_t high = vcombine_s16(vmovn_s32(x.p[2]), vmovn_s32(x.p[3]));
  vst1q_s8(to, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
  return vaddvq_s16(low + high);
#else
  int32_t sum = 0;
  PARLAY_EACH for (int lane = 0; lane < kWidth; ++lane) {
    to[i * kWidth + lane] = (int8_t)x.p[i][lane];
    sum += x.p[i][lane];
  }
  return sum;
#endif
}

// Rows as products take them. Those that fill up a pass are zero.
struct Quantised {
  Chunk* chunks;  // [laid, stride]
  int64_t rows, stride;

  Quantised() = default;
  // The stride is an odd number of lines, so that rows do not compete for the same sets of a cache.
  template <class T>
  Quantised(const T* x, int64_t first_row, int64_t count, int64_t inputs, int64_t laid)
      : rows(count), stride(inputs / kChunk | 1) {
    chunks = (Chunk*)scratch(laid * stride * sizeof(Chunk));
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t chunk = 0; chunk < inputs / kChunk; ++chunk)
        quantise(x + (first_row + row) * inputs + chunk * kChunk, chunks[row * stride + chunk]);
    memset((void*)(chunks + rows * stride), 0, (laid - rows) * stride * sizeof(Chunk));
  }
  const Chunk* at(int64_t row) const { return chunks + row * stride; }

  template <class T>
  static void quantise(const T* x, Chunk& to) {
    constexpr int vecs = kChunk / kLanes;
    Vec value[vecs];
    PartI most = {};
    for (int v = 0; v < vecs; ++v) {
      value[v] = load(x + v * kLanes);
      PARLAY_EACH {  // sizes are ordered as their bits are, infinities and what is not a number above all others
        const PartI size = (PartI)value[v].p[i] & 0x7fffffff;
        most = size > most ? size : most;
      }
    }
    const int32_t bits = greatest(most);
    float largest;
    memcpy(&largest, &bits, 4);
    to.scale = largest / 127.f;
    float inverse = 127.f / largest;
    if (bits >= 0x7f800000) to.scale = largest - largest, inverse = 0;  // is not a number, as every sum with it will be
    if (to.scale < 0x1p-126f) to.scale = inverse = 0;
    for (int v = 0; v < vecs; ++v) {
      // Added to so large a number, a small one is rounded to the nearest whole, ties to even; its bits tell which.
      const Vec big = splat(0x1.8p23f), moved = (bits >= 0x7f800000 ? splat(0.f) : value[v] * splat(inverse)) + big;
      Ints whole;
      PARLAY_EACH whole.p[i] = (PartI)moved.p[i] - (PartI)big.p[i];
      to.sums[v] = store_bytes(to.x + v * kLanes, whole);
    }
    to.sum = to.sums[0] + to.sums[1];
    to.parts[0] = to.scale * (float)to.sums[0], to.parts[1] = to.scale * (float)to.sums[1];
    to.part = to.scale * (float)to.sum;
  }
};

// Codes of four inputs of each output, and how they meet four of a row. Without the instruction for it, codes of eight
// bits are split into sizes and signs: a sum of two products of 255 and 127 does not fit into sixteen bits. NEON takes
// them less their offset, as signed bytes.
#if defined(__AVX512VNNI__) || defined(PARLAY_NEON_I8MM)
constexpr bool kSigned = false;
#elif defined(PARLAY_AVX512) || defined(PARLAY_AVX2) || defined(PARLAY_NEON)
constexpr bool kSigned = true;
#else
constexpr bool kSigned = false;
#endif

template <bool is_signed>
struct Codes {
  PartU p;
};

#if defined(PARLAY_AVX512)
template <>
struct Codes<true> {
  __m512i size;
  __mmask64 negative;
};
#elif defined(PARLAY_AVX2)
template <>
struct Codes<true> {
  __m256i size, level;
};
#endif

PARLAY_INLINE Codes<true> with_sign(const Codes<false>& code) {  // of codes with an offset of 128
  Codes<true> r;
#if defined(PARLAY_AVX512)
  const __m512i level = _mm512_xor_si512((__m512i)code.p, _mm512_set1_epi8((char)0x80));
  r.size = _mm512_abs_epi8(level), r.negative = _mm512_movepi8_mask(level);
#elif defined(PARLAY_AVX2)
  r.level = _mm256_xor_si256((__m256i)code.p, _mm256_set1_epi8((char)0x80));
  r.size = _mm256_abs_epi8(r.level);
#elif defined(PARLAY_NEON)
  r.p = code.p ^ 0x80808080;
#else
  r.p = code.p;
#endif
  return r;
}

// Four inputs of a row, those of step s of a chunk.
#if defined(PARLAY_NEON_DOT)
struct Four {  // instructions take them from a register of sixteen
  int8x16_t sixteen;
  int place;
};
PARLAY_INLINE Four four_at(const Chunk& chunk, int s) { return {vld1q_s8(chunk.x + s / 4 * 16), s % 4}; }
#define PARLAY_EACH_PLACE(dot, total, code, x)              \
  switch (x.place) {                                        \
    case 0: return dot(total, code, x.sixteen, 0);          \
    case 1: return dot(total, code, x.sixteen, 1);          \
    case 2: return dot(total, code, x.sixteen, 2);          \
    default: return dot(total, code, x.sixteen, 3);         \
  }
#else
typedef int32_t Four;
PARLAY_INLINE Four four_at(const Chunk& chunk, int s) {
  Four four;
  memcpy(&four, chunk.x + s * 4, sizeof four);
  return four;
}
#endif

#if defined(PARLAY_NEON)
// total + codes . x of four outputs, for codes that fit into signed bytes.
PARLAY_INLINE PartI dot_signed(const PartI& total, const PartU& code, const Four& x) {
  const int8x16_t level = (int8x16_t)code;
#if defined(PARLAY_NEON_DOT)
  PARLAY_EACH_PLACE(vdotq_laneq_s32, total, level, x)
#else  // a sum of two products of 128 and 127 fits into sixteen bits
  const int8x16_t four = (int8x16_t)vdupq_n_s32(x);
  const int16x8_t low = vmull_s8(vget_low_s8(level), vget_low_s8(four)), high = vmull_high_s8(level, four);
  return vpadalq_s16(total, vpaddq_s16(low, high));
#endif
}
#endif
#if defined(PARLAY_NEON_I8MM)
PARLAY_INLINE PartI dot_unsigned(const PartI& total, const PartU& code, const Four& x) {
  PARLAY_EACH_PLACE(vusdotq_laneq_s32, total, (uint8x16_t)code, x)
}
#endif

// total + codes . x, exactly.
PARLAY_INLINE PartI dot(const PartI& total, const Codes<false>& code, const Four& x) {
#if defined(__AVX512VNNI__)
  return (PartI)_mm512_dpbusd_epi32((__m512i)total, (__m512i)code.p, _mm512_set1_epi32(x));
#elif defined(PARLAY_AVX512)
  const __m512i pairs = _mm512_maddubs_epi16((__m512i)code.p, _mm512_set1_epi32(x));
  return total + (PartI)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#elif defined(PARLAY_AVX2)
  const __m256i pairs = _mm256_maddubs_epi16((__m256i)code.p, _mm256_set1_epi32(x));
  return total + (PartI)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#elif defined(PARLAY_NEON_I8MM)
  return dot_unsigned(total, code.p, x);
#elif defined(PARLAY_NEON)
  return dot_signed(total, code.p, x);
#else
  PartI r = total;
  for (int byte = 0; byte < 32; byte += 8) r += (PartI)(code.p >> byte & 255) * (int32_t)(int8_t)(x >> byte);
  return r;
#endif
}

PARLAY_INLINE PartI dot(const PartI& total, const Codes<true>& code, const Four& x) {
#if defined(PARLAY_AVX512)
  const __m512i four = _mm512_set1_epi32(x);
  const __m512i turned = _mm512_mask_sub_epi8(four, code.negative, _mm512_setzero_si512(), four);
  const __m512i pairs = _mm512_maddubs_epi16(code.size, turned);
  return total + (PartI)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#elif defined(PARLAY_AVX2)
  const __m256i pairs = _mm256_maddubs_epi16(code.size, _mm256_sign_epi8(_mm256_set1_epi32(x), code.level));
  return total + (PartI)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#elif defined(PARLAY_NEON)
  return dot_signed(total, code.p, x);
#else
  (void)code, (void)x;  // no other processor asks
  return total;
#endif
}

// Without VNNI products are summed in sixteen bits first, two of each lane's four inputs together. Sums of so many steps
// fit: codes are below 2^bits, inputs at most 127 in size. In smaller groups there is less to gain than registers take.
#if (defined(PARLAY_AVX512) || defined(PARLAY_AVX2)) && !defined(__AVX512VNNI__)
template <class F>
constexpr int kPairedSteps = F::wide || F::group < kChunk ? 0 : 32767 / (2 * 127 * ((1 << F::bits) - 1));

#if defined(PARLAY_AVX512)
typedef __m512i Pairs;
PARLAY_INLINE Pairs pairs_of(const Codes<false>& code, int32_t x) {
  return _mm512_maddubs_epi16((__m512i)code.p, _mm512_set1_epi32(x));
}
PARLAY_INLINE Pairs add(const Pairs& a, const Pairs& b) { return _mm512_add_epi16(a, b); }
PARLAY_INLINE PartI add(const PartI& total, const Pairs& pairs) {
  return total + (PartI)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
}
#else
typedef __m256i Pairs;
PARLAY_INLINE Pairs pairs_of(const Codes<false>& code, int32_t x) {
  return _mm256_maddubs_epi16((__m256i)code.p, _mm256_set1_epi32(x));
}
PARLAY_INLINE Pairs add(const Pairs& a, const Pairs& b) { return _mm256_add_epi16(a, b); }
PARLAY_INLINE PartI add(const PartI& total, const Pairs& pairs) {
  return total + (PartI)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}
#endif
#else
template <class F>
constexpr int kPairedSteps = 0;
#endif

// The levels of lanes of four indices, plus 128.
PARLAY_INLINE Codes<false> look_up(const uint8_t* levels, const Codes<false>& index) {
  Codes<false> r;
#if defined(PARLAY_AVX512)
  r.p = (PartU)_mm512_shuffle_epi8(_mm512_load_si512(levels), (__m512i)index.p);
#elif defined(PARLAY_AVX2)
  r.p = (PartU)_mm256_shuffle_epi8(_mm256_load_si256((const __m256i*)levels), (__m256i)index.p);
#elif defined(PARLAY_NEON)
  r.p = (PartU)vqtbl1q_u8(vld1q_u8(levels), (uint8x16_t)index.p);
#else
  for (int lane = 0; lane < kWidth; ++lane) {
    uint32_t four = 0;
    for (int byte = 0; byte < 32; byte += 8) four |= (uint32_t)levels[index.p[lane] >> byte & 15] << byte;
    r.p[lane] = four;
  }
#endif
  return r;
}

// Step s of a chunk, for the register of outputs that `chunk` was moved to.
template <class F>
PARLAY_INLINE Codes<F::wide && kSigned> codes_at(const uint8_t* chunk, int s, [[maybe_unused]] const uint8_t* levels) {
  const auto lanes = [](const uint8_t* from) {
    PartU u;
    memcpy(&u, from, sizeof u);
    return u;
  };
  PartU u = {};
  int shift = 0;
  if constexpr (F::bits == 8) u = lanes(chunk + s * kLanesBytes);
  if constexpr (F::nibbles > 0) {
    u = lanes(chunk + s / 2 * kLanesBytes) >> s % 2 * 4 & 0x0f0f0f0f;
    shift = 4;
  }
  if constexpr (F::pairs > 0) {
    u |= (lanes(chunk + F::nibbles + s / 4 * kLanesBytes) >> s % 4 * 2 & 0x03030303) << shift;
    shift += 2;
  }
  if constexpr (F::singles > 0) u |= (lanes(chunk + F::nibbles + F::pairs) >> s & 0x01010101) << shift;
  Codes<false> code = {u};
  if constexpr (F::looked_up) code = look_up(levels, code);
  if constexpr (F::wide && kSigned)
    return with_sign(code);
  else
    return code;
}

// Sixteen small integers as numbers, or some bits of them.
PARLAY_INLINE Vec load_bytes(const uint8_t* from, bool is_signed, int shift = 0, int mask = -1) {
  Vec r;
  PARLAY_EACH {
#if defined(PARLAY_AVX512)
    const __m128i bytes = _mm_loadu_si128((const __m128i*)from);
    const PartI wide = (PartI)(is_signed ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes));
#elif defined(PARLAY_AVX2)
    const __m128i bytes = _mm_loadl_epi64((const __m128i*)(from + i * kWidth));
    const PartI wide = (PartI)(is_signed ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes));
#elif defined(PARLAY_NEON)
    uint32_t four;
    memcpy(&four, from + i * kWidth, sizeof four);
    const uint8x8_t bytes = vcreate_u8(four);
    const PartI wide = is_signed ? (PartI)vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(bytes))))
                                 : (PartI)vmovl_u16(vget_low_u16(vmovl_u8(bytes)));
#else
    PartI wide;
    for (int lane = 0; lane < kWidth; ++lane)
      wide[lane] = is_signed ? (int8_t)from[i * kWidth + lane] : from[i * kWidth + lane];
#endif
    r.p[i] = __builtin_convertvector(wide >> shift & mask, Part);
  }
  return r;
}

// A group's scales, or minimums, of a nested format.
template <class F>
PARLAY_INLINE Vec load_scales(const uint8_t* from) {
  return F::shared ? load_bytes(from, false, 0, 15) : load_bytes(from, true);
}
template <class F>
PARLAY_INLINE Vec load_minimums(const uint8_t* from) {
  return F::shared ? load_bytes(from, false, 4, 15) : load_bytes(from + F::scales, false);
}

// Rows whose sums, codes and scales the registers hold, and registers of outputs beside each other.
#if defined(PARLAY_AVX512)
constexpr int kMostBlockRows = 12;
template <class F>
constexpr int kBlockRows = F::nested || F::least ? 8 : 12;  // small scales and minimums take registers too
template <int R>
constexpr int kBlockParts = 2;
#elif defined(PARLAY_AVX2)
constexpr int kMostBlockRows = 6;
template <class F>
constexpr int kBlockRows = 6;
template <int R>
constexpr int kBlockParts = R > 2 ? 1 : 2;
#else
constexpr int kMostBlockRows = 4;
template <class F>
constexpr int kBlockRows = 4;
template <int R>
constexpr int kBlockParts = kParts;
#endif

// After R, the next number of rows with code of its own; and whether a chunk's steps are unrolled. Without vector
// instructions for it, code is so long that it takes minutes to compile, and gains nothing.
#if defined(PARLAY_AVX512) || defined(PARLAY_AVX2) || defined(PARLAY_NEON)
template <int R>
constexpr int kNextRows = R < 4 ? R + 1 : R + 2;
#define PARLAY_STEPS _Pragma("GCC unroll 8")
#else
template <int R>
constexpr int kNextRows = 4 * R;
#define PARLAY_STEPS _Pragma("GCC unroll 1")
#endif

constexpr int kPanelParts = kPanelVecs * kParts;

#define PARLAY_PARTS _Pragma("GCC unroll 4") for (int p = 0; p < P; ++p)

// Adds a group's products to the sums; where they go through sixteen bits, these begin there with `start`.
template <class F, int R, int P, int steps, class Start>
PARLAY_INLINE void multiply_group(const Chunk* x, int64_t stride, const uint8_t* chunk, int from,
                                  const uint8_t* levels, [[maybe_unused]] Start start, PartI (*sum)[P]) {
  if constexpr (kPairedSteps<F> == 0) {
    PARLAY_STEPS for (int s = from; s < from + steps; ++s) {
      Codes<F::wide && kSigned> w[P];
      PARLAY_PARTS w[p] = codes_at<F>(chunk + p * sizeof(PartU), s, levels);
      PARLAY_ROWS {
        const Four four = four_at(x[r * stride], s);
        PARLAY_PARTS {
          sum[r][p] = dot(sum[r][p], w[p], four);
          pin(sum[r][p]);
        }
      }
    }
  } else {
#if (defined(PARLAY_AVX512) || defined(PARLAY_AVX2)) && !defined(__AVX512VNNI__)
    constexpr int together = kPairedSteps<F> < steps ? kPairedSteps<F> : steps;
    static_assert(steps % together == 0, "no step is left over");
    _Pragma("GCC unroll 4") for (int begin = 0; begin < steps; begin += together) {
      Pairs pairs[R][P];
      _Pragma("GCC unroll 8") for (int s = 0; s < together; ++s) {
        Codes<false> w[P];
        PARLAY_PARTS w[p] = codes_at<F>(chunk + p * sizeof(PartU), from + begin + s, levels);
        PARLAY_ROWS {
          const Four four = four_at(x[r * stride], from + begin + s);
          PARLAY_PARTS {
            const Pairs more = pairs_of(w[p], four);
            pairs[r][p] = s == 0 ? more : add(pairs[r][p], more);
            pin(pairs[r][p]);
          }
        }
      }
      PARLAY_ROWS {
        PARLAY_PARTS {
          if (begin == 0) sum[r][p] = start(r) - PartI{};
          pin(sum[r][p]);
          sum[r][p] = add(sum[r][p], pairs[r][p]);
        }
      }
    }
#endif
  }
}

// Adds all inputs of a panel to the totals of R rows.
template <class F, int R>
__attribute__((noinline)) void multiply_blocks(const Chunk* rows, int64_t stride, const uint8_t* panel, int64_t blocks,
                                               int64_t ahead, Meaning meaning, Vec (*total)[kPanelVecs]) {
  constexpr int P = kBlockParts<R>, group_steps = F::group / 4, groups_a_chunk = kChunk / F::group;
  for (int64_t b = 0; b < blocks; ++b) {
    const uint8_t* block = panel + b * F::bytes;
    if (ahead)
      for (int line = 0; line < F::head; line += kLine) __builtin_prefetch(block + ahead + line, 0, 2);
    for (int c = 0; c < F::chunks; ++c) {
      const Chunk* x = rows + b * F::chunks + c;
      const uint8_t* chunk = block + F::head + c * F::chunk;
      if (ahead)
        _Pragma("GCC unroll 17") for (int line = 0; line < F::chunk; line += kLine)
          __builtin_prefetch(chunk + ahead + line, 0, 2);
      _Pragma("GCC unroll 2") for (int g = 0; g < groups_a_chunk; ++g) {
        const int group = c * groups_a_chunk + g;
        const auto start = [&](int r) __attribute__((always_inline)) {
          const Chunk& in = x[r * stride];
          return F::wide && kSigned ? 0 : -F::offset * (groups_a_chunk == 1 ? in.sum : in.sums[g]);
        };
        // Unrolled: GCC 12 takes the loop's end from another variable here, wrongly where R is 3 or 4.
        _Pragma("GCC unroll 4") for (int first = 0; first < kPanelParts; first += P) {
          PartI sum[R][P];
          if constexpr (kPairedSteps<F> == 0) {
            PARLAY_ROWS { PARLAY_PARTS sum[r][p] = start(r) - PartI{}; }
          }
          const uint8_t* codes = chunk + first * sizeof(PartU);
          multiply_group<F, R, P, group_steps>(x, stride, codes, g * group_steps, meaning.levels, start, sum);
          PARLAY_PARTS {
            // Of what is loaded for sixteen outputs those of this register are used.
            const int part = first + p, output = part * kWidth;
            Vec scale = load((const typename F::Factor*)block + output), least;
            const uint8_t* small = block + F::factors + group * kPanel + output;
            if constexpr (F::nested && F::looked_up) scale = scale * splat(meaning.unit);
            if constexpr (F::nested) scale = scale * load_scales<F>(small);
            if constexpr (F::least) least = load((const fp16*)block + kPanel + output);
            if constexpr (F::least && F::nested) least = (least * splat(-1.f)) * load_minimums<F>(small);
            PARLAY_ROWS {
              const Chunk& in = x[r * stride];
              Part& sum_of_all = ((Part*)total[r])[part];
              const Part more = __builtin_convertvector(sum[r][p], Part) * (scale.p[0] * in.scale);
              if constexpr (F::least)
                sum_of_all = (sum_of_all + more) + least.p[0] * (groups_a_chunk == 1 ? in.part : in.parts[g]);
              else
                sum_of_all += more;
            }
          }
        }
      }
    }
  }
}

// So many rows take one pass; those that are missing are zero and cost less than code for every number would.
template <class F, int R = 1>
PARLAY_INLINE void multiply_block_rows(int64_t rows, const Quantised& x, int64_t row, const uint8_t* panel,
                                       int64_t blocks, int64_t ahead, const Meaning& meaning,
                                       Vec (*total)[kPanelVecs]) {
  constexpr int next = kNextRows<R>;
  if constexpr (next > kBlockRows<F>)
    multiply_blocks<F, R>(x.at(row), x.stride, panel, blocks, ahead, meaning, total + row);
  else if (rows <= R)
    multiply_blocks<F, R>(x.at(row), x.stride, panel, blocks, ahead, meaning, total + row);
  else
    multiply_block_rows<F, next>(rows, x, row, panel, blocks, ahead, meaning, total);
}

template <class F, class Out>
void block_task(const LinearArgs& a, const Quantised& x, int64_t first_row, int64_t panel) {
  constexpr int64_t most = kBlockRows<F>;
  const int64_t blocks = a.inputs / F::block, passes = (x.rows + most - 1) / most;
  const uint8_t* weight = (const uint8_t*)a.weight + panel * blocks * F::bytes;
  const Meaning meaning = meaning_of(a.kind);
  Vec total[kLinearRows + most][kPanelVecs];
  for (int64_t row = 0; row < x.rows + most; ++row)
    for (int v = 0; v < kPanelVecs; ++v) total[row][v] = splat(0.f);
  for (int64_t pass = 0; pass < passes; ++pass) {
    const int64_t row = x.rows * pass / passes, next = x.rows * (pass + 1) / passes;
    multiply_block_rows<F>(next - row, x, row, weight, blocks, pass ? 0 : a.prefetching.blocks, meaning, total);
    // Rows that filled it up begin anew.
    for (int64_t more = next; more < next + most; ++more)
      for (int v = 0; v < kPanelVecs; ++v) total[more][v] = splat(0.f);
  }
  store_panel<Out>(a, total, first_row, x.rows, panel);
}

template <class T, class Out>
void block_tasks(const LinearArgs& a, Shares& shares, int64_t thread) {
  each_task<Quantised>(a, shares, thread, 1, [&](int64_t first_row, int64_t rows) __attribute__((always_inline)) {
    return Quantised((const T*)a.x, first_row, rows, a.inputs, rows + kMostBlockRows);
  }, [&](const Quantised& x, int64_t first_row, int64_t panel, int64_t) __attribute__((always_inline)) {
    with_format(a.kind, [&](auto format) { block_task<decltype(format), Out>(a, x, first_row, panel); });
  });
}

void multiply_codes(const LinearArgs& a, Shares& shares, int64_t thread) {
#if defined(__AVX512BF16__)  // whose code would be the same, and is long
  table_avx512vnni()->linear(a, shares, thread);
#elif defined(PARLAY_NEON_BF16)
  table_neoni8mm()->linear(a, shares, thread);
#else
  if (!a.bf16)
    block_tasks<float, float>(a, shares, thread);
  else if (a.float_out)
    block_tasks<bf16, float>(a, shares, thread);
  else
    block_tasks<bf16, bf16>(a, shares, thread);
#endif
}

void linear(const LinearArgs& a, Shares& shares, int64_t thread) {
  if (a.kind == kF32 || a.kind == kF16 || a.kind == kBF16)
    multiply_numbers(a, shares, thread);
  else
    multiply_codes(a, shares, thread);
}

}  // namespace
}  // namespace parlay
