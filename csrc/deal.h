// How operations are dealt to threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "pool.h"

namespace parlay {

// A thread is worth waking for this much work.
inline constexpr int64_t kNanosecondsPerThread = 6000;

// A thread that sleeps is not worth waking for less than this; one that still spins joins anyway.
inline constexpr int64_t kNanosecondsWorthWaking = 40000;

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

}  // namespace parlay
