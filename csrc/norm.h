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
    Vec even = splat(0.f), odd = even;  // two chains of additions hide latency; the column decides which
    const auto add = [&](int64_t first, int64_t n, Vec& chain) __attribute__((always_inline)) {
      Vec v = load_at(x, first, n);
      if (residual) {
        v = rounded<T>(load_at(residual, first, n) + v);
        n == kLanes ? store_rounded(residual + first, v) : store_some(residual + first, v, (int)n);
      }
      chain = fma(v, v, chain);
    };
    const int64_t pairs = width / (2 * kLanes) * (2 * kLanes), left = width - pairs;
    for (int64_t first = 0; first < pairs; first += 2 * kLanes) {
      add(first, kLanes, even);
      add(first + kLanes, kLanes, odd);
    }
    if (left) add(pairs, left < kLanes ? left : kLanes, even);
    if (left > kLanes) add(pairs + kLanes, left - kLanes, odd);
    const float mean = sum(even + odd) / (float)width;
    const Vec scale = splat(1.f / __builtin_sqrtf(mean + a.eps));
    const T* from = residual ? residual : x;
    const auto multiply = [&](int64_t first, int64_t n) __attribute__((always_inline)) {
      const Vec normal = rounded<T>(load_at(from, first, n) * scale);
      store_at(out, normal * load_at(weight, first, n), first, n);
    };
    const int64_t whole = width / kLanes * kLanes;
    for (int64_t first = 0; first < whole; first += kLanes) multiply(first, kLanes);
    if (whole < width) multiply(whole, width - whole);
  }
}

void norm(const NormArgs& a, int64_t begin, int64_t end) {
  a.bf16 ? norm_rows<bf16>(a, begin, end) : norm_rows<float>(a, begin, end);
}

}  // namespace
}  // namespace parlay
