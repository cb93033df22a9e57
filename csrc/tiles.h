// out = x weight^T in bfloat16 on processors that multiply tiles (AMX): 16 rows by 16 outputs by 32 inputs at once.
//
// The weight is packed as linear.h has it: 16 pairs of inputs of a panel are a tile of it as they lie. An output's sum
// starts at zero and takes 32 inputs after another, whatever the number of rows; K is filled up with zeros.
#pragma once

#include "rows.h"
#include "table.h"
#include "vec.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(PARLAY_AVX512)
#define PARLAY_TILES 1

namespace parlay {
namespace {

constexpr int kTileRows = 16, kTileInputs = 32;
constexpr int64_t kTileWeights = kTileInputs * kPanel;  // of a panel, which is two tiles wide
constexpr int64_t kTileStride = 2 * kPanel * sizeof(bf16);  // bytes between two pairs of inputs
constexpr int64_t kTileAhead = 8192;  // bytes from the weights that are read to those that are asked for

// Numbers of the tiles, which have to be literals: sums of two tiles of rows by two of outputs, rows, weights.
#define PARLAY_SUM00 0
#define PARLAY_SUM01 1
#define PARLAY_SUM10 2
#define PARLAY_SUM11 3
#define PARLAY_X0 4
#define PARLAY_X1 5
#define PARLAY_W0 6
#define PARLAY_W1 7

// The compiler does not know that tiles are loaded from memory and stored there.
#define PARLAY_TILE_MEMORY(address) __asm__ volatile("" : : "r"(address) : "memory")

// Shapes of the tiles: of sums and left operands `rows` by 64 bytes, of right operands whole.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};

  explicit TileShapes(int64_t rows) {
    for (int tile = 0; tile < 8; ++tile) set(tile, tile < PARLAY_W0 ? rows : kTileRows, kLine);
  }
  void set(int tile, int64_t height, int64_t width) { rows[tile] = (uint8_t)height, bytes[tile] = (uint16_t)width; }
};

// This thread's tiles have these shapes, as long as it multiplies.
struct Tiles {
  explicit Tiles(const TileShapes& shapes) {
    PARLAY_TILE_MEMORY(&shapes);
    _tile_loadconfig(&shapes);
  }
  explicit Tiles(int64_t rows) : Tiles(TileShapes(rows)) {}
  ~Tiles() { _tile_release(); }
};

// Adds `count` tiles' inputs of a panel to the sums of one tile of rows or of two, asking for weights `ahead` bytes on.
template <bool two>
PARLAY_INLINE void multiply_tiles(const bf16* x, const bf16* weight, int64_t count, int64_t ahead) {
  constexpr int64_t stride = Rows<bf16>::stride;
  PARLAY_TILE_MEMORY(x);
  PARLAY_TILE_MEMORY(weight);
  for (int64_t k = 0; k < count; ++k, weight += kTileWeights, x += kTileInputs) {
    if (ahead)
      _Pragma("GCC unroll 32") for (int line = 0; line < 32; ++line)
        __builtin_prefetch((const char*)weight + ahead + line * kLine, 0, 2);
    _tile_loadd(PARLAY_W0, weight, kTileStride);
    _tile_loadd(PARLAY_W1, weight + kTileInputs, kTileStride);
    _tile_loadd(PARLAY_X0, x, stride * sizeof(bf16));
    _tile_dpbf16ps(PARLAY_SUM00, PARLAY_X0, PARLAY_W0);
    _tile_dpbf16ps(PARLAY_SUM01, PARLAY_X0, PARLAY_W1);
    if constexpr (two) {
      _tile_loadd(PARLAY_X1, x + kTileRows * stride, stride * sizeof(bf16));
      _tile_dpbf16ps(PARLAY_SUM10, PARLAY_X1, PARLAY_W0);
      _tile_dpbf16ps(PARLAY_SUM11, PARLAY_X1, PARLAY_W1);
    }
  }
}

// Writes the totals of one tile of rows, or of two, against a panel.
template <bool two>
void tile_rows(const Rows<bf16>& x, int64_t row, const bf16* weight, int64_t inputs, int64_t ahead,
               Vec (*total)[kPanelVecs]) {
  _tile_zero(PARLAY_SUM00);
  _tile_zero(PARLAY_SUM01);
  if constexpr (two) {
    _tile_zero(PARLAY_SUM10);
    _tile_zero(PARLAY_SUM11);
  }
  const int64_t block = k_block(inputs);
  for (int64_t from = 0; from < inputs; from += block) {
    const int64_t left = inputs - from < block ? inputs - from : block, whole = left / kTileInputs;
    const bf16* at = x.at(from / block, row);
    multiply_tiles<two>(at, weight + from * kPanel, whole, ahead);
    const int64_t rest = left - whole * kTileInputs;
    if (rest) {
      alignas(64) bf16 last[kTileWeights] = {};
      memcpy((void*)last, weight + (from + whole * kTileInputs) * kPanel, (rest + 1) / 2 * kTileStride);
      multiply_tiles<two>(at + whole * kTileInputs, last, 1, 0);
    }
  }
  constexpr int64_t stride = sizeof *total;
  _tile_stored(PARLAY_SUM00, &total[row][0], stride);
  _tile_stored(PARLAY_SUM01, &total[row][1], stride);
  if constexpr (two) {
    _tile_stored(PARLAY_SUM10, &total[row + kTileRows][0], stride);
    _tile_stored(PARLAY_SUM11, &total[row + kTileRows][1], stride);
  }
  PARLAY_TILE_MEMORY(total);
}

template <class Out>
void tile_tasks(const LinearArgs& a, Shares& shares, int64_t thread) {
  const int64_t tile = a.rows < kTileRows ? a.rows : kTileRows;
  const Tiles tiles(tile);
  Vec total[kLinearRows][kPanelVecs];
  each_task<Rows<bf16>>(a, shares, thread, 1, [&](int64_t first_row, int64_t rows) __attribute__((always_inline)) {
    return Rows<bf16>((const bf16*)a.x, a.inputs, first_row, rows, kTileInputs, tile);
  }, [&](const Rows<bf16>& x, int64_t first_row, int64_t panel, int64_t) __attribute__((always_inline)) {
    const bf16* weight = (const bf16*)a.weight + panel * ((a.inputs + 1) / 2 * 2) * kPanel;
    for (int64_t row = 0; row < x.laid; row += 2 * kTileRows) {
      const int64_t ahead = row ? 0 : kTileAhead;  // the other rows find the panel in the cache
      if (x.laid - row > kTileRows)
        tile_rows<true>(x, row, weight, a.inputs, ahead, total);
      else
        tile_rows<false>(x, row, weight, a.inputs, ahead, total);
    }
    store_panel<Out>(a, total, first_row, x.rows, panel);
  });
}

}  // namespace
}  // namespace parlay
#endif
