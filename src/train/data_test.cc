#include "train/data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "base/safetensors.h"
#include "base/test_folder.h"

namespace lignum::train {
namespace {

using testing::TestFolder;

// Row i holds i everywhere: which rows a batch has can be read off it.
class CountingRows final : public Rows {
 public:
  CountingRows(int64_t count, int64_t seq) : count_(count), seq_(seq) {}
  int64_t count() const override { return count_; }
  int64_t seq() const override { return seq_; }
  void read(int64_t i, const RowBuffers& row) const override {
    std::fill_n(row.ids, seq_, static_cast<int32_t>(i));
    std::fill_n(row.labels, seq_, static_cast<int32_t>(i));
    one_document(seq_, row);
  }
  std::string fingerprint() const override { return "counting"; }

 private:
  int64_t count_, seq_;
};

TrainData counting(int64_t count, const BatchShape& shape, uint64_t seed = 42, bool shuffle = true) {
  return TrainData(std::make_unique<CountingRows>(count, shape.seq), shape, seed, shuffle);
}

// The rows of steps [from, to), in global order.
std::vector<int32_t> rows_of(const TrainData& data, int64_t from, int64_t to) {
  std::vector<int32_t> rows;
  const BatchShape& shape = data.shape();
  Batch batch(shape.rows, shape.seq);
  for (int64_t step = from; step < to; ++step) {
    for (int64_t rank = 0; rank < shape.ranks; ++rank) {
      for (int64_t micro = 0; micro < shape.micro_steps; ++micro) {
        data.fill(step * shape.global_rows(), rank, micro, batch);
        for (int64_t r = 0; r < shape.rows; ++r)
          rows.push_back(batch.ids[static_cast<size_t>(r * shape.seq)]);
      }
    }
  }
  return rows;
}

TEST(Permutation, IsOneForEverySize) {
  for (const int64_t size : {1, 2, 3, 4, 5, 10, 16, 17, 63, 64, 65, 255, 1000, 4097}) {
    const Permutation p(7, 3, size);
    std::vector<bool> seen(static_cast<size_t>(size));
    for (int64_t i = 0; i < size; ++i) {
      const int64_t j = p.at(i);
      ASSERT_TRUE(j >= 0 && j < size && !seen[static_cast<size_t>(j)]) << size << " " << i;
      seen[static_cast<size_t>(j)] = true;
    }
  }
  const Permutation huge(7, 3, int64_t{1} << 50);
  EXPECT_NE(huge.at(0), huge.at(1));
  EXPECT_LT(huge.at((int64_t{1} << 50) - 1), int64_t{1} << 50);
}

TEST(Permutation, DependsOnSeedAndEpochAndMixes) {
  constexpr int64_t kSize = 1000;
  const auto order = [](uint64_t seed, uint64_t epoch) {
    std::vector<int64_t> v;
    for (int64_t i = 0; i < kSize; ++i) v.push_back(Permutation(seed, epoch, kSize).at(i));
    return v;
  };
  EXPECT_EQ(order(1, 0), order(1, 0));
  EXPECT_NE(order(1, 0), order(1, 1));
  EXPECT_NE(order(1, 0), order(2, 0));
  // A random order has one fixed point on average and neighbours a third of the size apart.
  int fixed = 0;
  double distance = 0;
  for (uint64_t epoch = 0; epoch < 20; ++epoch) {
    const auto v = order(5, epoch);
    for (int64_t i = 0; i < kSize; ++i) fixed += v[static_cast<size_t>(i)] == i;
    for (size_t i = 1; i < v.size(); ++i) distance += static_cast<double>(std::abs(v[i] - v[i - 1])) / kSize;
  }
  EXPECT_GT(fixed, 4);
  EXPECT_LT(fixed, 45);
  EXPECT_NEAR(distance / (20 * (kSize - 1)), 1.0 / 3, 0.01);
}

// Ten rows, batch 2, three epochs: each epoch has all ten once, in another order.
TEST(TrainData, EachEpochCoversAllRowsOnce) {
  const auto rows = rows_of(counting(10, {.rows = 2, .seq = 3}), 0, 15);
  ASSERT_EQ(rows.size(), 30);
  std::set<std::vector<int32_t>> orders;
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::vector<int32_t> order(rows.begin() + epoch * 10, rows.begin() + epoch * 10 + 10);
    orders.insert(order);
    std::sort(order.begin(), order.end());
    EXPECT_EQ(order, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  }
  EXPECT_EQ(orders.size(), 3);
}

TEST(TrainData, ResumeAndRankChangeKeepTheOrder) {
  const auto whole = rows_of(counting(10, {.rows = 2, .seq = 1}), 0, 15);
  const std::vector<int32_t> rest(whole.begin() + 16, whole.end());
  // Stopped after step 8 of 15, resumed by a fresh object: on one rank, two ranks, or accumulating.
  EXPECT_EQ(rows_of(counting(10, {.rows = 2, .seq = 1}), 8, 15), rest);
  EXPECT_EQ(rows_of(counting(10, {.rows = 1, .seq = 1, .ranks = 2}), 8, 15), rest);
  EXPECT_EQ(rows_of(counting(10, {.rows = 1, .seq = 1, .micro_steps = 2}), 8, 15), rest);
}

TEST(TrainData, RanksAndAccumulationSeeTheSameRowsAtTheSamePlaces) {
  const auto one = rows_of(counting(37, {.rows = 12, .seq = 2}), 0, 10);
  EXPECT_EQ(rows_of(counting(37, {.rows = 6, .seq = 2, .ranks = 2}), 0, 10), one);
  EXPECT_EQ(rows_of(counting(37, {.rows = 4, .seq = 2, .micro_steps = 3}), 0, 10), one);
  EXPECT_EQ(rows_of(counting(37, {.rows = 2, .seq = 2, .ranks = 2, .micro_steps = 3}), 0, 10), one);
  EXPECT_EQ(rows_of(counting(37, {.rows = 1, .seq = 2, .ranks = 4, .micro_steps = 3}), 0, 10), one);
}

TEST(TrainData, WrapsInsideABatchAndWithoutShuffle) {
  EXPECT_EQ(rows_of(counting(3, {.rows = 2, .seq = 1}, 0, false), 0, 3),
            (std::vector<int32_t>{0, 1, 2, 0, 1, 2}));
  // A corpus smaller than the batch is read more than once in it.
  EXPECT_EQ(rows_of(counting(1, {.rows = 3, .seq = 1}), 0, 1), (std::vector<int32_t>{0, 0, 0}));
}

TEST(TextRows, WindowsOverlapByOneAndNeverSpanFiles) {
  const TestFolder folder;
  ASSERT_TRUE(
      write_file_atomic(folder / "a", "abcdefgh").ok());  // 8 bytes: two windows of 3 + 1, one byte left
  ASSERT_TRUE(write_file_atomic(folder / "b", "\xff\xfe\x80\x01").ok());  // exactly one
  const auto rows = text_rows("train_files", {folder / "b", folder / "a"}, 3);
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  ASSERT_EQ((*rows)->count(), 3);
  Batch row(1, 3);
  const std::vector<int32_t>&ids = row.ids, &labels = row.labels;
  (*rows)->read(0, row.row(0));
  EXPECT_EQ(ids, (std::vector<int32_t>{0xff, 0xfe, 0x80}));  // bytes, not chars
  EXPECT_EQ(labels, (std::vector<int32_t>{0xfe, 0x80, 0x01}));
  (*rows)->read(1, row.row(0));
  EXPECT_EQ(ids, (std::vector<int32_t>{'a', 'b', 'c'}));
  EXPECT_EQ(labels, (std::vector<int32_t>{'b', 'c', 'd'}));
  (*rows)->read(2, row.row(0));
  EXPECT_EQ(ids, (std::vector<int32_t>{'d', 'e', 'f'}));
  EXPECT_EQ(labels, (std::vector<int32_t>{'e', 'f', 'g'}));
}

TEST(TextRows, GlobsAndErrors) {
  const TestFolder folder;
  const std::string ten = "0123456789";
  for (const char* name : {"2.txt", "10.txt", "1.txt", "x[y].txt"}) {
    ASSERT_TRUE(write_file_atomic(folder / name, ten + name).ok());
  }
  const auto error = [&](const std::vector<std::string>& patterns, int64_t seq = 4) {
    const auto rows = text_rows("train_files", patterns, seq);
    return rows.ok() ? "" : rows.status().message();
  };
  EXPECT_EQ(error({folder / "*.txt"}), "");
  EXPECT_EQ(error({folder / "x[y].txt"}), "");  // a name, not a pattern
  EXPECT_EQ(error({}), "train_files is empty: dataset_type=text needs paths or globs there");
  EXPECT_EQ(error({folder / "*.md"}), "train_files: no file matches '" + (folder / "*.md") + "'");
  EXPECT_EQ(error({folder / "none"}), "train_files: no file matches '" + (folder / "none") + "'");
  EXPECT_EQ(error({folder / "1.txt", folder / "?.txt"}),
            "train_files: " + (folder / "1.txt") + " is named twice");
  EXPECT_EQ(error({folder / "1.txt", folder.path() + "/./1.txt"}).find("train_files: "), 0);
  EXPECT_EQ(error({folder / "1.txt"}, 15),
            "train_files: " + (folder / "1.txt") + ": 15 bytes, but a row of max_target_length=15 needs 16");
  EXPECT_EQ(error({folder / "1.txt"}, 14), "");
  EXPECT_EQ(error({folder.path()}), "train_files: " + folder.path() + ": not a regular file");
  ASSERT_TRUE(write_file_atomic(folder / "empty", "").ok());
  EXPECT_EQ(error({folder / "empty"}),
            "train_files: " + (folder / "empty") + ": 0 bytes, but a row of max_target_length=4 needs 5");
}

TEST(TextRows, FingerprintSeesTheContent) {
  const TestFolder folder;
  std::string big(1 << 20, 'a');
  ASSERT_TRUE(write_file_atomic(folder / "f", big).ok());
  const auto print = [&](int64_t seq) { return (*text_rows("k", {folder / "f"}, seq))->fingerprint(); };
  const std::string first = print(8);
  EXPECT_EQ(print(8), first);
  EXPECT_NE(print(16), first);
  big[5] = 'b';
  ASSERT_TRUE(write_file_atomic(folder / "f", big).ok());
  EXPECT_NE(print(8), first);
}

TEST(Synthetic, OneBatchAgainAndAgain) {
  const auto config = config::Config::parse("", "", {"dataset_type=synthetic", "data_shuffle_seed=3"});
  ASSERT_TRUE(config.ok());
  const BatchShape shape{.rows = 4, .seq = 16, .ranks = 2};
  const auto data = TrainData::open(*config, 1000, shape);
  ASSERT_TRUE(data.ok()) << data.status().message();
  Batch first(4, 16), later(4, 16), other(4, 16);
  data->fill(0, 0, 0, first);
  data->fill(7 * shape.global_rows(), 0, 0, later);
  data->fill(0, 1, 0, other);
  EXPECT_EQ(first.ids, later.ids);
  EXPECT_NE(first.ids, other.ids);
  for (int64_t r = 0; r < 4; ++r) {
    for (int64_t t = 0; t < 16; ++t) {
      const auto at = static_cast<size_t>(r * 16 + t);
      EXPECT_TRUE(first.ids[at] >= 0 && first.ids[at] < 1000);
      EXPECT_EQ(first.positions[at], t);
      if (t + 1 < 16) {
        EXPECT_EQ(first.labels[at], first.ids[at + 1]);
      }
    }
  }
  // The whole vocabulary is in use: 4096 draws of 16 leave no token out.
  const auto rows = synthetic_rows(1, 16, 1, 4096);
  Batch row(1, 4096);
  rows->read(0, row.row(0));
  EXPECT_EQ(std::set<int32_t>(row.ids.begin(), row.ids.end()).size(), 16);
}

TEST(TrainData, OpensFromTheConfiguration) {
  const TestFolder folder;
  ASSERT_TRUE(write_file_atomic(folder / "t", std::string(1000, 'x')).ok());
  const auto open = [&](const std::vector<std::string>& words, int64_t vocab) {
    const auto config = config::Config::parse("", "", words);
    EXPECT_TRUE(config.ok()) << config.status().message();
    return TrainData::open(*config, vocab, {.rows = 1, .seq = 9});
  };
  const auto data = open({"dataset_type=text", "train_files=" + (folder / "t")}, 256);
  ASSERT_TRUE(data.ok()) << data.status().message();
  EXPECT_EQ(data->rows(0).count(), 111);
  EXPECT_EQ(open({"dataset_type=text", "train_files=" + (folder / "t")}, 255).status().message(),
            "dataset_type=text without a tokenizer reads bytes and needs a vocabulary of at least 256, but "
            "the model has 255");
  EXPECT_EQ(open({"dataset_type=text"}, 256).status().message(),
            "train_files is empty: dataset_type=text needs paths or globs there");
}

TEST(ExportBatches, HoldsTheRowsOfEachStepInGlobalOrder) {
  const TestFolder folder;
  const TrainData data = counting(7, {.rows = 2, .seq = 3, .ranks = 2, .micro_steps = 2});
  const std::string path = folder / "batches.safetensors";
  ASSERT_TRUE(export_batches(data, 3, path).ok());
  const auto file = SafetensorsReader::open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_EQ(file->tensors().size(), 4u);
  for (const TensorInfo& tensor : file->tensors()) {
    EXPECT_EQ(tensor.dtype, DType::i32);
    EXPECT_EQ(tensor.shape, (std::vector<int64_t>{3, 8, 3}));
    std::vector<int32_t> read(72), expected;
    std::memcpy(read.data(), file->data(tensor).data(), 72 * sizeof(int32_t));
    for (const int32_t row : rows_of(data, 0, 3)) expected.insert(expected.end(), 3, row);
    if (tensor.name == "positions") {
      for (size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<int32_t>(i % 3);
    } else if (tensor.name == "segments") {
      std::fill(expected.begin(), expected.end(), 1);
    }
    EXPECT_EQ(read, expected) << tensor.name;
  }
  EXPECT_FALSE(export_batches(data, 3, folder / "absent/batches.safetensors").ok());
}

TEST(EvalData, ReadsInOrderAndFillsTheLastBatchUp) {
  const BatchShape shape{.rows = 2, .seq = 3, .ranks = 2};
  const EvalData all(std::make_unique<CountingRows>(7, 3), shape, -1);
  ASSERT_EQ(all.batches(), 2);
  Batch batch(2, 3);
  std::vector<int32_t> rows;
  int64_t supervised = 0;
  for (int64_t b = 0; b < all.batches(); ++b) {
    for (int64_t rank = 0; rank < 2; ++rank) {
      all.fill(b, rank, batch);
      for (size_t i = 0; i < batch.labels.size(); i += 3) {
        if (batch.labels[i] != kIgnoredLabel) rows.push_back(batch.ids[i]);
      }
      supervised += std::count_if(batch.labels.begin(), batch.labels.end(), [](int32_t l) { return l >= 0; });
    }
  }
  EXPECT_EQ(rows, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(supervised, 21);
  EXPECT_EQ(batch.ids[3], 0);  // the row that fills up
  EXPECT_EQ(EvalData(std::make_unique<CountingRows>(7, 3), shape, 1).batches(), 1);
  EXPECT_EQ(EvalData(std::make_unique<CountingRows>(7, 3), shape, 9).batches(), 2);
}

}  // namespace
}  // namespace lignum::train
