// Half-split rotary embedding of the first columns of q and k, each head of which may be normalised then; k and v go to
// their slots of the cache. Of latent attention the same for queries and the one latent row that stands for all keys
// and values.
#pragma once

#include "cache_rows.h"
#include "norm.h"
#include "table.h"
#include "vec.h"

namespace parlay {
namespace {

template <class T>
PARLAY_INLINE void rotate(const T* from, const float* cos_sin, T* to, int64_t rotary_dim, int64_t dim) {
  const int64_t half = rotary_dim / 2;
  PARLAY_ROW(first, n, half) {
    const Vec c = load_at(cos_sin, first, n);
    const Vec s = load_at(cos_sin + half, first, n);
    const Vec x = load_at(from, first, n);
    const Vec y = load_at(from + half, first, n);
    store_at(to, x * c - y * s, first, n);  // products and sums apart, as in the twin
    store_at(to + half, y * c + x * s, first, n);
  }
  if (rotary_dim < dim && to != from) memcpy((void*)(to + rotary_dim), from + rotary_dim, (dim - rotary_dim) * sizeof(T));
}

template <class T, bool in_bytes>
void rotary_rows(const RotaryArgs& a, int64_t begin, int64_t end) {
  const int64_t dim = a.head_dim, rotary_dim = a.rotary_dim;
  const auto size = [](int64_t width) { return in_bytes ? row_bytes(width) : width * (int64_t)sizeof(T); };
  const int64_t key_size = size(dim), value_size = size(a.value_dim);
  for (int64_t row = begin; row < end; ++row) {
    const T* qkv = (const T*)a.qkv + row * ((a.heads + a.kv_heads) * dim + a.kv_heads * a.value_dim);
    const float* cos_sin = a.cos_sin + (int64_t)a.positions[row] * rotary_dim;
    T* q_out = (T*)a.q_out + row * a.heads * dim;
    const auto turn = [&](const T* from, T* to, const void* norm) {
      rotate(from, cos_sin, to, rotary_dim, dim);
      if (norm) norm_row<T>(to, nullptr, (const T*)norm, to, dim, a.eps, false);
    };
    for (int64_t h = 0; h < a.heads; ++h) turn(qkv + h * dim, q_out + h * dim, a.q_norm);
    if (a.slots[row] < 0) continue;
    const T* keys = qkv + a.heads * dim;
    const T* values = keys + a.kv_heads * dim;
    // A cache block is [kv_heads, block_size, row].
    const int64_t at = a.slots[row] / a.block_size * a.kv_heads * a.block_size + a.slots[row] % a.block_size;
    for (int64_t h = 0; h < a.kv_heads; ++h) {
      char* key = (char*)a.key_cache + (at + h * a.block_size) * key_size;
      char* value = (char*)a.value_cache + (at + h * a.block_size) * value_size;
      if constexpr (in_bytes) {
        T turned[kMostDim];
        turn(keys + h * dim, turned, a.k_norm);
        write_row(turned, dim, (uint8_t*)key);
        write_row(values + h * a.value_dim, a.value_dim, (uint8_t*)value);
      } else {
        turn(keys + h * dim, (T*)key, a.k_norm);
        memcpy(value, values + h * a.value_dim, value_size);
      }
    }
  }
}

// Chooses by T and by how the cache has its rows.
#define PARLAY_BY_CACHE(rows)                                                    \
  if (a.cache_in_bytes)                                                          \
    a.bf16 ? rows<bf16, true>(a, begin, end) : rows<float, true>(a, begin, end); \
  else                                                                           \
    a.bf16 ? rows<bf16, false>(a, begin, end) : rows<float, false>(a, begin, end)

void rotary_store(const RotaryArgs& a, int64_t begin, int64_t end) { PARLAY_BY_CACHE(rotary_rows); }

template <class T, bool in_bytes>
void latent_rows(const LatentArgs& a, int64_t begin, int64_t end) {
  const int64_t dim = a.dim, rotary_dim = a.rotary_dim;
  for (int64_t row = begin; row < end; ++row) {
    const float* cos_sin = a.cos_sin + (int64_t)a.positions[row] * rotary_dim;
    T* query = (T*)a.query + row * a.heads * dim;
    for (int64_t h = 0; h < a.heads; ++h) rotate(query + h * dim, cos_sin, query + h * dim, rotary_dim, dim);
    if (a.slots[row] < 0) continue;
    T* latent = (T*)a.latent + row * dim;
    T whole[in_bytes ? kMostDim : 1];
    T* to = in_bytes ? whole : (T*)a.cache + a.slots[row] * dim;
    rotate(latent, cos_sin, to, rotary_dim, rotary_dim);
    norm_row<T>(latent + rotary_dim, nullptr, (const T*)a.norm, to + rotary_dim, dim - rotary_dim, a.eps, false);
    if constexpr (in_bytes) write_row(whole, dim, (uint8_t*)a.cache + a.slots[row] * row_bytes(dim));
  }
}

void latent_store(const LatentArgs& a, int64_t begin, int64_t end) { PARLAY_BY_CACHE(latent_rows); }

#undef PARLAY_BY_CACHE

}  // namespace
}  // namespace parlay
