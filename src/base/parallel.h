// What a kernel needs of a thread pool. The pool itself lives in exec; kernels and ops see only this.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace lignum {

// A reference to a callable, alive only for the call: no allocation, unlike std::function.
template <class Signature>
class FunctionRef;
template <class R, class... A>
class FunctionRef<R(A...)> {
 public:
  template <class F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef>)
  FunctionRef(F&& f)  // NOLINT: conversion is the point
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* o, A... a) -> R { return (*static_cast<std::remove_reference_t<F>*>(o))(a...); }) {}
  R operator()(A... a) const { return call_(object_, a...); }

 private:
  void* object_;
  R (*call_)(void*, A...);
};

class Parallel {
 public:
  virtual ~Parallel() = default;
  virtual int threads() const = 0;
  // Calls fn(task, thread) for task = 0..tasks-1, each once, thread in [0, threads()); returns when all are
  // done. A thread handles one task at a time, so thread indexes scratch memory. Never nested. Allocates
  // nothing. Which thread takes which task is not fixed: results must not depend on it.
  virtual void run(int64_t tasks, FunctionRef<void(int64_t task, int thread)> fn) = 0;
};

// Runs every task on the caller: for tests and one-thread ranks.
class Serial final : public Parallel {
 public:
  int threads() const override { return 1; }
  void run(int64_t tasks, FunctionRef<void(int64_t, int)> fn) override {
    for (int64_t t = 0; t < tasks; ++t) fn(t, 0);
  }
};

}  // namespace lignum
