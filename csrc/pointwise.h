// Operations on each element by itself, in place.
#pragma once

#include "activation.h"
#include "table.h"

namespace parlay {
namespace {

// x = rounded(f(x, column, n)) in the rows begin..end, sixteen columns at a time.
template <class T, class F>
PARLAY_INLINE void each(const PointwiseArgs& a, int64_t begin, int64_t end, F f) {
  for (int64_t row = begin; row < end; ++row) {
    T* x = (T*)a.x + row * a.width;
    PARLAY_ROW(first, n, a.width) store_at(x, f(load_at(x, first, n), row, first, n), first, n);
  }
}

// As each, for the type that `a` names.
#define PARLAY_POINTWISE(name, expression)                                                                       \
  template <class T>                                                                                             \
  void name##_rows(const PointwiseArgs& a, int64_t begin, int64_t end) {                                         \
    each<T>(a, begin, end, [&](const Vec& x, int64_t row, int64_t first, int64_t n) __attribute__((always_inline)) { \
      (void)row, (void)first, (void)n;                                                                           \
      return expression;                                                                                         \
    });                                                                                                          \
  }                                                                                                              \
  void name(const PointwiseArgs& a, int64_t begin, int64_t end) {                                                \
    a.bf16 ? name##_rows<bf16>(a, begin, end) : name##_rows<float>(a, begin, end);                               \
  }

PARLAY_POINTWISE(add_bias, x + load_at((const T*)a.other, first, n))
PARLAY_POINTWISE(add_embedding, x + load_at((const T*)a.other + a.index[row] * a.width, first, n))
PARLAY_POINTWISE(scale, x * splat(a.factor))
PARLAY_POINTWISE(soft_cap, splat(a.factor) * tanh(x / splat(a.factor)))
PARLAY_POINTWISE(xielu, Xielu::of(x, (const float*)a.other))
PARLAY_POINTWISE(silu, Silu::of(x))
PARLAY_POINTWISE(gelu, Gelu::of(x))
PARLAY_POINTWISE(gelu_tanh, GeluTanh::of(x))
PARLAY_POINTWISE(relu, Relu::of(x))
PARLAY_POINTWISE(relu2, Relu2::of(x))
PARLAY_POINTWISE(clamped_swiglu, ClampedSwiglu::of(x))

void activate(const PointwiseArgs& a, int64_t begin, int64_t end) {
  if (a.activation == kSilu)
    silu(a, begin, end);
  else if (a.activation == kGelu)
    gelu(a, begin, end);
  else if (a.activation == kGeluTanh)
    gelu_tanh(a, begin, end);
  else if (a.activation == kRelu)
    relu(a, begin, end);
  else if (a.activation == kRelu2)
    relu2(a, begin, end);
  else
    clamped_swiglu(a, begin, end);
}

}  // namespace
}  // namespace parlay
