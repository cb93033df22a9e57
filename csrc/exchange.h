// What the ranks of one machine exchange: columns of their results, through memory that they share.
#pragma once

#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace parlay {

// Another rank has ended, or has not come for too long: results cannot be had.
struct RankLost : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A place in a group of ranks that share memory. Every rank calls the same operations in the same order, each in one
// thread at a time.
class Exchange {
 public:
  // Bytes of memory that a group of `size` ranks shares. Each rank may hand over `room` bytes at once.
  static int64_t footprint(int64_t size, int64_t room);

  // Maps a file of `footprint` bytes, zeros before anybody came, which may be closed afterwards. A rank that waits
  // longer than `patience` seconds gives up.
  Exchange(int file, int64_t rank, int64_t size, int64_t room, double patience);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  int64_t rank() const { return rank_; }

  // Writes rows `[rows, stride]` of bytes: of each rank its own columns, which rank r has from bounds[r] to
  // bounds[r + 1]. `own` are this rank's, `[rows, bounds[rank + 1] - bounds[rank]]`.
  void gather(const char* own, char* out, int64_t rows, const std::vector<int64_t>& bounds);

  // Has every rank that waits, or will, give up.
  void abandon() noexcept;

 private:
  struct alignas(64) Turn {
    std::atomic<uint64_t> done;
  };
  struct alignas(64) Flag {
    std::atomic<uint32_t> raised;
  };
  static_assert(std::atomic<uint64_t>::is_always_lock_free, "ranks of other processes see these");

  char* place(int64_t rank, uint64_t turn) const { return data_ + (2 * rank + static_cast<int64_t>(turn & 1)) * room_; }
  void wait(int64_t rank, uint64_t turn) const;

  const int64_t rank_, size_, room_;
  const double patience_;
  int64_t bytes_ = 0;
  void* memory_ = nullptr;
  Flag* flag_ = nullptr;
  Turn* turns_ = nullptr;
  char* data_ = nullptr;
  uint64_t turn_ = 0;
};

}  // namespace parlay
