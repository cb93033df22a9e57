// The Python module: raw addresses in, work out, no tensor library in between.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#if defined(PARLAY_HAS_AMX)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "pool.h"
#include "suffix.h"
#include "table.h"

namespace nb = nanobind;

namespace parlay {
namespace {

#if defined(PARLAY_HAS_AMX)
// Whether there are tiles, and Linux lets this process have their eight kilobytes of registers a thread (x86/xstate).
bool tiles_allowed() {
  constexpr unsigned kBf16 = 1u << 22, kTiles = 1u << 24;  // of leaf 7
  constexpr long kAskFor = 0x1023, kTileData = 18;
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kBf16) == 0 || (d & kTiles) == 0) return false;
  return syscall(SYS_arch_prctl, kAskFor, kTileData) == 0;
}
#endif

std::vector<const Table*> supported() {  // best first
  std::vector<const Table*> all;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni")) {
#if defined(PARLAY_HAS_AMX)
      if (tiles_allowed()) all.push_back(table_amx());
#endif
      all.push_back(table_avx512bf16());
    }
    if (__builtin_cpu_supports("avx512vnni")) all.push_back(table_avx512vnni());
    all.push_back(table_avx512());
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) all.push_back(table_avx2());
#endif
  all.push_back(table_baseline());
  return all;
}

const Table* table = supported().front();

std::vector<std::string> isas() {
  std::vector<std::string> names;
  for (const Table* t : supported()) names.emplace_back(t->isa);
  return names;
}

void set_isa(const std::string& name) {
  for (const Table* t : supported())
    if (name == t->isa) {
      table = t;
      return;
    }
  throw std::invalid_argument("this machine has no instruction set '" + name + "'");
}

template <class T>
T* at(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

// A recorded sequence of operations: the same calls on the same memory, without their caller.
class Tape {
 public:
  void push(std::function<void()> operation) { operations_.push_back(std::move(operation)); }
  void run() const {
    for (const auto& operation : operations_) operation();
  }
  size_t size() const { return operations_.size(); }

 private:
  std::vector<std::function<void()>> operations_;
};

thread_local Tape* recording = nullptr;

void record(Tape* tape) { recording = tape; }

// Runs an operation, which holds its arguments by value, and records it if its thread is recording.
template <class F>
void submit(F operation) {
  if (recording) recording->push(operation);
  operation();
}

// A thread is worth waking for this much work.
constexpr int64_t kNanosecondsPerThread = 6000;

// A thread that sleeps is not worth waking for less than this; one that still spins joins anyway.
constexpr int64_t kNanosecondsWorthWaking = 40000;

// Deals `tasks` to threads; job(thread, threads) does a thread's share. `cost` is a rough guess in nanoseconds.
template <class F>
void deal(int64_t tasks, int64_t cost, F job) {
  const int64_t limit = std::min(tasks, cost / kNanosecondsPerThread);
  run([](void* f, int64_t thread, int64_t threads) { (*static_cast<F*>(f))(thread, threads); }, &job, limit,
      cost >= kNanosecondsWorthWaking);
}

// As deal, in contiguous shares.
template <class F>
void deal_rows(int64_t rows, int64_t cost, F job) {
  deal(rows, cost, [&](int64_t thread, int64_t threads) {
    job(rows * thread / threads, rows * (thread + 1) / threads);
  });
}

// As deal, but each task goes to whoever is free, the last task first: tasks may be of very different sizes.
template <class F>
void deal_unequal(int64_t tasks, int64_t cost, F job) {
  std::atomic<int64_t> left{tasks};
  deal(tasks, cost, [&](int64_t, int64_t) {
    for (int64_t task; (task = left.fetch_sub(1) - 1) >= 0;) job(task);
  });
}

void embed(uintptr_t weight, uintptr_t tokens, uintptr_t out, int64_t rows, int64_t row_bytes) {
  submit([=] {
    for (int64_t row = 0; row < rows; ++row)
      std::memcpy(at<char>(out) + row * row_bytes, at<char>(weight) + at<int64_t>(tokens)[row] * row_bytes, row_bytes);
  });
}

void rms_norm(uintptr_t x, uintptr_t residual, uintptr_t weight, uintptr_t out, int64_t rows, int64_t width,
              float eps, bool plus_one, bool bf16) {
  const NormArgs a = {at<void>(x), at<void>(residual), at<void>(weight), at<void>(out), width, eps, plus_one, bf16};
  submit([=] {
    deal_rows(rows, rows * width / 2, [&](int64_t begin, int64_t end) { table->norm(a, begin, end); });
  });
}

void layer_norm(uintptr_t x, uintptr_t residual, uintptr_t weight, uintptr_t bias, uintptr_t out, int64_t rows,
                int64_t width, float eps, bool bf16) {
  const LayerNormArgs a = {at<void>(x),   at<void>(residual), at<void>(weight), at<void>(bias),
                           at<void>(out), width,              eps,              bf16};
  submit([=] {
    deal_rows(rows, rows * width, [&](int64_t begin, int64_t end) { table->layer_norm(a, begin, end); });
  });
}

void head_norm(uintptr_t qkv, uintptr_t q_weight, uintptr_t k_weight, int64_t rows, int64_t heads, int64_t kv_heads,
               int64_t head_dim, float eps, bool plus_one, bool bf16) {
  const HeadNormArgs a = {at<void>(qkv), at<void>(q_weight), at<void>(k_weight), heads, kv_heads,
                          head_dim,      eps,                plus_one,           bf16};
  submit([=] {
    deal_rows(rows, rows * (a.heads + a.kv_heads) * a.head_dim / 2,
              [&](int64_t begin, int64_t end) { table->head_norm(a, begin, end); });
  });
}

void rotary_store(uintptr_t qkv, uintptr_t positions, uintptr_t slots, uintptr_t cos_sin, uintptr_t q_out,
                  uintptr_t key_cache, uintptr_t value_cache, int64_t rows, int64_t heads, int64_t kv_heads,
                  int64_t head_dim, int64_t rotary_dim, int64_t block_size, bool bf16) {
  const RotaryArgs a = {at<void>(qkv),   at<int32_t>(positions), at<int64_t>(slots),    at<float>(cos_sin),
                        at<void>(q_out), at<void>(key_cache),    at<void>(value_cache), heads,
                        kv_heads,        head_dim,               rotary_dim,            block_size,
                        bf16};
  submit([=] {
    deal_rows(rows, rows * (a.heads + 2 * a.kv_heads) * a.head_dim / 4,
              [&](int64_t begin, int64_t end) { table->rotary_store(a, begin, end); });
  });
}

// Deals attention's rows and heads to threads by what the rows see now: a recording is replayed with other views.
void attend(const AttentionArgs& a, int64_t rows) {
  int64_t keys = a.extra_offsets[rows];
  for (int64_t row = 0; row < rows; ++row) keys += std::min<int64_t>(a.last[row] - a.first[row], a.window);
  // Adjacent rows of one request share their reading of keys, and few rows take several kv heads, whose keys lie
  // beside each other; as far as every thread still has a task. Halving leaves tasks of equal size.
  const int64_t threads = get_threads(), group = a.heads / a.kv_heads;
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
  deal_unequal(groups * parts, keys * a.heads * (a.head_dim + 32) / 48, [&](int64_t task) {
    const int64_t* row = &starts[task % groups];
    const int64_t part = task / groups, head = a.kv_heads * part / parts;
    table->attention(a, row[0], row[1] - row[0], head, a.kv_heads * (part + 1) / parts - head);
  });
}

void attention(uintptr_t q, uintptr_t key_cache, uintptr_t value_cache, uintptr_t tables, uintptr_t row_request,
               uintptr_t first, uintptr_t last, uintptr_t extra_offsets, uintptr_t extra_slots, uintptr_t out,
               int64_t rows, int64_t max_blocks, int64_t heads, int64_t kv_heads, int64_t head_dim,
               int64_t block_size, int64_t window, float scale, float cap, bool bf16) {
  const AttentionArgs a = {at<void>(q),
                           at<void>(key_cache),
                           at<void>(value_cache),
                           at<int32_t>(tables),
                           at<int32_t>(row_request),
                           at<int32_t>(first),
                           at<int32_t>(last),
                           at<int32_t>(extra_offsets),
                           at<int32_t>(extra_slots),
                           at<void>(out),
                           max_blocks,
                           heads,
                           kv_heads,
                           head_dim,
                           block_size,
                           window > 0 ? window : INT64_MAX / 2,
                           scale,
                           cap,
                           bf16};
  submit([=] { attend(a, rows); });
}

void act_mul(uintptr_t gate_up, uintptr_t out, int64_t rows, int64_t width, int activation, bool bf16) {
  const ActivationArgs a = {at<void>(gate_up), at<void>(out), width, static_cast<Activation>(activation), bf16};
  submit([=] {
    deal_rows(rows, rows * width, [&](int64_t begin, int64_t end) { table->act_mul(a, begin, end); });
  });
}

// The operations on single elements of x `[rows, width]`, which `kernel` names.
void pointwise(void (*Table::*kernel)(const PointwiseArgs&, int64_t, int64_t), const PointwiseArgs& a, int64_t rows) {
  submit([=] {
    deal_rows(rows, rows * a.width / 2, [&](int64_t begin, int64_t end) { (table->*kernel)(a, begin, end); });
  });
}

void activate(uintptr_t x, int64_t rows, int64_t width, int activation, bool bf16) {
  pointwise(&Table::activate,
            {at<void>(x), nullptr, nullptr, width, 0, static_cast<Activation>(activation), bf16}, rows);
}

void add_bias(uintptr_t x, uintptr_t bias, int64_t rows, int64_t width, bool bf16) {
  pointwise(&Table::add_bias, {at<void>(x), at<void>(bias), nullptr, width, 0, kSilu, bf16}, rows);
}

void add_embedding(uintptr_t x, uintptr_t weight, uintptr_t index, int64_t rows, int64_t width, bool bf16) {
  pointwise(&Table::add_embedding, {at<void>(x), at<void>(weight), at<int32_t>(index), width, 0, kSilu, bf16}, rows);
}

void scale(uintptr_t x, float factor, int64_t rows, int64_t width, bool bf16) {
  pointwise(&Table::scale, {at<void>(x), nullptr, nullptr, width, factor, kSilu, bf16}, rows);
}

void soft_cap(uintptr_t x, float cap, int64_t rows, int64_t width) {
  pointwise(&Table::soft_cap, {at<void>(x), nullptr, nullptr, width, cap, kSilu, false}, rows);
}

void route(uintptr_t scores, uintptr_t experts, uintptr_t weights, int64_t rows, int64_t count, int64_t chosen,
           bool normalise) {
  const RouteArgs a = {at<float>(scores), at<int32_t>(experts), at<float>(weights), count, chosen, normalise};
  submit([=] {
    deal_rows(rows, rows * a.experts * (a.chosen + 1),
              [&](int64_t begin, int64_t end) { table->route(a, begin, end); });
  });
}

void mix_experts(uintptr_t x, uintptr_t weights, uintptr_t out, int64_t rows, int64_t chosen, int64_t width,
                 bool bf16) {
  const MixArgs a = {at<void>(x), at<float>(weights), at<void>(out), chosen, width, bf16};
  submit([=] {
    deal_rows(rows, rows * a.chosen * a.width / 4,
              [&](int64_t begin, int64_t end) { table->mix_experts(a, begin, end); });
  });
}

// Until the machine was asked.
Prefetching prefetching = {5, 6144, 10240};

// Tasks and cost of a product, as `linear` deals them.
void multiply(const LinearArgs& a) {
  const int64_t tasks = (a.outputs + kPanel - 1) / kPanel * ((a.rows + kLinearRows - 1) / kLinearRows);
  Shares shares(tasks, get_threads());
  deal(tasks, a.outputs * a.inputs * (2 + a.rows) / (a.kind == kF32 ? 25 : 50),
       [&](int64_t thread, int64_t) { table->linear(a, shares, thread); });
}

void set_prefetching(int64_t few_rows, int64_t ahead, int64_t blocks) { prefetching = {few_rows, ahead, blocks}; }

// Rows out[i] = weights[experts[i]] x[i / copies]: each expert's rows are gathered and go through `linear`.
void expert_linear(uintptr_t x, uintptr_t experts, const std::vector<uintptr_t>& weights, uintptr_t out, int64_t rows,
                   int64_t copies, int64_t inputs, int64_t outputs, int64_t stride, int kind, bool bf16) {
  submit([=] {
    const int64_t size = bf16 ? 2 : 4;
    const int32_t* expert = at<int32_t>(experts);
    std::vector<int64_t> starts(weights.size() + 1, 0), order(rows);
    for (int64_t i = 0; i < rows; ++i) ++starts[expert[i] + 1];
    std::partial_sum(starts.begin(), starts.end(), starts.begin());
    std::vector<int64_t> next(starts.begin(), starts.end() - 1);
    for (int64_t i = 0; i < rows; ++i) order[next[expert[i]]++] = i;
    std::vector<char> gathered(rows * inputs * size), answered(rows * outputs * size);
    for (int64_t i = 0; i < rows; ++i)
      std::memcpy(&gathered[i * inputs * size], at<char>(x) + order[i] / copies * inputs * size, inputs * size);
    for (size_t e = 0; e < weights.size(); ++e) {
      const int64_t from = starts[e], count = starts[e + 1] - from;
      if (count)
        multiply({&gathered[from * inputs * size], at<void>(weights[e]), &answered[from * outputs * size], count,
                  inputs, outputs, outputs, kind, bf16, !bf16, prefetching});
    }
    for (int64_t i = 0; i < rows; ++i)
      std::memcpy(at<char>(out) + order[i] * stride * size, &answered[i * outputs * size], outputs * size);
  });
}

void linear(uintptr_t x, uintptr_t weight, uintptr_t out, int64_t rows, int64_t inputs, int64_t outputs,
            int64_t stride, int kind, bool bf16, bool float_out) {
  const LinearArgs a = {at<void>(x), at<void>(weight), at<void>(out), rows,     inputs, outputs,
                        stride,      kind,             bf16,          float_out, prefetching};
  submit([=] { multiply(a); });
}

void pack(uintptr_t stored, uintptr_t out, int64_t outputs, int64_t inputs, int kind) {
  const PackArgs a = {at<void>(stored), at<void>(out), inputs, outputs, kind};
  deal_rows((outputs + kPanel - 1) / kPanel, outputs * inputs * 2,
            [&](int64_t begin, int64_t end) { table->pack(a, begin, end); });
}

void unpack(uintptr_t weight, uintptr_t tokens, uintptr_t out, int64_t rows, int64_t inputs, int kind, bool bf16) {
  const UnpackArgs a = {at<void>(weight), at<int64_t>(tokens), at<void>(out), inputs, kind, bf16};
  submit([=] {
    deal_rows(rows, rows * inputs * 4, [&](int64_t begin, int64_t end) { table->unpack(a, begin, end); });
  });
}

void quantise(uintptr_t numbers, uintptr_t out, int64_t rows, int64_t blocks, int kind, int numbers_kind) {
  const QuantiseArgs a = {at<void>(numbers), at<void>(out), blocks, kind, static_cast<Numbers>(numbers_kind)};
  deal_rows(rows, rows * blocks * 1000, [&](int64_t begin, int64_t end) { table->quantise(a, begin, end); });
}

void process(uintptr_t scores, uintptr_t temperatures, uintptr_t min_p, uintptr_t top_k, uintptr_t top_p,
             int64_t rows, int64_t vocab) {
  const ProcessArgs a = {
      at<float>(scores), at<float>(temperatures), {at<double>(min_p), at<int64_t>(top_k), at<double>(top_p)}, vocab};
  submit([=] {
    deal_rows(rows, rows * a.vocab, [&](int64_t begin, int64_t end) { table->process(a, begin, end); });
  });
}

void draw(uintptr_t scores, uintptr_t temperatures, uintptr_t min_p, uintptr_t top_k, uintptr_t top_p,
          uintptr_t seeds, uintptr_t positions, uintptr_t out, uintptr_t ids, uintptr_t probs, int64_t rows,
          int64_t vocab) {
  const DrawArgs a = {at<float>(scores),
                      at<float>(temperatures),
                      {at<double>(min_p), at<int64_t>(top_k), at<double>(top_p)},
                      at<uint64_t>(seeds),
                      at<int64_t>(positions),
                      at<int64_t>(out),
                      vocab,
                      at<int64_t>(ids),
                      at<float>(probs)};
  submit([=] {
    deal_rows(rows, rows * a.vocab, [&](int64_t begin, int64_t end) { table->draw(a, begin, end); });
  });
}

void branch(uintptr_t scores, uintptr_t temperatures, uintptr_t min_p, uintptr_t top_k, uintptr_t top_p,
            uintptr_t seeds, uintptr_t positions, uintptr_t out, uintptr_t ids, uintptr_t probs, int64_t rows,
            int64_t vocab, int64_t children) {
  const BranchArgs a = {{at<float>(scores),
                         at<float>(temperatures),
                         {at<double>(min_p), at<int64_t>(top_k), at<double>(top_p)},
                         at<uint64_t>(seeds),
                         at<int64_t>(positions),
                         at<int64_t>(out),
                         vocab,
                         at<int64_t>(ids),
                         at<float>(probs)},
                        children};
  submit([=] {
    deal_rows(rows, rows * vocab, [&](int64_t begin, int64_t end) { table->branch(a, begin, end); });
  });
}

// Of the children of each draft's nodes, chooses the most worthy to go on from.
void grow(uintptr_t tokens, uintptr_t probs, uintptr_t worth, uintptr_t out, uintptr_t out_worth, uintptr_t origin,
          uintptr_t chosen, uintptr_t slots, uintptr_t above, uintptr_t below, int64_t drafts, int64_t rows,
          int64_t children, int64_t wide, int64_t depth) {
  submit([=] {
    const int64_t nodes = rows / drafts, each = wide / drafts;
    std::vector<std::pair<float, int64_t>> found(nodes * children);
    for (int64_t draft = 0; draft < drafts; ++draft) {
      const int64_t first = draft * nodes;
      for (int64_t i = 0; i < nodes * children; ++i)
        found[i] = {-at<float>(worth)[first + i / children] * at<float>(probs)[first * children + i], i};
      std::partial_sort(found.begin(), found.begin() + each, found.end());
      for (int64_t place = 0; place < each; ++place) {
        const int64_t best = found[place].second, row = first + best / children, to = draft * each + place;
        at<int64_t>(out)[to] = at<int64_t>(tokens)[first * children + best];
        at<float>(out_worth)[to] = -found[place].first;
        at<int64_t>(origin)[to] = row;
        at<int64_t>(chosen)[to] = best;
        if (!slots) continue;
        std::copy_n(at<int32_t>(above) + row * depth, depth, at<int32_t>(below) + to * (depth + 1));
        at<int32_t>(below)[to * (depth + 1) + depth] = at<int32_t>(slots)[to];
      }
    }
  });
}

void gumbel(uint64_t seed, int64_t position, uintptr_t out, int64_t vocab) {
  submit([=] { table->gumbel(seed, position, at<double>(out), vocab); });
}

void move_slots(uintptr_t src_slots, uintptr_t dst_slots, uintptr_t key_cache, uintptr_t value_cache, int64_t count,
                int64_t kv_heads, int64_t head_dim, int64_t block_size, int64_t element_bytes) {
  const int64_t bytes = head_dim * element_bytes, head_stride = block_size * bytes;
  const auto address = [&](uintptr_t cache, int64_t slot, int64_t head) {
    return at<char>(cache) + (slot / block_size * kv_heads + head) * head_stride + slot % block_size * bytes;
  };
  char* held = static_cast<char*>(scratch(2 * count * kv_heads * bytes));
  const auto each = [&](const int64_t* slots, auto move) {
    char* hold = held;
    for (const uintptr_t cache : {key_cache, value_cache})
      for (int64_t i = 0; i < count; ++i)
        for (int64_t head = 0; head < kv_heads; ++head, hold += bytes) move(hold, address(cache, slots[i], head));
  };
  each(at<int64_t>(src_slots), [&](char* hold, const char* slot) { std::memcpy(hold, slot, bytes); });
  each(at<int64_t>(dst_slots), [&](const char* hold, char* slot) { std::memcpy(slot, hold, bytes); });
}

void copy_slots(uintptr_t src_slots, uintptr_t dst_slots, uintptr_t key_cache, uintptr_t value_cache, int64_t count,
                int64_t kv_heads, int64_t head_dim, int64_t block_size, int64_t element_bytes) {
  submit([=] {
    move_slots(src_slots, dst_slots, key_cache, value_cache, count, kv_heads, head_dim, block_size, element_bytes);
  });
}

std::vector<uint32_t> philox(const std::vector<uint32_t>& counter, const std::vector<uint32_t>& key) {
  if (counter.size() != 4 || key.size() != 2) throw std::invalid_argument("philox: 4 counter words, 2 key words");
  std::vector<uint32_t> out(4);
  table->philox(counter.data(), key.data(), out.data());
  return out;
}

// The probes put every thread to work, whatever the amount.
template <class F>
double sum_over_threads(F job) {
  const int64_t threads = get_threads();
  std::vector<double> parts(threads);
  struct Context {
    F& job;
    std::vector<double>& parts;
  } context = {job, parts};
  run(
      [](void* c, int64_t share, int64_t shares) {
        auto& [job, parts] = *static_cast<Context*>(c);
        parts[share] = job(share, shares);
      },
      &context, threads, true);
  return std::accumulate(parts.begin(), parts.end(), 0.0);
}

double probe_read(uintptr_t from, int64_t bytes, int64_t ahead) {
  const int64_t windows = bytes / kProbeWindow;
  return sum_over_threads([&](int64_t share, int64_t shares) -> double {
    const int64_t begin = windows * share / shares, end = windows * (share + 1) / shares;
    return table->probe_read(at<char>(from) + begin * kProbeWindow, end - begin, ahead);
  });
}

double probe_multiply(bool bf16, int64_t rounds) {
  return sum_over_threads([&](int64_t share, int64_t shares) {
    float sink;
    return table->probe_multiply(bf16, rounds * (share + 1) / shares - rounds * share / shares, &sink);
  });
}

using Tokens = std::vector<int32_t>;
using Found = std::tuple<std::vector<int32_t>, std::vector<float>, float, uint32_t>;

Found found(Guess guess) { return {std::move(guess.tokens), std::move(guess.probs), guess.score, guess.match}; }

using Tree = std::tuple<std::vector<int32_t>, std::vector<int32_t>, std::vector<float>, float>;

Tree tree(Branches made) { return {std::move(made.tokens), std::move(made.parents), std::move(made.probs), made.score}; }

}  // namespace
}  // namespace parlay

NB_MODULE(_native, m) {
  using namespace parlay;
  const auto free = nb::call_guard<nb::gil_scoped_release>();
  nb::class_<Tape>(m, "Tape")
      .def(nb::init<>())
      .def("run", &Tape::run, free)
      .def("__len__", &Tape::size);
  nb::class_<SuffixTrie>(m, "SuffixTrie")
      .def(nb::init<uint32_t, bool>(), nb::arg(), nb::arg() = false)
      .def("begin", &SuffixTrie::begin)
      .def("append", [](SuffixTrie& t, uint32_t sequence, const Tokens& x) { t.append(sequence, x.data(), x.size()); })
      .def("end", &SuffixTrie::end)
      .def("remove", &SuffixTrie::remove)
      .def("guess", [](const SuffixTrie& t, uint32_t sequence, uint32_t most, float factor, float offset,
                       float min_prob) { return found(t.guess(sequence, {most, factor, offset, min_prob})); })
      .def("guess_after", [](const SuffixTrie& t, const Tokens& x, uint32_t most, float factor, float offset,
                             float min_prob) {
        return found(t.guess_after(x.data(), x.size(), {most, factor, offset, min_prob}));
      })
      .def("branch", [](const SuffixTrie& t, uint32_t sequence, uint32_t most, float factor, float offset,
                        float min_prob) { return tree(t.branch(sequence, {most, factor, offset, min_prob})); })
      .def("branch_after", [](const SuffixTrie& t, const Tokens& x, uint32_t most, float factor, float offset,
                              float min_prob) {
        return tree(t.branch_after(x.data(), x.size(), {most, factor, offset, min_prob}));
      })
      .def("lookup", &SuffixTrie::lookup)
      .def("count", [](const SuffixTrie& t, const Tokens& x) { return t.count(x.data(), x.size()); })
      .def_prop_ro("bytes", &SuffixTrie::bytes);
  m.def("record", &record, nb::arg().none());
  m.def("embed", &embed, free);
  m.def("rms_norm", &rms_norm, free);
  m.def("layer_norm", &layer_norm, free);
  m.def("head_norm", &head_norm, free);
  m.def("rotary_store", &rotary_store, free);
  m.def("attention", &attention, free);
  m.def("act_mul", &act_mul, free);
  m.def("activate", &activate, free);
  m.def("add_bias", &add_bias, free);
  m.def("add_embedding", &add_embedding, free);
  m.def("scale", &scale, free);
  m.def("soft_cap", &soft_cap, free);
  m.def("route", &route, free);
  m.def("expert_linear", &expert_linear, free);
  m.def("mix_experts", &mix_experts, free);
  m.def("linear", &linear, free);
  m.def("set_prefetching", &set_prefetching);
  m.def("packed_bytes", [](int64_t inputs, int kind) { return table->packed_bytes(inputs, kind); });
  m.def("pack", &pack, free);
  m.def("unpack", &unpack, free);
  m.def("quantise", &quantise, free);
  m.def("process", &process, free);
  m.def("draw", &draw, free);
  m.def("branch", &branch, free);
  m.def("grow", &grow, free);
  m.def("gumbel", &gumbel, free);
  m.def("copy_slots", &copy_slots, free);
  m.def("philox", &philox);
  m.def("probe_read", &probe_read, free);
  m.def("probe_multiply", &probe_multiply, free);
  m.def("isa", [] { return table->isa; });
  m.def("isas", &isas);
  m.def("set_isa", &set_isa);
  m.def("set_threads", &set_threads, free);
  m.def("threads", &get_threads);
}
