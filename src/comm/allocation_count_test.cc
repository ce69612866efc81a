#include "comm/allocation_count.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#ifdef __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define LIGNUM_MALLOC_HOOK
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LIGNUM_MALLOC_HOOK
#endif

#ifdef LIGNUM_MALLOC_HOOK
#include <sanitizer/allocator_interface.h>
#endif

namespace lignum::comm {
namespace {

thread_local int64_t own_count = 0;
std::atomic<int64_t> total_count{0};

void count() {
  ++own_count;
  total_count.fetch_add(1, std::memory_order_relaxed);
}

#ifdef LIGNUM_MALLOC_HOOK
const int installed = __sanitizer_install_malloc_and_free_hooks([](const volatile void*, size_t) { count(); },
                                                                [](const volatile void*) {});
#else
void* counted(std::size_t size) {
  count();
  void* p = std::malloc(size == 0 ? 1 : size);
  if (p == nullptr) std::abort();
  return p;
}
#endif

TEST(AllocationCount, Counts) {
#ifdef LIGNUM_MALLOC_HOOK
  ASSERT_NE(installed, 0);
#endif
  const int64_t before = allocations_of_this_thread();
  void* const p = ::operator new(100);  // the call itself: a new-expression may be optimised away
  const int64_t after = allocations_of_this_thread();
  ::operator delete(p);
  EXPECT_EQ(after, before + 1);
}

}  // namespace

int64_t allocations_of_this_thread() { return own_count; }
bool counts_libraries() {
#ifdef LIGNUM_MALLOC_HOOK
  return true;
#else
  return false;
#endif
}
int64_t allocations_of_all_threads() { return total_count.load(); }

}  // namespace lignum::comm

#ifndef LIGNUM_MALLOC_HOOK
void* operator new(std::size_t size) { return lignum::comm::counted(size); }
void* operator new[](std::size_t size) { return lignum::comm::counted(size); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
#endif
