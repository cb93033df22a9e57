// Recordings: sequences of operations on the same memory, without their caller.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <functional>
#include <utility>
#include <vector>

#include "alert.h"

namespace parlay {

// Threads are woken for a recording that last took this long; each of its operations may take too little.
inline constexpr std::chrono::microseconds kWorthWaking{100};

class Tape {
 public:
  void push(std::function<void()> operation) { operations_.push_back(std::move(operation)); }
  void hold(nanobind::object tensor) { held_.push_back(std::move(tensor)); }
  void run() {
    const auto began = std::chrono::steady_clock::now();
    const Alert alert(last_ >= kWorthWaking);
    for (const auto& operation : operations_) operation();
    last_ = std::chrono::steady_clock::now() - began;
  }
  size_t size() const { return operations_.size(); }

 private:
  std::vector<std::function<void()>> operations_;
  std::vector<nanobind::object> held_;
  std::chrono::nanoseconds last_{0};  // that it took
};

inline thread_local Tape* recording = nullptr;

// Runs an operation, which holds its arguments by value, and records it if its thread is recording. Others may run
// Python meanwhile.
template <class F>
void submit(F operation) {
  if (recording) recording->push(operation);
  nanobind::gil_scoped_release others;
  operation();
}

}  // namespace parlay
