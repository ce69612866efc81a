// Batches of a training or evaluation run. A row is a function of (seed, its global number) and of nothing
// else: not of ranks, accumulation, threads or history, so a resume needs only how many rows were consumed.
//
// Global rows of a step: first_row + rank * (micro_steps * rows) + micro_step * rows + row, rank-major, then
// by micro-step: N ranks, and N micro-steps of one rank, see the same rows at the same places.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "config/config.h"
#include "train/mixture.h"
#include "train/rows.h"
#include "train/run_tokenizer.h"

namespace lignum::train {

// One rank's rows of one micro-step, row-major [rows, seq]; RowBuffers says what each holds.
struct Batch {
  Batch(int64_t rows, int64_t seq);

  int64_t rows = 0, seq = 0;
  std::vector<int32_t> ids, labels, positions, segments;
  RowBuffers row(int64_t r);
};

// How a global batch is divided.
struct BatchShape {
  int64_t rows = 1;  // of a rank and micro-step
  int64_t seq = 1;
  int64_t ranks = 1;  // those that see different rows: all but those of one context or tensor axis
  int64_t micro_steps = 1;
  int64_t global_rows() const { return rows * ranks * micro_steps; }
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

// A stream of training rows: of one source, or of several by their weights. Epoch e of a shuffled source
// reads its rows in the order Permutation(seed, e).
class TrainData {
 public:
  // Reads dataset_type, train_files with their weights and fields, how they are packed, data_shuffle_seed,
  // enable_data_shuffling, end_of_data and num_epoch. Files are text, JSON lines or token ids (documents.h).
  static Result<TrainData> open(const config::Config& config, int64_t vocab_size, const BatchShape& shape,
                                const SharedTokenizer& tokenizer = nullptr);
  TrainData(std::unique_ptr<Rows> rows, const BatchShape& shape, uint64_t seed, bool shuffle);
  TrainData(std::vector<std::unique_ptr<Rows>> sources, Mixture mixture, const BatchShape& shape,
            uint64_t seed, bool shuffle);

  const BatchShape& shape() const { return shape_; }
  std::string fingerprint() const;  // as Rows'
  double bytes_per_token() const;   // by weight; 0 where a source does not know
  // Fills `batch` [shape.rows, shape.seq]; allocates nothing. first_row: the rows consumed before this step,
  // which is step * global_rows() in a run whose shape never changed.
  void fill(int64_t first_row, int64_t rank, int64_t micro_step, Batch& batch) const;
  // Which source and which of its rows() stands at that place of the stream.
  Mixture::Place row_at(int64_t global_row) const;
  const Rows& rows(int64_t source) const { return *sources_[static_cast<size_t>(source)]; }

  // Where the data ends: the first place at which a source has given all its rows num_epoch times. kEndless
  // with end_of_data=repeat.
  static constexpr int64_t kEndless = std::numeric_limits<int64_t>::max();
  int64_t end_row() const { return end_row_; }
  // Whether a step that begins at that row is whole.
  bool has_step(int64_t first_row) const { return end_row_ - first_row >= shape_.global_rows(); }
  // end_of_data=error: an error where steps from first_row on need more rows than there are.
  Status check_steps(int64_t first_row, int64_t steps) const;

 private:
  void end_after(int64_t epochs);

  std::vector<std::unique_ptr<Rows>> sources_;
  Mixture mixture_;
  BatchShape shape_;
  uint64_t seed_ = 0;
  bool shuffle_ = true;
  int64_t end_row_ = kEndless;
  bool end_is_error_ = false;
};

// Writes the batches of steps 0..steps-1 of a run as `ids`, `labels`, `positions` and `segments`, i32 [steps,
// global rows, seq], in the order of global rows: for other programs to train on the same tokens.
Status export_batches(const TrainData& data, int64_t steps, const std::string& path);

// Held-out rows in order; the last batch is filled up with rows of no supervised token.
class EvalData {
 public:
  // Reads dataset_type, eval_files and eval_steps (-1: all); shape.micro_steps must be 1. An entry
  // NAME=PATTERN of eval_files belongs to the set of that name, the others to one without; sets come in the
  // order of their first entries.
  static Result<std::vector<EvalData>> open(const config::Config& config, int64_t vocab_size,
                                            const BatchShape& shape,
                                            const SharedTokenizer& tokenizer = nullptr);
  EvalData(std::unique_ptr<Rows> rows, const BatchShape& shape, int64_t max_batches, std::string name = "");

  const std::string& name() const { return name_; }
  int64_t batches() const { return batches_; }
  const Rows& rows() const { return *rows_; }
  void fill(int64_t batch_index, int64_t rank, Batch& batch) const;

 private:
  std::unique_ptr<Rows> rows_;
  BatchShape shape_;
  int64_t batches_ = 0;
  std::string name_;
};

}  // namespace lignum::train
