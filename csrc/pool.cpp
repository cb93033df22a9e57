#include "pool.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "alert.h"
#include "table.h"

namespace parlay {
namespace {

// Every share is computed with the default rounding and with denormal numbers, whatever its thread was told: a library
// built for "fast math" may have the caller flush them, and a share's bits must not depend on who does it.
class DefaultFloats {
#if defined(__x86_64__)
 public:
  DefaultFloats() : before_(__builtin_ia32_stmxcsr()) {
    if (altered()) __builtin_ia32_ldmxcsr(kDefault);
  }
  ~DefaultFloats() {
    if (altered()) __builtin_ia32_ldmxcsr(before_);
  }

 private:
  static constexpr unsigned kDefault = 0x1f80, kFlags = 0x3f;  // the flags only tell what happened
  bool altered() const { return (before_ & ~kFlags) != kDefault; }
  const unsigned before_;
#elif defined(__aarch64__)
 public:
  DefaultFloats() : before_(control()) {
    if (before_) set(0);
  }
  ~DefaultFloats() {
    if (before_) set(before_);
  }

 private:
  static uint64_t control() {
    uint64_t bits;
    __asm__ volatile("mrs %0, fpcr" : "=r"(bits));
    return bits;
  }
  static void set(uint64_t bits) { __asm__ volatile("msr fpcr, %0" : : "r"(bits) : "memory"); }
  const uint64_t before_;
#else
 public:
  DefaultFloats() {}
#endif
};

// Workers look for work this long before they sleep. A step's kernels follow each other within microseconds, and the
// passes that draft a token each within a tenth of a millisecond; waking a thread takes as long.
constexpr std::chrono::microseconds kLinger{100};

constexpr int kSpins = 64;       // between two looks at the clock
constexpr int kPatience = 2000;  // looks before the caller, whose shares are done, offers its core to others

// Shares are counted in sixteen bits; far fewer threads are ever of use.
constexpr int64_t kMostThreads = 1024;

using Clock = std::chrono::steady_clock;

class Pool {
 public:
  // Where so many threads cannot be started, fewer share the work; the bits of the results are the same.
  explicit Pool(int64_t threads) {
    workers_.reserve(threads - 1);
    try {
      for (; threads_ < threads; ++threads_) workers_.emplace_back([this] { work(); });
    } catch (const std::system_error& error) {
      std::fprintf(stderr,
                   "parlay: only %d of %d threads could be started (%s); raise the limits of this process, or set "
                   "PARLAY_THREADS\n",
                   (int)threads_, (int)threads, error.what());
    }
  }

  // Ends the workers. Whoever still holds this pool then does all shares of a job alone.
  void retire() {
    const std::lock_guard<std::mutex> mine(users_);
    stop_ = true;
    rouse();
    for (auto& w : workers_) w.join();
    workers_.clear();
  }

  int64_t threads() const { return threads_; }

  void alert(bool on) {
    alert_ += on ? 1 : -1;
    if (on && sleepers_.load() > 0) rouse();
  }

  void run(Job job, void* context, int64_t shares, bool wake) {
    const std::unique_lock<std::mutex> mine(users_, std::try_to_lock);
    if (!mine) return job(context, 0, 1);  // another thread of the process is using the workers
    job_ = job, context_ = context;
    done_.store(0, std::memory_order_relaxed);
    ticket_.store((uint64_t)++epoch_ << 32 | (uint64_t)shares << 16);
    if (wake && sleepers_.load() > 0) rouse();
    while (take_share()) {
    }
    for (int spins = 0; done_.load(std::memory_order_acquire) < shares;)
      if (++spins < kPatience)
        relax();
      else
        std::this_thread::yield();  // the machine may have fewer free cores than threads
  }

 private:
  // epoch << 32 | shares << 16 | shares asked for: by each thread at most once more than there are, which sixteen bits
  // have room for.
  static bool open(uint64_t ticket) { return (ticket & 0xffff) < (ticket >> 16 & 0xffff); }

  bool take_share() {
    // Idle threads only read, so that the cache line stays shared. An addition never fails, where a compare-and-swap is
    // repeated if many ask at once. A worker that comes late gets the ticket of the next job, and takes a share of that.
    if (!open(ticket_.load())) return false;
    const uint64_t ticket = ticket_.fetch_add(1);
    if (!open(ticket)) return false;
    // The job stays put: run() does not return before this share is done.
    job_(context_, ticket & 0xffff, ticket >> 16 & 0xffff);
    done_.fetch_add(1, std::memory_order_release);
    return true;
  }

  void rouse() {
    { const std::lock_guard<std::mutex> lock(sleep_); }
    wake_.notify_all();
  }

  void work() {
    const DefaultFloats floats;  // a thread starts with its maker's
    auto idle = Clock::now();
    for (int spins = 0; !stop_;) {
      if (take_share()) {
        spins = 0;
      } else if (++spins % kSpins) {
        relax();
      } else if (alert_.load() > 0) {
        std::this_thread::yield();
        spins = 0;
      } else if (spins == kSpins) {
        idle = Clock::now();
      } else if (Clock::now() - idle > kLinger) {
        std::unique_lock<std::mutex> lock(sleep_);
        ++sleepers_;
        wake_.wait(lock, [&] { return stop_ || open(ticket_.load()) || alert_.load() > 0; });
        --sleepers_;
        spins = 0;
      }
    }
  }

  int64_t threads_ = 1;
  std::vector<std::thread> workers_;
  std::mutex users_, sleep_;
  std::condition_variable wake_;
  std::atomic<uint64_t> ticket_{0};
  std::atomic<int64_t> done_{0}, sleepers_{0}, alert_{0};
  std::atomic<bool> stop_{false};
  uint32_t epoch_ = 0;
  Job job_ = nullptr;
  void* context_ = nullptr;
};

// The pool is never destroyed at exit: its threads may not outlive what they stand on. A forked child has no
// workers; it forgets the parent's pool and makes its own.
std::atomic<Pool*> current{nullptr};
std::atomic<int64_t> wanted{1};
std::mutex making;

void forget_after_fork() {
  current.store(nullptr);
  new (&making) std::mutex;
}

Pool* pool() {
  if (Pool* p = current.load(std::memory_order_acquire)) return p;
  std::lock_guard<std::mutex> lock(making);
  if (!current.load()) {
    static const int registered = pthread_atfork(nullptr, nullptr, forget_after_fork);
    (void)registered;
    current.store(new Pool(wanted.load()));
  }
  return current.load();
}

}  // namespace

void set_threads(int64_t threads) {
  threads = threads < 1 ? 1 : threads > kMostThreads ? kMostThreads : threads;
  std::lock_guard<std::mutex> lock(making);
  if (threads == wanted) return;
  wanted = threads;
  // Not deleted: another thread may be about to run a job on it.
  if (Pool* old = current.exchange(nullptr)) old->retire();
}

int64_t get_threads() { return wanted; }

void run(Job job, void* context, int64_t limit, bool wake) {
  const DefaultFloats floats;
  if (limit <= 1 || wanted.load(std::memory_order_relaxed) == 1) return job(context, 0, 1);
  Pool* p = pool();
  p->run(job, context, limit < p->threads() ? limit : p->threads(), wake);
}

Alert::Alert(bool worth) : pool_(worth && wanted.load(std::memory_order_relaxed) > 1 ? pool() : nullptr) {
  if (pool_) static_cast<Pool*>(pool_)->alert(true);
}

Alert::~Alert() {
  if (pool_) static_cast<Pool*>(pool_)->alert(false);
}

void* scratch(size_t bytes) {
  struct Memory {
    void* at = nullptr;
    size_t size = 0;
    ~Memory() { std::free(at); }
  };
  thread_local Memory mine;
  if (mine.size < bytes) {
    std::free(mine.at);
    mine.size = 0;
    const size_t size = (bytes * 3 / 2 + 63) / 64 * 64;  // contexts grow token by token
    mine.at = std::aligned_alloc(64, size);
    if (!mine.at) {
      // A worker has nobody to throw to, and a few megabytes are all that is ever asked for.
      std::fprintf(stderr, "parlay: out of memory in a kernel\n");
      std::abort();
    }
    mine.size = size;
  }
  return mine.at;
}

}  // namespace parlay
