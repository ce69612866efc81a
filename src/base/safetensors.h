// The safetensors format (8 bytes little-endian header length, a JSON header, then the tensors' bytes), read
// from a mapping and written at offsets planned ahead. Rules of the format that the reader enforces: header
// at most 100 MB and starting with '{'; unique names; each range inside the file, of exactly shape x element
// size; the ranges cover the data without gap or overlap. Nothing is allocated in proportion to a number that
// a file merely claims.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/dtype.h"
#include "base/file.h"
#include "base/status.h"

namespace lignum {

struct TensorInfo {
  std::string name;
  std::string dtype_text;      // as in the file: "F32", "F16", "BF16", ...
  std::optional<DType> dtype;  // absent where Lignum has no such type (F16, I16, ...)
  std::vector<int64_t> shape;  // [] is a scalar
  int64_t elements = 0;
  uint64_t begin = 0, end = 0;  // bytes, from the start of the data section
};

// The name of a dtype in such files; every DType has one.
std::string_view safetensors_dtype(DType);

class SafetensorsReader {
 public:
  static Result<SafetensorsReader> open(const std::string& path);
  // Reads from memory that outlives the reader; `name` stands for the path in errors.
  static Result<SafetensorsReader> parse(std::span<const std::byte> bytes, const std::string& name);

  const std::string& path() const { return path_; }
  const std::vector<TensorInfo>& tensors() const {
    return tensors_;
  }  // in the order of their bytes in the file
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  const TensorInfo* find(std::string_view name) const;             // null where there is none
  Result<const TensorInfo*> require(std::string_view name) const;  // an error with the nearest name
  // The bytes, of no promised alignment (a header need not be padded).
  std::span<const std::byte> data(const TensorInfo& info) const;
  // Elements [begin, begin + count) of an F64, F32, F16 or BF16 tensor, rounded to nearest even.
  Status read_as_f32(std::string_view name, float* out, int64_t begin, int64_t count) const;

 private:
  SafetensorsReader() = default;
  Status read_header(std::span<const std::byte> bytes);

  std::string path_;
  std::optional<MappedFile> file_;
  std::span<const std::byte> data_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::string> metadata_;
  std::unordered_map<std::string, size_t> index_;
};

// The weights of a Hugging Face folder: model.safetensors, or the shards that model.safetensors.index.json
// names. Each tensor of the index must be in the shard it names and in no other; a shard is a plain file name
// in the folder.
class ModelFiles {
 public:
  static Result<ModelFiles> open(const std::string& folder);

  const std::string& folder() const { return folder_; }
  std::vector<const TensorInfo*> tensors() const;  // shard by shard, each in its file's order
  const TensorInfo* find(std::string_view name) const;
  Result<const TensorInfo*> require(std::string_view name) const;
  Result<std::span<const std::byte>> data(std::string_view name) const;
  Status read_as_f32(std::string_view name, float* out, int64_t begin, int64_t count) const;

 private:
  ModelFiles() = default;
  Result<const SafetensorsReader*> shard_of(std::string_view name) const;

  std::string folder_;
  std::vector<SafetensorsReader> shards_;
  std::unordered_map<std::string, size_t> shard_of_;
};

// Where everything goes, before a byte is written: every rank plans the same layout from the same list.
struct TensorPlan {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
};

class SafetensorsLayout {
 public:
  // Tensors are laid out in the order given; duplicate or reserved names and overflowing shapes are errors.
  static Result<SafetensorsLayout> plan(const std::vector<TensorPlan>& tensors,
                                        const std::map<std::string, std::string>& metadata = {});

  const std::string& header() const {
    return header_;
  }  // length and JSON, padded with spaces to a multiple of 8
  uint64_t file_size() const { return header_.size() + data_size_; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const TensorInfo* find(std::string_view name) const;

 private:
  SafetensorsLayout() = default;

  std::string header_;
  uint64_t data_size_ = 0;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string, size_t> index_;
};

// Writes into path + ".tmp". One writer creates and finishes; those of other processes attach to the same
// layout and path after create and sync before the creator finishes. write may run on several threads at
// once.
class SafetensorsWriter {
 public:
  static Result<SafetensorsWriter> create(SafetensorsLayout layout, const std::string& path);
  static Result<SafetensorsWriter> attach(SafetensorsLayout layout, const std::string& path);
  SafetensorsWriter(SafetensorsWriter&& other) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) = delete;
  ~SafetensorsWriter();  // a creator that has not finished removes its temporary file

  const SafetensorsLayout& layout() const { return layout_; }
  // Bytes of one tensor from byte `begin` of it on. A range outside the tensor is a broken invariant.
  Status write(std::string_view name, uint64_t begin, std::span<const std::byte> bytes) const;
  Status sync() const;
  Status finish();  // sync, rename to path, sync the folder

 private:
  SafetensorsWriter(SafetensorsLayout layout, std::string path, OutputFile file, bool owner)
      : layout_(std::move(layout)), path_(std::move(path)), file_(std::move(file)), owner_(owner) {}

  SafetensorsLayout layout_;
  std::string path_;
  std::optional<OutputFile> file_;
  bool owner_ = false;
};

struct TensorData {
  TensorPlan plan;
  std::span<const std::byte> bytes;  // shape x element size of them
};
Status write_safetensors(const std::string& path, const std::vector<TensorData>& tensors,
                         const std::map<std::string, std::string>& metadata = {});

}  // namespace lignum
