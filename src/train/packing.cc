#include "train/packing.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/status.h"

namespace lignum::train {
namespace {

struct Document {
  int32_t file;
  int64_t first, size;  // tokens of the file
};

// Tokens [first, first + size) of a document.
struct Piece {
  int64_t document;
  int64_t first;
  int64_t size;
};

// For each size in turn the first row that has room for it: a tree of the largest room below each node.
class FirstFit {
 public:
  FirstFit(size_t most_rows, int64_t seq) : leaves_(std::bit_ceil(most_rows)), room_(2 * leaves_, seq) {}

  int64_t place(int64_t size) {
    size_t node = 1;
    while (node < leaves_) node = room_[2 * node] >= size ? 2 * node : 2 * node + 1;
    const auto row = static_cast<int64_t>(node - leaves_);
    for (room_[node] -= size; (node /= 2) > 0;) room_[node] = std::max(room_[2 * node], room_[2 * node + 1]);
    rows_ = std::max(rows_, row + 1);
    return row;
  }
  int64_t rows() const { return rows_; }

 private:
  size_t leaves_;
  std::vector<int64_t> room_;
  int64_t rows_ = 0;
};

class DocumentRows final : public Rows {
 public:
  DocumentRows(std::vector<Documents> files, std::vector<Document> documents, int64_t seq, Packing packing)
      : files_(std::move(files)), documents_(std::move(documents)), seq_(seq), packing_(packing) {
    for (const Document& d : documents_) ends_.push_back(tokens_ += d.size);
    if (packing_ == Packing::concat_then_split) {
      // A last row of one token would have no target: it was the last target of the row before.
      count_ = tokens_ / seq_ + (tokens_ % seq_ > 1 ? 1 : 0);
      return;
    }
    cut();
    if (packing_ == Packing::first_fit) {
      fit();
    } else {
      alone();
    }
  }

  int64_t count() const override { return count_; }
  int64_t seq() const override { return seq_; }

  void read(int64_t i, const RowBuffers& row) const override {
    LIGNUM_CHECK(i >= 0 && i < count_, "row {} of {}", i, count_);
    int64_t at = 0;
    int32_t segment = 0;
    const auto put = [&](const Piece& piece) {
      const Document& d = documents_[static_cast<size_t>(piece.document)];
      const Documents& file = files_[static_cast<size_t>(d.file)];
      file.read(d.first + piece.first, piece.size, row.ids + at);
      const bool goes_on = piece.first + piece.size < d.size;
      const int64_t targets = goes_on ? piece.size : piece.size - 1;
      file.read(d.first + piece.first + 1, targets, row.labels + at);
      if (!goes_on) row.labels[at + targets] = kIgnoredLabel;
      ++segment;
      for (int64_t t = 0; t < piece.size; ++t) row.positions[at + t] = static_cast<int32_t>(t);
      std::fill_n(row.segments + at, piece.size, segment);
      at += piece.size;
    };
    if (packing_ == Packing::concat_then_split) {
      const int64_t begin = i * seq_, end = std::min(begin + seq_, tokens_);
      auto d = std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin();
      for (int64_t token = begin; token < end; ++d) {
        const int64_t last = ends_[static_cast<size_t>(d)],
                      first = last - documents_[static_cast<size_t>(d)].size;
        const int64_t stop = std::min(last, end);
        put({d, token - first, stop - token});
        token = stop;
      }
    } else {
      for (int64_t p = row_begins_[static_cast<size_t>(i)]; p < row_begins_[static_cast<size_t>(i) + 1]; ++p)
        put(pieces_[static_cast<size_t>(p)]);
    }
    pad(at, seq_, row);
  }

  std::string fingerprint() const override {
    static constexpr const char* kNames[] = {"documents", "first_fit", "concat_then_split"};
    SampleHash hash;
    for (const Documents& file : files_) hash.add(file.id_bytes());
    hash.add(std::as_bytes(std::span(ends_)));
    return fmt::format("{} files={} documents={} tokens={} rows={} seq={} hash={:016x}",
                       kNames[static_cast<int>(packing_)], files_.size(), documents_.size(), tokens_, count_,
                       seq_, hash.value());
  }

  double bytes_per_token() const override {
    double bytes = 0, count = 0;
    for (const Documents& file : files_) {
      if (file.text_bytes() == 0) return 0;
      bytes += static_cast<double>(file.text_bytes());
      count += static_cast<double>(file.tokens());
    }
    return bytes / count;
  }

 private:
  void cut() {
    for (size_t d = 0; d < documents_.size(); ++d) {
      const int64_t size = documents_[d].size;
      // A last piece of one token would have no target: it was the target of the piece before.
      for (int64_t first = 0; first < size && (first == 0 || first + 1 < size); first += seq_)
        pieces_.push_back({static_cast<int64_t>(d), first, std::min(seq_, size - first)});
    }
  }
  void alone() {
    count_ = static_cast<int64_t>(pieces_.size());
    for (int64_t i = 0; i <= count_; ++i) row_begins_.push_back(i);
  }
  void fit() {
    FirstFit fit(pieces_.size(), seq_);
    std::vector<int64_t> row_of;
    for (const Piece& p : pieces_) row_of.push_back(fit.place(p.size));
    count_ = fit.rows();
    row_begins_.assign(static_cast<size_t>(count_) + 1, 0);
    for (const int64_t row : row_of) ++row_begins_[static_cast<size_t>(row) + 1];
    for (size_t i = 1; i < row_begins_.size(); ++i) row_begins_[i] += row_begins_[i - 1];
    std::vector<int64_t> next(row_begins_.begin(), row_begins_.end() - 1);
    std::vector<Piece> sorted(pieces_.size());
    for (size_t p = 0; p < pieces_.size(); ++p)
      sorted[static_cast<size_t>(next[static_cast<size_t>(row_of[p])]++)] = pieces_[p];
    pieces_ = std::move(sorted);
  }

  std::vector<Documents> files_;
  std::vector<Document> documents_;
  std::vector<int64_t> ends_;        // of the documents, in tokens of all of them
  std::vector<Piece> pieces_;        // by row
  std::vector<int64_t> row_begins_;  // of each row's pieces, and one past the last
  int64_t seq_;
  Packing packing_;
  int64_t tokens_ = 0, count_ = 0;
};

}  // namespace

Result<std::unique_ptr<Rows>> document_rows(std::string_view key, std::vector<Documents> files, int64_t seq,
                                            Packing packing) {
  LIGNUM_CHECK(seq >= 1, "rows of {}", seq);
  std::vector<Document> documents;
  for (size_t f = 0; f < files.size(); ++f) {
    int64_t first = 0;
    for (const int64_t end : files[f].ends()) {
      if (end - first >= 2) documents.push_back({static_cast<int32_t>(f), first, end - first});
      first = end;
    }
  }
  if (documents.empty()) {
    return user_error(
        "{}: no document has two tokens or more, so there is nothing to predict; give longer ones", key);
  }
  return std::unique_ptr<Rows>(
      std::make_unique<DocumentRows>(std::move(files), std::move(documents), seq, packing));
}

}  // namespace lignum::train
