// Recurrent layers: a causal convolution over each channel, and a state that every row updates.
//
// A sequence's rows go on from a stored state, to which rows of the step before that were accepted are applied first.
// Every row is one update in one order of operations, however many rows there are, so bits depend on a row's path
// alone.
#pragma once

#include "activation.h"
#include "experts.h"
#include "norm.h"
#include "table.h"

namespace parlay {
namespace {

// Rows of a path before one of its rows, newest first; null where the sequence had not begun.
template <class T>
struct Past {
  const T* rows[kMostTaps] = {};
  int64_t count = 0;

  Past(const ConvArgs& a, int64_t row, const int32_t* sequence, int64_t replayed_end) {
    const int64_t most = a.taps - 1, width = a.width;
    for (; row >= 0 && count < most; row = a.states.rows[4 * row + 1]) rows[count++] = (const T*)a.x + row * width;
    for (int64_t i = replayed_end; i > sequence[1] && count < most; --i)
      rows[count++] = (const T*)a.kept + (int64_t)a.states.replayed[2 * (i - 1)] * width;
    const T* tail = (const T*)a.tails + sequence[0] * most * width;
    for (int64_t i = most; sequence[0] >= 0 && i > 0 && count < most; --i) rows[count++] = tail + (i - 1) * width;
  }

  // Leaves the newest rows as the last ones before whatever comes next.
  void store(const ConvArgs& a, int64_t slot) const {
    const int64_t most = a.taps - 1;
    T* tail = (T*)a.tails + slot * most * a.width;
    for (int64_t i = 0; i < most; ++i) {
      T* to = tail + (most - 1 - i) * a.width;
      i < count ? memcpy((void*)to, rows[i], a.width * sizeof(T)) : memset((void*)to, 0, a.width * sizeof(T));
    }
  }
};

template <class T>
void causal_conv_rows(const ConvArgs& a, int64_t begin, int64_t end) {
  const T *x = (const T*)a.x, *weight = (const T*)a.weight, *bias = (const T*)a.bias;
  for (int64_t row = begin; row < end; ++row) {
    const int32_t* of = a.states.rows + 4 * row;
    const int32_t* sequence = a.states.sequences + 5 * of[0];
    const Past<T> past(a, of[1], sequence, sequence[2]);
    const T* own = x + row * a.width;
    T* out = (T*)a.out + row * a.width;
    PARLAY_ROW(first, n, a.width) {
      Vec total = splat(0.f);
      for (int64_t tap = 0; tap + 1 < a.taps; ++tap) {
        const T* before = past.rows[a.taps - 2 - tap];
        const Vec value = before ? load_at(before, first, n) : splat(0.f);
        total = fma(load_at(weight + tap * a.width, first, n), value, total);
      }
      total = fma(load_at(weight + (a.taps - 1) * a.width, first, n), load_at(own, first, n), total);
      if (bias) total = total + load_at(bias, first, n);
      store_at(out, a.silu ? Silu::of(total) : total, first, n);
    }
    if (of[2] >= 0) Past<T>(a, row, sequence, sequence[2]).store(a, of[2]);
    if (of[3] >= 0) memcpy((void*)((T*)a.kept + of[3] * a.width), own, a.width * sizeof(T));
    if (row != sequence[3]) continue;
    for (int64_t i = sequence[1]; i < sequence[2]; ++i)
      if (a.states.replayed[2 * i + 1] >= 0)
        Past<T>(a, -1, sequence, i + 1).store(a, a.states.replayed[2 * i + 1]);
  }
}

void causal_conv(const ConvArgs& a, int64_t begin, int64_t end) {
  a.bf16 ? causal_conv_rows<bf16>(a, begin, end) : causal_conv_rows<float>(a, begin, end);
}

constexpr int kPieceVecs = kStatePiece / kLanes;

PARLAY_INLINE float to_number(float x) { return x; }
PARLAY_INLINE float to_number(bf16 x) { return to_float(x); }

// ln(1 + e^x) of each lane; beyond 20 that is x.
PARLAY_INLINE Vec softplus(const Vec& x) {
  float lanes[kLanes], powers[kLanes];
  store(lanes, x);
  store(powers, exp(x));
  for (int i = 0; i < kLanes; ++i)
    if (lanes[i] <= 20.f) lanes[i] = (float)ln(1.0 + (double)powers[i]);
  return load(lanes);
}

// ln(1 + e^x) by a series, which is quick where there are as many as columns.
PARLAY_INLINE Vec softplus_series(const Vec& x) {
  const Vec low = exp(smaller(x, splat(0.f) - x)), z = low / (splat(2.f) + low), square = z * z;
  Vec series = splat(1.f / 13.f);
  for (const float term : {1.f / 11.f, 1.f / 9.f, 1.f / 7.f, 1.f / 5.f, 1.f / 3.f, 1.f})
    series = fma(series, square, splat(term));
  return larger(x, splat(0.f)) + splat(2.f) * z * series + x * splat(0.f);  // the last term keeps what is no number
}

// What each of a head's key columns is multiplied with, by logits [keys].
template <class T>
PARLAY_INLINE void channel_decays(const RecurrenceArgs& a, const T* logits, int64_t head, float* to) {
  const float* bias = a.step_bias + head * a.keys;
  PARLAY_ROW(first, n, a.keys) {
    const Vec step = softplus_series(load_at(logits + head * a.keys, first, n) + load_at(bias, first, n));
    store_at(to, exp(splat(a.rate[head]) * step), first, n);
  }
}

// Of some rows of a head: what the state is multiplied with, and what the row's own share of it is multiplied with.
struct Gates {
  float decay[kLanes], write[kLanes];

  // row(i) is where the gates of the i-th of `count` rows are.
  template <class T, class F>
  PARLAY_INLINE void read(const RecurrenceArgs& a, int64_t head, int64_t count, F row) {
    float steps[kLanes] = {}, writes[kLanes] = {};
    for (int64_t i = 0; i < count; ++i) {
      const T* gates = row(i);
      if (!a.channels) steps[i] = to_number(gates[(a.delta ? a.heads : 0) + head]);
      writes[i] = to_number(gates[head]);
    }
    if (a.channels) {
      store(write, sigmoid(load(writes)));
      return;
    }
    const Vec free = softplus(load(steps) + splat(a.step_bias[head]));
    // The last term keeps what is not a number.
    const Vec step = smaller(larger(free, splat(a.least_step)), splat(a.most_step)) + free * splat(0.f);
    store(decay, exp(splat(a.rate[head]) * step));
    store(write, a.delta ? sigmoid(load(writes)) : step);
  }
};

// A key or query of unit length, or as it is.
template <class T>
PARLAY_INLINE void widen_row(const T* from, float* to, int64_t n, bool unit, float factor) {
  Vec scale = splat(1.f);
  if (unit) {
    Vec squares = splat(0.f);
    PARLAY_ROW(first, some, n) {
      const Vec x = load_at(from, first, some);
      squares = fma(x, x, squares);
    }
    scale = splat(factor / __builtin_sqrtf(sum(squares) + 1e-6f));
  }
  PARLAY_ROW(first, some, n) store_at(to, load_at(from, first, some) * scale, first, some);
}

// One row's update of some columns of a head's state, [keys, kStatePiece], and what its query reads there; `out` is
// null where nobody asks. Each key's column decays by itself if there are `decays` for that.
template <bool each, class T>
PARLAY_INLINE void update(const RecurrenceArgs& a, const T* row, float decay_by, const float* decays, float write_by,
                          int64_t head, int64_t first, float* state, float* key, float* query, T* out) {
  const int64_t keys = a.keys, group = a.tiled ? head % a.groups : head / (a.heads / a.groups);
  widen_row(row + a.key_at + group * keys, key, keys, a.delta, 1.f);
  if (out) widen_row(row + a.query_at + group * keys, query, keys, a.delta, a.query_scale);
  const T* values = row + a.value_at + head * a.values + first;
  const Vec decay = splat(decay_by), write = splat(write_by);
  Vec share[kPieceVecs], read[kPieceVecs];
  _Pragma("GCC unroll 4") for (int v = 0; v < kPieceVecs; ++v) read[v] = splat(0.f);
  if (a.delta)
    for (int64_t i = 0; i < keys; ++i) {
      const Vec k = splat(each ? key[i] * decays[i] : key[i]);
      _Pragma("GCC unroll 4") for (int v = 0; v < kPieceVecs; ++v)
        read[v] = fma(k, load(state + i * kStatePiece + v * kLanes), read[v]);
    }
  _Pragma("GCC unroll 4") for (int v = 0; v < kPieceVecs; ++v) {
    const int64_t at = first + v * kLanes;
    const Vec value = at < a.values ? load(values + v * kLanes) : splat(0.f);
    share[v] = (a.delta ? value - (each ? read[v] : decay * read[v]) : value) * write;
    read[v] = splat(0.f);
  }
  for (int64_t i = 0; i < keys; ++i) {
    const Vec k = splat(key[i]), by = each ? splat(decays[i]) : decay;
    _Pragma("GCC unroll 4") for (int v = 0; v < kPieceVecs; ++v) {
      float* at = state + i * kStatePiece + v * kLanes;
      const Vec s = fma(k, share[v], load(at) * by);
      store(at, s);
      if (out) read[v] = fma(splat(query[i]), s, read[v]);
    }
  }
  if (!out) return;
  _Pragma("GCC unroll 4") for (int v = 0; v < kPieceVecs; ++v) {
    if (first + v * kLanes >= a.values) continue;
    Vec r = read[v];
    if (a.skip) r = fma(splat(a.skip[head]), load(values + v * kLanes), r);
    store(out + v * kLanes, r);
  }
}

// Where a slot has some columns of a head's state.
PARLAY_INLINE float* stored_at(const RecurrenceArgs& a, int64_t slot, int64_t head, int64_t first) {
  const int64_t pieces = (a.values + kStatePiece - 1) / kStatePiece;
  return a.stored + ((slot * a.heads + head) * pieces + first / kStatePiece) * a.keys * kStatePiece;
}

template <bool each, class T>
void recurrence_task(const RecurrenceArgs& a, int64_t number, int64_t head, int64_t first) {
  const int32_t* sequence = a.states.sequences + 5 * number;
  const int32_t* rows = a.states.rows;
  const int64_t begin = sequence[3], end = sequence[4], width = a.width, gates = a.gates_width;
  const int64_t own_gates = each ? a.heads : gates;  // of a row that is not kept
  int64_t nodes = end;  // the first row that is not certain
  while (nodes > begin && rows[4 * (nodes - 1) + 3] >= 0) --nodes;
  bool chain = true;
  for (int64_t row = nodes; row < end; ++row) chain = chain && rows[4 * row + 1] == row - 1;
  const int64_t size = a.keys * kStatePiece;
  float* key = (float*)scratch((3 * (a.keys + kLanes) + (chain ? 1 : end - nodes + 1) * size) * sizeof(float));
  float *query = key + a.keys + kLanes, *decays = query + a.keys + kLanes, *state = decays + a.keys + kLanes;
  const auto keep = [&](int64_t slot, const float* from) {
    if (slot >= 0) memcpy(stored_at(a, slot, head, first), from, size * sizeof(float));
  };
  if (sequence[0] >= 0)
    memcpy(state, stored_at(a, sequence[0], head, first), size * sizeof(float));
  else
    memset(state, 0, size * sizeof(float));
  Gates gate;
  for (int64_t i = sequence[1]; i < sequence[2]; ++i) {
    const int32_t* own = a.states.replayed + 2 * i;
    const int64_t at = (i - sequence[1]) % kLanes, left = sequence[2] - i;
    if (at == 0)
      gate.read<T>(a, head, left < kLanes ? left : kLanes,
                   [&](int64_t j) { return (const T*)a.kept_gates + own[2 * j] * gates; });
    if (each) channel_decays(a, (const T*)a.kept_gates + own[0] * gates + a.heads, head, decays);
    update<each, T>(a, (const T*)a.kept + own[0] * width, gate.decay[at], decays, gate.write[at], head, first, state,
                    key, query, nullptr);
    keep(own[1], state);
  }
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = (row - begin) % kLanes, left = end - row;
    if (at == 0)
      gate.read<T>(a, head, left < kLanes ? left : kLanes,
                   [&](int64_t j) { return (const T*)a.gates + (row + j) * own_gates; });
    float* own = state;
    if (row >= nodes && !chain) {  // a state for each node, since several may go on from one
      const int64_t parent = rows[4 * row + 1];
      own = state + (row - nodes + 1) * size;
      memcpy(own, parent < nodes ? state : state + (parent - nodes + 1) * size, size * sizeof(float));
    }
    const T *x = (const T*)a.x + row * width, *g = (const T*)a.gates + row * own_gates;
    const T* logits = each ? (const T*)a.channels + row * a.heads * a.keys : nullptr;
    T* out = (T*)a.out + (row * a.heads + head) * a.values + first;
    if (each) channel_decays(a, logits, head, decays);
    update<each, T>(a, x, gate.decay[at], decays, gate.write[at], head, first, own, key, query, out);
    keep(rows[4 * row + 2], own);
    const int64_t place = rows[4 * row + 3];
    if (place >= 0 && head == 0 && first == 0) {
      memcpy((void*)((T*)a.kept + place * width), x, width * sizeof(T));
      T* to = (T*)a.kept_gates + place * gates;
      memcpy((void*)to, g, own_gates * sizeof(T));
      if (each) memcpy((void*)(to + own_gates), logits, a.heads * a.keys * sizeof(T));
    }
  }
}

// Tasks are sequences, times heads, times pieces of a head's columns.
void recurrence(const RecurrenceArgs& a, int64_t begin, int64_t end) {
  const int64_t pieces = (a.values + kStatePiece - 1) / kStatePiece;
  for (int64_t task = begin; task < end; ++task) {
    const int64_t number = task / (a.heads * pieces), head = task / pieces % a.heads;
    const int64_t first = task % pieces * kStatePiece;
    if (a.channels)
      a.bf16 ? recurrence_task<true, bf16>(a, number, head, first) : recurrence_task<true, float>(a, number, head, first);
    else
      a.bf16 ? recurrence_task<false, bf16>(a, number, head, first)
             : recurrence_task<false, float>(a, number, head, first);
  }
}

// A norm of each group of columns beside a gate: of the product with silu(gate), or multiplied with it afterwards.
template <class T>
void gated_norm_rows(const GatedNormArgs& a, int64_t begin, int64_t end) {
  const T* weight = (const T*)a.weight;
  for (int64_t row = begin; row < end; ++row)
    for (int64_t at = 0; at < a.width; at += a.group) {
      const T *x = (const T*)a.x + row * a.width + at, *gate = (const T*)a.gate + row * a.width + at;
      const T* w = weight + (a.shared ? 0 : at);
      T* out = (T*)a.out + row * a.width + at;
      const auto value = [&](int64_t first, int64_t n) __attribute__((always_inline)) {
        const Vec v = load_at(x, first, n);
        return a.gate_first ? v * Silu::of(load_at(gate, first, n)) : v;
      };
      Vec squares = splat(0.f);
      PARLAY_ROW(first, n, a.group) {
        const Vec v = value(first, n);
        squares = fma(v, v, squares);
      }
      const Vec scale = splat(1.f / __builtin_sqrtf(sum(squares) / (float)a.group + a.eps));
      PARLAY_ROW(first, n, a.group) {
        Vec v = rounded<T>(value(first, n) * scale) * load_at(w, first, n);
        if (!a.gate_first) v = rounded<T>(v) * Silu::of(load_at(gate, first, n));
        store_at(out, v, first, n);
      }
    }
}

void gated_norm(const GatedNormArgs& a, int64_t begin, int64_t end) {
  a.bf16 ? gated_norm_rows<bf16>(a, begin, end) : gated_norm_rows<float>(a, begin, end);
}

template <class T>
void multiply_rows(const MultiplyArgs& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    T* x = (T*)a.x + row * a.width;
    const T* other = (const T*)a.other + row * a.width;
    PARLAY_ROW(first, n, a.width) {
      const Vec y = load_at(other, first, n);
      store_at(x, load_at(x, first, n) * (a.sigmoid ? rounded<T>(sigmoid(y)) : y), first, n);
    }
  }
}

void multiply(const MultiplyArgs& a, int64_t begin, int64_t end) {
  a.bf16 ? multiply_rows<bf16>(a, begin, end) : multiply_rows<float>(a, begin, end);
}

}  // namespace
}  // namespace parlay
