#include "train/data.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <span>
#include <thread>
#include <utility>

#include "base/rng.h"
#include "base/safetensors.h"
#include "base/text.h"
#include "train/packing.h"

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
  void read(int64_t i, const RowBuffers& row) const override {
    LIGNUM_CHECK(i >= 0 && i < count_, "row {} of {}", i, count_);
    int32_t token = at(i, 0);
    for (int64_t t = 0; t < seq_; ++t) {
      row.ids[t] = token;
      token = at(i, t + 1);
      row.labels[t] = token;
    }
    one_document(seq_, row);
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
  void read(int64_t i, const RowBuffers& row) const override {
    LIGNUM_CHECK(i >= 0 && i < count_, "row {} of {}", i, count_);
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), i);
    const int64_t first = end == ends_.begin() ? 0 : *(end - 1);
    const auto* window = tokens(files_[static_cast<size_t>(end - ends_.begin())]).data() + (i - first) * seq_;
    for (int64_t t = 0; t < seq_; ++t) {
      row.ids[t] = static_cast<int32_t>(window[t]);
      row.labels[t] = static_cast<int32_t>(window[t + 1]);
    }
    one_document(seq_, row);
  }

  std::string fingerprint() const override {
    SampleHash hash;
    for (const File& file : files_) hash.add(std::as_bytes(tokens(file)));
    return fmt::format("{} files={} bytes={} rows={} seq={} hash={:016x}", kind_, files_.size(), hash.bytes(),
                       count_, seq_, hash.value());
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

constexpr int64_t kByteVocabulary = 256;

// The rows of one source's files; the keys are named in errors.
Result<std::unique_ptr<Rows>> source_rows(const config::Config& config, std::string_view files_key,
                                          std::string_view field_key,
                                          const std::vector<std::string>& patterns, int64_t vocab_size,
                                          int64_t seq, const SharedTokenizer& tokenizer) {
  LIGNUM_ASSIGN_OR_RETURN(const std::vector<std::string> paths, text_files(files_key, patterns));
  const auto is = [](FileKind kind) { return [kind](const auto& path) { return file_kind(path) == kind; }; };
  const bool all_text = std::all_of(paths.begin(), paths.end(), is(FileKind::text));
  const bool any_text = std::any_of(paths.begin(), paths.end(), [&](const std::string& path) {
    return is(FileKind::text)(path) || is(FileKind::json_lines)(path);
  });
  if (any_text && !tokenizer && vocab_size < kByteVocabulary) {
    return user_error(
        "dataset_type=text without a tokenizer reads bytes and needs a vocabulary of at least {}, but the "
        "model has {}",
        kByteVocabulary, vocab_size);
  }
  const bool packed = config.boolean("packing");
  if (all_text && !packed) return text_rows(files_key, patterns, seq, tokenizer);
  const std::vector<std::string>& fields = config.list(field_key);
  if (fields.size() != 1) {
    return user_error("{}: {} names; one is allowed: the field of the text in JSON lines", field_key,
                      fields.size());
  }
  DocumentOptions options{.tokenizer = tokenizer,
                          .field = fields[0],
                          .separator = config.integer("document_separator"),
                          .vocab_size = vocab_size,
                          .threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()))};
  std::vector<Documents> files;
  for (const std::string& path : paths) {
    Result<Documents> file = Documents::open(path, options);
    if (!file.ok()) return file.status().with_context(std::string(files_key));
    files.push_back(std::move(file).value());
  }
  const Packing packing = !packed                                            ? Packing::none
                          : config.text("grain_packing_type") == "first_fit" ? Packing::first_fit
                                                                             : Packing::concat_then_split;
  return document_rows(files_key, std::move(files), seq, packing);
}

// A set's name, where the entry has one, and the rest: a file whose name holds '=' is a file.
std::pair<std::string, std::string> named(const std::string& entry) {
  const size_t equals = entry.find('=');
  if (equals == std::string::npos || equals == 0 || path_exists(entry)) return {"", entry};
  const std::string name = entry.substr(0, equals);
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
  if (name.find_first_not_of(kLetters) != std::string::npos) return {"", entry};
  return {name, entry.substr(equals + 1)};
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
      positions(static_cast<size_t>(row_count * length)),
      segments(static_cast<size_t>(row_count * length)) {}

RowBuffers Batch::row(int64_t r) {
  const int64_t at = r * seq;
  return {ids.data() + at, labels.data() + at, positions.data() + at, segments.data() + at};
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
  // A synthetic batch repeats as it is, as MaxText's does.
  if (config.text("dataset_type") == "synthetic")
    return TrainData(synthetic_rows(seed, vocab_size, shape.global_rows(), shape.seq), shape, seed, false);
  const std::vector<std::string>& files = config.list("train_files");
  const std::vector<std::string>& weights = config.list("train_weights");
  if (!weights.empty() && weights.size() != files.size()) {
    return user_error(
        "train_weights has {} numbers for {} entries of train_files; give one for each, or none",
        weights.size(), files.size());
  }
  LIGNUM_ASSIGN_OR_RETURN(Mixture mixture, Mixture::parse("train_weights", weights));
  std::vector<std::vector<std::string>> groups = {files};
  if (!weights.empty()) {
    groups.clear();
    for (const std::string& pattern : files) groups.push_back({pattern});
  }
  std::vector<std::unique_ptr<Rows>> sources;
  for (const std::vector<std::string>& group : groups) {
    LIGNUM_ASSIGN_OR_RETURN(
        std::unique_ptr<Rows> rows,
        source_rows(config, "train_files", "train_data_columns", group, vocab_size, shape.seq, tokenizer));
    if (rows->count() < shape.ranks) {
      return user_error(
          "train_files: {} row{} of max_target_length={} for {} ranks, of which each needs one; "
          "give more text, or lower `ranks` or max_target_length",
          rows->count(), rows->count() == 1 ? "" : "s", shape.seq, shape.ranks);
    }
    sources.push_back(std::move(rows));
  }
  TrainData data(std::move(sources), std::move(mixture), shape, seed,
                 config.boolean("enable_data_shuffling"));
  const std::string& end = config.text("end_of_data");
  if (end != "repeat") data.end_after(config.integer("num_epoch"));
  data.end_is_error_ = end == "error";
  return data;
}

TrainData::TrainData(std::unique_ptr<Rows> rows, const BatchShape& shape, uint64_t seed, bool shuffle)
    : shape_(shape), seed_(seed), shuffle_(shuffle) {
  sources_.push_back(std::move(rows));
  check_shape(shape_, *sources_[0]);
}

TrainData::TrainData(std::vector<std::unique_ptr<Rows>> sources, Mixture mixture, const BatchShape& shape,
                     uint64_t seed, bool shuffle)
    : sources_(std::move(sources)),
      mixture_(std::move(mixture)),
      shape_(shape),
      seed_(seed),
      shuffle_(shuffle) {
  for (const auto& rows : sources_) check_shape(shape_, *rows);
}

std::string TrainData::fingerprint() const {
  if (sources_.size() == 1) return sources_[0]->fingerprint();
  std::string text = "mixture " + mixture_.text();
  for (const auto& rows : sources_) text += fmt::format(" ({})", rows->fingerprint());
  return text;
}

double TrainData::bytes_per_token() const {
  double sum = 0;
  for (size_t s = 0; s < sources_.size(); ++s) {
    const double bytes = sources_[s]->bytes_per_token();
    if (bytes == 0) return 0;
    sum += mixture_.part(s) * bytes;
  }
  return sum;
}

Mixture::Place TrainData::row_at(int64_t global_row) const {
  LIGNUM_CHECK(global_row >= 0, "row {}", global_row);
  Mixture::Place p = mixture_.at(global_row);
  const int64_t count = rows(p.source).count(), epoch = p.row / count;
  p.row %= count;
  // Seeds of the configuration have 32 bits: above them stands the source.
  const uint64_t seed = seed_ + (static_cast<uint64_t>(p.source) << 33);
  if (shuffle_) p.row = Permutation(seed, static_cast<uint64_t>(epoch), count).at(p.row);
  return p;
}

void TrainData::end_after(int64_t epochs) {
  for (size_t s = 0; s < sources_.size(); ++s) {
    const int64_t count = sources_[s]->count();
    if (count > kEndless / epochs) continue;
    end_row_ = std::min(end_row_, mixture_.place_of(static_cast<int64_t>(s), count * epochs));
  }
}

Status TrainData::check_steps(int64_t first_row, int64_t steps) const {
  const int64_t left = std::max<int64_t>(0, end_row_ - first_row) / shape_.global_rows();
  if (!end_is_error_ || steps <= left) return {};
  return user_error(
      "end_of_data=error: {} steps of {} rows, but train_files have {} more rows in num_epoch epochs; lower "
      "steps to {}, raise num_epoch, or set end_of_data=repeat or stop",
      steps, shape_.global_rows(), std::max<int64_t>(0, end_row_ - first_row), left);
}

void TrainData::fill(int64_t first_row, int64_t rank, int64_t micro_step, Batch& batch) const {
  LIGNUM_CHECK(rank >= 0 && rank < shape_.ranks && micro_step >= 0 && micro_step < shape_.micro_steps,
               "rank {} of {}, micro-step {} of {}", rank, shape_.ranks, micro_step, shape_.micro_steps);
  LIGNUM_CHECK(batch.rows == shape_.rows && batch.seq == shape_.seq, "a batch of {} x {}", batch.rows,
               batch.seq);
  const int64_t first = first_row + (rank * shape_.micro_steps + micro_step) * shape_.rows;
  for (int64_t r = 0; r < batch.rows; ++r) {
    const Mixture::Place p = row_at(first + r);
    rows(p.source).read(p.row, batch.row(r));
  }
}

Status export_batches(const TrainData& data, int64_t steps, const std::string& path) {
  const BatchShape& shape = data.shape();
  const std::vector<int64_t> dims = {steps, shape.global_rows(), shape.seq};
  std::vector<TensorPlan> tensors;
  for (const char* name : {"ids", "labels", "positions", "segments"})
    tensors.push_back({name, DType::i32, dims});
  LIGNUM_ASSIGN_OR_RETURN(SafetensorsLayout layout, SafetensorsLayout::plan(tensors));
  LIGNUM_ASSIGN_OR_RETURN(SafetensorsWriter writer, SafetensorsWriter::create(std::move(layout), path));
  Batch batch(shape.rows, shape.seq);
  const uint64_t bytes = batch.ids.size() * sizeof(int32_t);
  uint64_t begin = 0;
  for (int64_t step = 0; step < steps; ++step) {
    for (int64_t rank = 0; rank < shape.ranks; ++rank) {
      for (int64_t m = 0; m < shape.micro_steps; ++m, begin += bytes) {
        data.fill(step * shape.global_rows(), rank, m, batch);
        for (const auto& [name, values] :
             {std::pair("ids", &batch.ids), std::pair("labels", &batch.labels),
              std::pair("positions", &batch.positions), std::pair("segments", &batch.segments)})
          LIGNUM_RETURN_IF_ERROR(writer.write(name, begin, std::as_bytes(std::span(*values))));
      }
    }
  }
  return writer.finish();
}

Result<std::vector<EvalData>> EvalData::open(const config::Config& config, int64_t vocab_size,
                                             const BatchShape& shape, const SharedTokenizer& tokenizer) {
  const int64_t steps = config.integer("eval_steps");
  std::vector<EvalData> sets;
  if (config.text("dataset_type") == "synthetic") {
    // Seeds of the configuration have 32 bits: this one is no training run's.
    const uint64_t seed = (uint64_t{1} << 32) + static_cast<uint64_t>(config.integer("data_shuffle_seed"));
    // As many as asked for, as far as a row's number goes.
    const int64_t count =
        shape.global_rows() *
        std::clamp<int64_t>(steps, 1, std::numeric_limits<int64_t>::max() / shape.global_rows());
    sets.emplace_back(synthetic_rows(seed, vocab_size, count, shape.seq), shape, steps);
    return sets;
  }
  std::vector<std::pair<std::string, std::vector<std::string>>> groups;
  for (const std::string& entry : config.list("eval_files")) {
    auto [name, pattern] = named(entry);
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == name; });
    if (group == groups.end()) group = groups.insert(groups.end(), {name, {}});
    group->second.push_back(std::move(pattern));
  }
  if (groups.empty()) groups.push_back({"", {}});
  for (const auto& [name, patterns] : groups) {
    LIGNUM_ASSIGN_OR_RETURN(
        std::unique_ptr<Rows> rows,
        source_rows(config, "eval_files", "eval_data_columns", patterns, vocab_size, shape.seq, tokenizer));
    sets.emplace_back(std::move(rows), shape, steps, name);
  }
  return sets;
}

EvalData::EvalData(std::unique_ptr<Rows> rows, const BatchShape& shape, int64_t max_batches, std::string name)
    : rows_(std::move(rows)), shape_(shape), name_(std::move(name)) {
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
    if (first + r < rows_->count()) {
      rows_->read(first + r, batch.row(r));
    } else {
      pad(0, batch.seq, batch.row(r));
    }
  }
}

}  // namespace lignum::train
