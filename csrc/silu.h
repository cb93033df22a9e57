// silu(gate) * up.
#pragma once

#include "elementary.h"
#include "table.h"

namespace parlay {
namespace {

template <class T>
void silu_rows(const SiluArgs& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* gate = (const T*)a.gate_up + row * 2 * a.width;
    const T* up = gate + a.width;
    T* out = (T*)a.out + row * a.width;
    PARLAY_ROW(first, n, a.width) {
      const Vec g = load_at(gate, first, n);
      const Vec silu = rounded<T>(g / (splat(1.f) + exp(splat(0.f) - g)));
      store_at(out, silu * load_at(up, first, n), first, n);
    }
  }
}

void silu_mul(const SiluArgs& a, int64_t begin, int64_t end) {
  a.bf16 ? silu_rows<bf16>(a, begin, end) : silu_rows<float>(a, begin, end);
}

}  // namespace
}  // namespace parlay
