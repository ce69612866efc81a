// Makes GGUF files for tests, byte by byte.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace lignum::testing {

class GgufBuilder {
 public:
  template <class T>
  static std::string raw(T value) {
    std::string bytes(sizeof(T), '\0');
    std::memcpy(bytes.data(), &value, sizeof(T));
    return bytes;
  }
  static std::string text(std::string_view s) { return raw<uint64_t>(s.size()) + std::string(s); }

  // The value's bytes follow its type's number.
  GgufBuilder& value(std::string_view key, uint32_t type, const std::string& bytes) {
    keys_ += text(key) + raw(type) + bytes;
    ++key_count_;
    return *this;
  }
  GgufBuilder& u32(std::string_view key, uint32_t v) { return value(key, 4, raw(v)); }
  GgufBuilder& f32(std::string_view key, float v) { return value(key, 6, raw(v)); }
  GgufBuilder& boolean(std::string_view key, bool v) { return value(key, 7, raw<uint8_t>(v ? 1 : 0)); }
  GgufBuilder& string(std::string_view key, std::string_view v) { return value(key, 8, text(v)); }
  GgufBuilder& strings(std::string_view key, const std::vector<std::string>& list) {
    std::string bytes = raw<uint32_t>(8) + raw<uint64_t>(list.size());
    for (const std::string& s : list) bytes += text(s);
    return value(key, 9, bytes);
  }
  GgufBuilder& integers(std::string_view key, const std::vector<int32_t>& list) {
    std::string bytes = raw<uint32_t>(5) + raw<uint64_t>(list.size());
    for (const int32_t v : list) bytes += raw(v);
    return value(key, 9, bytes);
  }

  // dims as in the file: the innermost first. Without an offset: after the tensors before it.
  GgufBuilder& described(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                         uint64_t offset) {
    tensors_ += text(name) + raw(static_cast<uint32_t>(dims.size()));
    for (const uint64_t d : dims) tensors_ += raw(d);
    tensors_ += raw(type) + raw(offset);
    ++tensor_count_;
    return *this;
  }
  GgufBuilder& tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                      const std::string& bytes) {
    data_.resize((data_.size() + 31) / 32 * 32, '\0');
    described(name, dims, type, data_.size());
    data_ += bytes;
    return *this;
  }
  GgufBuilder& data(size_t bytes) {
    data_.resize(data_.size() + bytes, '\0');
    return *this;
  }

  std::string build() const {
    std::string file = "GGUF" + raw<uint32_t>(3) + raw(tensor_count_) + raw(key_count_) + keys_ + tensors_;
    file.resize((file.size() + 31) / 32 * 32, '\0');
    return file + data_;
  }

 private:
  std::string keys_, tensors_, data_;
  uint64_t key_count_ = 0, tensor_count_ = 0;
};

}  // namespace lignum::testing
