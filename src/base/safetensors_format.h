// The safetensors format's types, arithmetic and header, shared by the reader and the writer.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/safetensors.h"
#include "base/status.h"

namespace lignum::safetensors {

inline constexpr uint64_t kLengthBytes = 8;
inline constexpr uint64_t kMaxHeader = 100'000'000;  // the format's own limit
inline constexpr std::string_view kMetadata = "__metadata__";

struct DtypeRow {
  std::string_view text;
  int bits;
  std::optional<DType> dtype;
};
const DtypeRow* find_dtype(std::string_view text);  // null where the format has no such type

std::string shape_text(const std::vector<int64_t>& shape);

// The product of the dims, or nothing where it does not fit int64. Zeros do not hide an overflow of the
// others.
std::optional<int64_t> element_count(const std::vector<int64_t>& shape);
// Bytes of `count` elements, or nothing where that is no whole number or does not fit.
std::optional<uint64_t> byte_count(int64_t count, int bits);

struct Header {
  std::vector<TensorInfo> tensors;  // in the header's order; names unique, nothing else checked
  std::map<std::string, std::string> metadata;
};
Result<Header> parse_header(std::string_view json);
// Type, shape and range of one tensor against each other and against the data section's size; sets dtype and
// elements.
Status check_tensor(TensorInfo& tensor, uint64_t data_size);

}  // namespace lignum::safetensors
