// RMS norm, with or without the addition of a residual before it.
#pragma once

#include "table.h"
#include "vec.h"

namespace parlay {
namespace {

template <class T>
void norm_rows(const NormArgs& a, int64_t begin, int64_t end) {
  const int64_t width = a.width;
  const T* weight = (const T*)a.weight;
  for (int64_t row = begin; row < end; ++row) {
    const T* x = (const T*)a.x + row * width;
    T* residual = a.residual ? (T*)a.residual + row * width : nullptr;
    T* out = (T*)a.out + row * width;
    Vec squares[2] = {};  // two chains of additions hide latency; which one is a matter of the column alone
    PARLAY_ROW(first, n, width) {
      Vec v = load_at(x, first, n);
      if (residual) {
        v = rounded<T>(load_at(residual, first, n) + v);
        store_at(residual, v, first, n);
      }
      Vec& chain = squares[(first / kLanes) & 1];
      chain = fma(v, v, chain);
    }
    const float mean = sum(squares[0] + squares[1]) / (float)width;
    const Vec scale = splat(1.f / __builtin_sqrtf(mean + a.eps));
    const T* from = residual ? residual : x;
    PARLAY_ROW(first, n, width) {
      const Vec normal = rounded<T>(load_at(from, first, n) * scale);
      store_at(out, normal * load_at(weight, first, n), first, n);
    }
  }
}

void norm(const NormArgs& a, int64_t begin, int64_t end) {
  a.bf16 ? norm_rows<bf16>(a, begin, end) : norm_rows<float>(a, begin, end);
}

}  // namespace
}  // namespace parlay
