#include "exchange.h"

#include <sched.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>

#include "pool.h"

namespace parlay {
namespace {

constexpr int64_t kLine = 64;
constexpr int kSpins = 4000;    // before the core is offered to others: ranks come within microseconds
constexpr int kYields = 20000;  // before sleeping: then somebody computes for long
constexpr timespec kNap = {0, 50000};

int64_t rounded(int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

}  // namespace

int64_t Exchange::footprint(int64_t size, int64_t room) {
  return static_cast<int64_t>(sizeof(Flag)) + size * static_cast<int64_t>(sizeof(Turn)) + 2 * size * rounded(room);
}

Exchange::Exchange(int file, int64_t rank, int64_t size, int64_t room, double patience)
    : rank_(rank), size_(size), room_(rounded(room)), patience_(patience) {
  if (size < 1 || rank < 0 || rank >= size || room < 1) throw std::invalid_argument("no such place among ranks");
  bytes_ = footprint(size, room);
  memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory_ == MAP_FAILED) throw std::runtime_error("the memory that ranks share cannot be mapped");
  flag_ = static_cast<Flag*>(memory_);
  turns_ = reinterpret_cast<Turn*>(flag_ + 1);
  data_ = reinterpret_cast<char*>(turns_ + size);
}

Exchange::~Exchange() { munmap(memory_, bytes_); }

void Exchange::abandon() noexcept { flag_->raised.store(1); }

void Exchange::wait(int64_t rank, uint64_t turn) const {
  const auto arrived = [&] { return turns_[rank].done.load(std::memory_order_acquire) >= turn; };
  for (int spins = 0; spins < kSpins; ++spins) {
    if (arrived()) return;
    relax();
  }
  const auto began = std::chrono::steady_clock::now();
  for (int64_t yields = 0; !arrived(); ++yields) {
    if (flag_->raised.load(std::memory_order_relaxed)) throw RankLost("a rank of this engine has ended; start the engine again");
    if (yields < kYields)
      sched_yield();
    else
      nanosleep(&kNap, nullptr);
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() > patience_) {
      flag_->raised.store(1);
      throw RankLost("rank " + std::to_string(rank) + " of this engine has not come for " +
                     std::to_string(static_cast<int>(patience_)) + " s; start the engine again");
    }
  }
}

// Two places a rank are enough: whoever writes for turn t has seen all others finish t - 1, which they began when they
// had read all of t - 2.
void Exchange::gather(const char* own, char* out, int64_t rows, const std::vector<int64_t>& bounds) {
  if (static_cast<int64_t>(bounds.size()) != size_ + 1) throw std::invalid_argument("gather: a bound a rank, and one");
  const int64_t stride = bounds.back();
  int64_t widest = 1;
  for (int64_t r = 0; r < size_; ++r) widest = std::max(widest, bounds[r + 1] - bounds[r]);
  const int64_t most = room_ / widest;
  if (most < 1) throw std::invalid_argument("gather: a row is larger than what ranks may hand over at once");
  for (int64_t first = 0; first < rows; first += most) {
    const int64_t count = std::min(most, rows - first);
    const uint64_t turn = ++turn_;
    char* to = out + first * stride;
    const auto copy = [&](char* into, int64_t into_stride, const char* from, int64_t from_stride, int64_t width) {
      for (int64_t row = 0; row < count; ++row) std::memcpy(into + row * into_stride, from + row * from_stride, width);
    };
    const int64_t width = bounds[rank_ + 1] - bounds[rank_];
    if (width > 0) {
      std::memcpy(place(rank_, turn), own + first * width, count * width);
      copy(to + bounds[rank_], stride, own + first * width, width, width);
    }
    turns_[rank_].done.store(turn, std::memory_order_release);
    for (int64_t other = 1; other < size_; ++other) {
      const int64_t r = (rank_ + other) % size_, wide = bounds[r + 1] - bounds[r];
      wait(r, turn);
      if (wide > 0) copy(to + bounds[r], stride, place(r, turn), wide, wide);
    }
  }
}

}  // namespace parlay
