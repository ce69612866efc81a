#include "comm/allocation_count.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>

namespace lignum::comm {
namespace {
thread_local int64_t own_count = 0;
std::atomic<int64_t> total_count{0};
}  // namespace

int64_t allocations_of_this_thread() { return own_count; }
int64_t allocations_of_all_threads() { return total_count.load(); }

namespace {
void* counted(std::size_t size) {
  ++own_count;
  total_count.fetch_add(1, std::memory_order_relaxed);
  void* p = std::malloc(size == 0 ? 1 : size);
  if (p == nullptr) std::abort();
  return p;
}

TEST(AllocationCount, Counts) {
  const int64_t before = allocations_of_this_thread();
  const auto p = std::make_unique<int[]>(100);
  EXPECT_EQ(allocations_of_this_thread(), before + 1);
  EXPECT_EQ(p[0], 0);
}
}  // namespace
}  // namespace lignum::comm

void* operator new(std::size_t size) { return lignum::comm::counted(size); }
void* operator new[](std::size_t size) { return lignum::comm::counted(size); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
