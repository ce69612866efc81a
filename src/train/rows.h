// Rows of tokens by number, the order in which a stream takes them, and what tells one data set from another.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace lignum::train {

inline constexpr int32_t kIgnoredLabel = -100;

// Where one row goes: `seq` values each.
struct RowBuffers {
  int32_t* ids;
  int32_t* labels;     // the target of ids[t] at t; kIgnoredLabel: not supervised
  int32_t* positions;  // from 0 in each document
  int32_t* segments;   // the number of each token's document in the row, from 1; 0: padding
};
// The row is one document.
void one_document(int64_t seq, const RowBuffers& row);
// The row is padding from `first` on.
void pad(int64_t first, int64_t seq, const RowBuffers& row);

// Not bound to a batch shape; safe to share between threads.
class Rows {
 public:
  virtual ~Rows() = default;
  virtual int64_t count() const = 0;  // rows before they repeat
  virtual int64_t seq() const = 0;
  // Row i in [0, count).
  virtual void read(int64_t i, const RowBuffers& row) const = 0;
  // One line that changes when the rows do: saved in a checkpoint and compared on resume.
  virtual std::string fingerprint() const = 0;
  // Bytes of text for each token, over all files; 0 where it is not known.
  virtual double bytes_per_token() const { return 0; }
};

// A permutation of 0..size-1, without memory: a Feistel network keyed by (seed, epoch) over the next even
// power of two, walked until it lands inside.
class Permutation {
 public:
  Permutation(uint64_t seed, uint64_t epoch, int64_t size);
  int64_t at(int64_t i) const;

 private:
  uint64_t network(uint64_t x) const;

  std::array<uint32_t, 2> key_{};
  int64_t size_ = 0;
  int half_bits_ = 0;
};

// A hash of files by their sizes and a sample of their bytes: at most 64 blocks of 4 KiB a file, so that a
// large corpus is not read twice.
class SampleHash {
 public:
  void add(std::span<const std::byte> file);
  void add(std::string_view text);
  uint64_t value() const { return hash_; }
  uint64_t bytes() const { return bytes_; }  // of all files

 private:
  void mix(std::byte b) { hash_ = (hash_ ^ std::to_integer<uint64_t>(b)) * 0x100000001b3u; }

  uint64_t hash_ = 0xcbf29ce484222325u, bytes_ = 0;  // FNV-1a
};

}  // namespace lignum::train
