// For tests: counts heap allocations. The test binary replaces operator new for it
// (allocation_count_test.cc); under a sanitizer, which brings an operator new of its own, the sanitizer's
// malloc hook counts.
#pragma once

#include <cstdint>

namespace lignum::comm {

int64_t allocations_of_this_thread();
int64_t allocations_of_all_threads();
bool counts_libraries();  // malloc of C libraries too: under a sanitizer

}  // namespace lignum::comm
