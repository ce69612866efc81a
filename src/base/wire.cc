#include "base/wire.h"

#include <bit>

namespace lignum::wire {

void Writer::raw_varint(uint64_t value) {
  while (value >= 0x80) {
    out_.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out_.push_back(static_cast<char>(value));
}

void Writer::varint(int field, uint64_t value) {
  tag(field, 0);
  raw_varint(value);
}

void Writer::fixed64(int field, double value) {
  tag(field, 1);
  const auto bits = std::bit_cast<uint64_t>(value);
  for (int i = 0; i < 8; ++i) out_.push_back(static_cast<char>(bits >> (8 * i)));
}

void Writer::fixed32(int field, float value) {
  tag(field, 5);
  const auto bits = std::bit_cast<uint32_t>(value);
  for (int i = 0; i < 4; ++i) out_.push_back(static_cast<char>(bits >> (8 * i)));
}

void Writer::bytes(int field, std::string_view value) {
  tag(field, 2);
  raw_varint(value.size());
  out_.append(value);
}

void Writer::packed(int field, const std::vector<int64_t>& values) {
  Writer body;
  for (int64_t v : values) body.raw_varint(static_cast<uint64_t>(v));
  bytes(field, body.out_);
}

double Field::real() const { return std::bit_cast<double>(value); }
float Field::single() const { return std::bit_cast<float>(static_cast<uint32_t>(value)); }

bool Reader::fail(const char* what) {
  status_ = check_failed("protobuf message: {} at byte {} of {}", what, size_ - rest_.size(), size_);
  return false;
}

bool Reader::raw_varint(uint64_t& value) {
  value = 0;
  for (size_t i = 0; i < 10; ++i) {
    if (i >= rest_.size()) return fail("varint cut short");
    const auto byte = static_cast<uint8_t>(rest_[i]);
    if (i == 9 && byte > 1) return fail("varint beyond 64 bits");
    value |= static_cast<uint64_t>(byte & 0x7f) << (7 * i);
    if (byte < 0x80) {
      rest_.remove_prefix(i + 1);
      return true;
    }
  }
  return fail("varint beyond ten bytes");
}

bool Reader::fixed(size_t size, uint64_t& value) {
  if (rest_.size() < size) return fail("fixed field cut short");
  value = 0;
  for (size_t i = 0; i < size; ++i) value |= static_cast<uint64_t>(static_cast<uint8_t>(rest_[i])) << (8 * i);
  rest_.remove_prefix(size);
  return true;
}

bool Reader::next(Field& field) {
  if (!status_.ok() || rest_.empty()) return false;
  uint64_t tag = 0;
  if (!raw_varint(tag)) return false;
  const uint64_t number = tag >> 3;
  if (number == 0 || number > (1u << 29) - 1) return fail("impossible field number");
  field = {};
  field.number = static_cast<int>(number);
  switch (tag & 7) {
    case 0:
      field.type = Type::varint;
      return raw_varint(field.value);
    case 1:
      field.type = Type::fixed64;
      return fixed(8, field.value);
    case 2: {
      field.type = Type::bytes;
      uint64_t size = 0;
      if (!raw_varint(size)) return false;
      if (size > rest_.size()) return fail("length-delimited field cut short");
      field.bytes = rest_.substr(0, size);
      rest_.remove_prefix(size);
      return true;
    }
    case 5:
      field.type = Type::fixed32;
      return fixed(4, field.value);
    default:
      return fail("unsupported wire type");
  }
}

Status append_integers(const Field& field, std::vector<int64_t>& out) {
  if (field.type == Type::varint) {
    out.push_back(field.integer());
    return {};
  }
  if (field.type != Type::bytes) return check_failed("protobuf field {}: integers expected", field.number);
  std::string_view rest = field.bytes;
  while (!rest.empty()) {
    uint64_t value = 0;
    size_t used = 0;
    for (int shift = 0;; shift += 7) {
      if (used == rest.size() || shift > 63)
        return check_failed("protobuf field {}: packed varint malformed", field.number);
      const auto byte = static_cast<uint8_t>(rest[used++]);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) break;
    }
    out.push_back(static_cast<int64_t>(value));
    rest.remove_prefix(used);
  }
  return {};
}

}  // namespace lignum::wire
