// What goes into a panel's products and what comes out: rows laid out for them, and their totals.
#pragma once

#include "table.h"
#include "vec.h"

namespace parlay {
namespace {

constexpr int64_t kLine = 64;  // bytes
constexpr int kPanelVecs = kPanel / kLanes;

constexpr int64_t k_block(int64_t inputs) { return inputs > 1024 ? 1024 : 512; }

// As memcpy, or with every element widened.
template <class X>
PARLAY_INLINE void copy_row(X* to, const X* from, int64_t n) {
  memcpy((void*)to, from, n * sizeof(X));
}
PARLAY_INLINE void copy_row(float* to, const bf16* from, int64_t n) {
  PARLAY_ROW(first, some, n) store_at(to, load_at(from, first, some), first, some);
}

// Rows are copied, one block of K after another, so that all rows in flight lie a fixed distance apart, which is no
// multiple of a cache way's size. K is filled up with zeros to whole steps of `width`, and rows to whole tiles.
template <class X>
struct Rows {
  static constexpr int64_t stride = 1024 + kLine / sizeof(X);
  X* blocks;  // [blocks of K, laid, stride]
  int64_t rows, laid;

  Rows() = default;
  template <class T>
  Rows(const T* x, int64_t inputs, int64_t first_row, int64_t count, int64_t width, int64_t tile)
      : rows(count), laid((count + tile - 1) / tile * tile) {
    const int64_t size = k_block(inputs);
    blocks = (X*)scratch((inputs + size - 1) / size * laid * stride * sizeof(X));
    for (int64_t from = 0; from < inputs; from += size) {
      const int64_t n = inputs - from < size ? inputs - from : size, whole = (n + width - 1) / width * width;
      for (int64_t row = 0; row < rows; ++row) {
        X* to = at(from / size, row);
        copy_row(to, x + (first_row + row) * inputs + from, n);
        memset((void*)(to + n), 0, (whole - n) * sizeof(X));
      }
      for (int64_t row = rows; row < laid; ++row) memset((void*)at(from / size, row), 0, whole * sizeof(X));
    }
  }
  X* at(int64_t block, int64_t row) const { return blocks + (block * laid + row) * stride; }
};

// Calls task(x, first row, panel, count) for the tasks that it takes, panels against a chunk of rows, at most `most` at
// once, which is 1 where there are several chunks. Chunks are of nearly equal size, and prepare(first row, rows) makes x
// of one, once for all of its panels that follow one another.
template <class X, class Prepare, class Task>
PARLAY_INLINE void each_task(const LinearArgs& a, Shares& shares, int64_t thread, int64_t most, Prepare prepare,
                             Task task) {
  const int64_t panels = (a.outputs + kPanel - 1) / kPanel, chunks = (a.rows + kLinearRows - 1) / kLinearRows;
  int64_t known = -1, first_row = 0;
  X x = {};
  for (Shares::Some some; (some = shares.take(thread, most)).count;) {
    const int64_t chunk = some.first / panels;
    if (chunk != known) {
      known = chunk, first_row = a.rows * chunk / chunks;
      x = prepare(first_row, a.rows * (chunk + 1) / chunks - first_row);
    }
    task(x, first_row, some.first % panels, some.count);
  }
}

// Writes what rows came to in a panel.
template <class Out>
void store_panel(const LinearArgs& a, const Vec (*total)[kPanelVecs], int64_t first_row, int64_t rows, int64_t panel) {
  for (int64_t row = 0; row < rows; ++row)
    for (int v = 0; v < kPanelVecs; ++v) {
      const int64_t first = panel * kPanel + v * kLanes, left = a.outputs - first;
      if (left > 0)
        store_at((Out*)a.out + (first_row + row) * a.stride, total[row][v], first, left < kLanes ? left : kLanes);
    }
}

}  // namespace
}  // namespace parlay
