// out = x weight^T, every output summed over K in one order whatever the number of rows.
//
// Lanes lie along the outputs: the weight is packed in panels of sixteen outputs, K running inside a panel
// (bf16: in pairs, as the dot-product instruction takes them). Each output has one accumulator, which starts
// fresh for every block of K (512, or 1024 where K > 1024) and is added to the total: the order that oneDNN
// keeps too, so the twin gives the same bits where the instructions are the same. How many rows and panels are
// in flight together is a matter of registers and changes nothing.
#pragma once

#include "table.h"
#include "vec.h"

namespace parlay {
namespace {

constexpr int64_t k_block(int64_t inputs) { return inputs > 1024 ? 1024 : 512; }

// How a panel of weights and a row meet: `width` inputs a step, 16 outputs wide.
template <class T>
struct Step;

template <>
struct Step<float> {
  static constexpr int width = 1;
  typedef Vec Weight;
  typedef Vec Input;
  PARLAY_INLINE static Weight weight(const float* w) { return load(w); }
  PARLAY_INLINE static Input input(const float* x) { return splat(*x); }
  PARLAY_INLINE static Input last_input(const float* x) { return splat(*x); }
  PARLAY_INLINE static Vec add(const Vec& total, const Input& x, const Weight& w) { return fma(x, w, total); }
};

template <>
struct Step<bf16> {
  static constexpr int width = 2;
  PARLAY_INLINE static uint32_t pair(const bf16* x) {
    uint32_t both;
    memcpy(&both, x, 4);
    return both;
  }
#if defined(__AVX512BF16__)
  typedef __m512i Weight;
  typedef __m512i Input;
  PARLAY_INLINE static Weight weight(const bf16* w) { return _mm512_loadu_si512(w); }
  PARLAY_INLINE static Input both(uint32_t x) { return _mm512_set1_epi32((int)x); }
  PARLAY_INLINE static Vec add(const Vec& total, const Input& x, const Weight& w) {
    return {{_mm512_dpbf16_ps(total.p[0], (__m512bh)w, (__m512bh)x)}};
  }
#else
  struct Pair {
    Vec even, odd;
  };
  typedef Pair Weight;
  typedef Pair Input;
  PARLAY_INLINE static Weight weight(const bf16* w) {
    Weight r;
    PARLAY_EACH {
      PartU u;
      memcpy(&u, w + i * 2 * kWidth, sizeof u);
      r.even.p[i] = (Part)(u << 16);
      r.odd.p[i] = (Part)(u & 0xffff0000);
    }
    return r;
  }
  PARLAY_INLINE static Input both(uint32_t x) {
    const uint32_t low = x << 16, high = x & 0xffff0000;
    float even, odd;
    memcpy(&even, &low, 4);
    memcpy(&odd, &high, 4);
    return {splat(even), splat(odd)};
  }
  PARLAY_INLINE static Vec add(const Vec& total, const Input& x, const Weight& w) {
    return fma(x.even, w.even, fma(x.odd, w.odd, total));
  }
#endif
  PARLAY_INLINE static Input input(const bf16* x) { return both(pair(x)); }
  PARLAY_INLINE static Input last_input(const bf16* x) { return both(x->bits); }  // where K is odd
};

#if defined(PARLAY_AVX512)
constexpr int kRows = 6, kPanels = 4;
#else
constexpr int kRows = 4, kPanels = 1;
#endif

// R rows times P panels.
template <class T, class Out, int R, int P>
void multiply(const LinearArgs& a, int64_t row, int64_t panel) {
  typedef Step<T> S;
  const int64_t steps = (a.inputs + S::width - 1) / S::width, whole = a.inputs / S::width;
  const int64_t panel_size = steps * S::width * kLanes;
  const T* x = (const T*)a.x + row * a.inputs;
  const T* weight = (const T*)a.weight + panel * panel_size;
  Vec total[R][P];
  const int64_t block = k_block(a.inputs) / S::width;
  for (int64_t from = 0; from < steps; from += block) {
    const int64_t to = from + block < whole ? from + block : whole;
    Vec sum[R][P] = {};
    const auto step = [&](int64_t k, bool last) __attribute__((always_inline)) {
      typename S::Weight w[P];
      for (int p = 0; p < P; ++p) w[p] = S::weight(weight + p * panel_size + k * S::width * kLanes);
      for (int r = 0; r < R; ++r) {
        const T* at = x + r * a.inputs + k * S::width;
        const typename S::Input in = last ? S::last_input(at) : S::input(at);
        for (int p = 0; p < P; ++p) sum[r][p] = S::add(sum[r][p], in, w[p]);
      }
    };
    for (int64_t k = from; k < to; ++k) step(k, false);
    if (whole < steps && from + block >= steps) step(whole, true);
    for (int r = 0; r < R; ++r)
      for (int p = 0; p < P; ++p) total[r][p] = from ? total[r][p] + sum[r][p] : sum[r][p];
  }
  for (int r = 0; r < R; ++r)
    for (int p = 0; p < P; ++p) {
      const int64_t first = (panel + p) * kLanes, left = a.outputs - first;
      store_at((Out*)a.out + (row + r) * a.outputs, total[r][p], first, left < kLanes ? left : kLanes);
    }
}

template <class T, class Out, int P, int R = kRows>
PARLAY_INLINE void multiply_rows(const LinearArgs& a, int64_t row, int64_t rows, int64_t panel) {
  if (rows == R)
    multiply<T, Out, R, P>(a, row, panel);
  else if constexpr (R > 1)
    multiply_rows<T, Out, P, R - 1>(a, row, rows, panel);
}

// Rows and panels of one task: a group of panels against a chunk of rows.
template <class T, class Out>
void linear_tasks(const LinearArgs& a, int64_t begin, int64_t end) {
  const int64_t panels = (a.outputs + kLanes - 1) / kLanes;
  for (int64_t task = begin; task < end; ++task) {
    const int64_t chunks = (a.rows + kLinearRows - 1) / kLinearRows;
    const int64_t first_row = task % chunks * kLinearRows, first_panel = task / chunks * kLinearPanels;
    const int64_t rows = a.rows - first_row < kLinearRows ? a.rows - first_row : kLinearRows;
    const int64_t last_panel = first_panel + kLinearPanels < panels ? first_panel + kLinearPanels : panels;
    const int64_t blocks = (rows + kRows - 1) / kRows;
    for (int64_t panel = first_panel; panel < last_panel;) {
      const bool full = panel + kPanels <= last_panel;
      for (int64_t b = 0; b < blocks; ++b) {  // blocks of nearly equal size
        const int64_t from = rows * b / blocks, count = rows * (b + 1) / blocks - from;
        if (full)
          multiply_rows<T, Out, kPanels>(a, first_row + from, count, panel);
        else
          multiply_rows<T, Out, 1>(a, first_row + from, count, panel);
      }
      panel += full ? kPanels : 1;
    }
  }
}

void linear(const LinearArgs& a, int64_t begin, int64_t end) {
  if (!a.bf16)
    linear_tasks<float, float>(a, begin, end);
  else if (a.float_out)
    linear_tasks<bf16, float>(a, begin, end);
  else
    linear_tasks<bf16, bf16>(a, begin, end);
}

}  // namespace
}  // namespace parlay
