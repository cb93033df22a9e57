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

  Past() = default;
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

// Keeps what a row, and what is replayed before a sequence's first one, leave for later.
template <class T>
PARLAY_INLINE void keep_row(const ConvArgs& a, int64_t row) {
  const int32_t* of = a.states.rows + 4 * row;
  if (of[0] < 0) return;  // it pads a pass
  const int32_t* sequence = a.states.sequences + 5 * of[0];
  if (of[2] >= 0) Past<T>(a, row, sequence, sequence[2]).store(a, of[2]);
  if (of[3] >= 0) memcpy((void*)((T*)a.kept + of[3] * a.width), (const T*)a.x + row * a.width, a.width * sizeof(T));
  if (row != sequence[3]) return;
  for (int64_t i = sequence[1]; i < sequence[2]; ++i)
    if (a.states.replayed[2 * i + 1] >= 0) Past<T>(a, -1, sequence, i + 1).store(a, a.states.replayed[2 * i + 1]);
}

// Rows of a convolution that share each weight that is read.
constexpr int64_t kConvRows = 4;

// R neighbours, each behind a path of its own.
template <int R, class T>
PARLAY_INLINE void convolve(const ConvArgs& a, int64_t row, const Past<T>* pasts) {
  const T *weight = (const T*)a.weight, *bias = (const T*)a.bias, *own = (const T*)a.x + row * a.width;
  T* out = (T*)a.out + row * a.width;
  PARLAY_ROW(first, n, a.width) {
    Vec total[R];
    _Pragma("GCC unroll 4") for (int r = 0; r < R; ++r) total[r] = splat(0.f);
    for (int64_t tap = 0; tap + 1 < a.taps; ++tap) {
      const Vec w = load_at(weight + tap * a.width, first, n);
      _Pragma("GCC unroll 4") for (int r = 0; r < R; ++r) {
        const T* before = pasts[r].rows[a.taps - 2 - tap];
        total[r] = fma(w, before ? load_at(before, first, n) : splat(0.f), total[r]);
      }
    }
    const Vec w = load_at(weight + (a.taps - 1) * a.width, first, n);
    _Pragma("GCC unroll 4") for (int r = 0; r < R; ++r) {
      total[r] = fma(w, load_at(own + r * a.width, first, n), total[r]);
      if (bias) total[r] = total[r] + load_at(bias, first, n);
      store_at(out + r * a.width, a.silu ? Silu::of(total[r]) : total[r], first, n);
    }
  }
}

template <class T>
void causal_conv_rows(const ConvArgs& a, int64_t begin, int64_t end) {
  Past<T> pasts[kConvRows];
  for (int64_t row = begin; row < end;) {
    const int64_t count = end - row < kConvRows ? 1 : kConvRows;
    for (int64_t r = 0; r < count; ++r) {
      const int32_t* of = a.states.rows + 4 * (row + r);
      const int32_t* sequence = a.states.sequences + 5 * of[0];
      pasts[r] = of[0] < 0 ? Past<T>() : Past<T>(a, of[1], sequence, sequence[2]);
    }
    count == kConvRows ? convolve<kConvRows>(a, row, pasts) : convolve<1>(a, row, pasts);
    for (const int64_t next = row + count; row < next; ++row) keep_row<T>(a, row);
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
      store(write, splat(a.write_scale) * sigmoid(load(writes)));
      return;
    }
    const Vec free = softplus(load(steps) + splat(a.step_bias[head]));
    // The last term keeps what is not a number.
    const Vec step = smaller(larger(free, splat(a.least_step)), splat(a.most_step)) + free * splat(0.f);
    store(decay, exp(splat(a.rate[head]) * step));
    store(write, a.delta ? splat(a.write_scale) * sigmoid(load(writes)) : step);
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

// A row's key and query in a head, [keys] each, and what its keys' columns decay by if they do so by themselves.
template <bool each>
struct Vectors {
  float *key, *query, *decays, *asked;  // asked: the key as it meets the state that has not decayed yet

  explicit Vectors(float* at, int64_t keys)
      : key(at), query(key + stride(keys)), decays(query + stride(keys)), asked(decays + stride(keys)) {}
  static int64_t stride(int64_t keys) { return keys + kLanes; }
  static int64_t size(int64_t keys) { return 4 * stride(keys); }

  template <class T>
  PARLAY_INLINE void read(const RecurrenceArgs& a, const T* row, const T* logits, int64_t head, bool with_query) {
    const int64_t keys = a.keys, group = a.tiled ? head % a.groups : head / (a.heads / a.groups);
    widen_row(row + a.key_at + group * keys, key, keys, a.delta, 1.f);
    if (with_query) widen_row(row + a.query_at + group * keys, query, keys, a.delta, a.query_scale);
    if (!each) return;
    channel_decays(a, logits, head, decays);
    for (int64_t i = 0; i < keys; ++i) asked[i] = key[i] * decays[i];
  }
  PARLAY_INLINE const float* asking() const { return each ? asked : key; }
};

// What a key reads of some columns of a state, [keys, kStatePiece].
PARLAY_INLINE void read_state(const float* key, int64_t keys, const float* state, Vec* read) {
  _Pragma("GCC unroll 4") for (int v = 0; v < kPieceVecs; ++v) read[v] = splat(0.f);
  for (int64_t i = 0; i < keys; ++i)
    _Pragma("GCC unroll 4") for (int v = 0; v < kPieceVecs; ++v)
      read[v] = fma(splat(key[i]), load(state + i * kStatePiece + v * kLanes), read[v]);
}

// The state decays and takes a share; as it passes by, the row's query reads it, and the key of the row that follows.
template <bool each, bool query, bool next>
PARLAY_INLINE void update_state(const Vectors<each>& of, int64_t keys, const Vec& decay, const Vec* share, const float* asking,
                                float* state, Vec* read, Vec* asked) {
  Vec shares[kPieceVecs], reads[kPieceVecs], asks[kPieceVecs];
  _Pragma("GCC unroll 4") for (int v = 0; v < kPieceVecs; ++v) shares[v] = share[v], reads[v] = asks[v] = splat(0.f);
  for (int64_t i = 0; i < keys; ++i) {
    const Vec k = splat(of.key[i]), by = each ? splat(of.decays[i]) : decay;
    _Pragma("GCC unroll 4") for (int v = 0; v < kPieceVecs; ++v) {
      float* at = state + i * kStatePiece + v * kLanes;
      const Vec s = fma(k, shares[v], load(at) * by);
      store(at, s);
      if constexpr (query) reads[v] = fma(splat(of.query[i]), s, reads[v]);
      if constexpr (next) asks[v] = fma(splat(asking[i]), s, asks[v]);
    }
  }
  _Pragma("GCC unroll 4") for (int v = 0; v < kPieceVecs; ++v) read[v] = reads[v], asked[v] = asks[v];
}

// One row's update of some columns of a head's state, and what its query reads there; `out` is null where nobody asks.
// `asked` is what the row's key reads of the state, and becomes what the key `asking` reads after it, unless null.
template <bool each, class T>
PARLAY_INLINE void update(const RecurrenceArgs& a, const T* row, const Vectors<each>& of, float decay_by, float write_by,
                          int64_t head, int64_t piece, const float* asking, float* state, Vec* asked, T* out) {
  const int64_t first = piece * kStatePiece;
  const T* values = row + a.value_at + head * a.values + first;
  const Vec decay = splat(decay_by), write = splat(write_by);
  Vec share[kPieceVecs], read[kPieceVecs];
  _Pragma("GCC unroll 4") for (int v = 0; v < kPieceVecs; ++v) {
    const int64_t at = first + v * kLanes;
    const Vec value = at < a.values ? load(values + v * kLanes) : splat(0.f);
    share[v] = (a.delta ? value - (each ? asked[v] : decay * asked[v]) : value) * write;
  }
  if (asking)
    out ? update_state<each, true, true>(of, a.keys, decay, share, asking, state, read, asked)
        : update_state<each, false, true>(of, a.keys, decay, share, asking, state, read, asked);
  else
    out ? update_state<each, true, false>(of, a.keys, decay, share, asking, state, read, asked)
        : update_state<each, false, false>(of, a.keys, decay, share, asking, state, read, asked);
  if (!out) return;
  _Pragma("GCC unroll 4") for (int v = 0; v < kPieceVecs; ++v) {
    if (first + v * kLanes >= a.values) continue;
    Vec r = read[v];
    if (a.skip) r = fma(splat(a.skip[head]), load(values + v * kLanes), r);
    store(out + first + v * kLanes, r);
  }
}

// Where a slot has a piece of a head's state.
PARLAY_INLINE float* stored_at(const RecurrenceArgs& a, int64_t slot, int64_t head, int64_t piece) {
  const int64_t pieces = (a.values + kStatePiece - 1) / kStatePiece;
  return a.stored + ((slot * a.heads + head) * pieces + piece) * a.keys * kStatePiece;
}

// Some pieces of a head of a sequence. Rows go by in groups, whose vectors are read once for all pieces.
template <bool each, class T>
void recurrence_task(const RecurrenceArgs& a, int64_t number, int64_t head, int64_t first_piece, int64_t pieces) {
  const int32_t* sequence = a.states.sequences + 5 * number;
  const int32_t* rows = a.states.rows;
  const int64_t begin = sequence[3], end = sequence[4], width = a.width, gates = a.gates_width;
  const int64_t own_gates = each ? a.heads : gates;  // of a row that is not kept
  int64_t nodes = end;  // the first row that is not certain
  while (nodes > begin && rows[4 * (nodes - 1) + 3] >= 0) --nodes;
  bool chain = true;
  for (int64_t row = nodes; row < end; ++row) chain = chain && rows[4 * row + 1] == row - 1;
  const int64_t size = a.keys * kStatePiece, vectors = Vectors<each>::size(a.keys);
  float* memory = (float*)scratch((kLanes * vectors + pieces * (chain ? 1 : end - nodes + 1) * size) * sizeof(float));
  float* states = memory + kLanes * vectors;
  const auto vectors_of = [&](int64_t j) { return Vectors<each>(memory + j * vectors, a.keys); };
  // A piece of the state behind the rows that are certain, or behind a node of a tree.
  const auto state_of = [&](int64_t row, int64_t piece) {
    return states + ((chain || row < nodes ? 0 : row - nodes + 1) * pieces + piece) * size;
  };
  const auto keep = [&](int64_t slot, int64_t piece, const float* from) {
    if (slot >= 0) memcpy(stored_at(a, slot, head, first_piece + piece), from, size * sizeof(float));
  };
  if (sequence[0] >= 0)
    memcpy(states, stored_at(a, sequence[0], head, first_piece), pieces * size * sizeof(float));
  else
    memset(states, 0, pieces * size * sizeof(float));

  Gates gate;
  for (int64_t from = sequence[1]; from < sequence[2]; from += kLanes) {
    const int64_t count = sequence[2] - from < kLanes ? sequence[2] - from : kLanes;
    const int32_t* replayed = a.states.replayed + 2 * from;
    const auto x_of = [&](int64_t j) { return (const T*)a.kept + replayed[2 * j] * width; };
    const auto gates_of = [&](int64_t j) { return (const T*)a.kept_gates + replayed[2 * j] * gates; };
    gate.read<T>(a, head, count, gates_of);
    for (int64_t j = 0; j < count; ++j) vectors_of(j).read(a, x_of(j), gates_of(j) + a.heads, head, false);
    for (int64_t piece = 0; piece < pieces; ++piece) {
      float* state = state_of(0, piece);
      Vec asked[kPieceVecs];
      if (a.delta) read_state(vectors_of(0).asking(), a.keys, state, asked);
      for (int64_t j = 0; j < count; ++j) {
        const float* asking = a.delta && j + 1 < count ? vectors_of(j + 1).asking() : nullptr;
        update<each, T>(a, x_of(j), vectors_of(j), gate.decay[j], gate.write[j], head, first_piece + piece, asking,
                        state, asked, nullptr);
        keep(replayed[2 * j + 1], piece, state);
      }
    }
  }
  for (int64_t from = begin; from < end; from += kLanes) {
    const int64_t count = end - from < kLanes ? end - from : kLanes;
    const auto x_of = [&](int64_t j) { return (const T*)a.x + (from + j) * width; };
    const auto gates_of = [&](int64_t j) { return (const T*)a.gates + (from + j) * own_gates; };
    const auto logits_of = [&](int64_t j) { return each ? (const T*)a.channels + (from + j) * a.heads * a.keys : nullptr; };
    // Whether a row goes on from the one before it, in place.
    const auto follows = [&](int64_t j) { return chain || from + j < nodes; };
    gate.read<T>(a, head, count, gates_of);
    for (int64_t j = 0; j < count; ++j) vectors_of(j).read(a, x_of(j), logits_of(j), head, true);
    for (int64_t piece = 0; piece < pieces; ++piece) {
      Vec asked[kPieceVecs];
      for (int64_t j = 0; j < count; ++j) {
        const int64_t row = from + j;
        float* state = state_of(row, piece);
        if (!follows(j)) memcpy(state, state_of(rows[4 * row + 1], piece), size * sizeof(float));
        if (a.delta && (j == 0 || !follows(j))) read_state(vectors_of(j).asking(), a.keys, state, asked);
        const bool next = a.delta && j + 1 < count && follows(j + 1);
        T* out = (T*)a.out + (row * a.heads + head) * a.values;
        update<each>(a, x_of(j), vectors_of(j), gate.decay[j], gate.write[j], head, first_piece + piece,
                     next ? vectors_of(j + 1).asking() : nullptr, state, asked, out);
        keep(rows[4 * row + 2], piece, state);
      }
    }
    if (head || first_piece) continue;
    for (int64_t j = 0; j < count; ++j) {
      const int64_t place = rows[4 * (from + j) + 3];
      if (place < 0) continue;
      memcpy((void*)((T*)a.kept + place * width), x_of(j), width * sizeof(T));
      T* to = (T*)a.kept_gates + place * gates;
      memcpy((void*)to, gates_of(j), own_gates * sizeof(T));
      if (each) memcpy((void*)(to + own_gates), logits_of(j), a.heads * a.keys * sizeof(T));
    }
  }
}

// Tasks are sequences, times heads, times shares of the pieces of a head's columns.
void recurrence(const RecurrenceArgs& a, int64_t begin, int64_t end) {
  const int64_t pieces = (a.values + kStatePiece - 1) / kStatePiece, shares = (pieces + a.pieces - 1) / a.pieces;
  for (int64_t task = begin; task < end; ++task) {
    const int64_t number = task / (a.heads * shares), head = task / shares % a.heads;
    const int64_t first = task % shares * a.pieces, count = pieces - first < a.pieces ? pieces - first : a.pieces;
    if (a.channels)
      a.bf16 ? recurrence_task<true, bf16>(a, number, head, first, count)
             : recurrence_task<true, float>(a, number, head, first, count);
    else
      a.bf16 ? recurrence_task<false, bf16>(a, number, head, first, count)
             : recurrence_task<false, float>(a, number, head, first, count);
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
PARLAY_INLINE Vec opened(Gate gate, const Vec& x) {
  return gate == kPlain ? x : rounded<T>(gate == kSigmoid ? sigmoid(x) : softplus_series(x));
}

template <class T>
void multiply_rows(const MultiplyArgs& a, int64_t begin, int64_t end) {
  const int64_t group = a.width / a.gates;  // columns that a gate is for
  for (int64_t row = begin; row < end; ++row) {
    T* x = (T*)a.x + row * a.width;
    const T* other = (const T*)a.other + row * a.gates;
    PARLAY_ROW(first, n, a.gates) {
      const Vec gates = opened<T>(a.gate, load_at(other, first, n));
      if (group == 1) {
        store_at(x, load_at(x, first, n) * gates, first, n);
        continue;
      }
      float each[kLanes];
      store(each, gates);
      for (int64_t i = 0; i < n; ++i) {
        T* own = x + (first + i) * group;
        PARLAY_ROW(column, m, group) store_at(own, load_at(own, column, m) * splat(each[i]), column, m);
      }
    }
  }
}

void multiply(const MultiplyArgs& a, int64_t begin, int64_t end) {
  a.bf16 ? multiply_rows<bf16>(a, begin, end) : multiply_rows<float>(a, begin, end);
}

}  // namespace
}  // namespace parlay
