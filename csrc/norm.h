// RMS norm and layer norm, with or without the addition of a residual before them; RMS norm of single heads.
#pragma once

#include "table.h"
#include "vec.h"

namespace parlay {
namespace {

// One row; `weight` may be stored less one, and then there is one rounding instead of two.
template <class T>
PARLAY_INLINE void norm_row(const T* x, T* residual, const T* weight, T* out, int64_t width, float eps, bool plus_one) {
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
  const Vec scale = splat(1.f / __builtin_sqrtf(mean + eps));
  const T* from = residual ? residual : x;
  const auto multiply = [&](int64_t first, int64_t n) __attribute__((always_inline)) {
    const Vec normal = load_at(from, first, n) * scale, w = load_at(weight, first, n);
    store_at(out, plus_one ? normal * (splat(1.f) + w) : rounded<T>(normal) * w, first, n);
  };
  const int64_t whole = width / kLanes * kLanes;
  for (int64_t first = 0; first < whole; first += kLanes) multiply(first, kLanes);
  if (whole < width) multiply(whole, width - whole);
}

template <class T>
void norm_rows(const NormArgs& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = row * a.width;
    norm_row((const T*)a.x + at, a.residual ? (T*)a.residual + at : nullptr, (const T*)a.weight, (T*)a.out + at,
             a.width, a.eps, a.plus_one);
  }
}

void norm(const NormArgs& a, int64_t begin, int64_t end) {
  a.bf16 ? norm_rows<bf16>(a, begin, end) : norm_rows<float>(a, begin, end);
}

// Each head of q and of k by itself, and of v where it has a weight, in place.
template <class T>
void head_norm_rows(const HeadNormArgs& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    T* head = (T*)a.qkv + row * (a.heads + 2 * a.kv_heads) * a.head_dim;
    for (int64_t h = 0; h < a.heads + (a.v_weight ? 2 : 1) * a.kv_heads; ++h, head += a.head_dim) {
      const void* weight = h < a.heads ? a.q_weight : h < a.heads + a.kv_heads ? a.k_weight : a.v_weight;
      norm_row<T>(head, nullptr, (const T*)weight, head, a.head_dim, a.eps, a.plus_one);
    }
  }
}

void head_norm(const HeadNormArgs& a, int64_t begin, int64_t end) {
  a.bf16 ? head_norm_rows<bf16>(a, begin, end) : head_norm_rows<float>(a, begin, end);
}

// The sum of squares of each head of q and of k.
template <class T>
void head_squares_rows(const HeadSquaresArgs& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* head = (const T*)a.qkv + row * (a.heads + 2 * a.kv_heads) * a.head_dim;
    for (int64_t h = 0; h < a.heads + a.kv_heads; ++h, head += a.head_dim) {
      Vec chain = splat(0.f);
      PARLAY_ROW(first, n, a.head_dim) {
        const Vec v = load_at(head, first, n);
        chain = fma(v, v, chain);
      }
      (h < a.heads ? a.q_squares[row * a.heads + h] : a.k_squares[row * a.kv_heads + h - a.heads]) = sum(chain);
    }
  }
}

void head_squares(const HeadSquaresArgs& a, int64_t begin, int64_t end) {
  a.bf16 ? head_squares_rows<bf16>(a, begin, end) : head_squares_rows<float>(a, begin, end);
}

// All heads of q together, and all of k, by their sums of squares, which are added in their order.
template <class T>
void joint_norm_rows(const JointNormArgs& a, int64_t begin, int64_t end) {
  const auto normalise = [&](T* x, const T* weight, const float* squares, int64_t all, int64_t width) {
    float total = 0;
    for (int64_t h = 0; h < all; ++h) total += squares[h];
    const Vec scale = splat(1.f / __builtin_sqrtf(total / (float)(all * a.head_dim) + a.eps));
    PARLAY_ROW(first, n, width) {
      store_at(x, rounded<T>(load_at(x, first, n) * scale) * load_at(weight, first, n), first, n);
    }
  };
  for (int64_t row = begin; row < end; ++row) {
    T* q = (T*)a.qkv + row * (a.heads + 2 * a.kv_heads) * a.head_dim;
    normalise(q, (const T*)a.q_weight, a.q_squares + row * a.all_heads, a.all_heads, a.heads * a.head_dim);
    normalise(q + a.heads * a.head_dim, (const T*)a.k_weight, a.k_squares + row * a.all_kv_heads, a.all_kv_heads,
              a.kv_heads * a.head_dim);
  }
}

void joint_norm(const JointNormArgs& a, int64_t begin, int64_t end) {
  a.bf16 ? joint_norm_rows<bf16>(a, begin, end) : joint_norm_rows<float>(a, begin, end);
}

// The mean first, then the mean of squared distances from it: no difference of large sums.
template <class T>
void layer_norm_rows(const LayerNormArgs& a, int64_t begin, int64_t end) {
  const T *weight = (const T*)a.weight, *bias = (const T*)a.bias;
  for (int64_t row = begin; row < end; ++row) {
    const T* x = (const T*)a.x + row * a.width;
    T* residual = a.residual ? (T*)a.residual + row * a.width : nullptr;
    T* out = (T*)a.out + row * a.width;
    Vec chain = splat(0.f);
    PARLAY_ROW(first, n, a.width) {
      Vec v = load_at(x, first, n);
      if (residual) {
        v = rounded<T>(load_at(residual, first, n) + v);
        store_at(residual, v, first, n);
      }
      chain = chain + v;
    }
    const T* from = residual ? residual : x;
    const Vec mean = splat(sum(chain) / (float)a.width);
    chain = splat(0.f);
    PARLAY_ROW(first, n, a.width) {
      const Vec distance = load_at(from, first, n) - mean;
      // What a tail loads beyond the row is zero, and no distance.
      if (n == kLanes) {
        chain = fma(distance, distance, chain);
      } else {
        float lanes[kLanes];
        store(lanes, distance);
        const Vec own = load_some(lanes, (int)n);
        chain = fma(own, own, chain);
      }
    }
    const Vec scale = splat(1.f / __builtin_sqrtf(sum(chain) / (float)a.width + a.eps));
    PARLAY_ROW(first, n, a.width) {
      const Vec normal = (load_at(from, first, n) - mean) * scale;
      store_at(out, fma(normal, load_at(weight, first, n), load_at(bias, first, n)), first, n);
    }
  }
}

void layer_norm(const LayerNormArgs& a, int64_t begin, int64_t end) {
  a.bf16 ? layer_norm_rows<bf16>(a, begin, end) : layer_norm_rows<float>(a, begin, end);
}

}  // namespace
}  // namespace parlay
