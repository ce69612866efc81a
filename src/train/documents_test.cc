// From files to rows: formats, packing, mixtures, and what is refused.
#include "train/documents.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>

#include "base/rng.h"
#include "base/test_folder.h"
#include "train/batch_loader.h"
#include "train/json_lines.h"
#include "train/packing.h"

namespace lignum::train {
namespace {

using testing::TestFolder;
using Ids = std::vector<int32_t>;

constexpr int32_t kNone = kIgnoredLabel;

template <class T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string npy(const std::string& type, const std::string& shape, const std::string& data) {
  std::string header = "{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + ", }";
  header.resize((10 + header.size() + 64) / 64 * 64 - 10, ' ');
  std::string file = "\x93NUMPY";
  file += '\x01';
  file += '\0';
  file += static_cast<char>(header.size());
  file += '\0';
  return file + header + data;
}

std::string llmc(int32_t magic, int32_t version, int32_t count, const std::string& data) {
  std::vector<int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return raw(header) + data;
}

class DocumentsTest : public ::testing::Test {
 protected:
  DocumentsTest() { ::setenv("XDG_CACHE_HOME", (folder / "cache").c_str(), 1); }

  std::string write(const std::string& name, const std::string& text) const {
    EXPECT_TRUE(write_file_atomic(folder / name, text).ok());
    return folder / name;
  }
  std::string error(const std::string& path, const DocumentOptions& options) const {
    const auto d = Documents::open(path, options);
    return d.ok() ? "" : d.status().message().substr(folder.path().size() + 1);
  }
  // Documents of these ids, in one file.
  std::vector<Documents> of(const std::vector<Ids>& documents) const {
    std::vector<int64_t> ends;
    Ids all;
    for (const Ids& d : documents) {
      all.insert(all.end(), d.begin(), d.end());
      ends.push_back(static_cast<int64_t>(all.size()));
    }
    const std::string path = folder / fmt::format("{}.docs", ++files_);
    EXPECT_TRUE(DocumentFile::write(path, {}, ends, all).ok());
    std::vector<Documents> one;
    one.push_back(Documents::open(path, {.vocab_size = 1000}).value());
    return one;
  }

  TestFolder folder;

 private:
  mutable int files_ = 0;
};

Ids ids_of(const Documents& d) {
  Ids ids(static_cast<size_t>(d.tokens()));
  d.read(0, d.tokens(), ids.data());
  return ids;
}
std::vector<int64_t> ends_of(const Documents& d) { return {d.ends().begin(), d.ends().end()}; }

TEST_F(DocumentsTest, EveryFormatOfIds) {
  const std::vector<uint16_t> narrow = {5, 60000, 0, 7, 0, 9};
  const std::vector<uint32_t> wide = {5, 60000, 0, 7, 0, 9};
  const Ids want = {5, 60000, 0, 7, 0, 9};
  const DocumentOptions options{.separator = 0, .vocab_size = 65536};
  for (const std::string& path :
       {write("a.bin", raw(narrow)), write("b.bin", llmc(20240520, 1, 6, raw(narrow))),
        write("c.bin", llmc(20240801, 7, 6, raw(wide))), write("a.npy", npy("<u2", "(6,)", raw(narrow))),
        write("b.npy", npy("<u4", "(6,)", raw(wide))), write("c.npy", npy("<i4", "(6,)", raw(wide)))}) {
    const auto d = Documents::open(path, options);
    ASSERT_TRUE(d.ok()) << d.status().message();
    EXPECT_EQ(ids_of(*d), want) << path;
    EXPECT_EQ(ends_of(*d), (std::vector<int64_t>{3, 5, 6})) << path;
  }
  const auto whole = Documents::open(folder / "a.bin", {.vocab_size = 65536});
  EXPECT_EQ(ends_of(*whole), (std::vector<int64_t>{6}));
}

TEST_F(DocumentsTest, RefusesWhatIsNoFileOfIds) {
  const DocumentOptions options{.vocab_size = 100};
  const std::string four = raw(std::vector<uint16_t>{1, 2, 3, 4});
  EXPECT_EQ(error(write("odd.bin", "abc"), options),
            "odd.bin: 3 bytes: neither llm.c's header nor an even number, as ids of uint16 have");
  const std::string bare = llmc(20240520, 1, 4, four);
  EXPECT_EQ(error(write("cut.bin", bare.substr(0, bare.size() - 2)), {.vocab_size = 128256}),
            "cut.bin: llm.c's header says 4 ids of 2 bytes, but 6 bytes follow it: cut short?");
  EXPECT_EQ(error(write("short.bin", bare.substr(0, 512)), {.vocab_size = 128256}),
            "short.bin: 512 bytes end inside llm.c's header of 1024");
  EXPECT_EQ(error(write("new.bin", llmc(20240801, 8, 2, four)), {.vocab_size = 128256}),
            "new.bin: llm.c's magic 20240801 with version 8; 7 is read");
  EXPECT_EQ(error(write("empty.bin", ""), options), "empty.bin: it holds no token; leave it out");
  EXPECT_EQ(error(write("empty.txt", ""), options), "empty.txt: it holds no token; leave it out");
  EXPECT_EQ(error(write("big.bin", raw(std::vector<uint16_t>{1, 2, 100})), options),
            "big.bin: id 100 at place 2; the model's vocabulary allows 0 to 99: was it made with another "
            "tokenizer?");
  EXPECT_EQ(error(write("text.npy", "some text, no array"), options), "text.npy: no .npy file");
  EXPECT_EQ(error(write("float.npy", npy("<f4", "(2,)", four)), options),
            "float.npy: its ids are of type '<f4'; '<u2', '<u4' and '<i4' are allowed: save it with "
            "astype(numpy.uint16) or uint32");
  EXPECT_EQ(error(write("two.npy", npy("<u2", "(2, 2)", four)), options),
            "two.npy: its shape is (2, 2); one dim is allowed: save it flat");
  EXPECT_EQ(error(write("cut.npy", npy("<u2", "(5,)", four)), options),
            "cut.npy: 5 ids of 2 bytes, but 8 bytes follow the header");
  EXPECT_EQ(error(write("head.npy", npy("<u2", "(4,)", four).substr(0, 30)), options),
            "head.npy: its .npy header is damaged");
  EXPECT_NE(error(write("none.docs", "LIGNDOC1"), options).find("shorter than its header"),
            std::string::npos);
  static_cast<void>(of({{1, 2}}));
  std::string bytes = read_text(folder / "1.docs").value();
  bytes.back() ^= 1;
  EXPECT_NE(error(write("flipped.docs", bytes), options).find("its content is not"), std::string::npos);
}

// Any byte changed, any length cut: a file that can be read to its last token, or an error.
TEST_F(DocumentsTest, MutatedFiles) {
  static_cast<void>(of({{1, 2, 3}, {4, 5}}));
  const std::vector<uint16_t> ids = {1, 2, 3, 4};
  const Random random(3, "mutations");
  for (const auto& [name, whole] : {std::pair(std::string("m.npy"), npy("<u2", "(4,)", raw(ids))),
                                    std::pair(std::string("m.bin"), llmc(20240520, 1, 4, raw(ids))),
                                    std::pair(std::string("m.docs"), read_text(folder / "1.docs").value())}) {
    for (uint64_t n = 0; n < 150; ++n) {
      std::string text = whole;
      const auto at = static_cast<size_t>(random.below(3 * n, std::min<uint64_t>(text.size(), 140)));
      text[at] = static_cast<char>(random.below(3 * n + 1, 256));
      if (n % 3 == 0) text.resize(static_cast<size_t>(random.below(3 * n + 2, text.size())));
      std::ofstream(folder / name, std::ios::binary) << text;
      const auto d = Documents::open(folder / name, {.separator = 2, .vocab_size = 1 << 20});
      if (!d.ok()) {
        EXPECT_EQ(d.status().code(), Code::user_error);
        continue;
      }
      EXPECT_EQ(static_cast<int64_t>(ids_of(*d).size()), d->tokens());
      EXPECT_EQ(d->ends().back(), d->tokens());
    }
  }
}

TEST_F(DocumentsTest, JsonLines) {
  const std::string path = write("a.jsonl",
                                 "{\"text\": \"ab\\n\", \"id\": 1}\r\n"
                                 "\n"
                                 "{\"id\": 2, \"text\": \"\"}\n"
                                 "{\"text\": \"\\u00e9\"}");
  const auto d = Documents::open(path, {.vocab_size = 256});
  ASSERT_TRUE(d.ok()) << d.status().message();
  EXPECT_EQ(ids_of(*d), (Ids{'a', 'b', '\n', 0xc3, 0xa9}));
  EXPECT_EQ(ends_of(*d), (std::vector<int64_t>{3, 3, 5}));
  EXPECT_EQ(d->text_bytes(), 5);
  // Kept; made anew where it is damaged, or the file or the field is another.
  const auto kept = list_directory(folder / "cache/lignum/tokens");
  ASSERT_EQ(kept->size(), 1U);
  const std::string file = folder / ("cache/lignum/tokens/" + (*kept)[0]);
  ASSERT_TRUE(write_file_atomic(file, "damaged").ok());
  EXPECT_EQ(ids_of(Documents::open(path, {.vocab_size = 256}).value()), ids_of(*d));
  EXPECT_EQ(error(path, {.field = "id", .vocab_size = 256}),
            "a.jsonl, line 1: field 'id' is a number; it must be a string");
  write("a.jsonl", "{\"text\": \"c\"}\n");
  EXPECT_EQ(ids_of(Documents::open(path, {.vocab_size = 256}).value()), (Ids{'c'}));
}

TEST_F(DocumentsTest, HostileJsonLines) {
  const std::string good = "{\"text\": \"a\"}\n";
  const auto refused = [&](const std::string& line) {
    return error(write("h.jsonl", good + good + line + "\n" + good), {.vocab_size = 256});
  };
  EXPECT_NE(refused("{\"text\": \"a").find("h.jsonl, line 3: not JSON"), std::string::npos);
  EXPECT_NE(refused("{\"text\": \"\xff\"}").find("h.jsonl, line 3: not JSON"), std::string::npos);
  EXPECT_NE(refused("{\"text\": \"a\"} x").find("h.jsonl, line 3: not JSON"), std::string::npos);
  EXPECT_NE(refused(std::string(1000, '[')).find("h.jsonl, line 3: nested deeper"), std::string::npos);
  EXPECT_EQ(refused("[1]"),
            "h.jsonl, line 3: it is an array; each line must be an object with the field 'text'");
  EXPECT_EQ(
      refused("{\"content\": \"a\", \"id\": 1}"),
      "h.jsonl, line 3: no field 'text' (train_data_columns, eval_data_columns); it has 'content', 'id'");
  EXPECT_EQ(refused("{\"text\": 3}"), "h.jsonl, line 3: field 'text' is a number; it must be a string");
  EXPECT_EQ(refused("{\"text\": \"a\", \"text\": \"b\"}"),
            "h.jsonl, line 3: key 'text' appears twice in one object");
  EXPECT_EQ(refused(std::string(kMaxLineBytes + 1, 'x')),
            "h.jsonl, line 3: 67108865 bytes; a line holds at most 67108864: cut the document");
  EXPECT_EQ(error(write("blank.jsonl", "\n  \n"), {}), "blank.jsonl: it holds no token; leave it out");
}

struct RowText {
  Ids ids, labels, positions, segments;
};
std::vector<RowText> read_all(const Rows& rows) {
  std::vector<RowText> all;
  for (int64_t i = 0; i < rows.count(); ++i) {
    Batch b(1, rows.seq());
    rows.read(i, b.row(0));
    all.push_back({b.ids, b.labels, b.positions, b.segments});
  }
  return all;
}

TEST_F(DocumentsTest, FirstFit) {
  // Three pieces of the first document; the documents of 3 and 2 go back into the room that it left.
  const auto rows = document_rows(
      "train_files",
      of({{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}, {20, 21, 22}, {9}, {30, 31, 32, 33, 34}, {40, 41}}), 6,
      Packing::first_fit);
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  const auto all = read_all(**rows);
  ASSERT_EQ(all.size(), 4U);
  EXPECT_EQ(all[0].ids, (Ids{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(all[0].labels, (Ids{2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(all[1].labels, (Ids{8, 9, 10, 11, 12, 13}));  // 13 is a target here: no piece of it alone
  EXPECT_EQ(all[2].ids, (Ids{20, 21, 22, 40, 41, 0}));
  EXPECT_EQ(all[2].labels, (Ids{21, 22, kNone, 41, kNone, kNone}));
  EXPECT_EQ(all[2].positions, (Ids{0, 1, 2, 0, 1, 0}));
  EXPECT_EQ(all[2].segments, (Ids{1, 1, 1, 2, 2, 0}));
  EXPECT_EQ(all[3].ids, (Ids{30, 31, 32, 33, 34, 0}));
}

TEST_F(DocumentsTest, ConcatThenSplit) {
  const auto rows =
      document_rows("train_files", of({{1, 2, 3, 4, 5}, {6, 7}, {8, 9, 10}}), 4, Packing::concat_then_split);
  const auto all = read_all(**rows);
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0].labels, (Ids{2, 3, 4, 5}));
  EXPECT_EQ(all[1].ids, (Ids{5, 6, 7, 8}));
  EXPECT_EQ(all[1].labels, (Ids{kNone, 7, kNone, 9}));
  EXPECT_EQ(all[1].positions, (Ids{0, 0, 1, 0}));
  EXPECT_EQ(all[1].segments, (Ids{1, 2, 2, 3}));
  EXPECT_EQ(all[2].ids, (Ids{9, 10, 0, 0}));
  EXPECT_EQ(all[2].labels, (Ids{10, kNone, kNone, kNone}));
}

// pad id and eos id are both 2 to this model: a mask by id would train two of these four targets.
TEST_F(DocumentsTest, OnlyPositionsTellPadding) {
  const auto all = read_all(**document_rows("train_files", of({{5, 6, 2, 7, 2}}), 8, Packing::none));
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].ids, (Ids{5, 6, 2, 7, 2, 0, 0, 0}));
  EXPECT_EQ(all[0].labels, (Ids{6, 2, 7, 2, kNone, kNone, kNone, kNone}));
}

TEST_F(DocumentsTest, EachTokenButTheFirstIsATargetOnce) {
  std::vector<Ids> documents;
  std::map<int32_t, int> want;
  int32_t id = 0;
  for (int32_t d = 0; d < 60; ++d) {
    documents.emplace_back();
    for (int32_t t = 0; t < d * 7 % 23 + 1; ++t) {
      documents.back().push_back(id);
      if (t > 0) ++want[id];
      ++id;
    }
  }
  for (const int64_t seq : {1, 2, 5, 8, 64}) {
    for (const Packing packing : {Packing::none, Packing::first_fit, Packing::concat_then_split}) {
      const auto rows = document_rows("train_files", of(documents), seq, packing);
      ASSERT_TRUE(rows.ok());
      std::map<int32_t, int> seen;
      for (const RowText& row : read_all(**rows)) {
        for (size_t t = 0; t < row.ids.size(); ++t) {
          if (row.labels[t] == kNone) continue;
          ++seen[row.labels[t]];
          EXPECT_EQ(row.labels[t], row.ids[t] + 1);
          EXPECT_GT(row.segments[t], 0);
          if (t > 0 && row.segments[t] == row.segments[t - 1]) {
            EXPECT_EQ(row.positions[t], row.positions[t - 1] + 1);
          } else {
            EXPECT_EQ(row.positions[t], 0);
          }
        }
      }
      EXPECT_EQ(seen, want) << seq << " " << static_cast<int>(packing);
    }
  }
}

TEST_F(DocumentsTest, NothingToPredict) {
  EXPECT_EQ(
      document_rows("eval_files", of({{1}, {2}}), 4, Packing::first_fit).status().message(),
      "eval_files: no document has two tokens or more, so there is nothing to predict; give longer ones");
}

TEST(Mixture, KeepsToTheWeights) {
  const auto m = Mixture::parse("train_weights", {"7", "2.5", "0.5"});
  ASSERT_TRUE(m.ok()) << m.status().message();
  std::vector<int64_t> taken(3);
  for (int64_t place = 0; place < 25000; ++place) {
    const Mixture::Place p = m->at(place);
    EXPECT_EQ(p.row, taken[static_cast<size_t>(p.source)]++) << place;
    EXPECT_EQ(m->place_of(p.source, p.row), place);
    for (size_t s = 0; s < 3; ++s)
      EXPECT_NEAR(static_cast<double>(taken[s]), m->part(s) * static_cast<double>(place + 1), 3.0) << place;
  }
  EXPECT_EQ(taken[0], 17500);
  EXPECT_EQ(Mixture().at(9), (Mixture::Place{0, 9}));
}

TEST(Mixture, RefusesWeights) {
  const auto refused = [](const std::vector<std::string>& weights) {
    return Mixture::parse("train_weights", weights).status().message();
  };
  for (const char* bad : {"0", "-1", "nan", "inf", "1x", "", "1e999"}) {
    EXPECT_EQ(
        refused({"1", bad}),
        fmt::format(
            "train_weights: '{}': a weight is a number above 0; leave a source that is not wanted out", bad));
  }
  EXPECT_EQ(refused({"1", "1e-9"}),
            "train_weights: '1e-9' is less than 1/10000 of all weights, 1; raise it or leave the source out");
}

class FromConfig : public DocumentsTest {
 protected:
  FromConfig() {
    for (const auto& [name, first] : {std::pair("a.bin", 0), std::pair("b.bin", 100)}) {
      std::vector<uint16_t> ids;  // 20 documents of 3
      for (int i = 0; i < 60; ++i) ids.push_back(static_cast<uint16_t>(i % 3 == 2 ? 255 : first + i));
      write(name, raw(ids));
    }
  }
  Result<TrainData> open(std::vector<std::string> words,
                         const BatchShape& shape = {.rows = 2, .seq = 3}) const {
    words.insert(words.end(), {"dataset_type=text", "document_separator=255", "data_shuffle_seed=42"});
    LIGNUM_ASSIGN_OR_RETURN(const config::Config config, config::Config::parse("", "", words));
    return TrainData::open(config, 256, shape);
  }
  std::string both() const { return "train_files=" + (folder / "a.bin") + "," + (folder / "b.bin"); }
};

TEST_F(FromConfig, MixtureOfShuffledSources) {
  const auto data = open({both(), "train_weights=3,1", "packing=true"});
  ASSERT_TRUE(data.ok()) << data.status().message();
  std::map<int32_t, int> seen;
  Batch b(2, 3);
  for (int64_t step = 0; step < 40; ++step) {  // 60 rows of a: three epochs; 20 of b: one
    data->fill(step * 2, 0, 0, b);
    ++seen[b.ids[0]];
    ++seen[b.ids[3]];
  }
  ASSERT_EQ(seen.size(), 40U);
  for (const auto& [id, times] : seen) EXPECT_EQ(times, id < 100 ? 3 : 1) << id;
  // Another seed, weight or packing is other data, or another order.
  EXPECT_NE(open({both(), "train_weights=2,1", "packing=true"})->fingerprint(), data->fingerprint());
  EXPECT_NE(open({both(), "train_weights=3,1"})->fingerprint(), data->fingerprint());
  EXPECT_EQ(open({both(), "train_weights=2"}).status().message(),
            "train_weights has 1 numbers for 2 entries of train_files; give one for each, or none");
}

TEST_F(FromConfig, EndOfData) {
  const auto stop = open({both(), "train_weights=3,1", "end_of_data=stop"});
  ASSERT_TRUE(stop.ok()) << stop.status().message();
  // a gives three rows of four: its 21st comes after seven of b.
  EXPECT_EQ(stop->end_row(), 27);
  EXPECT_EQ(stop->row_at(27).source, 0);
  EXPECT_TRUE(stop->check_steps(0, 100).ok());
  const auto error = open({both(), "end_of_data=error", "num_epoch=2"});
  EXPECT_EQ(error->end_row(), 80);
  EXPECT_TRUE(error->check_steps(4, 38).ok());
  EXPECT_EQ(
      error->check_steps(4, 39).message(),
      "end_of_data=error: 39 steps of 2 rows, but train_files have 76 more rows in num_epoch epochs; lower "
      "steps to 38, raise num_epoch, or set end_of_data=repeat or stop");
  EXPECT_EQ(open({both()})->end_row(), TrainData::kEndless);
}

TEST_F(FromConfig, MoreRanksThanRows) {
  EXPECT_EQ(
      open({both()}, {.rows = 1, .seq = 3, .ranks = 41}).status().message(),
      "train_files: 40 rows of max_target_length=3 for 41 ranks, of which each needs one; give more text, "
      "or lower `ranks` or max_target_length");
}

// Ten samples, three epochs: the order of ids is one, whoever asks for it and on how many threads.
TEST_F(FromConfig, LoadersGiveTheSameOrder) {
  std::vector<uint16_t> ten;
  for (uint16_t i = 0; i < 10; ++i) ten.insert(ten.end(), {i, static_cast<uint16_t>(i + 50), 255});
  const std::string files = "train_files=" + write("ten.bin", raw(ten));
  const auto order = [&](const BatchShape& shape, int workers, int64_t from, int64_t to) {
    const auto data = open({files}, shape);
    EXPECT_TRUE(data.ok()) << data.status().message();
    std::vector<std::vector<int32_t>> by_rank;
    for (int64_t rank = 0; rank < shape.ranks; ++rank) {
      BatchLoader loader(*data, rank, from * shape.global_rows(), workers);
      by_rank.emplace_back();
      for (int64_t n = 0; n < (to - from) * shape.micro_steps; ++n) {
        const Batch& b = loader.next();
        for (int64_t r = 0; r < shape.rows; ++r) by_rank.back().push_back(b.ids[static_cast<size_t>(r * 3)]);
      }
    }
    Ids all;  // rank-major in each step
    const size_t each = by_rank[0].size() / static_cast<size_t>(to - from);
    for (size_t step = 0; step < static_cast<size_t>(to - from); ++step)
      for (const auto& rank : by_rank)
        all.insert(all.end(), rank.begin() + static_cast<std::ptrdiff_t>(step * each),
                   rank.begin() + static_cast<std::ptrdiff_t>((step + 1) * each));
    return all;
  };
  const Ids whole = order({.rows = 2, .seq = 3}, 0, 0, 15);
  for (auto epoch = whole.begin(); epoch != whole.end(); epoch += 10) {
    Ids sorted(epoch, epoch + 10);
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(sorted, (Ids{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  }
  EXPECT_NE(Ids(whole.begin(), whole.begin() + 10), Ids(whole.begin() + 10, whole.begin() + 20));
  const Ids rest(whole.begin() + 16, whole.end());
  for (const int workers : {0, 1, 4}) {
    EXPECT_EQ(order({.rows = 2, .seq = 3}, workers, 0, 15), whole) << workers;
    EXPECT_EQ(order({.rows = 2, .seq = 3}, workers, 8, 15), rest) << workers;
    EXPECT_EQ(order({.rows = 1, .seq = 3, .ranks = 2}, workers, 8, 15), rest) << workers;
    EXPECT_EQ(order({.rows = 1, .seq = 3, .micro_steps = 2}, workers, 8, 15), rest) << workers;
  }
}

TEST_F(FromConfig, EvaluationSets) {
  const auto sets = [&](const std::string& files) {
    const auto config = config::Config::parse("", "", {"dataset_type=text", "eval_files=" + files});
    return EvalData::open(*config, 256, {.rows = 2, .seq = 3});
  };
  const std::string a = folder / "a.bin", b = folder / "b.bin",
                    odd = write("x=y.bin", raw(std::vector<uint16_t>{1, 2}));
  const auto three = sets("web=" + a + "," + odd + ",code=" + b + ",web=" + b);
  ASSERT_TRUE(three.ok()) << three.status().message();
  ASSERT_EQ(three->size(), 3U);
  EXPECT_EQ((*three)[0].name(), "web");
  EXPECT_EQ((*three)[0].rows().count(), 40);
  EXPECT_EQ((*three)[1].name(), "");  // a file's name may hold '='
  EXPECT_EQ((*three)[1].rows().count(), 1);
  EXPECT_EQ((*three)[2].name(), "code");
  EXPECT_EQ(sets("web=" + (folder / "no.bin")).status().message(),
            "eval_files: no file matches '" + (folder / "no.bin") + "'");
}

}  // namespace
}  // namespace lignum::train
