// What the compiled variants have in common: arguments and entry points, plain C types only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace parlay {

struct NormArgs {
  const void* x;   // [T, width]; the delta where there is a residual
  void* residual;  // [T, width] in and out, or null
  const void* weight;
  void* out;
  int64_t width;
  float eps;
  bool plus_one, bf16;
};

struct LayerNormArgs {
  const void* x;   // [T, width]; the delta where there is a residual
  void* residual;  // [T, width] in and out, or null
  const void* weight;
  const void* bias;
  void* out;
  int64_t width;
  float eps;
  bool bf16;
};

struct HeadNormArgs {
  void* qkv;  // [T, (heads + 2 kv_heads) * head_dim] in and out
  const void* q_weight;
  const void* k_weight;
  const void* v_weight;  // or null: values stay
  int64_t heads, kv_heads, head_dim;
  float eps;
  bool plus_one, bf16;
};

struct HeadSquaresArgs {
  const void* qkv;  // as of HeadNormArgs
  float* q_squares;  // [T, heads]
  float* k_squares;  // [T, kv_heads]
  int64_t heads, kv_heads, head_dim;
  bool bf16;
};

struct JointNormArgs {
  void* qkv;  // as of HeadNormArgs
  const void* q_weight;  // [heads * head_dim]
  const void* k_weight;
  const float* q_squares;  // [T, all heads]
  const float* k_squares;
  int64_t heads, kv_heads, head_dim, all_heads, all_kv_heads;
  float eps;
  bool bf16;
};

struct LatentArgs {
  void* query;   // [rows, heads, dim]
  void* latent;  // [rows, dim]
  const void* norm;  // [dim - rotary_dim]
  float eps;
  const int32_t* positions;
  const int64_t* slots;
  const float* cos_sin;
  void* cache;  // [blocks, 1, block_size, dim]
  int64_t heads, dim, rotary_dim;
  bool bf16, cache_in_bytes;  // rows of the cache as cache_rows.h has them
};

struct RotaryArgs {
  const void* qkv;  // [T, (heads + kv_heads) * head_dim + kv_heads * value_dim]
  const int32_t* positions;
  const int64_t* slots;
  const float* cos_sin;
  const void* q_norm;  // [head_dim], or null
  const void* k_norm;
  float eps;
  void* q_out;
  void* key_cache;
  void* value_cache;
  int64_t heads, kv_heads, head_dim, value_dim, rotary_dim, block_size;
  bool bf16, cache_in_bytes;
};

struct AttentionArgs {
  const void* q;
  const void* key_cache;
  const void* value_cache;
  const int32_t* tables;  // [requests, max_blocks]
  const int32_t* row_request;
  const int32_t* first;
  const int32_t* last;
  const int32_t* extra_offsets;
  const int32_t* extra_slots;
  const float* sinks;  // [heads], or null
  void* out;
  int64_t max_blocks, heads, kv_heads, head_dim, value_dim, block_size;
  int64_t stored;    // kv heads of the cache; where there are fewer, several of `kv_heads` are one
  int64_t window;    // most keys that a row sees
  int64_t chunk;     // or it sees those from a multiple of this on; 0: none
  float scale, cap;  // cap 0: none
  bool bf16, cache_in_bytes;
};

enum Gate : int { kPlain, kSigmoid, kSoftplus };  // in the order of tensor.h
enum Activation : int { kSilu, kGelu, kGeluTanh, kRelu, kRelu2, kClampedSwiglu };  // in the order of tensor.h

struct ActivationArgs {
  const void* gate_up;
  void* out;
  int64_t width;
  Activation activation;
  float limit;  // 0: none
  bool bf16;
};

struct PointwiseArgs {  // x is read and written
  void* x;              // [T, width]
  const void* other;    // a bias [width], embeddings [n, width], or the four numbers of xielu, float
  const int32_t* index;
  int64_t width;
  float factor;  // of scale, or the cap
  Activation activation;
  bool bf16;
};

struct RouteArgs {
  const float* scores;  // [T, experts]
  const float* bias;    // [experts], or null
  const float* scales;  // [experts], or null
  int32_t* chosen_experts;
  float* weights;  // [T, chosen]
  int64_t experts, chosen, groups, kept_groups;
  float factor;
  bool normalise, sigmoid;
};

struct MixArgs {
  const void* x;  // [T, chosen, width]
  const float* weights;
  const void* shared;  // [T, width], or null
  const float* gate;   // [T, 1], or null
  void* out;
  int64_t chosen, width;
  bool bf16;
};

// Which rows of a recurrent layer go on from what (`kernels.metadata.StateMetadata`).
struct StateArgs {
  const int32_t* sequences;  // [S, 5]: slot or -1, begin and end of its `replayed`, begin and end of its rows
  const int32_t* rows;       // [T, 4]: sequence, row before it or -1, slot to store to or -1, place to keep in or -1
  const int32_t* replayed;   // [M, 2]: place, slot to store to or -1
};

constexpr int64_t kMostTaps = 8;  // of a convolution

struct ConvArgs {
  const void* x;       // [T, width]
  const void* weight;  // [taps, width], the row's own last
  const void* bias;    // [width], or null
  StateArgs states;
  void* tails;  // [slots, taps - 1, width], the newest last
  void* kept;   // [places, width]
  void* out;
  int64_t width, taps;
  bool silu, bf16;
};

// Columns of a head's state that lie together: few enough that they stay in the first-level cache from row to row.
constexpr int64_t kStatePiece = 32;

struct RecurrenceArgs {
  const void* x;      // [T, width]: queries, keys and values, at the columns below
  const void* gates;  // [T, gates_width]
  const void* channels;    // [T, heads * keys]: what each key's column decays by; null where a whole head does
  const float* rate;       // [heads], of the decay
  const float* step_bias;  // [heads], or [heads * keys] beside channels
  const float* skip;       // [heads], or null
  StateArgs states;
  float* stored;  // [slots, heads, pieces, keys, kStatePiece]
  void* kept;     // [places, width]
  void* kept_gates;
  void* out;  // [T, heads * values]
  int64_t heads, groups, keys, values, width, gates_width, query_at, key_at, value_at;
  int64_t pieces;  // of a head's columns, that are one task
  float query_scale, write_scale, least_step, most_step;
  bool delta, tiled, bf16;  // tiled: head h reads group h % groups, otherwise neighbours share one
};

struct GatedNormArgs {
  const void* x;       // [T, width]
  const void* gate;    // [T, width]
  const void* weight;  // [group] if shared, or [width]
  void* out;
  int64_t width, group;
  float eps;
  bool gate_first, shared, bf16;
};

struct MultiplyArgs {
  void* x;            // [T, gates, width / gates] in and out
  const void* other;  // [T, gates]
  int64_t width, gates;
  Gate gate;
  bool bf16;
};

// A task of attention gathers at most this many queries (rows times heads), so that what it holds stays in cache.
constexpr int64_t kAttentionQueries = 128;

// Weights of `linear` are packed in panels of this many outputs; a task is a panel against this many rows, few
// enough that they stay in the second-level cache while the panels go by.
constexpr int64_t kPanel = 32, kLinearRows = 96;

// What to ask for before it is needed; which is best depends on the machine, and changes no bits.
struct Prefetching {
  int64_t few_rows;  // up to which the processor's own prefetching serves best for plain numbers
  int64_t ahead;     // bytes from the numbers that are read to those that are asked for, in a single pass
  int64_t blocks;    // the same of blocks, for any number of rows; 0 for none
};

// Kinds of plain numbers, as GGUF files number them.
enum Numbers : int { kF32 = 0, kF16 = 1, kBF16 = 30 };

struct LinearArgs {
  const void* x;       // [rows, inputs]
  const void* weight;  // packed, see linear.h and formats.h
  void* out;           // [rows, outputs], each row `stride` elements after the one before
  int64_t rows, inputs, outputs, stride;
  int kind;  // of the weight, as GGUF files number them; of numbers those of x's type, and float16
  bool bf16, float_out;
  Prefetching prefetching;
};

// Tasks of several threads. Each has a stretch of its own, which it does in order, for memory is read fastest so; who
// is done takes from the ends of the others' stretches, so that nobody waits for a slow one.
constexpr int64_t kMostShares = 256;
struct Shares {
  struct alignas(64) Stretch {
    uint64_t left;  // begin << 32 | end
  };
  int64_t count;
  Stretch stretches[kMostShares];

  // None yet.
  explicit Shares(int64_t threads) : count(threads < kMostShares ? threads : kMostShares) {
    for (int64_t i = 0; i < count; ++i) stretches[i].left = 0;
  }
  Shares(int64_t tasks, int64_t threads) : Shares(threads) {
    for (int64_t i = 0; i < count; ++i) set(i, tasks * i / count, tasks * (i + 1) / count);
  }
  void set(int64_t thread, int64_t begin, int64_t end) {
    stretches[thread].left = (uint64_t)begin << 32 | (uint64_t)end;
  }
  struct Some {
    int64_t first, count;
  };
  // Tasks for the thread with this number, at most `most` of its own stretch, one of another's; none if all are taken.
  Some take(int64_t thread, int64_t most) {
    for (int64_t i = 0; i < count; ++i) {
      uint64_t& left = stretches[(thread + i) % count].left;
      uint64_t seen = __atomic_load_n(&left, __ATOMIC_RELAXED);
      while (seen >> 32 < (seen & 0xffffffff)) {
        const int64_t all = (int64_t)(seen & 0xffffffff) - (int64_t)(seen >> 32);
        const int64_t some = i ? 1 : all < most ? all : most;
        const uint64_t rest = i ? seen - 1 : seen + ((uint64_t)some << 32);
        if (__atomic_compare_exchange_n(&left, &seen, rest, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
          return {(int64_t)(i ? (rest & 0xffffffff) : seen >> 32), some};
      }
    }
    return {0, 0};
  }
};

struct PackArgs {
  const void* stored;  // blocks [outputs, inputs] as a file has them
  void* out;
  int64_t inputs, outputs;
  int kind;
  const void* book;  // of codes [entries, inputs of an entry], where a kind has one
};

struct QuantiseArgs {
  const void* numbers;  // [rows, blocks * 32]
  void* out;            // blocks as a file has them
  int64_t blocks;       // a row
  int kind;             // of the blocks
  Numbers numbers_kind;
};

struct UnpackArgs {
  const void* weight;  // packed blocks
  const int64_t* tokens;
  void* out;  // [rows, inputs]
  int64_t inputs;
  int kind;
  bool bf16;
};

struct FilterArgs {  // a value a row, or all null
  const double* min_p;
  const int64_t* top_k;
  const double* top_p;
};

struct ProcessArgs {
  float* scores;
  const float* temperatures;
  FilterArgs filters;
  int64_t vocab;
};

struct LogSoftmaxArgs {
  const float* scores;  // [rows, vocab]
  float* out;
  int64_t vocab;
};

struct LogProbsArgs {
  const float* scores;  // [rows, vocab]
  const float* temperatures;
  FilterArgs filters;
  float* out;
  int64_t vocab;
};

struct ExcessArgs {
  const float* target;   // log-probabilities [rows, vocab]
  const float* draft;    // [rows, drafted]
  const double* scales;  // a row, 0 to 1
  const int64_t* ids;    // the token of each of the draft's, or null where these are the target's
  float* out;            // [rows, vocab], may be null
  double* mass;          // a row
  int64_t vocab, drafted;
};

// The memory probe reads in windows of this many bytes.
constexpr int64_t kProbeWindow = 256 * 1024;

struct DrawArgs {
  const float* scores;
  const float* temperatures;
  FilterArgs filters;
  const uint64_t* seeds;
  const int64_t* positions;
  int64_t* out;
  int64_t vocab;
  const int64_t* ids;  // the token of each score, or null where they are in the tokens' order
  float* probs;        // may be null
};

struct BranchArgs {
  DrawArgs draw;     // of which `out` and `probs` are [rows, children]
  int64_t children;  // at most kSeen
};

// Kernels that do rows begin..end: name and arguments. No kernel's result for a row depends on how rows are dealt to
// threads.
#define PARLAY_ROW_KERNELS(KERNEL)                                                                                     \
  KERNEL(norm, NormArgs)                                                                                               \
  KERNEL(layer_norm, LayerNormArgs)                                                                                    \
  KERNEL(head_norm, HeadNormArgs)                                                                                      \
  KERNEL(head_squares, HeadSquaresArgs)                                                                                \
  KERNEL(joint_norm, JointNormArgs)                                                                                    \
  KERNEL(rotary_store, RotaryArgs)                                                                                     \
  KERNEL(latent_store, LatentArgs)                                                                                     \
  KERNEL(act_mul, ActivationArgs)                                                                                      \
  KERNEL(activate, PointwiseArgs)                                                                                      \
  KERNEL(add_bias, PointwiseArgs)                                                                                      \
  KERNEL(add_embedding, PointwiseArgs)                                                                                 \
  KERNEL(scale, PointwiseArgs)                                                                                         \
  KERNEL(soft_cap, PointwiseArgs)                                                                                      \
  KERNEL(xielu, PointwiseArgs)                                                                                         \
  KERNEL(route, RouteArgs)                                                                                             \
  KERNEL(mix_experts, MixArgs)                                                                                         \
  KERNEL(multiply, MultiplyArgs)                                                                                       \
  KERNEL(causal_conv, ConvArgs)                                                                                        \
  KERNEL(recurrence, RecurrenceArgs) /* tasks begin..end */                                                            \
  KERNEL(gated_norm, GatedNormArgs)                                                                                    \
  KERNEL(pack, PackArgs) /* panels begin..end */                                                                       \
  KERNEL(unpack, UnpackArgs)                                                                                           \
  KERNEL(quantise, QuantiseArgs)                                                                                       \
  KERNEL(process, ProcessArgs)                                                                                         \
  KERNEL(draw, DrawArgs)                                                                                               \
  KERNEL(branch, BranchArgs)                                                                                           \
  KERNEL(log_softmax, LogSoftmaxArgs)                                                                                  \
  KERNEL(log_probs, LogProbsArgs)                                                                                      \
  KERNEL(excess, ExcessArgs)

// One compiled variant. Attention does adjacent rows of one request against adjacent kv heads; linear does the tasks
// that it takes.
struct Table {
  const char* isa;
#define PARLAY_KERNEL(name, Args) void (*name)(const Args&, int64_t begin, int64_t end);
  PARLAY_ROW_KERNELS(PARLAY_KERNEL)
#undef PARLAY_KERNEL
  void (*attention)(const AttentionArgs&, int64_t row, int64_t rows, int64_t kv_head, int64_t kv_heads);
  void (*linear)(const LinearArgs&, Shares&, int64_t thread);
  int64_t (*packed_bytes)(int64_t inputs, int kind);  // of a panel
  void (*gumbel)(uint64_t seed, int64_t position, double* out, int64_t vocab);
  void (*philox)(const uint32_t* counter, const uint32_t* key, uint32_t* out);
  float (*probe_read)(const void* from, int64_t windows, int64_t ahead);
  double (*probe_multiply)(bool bf16, int64_t rounds, float* sink);
};

#if defined(PARLAY_HAS_AMX)
const Table* table_amx();
#endif
#if defined(__x86_64__)
const Table* table_avx512bf16();
const Table* table_avx512vnni();
const Table* table_avx512();
const Table* table_avx2();
#elif defined(__aarch64__)
const Table* table_neonbf16();
const Table* table_neoni8mm();
const Table* table_neondot();
const Table* table_neon();
#endif
const Table* table_baseline();

// The variant in use.
extern const Table* table;

// At least `bytes` of this thread's own scratch memory, 64-byte aligned, valid until its next call.
void* scratch(size_t bytes);

}  // namespace parlay
