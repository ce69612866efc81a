// Batches of a training or evaluation run. A row is a function of (seed, its global number) and of nothing
// else: not of ranks, accumulation, threads or history, so a resume needs only how many rows were consumed.
//
// Global rows of a step: first_row + rank * (micro_steps * rows) + micro_step * rows + row, rank-major, then
// by micro-step: N ranks, and N micro-steps of one rank, see the same rows at the same places.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "config/config.h"
#include "train/run_tokenizer.h"

namespace lignum::train {

inline constexpr int32_t kIgnoredLabel = -100;

// One rank's rows of one micro-step, row-major [rows, seq].
struct Batch {
  Batch(int64_t rows, int64_t seq);

  int64_t rows = 0, seq = 0;
  std::vector<int32_t> ids;
  std::vector<int32_t> labels;     // the target of ids[t] at t; kIgnoredLabel: not supervised
  std::vector<int32_t> positions;  // 0..seq-1
};

// How a global batch is divided.
struct BatchShape {
  int64_t rows = 1;  // of a rank and micro-step
  int64_t seq = 1;
  int64_t ranks = 1;  // those that see different rows: data x fsdp
  int64_t micro_steps = 1;
  int64_t global_rows() const { return rows * ranks * micro_steps; }
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

// Rows by number. Not bound to a batch shape; safe to share between threads.
class Rows {
 public:
  virtual ~Rows() = default;
  virtual int64_t count() const = 0;  // rows before they repeat
  virtual int64_t seq() const = 0;
  // Row i in [0, count): seq ids and their targets.
  virtual void read(int64_t i, int32_t* ids, int32_t* labels) const = 0;
  // One line that changes when the rows do: saved in a checkpoint and compared on resume.
  virtual std::string fingerprint() const = 0;
  // Bytes of text for each token, over all files; 0 where there is no text.
  virtual double bytes_per_token() const { return 0; }
};

// `count` rows of uniform tokens by (seed, row, place). MaxText's dataset_type=synthetic repeats one global
// batch: make_train_rows gives count = global_rows.
std::unique_ptr<Rows> synthetic_rows(uint64_t seed, int64_t vocab_size, int64_t count, int64_t seq);

// Tokens of text files: what `tokenizer` makes of each file (token_file.h: made once and kept), or where it
// is null the bytes (vocabulary 256). A file of n tokens gives (n - 1) / seq windows of seq + 1 tokens that
// overlap by one: each token but a file's first is a target once, but for the last (n - 1) % seq, which are
// left out. Windows never span two files. Patterns are paths or globs (each sorted), files in the order
// listed; no match, a file named twice, and a file shorter than seq + 1 tokens are errors. `key` is the
// configuration key that gave the patterns.
Result<std::unique_ptr<Rows>> text_rows(std::string_view key, const std::vector<std::string>& patterns,
                                        int64_t seq, const SharedTokenizer& tokenizer = nullptr);

// A stream of training rows: epoch e of a shuffled stream reads the rows in the order Permutation(seed, e).
class TrainData {
 public:
  // Reads dataset_type, train_files, data_shuffle_seed and enable_data_shuffling.
  static Result<TrainData> open(const config::Config& config, int64_t vocab_size, const BatchShape& shape,
                                const SharedTokenizer& tokenizer = nullptr);
  TrainData(std::unique_ptr<Rows> rows, const BatchShape& shape, uint64_t seed, bool shuffle);

  const BatchShape& shape() const { return shape_; }
  const Rows& rows() const { return *rows_; }
  // Fills `batch` [shape.rows, shape.seq]; allocates nothing. first_row: the rows consumed before this step,
  // which is step * global_rows() in a run whose shape never changed.
  void fill(int64_t first_row, int64_t rank, int64_t micro_step, Batch& batch) const;
  int64_t row_index(int64_t global_row) const;  // which of rows() stands at that place of the stream

 private:
  std::unique_ptr<Rows> rows_;
  BatchShape shape_;
  uint64_t seed_ = 0;
  bool shuffle_ = true;
};

// Writes the batches of steps 0..steps-1 of a run as `ids` and `labels`, i32 [steps, global rows, seq], in
// the order of global rows: for other programs to train on the same tokens.
Status export_batches(const TrainData& data, int64_t steps, const std::string& path);

// Held-out rows in order; the last batch is filled up with rows of no supervised token.
class EvalData {
 public:
  // Reads dataset_type, eval_files and eval_steps (-1: all); shape.micro_steps must be 1.
  static Result<EvalData> open(const config::Config& config, int64_t vocab_size, const BatchShape& shape,
                               const SharedTokenizer& tokenizer = nullptr);
  EvalData(std::unique_ptr<Rows> rows, const BatchShape& shape, int64_t max_batches);

  int64_t batches() const { return batches_; }
  const Rows& rows() const { return *rows_; }
  void fill(int64_t batch_index, int64_t rank, Batch& batch) const;

 private:
  std::unique_ptr<Rows> rows_;
  BatchShape shape_;
  int64_t batches_ = 0;
};

}  // namespace lignum::train
