// What the kernels' tests share: buffers at odd addresses, dtype access.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "base/test_threads.h"
#include "kernels/isa.h"

namespace lignum::kernels::testing {

// count elements of a dtype, `skew` elements past an address aligned to 64; exact size, so that
// AddressSanitizer sees an access beyond the end.
class Buffer {
 public:
  Buffer(DType dtype, int64_t count, int skew = 0)
      : dtype_(dtype), count_(count), bytes_(static_cast<size_t>((count + skew) * dtype_size(dtype))) {
    void* p = nullptr;
    if (posix_memalign(&p, 64, bytes_ + 1) != 0) std::abort();
    memory_.reset(static_cast<char*>(p));
    std::memset(p, 0x5a, bytes_);
    data_ = memory_.get() + skew * dtype_size(dtype);
  }
  DType dtype() const { return dtype_; }
  int64_t count() const { return count_; }
  void* data() { return data_; }
  const void* data() const { return data_; }
  float* floats() { return reinterpret_cast<float*>(data_); }
  double at(int64_t i) const { return load_as_double(dtype_, data_, i); }
  void set(int64_t i, double value) { store_from_double(dtype_, data_, i, value); }
  void fill_normal(uint64_t seed, double scale = 1.0) {
    const Random random(seed, "test");
    for (int64_t i = 0; i < count_; ++i) set(i, scale * random.normal(static_cast<uint64_t>(i)));
  }
  bool same_bits(const Buffer& other) const {
    return count_ == other.count_ &&
           std::memcmp(data_, other.data_, static_cast<size_t>(count_ * dtype_size(dtype_))) == 0;
  }

 private:
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  DType dtype_;
  int64_t count_;
  size_t bytes_;
  std::unique_ptr<char, Free> memory_;
  char* data_;
};

class Workspace {
 public:
  // Filled with NaN: a kernel that reads what it did not write shows it.
  explicit Workspace(int64_t bytes) : floats_(DType::f32, bytes / 4) {
    EXPECT_EQ(bytes % 64, 0);
    std::memset(floats_.data(), 0xff, static_cast<size_t>(bytes));
  }
  void* data() { return floats_.data(); }

 private:
  Buffer floats_;
};

// The ways of bf16 dots by pairs that this machine has.
inline std::vector<Bf16Dot> pair_ways() {
  std::vector<Bf16Dot> ways = available_bf16_dots(best_isa());
  std::erase(ways, Bf16Dot::fma);
  return ways;
}

// Half a unit in the last place of the dtype, relative, at most.
inline double half_ulp(DType dtype) { return dtype == DType::bf16 ? 0x1p-8 : 0x1p-24; }

// Tracks the element whose error is the largest part of its bound.
struct Worst {
  double ratio = 0, value = 0, expected = 0, bound = 0;
  int64_t index = -1;
  void take(int64_t i, double got, double want, double allowed) {
    const double error = got > want ? got - want : want - got;
    const double r = error == 0 ? 0 : (error <= allowed * 1e30 ? error / allowed : 1e30);
    if (r > ratio || !(got == got)) {
      ratio = got == got ? r : 1e30;
      value = got, expected = want, bound = allowed, index = i;
    }
  }
  std::string text() const {
    return "worst element " + std::to_string(index) + ": " + std::to_string(value) + ", expected " +
           std::to_string(expected) + ", error / bound " + std::to_string(ratio);
  }
};

}  // namespace lignum::kernels::testing
