// An event file as another program reads it: records, sums, messages, by the field numbers of event.proto.
#include "train/event_file.h"

#include <gtest/gtest.h>

#include <bit>
#include <map>

#include "base/file.h"
#include "base/test_folder.h"
#include "base/wire.h"

namespace lignum::train {
namespace {

// One bit at a time, from the polynomial: nothing of crc32c.cc.
uint32_t plain_masked_crc(std::string_view bytes) {
  uint32_t c = ~0U;
  for (const char byte : bytes) {
    c ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) c = (c >> 1) ^ ((c & 1) != 0 ? 0x82f63b78U : 0U);
  }
  c = ~c;
  return ((c >> 15) | (c << 17)) + 0xa282ead8U;
}

uint64_t little_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes.size(); ++i) value |= uint64_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
  return value;
}

struct Event {
  double wall_time = 0;
  int64_t step = 0;
  std::string version;
  int64_t session = -1;  // SessionLog.status
  std::map<std::string, float> scalars;
};

Event decode(std::string_view message) {
  Event e;
  wire::Reader reader(message);
  for (wire::Field f; reader.next(f);) {
    if (f.number == 1) e.wall_time = f.real();
    if (f.number == 2) e.step = f.integer();
    if (f.number == 3) e.version = f.bytes;
    if (f.number == 7) {
      wire::Reader log(f.bytes);
      for (wire::Field g; log.next(g);)
        if (g.number == 1) e.session = g.integer();
      EXPECT_TRUE(log.status().ok());
    }
    if (f.number != 5) continue;
    wire::Reader summary(f.bytes);
    for (wire::Field v; summary.next(v);) {
      EXPECT_EQ(v.number, 1);
      std::string tag;
      wire::Reader value(v.bytes);
      for (wire::Field g; value.next(g);) {
        if (g.number == 1) tag = g.bytes;
        if (g.number == 2) {
          EXPECT_EQ(g.type, wire::Type::fixed32);
          EXPECT_TRUE(e.scalars.emplace(tag, g.single()).second) << tag;
        }
      }
      EXPECT_TRUE(value.status().ok());
    }
    EXPECT_TRUE(summary.status().ok());
  }
  EXPECT_TRUE(reader.status().ok()) << reader.status().message();
  return e;
}

std::vector<Event> read_events(const std::string& path) {
  const Result<std::string> text = read_text(path);
  EXPECT_TRUE(text.ok()) << text.status().message();
  std::vector<Event> events;
  std::string_view rest = *text;
  while (!rest.empty()) {
    EXPECT_GE(rest.size(), 16U);
    const uint64_t length = little_endian(rest.substr(0, 8));
    EXPECT_EQ(little_endian(rest.substr(8, 4)), plain_masked_crc(rest.substr(0, 8)));
    EXPECT_LE(length, rest.size() - 16);
    if (rest.size() < 16 || length > rest.size() - 16) break;
    const std::string_view message = rest.substr(12, length);
    EXPECT_EQ(little_endian(rest.substr(12 + length, 4)), plain_masked_crc(message));
    events.push_back(decode(message));
    rest.remove_prefix(16 + length);
  }
  return events;
}

TEST(EventFile, HoldsEveryStepUnderMaxTextsTags) {
  const testing::TestFolder folder;
  EventFile::Options options;
  options.first_step = 3;
  options.ranks = 2;
  options.clip = 1.0;
  {
    auto file = EventFile::create(folder / "tensorboard", options);
    ASSERT_TRUE(file.ok()) << file.status().message();
    StepMetrics m;
    m.step = 3;
    m.loss = 5.25;
    m.grad_norm = 2.5;
    m.learning_rate = 1e-3;
    m.tokens = 4096;
    m.seconds = 0.5;
    m.tokens_per_s = 8192;
    m.tflops = 0.125;
    m.memory_bytes = 1 << 20;
    ASSERT_TRUE(file->add(m).ok());
    m.step = 4;
    m.grad_norm = 0.5;
    m.mfu = 0.25;
    m.hfu = 0.3125;
    ASSERT_TRUE(file->add(m).ok());
    EvalMetrics e;
    e.step = 5;
    e.loss = 4.5;
    e.tokens = 100;
    ASSERT_TRUE(file->add(e).ok());
  }
  const auto names = list_directory(folder / "tensorboard");
  ASSERT_TRUE(names.ok());
  ASSERT_EQ(names->size(), 1U);
  EXPECT_EQ(names->front().find("events.out.tfevents."), 0U);
  const std::vector<Event> events = read_events(folder / ("tensorboard/" + names->front()));
  ASSERT_EQ(events.size(), 5U);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  EXPECT_GT(events[0].wall_time, 1.5e9);  // seconds since 1970
  EXPECT_EQ(events[1].session, 1);        // a start: readers drop step 3 and later of earlier files
  EXPECT_EQ(events[1].step, 3);
  EXPECT_EQ(events[2].step, 3);
  const std::map<std::string, float> want = {{"learning/loss", 5.25F},
                                             {"learning/grad_norm", 1.0F},  // clipped
                                             {"learning/raw_grad_norm", 2.5F},
                                             {"learning/current_learning_rate", 1e-3F},
                                             {"learning/total_weights", 4096.0F},
                                             {"perf/step_time_seconds", 0.5F},
                                             {"perf/per_device_tflops", 0.0625F},
                                             {"perf/per_device_tflops_per_sec", 0.125F},
                                             {"perf/per_device_tokens", 2048.0F},
                                             {"perf/per_device_tokens_per_sec", 4096.0F},
                                             {"memory/arena_bytes", 1048576.0F},
                                             {"memory/process_bytes", 0.0F}};
  EXPECT_EQ(events[2].scalars, want);
  EXPECT_EQ(events[3].step, 4);
  EXPECT_EQ(events[3].scalars.at("learning/grad_norm"), 0.5F);
  EXPECT_EQ(events[3].scalars.at("perf/mfu"), 0.25F);
  EXPECT_EQ(events[3].scalars.at("perf/hfu"), 0.3125F);
  EXPECT_EQ(events[4].step, 4);  // after five updates
  EXPECT_EQ(events[4].scalars,
            (std::map<std::string, float>{
                {"eval/avg_loss", 4.5F}, {"eval/total_loss", 450.0F}, {"eval/total_weights", 100.0F}}));
}

TEST(EventFile, ASecondFileOfOneSecondHasANameOfItsOwn) {
  const testing::TestFolder folder;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(EventFile::create(folder.path(), {}).ok());
  EXPECT_EQ(list_directory(folder.path())->size(), 3U);
}

TEST(EventFile, AFolderThatCannotBeMadeIsAnErrorThatNamesIt) {
  const testing::TestFolder folder;
  ASSERT_TRUE(write_file_atomic(folder / "file", "text").ok());
  const auto file = EventFile::create(folder / "file/tensorboard", {});
  ASSERT_FALSE(file.ok());
  EXPECT_NE(file.status().message().find(folder / "file"), std::string::npos) << file.status().message();
}

}  // namespace
}  // namespace lignum::train
