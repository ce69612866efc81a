#include "train/rows.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "base/rng.h"
#include "base/status.h"

namespace lignum::train {

void one_document(int64_t seq, const RowBuffers& row) {
  std::iota(row.positions, row.positions + seq, 0);
  std::fill_n(row.segments, seq, 1);
}

void pad(int64_t first, int64_t seq, const RowBuffers& row) {
  std::fill(row.ids + first, row.ids + seq, 0);
  std::fill(row.labels + first, row.labels + seq, kIgnoredLabel);
  std::fill(row.positions + first, row.positions + seq, 0);
  std::fill(row.segments + first, row.segments + seq, 0);
}

Permutation::Permutation(uint64_t seed, uint64_t epoch, int64_t size) : size_(size) {
  LIGNUM_CHECK(size >= 1, "a permutation of {}", size);
  const auto half = [](uint64_t x, int i) { return static_cast<uint32_t>(x >> (32 * i)); };
  const auto block = philox4x32({half(epoch, 0), half(epoch, 1), 0, 0}, {half(seed, 0), half(seed, 1)});
  key_ = {block[0], block[1]};
  half_bits_ = std::max(1, (static_cast<int>(std::bit_width(static_cast<uint64_t>(size - 1))) + 1) / 2);
}

uint64_t Permutation::network(uint64_t x) const {
  constexpr uint32_t kRounds = 6;
  const auto mask = static_cast<uint32_t>((uint64_t{1} << half_bits_) - 1);
  auto left = static_cast<uint32_t>(x >> half_bits_), right = static_cast<uint32_t>(x) & mask;
  for (uint32_t round = 0; round < kRounds; ++round) {
    left = std::exchange(right, left ^ (philox4x32({right, round, 1, 0}, key_)[0] & mask));
  }
  return uint64_t{left} << half_bits_ | right;
}

int64_t Permutation::at(int64_t i) const {
  LIGNUM_CHECK(i >= 0 && i < size_, "place {} of {}", i, size_);
  auto x = static_cast<uint64_t>(i);
  // The domain is less than four times the size: four rounds on average at most.
  do {
    x = network(x);
  } while (x >= static_cast<uint64_t>(size_));
  return static_cast<int64_t>(x);
}

void SampleHash::add(std::span<const std::byte> file) {
  constexpr size_t kBlock = 4096, kBlocks = 64;
  const size_t stride = std::max(kBlock, file.size() / kBlocks);
  for (size_t begin = 0; begin < file.size(); begin += stride)
    for (const std::byte b : file.subspan(begin, std::min(kBlock, file.size() - begin))) mix(b);
  for (int shift = 0; shift < 64; shift += 8) mix(static_cast<std::byte>(file.size() >> shift));
  bytes_ += file.size();
}

void SampleHash::add(std::string_view text) {
  for (const char c : text) mix(static_cast<std::byte>(c));
}

}  // namespace lignum::train
