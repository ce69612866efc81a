#include "exec/read_ahead.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

namespace lignum::exec {
namespace {

// Slots are plain memory: a worker that wrote one while it is read, or before, would be a race.
TEST(ReadAhead, ItemsComeInOrderAndStayWhileTheyAreRead) {
  constexpr size_t kWords = 64;
  for (const int workers : {0, 1, 2, 5})
    for (const int64_t ready : {0, 1, 3}) {
      std::vector<std::vector<int64_t>> slots(static_cast<size_t>(ReadAhead::slots(workers, ready)),
                                              std::vector<int64_t>(kWords));
      ReadAhead items(workers, ready, [&](int64_t number, int64_t slot) {
        for (int64_t& word : slots[static_cast<size_t>(slot)]) word = number;
      });
      for (int64_t number = 0; number < 300; ++number) {
        const std::vector<int64_t>& slot = slots[static_cast<size_t>(items.next())];
        ASSERT_EQ(std::count(slot.begin(), slot.end(), number), kWords) << workers << " " << ready;
        if (number % 50 == 0) std::this_thread::yield();
        ASSERT_EQ(std::count(slot.begin(), slot.end(), number), kWords);
      }
    }
}

// Each of two workers waits for the other's item: they end only if both are made at once.
TEST(ReadAhead, WorkersMakeItemsAtTheSameTime) {
  std::atomic<int> here{0};
  ReadAhead items(2, 0, [&](int64_t number, int64_t) {
    if (number >= 2) return;
    here.fetch_add(1);
    here.notify_all();
    for (int n = here.load(); n < 2; n = here.load()) here.wait(n);
  });
  items.next();
  EXPECT_EQ(here, 2);
}

TEST(ReadAhead, EndsWhileItemsAreMade) {
  std::atomic<int64_t> made{0};
  for (int64_t read = 0; read < 20; ++read) {
    ReadAhead items(3, 4, [&](int64_t, int64_t) { ++made; });
    for (int64_t i = 0; i < read % 4; ++i) items.next();
  }
  EXPECT_LE(made, 20 * 8);
}

}  // namespace
}  // namespace lignum::exec
