// Recordings: sequences of operations on the same memory, without their caller.
#pragma once

#include <nanobind/nanobind.h>

#include <functional>
#include <utility>
#include <vector>

namespace parlay {

class Tape {
 public:
  void push(std::function<void()> operation) { operations_.push_back(std::move(operation)); }
  void hold(nanobind::object tensor) { held_.push_back(std::move(tensor)); }
  void run() const {
    for (const auto& operation : operations_) operation();
  }
  size_t size() const { return operations_.size(); }

 private:
  std::vector<std::function<void()>> operations_;
  std::vector<nanobind::object> held_;
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
