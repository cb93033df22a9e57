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

// Returns the size of a group in which there is such a rank.
int64_t checked(int64_t rank, int64_t size, int64_t room) {
  if (size < 1 || rank < 0 || rank >= size || room < 1) throw std::invalid_argument("no such place among ranks");
  return size;
}

}  // namespace

Shared::Shared(int file, int64_t bytes, double patience) : bytes_(bytes), patience_(patience) {
  memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory_ == MAP_FAILED) throw std::runtime_error("the memory that ranks share cannot be mapped");
}

Shared::~Shared() { munmap(memory_, bytes_); }

void Shared::wait(const Turn& turn, uint64_t count, const char* who, int64_t number) const {
  const auto arrived = [&] { return turn.done.load(std::memory_order_acquire) >= count; };
  for (int spins = 0; spins < kSpins; ++spins) {
    if (arrived()) return;
    relax();
  }
  const auto began = std::chrono::steady_clock::now();
  for (int64_t yields = 0; !arrived(); ++yields) {
    if (flag()->load(std::memory_order_relaxed)) throw RankLost("a rank of this engine has ended; start the engine again");
    if (yields < kYields)
      sched_yield();
    else
      nanosleep(&kNap, nullptr);
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() > patience_) {
      flag()->store(1);
      throw RankLost(std::string(who) + " " + std::to_string(number) + " of this engine has not come for " +
                     std::to_string(static_cast<int>(patience_)) + " s; start the engine again");
    }
  }
}

int64_t Exchange::footprint(int64_t size, int64_t room) {
  return Shared::kFlag + size * static_cast<int64_t>(sizeof(Turn)) + 2 * size * rounded(room);
}

Exchange::Exchange(int file, int64_t rank, int64_t size, int64_t room, double patience)
    : rank_(rank), size_(size), room_(rounded(room)), shared_(file, footprint(checked(rank, size, room), room), patience) {
  turns_ = reinterpret_cast<Turn*>(shared_.memory());
  data_ = reinterpret_cast<char*>(turns_ + size);
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
      shared_.wait(turns_[r], turn, "rank", r);
      if (wide > 0) copy(to + bounds[r], stride, place(r, turn), wide, wide);
    }
  }
}

int64_t Ring::footprint(int64_t size, int64_t places, int64_t room) {
  return Shared::kFlag + size * (2 * static_cast<int64_t>(sizeof(Turn)) + places * rounded(room));
}

Ring::Ring(int file, int64_t rank, int64_t size, int64_t places, int64_t room, double patience)
    : rank_(rank),
      before_((rank + size - 1) % std::max<int64_t>(size, 1)),
      size_(size),
      places_(std::max<int64_t>(places, 1)),
      room_(rounded(room)),
      shared_(file, footprint(checked(rank, size, room), places_, room), patience) {}

Ring::Way Ring::from(int64_t rank) const {
  Turn* turns = reinterpret_cast<Turn*>(shared_.memory());
  return {turns + 2 * rank, turns + 2 * rank + 1, reinterpret_cast<char*>(turns + 2 * size_) + rank * places_ * room_};
}

void Ring::send(const char* message, int64_t bytes) {
  if (bytes > room_) throw std::invalid_argument("send: a message is larger than what ranks may hand over at once");
  const Way way = from(rank_);
  const uint64_t turn = sent_;
  if (turn >= static_cast<uint64_t>(places_)) shared_.wait(*way.received, turn - places_ + 1, "stage", (rank_ + 1) % size_);
  std::memcpy(way.data + turn % places_ * room_, message, bytes);
  way.sent->done.store(++sent_, std::memory_order_release);
}

void Ring::receive(char* message, int64_t bytes) {
  if (bytes > room_) throw std::invalid_argument("receive: a message is larger than what ranks may hand over at once");
  const Way way = from(before_);
  const uint64_t turn = received_;
  shared_.wait(*way.sent, turn + 1, "stage", before_);
  std::memcpy(message, way.data + turn % places_ * room_, bytes);
  way.received->done.store(++received_, std::memory_order_release);
}

}  // namespace parlay
