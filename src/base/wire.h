// The protobuf wire format, as far as messages of PJRT and TensorBoard need it: varints, length-delimited
// fields, fixed 32 and 64 bits. https://protobuf.dev/programming-guides/encoding/
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace lignum::wire {

// Appends fields to a message in the order of the calls. Nothing is left out: a caller that means proto3's
// default writes nothing.
class Writer {
 public:
  void varint(int field, uint64_t value);
  // int32, int64 and enum fields: a negative value takes ten bytes, as the format demands.
  void integer(int field, int64_t value) { varint(field, static_cast<uint64_t>(value)); }
  void boolean(int field, bool value) { varint(field, value ? 1 : 0); }
  void fixed64(int field, double value);
  void fixed32(int field, float value);
  void bytes(int field, std::string_view value);  // string, bytes, and embedded messages
  void packed(int field, const std::vector<int64_t>& values);

  const std::string& str() const& { return out_; }
  std::string str() && { return std::move(out_); }

 private:
  void raw_varint(uint64_t value);
  void tag(int field, int wire_type) {
    raw_varint(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(wire_type));
  }

  std::string out_;
};

enum class Type { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

struct Field {
  int number = 0;
  Type type = Type::varint;
  uint64_t value = 0;      // varint; the bits of fixed64 and fixed32
  std::string_view bytes;  // a view into the message

  int64_t integer() const { return static_cast<int64_t>(value); }
  double real() const;   // of fixed64
  float single() const;  // of fixed32
};

// Walks a message's fields: while (reader.next(field)) ...; then LIGNUM_RETURN_IF_ERROR(reader.status()).
// Malformed input (cut short, field number 0, group wire types, varint beyond ten bytes) ends the walk with
// an error.
class Reader {
 public:
  explicit Reader(std::string_view message) : rest_(message), size_(message.size()) {}

  bool next(Field& field);
  const Status& status() const { return status_; }

 private:
  bool raw_varint(uint64_t& value);
  bool fixed(size_t size, uint64_t& value);
  bool fail(const char* what);

  std::string_view rest_;
  size_t size_;
  Status status_;
};

// A repeated int64 field arrives packed (one bytes field) or as single varints: appends either to out.
Status append_integers(const Field& field, std::vector<int64_t>& out);

}  // namespace lignum::wire
