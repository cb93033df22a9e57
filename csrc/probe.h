// What this machine can do at best: how fast it streams memory and how fast it multiplies. Nothing is computed that
// anybody reads; a step's floor is measured with these, so they share no code with the kernels that are judged.
#pragma once

#include "table.h"
#include "tiles.h"
#include "vec.h"

namespace parlay {
namespace {

// Reads every byte of some windows once, each window in four streams at a time: one stream alone would leave most of
// the memory's banks idle. Asks for what lies `ahead` bytes further in a stream (0: leave it to the hardware).
// Returns the sum of the floats, so that no read can be left out.
float probe_read(const void* from, int64_t windows, int64_t ahead) {
  constexpr int kStreams = 4;
  constexpr int64_t kStream = kProbeWindow / kStreams;
  Vec sums[kStreams] = {};
  for (int64_t window = 0; window < windows; ++window) {
    const char* at = (const char*)from + window * kProbeWindow;
    for (int64_t i = 0; i < kStream; i += sizeof(Vec))
      _Pragma("GCC unroll 4") for (int s = 0; s < kStreams; ++s) {
        const char* here = at + s * kStream + i;
        if (ahead) __builtin_prefetch(here + ahead);
        for (int part = 0; part < kParts; ++part) {  // register by register: whole Vecs may go through the stack
          Part lanes;
          memcpy(&lanes, here + part * sizeof(Part), sizeof lanes);
          sums[s].p[part] += lanes;
        }
      }
  }
  return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// As many accumulators as registers allow; each loaded weight meets every row, as in a matrix product.
#if defined(PARLAY_AVX512)
constexpr int kProbeRows = 6, kProbePanels = 4;
#elif defined(PARLAY_AVX2) || defined(PARLAY_NEON)
constexpr int kProbeRows = 6, kProbePanels = 1;
#else
constexpr int kProbeRows = 3, kProbePanels = 1;
#endif
constexpr int kProbeSteps = 32;  // 8 kB of weights at most: well within the first-level cache

struct ProbeFloat {
  static constexpr int width = 1;
  struct Weight {
    Vec v;
  };
  PARLAY_INLINE static Weight weight(const uint32_t* w) { return {load((const float*)w)}; }
  PARLAY_INLINE static Vec add(const Vec& total, uint32_t x, const Weight& w) {
    float value;
    memcpy(&value, &x, 4);
    return fma(splat(value), w.v, total);
  }
};

#if defined(__AVX512BF16__)
struct ProbeBf16 {
  static constexpr int width = 2;
  struct Weight {
    __m512i v;
  };
  PARLAY_INLINE static Weight weight(const uint32_t* w) { return {_mm512_loadu_si512(w)}; }
  PARLAY_INLINE static Vec add(const Vec& total, uint32_t x, const Weight& w) {
    return {{_mm512_dpbf16_ps(total.p[0], (__m512bh)w.v, (__m512bh)_mm512_set1_epi32((int)x))}};
  }
};
#elif defined(PARLAY_NEON_BF16)
struct ProbeBf16 {
  static constexpr int width = 2;
  struct Weight {
    bfloat16x8_t p[kParts];
  };
  PARLAY_INLINE static Weight weight(const uint32_t* w) {
    Weight r;
    PARLAY_EACH r.p[i] = (bfloat16x8_t)vld1q_u32(w + i * kWidth);
    return r;
  }
  PARLAY_INLINE static Vec add(const Vec& total, uint32_t x, const Weight& w) {
    Vec r;
    PARLAY_EACH r.p[i] = vbfdotq_f32(total.p[i], w.p[i], (bfloat16x8_t)vdupq_n_u32(x));
    return r;
  }
};
#else
typedef ProbeFloat ProbeBf16;  // no instruction for bfloat16: converting is free at best
#endif

// Does `rounds` small matrix products out of the first-level cache and returns how many multiplications and
// additions that were.
template <class Step>
double probe_rounds(int64_t rounds, float* sink) {
  alignas(64) uint32_t weights[kProbeSteps * kProbePanels * kLanes], inputs[kProbeSteps * kProbeRows];
  for (auto& word : weights) word = 0x3c003c00;  // 2^-7, in bfloat16 twice
  for (auto& word : inputs) word = 0x3c003c00;
  Vec sums[kProbeRows][kProbePanels] = {};
  for (int64_t round = 0; round < rounds; ++round) {
    __asm__ volatile("" : : "r"(weights), "r"(inputs) : "memory");  // they might have changed: load them again
    for (int step = 0; step < kProbeSteps; ++step) {
      typename Step::Weight w[kProbePanels];
      _Pragma("GCC unroll 4") for (int p = 0; p < kProbePanels; ++p) w[p] = Step::weight(weights + (step * kProbePanels + p) * kLanes);
      _Pragma("GCC unroll 8") for (int r = 0; r < kProbeRows; ++r)
        _Pragma("GCC unroll 4") for (int p = 0; p < kProbePanels; ++p)
          sums[r][p] = Step::add(sums[r][p], inputs[step * kProbeRows + r], w[p]);
    }
  }
  Vec all = {};
  for (int r = 0; r < kProbeRows; ++r)
    for (int p = 0; p < kProbePanels; ++p) all = all + sums[r][p];
  *sink = sum(all);
  return 2.0 * (double)rounds * kProbeSteps * kProbeRows * kProbePanels * kLanes * Step::width;
}

#if defined(PARLAY_TILES)
// The same in tiles, two of rows by two of outputs.
double probe_tiles(int64_t rounds, float* sink) {
  constexpr int kTileSteps = 8;
  constexpr int64_t size = kTileRows * kTileInputs;
  alignas(64) bf16 weights[kTileSteps][2 * size], inputs[kTileSteps][2 * size];
  for (int step = 0; step < kTileSteps; ++step)
    for (int64_t i = 0; i < 2 * size; ++i) weights[step][i].bits = inputs[step][i].bits = 0x3c00;  // 2^-7
  const Tiles tiles(kTileRows);
  alignas(64) float sums[kTileRows * kLanes] = {};
  _tile_zero(PARLAY_SUM00);
  _tile_zero(PARLAY_SUM01);
  _tile_zero(PARLAY_SUM10);
  _tile_zero(PARLAY_SUM11);
  PARLAY_TILE_MEMORY(weights);
  PARLAY_TILE_MEMORY(inputs);
  for (int64_t round = 0; round < rounds; ++round)
    for (int step = 0; step < kTileSteps; ++step) {
      _tile_loadd(PARLAY_W0, weights[step], kLine);
      _tile_loadd(PARLAY_W1, weights[step] + size, kLine);
      _tile_loadd(PARLAY_X0, inputs[step], kLine);
      _tile_loadd(PARLAY_X1, inputs[step] + size, kLine);
      _tile_dpbf16ps(PARLAY_SUM00, PARLAY_X0, PARLAY_W0);
      _tile_dpbf16ps(PARLAY_SUM01, PARLAY_X0, PARLAY_W1);
      _tile_dpbf16ps(PARLAY_SUM10, PARLAY_X1, PARLAY_W0);
      _tile_dpbf16ps(PARLAY_SUM11, PARLAY_X1, PARLAY_W1);
    }
  _tile_stored(PARLAY_SUM00, sums, kLine);
  PARLAY_TILE_MEMORY(sums);
  *sink = sums[0];
  return 2.0 * (double)rounds * kTileSteps * 4 * kTileRows * kLanes * kTileInputs;
}
#endif

double probe_multiply(bool bf16, int64_t rounds, float* sink) {
#if defined(PARLAY_TILES)
  if (bf16) return probe_tiles(rounds, sink);
#endif
  return bf16 ? probe_rounds<ProbeBf16>(rounds, sink) : probe_rounds<ProbeFloat>(rounds, sink);
}

}  // namespace
}  // namespace parlay
