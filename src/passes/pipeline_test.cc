#include "passes/pipeline.h"

#include <gtest/gtest.h>

#include <map>
#include <tuple>

namespace lignum::passes {
namespace {

using Kind = TickWork::Kind;

std::vector<Pipeline> shapes() {
  std::vector<Pipeline> out;
  for (const int64_t stages : {2, 3, 4})
    for (const int64_t rounds : {1, 2, 3})
      for (const int64_t repeats : {1, 2, 4}) out.push_back({stages, stages * rounds, repeats});
  return out;
}

// When each piece of work is done: by (direction, microbatch, repeat, stage).
using When = std::map<std::tuple<Kind, int64_t, int64_t, int64_t>, int64_t>;
When read(const TickTable& table) {
  When when;
  for (size_t t = 0; t < table.size(); ++t) {
    for (size_t stage = 0; stage < table[t].size(); ++stage) {
      const TickWork& w = table[t][stage];
      if (w.kind == Kind::idle) continue;
      const bool fresh =
          when.emplace(std::tuple(w.kind, w.microbatch, w.repeat, static_cast<int64_t>(stage)), t).second;
      EXPECT_TRUE(fresh) << "microbatch " << w.microbatch << " twice at stage " << stage;
    }
  }
  return when;
}

// All work is there once, and nothing is done before what it needs.
void check(const TickTable& table, const Pipeline& p) {
  const When when = read(table);
  EXPECT_EQ(when.size(), static_cast<size_t>(2 * p.stages * p.microbatches * p.repeats));
  for (const auto& [work, tick] : when) {
    const auto& [kind, microbatch, repeat, stage] = work;
    // The part of the layers that the stage runs.
    const int64_t part = repeat * p.stages + stage, parts = p.repeats * p.stages;
    const auto before = [&](Kind k, int64_t other) {
      const auto it = when.find({k, microbatch, other / p.stages, other % p.stages});
      ASSERT_NE(it, when.end());
      EXPECT_LT(it->second, tick) << "microbatch " << microbatch << ", part " << part;
    };
    if (kind == Kind::forward && part > 0) before(Kind::forward, part - 1);
    if (kind == Kind::backward) before(Kind::forward, part);
    if (kind == Kind::backward && part + 1 < parts) before(Kind::backward, part + 1);
  }
}

TEST(TickTable, FillAndDrain) {
  for (const Pipeline& p : shapes()) {
    SCOPED_TRACE(print_table(fill_and_drain(p)));
    const TickTable table = fill_and_drain(p);
    check(table, p);
    EXPECT_EQ(table.size(), static_cast<size_t>(2 * (p.repeats * p.microbatches + p.stages - 1)));
    EXPECT_NEAR(idle_share(table), p.bubble(), 1e-15);
    EXPECT_EQ(most_held(table, 0), p.repeats * p.microbatches);
    // Gradients of a part of the layers come in the order of accumulation.
    std::map<std::pair<size_t, int64_t>, int64_t> last;
    for (const auto& tick : table)
      for (size_t stage = 0; stage < tick.size(); ++stage) {
        if (tick[stage].kind != Kind::backward) continue;
        const auto at = last.try_emplace({stage, tick[stage].repeat}, -1).first;
        EXPECT_EQ(tick[stage].microbatch, at->second + 1);
        at->second = tick[stage].microbatch;
      }
  }
}

TEST(TickTable, OneForwardOneBackward) {
  for (const int64_t stages : {1, 2, 3, 4}) {
    for (const int64_t microbatches : {1, 2, 4, 8, 9}) {
      const Pipeline p{stages, microbatches, 1};
      const TickTable table = one_forward_one_backward(p);
      SCOPED_TRACE(print_table(table));
      check(table, p);
      EXPECT_EQ(table.size(), static_cast<size_t>(2 * (microbatches + stages - 1)));
      EXPECT_NEAR(idle_share(table), p.bubble(), 1e-15);
      // What GPipe holds of all microbatches, 1F1B holds of those under way.
      for (int64_t stage = 0; stage < stages; ++stage)
        EXPECT_EQ(most_held(table, static_cast<size_t>(stage)), std::min(microbatches, stages - stage));
    }
  }
}

TEST(TickTable, Prints) {
  EXPECT_EQ(print_table(fill_and_drain({2, 2, 1})),
            "0 F1 F0 . . B0 B1\n"
            "1 . F1 F0 B0 B1 .\n");
  EXPECT_EQ(print_table(fill_and_drain({2, 2, 2})),
            "0 F1 F0 F1'1 F0'1 . . B0'1 B1'1 B0 B1\n"
            "1 . F1 F0 F1'1 F0'1 B0'1 B1'1 B0 B1 .\n");
  EXPECT_EQ(print_table(one_forward_one_backward({2, 3, 1})),
            "0 F0 F1 . B0 F2 B1 . B2\n"
            "1 . F0 B0 F1 B1 F2 B2 .\n");
}

// A loop played by hand: what a stage works on is the microbatch that its table says, at the part of the
// layers that comes next, and the last stage's results are all at the stage that holds them.
TEST(TickLoop, MovesEachMicrobatchThroughAllParts) {
  for (const Pipeline& p : shapes()) {
    for (const Kind direction : {Kind::forward, Kind::backward}) {
      const bool forward = direction == Kind::forward;
      const TickLoop loop = tick_loop(p, direction);
      const size_t stages = static_cast<size_t>(p.stages), ticks = loop.reads.size();
      ASSERT_EQ(ticks, static_cast<size_t>(p.repeats * p.microbatches + p.stages - 1));
      struct Item {
        int64_t microbatch = -1, parts = 0;  // behind it
      };
      std::vector<std::vector<Item>> feed(stages, std::vector<Item>(static_cast<size_t>(p.microbatches)));
      const size_t first = forward ? 0 : stages - 1;
      for (int64_t i = 0; i < p.microbatches; ++i) feed[first][static_cast<size_t>(i)] = {i, 0};
      std::vector<Item> mail(stages);
      const auto put = [&](size_t stage, int64_t slot) {
        if (slot >= 0) feed[stage][static_cast<size_t>(slot)] = mail[stage];
      };
      for (size_t t = 0; t < ticks; ++t) {
        const size_t row = forward ? t : ticks - 1 - t;
        std::vector<Item> next(stages);
        for (size_t stage = 0; stage < stages; ++stage) {
          put(stage, loop.arrives[row][stage]);
          const int64_t slot = loop.reads[row][stage];
          EXPECT_EQ(slot < 0, loop.microbatches[row][stage] < 0);
          if (slot < 0) continue;
          Item item = feed[stage][static_cast<size_t>(slot)];
          EXPECT_EQ(item.microbatch, loop.microbatches[row][stage]);
          const int64_t part = loop.repeats[row][stage] * p.stages + static_cast<int64_t>(stage);
          EXPECT_EQ(item.parts, forward ? part : p.repeats * p.stages - 1 - part);
          ++item.parts;
          next[(stage + (forward ? 1 : stages - 1)) % stages] = item;
        }
        mail = next;
      }
      for (size_t stage = 0; stage < stages; ++stage) {
        put(stage, loop.last[stage]);
        EXPECT_EQ(loop.holds_all[stage], stage == first ? 0 : -1);
      }
      for (int64_t i = 0; i < p.microbatches; ++i) {
        EXPECT_EQ(feed[first][static_cast<size_t>(i)].microbatch, i);
        EXPECT_EQ(feed[first][static_cast<size_t>(i)].parts, p.repeats * p.stages);
      }
    }
  }
}

// Backward's rows are forward's: what a tick keeps is read in the row where it was kept.
TEST(TickLoop, GoesBackThroughTheSameRows) {
  for (const Pipeline& p : shapes()) {
    const TickLoop there = tick_loop(p, Kind::forward), back = tick_loop(p, Kind::backward);
    EXPECT_EQ(there.microbatches, back.microbatches);
    EXPECT_EQ(there.repeats, back.repeats);
  }
}

}  // namespace
}  // namespace lignum::passes
