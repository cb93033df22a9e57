// Threads that stay awake for a while.
#pragma once

namespace parlay {

// Rouses the pool's sleepers, if that is `worth` it, and keeps all workers from sleeping while it lives. A pass is many
// jobs, each of them too small to wake a thread for.
class Alert {
 public:
  explicit Alert(bool worth);
  ~Alert();
  Alert(const Alert&) = delete;
  Alert& operator=(const Alert&) = delete;

 private:
  void* const pool_;
};

}  // namespace parlay
