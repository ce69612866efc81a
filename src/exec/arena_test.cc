#include "exec/arena.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <utility>
#include <vector>

namespace lignum::exec {
namespace {

int64_t page() { return sysconf(_SC_PAGESIZE); }

Arena arena_of(int64_t bytes) {
  auto arena = Arena::create(bytes);
  EXPECT_TRUE(arena.ok()) << arena.status().message();
  return std::move(arena).value();
}

int64_t resident(const Arena& arena) {
  const auto bytes = arena.resident_bytes();
  EXPECT_TRUE(bytes.ok()) << bytes.status().message();
  return bytes.ok() ? bytes.value() : -1;
}

TEST(Arena, ResidentIsWhatWasTouched) {
  const Arena arena = arena_of((int64_t{64} << 20) + 123);
  EXPECT_EQ(arena.bytes(), (int64_t{64} << 20) + 123);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(arena.data()) % Arena::kAlignment, 0u);
  EXPECT_EQ(resident(arena), 0);
  for (const int64_t p : {0, 1, 77, 5000, 16384}) std::memset(arena.data() + p * page(), 1, 1);
  EXPECT_EQ(resident(arena), 5 * page());
  std::memset(arena.data() + 77 * page(), 2, 100 * page());
  EXPECT_EQ(resident(arena), (5 + 99) * page());
  // What is no longer used stays: the count is the high-water mark.
  std::memset(arena.data(), 0, 10 * page());
  EXPECT_EQ(resident(arena), (5 + 99 + 8) * page());
}

TEST(Arena, TwoArenasAreCountedApart) {
  const Arena a = arena_of(int64_t{8} << 20);
  const Arena b = arena_of(int64_t{8} << 20);
  std::memset(a.data(), 1, 3 * page());
  std::memset(b.data() + b.bytes() - 5 * page(), 1, 5 * page());
  EXPECT_EQ(resident(a), 3 * page());
  EXPECT_EQ(resident(b), 5 * page());
}

TEST(Arena, ReservingIsNotUsing) {
  const Arena arena = arena_of(int64_t{1} << 40);
  arena.data()[arena.bytes() - 1] = std::byte{7};
  EXPECT_EQ(arena.data()[arena.bytes() - 2], std::byte{0});
  EXPECT_EQ(resident(arena), page());
}

TEST(Arena, EmptyAndMoved) {
  Arena empty = arena_of(0);
  EXPECT_EQ(empty.data(), nullptr);
  EXPECT_EQ(resident(empty), 0);
  Arena a = arena_of(4096);
  std::byte* const data = a.data();
  Arena b = std::move(a);
  EXPECT_EQ(b.data(), data);
  empty = std::move(b);
  EXPECT_EQ(empty.data(), data);
  EXPECT_EQ(empty.bytes(), 4096);
  empty.data()[0] = std::byte{1};
  EXPECT_EQ(resident(empty), page());
}

TEST(Arena, TheBudgetIsALimit) {
  EXPECT_TRUE(Arena::create(1000, 1000).ok());
  const Status status = Arena::create(1001, 1000).status();
  EXPECT_EQ(status.code(), Code::user_error);
  for (const char* part : {"device_memory=1000", "device arena needs 1001 bytes", "1 more"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
}

TEST(Arena, AddressSpaceEnds) {
  const Status status = Arena::create(int64_t{1} << 60).status();
  EXPECT_EQ(status.code(), Code::user_error);
  EXPECT_NE(status.message().find("address space"), std::string::npos) << status.message();
}

TEST(ArenaDeathTest, BordersFault) {
  const Arena arena = arena_of(Arena::kAlignment);
  EXPECT_DEATH(*static_cast<volatile std::byte*>(arena.data() - 1) = std::byte{1}, "");
  EXPECT_DEATH(*static_cast<volatile std::byte*>(arena.data() + Arena::kAlignment) = std::byte{1}, "");
}

constexpr const char* kSmaps =
    "7f0000000000-7f0000200000 ---p 00000000 00:00 0 \n"
    "Size:               2048 kB\nRss:                   0 kB\nSwap:                  0 kB\n"
    "VmFlags: mr mw me nr sd \n"
    "7f0000200000-7f0000300000 rw-p 00000000 00:00 0 \n"
    "Size:               1024 kB\nRss:                  12 kB\nPss:                   9 kB\n"
    "Swap:                  4 kB\nSwapPss:               1 kB\nVmFlags: rd wr mr mw me nr sd \n"
    "7f0000300000-7f0000400000 rw-p 00000000 00:00 0                          [anon: name - Rss: 99 kB]\n"
    "Size:               1024 kB\nRss:                 100 kB\nSwap:                  0 kB\n"
    "7fff00000000-7fff00021000 rw-p 00000000 00:00 0                          [stack]\n"
    "Rss:                  16 kB";

TEST(Smaps, SumsTheMappingsOfTheRegion) {
  EXPECT_EQ(smaps_resident(kSmaps, 0x7f0000200000, 0x7f0000400000).value(), (12 + 4 + 100) * 1024);
  EXPECT_EQ(smaps_resident(kSmaps, 0x7f0000000000, 0x7f0000200000).value(), 0);
  EXPECT_EQ(smaps_resident(kSmaps, 0x7fff00000000, 0x7fff00021000).value(), 16 * 1024);
}

TEST(Smaps, RefusesWhatItCannotCount) {
  const auto message = [](const std::string& text, uintptr_t begin, uintptr_t end) {
    return smaps_resident(text, begin, end).status().message();
  };
  EXPECT_NE(message(kSmaps, 0x7f0000200000, 0x7f0000280000).find("reaches out"), std::string::npos);
  EXPECT_NE(message(kSmaps, 0x7f0000200000, 0x7f0000500000).find("are listed"), std::string::npos);
  EXPECT_NE(message("", 0x1000, 0x2000).find("0 of the 4096 bytes"), std::string::npos);
  EXPECT_NE(message("1000-2000 rw-p 0 0 0\nSize: 4 kB\n", 0x1000, 0x2000).find("no Rss"), std::string::npos);
  EXPECT_NE(message("1000-2000 rw-p 0 0 0\nRss: x kB\n", 0x1000, 0x2000).find("cannot read"),
            std::string::npos);
}

}  // namespace
}  // namespace lignum::exec
