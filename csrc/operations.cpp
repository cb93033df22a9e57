// The operations of the contract (`kernels.base`, `kernels.sampling`), which say what each one does: what they are given
// is checked and handed to the kernels of the chosen instruction set, dealt to threads.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "deal.h"
#include "operations.h"
#include "pool.h"
#include "table.h"
#include "tape.h"
#include "tensor.h"

namespace parlay {
namespace {

using nb::arg;

// Runs a kernel of rows on `rows` of them, at a rough guess of so many nanoseconds in all.
template <class Args>
void by_rows(void (*Table::*kernel)(const Args&, int64_t, int64_t), const Args& a, int64_t rows, int64_t cost) {
  submit([=] {
    deal_rows(rows, cost, [&](int64_t begin, int64_t end) { (table->*kernel)(a, begin, end); });
  });
}

void embed(const Tensor& weight, const Tensor& tokens, const Tensor& out) {
  all_bf16({&weight, &out});
  const int64_t rows = tokens.size(0), bytes = weight.size(1) * weight.element_bytes();
  out.expect({rows, weight.size(1)});
  const char* from = static_cast<char*>(weight.memory());
  char* to = static_cast<char*>(out.memory());
  const int64_t* token = tokens.as<int64_t>({rows});
  submit([=] {
    for (int64_t row = 0; row < rows; ++row) std::memcpy(to + row * bytes, from + token[row] * bytes, bytes);
  });
}

void embed_packed(const PackedWeight& weight, const Tensor& tokens, const Tensor& out) {
  if (weight.parts.size() != 1) throw std::invalid_argument("embed_packed takes a weight of one part");
  const PackedPart& part = weight.parts[0];
  const int64_t rows = tokens.size(0), inputs = weight.inputs;
  out.expect({rows, inputs});
  by_rows(&Table::unpack,
          UnpackArgs{part.tensor.memory(), tokens.as<int64_t>({rows}), out.memory(), inputs, part.kind, all_bf16({&out})},
          rows, rows * inputs * 4);
}

void rms_norm(const Tensor& x, const Tensor& weight, float eps, const Tensor& out, bool plus_one,
              const std::optional<Tensor>& delta) {
  const int64_t rows = x.size(0), width = x.size(1);
  const bool bf16 = all_bf16({&x, delta ? &*delta : &x, &weight, &out});
  weight.expect({width});
  out.expect({rows, width});
  if (delta) delta->expect({rows, width});
  by_rows(&Table::norm,
          NormArgs{delta ? delta->memory() : x.memory(), delta ? x.memory() : nullptr, weight.memory(), out.memory(),
                   width, eps, plus_one, bf16},
          rows, rows * width / 2);
}

void head_norm(const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight, int64_t heads, float eps,
               bool plus_one, const std::optional<Tensor>& v_weight) {
  const int64_t rows = qkv.size(0), head_dim = q_weight.size(0);
  const int64_t kv_heads = (qkv.size(1) / std::max<int64_t>(head_dim, 1) - heads) / 2;
  const bool bf16 = all_bf16({&qkv, &q_weight, &k_weight, v_weight ? &*v_weight : &k_weight});
  k_weight.expect({head_dim});
  if (v_weight) v_weight->expect({head_dim});
  qkv.expect({rows, (heads + 2 * kv_heads) * head_dim});
  by_rows(&Table::head_norm,
          HeadNormArgs{qkv.memory(), q_weight.memory(), k_weight.memory(), v_weight ? v_weight->memory() : nullptr,
                       heads, kv_heads, head_dim, eps, plus_one, bf16},
          rows, rows * (heads + kv_heads) * head_dim / 2);
}

void head_squares(const Tensor& qkv, const Tensor& q_squares, const Tensor& k_squares) {
  const int64_t rows = qkv.size(0), heads = q_squares.size(1), kv_heads = k_squares.size(1);
  const int64_t head_dim = qkv.size(1) / std::max<int64_t>(heads + 2 * kv_heads, 1);
  qkv.expect({rows, (heads + 2 * kv_heads) * head_dim});
  by_rows(&Table::head_squares,
          HeadSquaresArgs{qkv.memory(), q_squares.as<float>({rows, heads}), k_squares.as<float>({rows, kv_heads}), heads,
                          kv_heads, head_dim, all_bf16({&qkv})},
          rows, rows * (heads + kv_heads) * head_dim / 4);
}

void joint_norm(const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight, const Tensor& q_squares,
                const Tensor& k_squares, int64_t heads, float eps) {
  const int64_t rows = qkv.size(0), head_dim = q_weight.size(0) / std::max<int64_t>(heads, 1);
  const int64_t kv_heads = k_weight.size(0) / std::max<int64_t>(head_dim, 1);
  const int64_t all_heads = q_squares.size(1), all_kv_heads = k_squares.size(1);
  const bool bf16 = all_bf16({&qkv, &q_weight, &k_weight});
  q_weight.expect({heads * head_dim});
  k_weight.expect({kv_heads * head_dim});
  qkv.expect({rows, (heads + 2 * kv_heads) * head_dim});
  by_rows(&Table::joint_norm,
          JointNormArgs{qkv.memory(), q_weight.memory(), k_weight.memory(), q_squares.as<float>({rows, all_heads}),
                        k_squares.as<float>({rows, all_kv_heads}), heads, kv_heads, head_dim, all_heads, all_kv_heads,
                        eps, bf16},
          rows, rows * (heads + kv_heads) * head_dim / 4);
}

void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps, const Tensor& out,
                const std::optional<Tensor>& delta) {
  const int64_t rows = x.size(0), width = x.size(1);
  const bool bf16 = all_bf16({&x, delta ? &*delta : &x, &weight, &bias, &out});
  weight.expect({width});
  bias.expect({width});
  out.expect({rows, width});
  if (delta) delta->expect({rows, width});
  by_rows(&Table::layer_norm,
          LayerNormArgs{delta ? delta->memory() : x.memory(), delta ? x.memory() : nullptr, weight.memory(),
                        bias.memory(), out.memory(), width, eps, bf16},
          rows, rows * width);
}

constexpr int64_t kNumbers = 32, kBytes = 34;  // of a row in bytes: so many numbers take so many

// Whether a cache has rows in bytes, as cache_rows.h says; else they are `dim` numbers.
bool in_bytes(const Tensor& cache, int64_t dim) {
  constexpr int64_t kMost = 1024;
  if (cache.type != Type::kU8) {
    cache.expect({cache.size(0), cache.size(1), cache.size(2), dim});
    return false;
  }
  cache.expect({cache.size(0), cache.size(1), cache.size(2), dim / kNumbers * kBytes});
  if (dim % kNumbers || dim > kMost) throw std::invalid_argument("rows of a cache in bytes have 32 to 1024 numbers, a multiple of 32");
  return true;
}

// Numbers of a cache's row.
int64_t width_of(const Tensor& cache) { return cache.type == Type::kU8 ? cache.size(3) / kBytes * kNumbers : cache.size(3); }

// Likewise, of caches of equal shapes but for the widths of rows; those of numbers are of the type of `rows`.
bool in_bytes(const Tensor& keys, const Tensor& values, const Tensor& rows, int64_t dim) {
  values.expect({keys.size(0), keys.size(1), keys.size(2), values.size(3)});
  const bool bytes = in_bytes(keys, dim);
  if (bytes != in_bytes(values, width_of(values))) throw std::invalid_argument("keys are " + keys.text() + ", values " + values.text());
  if (!bytes) all_bf16({&rows, &keys, &values});
  return bytes;
}

void rotary_store(const Tensor& qkv, const Tensor& positions, const Tensor& slots, const Tensor& cos_sin,
                  const Tensor& q_out, const Tensor& key_cache, const Tensor& value_cache,
                  const std::optional<Tensor>& q_norm, const std::optional<Tensor>& k_norm, float eps) {
  const int64_t rows = q_out.size(0), heads = q_out.size(1), head_dim = q_out.size(2);
  const int64_t kv_heads = key_cache.size(1), block_size = key_cache.size(2);
  const bool bf16 = all_bf16({&qkv, &q_out, q_norm ? &*q_norm : &qkv, k_norm ? &*k_norm : &qkv});
  const bool bytes = in_bytes(key_cache, value_cache, qkv, head_dim);
  if (q_norm.has_value() != k_norm.has_value()) throw std::invalid_argument("queries and keys have norms, or neither");
  if (q_norm) q_norm->expect({head_dim});
  if (k_norm) k_norm->expect({head_dim});
  const int64_t value_dim = width_of(value_cache);
  qkv.expect({rows, (heads + kv_heads) * head_dim + kv_heads * value_dim});
  by_rows(&Table::rotary_store,
          RotaryArgs{qkv.memory(), positions.as<int32_t>({rows}), slots.as<int64_t>({rows}), cos_sin.as<float>(),
                     q_norm ? q_norm->memory() : nullptr, k_norm ? k_norm->memory() : nullptr, eps, q_out.memory(), key_cache.memory(), value_cache.memory(), heads, kv_heads, head_dim,
                     value_dim, cos_sin.size(1), block_size, bf16, bytes},
          rows, rows * ((heads + kv_heads) * head_dim + kv_heads * value_dim) / 4);
}

void latent_store(const Tensor& query, const Tensor& latent, const Tensor& norm, float eps, const Tensor& positions,
                  const Tensor& slots, const Tensor& cos_sin, const Tensor& cache) {
  const int64_t rows = query.size(0), heads = query.size(1), dim = query.size(2);
  const int64_t rotary_dim = cos_sin.size(1);
  const bool bf16 = all_bf16({&query, &latent, &norm}), bytes = in_bytes(cache, cache, query, dim);
  latent.expect({rows, dim});
  norm.expect({dim - rotary_dim});
  if (cache.size(1) != 1) throw std::invalid_argument("a cache of latents has one head, not " + cache.text());
  by_rows(&Table::latent_store,
          LatentArgs{query.memory(), latent.memory(), norm.memory(), eps, positions.as<int32_t>({rows}),
                     slots.as<int64_t>({rows}), cos_sin.as<float>(), cache.memory(), heads, dim, rotary_dim, bf16, bytes},
          rows, rows * (heads + 2) * dim / 4);
}

// Deals attention's rows and heads to threads by what the rows see now: a recording is replayed with other views.
void attend(AttentionArgs a, int64_t rows) {
  const int64_t threads = get_threads();
  // A kv head whose queries are many counts as several where threads would have nothing to do.
  while (rows * a.kv_heads < threads && a.heads / a.kv_heads % 2 == 0) a.kv_heads *= 2;
  int64_t keys = a.extra_offsets[rows];
  for (int64_t row = 0; row < rows; ++row) keys += std::min<int64_t>(a.last[row] - a.first[row], a.chunk ? a.chunk : a.window);
  // Adjacent rows of one request share their reading of keys, and few rows take several kv heads, whose keys lie
  // beside each other; as far as every thread still has a task. Halving leaves tasks of equal size.
  const int64_t group = a.heads / a.kv_heads;
  const auto pieces = [](int64_t n, int64_t most) { return (n + most - 1) / most; };
  int64_t most_rows = std::max<int64_t>(kAttentionQueries / group, 1), most_heads = a.kv_heads;
  while (most_rows > 1 && pieces(rows, most_rows) * a.kv_heads < threads) most_rows = pieces(most_rows, 2);
  std::vector<int64_t> starts;
  for (int64_t row = 0, end; row < rows; row = end) {
    for (end = row + 1; end < rows && a.row_request[end] == a.row_request[row];) ++end;
    const int64_t count = pieces(end - row, most_rows);
    for (int64_t i = 0; i < count; ++i) starts.push_back(row + (end - row) * i / count);
  }
  const int64_t groups = static_cast<int64_t>(starts.size());
  starts.push_back(rows);
  while (most_heads > 1 && (most_heads * rows * group > kAttentionQueries * groups ||
                            pieces(a.kv_heads, most_heads) * groups < threads))
    most_heads = pieces(most_heads, 2);
  const int64_t parts = pieces(a.kv_heads, most_heads);
  deal_unequal(groups * parts, keys * a.heads * ((a.head_dim + a.value_dim) / 2 + 32) / 48, [&](int64_t task) {
    const int64_t* row = &starts[task % groups];
    const int64_t part = task / groups, head = a.kv_heads * part / parts;
    table->attention(a, row[0], row[1] - row[0], head, a.kv_heads * (part + 1) / parts - head);
  });
}

void attention(const Tensor& q, const Tensor& key_cache, const Tensor& value_cache, const View& view, float scale,
               const Tensor& out, int64_t window, float cap, const std::optional<Tensor>& sinks, int64_t chunk) {
  const int64_t rows = q.size(0), heads = q.size(1), head_dim = q.size(2);
  const int64_t kv_heads = key_cache.size(1), block_size = key_cache.size(2);
  const bool bf16 = all_bf16({&q, &out}), bytes = in_bytes(key_cache, value_cache, q, head_dim);
  const int64_t value_dim = width_of(value_cache);
  out.expect({rows, heads * value_dim});
  const AttentionArgs a = {q.memory(),
                           key_cache.memory(),
                           value_cache.memory(),
                           view.tables.as<int32_t>(),
                           view.row_request.as<int32_t>({rows}),
                           view.first.as<int32_t>({rows}),
                           view.last.as<int32_t>({rows}),
                           view.extra_offsets.as<int32_t>({rows + 1}),
                           view.extra_slots.as<int32_t>(),
                           sinks ? sinks->as<float>({heads}) : nullptr,
                           out.memory(),
                           view.tables.size(1),
                           heads,
                           kv_heads,
                           head_dim,
                           value_dim,
                           block_size,
                           kv_heads,
                           window > 0 ? window : INT64_MAX / 2,
                           chunk,
                           scale,
                           cap,
                           bf16,
                           bytes};
  submit([=] { attend(a, rows); });
}

void multiply_rows(const Tensor& x, const Tensor& other, Gate gate) {
  const int64_t rows = x.size(0), width = x.size(1), gates = other.size(1);
  const bool bf16 = all_bf16({&x, &other});
  other.expect({rows, gates});
  if (gates ? width % gates : width) throw std::invalid_argument("gates of " + other.text() + " for " + x.text());
  if (!gates) return;  // of a rank without a share
  by_rows(&Table::multiply, MultiplyArgs{x.memory(), other.memory(), width, gates, gate, bf16}, rows, rows * width / 2);
}

StateArgs states_of(const States& states, int64_t rows) {
  states.sequences.expect({states.sequences.size(0), 5});
  states.replayed.expect({states.replayed.size(0), 2});
  return {states.sequences.as<int32_t>(), states.rows.as<int32_t>({rows, 4}), states.replayed.as<int32_t>()};
}

void causal_conv(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, bool silu,
                 const States& states, const Tensor& tails, const Tensor& kept, const Tensor& out) {
  const int64_t rows = x.size(0), width = x.size(1), taps = weight.size(0);
  const bool bf16 = all_bf16({&x, &weight, bias ? &*bias : &x, &tails, &kept, &out});
  if (taps < 2 || taps > kMostTaps) throw std::invalid_argument("a convolution of " + weight.text());
  weight.expect({taps, width});
  if (bias) bias->expect({width});
  tails.expect({tails.size(0), taps - 1, width});
  kept.expect({kept.size(0), width});
  out.expect({rows, width});
  by_rows(&Table::causal_conv,
          ConvArgs{x.memory(), weight.memory(), bias ? bias->memory() : nullptr, states_of(states, rows),
                   tails.memory(), kept.memory(), out.memory(), width, taps, silu, bf16},
          rows, rows * width * (taps + 4) / 8);
}

// Deals sequences, heads and pieces of their columns to threads, by the rows that there are now.
void recur(RecurrenceArgs a, int64_t sequences, int64_t rows) {
  int64_t live = 0, replayed = 0;
  for (; live < sequences && a.states.sequences[5 * live + 4] > a.states.sequences[5 * live + 3]; ++live)
    replayed += a.states.sequences[5 * live + 2] - a.states.sequences[5 * live + 1];
  const int64_t pieces = (a.values + kStatePiece - 1) / kStatePiece;
  a.pieces = live * a.heads >= 4 * get_threads() ? pieces : 1;  // whole heads where they are enough for all threads
  const int64_t tasks = live * a.heads * ((pieces + a.pieces - 1) / a.pieces);
  deal_unequal(tasks, (rows + replayed + live) * a.heads * a.keys * a.values / 8,
               [&](int64_t task) { table->recurrence(a, task, task + 1); });
}

RecurrenceArgs recurrence_of(const Tensor& x, const Tensor& gates, const Tensor& rate, const Tensor& step_bias,
                             const States& states, const Tensor& stored, const Tensor& kept, const Tensor& kept_gates,
                             const Tensor& out, const std::optional<Tensor>& channels = {}) {
  RecurrenceArgs a = {};
  const int64_t rows = x.size(0);
  a.bf16 = all_bf16({&x, &gates, &kept, &kept_gates, &out, channels ? &*channels : &x});
  a.heads = stored.size(1), a.keys = stored.size(3), a.width = x.size(1);
  const int64_t each = channels ? a.heads * a.keys : 0;
  a.gates_width = gates.size(1) + each;
  if (channels) channels->expect({rows, each});
  a.channels = channels ? channels->memory() : nullptr;
  a.values = a.heads ? out.size(1) / a.heads : 0;
  if (a.values % 16 || out.size(1) != a.heads * a.values)
    throw std::invalid_argument("heads of values are to be multiples of 16 wide, not " + out.text());
  stored.expect({stored.size(0), a.heads, (a.values + kStatePiece - 1) / kStatePiece, a.keys, kStatePiece});
  kept.expect({kept.size(0), a.width});
  kept_gates.expect({kept.size(0), a.gates_width});
  gates.expect({rows, a.gates_width - each});
  out.expect({rows, out.size(1)});
  a.x = x.memory(), a.gates = gates.memory();
  a.rate = rate.as<float>({a.heads}), a.step_bias = step_bias.as<float>({channels ? each : a.heads});
  a.states = states_of(states, rows);
  a.stored = stored.as<float>(), a.kept = kept.memory(), a.kept_gates = kept_gates.memory(), a.out = out.memory();
  return a;
}

void gated_delta(const Tensor& x, const Tensor& gates, const Tensor& rate, const Tensor& step_bias, int64_t groups,
                 bool tiled, const States& states, const Tensor& stored, const Tensor& kept, const Tensor& kept_gates,
                 const Tensor& out, const std::optional<Tensor>& channels, float write_scale) {
  RecurrenceArgs a = recurrence_of(x, gates, rate, step_bias, states, stored, kept, kept_gates, out, channels);
  x.expect({x.size(0), 2 * groups * a.keys + a.heads * a.values});
  gates.expect({x.size(0), channels ? a.heads : 2 * a.heads});
  if (groups < 1 || a.heads % groups) throw std::invalid_argument("heads do not divide into so many groups");
  a.groups = groups, a.tiled = tiled, a.delta = true;
  a.query_at = 0, a.key_at = groups * a.keys, a.value_at = 2 * groups * a.keys;
  a.query_scale = 1.f / std::sqrt(static_cast<float>(a.keys));
  a.write_scale = write_scale, a.least_step = 0, a.most_step = INFINITY;
  submit([=, sequences = states.sequences.size(0), rows = x.size(0)] { recur(a, sequences, rows); });
}

void state_space(const Tensor& x, const Tensor& gates, const Tensor& rate, const Tensor& step_bias,
                 const Tensor& skip, int64_t groups, float least_step, float most_step, const States& states,
                 const Tensor& stored, const Tensor& kept, const Tensor& kept_gates, const Tensor& out) {
  RecurrenceArgs a = recurrence_of(x, gates, rate, step_bias, states, stored, kept, kept_gates, out);
  x.expect({x.size(0), a.heads * a.values + 2 * groups * a.keys});
  gates.expect({x.size(0), a.heads});
  if (groups < 1 || a.heads % groups) throw std::invalid_argument("heads do not divide into so many groups");
  a.groups = groups, a.skip = skip.as<float>({a.heads});
  a.value_at = 0, a.key_at = a.heads * a.values, a.query_at = a.key_at + groups * a.keys;
  a.least_step = least_step, a.most_step = most_step;
  submit([=, sequences = states.sequences.size(0), rows = x.size(0)] { recur(a, sequences, rows); });
}

void gated_norm(const Tensor& x, const Tensor& gate, const Tensor& weight, int64_t group, float eps, bool gate_first,
                const Tensor& out) {
  const int64_t rows = x.size(0), width = x.size(1);
  const bool bf16 = all_bf16({&x, &gate, &weight, &out});
  gate.expect({rows, width});
  out.expect({rows, width});
  if (group < 1 || width % group) throw std::invalid_argument("columns do not divide into such groups");
  const bool shared = weight.size(0) == group;
  weight.expect({shared ? group : width});
  by_rows(&Table::gated_norm,
          GatedNormArgs{x.memory(), gate.memory(), weight.memory(), out.memory(), width, group, eps, gate_first,
                        shared, bf16},
          rows, rows * width * 2);
}

void act_mul(const Tensor& gate_up, Activation activation, const Tensor& out, float limit) {
  const int64_t rows = out.size(0), width = out.size(1);
  const bool bf16 = all_bf16({&gate_up, &out});
  gate_up.expect({rows, 2 * width});
  by_rows(&Table::act_mul, ActivationArgs{gate_up.memory(), out.memory(), width, activation, limit, bf16}, rows,
          rows * width);
}

// The operations on single elements of x `[rows, width]`, which `kernel` names.
void pointwise(void (*Table::*kernel)(const PointwiseArgs&, int64_t, int64_t), const Tensor& x, const Tensor* other,
               const int32_t* index, float factor, Activation activation = kSilu) {
  const int64_t rows = x.size(0), width = x.size(1);
  const bool bf16 = all_bf16({&x, other ? other : &x});
  by_rows(kernel,
          PointwiseArgs{x.memory(), other ? other->memory() : nullptr, index, width, factor, activation, bf16}, rows,
          rows * width / 2);
}

void activate(const Tensor& x, Activation activation) { pointwise(&Table::activate, x, nullptr, nullptr, 0, activation); }

void add_bias(const Tensor& x, const Tensor& bias) {
  bias.expect({x.size(1)});
  pointwise(&Table::add_bias, x, &bias, nullptr, 0);
}

void add_embedding(const Tensor& x, const Tensor& weight, const Tensor& index) {
  weight.expect({weight.size(0), x.size(1)});
  pointwise(&Table::add_embedding, x, &weight, index.as<int32_t>({x.size(0)}), 0);
}

void scale(const Tensor& x, float factor) { pointwise(&Table::scale, x, nullptr, nullptr, factor); }

void soft_cap(const Tensor& x, float cap) {
  x.as<float>();
  pointwise(&Table::soft_cap, x, nullptr, nullptr, cap);
}

void xielu(const Tensor& x, const Tensor& numbers) {
  const int64_t rows = x.size(0), width = x.size(1);
  by_rows(&Table::xielu, PointwiseArgs{x.memory(), numbers.as<float>({4}), nullptr, width, 0, kSilu, all_bf16({&x})},
          rows, rows * width);
}

void route(const Tensor& scores, const Tensor& experts, const Tensor& weights, bool normalise, bool sigmoid,
           const std::optional<Tensor>& bias, int64_t groups, int64_t kept_groups, float factor,
           const std::optional<Tensor>& scales) {
  const int64_t rows = scores.size(0), count = scores.size(1), chosen = weights.size(1);
  if (groups < 1 || count % groups || kept_groups < 1 || kept_groups > groups || chosen > count / groups * kept_groups)
    throw std::invalid_argument("a row is to choose among whole groups of as many experts at least");
  by_rows(&Table::route,
          RouteArgs{scores.as<float>(), bias ? bias->as<float>({count}) : nullptr,
                    scales ? scales->as<float>({count}) : nullptr, experts.as<int32_t>({rows, chosen}),
                    weights.as<float>({rows, chosen}), count, chosen, groups, kept_groups, factor, normalise, sigmoid},
          rows, rows * count * (chosen + 1));
}

void mix_experts(const Tensor& x, const Tensor& weights, const Tensor& out, const std::optional<Tensor>& shared,
                 const std::optional<Tensor>& gate) {
  const int64_t rows = x.size(0), chosen = x.size(1), width = x.size(2);
  const bool bf16 = all_bf16({&x, &out, shared ? &*shared : &x});
  out.expect({rows, width});
  if (shared) shared->expect({rows, width});
  by_rows(&Table::mix_experts,
          MixArgs{x.memory(), weights.as<float>({rows, chosen}), shared ? shared->memory() : nullptr,
                  gate ? gate->as<float>({rows, 1}) : nullptr, out.memory(), chosen, width, bf16},
          rows, rows * chosen * width / 4);
}

// Until the machine was asked.
Prefetching prefetching = {5, 6144, 10240};

void set_prefetching(int64_t few_rows, int64_t ahead, int64_t blocks) { prefetching = {few_rows, ahead, blocks}; }

// Tasks and cost of a product, as `linear` deals them.
void multiply(const LinearArgs& a) {
  const int64_t tasks = (a.outputs + kPanel - 1) / kPanel * ((a.rows + kLinearRows - 1) / kLinearRows);
  Shares shares(tasks, get_threads());
  deal(tasks, a.outputs * a.inputs * (2 + a.rows) / (a.kind == kF32 ? 25 : 50),
       [&](int64_t thread, int64_t) { table->linear(a, shares, thread); });
}

// What the kernels read of a part; plain numbers but float16 have to be of x's type.
const void* numbers(const PackedPart& part, const Tensor& x) {
  const Type type = part.tensor.type;
  if ((part.kind == kF32 || part.kind == kBF16) && type != x.type)
    throw std::invalid_argument("a weight of another type than x: " + part.tensor.text() + " beside " + x.text());
  return part.tensor.memory();
}

// Writes x weight^T, part by part, to columns of `out`.
void product(const Tensor& x, const PackedWeight& weight, const Tensor& out, bool bf16) {
  const int64_t rows = x.size(0);
  x.expect({rows, weight.inputs});
  out.expect({rows, weight.outputs});
  char* to = static_cast<char*>(out.memory());
  for (const PackedPart& part : weight.parts) {
    const LinearArgs a = {x.memory(),     numbers(part, x), to,   rows,
                          weight.inputs,  part.outputs,     weight.outputs, part.kind,
                          bf16,           out.type == Type::kF32, prefetching};
    submit([=] { multiply(a); });
    to += part.outputs * out.element_bytes();
  }
}

void linear(const Tensor& x, const PackedWeight& weight, const Tensor& out) {
  product(x, weight, out, all_bf16({&x, &out}));
}

void logits(const Tensor& x, const PackedWeight& weight, const Tensor& out) {
  out.as<float>();
  product(x, weight, out, all_bf16({&x}));
}

// Memory of the thread that calls, which is kept from one call to the next.
struct ExpertMemory {
  std::vector<char> gathered, answered;
  std::vector<LinearArgs> products;
  std::vector<Shares> shares;
};
thread_local ExpertMemory expert_memory;

// Does several products at once. Each thread begins with a stretch of all their tasks, so that it reads most weights
// of a product alone, and then takes what others have left.
void multiply_all(const std::vector<LinearArgs>& products, std::vector<Shares>& shares) {
  const auto tasks_of = [](const LinearArgs& a) {
    return (a.outputs + kPanel - 1) / kPanel * ((a.rows + kLinearRows - 1) / kLinearRows);
  };
  const int64_t count = static_cast<int64_t>(products.size()), threads = std::min(get_threads(), kMostShares);
  int64_t tasks = 0, cost = 0;
  for (const LinearArgs& a : products) {
    tasks += tasks_of(a);
    cost += a.outputs * a.inputs * (2 + a.rows) / (a.kind == kF32 ? 25 : 50);
  }
  std::vector<int64_t> first(threads, count);
  shares.clear();
  int64_t begin = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t end = begin + tasks_of(products[i]);
    shares.emplace_back(threads);
    for (int64_t t = 0; t < threads; ++t) {
      const int64_t from = std::max(tasks * t / threads, begin), to = std::min(tasks * (t + 1) / threads, end);
      if (from >= to) continue;
      shares.back().set(t, from - begin, to - begin);
      first[t] = std::min(first[t], i);
    }
    begin = end;
  }
  deal(tasks, cost, [&](int64_t thread, int64_t) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t product = (first[std::min(thread, threads - 1)] + i) % count;
      table->linear(products[product], shares[product], thread);
    }
  });
}

// Rows out[i] = weights[experts[i]] x[i / copies]: each expert's rows are gathered and go through `linear`.
void multiply_experts(const char* x, const int32_t* expert, const std::vector<const void*>& weights, char* out,
                      int64_t rows, int64_t copies, int64_t inputs, int64_t outputs, int64_t stride, int kind,
                      bool bf16) {
  const int64_t size = bf16 ? 2 : 4;
  std::vector<int64_t> starts(weights.size() + 1, 0), order(rows);
  for (int64_t i = 0; i < rows; ++i) ++starts[expert[i] + 1];
  std::partial_sum(starts.begin(), starts.end(), starts.begin());
  std::vector<int64_t> next(starts.begin(), starts.end() - 1);
  for (int64_t i = 0; i < rows; ++i) order[next[expert[i]]++] = i;
  ExpertMemory& memory = expert_memory;
  memory.gathered.resize(std::max<size_t>(memory.gathered.size(), rows * inputs * size));
  memory.answered.resize(std::max<size_t>(memory.answered.size(), rows * outputs * size));
  memory.products.clear();
  char *gathered = memory.gathered.data(), *answered = memory.answered.data();
  for (int64_t i = 0; i < rows; ++i)
    std::memcpy(gathered + i * inputs * size, x + order[i] / copies * inputs * size, inputs * size);
  for (size_t e = 0; e < weights.size(); ++e)
    if (const int64_t from = starts[e], count = starts[e + 1] - from; count)
      memory.products.push_back({gathered + from * inputs * size, weights[e], answered + from * outputs * size, count,
                                 inputs, outputs, outputs, kind, bf16, !bf16, prefetching});
  multiply_all(memory.products, memory.shares);
  for (int64_t i = 0; i < rows; ++i)
    std::memcpy(out + order[i] * stride * size, answered + i * outputs * size, outputs * size);
}

void expert_linear(const Tensor& x, const Tensor& experts, const std::vector<PackedWeight>& weights,
                   const Tensor& out) {
  const bool bf16 = all_bf16({&x, &out});
  const PackedWeight& first = weights.at(0);
  const int64_t rows = out.size(0), copies = rows / std::max<int64_t>(x.size(0), 1), stride = first.outputs;
  const int64_t inputs = first.inputs;
  x.expect({x.size(0), inputs});
  out.expect({x.size(0) * copies, stride});
  const int32_t* expert = experts.as<int32_t>({rows});
  const char* from = static_cast<char*>(x.memory());
  char* to = static_cast<char*>(out.memory());
  for (size_t i = 0; i < first.parts.size(); ++i) {
    const PackedPart& alike = first.parts[i];
    std::vector<const void*> parts;
    for (const PackedWeight& weight : weights) {
      if (weight.parts.size() != first.parts.size() || weight.parts[i].kind != alike.kind ||
          weight.parts[i].outputs != alike.outputs || weight.inputs != inputs)
        throw std::invalid_argument("experts are to have parts of the same kinds and shapes");
      parts.push_back(numbers(weight.parts[i], x));
    }
    submit([=, outputs = alike.outputs, kind = alike.kind] {
      multiply_experts(from, expert, parts, to, rows, copies, inputs, outputs, stride, kind, bf16);
    });
    to += alike.outputs * out.element_bytes();
  }
}

FilterArgs filter(const std::optional<Kept>& kept, int64_t rows) {
  if (!kept) return {nullptr, nullptr, nullptr};
  return {kept->min_p.as<double>({rows}), kept->top_k.as<int64_t>({rows}), kept->top_p.as<double>({rows})};
}

void process(const Tensor& scores, const Tensor& temperatures, const std::optional<Kept>& filters) {
  const int64_t rows = scores.size(0), vocab = scores.size(1);
  by_rows(&Table::process,
          ProcessArgs{scores.as<float>(), temperatures.as<float>({rows}), filter(filters, rows), vocab}, rows,
          rows * vocab);
}

// What `draw` and `branch` read, and where they write: `out` and `probs` are of this shape.
DrawArgs drawing(const Tensor& scores, const Tensor& temperatures, const Tensor& seeds, const Tensor& positions,
                 const Tensor& out, const std::optional<Kept>& filters, const std::optional<Tensor>& ids,
                 const std::optional<Tensor>& probs, std::initializer_list<int64_t> shape) {
  const int64_t rows = scores.size(0), vocab = scores.size(1);
  return {scores.as<float>(),
          temperatures.as<float>({rows}),
          filter(filters, rows),
          reinterpret_cast<const uint64_t*>(seeds.as<int64_t>({rows})),
          positions.as<int64_t>({rows}),
          out.as<int64_t>(shape),
          vocab,
          ids ? ids->as<int64_t>({vocab}) : nullptr,
          probs ? probs->as<float>(shape) : nullptr};
}

void draw(const Tensor& scores, const Tensor& temperatures, const Tensor& seeds, const Tensor& positions,
          const Tensor& out, const std::optional<Kept>& filters, const std::optional<Tensor>& ids,
          const std::optional<Tensor>& probs) {
  const int64_t rows = scores.size(0);
  by_rows(&Table::draw, drawing(scores, temperatures, seeds, positions, out, filters, ids, probs, {rows}), rows,
          rows * scores.size(1));
}

void branch(const Tensor& scores, const Tensor& temperatures, const Tensor& seeds, const Tensor& positions,
            const Tensor& out, const Tensor& probs, const std::optional<Kept>& filters,
            const std::optional<Tensor>& ids) {
  const int64_t rows = scores.size(0), children = out.size(1);
  by_rows(&Table::branch,
          BranchArgs{drawing(scores, temperatures, seeds, positions, out, filters, ids, probs, {rows, children}),
                     children},
          rows, rows * scores.size(1));
}

void log_softmax(const Tensor& scores, const Tensor& out) {
  const int64_t rows = scores.size(0), vocab = scores.size(1);
  by_rows(&Table::log_softmax, LogSoftmaxArgs{scores.as<float>(), out.as<float>({rows, vocab}), vocab}, rows,
          rows * vocab);
}

void log_probs(const Tensor& scores, const Tensor& temperatures, const Tensor& out, const std::optional<Kept>& filters) {
  const int64_t rows = scores.size(0), vocab = scores.size(1);
  by_rows(&Table::log_probs,
          LogProbsArgs{scores.as<float>(), temperatures.as<float>({rows}), filter(filters, rows),
                  out.as<float>({rows, vocab}), vocab},
          rows, rows * vocab * 2);
}

void excess(const Tensor& target, const Tensor& draft, const Tensor& scales, const Tensor& mass,
            const std::optional<Tensor>& out, const std::optional<Tensor>& ids) {
  const int64_t rows = target.size(0), vocab = target.size(1), drafted = draft.size(1);
  if (!ids && drafted != vocab) throw std::invalid_argument("without ids both laws have the same tokens");
  by_rows(&Table::excess,
          ExcessArgs{target.as<float>(), draft.as<float>({rows, drafted}), scales.as<double>({rows}),
                     ids ? ids->as<int64_t>({drafted}) : nullptr, out ? out->as<float>({rows, vocab}) : nullptr,
                     mass.as<double>({rows}), vocab, drafted},
          rows, rows * vocab * 4);
}

void grow(const Tensor& tokens, const Tensor& probs, const Tensor& worth, const Tensor& out, const Tensor& out_worth,
          const Tensor& origin, const Tensor& chosen, int64_t drafts, const std::optional<Tensor>& slots,
          const std::optional<Tensor>& above, const std::optional<Tensor>& below) {
  const int64_t rows = tokens.size(0), children = tokens.size(1), wide = out.size(0);
  if (drafts < 1 || rows % drafts || wide % drafts || wide / drafts > rows / drafts * children)
    throw std::invalid_argument("nodes of " + std::to_string(drafts) + " drafts: " + tokens.text() + " to " + out.text());
  if (slots.has_value() != above.has_value() || slots.has_value() != below.has_value())
    throw std::invalid_argument("slots go with those above and below");
  const int64_t depth = above ? above->size(1) : 0;
  const int64_t* token = tokens.as<int64_t>();
  const float* prob = probs.as<float>({rows, children});
  const float* held = worth.as<float>({rows});
  int64_t* to_token = out.as<int64_t>({wide});
  float* to_worth = out_worth.as<float>({wide});
  int64_t* to_origin = origin.as<int64_t>({wide});
  int64_t* to_chosen = chosen.as<int64_t>({wide});
  const int32_t* slot = slots ? slots->as<int32_t>({wide}) : nullptr;
  const int32_t* path = above ? above->as<int32_t>({rows, depth}) : nullptr;
  int32_t* to_path = below ? below->as<int32_t>({wide, depth + 1}) : nullptr;
  submit([=] {
    const int64_t nodes = rows / drafts, each = wide / drafts;
    std::vector<std::pair<float, int64_t>> found(nodes * children);
    for (int64_t draft = 0; draft < drafts; ++draft) {
      const int64_t first = draft * nodes;
      for (int64_t i = 0; i < nodes * children; ++i)
        found[i] = {-held[first + i / children] * prob[first * children + i], i};
      std::partial_sort(found.begin(), found.begin() + each, found.end());
      for (int64_t place = 0; place < each; ++place) {
        const int64_t best = found[place].second, row = first + best / children, to = draft * each + place;
        to_token[to] = token[first * children + best];
        to_worth[to] = -found[place].first;
        to_origin[to] = row;
        to_chosen[to] = best;
        if (!slot) continue;
        std::copy_n(path + row * depth, depth, to_path + to * (depth + 1));
        to_path[to * (depth + 1) + depth] = slot[to];
      }
    }
  });
}

void gumbel(uint64_t seed, int64_t position, const Tensor& out) {
  double* noise = out.as<double>();
  const int64_t vocab = out.size(0);
  submit([=] { table->gumbel(seed, position, noise, vocab); });
}

void copy_slots(const Tensor& src_slots, const Tensor& dst_slots, const Tensor& key_cache, const Tensor& value_cache) {
  const int64_t count = src_slots.size(0), kv_heads = key_cache.size(1), block_size = key_cache.size(2);
  if (key_cache.type != Type::kU8 || value_cache.type != Type::kU8) all_bf16({&key_cache, &value_cache});
  value_cache.expect({key_cache.size(0), kv_heads, block_size, value_cache.size(3)});
  const int64_t* from = src_slots.as<int64_t>();
  const int64_t* to = dst_slots.as<int64_t>({count});
  struct {
    char* memory;
    int64_t bytes;  // of a row
  } caches[2];
  for (int i = 0; i < 2; ++i) {
    const Tensor& cache = i ? value_cache : key_cache;
    caches[i] = {static_cast<char*>(cache.memory()), cache.size(3) * cache.element_bytes()};
  }
  submit([=] {
    char* held = static_cast<char*>(scratch(count * kv_heads * (caches[0].bytes + caches[1].bytes)));
    const auto each = [&](const int64_t* slots, auto move) {
      char* hold = held;
      for (const auto& [cache, bytes] : caches)
        for (int64_t i = 0; i < count; ++i)
          for (int64_t head = 0; head < kv_heads; ++head, hold += bytes) {
            const int64_t row = (slots[i] / block_size * kv_heads + head) * block_size + slots[i] % block_size;
            move(hold, cache + row * bytes, bytes);
          }
    };
    each(from, [](char* hold, const char* slot, int64_t bytes) { std::memcpy(hold, slot, bytes); });
    each(to, [](const char* hold, char* slot, int64_t bytes) { std::memcpy(slot, hold, bytes); });
  });
}

// What the contract's operations are methods of.
struct Operations {};

}  // namespace

void bind_operations(nb::module_& m) {
  const auto none = nb::none();
  nb::class_<Operations>(m, "Operations")
      .def(nb::init<>())
      .def_static("embed", &embed, arg("weight"), arg("tokens"), arg("out"))
      .def_static("embed_packed", &embed_packed, arg("weight"), arg("tokens"), arg("out"))
      .def_static("rms_norm", &rms_norm, arg("x"), arg("weight"), arg("eps"), arg("out"), arg("plus_one") = false,
                  arg("delta") = none)
      .def_static("head_norm", &head_norm, arg("qkv"), arg("q_weight"), arg("k_weight"), arg("heads"), arg("eps"),
                  arg("plus_one") = false, arg("v_weight") = none)
      .def_static("head_squares", &head_squares, arg("qkv"), arg("q_squares"), arg("k_squares"))
      .def_static("joint_norm", &joint_norm, arg("qkv"), arg("q_weight"), arg("k_weight"), arg("q_squares"),
                  arg("k_squares"), arg("heads"), arg("eps"))
      .def_static("layer_norm", &layer_norm, arg("x"), arg("weight"), arg("bias"), arg("eps"), arg("out"),
                  arg("delta") = none)
      .def_static("latent_store", &latent_store, arg("query"), arg("latent"), arg("norm"), arg("eps"),
                  arg("positions"), arg("slots"), arg("cos_sin"), arg("cache"))
      .def_static("rotary_store", &rotary_store, arg("qkv"), arg("positions"), arg("slots"), arg("cos_sin"),
                  arg("q_out"), arg("key_cache"), arg("value_cache"), arg("q_norm") = none, arg("k_norm") = none,
                  arg("eps") = 0.0)
      .def_static("attention", &attention, arg("q"), arg("key_cache"), arg("value_cache"), arg("view"), arg("scale"),
                  arg("out"), arg("window") = 0, arg("cap") = 0.0, arg("sinks") = none,
                  arg("chunk") = 0)
      .def_static("multiply", &multiply_rows, arg("x"), arg("other"), arg("gate") = "plain")
      .def_static("causal_conv", &causal_conv, arg("x"), arg("weight"), arg("bias").none(), arg("silu"),
                  arg("states"), arg("tails"), arg("kept"), arg("out"))
      .def_static("gated_delta", &gated_delta, arg("x"), arg("gates"), arg("rate"), arg("step_bias"), arg("groups"),
                  arg("tiled"), arg("states"), arg("stored"), arg("kept"), arg("kept_gates"), arg("out"),
                  arg("channels") = none, arg("write_scale") = 1.0)
      .def_static("state_space", &state_space, arg("x"), arg("gates"), arg("rate"), arg("step_bias"), arg("skip"),
                  arg("groups"), arg("least_step"), arg("most_step"), arg("states"), arg("stored"), arg("kept"),
                  arg("kept_gates"), arg("out"))
      .def_static("gated_norm", &gated_norm, arg("x"), arg("gate"), arg("weight"), arg("group"), arg("eps"),
                  arg("gate_first"), arg("out"))
      .def_static("act_mul", &act_mul, arg("gate_up"), arg("activation"), arg("out"), arg("limit") = 0.f)
      .def_static("activate", &activate, arg("x"), arg("activation"))
      .def_static("add_bias", &add_bias, arg("x"), arg("bias"))
      .def_static("add_embedding", &add_embedding, arg("x"), arg("weight"), arg("index"))
      .def_static("scale", &scale, arg("x"), arg("factor"))
      .def_static("soft_cap", &soft_cap, arg("x"), arg("cap"))
      .def_static("xielu", &xielu, arg("x"), arg("numbers"))
      .def_static("route", &route, arg("scores"), arg("experts"), arg("weights"), arg("normalise"),
                  arg("sigmoid") = false, arg("bias") = none, arg("groups") = 1, arg("kept_groups") = 1,
                  arg("factor") = 1.0, arg("scales") = none)
      .def_static("expert_linear", &expert_linear, arg("x"), arg("experts"), arg("weights"), arg("out"))
      .def_static("mix_experts", &mix_experts, arg("x"), arg("weights"), arg("out"), arg("shared") = none,
                  arg("gate") = none)
      .def_static("linear", &linear, arg("x"), arg("weight"), arg("out"))
      .def_static("logits", &logits, arg("x"), arg("weight"), arg("out"))
      .def_static("process", &process, arg("scores"), arg("temperatures"), arg("filters").none())
      .def_static("draw", &draw, arg("scores"), arg("temperatures"), arg("seeds"), arg("positions"), arg("out"),
                  arg("filters") = none, arg("ids") = none, arg("probs") = none)
      .def_static("branch", &branch, arg("scores"), arg("temperatures"), arg("seeds"), arg("positions"), arg("out"),
                  arg("probs"), arg("filters") = none, arg("ids") = none)
      .def_static("log_softmax", &log_softmax, arg("scores"), arg("out"))
      .def_static("log_probs", &log_probs, arg("scores"), arg("temperatures"), arg("out"), arg("filters") = none)
      .def_static("excess", &excess, arg("target"), arg("draft"), arg("scales"), arg("mass"), arg("out") = none,
                  arg("ids") = none)
      .def_static("grow", &grow, arg("tokens"), arg("probs"), arg("worth"), arg("out"), arg("out_worth"),
                  arg("origin"), arg("chosen"), arg("drafts"), arg("slots") = none, arg("above") = none,
                  arg("below") = none)
      .def_static("gumbel", &gumbel, arg("seed"), arg("position"), arg("out"))
      .def_static("copy_slots", &copy_slots, arg("src_slots"), arg("dst_slots"), arg("key_cache"),
                  arg("value_cache"));
  m.def("set_prefetching", &set_prefetching, arg("few_rows"), arg("ahead"), arg("blocks"));
}

}  // namespace parlay
