#include "train/data.h"

#include <glob.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <limits>
#include <numeric>
#include <set>
#include <span>
#include <utility>

#include "base/rng.h"
#include "base/safetensors.h"
#include "base/text.h"

namespace lignum::train {
namespace {

std::span<const unsigned char> tokens(const MappedFile& file) {
  return {reinterpret_cast<const unsigned char*>(file.bytes().data()), file.bytes().size()};
}
std::span<const int32_t> tokens(const tokenizer::TokenFile& file) { return file.ids(); }
int64_t text_bytes(const MappedFile& file) { return static_cast<int64_t>(file.bytes().size()); }
int64_t text_bytes(const tokenizer::TokenFile& file) { return file.text_bytes(); }

class SyntheticRows final : public Rows {
 public:
  SyntheticRows(uint64_t seed, int64_t vocab_size, int64_t count, int64_t seq)
      : random_(seed, "synthetic"), seed_(seed), vocab_size_(vocab_size), count_(count), seq_(seq) {
    LIGNUM_CHECK(vocab_size >= 1 && count >= 1 && seq >= 1, "{} tokens, {} rows of {}", vocab_size, count,
                 seq);
  }

  int64_t count() const override { return count_; }
  int64_t seq() const override { return seq_; }
  void read(int64_t i, int32_t* ids, int32_t* labels) const override {
    LIGNUM_CHECK(i >= 0 && i < count_, "row {} of {}", i, count_);
    int32_t token = at(i, 0);
    for (int64_t t = 0; t < seq_; ++t) {
      ids[t] = token;
      token = at(i, t + 1);
      labels[t] = token;
    }
  }
  std::string fingerprint() const override {
    return fmt::format("synthetic seed={} vocab={} rows={} seq={}", seed_, vocab_size_, count_, seq_);
  }

 private:
  int32_t at(int64_t row, int64_t t) const {
    return static_cast<int32_t>(
        random_.below(static_cast<uint64_t>(row * (seq_ + 1) + t), static_cast<uint64_t>(vocab_size_)));
  }

  Random random_;
  uint64_t seed_;
  int64_t vocab_size_, count_, seq_;
};

// Windows of the files' tokens, which are bytes or ids.
template <class File>
class TextRows final : public Rows {
 public:
  TextRows(std::vector<File> files, int64_t seq, std::string kind)
      : files_(std::move(files)), seq_(seq), kind_(std::move(kind)) {
    for (const File& file : files_) {
      count_ += (static_cast<int64_t>(tokens(file).size()) - 1) / seq_;
      ends_.push_back(count_);
    }
  }

  int64_t count() const override { return count_; }
  int64_t seq() const override { return seq_; }
  void read(int64_t i, int32_t* ids, int32_t* labels) const override {
    LIGNUM_CHECK(i >= 0 && i < count_, "row {} of {}", i, count_);
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), i);
    const int64_t first = end == ends_.begin() ? 0 : *(end - 1);
    const auto* window = tokens(files_[static_cast<size_t>(end - ends_.begin())]).data() + (i - first) * seq_;
    for (int64_t t = 0; t < seq_; ++t) {
      ids[t] = static_cast<int32_t>(window[t]);
      labels[t] = static_cast<int32_t>(window[t + 1]);
    }
  }

  // Sizes and a sample of the tokens: at most 64 blocks of 4 KiB a file, so that a large corpus is not read
  // twice.
  std::string fingerprint() const override {
    uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
    const auto mix = [&](std::byte b) { hash = (hash ^ std::to_integer<uint64_t>(b)) * 0x100000001b3u; };
    uint64_t total = 0;
    for (const File& file : files_) {
      const auto bytes = std::as_bytes(tokens(file));
      constexpr size_t kBlock = 4096, kBlocks = 64;
      const size_t stride = std::max(kBlock, bytes.size() / kBlocks);
      for (size_t begin = 0; begin < bytes.size(); begin += stride) {
        for (const std::byte b : bytes.subspan(begin, std::min(kBlock, bytes.size() - begin))) mix(b);
      }
      for (int shift = 0; shift < 64; shift += 8) mix(static_cast<std::byte>(bytes.size() >> shift));
      total += bytes.size();
    }
    return fmt::format("{} files={} bytes={} rows={} seq={} hash={:016x}", kind_, files_.size(), total,
                       count_, seq_, hash);
  }

  double bytes_per_token() const override {
    double bytes = 0, count = 0;
    for (const File& file : files_) {
      bytes += static_cast<double>(text_bytes(file));
      count += static_cast<double>(tokens(file).size());
    }
    return bytes / count;
  }

 private:
  std::vector<File> files_;
  std::vector<int64_t> ends_;  // rows up to and with each file
  int64_t seq_;
  std::string kind_;
  int64_t count_ = 0;
};

// The paths that a pattern names, sorted: itself where it exists (its name may hold a bracket), else as a
// glob.
Result<std::vector<std::string>> expand(std::string_view key, const std::string& pattern) {
  if (path_exists(pattern)) return std::vector<std::string>{pattern};
  glob_t found = {};
  const int code = ::glob(pattern.c_str(), GLOB_ERR, nullptr, &found);
  std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (code == GLOB_NOMATCH) return user_error("{}: no file matches '{}'", key, shown(pattern));
  if (code != 0) return user_error("{}: '{}' cannot be searched", key, shown(pattern));
  std::sort(paths.begin(), paths.end());
  return paths;
}

// The files of all patterns.
Result<std::vector<std::string>> text_files(std::string_view key, const std::vector<std::string>& patterns) {
  if (patterns.empty()) return user_error("{} is empty: dataset_type=text needs paths or globs there", key);
  std::vector<std::string> all;
  std::set<std::string> seen;
  for (const std::string& pattern : patterns) {
    LIGNUM_ASSIGN_OR_RETURN(const std::vector<std::string> paths, expand(key, pattern));
    for (const std::string& path : paths) {
      std::error_code error;
      const std::string real = std::filesystem::canonical(path, error).string();
      if (error) return user_error("{}: {}: {}", key, path, error.message());
      if (!seen.insert(real).second) return user_error("{}: {} is named twice", key, path);
      all.push_back(path);
    }
  }
  return all;
}

template <class File, class Open>
Result<std::unique_ptr<Rows>> windows(std::string_view key, const std::vector<std::string>& paths,
                                      int64_t seq, const std::string& kind, std::string_view unit,
                                      const Open& open) {
  std::vector<File> files;
  for (const std::string& path : paths) {
    Result<File> file = open(path);
    if (!file.ok()) return file.status().with_context(std::string(key));
    const auto size = static_cast<int64_t>(tokens(*file).size());
    if (size < seq + 1) {
      return user_error("{}: {}: {} {}, but a row of max_target_length={} needs {}", key, path, size, unit,
                        seq, seq + 1);
    }
    files.push_back(std::move(file).value());
  }
  return std::unique_ptr<Rows>(std::make_unique<TextRows<File>>(std::move(files), seq, kind));
}

// The rows of a data set, for training or evaluation; the keys are named in errors.
Result<std::unique_ptr<Rows>> open_rows(const config::Config& config, std::string_view files_key,
                                        int64_t vocab_size, uint64_t synthetic_seed, int64_t synthetic_count,
                                        int64_t seq, const SharedTokenizer& tokenizer) {
  if (config.text("dataset_type") == "synthetic") {
    return synthetic_rows(synthetic_seed, vocab_size, synthetic_count, seq);
  }
  constexpr int64_t kByteVocabulary = 256;
  if (!tokenizer && vocab_size < kByteVocabulary) {
    return user_error(
        "dataset_type=text without a tokenizer reads bytes and needs a vocabulary of at least {}, but the "
        "model has {}",
        kByteVocabulary, vocab_size);
  }
  return text_rows(files_key, config.list(files_key), seq, tokenizer);
}

void set_positions(Batch& batch) {
  for (int64_t r = 0; r < batch.rows; ++r) {
    std::iota(batch.positions.begin() + r * batch.seq, batch.positions.begin() + (r + 1) * batch.seq, 0);
  }
}

void check_shape(const BatchShape& shape, const Rows& rows) {
  LIGNUM_CHECK(shape.rows >= 1 && shape.ranks >= 1 && shape.micro_steps >= 1 && shape.seq == rows.seq(),
               "rows {}, ranks {}, micro-steps {}, seq {} over rows of {}", shape.rows, shape.ranks,
               shape.micro_steps, shape.seq, rows.seq());
}

}  // namespace

Batch::Batch(int64_t row_count, int64_t length)
    : rows(row_count),
      seq(length),
      ids(static_cast<size_t>(row_count * length)),
      labels(static_cast<size_t>(row_count * length)),
      positions(static_cast<size_t>(row_count * length)) {}

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

std::unique_ptr<Rows> synthetic_rows(uint64_t seed, int64_t vocab_size, int64_t count, int64_t seq) {
  return std::make_unique<SyntheticRows>(seed, vocab_size, count, seq);
}

Result<std::unique_ptr<Rows>> text_rows(std::string_view key, const std::vector<std::string>& patterns,
                                        int64_t seq, const SharedTokenizer& tokenizer) {
  LIGNUM_CHECK(seq >= 1, "rows of {}", seq);
  LIGNUM_ASSIGN_OR_RETURN(const std::vector<std::string> paths, text_files(key, patterns));
  if (!tokenizer) return windows<MappedFile>(key, paths, seq, "text", "bytes", MappedFile::open);
  LIGNUM_ASSIGN_OR_RETURN(const std::string folder, tokenizer::token_cache_folder());
  const auto open = [&](const std::string& path) {
    return tokenizer::TokenFile::open(path, tokenizer->tokenizer, tokenizer->hash, folder);
  };
  return windows<tokenizer::TokenFile>(key, paths, seq, "tokens of " + tokenizer::hex(tokenizer->hash),
                                       "tokens", open);
}

Result<TrainData> TrainData::open(const config::Config& config, int64_t vocab_size, const BatchShape& shape,
                                  const SharedTokenizer& tokenizer) {
  const auto seed = static_cast<uint64_t>(config.integer("data_shuffle_seed"));
  LIGNUM_ASSIGN_OR_RETURN(std::unique_ptr<Rows> rows, open_rows(config, "train_files", vocab_size, seed,
                                                                shape.global_rows(), shape.seq, tokenizer));
  // A synthetic batch repeats as it is, as MaxText's does.
  const bool shuffle = config.text("dataset_type") != "synthetic" && config.boolean("enable_data_shuffling");
  return TrainData(std::move(rows), shape, seed, shuffle);
}

TrainData::TrainData(std::unique_ptr<Rows> rows, const BatchShape& shape, uint64_t seed, bool shuffle)
    : rows_(std::move(rows)), shape_(shape), seed_(seed), shuffle_(shuffle) {
  check_shape(shape_, *rows_);
}

int64_t TrainData::row_index(int64_t global_row) const {
  LIGNUM_CHECK(global_row >= 0, "row {}", global_row);
  const int64_t epoch = global_row / rows_->count(), place = global_row % rows_->count();
  return shuffle_ ? Permutation(seed_, static_cast<uint64_t>(epoch), rows_->count()).at(place) : place;
}

void TrainData::fill(int64_t first_row, int64_t rank, int64_t micro_step, Batch& batch) const {
  LIGNUM_CHECK(rank >= 0 && rank < shape_.ranks && micro_step >= 0 && micro_step < shape_.micro_steps,
               "rank {} of {}, micro-step {} of {}", rank, shape_.ranks, micro_step, shape_.micro_steps);
  LIGNUM_CHECK(batch.rows == shape_.rows && batch.seq == shape_.seq, "a batch of {} x {}", batch.rows,
               batch.seq);
  const int64_t first = first_row + (rank * shape_.micro_steps + micro_step) * shape_.rows;
  for (int64_t r = 0; r < batch.rows; ++r) {
    rows_->read(row_index(first + r), &batch.ids[static_cast<size_t>(r * batch.seq)],
                &batch.labels[static_cast<size_t>(r * batch.seq)]);
  }
  set_positions(batch);
}

Status export_batches(const TrainData& data, int64_t steps, const std::string& path) {
  const BatchShape& shape = data.shape();
  const std::vector<int64_t> dims = {steps, shape.global_rows(), shape.seq};
  LIGNUM_ASSIGN_OR_RETURN(SafetensorsLayout layout,
                          SafetensorsLayout::plan({{"ids", DType::i32, dims}, {"labels", DType::i32, dims}}));
  LIGNUM_ASSIGN_OR_RETURN(SafetensorsWriter writer, SafetensorsWriter::create(std::move(layout), path));
  Batch batch(shape.rows, shape.seq);
  const uint64_t bytes = batch.ids.size() * sizeof(int32_t);
  uint64_t begin = 0;
  for (int64_t step = 0; step < steps; ++step) {
    for (int64_t rank = 0; rank < shape.ranks; ++rank) {
      for (int64_t m = 0; m < shape.micro_steps; ++m, begin += bytes) {
        data.fill(step * shape.global_rows(), rank, m, batch);
        LIGNUM_RETURN_IF_ERROR(writer.write("ids", begin, std::as_bytes(std::span(batch.ids))));
        LIGNUM_RETURN_IF_ERROR(writer.write("labels", begin, std::as_bytes(std::span(batch.labels))));
      }
    }
  }
  return writer.finish();
}

Result<EvalData> EvalData::open(const config::Config& config, int64_t vocab_size, const BatchShape& shape,
                                const SharedTokenizer& tokenizer) {
  const int64_t steps = config.integer("eval_steps");
  // Seeds of the configuration have 32 bits: this one is no training run's.
  const uint64_t seed = (uint64_t{1} << 32) + static_cast<uint64_t>(config.integer("data_shuffle_seed"));
  // As many as asked for, as far as a row's number goes.
  const int64_t synthetic_rows =
      shape.global_rows() *
      std::clamp<int64_t>(steps, 1, std::numeric_limits<int64_t>::max() / shape.global_rows());
  LIGNUM_ASSIGN_OR_RETURN(std::unique_ptr<Rows> rows, open_rows(config, "eval_files", vocab_size, seed,
                                                                synthetic_rows, shape.seq, tokenizer));
  return EvalData(std::move(rows), shape, steps);
}

EvalData::EvalData(std::unique_ptr<Rows> rows, const BatchShape& shape, int64_t max_batches)
    : rows_(std::move(rows)), shape_(shape) {
  check_shape(shape_, *rows_);
  LIGNUM_CHECK(shape_.micro_steps == 1, "an evaluation of {} micro-steps", shape_.micro_steps);
  batches_ = (rows_->count() + shape_.global_rows() - 1) / shape_.global_rows();
  if (max_batches >= 0) batches_ = std::min(batches_, max_batches);
}

void EvalData::fill(int64_t batch_index, int64_t rank, Batch& batch) const {
  LIGNUM_CHECK(batch_index >= 0 && batch_index < batches_ && rank >= 0 && rank < shape_.ranks,
               "batch {} of {}, rank {} of {}", batch_index, batches_, rank, shape_.ranks);
  LIGNUM_CHECK(batch.rows == shape_.rows && batch.seq == shape_.seq, "a batch of {} x {}", batch.rows,
               batch.seq);
  const int64_t first = batch_index * shape_.global_rows() + rank * shape_.rows;
  for (int64_t r = 0; r < batch.rows; ++r) {
    int32_t* ids = &batch.ids[static_cast<size_t>(r * batch.seq)];
    int32_t* labels = &batch.labels[static_cast<size_t>(r * batch.seq)];
    if (first + r < rows_->count()) {
      rows_->read(first + r, ids, labels);
    } else {
      std::fill_n(ids, batch.seq, 0);
      std::fill_n(labels, batch.seq, kIgnoredLabel);
    }
  }
  set_positions(batch);
}

}  // namespace lignum::train
