// A small pool of threads. A job is cut into shares beforehand; who does which share is left to chance.
#pragma once

#include <cstdint>

namespace parlay {

// Tells the processor that its thread waits for another.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

using Job = void (*)(void* context, int64_t share, int64_t shares);

// Sets how many threads, the caller's included, run() may use.
void set_threads(int64_t threads);
int64_t get_threads();

// Runs job(context, share, shares) for each share and returns when all are done; shares <= limit. The caller takes
// every share that no worker has begun, so a worker that wakes late costs nothing. `wake` rouses the sleepers.
void run(Job job, void* context, int64_t limit, bool wake);

}  // namespace parlay
