// For tests: counts what goes through operator new, which the test binary replaces
// (allocation_count_test.cc).
#pragma once

#include <cstdint>

namespace lignum::comm {

int64_t allocations_of_this_thread();
int64_t allocations_of_all_threads();

}  // namespace lignum::comm
