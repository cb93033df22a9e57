// Tile instructions (AMX with bf16) in AVX512, so that their kernels are tested on processors without them. Included
// before all else where that variant is compiled (CMake's PARLAY_EMULATED_TILES; see scripts/amx.sh).
//
// What each does is as in Intel's manual, volume 2 (LDTILECFG, TILELOADD, TILESTORED, TILEZERO, TDPBF16PS): rows and
// bytes beyond a tile's shape are zero, sums are fused and rounded to nearest in pairs of inputs, subnormal numbers are
// zero whatever MXCSR says. What would raise an exception there ends the process here.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define __AMX_TILE__ 1
#define __AMX_BF16__ 1
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig(from) ::emulated_tiles::configure(from)
#define _tile_release() ::emulated_tiles::release()
#define _tile_loadd(tile, from, stride) ::emulated_tiles::load(tile, from, stride)
#define _tile_stored(tile, to, stride) ::emulated_tiles::store(tile, to, stride)
#define _tile_zero(tile) ::emulated_tiles::zero(tile)
#define _tile_dpbf16ps(to, left, right) ::emulated_tiles::multiply(to, left, right)

namespace emulated_tiles {
namespace {

constexpr int kTiles = 8, kRows = 16, kBytes = 64;

struct Tile {
  alignas(64) uint8_t at[kRows][kBytes];
  int rows, bytes;
};
struct Registers {
  bool configured = false;
  Tile tiles[kTiles];
};
thread_local Registers own;

inline void require(bool holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "a tile instruction would fail: %s\n", what);
  abort();
}

inline Tile& tile(int number) {
  require(own.configured, "no tiles are configured");
  require(own.tiles[number].rows > 0, "the tile has no shape");
  return own.tiles[number];
}

inline void zero(int number) { memset(tile(number).at, 0, sizeof tile(number).at); }

inline void configure(const void* from) {
  const uint8_t* config = (const uint8_t*)from;
  require(config[0] == 1 && config[1] == 0, "another palette, or a start row");
  own.configured = true;
  for (int i = 0; i < kTiles; ++i) {
    uint16_t bytes;
    memcpy(&bytes, config + 16 + 2 * i, sizeof bytes);
    own.tiles[i].rows = config[48 + i], own.tiles[i].bytes = bytes;
    require(config[48 + i] <= kRows && bytes <= kBytes && !config[48 + i] == !bytes, "a tile's shape");
    memset(own.tiles[i].at, 0, sizeof own.tiles[i].at);
  }
}

inline void release() { own = Registers(); }

inline void load(int number, const void* from, int64_t stride) {
  Tile& t = tile(number);
  memset(t.at, 0, sizeof t.at);
  for (int row = 0; row < t.rows; ++row) memcpy(t.at[row], (const uint8_t*)from + row * stride, t.bytes);
}

inline void store(int number, void* to, int64_t stride) {
  const Tile& t = tile(number);
  for (int row = 0; row < t.rows; ++row) memcpy((uint8_t*)to + row * stride, t.at[row], t.bytes);
}

// Under its own MXCSR: the barriers keep the arithmetic between them.
__attribute__((noinline)) void multiply_rows(Tile& to, const Tile& left, const Tile& right) {
  const unsigned before = _mm_getcsr();
  _mm_setcsr(0x9fc0);  // subnormal numbers in and out are zero, no exceptions, to nearest
  __asm__ volatile("" : : : "memory");
  for (int row = 0; row < to.rows; ++row) {
    __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
    for (int k = 0; k < left.bytes / 4; ++k) {
      uint32_t pair;
      memcpy(&pair, left.at[row] + 4 * k, sizeof pair);
      const __m512i first = _mm512_set1_epi32((int)(pair << 16)), second = _mm512_set1_epi32((int)(pair & 0xffff0000u));
      const __m512i pairs = _mm512_load_si512(right.at[k]);
      const __m512i low = _mm512_slli_epi32(pairs, 16), high = _mm512_and_si512(pairs, _mm512_set1_epi32(-65536));
      even = _mm512_fmadd_ps(_mm512_castsi512_ps(first), _mm512_castsi512_ps(low), even);
      odd = _mm512_fmadd_ps(_mm512_castsi512_ps(second), _mm512_castsi512_ps(high), odd);
    }
    const __m512 sum = _mm512_add_ps(_mm512_load_ps(to.at[row]), _mm512_add_ps(even, odd));
    alignas(64) float all[kBytes / 4];
    _mm512_store_ps(all, sum);
    memcpy(to.at[row], all, to.bytes);
  }
  __asm__ volatile("" : : : "memory");
  _mm_setcsr(before);
}

inline void multiply(int to, int left, int right) {
  Tile &sums = tile(to), &rows = tile(left), &columns = tile(right);
  require(to != left && to != right && left != right, "an operand twice");
  require(sums.rows == rows.rows && sums.bytes == columns.bytes && rows.bytes == 4 * columns.rows, "shapes that differ");
  require(sums.bytes % 4 == 0 && rows.bytes % 4 == 0, "half a pair");
  multiply_rows(sums, rows, columns);
}

}  // namespace
}  // namespace emulated_tiles
