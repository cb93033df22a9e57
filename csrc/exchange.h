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

// A count that other processes see.
struct alignas(64) Turn {
  std::atomic<uint64_t> done;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free, "ranks of other processes see these");

// Memory that several processes map, with a flag at its beginning that says whether one of them has given up.
class Shared {
 public:
  // Maps a file of so many bytes. Whoever waits longer than `patience` seconds gives up, and all others with it.
  Shared(int file, int64_t bytes, double patience);
  ~Shared();
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  // Bytes of the flag, after which the memory is the owner's.
  static constexpr int64_t kFlag = 64;
  char* memory() const { return static_cast<char*>(memory_) + kFlag; }

  // Waits until a count has come so far; `who` and `number` name the one that counts.
  void wait(const Turn& turn, uint64_t count, const char* who, int64_t number) const;

  void abandon() noexcept { flag()->store(1); }

 private:
  std::atomic<uint32_t>* flag() const { return static_cast<std::atomic<uint32_t>*>(memory_); }

  const int64_t bytes_;
  const double patience_;
  void* memory_ = nullptr;
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

  int64_t rank() const { return rank_; }

  // Writes rows `[rows, stride]` of bytes: of each rank its own columns, which rank r has from bounds[r] to
  // bounds[r + 1]. `own` are this rank's, `[rows, bounds[rank + 1] - bounds[rank]]`.
  void gather(const char* own, char* out, int64_t rows, const std::vector<int64_t>& bounds);

  // Has every rank that waits, or will, give up.
  void abandon() noexcept { shared_.abandon(); }

 private:
  char* place(int64_t rank, uint64_t turn) const { return data_ + (2 * rank + static_cast<int64_t>(turn & 1)) * room_; }

  const int64_t rank_, size_, room_;
  Shared shared_;
  Turn* turns_ = nullptr;
  char* data_ = nullptr;
  uint64_t turn_ = 0;
};

// Messages from each rank of a ring to the next, in order. A sender does not wait as long as there are places.
class Ring {
 public:
  // Bytes of memory that a ring shares. `places` messages of `room` bytes may be under way from each rank.
  static int64_t footprint(int64_t size, int64_t places, int64_t room);

  // See Exchange.
  Ring(int file, int64_t rank, int64_t size, int64_t places, int64_t room, double patience);

  // Sends to the next rank.
  void send(const char* message, int64_t bytes);

  // Receives from the rank before.
  void receive(char* message, int64_t bytes);

  // See Exchange.
  void abandon() noexcept { shared_.abandon(); }

 private:
  struct Way {
    Turn* sent;
    Turn* received;
    char* data;
  };
  Way from(int64_t rank) const;

  const int64_t rank_, before_, size_, places_, room_;
  Shared shared_;
  uint64_t sent_ = 0, received_ = 0;
};

}  // namespace parlay
