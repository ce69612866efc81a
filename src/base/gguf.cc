#include "base/gguf.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <utility>

#include "base/dtype.h"
#include "base/half.h"
#include "base/text.h"

namespace lignum {
namespace {

constexpr uint64_t kMaxName = 64, kMaxKey = 65535, kMaxElements = uint64_t{1} << 50;
constexpr int64_t kBlock = 32;  // elements of a Q type's block

// What is read of each type: its bytes a block of `block` elements.
struct TypeRow {
  GgufType type;
  std::string_view name;
  int64_t block, bytes;
};
constexpr std::array<TypeRow, 6> kTypes = {{{GgufType::f32, "F32", 1, 4},
                                            {GgufType::f16, "F16", 1, 2},
                                            {GgufType::q4_0, "Q4_0", kBlock, 18},
                                            {GgufType::q4_1, "Q4_1", kBlock, 20},
                                            {GgufType::q8_0, "Q8_0", kBlock, 34},
                                            {GgufType::bf16, "BF16", 1, 2}}};
const TypeRow* find_type(uint32_t number) {
  for (const TypeRow& row : kTypes)
    if (static_cast<uint32_t>(row.type) == number) return &row;
  return nullptr;
}
const TypeRow& row_of(GgufType type) { return *find_type(static_cast<uint32_t>(type)); }

// Types that ggml has beside those, for messages.
std::string_view other_type(uint32_t number) {
  constexpr std::array<std::pair<uint32_t, std::string_view>, 14> kNames = {{{6, "Q5_0"},
                                                                             {7, "Q5_1"},
                                                                             {9, "Q8_1"},
                                                                             {10, "Q2_K"},
                                                                             {11, "Q3_K"},
                                                                             {12, "Q4_K"},
                                                                             {13, "Q5_K"},
                                                                             {14, "Q6_K"},
                                                                             {15, "Q8_K"},
                                                                             {24, "I8"},
                                                                             {25, "I16"},
                                                                             {26, "I32"},
                                                                             {27, "I64"},
                                                                             {28, "F64"}}};
  for (const auto& [n, name] : kNames)
    if (n == number) return name;
  return "unknown";
}

// Values' types, by the file's numbers.
enum ValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};
// The fewest bytes that a value of the type takes; 0: no such type.
uint64_t least_bytes(uint32_t type) {
  switch (type) {
    case kU8:
    case kI8:
    case kBool:
      return 1;
    case kU16:
    case kI16:
      return 2;
    case kU32:
    case kI32:
    case kF32:
      return 4;
    case kString:
    case kU64:
    case kI64:
    case kF64:
      return 8;
    case kArray:
      return 12;
    default:
      return 0;
  }
}

class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

  uint64_t at() const { return at_; }
  uint64_t left() const { return bytes_.size() - at_; }

  template <class T>
  Result<T> number(std::string_view what) {
    if (left() < sizeof(T)) return user_error("the file ends at byte {}, inside {}", bytes_.size(), what);
    T value;
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  Result<std::string_view> text(std::string_view what, uint64_t most = UINT64_MAX) {
    LIGNUM_ASSIGN_OR_RETURN(const uint64_t size, number<uint64_t>(what));
    if (size > most)
      return user_error("{} of {} bytes at byte {}: at most {} are allowed", what, size, at_, most);
    if (size > left())
      return user_error("{} at byte {} has {} bytes, which reach beyond the file of {}", what, at_, size,
                        bytes_.size());
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + at_, size);
    at_ += size;
    return text;
  }

 private:
  std::span<const std::byte> bytes_;
  uint64_t at_ = 0;
};

// The double that the shortest decimal form of a float says.
double as_written(float x) {
  return std::isfinite(x) ? std::strtod(fmt::format("{}", x).c_str(), nullptr) : x;
}

template <class File, class T>
Result<T> read_number(Cursor& in) {
  LIGNUM_ASSIGN_OR_RETURN(const File value, in.number<File>("a value"));
  if constexpr (std::is_same_v<File, uint64_t>) {
    if (value > static_cast<uint64_t>(INT64_MAX)) return user_error("{} is more than 2^63 - 1", value);
  }
  if constexpr (std::is_same_v<File, float>) {
    return as_written(value);
  } else {
    return static_cast<T>(value);
  }
}
Result<bool> read_bool(Cursor& in) {
  LIGNUM_ASSIGN_OR_RETURN(const auto value, in.number<uint8_t>("a value"));
  if (value > 1) return user_error("a boolean is {}; 0 and 1 are allowed", value);
  return value != 0;
}
Result<std::string_view> read_string(Cursor& in) { return in.text("a string"); }

template <class T, class Read>
Result<GgufValue> one_or_list(Cursor& in, std::optional<uint64_t> count, Read read) {
  if (!count) {
    LIGNUM_ASSIGN_OR_RETURN(T value, read(in));
    return GgufValue(std::move(value));
  }
  std::vector<T> list;
  for (uint64_t i = 0; i < *count; ++i) {
    LIGNUM_ASSIGN_OR_RETURN(T value, read(in));
    list.push_back(std::move(value));
  }
  return GgufValue(std::move(list));
}

// A value, or a list of `count`.
Result<GgufValue> read_values(Cursor& in, uint32_t type, std::optional<uint64_t> count) {
  switch (type) {
    case kU8:
      return one_or_list<int64_t>(in, count, read_number<uint8_t, int64_t>);
    case kI8:
      return one_or_list<int64_t>(in, count, read_number<int8_t, int64_t>);
    case kU16:
      return one_or_list<int64_t>(in, count, read_number<uint16_t, int64_t>);
    case kI16:
      return one_or_list<int64_t>(in, count, read_number<int16_t, int64_t>);
    case kU32:
      return one_or_list<int64_t>(in, count, read_number<uint32_t, int64_t>);
    case kI32:
      return one_or_list<int64_t>(in, count, read_number<int32_t, int64_t>);
    case kU64:
      return one_or_list<int64_t>(in, count, read_number<uint64_t, int64_t>);
    case kI64:
      return one_or_list<int64_t>(in, count, read_number<int64_t, int64_t>);
    case kF32:
      return one_or_list<double>(in, count, read_number<float, double>);
    case kF64:
      return one_or_list<double>(in, count, read_number<double, double>);
    case kBool:
      return one_or_list<bool>(in, count, read_bool);
    case kString:
      return one_or_list<std::string_view>(in, count, read_string);
    default:
      return user_error("type {} is none of the format's", type);
  }
}

Result<GgufValue> read_value(Cursor& in) {
  LIGNUM_ASSIGN_OR_RETURN(const auto type, in.number<uint32_t>("a value's type"));
  if (type != kArray) return read_values(in, type, {});
  LIGNUM_ASSIGN_OR_RETURN(const auto item, in.number<uint32_t>("a list's type"));
  LIGNUM_ASSIGN_OR_RETURN(const auto count, in.number<uint64_t>("a list's length"));
  if (item == kArray) return user_error("a list of lists is not implemented");
  if (const uint64_t least = least_bytes(item); least > 0 && count > in.left() / least)
    return user_error("a list of {} values at byte {} reaches beyond the file", count, in.at());
  return read_values(in, item, count);
}

Result<GgufTensor> read_tensor(Cursor& in) {
  GgufTensor t;
  LIGNUM_ASSIGN_OR_RETURN(const std::string_view name, in.text("a tensor's name", kMaxName));
  if (!is_utf8(name)) return user_error("tensor '{}': the name is not UTF-8", shown(name));
  t.name = name;
  const auto refuse = [&](const std::string& why) { return user_error("tensor '{}': {}", shown(name), why); };
  LIGNUM_ASSIGN_OR_RETURN(const auto rank, in.number<uint32_t>("a tensor's number of dims"));
  if (rank < 1 || rank > 4) return refuse(fmt::format("{} dims; 1 to 4 are allowed", rank));
  uint64_t elements = 1;
  for (uint32_t i = 0; i < rank; ++i) {
    LIGNUM_ASSIGN_OR_RETURN(const auto dim, in.number<uint64_t>("a tensor's dims"));
    if (dim > kMaxElements || (dim > 0 && elements > kMaxElements / dim))
      return refuse(fmt::format("the shape is of more than {} elements", kMaxElements));
    elements *= dim;
    t.shape.insert(t.shape.begin(), static_cast<int64_t>(dim));
  }
  t.elements = static_cast<int64_t>(elements);
  LIGNUM_ASSIGN_OR_RETURN(const auto type, in.number<uint32_t>("a tensor's type"));
  const TypeRow* row = find_type(type);
  if (row == nullptr)
    return refuse(fmt::format("type {} ({}) is not implemented; F32, F16, BF16, Q4_0, Q4_1 and Q8_0 are",
                              type, other_type(type)));
  t.type = row->type;
  if (t.shape.back() % row->block != 0)
    return refuse(fmt::format("rows of {} elements are not whole blocks of {}, which {} has", t.shape.back(),
                              row->block, row->name));
  LIGNUM_ASSIGN_OR_RETURN(t.begin, in.number<uint64_t>("a tensor's offset"));
  const uint64_t bytes = elements / static_cast<uint64_t>(row->block) * static_cast<uint64_t>(row->bytes);
  if (t.begin > UINT64_MAX - bytes) return refuse(fmt::format("offset {} is past any file", t.begin));
  t.end = t.begin + bytes;
  return t;
}

float half_at(const std::byte* p) {
  uint16_t bits = 0;
  std::memcpy(&bits, p, sizeof(bits));
  return half_to_float(bits);
}

// A block of 4-bit numbers: element i is the low half of byte i, element 16 + i the high half.
template <class Value>
void unpack_nibbles(const std::byte* p, float* out, Value value) {
  for (int64_t i = 0; i < kBlock / 2; ++i) {
    const auto byte = std::to_integer<unsigned>(p[i]);
    out[i] = value(static_cast<float>(byte & 0xfu));
    out[i + kBlock / 2] = value(static_cast<float>(byte >> 4));
  }
}

void dequantise(GgufType type, const std::byte* p, float* out) {
  const float scale = half_at(p);
  if (type == GgufType::q4_0) {
    unpack_nibbles(p + 2, out, [=](float q) { return (q - 8.0f) * scale; });
  } else if (type == GgufType::q4_1) {
    const float minimum = half_at(p + 2);
    unpack_nibbles(p + 4, out, [=](float q) { return q * scale + minimum; });
  } else {
    for (int64_t i = 0; i < kBlock; ++i)
      out[i] = static_cast<float>(static_cast<int8_t>(std::to_integer<uint8_t>(p[2 + i]))) * scale;
  }
}

}  // namespace

std::string_view gguf_value_kind(const GgufValue& value) {
  constexpr std::array<std::string_view, 8> kKinds = {
      "a boolean",          "an integer",         "a number",          "a string",
      "a list of booleans", "a list of integers", "a list of numbers", "a list of strings"};
  return kKinds[value.index()];
}

Result<GgufReader> GgufReader::open(const std::string& path) {
  LIGNUM_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
  GgufReader reader;
  reader.path_ = path;
  reader.file_ = std::move(file);
  LIGNUM_RETURN_IF_ERROR(reader.read(reader.file_->bytes()).with_context(path));
  return reader;
}

Result<GgufReader> GgufReader::parse(std::span<const std::byte> bytes, const std::string& name) {
  GgufReader reader;
  reader.path_ = name;
  LIGNUM_RETURN_IF_ERROR(reader.read(bytes).with_context(name));
  return reader;
}

Status GgufReader::read(std::span<const std::byte> bytes) {
  constexpr std::string_view kMagic = "GGUF";
  if (bytes.size() < kMagic.size() || std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0)
    return user_error("the file does not begin with \"GGUF\"");
  Cursor in(bytes.subspan(kMagic.size()));
  LIGNUM_ASSIGN_OR_RETURN(const auto version, in.number<uint32_t>("the version"));
  if (version != 2 && version != 3) return user_error("version {}; 2 and 3 are read, little-endian", version);
  LIGNUM_ASSIGN_OR_RETURN(const auto tensors, in.number<uint64_t>("the number of tensors"));
  LIGNUM_ASSIGN_OR_RETURN(const auto pairs, in.number<uint64_t>("the number of keys"));
  for (uint64_t i = 0; i < pairs; ++i) {
    LIGNUM_ASSIGN_OR_RETURN(const std::string_view key, in.text("a key", kMaxKey));
    if (!is_utf8(key)) return user_error("key '{}' is not UTF-8", shown(key));
    Result<GgufValue> value = read_value(in);
    if (!value.ok()) return value.status().with_context(fmt::format("key '{}'", shown(key)));
    if (!values_.emplace(key, *std::move(value)).second)
      return user_error("key '{}' stands twice", shown(key));
  }
  for (uint64_t i = 0; i < tensors; ++i) {
    LIGNUM_ASSIGN_OR_RETURN(GgufTensor t, read_tensor(in));
    tensors_.push_back(std::move(t));
  }
  const auto chosen = values_.find("general.alignment");
  if (chosen != values_.end() && !std::holds_alternative<int64_t>(chosen->second))
    return user_error("general.alignment is {}; an integer is expected", gguf_value_kind(chosen->second));
  const int64_t alignment = chosen == values_.end() ? 32 : std::get<int64_t>(chosen->second);
  if (alignment < 8 || alignment > 1 << 20 || alignment % 8 != 0)
    return user_error("general.alignment is {}; multiples of 8 up to 2^20 are allowed", alignment);
  const auto step = static_cast<uint64_t>(alignment);
  const uint64_t header = (kMagic.size() + in.at() + step - 1) / step * step;
  data_ = header < bytes.size() ? bytes.subspan(header) : std::span<const std::byte>();
  return place_tensors(step);
}

// Each range in the data, at a multiple of the alignment, after the one before it with padding alone between.
Status GgufReader::place_tensors(uint64_t alignment) {
  std::sort(tensors_.begin(), tensors_.end(), [](const GgufTensor& a, const GgufTensor& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  uint64_t end = 0;
  const GgufTensor* before = nullptr;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const GgufTensor& t = tensors_[i];
    const auto refuse = [&](const std::string& why) {
      return user_error("tensor '{}': {}", shown(t.name), why);
    };
    if (!index_.emplace(t.name, i).second) return refuse("a second one of that name");
    if (t.begin % alignment != 0)
      return refuse(fmt::format("offset {} is not a multiple of the alignment, {}", t.begin, alignment));
    if (t.end > data_.size())
      return refuse(fmt::format("bytes {} to {} reach beyond the data of {}", t.begin, t.end, data_.size()));
    if (t.begin < end)
      return refuse(fmt::format("overlaps tensor '{}' by {} bytes", shown(before->name), end - t.begin));
    if (t.begin - end >= alignment) return refuse(fmt::format("a gap of {} bytes before it", t.begin - end));
    end = t.end;
    before = &t;
  }
  if (data_.size() - end >= alignment)
    return user_error("{} bytes of data follow the last tensor", data_.size() - end);
  return {};
}

const GgufTensor* GgufReader::find(std::string_view name) const {
  const auto it = index_.find(std::string(name));
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

void GgufReader::read_as_f32(const GgufTensor& tensor, float* out, int64_t begin, int64_t count) const {
  const TypeRow& row = row_of(tensor.type);
  LIGNUM_CHECK(begin >= 0 && count >= 0 && count <= tensor.elements - begin && begin % row.block == 0 &&
                   count % row.block == 0,
               "{}: [{}, +{}) of {}", tensor.name, begin, count, tensor.elements);
  const std::byte* p = data_.data() + tensor.begin + begin / row.block * row.bytes;
  for (int64_t i = 0; i < count; i += row.block, p += row.bytes) {
    if (row.block > 1) {
      dequantise(tensor.type, p, out + i);
    } else if (tensor.type == GgufType::f32) {
      std::memcpy(out + i, p, sizeof(float));
    } else if (tensor.type == GgufType::f16) {
      out[i] = half_at(p);
    } else {
      bf16 value;
      std::memcpy(&value, p, sizeof(value));
      out[i] = to_float(value);
    }
  }
}

}  // namespace lignum
