// What the tests of the row kernels share: buffers with guards, and the bit
// contract.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "base/test_threads.h"
#include "kernels/rows.h"

// Inline: kernel_testing.h has a Buffer of its own, and both are in one binary.
namespace lignum::kernels::testing::inline rows {

// n elements that start `offset` elements after a 64-byte boundary; a write outside them fails the test.
class Buffer {
 public:
  Buffer(DType type, int64_t n, int64_t offset = 0)
      : type_(type), n_(n), start_(kGuard + offset * dtype_size(type)), bytes_(bytes() + 2 * kGuard + 64) {
    const auto address = reinterpret_cast<uintptr_t>(bytes_.data());
    start_ += static_cast<int64_t>((64 - address % 64) % 64);
    std::memset(bytes_.data(), kPattern, bytes_.size());
    std::memset(data(), 0, static_cast<size_t>(bytes()));
  }
  ~Buffer() {
    for (int64_t i = 0; i < static_cast<int64_t>(bytes_.size()); ++i) {
      if (i >= start_ && i < start_ + bytes()) continue;
      if (bytes_[i] != kPattern) {
        ADD_FAILURE() << "byte " << i - start_ << " of a buffer of " << bytes() << " was written";
        return;
      }
    }
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  DType type() const { return type_; }
  int64_t size() const { return n_; }
  int64_t bytes() const { return n_ * dtype_size(type_); }
  void* data() { return bytes_.data() + start_; }
  const void* data() const { return bytes_.data() + start_; }
  template <class T>
  T* as() {
    return static_cast<T*>(data());
  }
  In in() const { return {type_, data()}; }
  Out out() { return {type_, data()}; }
  double get(int64_t i) const { return load_as_double(type_, data(), i); }
  void set(int64_t i, double x) { store_from_double(type_, data(), i, x); }

  Buffer& normal(std::string_view stream, double scale = 1.0) {
    const Random random(7, stream);
    for (int64_t i = 0; i < n_; ++i) set(i, scale * random.normal(static_cast<uint64_t>(i)));
    return *this;
  }
  Buffer& below(std::string_view stream, int64_t bound) {
    const Random random(7, stream);
    for (int64_t i = 0; i < n_; ++i) {
      set(i, static_cast<double>(random.below(static_cast<uint64_t>(i), static_cast<uint64_t>(bound))));
    }
    return *this;
  }
  void append_to(std::string& bits) const {
    bits.append(static_cast<const char*>(data()), static_cast<size_t>(bytes()));
  }

 private:
  static constexpr int64_t kGuard = 128;
  static constexpr uint8_t kPattern = 0xa5;
  DType type_;
  int64_t n_, start_;
  std::vector<uint8_t> bytes_;
};

// fn(kernels, parallel, offset) -> the bits of all outputs, with buffers made at `offset`. They must be the
// same for each ISA of this machine, one thread and three, aligned and misaligned.
template <class F>
void expect_same_bits(F fn) {
  Serial serial;
  TestThreads threads(3);
  const std::string golden = fn(row_kernels({Isa::scalar}), serial, 0);
  for (Isa isa : available_isas()) {
    for (Parallel* parallel : {static_cast<Parallel*>(&serial), static_cast<Parallel*>(&threads)}) {
      for (int64_t offset : {0, 1, 7}) {
        EXPECT_TRUE(golden == fn(row_kernels({isa}), *parallel, offset))
            << isa_name(isa) << ", " << parallel->threads() << " threads, offset " << offset;
      }
    }
  }
}

// Half an ulp of a result of the type, relative.
inline double half_ulp(DType type) { return type == DType::bf16 ? 0x1p-8 : 0x1p-24; }

struct Shape {
  int64_t n, d;
};
inline constexpr Shape kShapes[] = {{1, 1}, {1, 37}, {3, 16}, {211, 1}, {37, 211}, {130, 64}, {2, 1031}};
inline constexpr DType kEdges[] = {DType::f32, DType::bf16};

}  // namespace lignum::kernels::testing::inline rows
