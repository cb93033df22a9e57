// out = x weight^T, every output summed over K in one order whatever the number of rows.
//
// Lanes lie along the outputs: the weight is packed in panels of 32 outputs, K running inside a panel (bf16: in
// pairs, as the dot-product instruction takes them). Each output has one accumulator, which starts fresh for every
// block of K (512, or 1024 where K > 1024) and is added to the total: the order that oneDNN keeps too, so the twin
// gives the same bits where the instructions are the same. How many rows are in flight together is a matter of
// registers and changes nothing.
//
// With few rows everything waits for the weights. A thread reads its panels as one stream, or a few, each byte once
// whatever the number of rows, and asks for what comes next while it multiplies.
//
// Processors that multiply tiles take bfloat16 another way: see tiles.h. Weights in float16 become float32 when they
// are read, and so do the rows that meet them, so that nothing is rounded but sums.
#pragma once

#include "rows.h"
#include "table.h"
#include "tiles.h"
#include "vec.h"

namespace parlay {
namespace {

// How sixteen outputs' weights of type W and a row meet: `width` inputs a step, in `parts` one after another. Rows are
// laid out as X: what is widened to float32 is so once, when it is copied, so that an input is one broadcast.
template <class W>
struct Step;

// Weights that become float32, an input after another.
template <class W>
struct OneByOne {
  static constexpr int width = 1, parts = 1;
  typedef float X;
  typedef Vec Weight;
  typedef Vec Input;
  PARLAY_INLINE static Weight weight(const W* w, int) { return load(w); }
  PARLAY_INLINE static Input input(const float* x, int) { return splat(*x); }
  PARLAY_INLINE static Vec add(const Vec& total, const Input& x, const Weight& w) { return fma(x, w, total); }
};
template <>
struct Step<float> : OneByOne<float> {};
template <>
struct Step<fp16> : OneByOne<fp16> {};

template <>
struct Step<bf16> {
  static constexpr int width = 2;
#if defined(__AVX512BF16__)
  static constexpr int parts = 1;
  typedef bf16 X;
  typedef __m512i Weight;
  typedef __m512i Input;
  PARLAY_INLINE static Weight weight(const bf16* w, int) { return _mm512_loadu_si512(w); }
  PARLAY_INLINE static Input input(const bf16* x, int) {
    int both;
    memcpy(&both, x, 4);
    return _mm512_set1_epi32(both);
  }
  PARLAY_INLINE static Vec add(const Vec& total, const Input& x, const Weight& w) {
    return {{_mm512_dpbf16_ps(total.p[0], (__m512bh)w, (__m512bh)x)}};
  }
#elif defined(PARLAY_NEON_BF16)
  static constexpr int parts = 1;
  typedef bf16 X;
  struct Weight {
    bfloat16x8_t p[kParts];
  };
  typedef bfloat16x8_t Input;
  PARLAY_INLINE static Weight weight(const bf16* w, int) {
    Weight r;
    PARLAY_EACH memcpy(&r.p[i], w + i * 2 * kWidth, sizeof r.p[i]);
    return r;
  }
  PARLAY_INLINE static Input input(const bf16* x, int) {
    uint32_t both;
    memcpy(&both, x, 4);
    return (Input)vdupq_n_u32(both);
  }
  // Both products first, then their sum to the total, each rounded to odd: not the bits of two fused steps.
  PARLAY_INLINE static Vec add(const Vec& total, const Input& x, const Weight& w) {
    Vec r;
    PARLAY_EACH r.p[i] = vbfdotq_f32(total.p[i], w.p[i], x);
    return r;
  }
#else
  static constexpr int parts = 2;  // the second input of each pair comes first, as in the instruction
  typedef float X;
  typedef Vec Weight;
  typedef Vec Input;
  PARLAY_INLINE static Weight weight(const bf16* w, int part) {
    Weight r;
    PARLAY_EACH {
      PartU u;
      memcpy(&u, w + i * 2 * kWidth, sizeof u);
#if defined(PARLAY_AVX2)  // sums fill the registers, so that none is left for a mask
      if (!part) u >>= 16;
      pin(u);
      r.p[i] = (Part)(u << 16);
#else
      r.p[i] = (Part)(part ? u << 16 : u & 0xffff0000);
#endif
    }
    return r;
  }
  PARLAY_INLINE static Input input(const float* x, int part) { return splat(x[1 - part]); }
  PARLAY_INLINE static Input input(const bf16* x, int part) {
    const uint32_t bits = (uint32_t)x[1 - part].bits << 16;
    float wide;
    memcpy(&wide, &bits, 4);
    return splat(wide);
  }
  PARLAY_INLINE static Vec add(const Vec& total, const Input& x, const Weight& w) { return fma(x, w, total); }
#endif
};

// Rows and vectors of outputs in flight at once: sums, the weights and an input fill the registers.
#if defined(PARLAY_AVX512)
constexpr int kRows = 12, kVecs = 2;
#elif defined(PARLAY_AVX2) || defined(PARLAY_NEON)
constexpr int kRows = 6, kVecs = 1;
#else
constexpr int kRows = 4, kVecs = 1;
#endif

// With few rows two vectors of outputs keep more sums in flight, each of which waits for itself.
template <int R>
constexpr int kVecsOf = R * kParts <= 4 ? kPanelVecs : kVecs;

// What one pass over a block of K asks for: nothing, a line every step, or two.
struct Prefetch {
  const char* at;
  int64_t stride;  // bytes a step
  PARLAY_INLINE void step() {
    if (!stride) return;
    __builtin_prefetch(at, 0, 2);
    if (stride > kLine) __builtin_prefetch(at + kLine, 0, 2);
    at += stride;
  }
};

// Sums stay in registers only if the loops over them are unrolled.
#define PARLAY_ROWS _Pragma("GCC unroll 12") for (int r = 0; r < R; ++r)
#define PARLAY_V _Pragma("GCC unroll 2") for (int v = 0; v < V; ++v)

// Adds one block of K to the totals of R rows and V vectors of a panel.
template <class W, int R, int V>
__attribute__((noinline)) void multiply(const typename Step<W>::X* x, const W* weight, int64_t steps, bool first,
                                        Prefetch ahead, Vec (*total)[kPanelVecs]) {
  typedef Step<W> S;
  constexpr int64_t size = S::width * kPanel;  // weights a step
  Vec sum[R][V] = {};
  for (int64_t k = 0; k < steps; ++k) {
    ahead.step();
    _Pragma("GCC unroll 2") for (int part = 0; part < S::parts; ++part) {
      typename S::Weight w[V];
      PARLAY_V w[v] = S::weight(weight + k * size + v * S::width * kLanes, part);
      PARLAY_ROWS {
        const typename S::Input in = S::input(x + r * Rows<typename S::X>::stride + k * S::width, part);
        PARLAY_V sum[r][v] = S::add(sum[r][v], in, w[v]);
      }
    }
  }
  PARLAY_ROWS {
    PARLAY_V total[r][v] = first ? sum[r][v] : total[r][v] + sum[r][v];
  }
}

template <class W, int R = kRows>
PARLAY_INLINE void multiply_rows(int64_t rows, const typename Step<W>::X* x, const W* weight, int64_t steps,
                                 bool first, Prefetch ahead, Vec (*total)[kPanelVecs]) {
  constexpr int vecs = kVecsOf<R>;
  if (rows == R)
    for (int v = 0; v < kPanelVecs; v += vecs)
      multiply<W, R, vecs>(x, weight + v * Step<W>::width * kLanes, steps, first, ahead, (Vec(*)[kPanelVecs])&total[0][v]);
  else if constexpr (R > 1)
    multiply_rows<W, R - 1>(rows, x, weight, steps, first, ahead, total);
}

// One row is limited by memory bandwidth, of which a single stream uses half: the processor's prefetchers follow several
// streams at once. So several panels are read together, as many as there are registers for their sums.
#if defined(PARLAY_AVX2)
constexpr int kStreams = 3;
#else
constexpr int kStreams = 1;  // not measured
#endif

// As multiply, of one row and P panels, each `apart` weights after the one before.
template <class W, int P>
__attribute__((noinline)) void multiply_panels(const typename Step<W>::X* x, const W* weight, int64_t apart,
                                               int64_t steps, bool first, Vec (*total)[kPanelVecs]) {
  typedef Step<W> S;
  Vec sum[P][kPanelVecs] = {};
  for (int64_t k = 0; k < steps; ++k)
    _Pragma("GCC unroll 2") for (int part = 0; part < S::parts; ++part) {
      const typename S::Input in = S::input(x + k * S::width, part);
      _Pragma("GCC unroll 3") for (int p = 0; p < P; ++p)
        _Pragma("GCC unroll 2") for (int v = 0; v < kPanelVecs; ++v) {
          const auto w = S::weight(weight + p * apart + k * S::width * kPanel + v * S::width * kLanes, part);
          sum[p][v] = S::add(sum[p][v], in, w);
        }
    }
  for (int p = 0; p < P; ++p)
    for (int v = 0; v < kPanelVecs; ++v) total[p][v] = first ? sum[p][v] : total[p][v] + sum[p][v];
}

// One row against P panels.
template <class W, class Out, int P>
void panels_task(const LinearArgs& a, const Rows<typename Step<W>::X>& x, int64_t panel) {
  typedef Step<W> S;
  constexpr int64_t size = S::width * kPanel;
  const int64_t steps = (a.inputs + S::width - 1) / S::width, block = k_block(a.inputs) / S::width;
  const W* weight = (const W*)a.weight + panel * steps * size;
  Vec total[P][kPanelVecs];
  for (int64_t from = 0; from < steps; from += block, weight += block * size) {
    const int64_t count = steps - from < block ? steps - from : block;
    multiply_panels<W, P>(x.at(from / block, 0), weight, steps * size, count, from == 0, total);
  }
  for (int p = 0; p < P; ++p) store_panel<Out>(a, total + p, 0, 1, panel + p);
}

// All rows against one panel.
template <class W, class Out>
void linear_task(const LinearArgs& a, const Rows<typename Step<W>::X>& x, int64_t first_row, int64_t panel) {
  typedef Step<W> S;
  constexpr int64_t size = S::width * kPanel;
  const int64_t steps = (a.inputs + S::width - 1) / S::width, block = k_block(a.inputs) / S::width;
  const int64_t passes = (x.rows + kRows - 1) / kRows;
  const int64_t stride = x.rows > a.prefetching.few_rows ? size * sizeof(W) / passes : 0;
  const W* weight = (const W*)a.weight + panel * steps * size;
  Vec total[kLinearRows][kPanelVecs];
  for (int64_t from = 0; from < steps; from += block, weight += block * size) {
    const int64_t count = steps - from < block ? steps - from : block;
    // The passes over a block ask for the next one between them.
    const char* ahead = (const char*)weight + (passes == 1 ? a.prefetching.ahead : count * size * (int64_t)sizeof(W));
    for (int64_t pass = 0; pass < passes; ++pass, ahead += count * stride) {
      const int64_t row = x.rows * pass / passes, next = x.rows * (pass + 1) / passes;
      multiply_rows<W>(next - row, x.at(from / block, row), weight, count, from == 0, {ahead, stride}, total + row);
    }
  }
  store_panel<Out>(a, total, first_row, x.rows, panel);
}

// Weights of type W, rows of type T.
template <class W, class T, class Out>
void linear_tasks(const LinearArgs& a, Shares& shares, int64_t thread) {
  typedef Rows<typename Step<W>::X> X;
  const int64_t most = a.rows == 1 ? kStreams : 1;
  each_task<X>(a, shares, thread, most, [&](int64_t first_row, int64_t rows) __attribute__((always_inline)) {
    return X((const T*)a.x, a.inputs, first_row, rows, Step<W>::width, 1);
  }, [&](const X& x, int64_t first_row, int64_t panel, int64_t count) __attribute__((always_inline)) {
    if constexpr (kStreams > 1) {
      if (count == 2) return panels_task<W, Out, 2>(a, x, panel);
      if (count == 3) return panels_task<W, Out, 3>(a, x, panel);
    }
    linear_task<W, Out>(a, x, first_row, panel);
  });
}

void multiply_numbers(const LinearArgs& a, Shares& shares, int64_t thread) {
  if (a.kind == kF32)
    linear_tasks<float, float, float>(a, shares, thread);
  else if (a.kind == kF16 && !a.bf16)
    linear_tasks<fp16, float, float>(a, shares, thread);
  else if (a.kind == kF16 && a.float_out)
    linear_tasks<fp16, bf16, float>(a, shares, thread);
  else if (a.kind == kF16)
    linear_tasks<fp16, bf16, bf16>(a, shares, thread);
#if defined(PARLAY_TILES)
  else if (a.float_out)
    tile_tasks<float>(a, shares, thread);
  else
    tile_tasks<bf16>(a, shares, thread);
#else
  else if (a.float_out)
    linear_tasks<bf16, bf16, float>(a, shares, thread);
  else
    linear_tasks<bf16, bf16, bf16>(a, shares, thread);
#endif
}

}  // namespace
}  // namespace parlay
