// GGUF, llama.cpp's format of models, read from a mapping (the specification is in ggml's docs/gguf.md):
// "GGUF", a version (2 and 3 are read; little-endian), the counts, key-value pairs, descriptions of tensors,
// padding, then the tensors' bytes, each at a multiple of general.alignment. Rules that the reader enforces:
// unique keys and names in UTF-8; known types; lists of numbers, booleans or strings; each tensor of 1 to 4
// dims and whole blocks; the ranges cover the data without overlap and with no gap but padding. Nothing is
// allocated in proportion to a number that a file merely claims.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/file.h"
#include "base/status.h"

namespace lignum {

// Types of elements that are read; the numbers are the file's. Of Q types 32 neighbours are a block.
enum class GgufType : uint32_t { f32 = 0, f16 = 1, q4_0 = 2, q4_1 = 3, q8_0 = 8, bf16 = 30 };

struct GgufTensor {
  std::string name;
  GgufType type = GgufType::f32;
  std::vector<int64_t> shape;  // row-major, as in safetensors: the file has the innermost dim first
  int64_t elements = 0;
  uint64_t begin = 0, end = 0;  // bytes, from the start of the data section
};

// A value of a key; strings are views of the file's bytes.
using GgufValue = std::variant<bool, int64_t, double, std::string_view, std::vector<bool>,
                               std::vector<int64_t>, std::vector<double>, std::vector<std::string_view>>;
std::string_view gguf_value_kind(const GgufValue&);  // "an integer", "a list of strings", ...

class GgufReader {
 public:
  static Result<GgufReader> open(const std::string& path);
  // Reads from memory that outlives the reader; `name` stands for the path in errors.
  static Result<GgufReader> parse(std::span<const std::byte> bytes, const std::string& name);

  const std::string& path() const { return path_; }
  const std::map<std::string, GgufValue, std::less<>>& values() const { return values_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // in the order of their bytes
  const GgufTensor* find(std::string_view name) const;                 // null where there is none

  // A key's value, or nothing where it is absent; another kind of value is an error that names both. A
  // float32 becomes the double that its shortest decimal form says: 1e-05, not 9.999999747378752e-06.
  template <class T>
  Result<std::optional<T>> get(std::string_view key) const {
    const auto it = values_.find(key);
    if (it == values_.end()) return std::optional<T>();
    if (const T* value = std::get_if<T>(&it->second)) return std::optional<T>(*value);
    return user_error("{}: {} is {}; {} is expected", path_, key, gguf_value_kind(it->second),
                      gguf_value_kind(GgufValue(T{})));
  }

  // Elements [begin, begin + count) as f32, dequantised as ggml does: in f32, scale times number (plus
  // minimum). Whole blocks of a Q type: begin and count are multiples of 32.
  void read_as_f32(const GgufTensor& tensor, float* out, int64_t begin, int64_t count) const;

 private:
  GgufReader() = default;
  Status read(std::span<const std::byte> bytes);
  Status place_tensors(uint64_t alignment);

  std::string path_;
  std::optional<MappedFile> file_;
  std::span<const std::byte> data_;
  std::map<std::string, GgufValue, std::less<>> values_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string, size_t> index_;
};

}  // namespace lignum
