#include "base/safetensors_format.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/text.h"

namespace lignum {
namespace safetensors {
namespace {

using Json = nlohmann::json;

// The format's types; 4- and 6-bit ones are packed.
constexpr std::array<DtypeRow, 20> kDtypes = {{{"BOOL", 8, DType::pred},
                                               {"F4", 4, {}},
                                               {"F6_E2M3", 6, {}},
                                               {"F6_E3M2", 6, {}},
                                               {"U8", 8, DType::u8},
                                               {"I8", 8, {}},
                                               {"F8_E5M2", 8, DType::f8e5m2},
                                               {"F8_E4M3", 8, DType::f8e4m3fn},
                                               {"F8_E8M0", 8, {}},
                                               {"I16", 16, {}},
                                               {"U16", 16, {}},
                                               {"F16", 16, {}},
                                               {"BF16", 16, DType::bf16},
                                               {"I32", 32, DType::i32},
                                               {"U32", 32, DType::u32},
                                               {"F32", 32, DType::f32},
                                               {"C64", 64, {}},
                                               {"F64", 64, DType::f64},
                                               {"I64", 64, DType::i64},
                                               {"U64", 64, {}}}};

// Reads the header as a stream of events: no tree is built, depth costs nothing, and equal keys are seen.
class HeaderEvents final : public nlohmann::json_sax<Json> {
 public:
  std::vector<TensorInfo> tensors;
  std::map<std::string, std::string> metadata;
  std::string error;  // why the parse stopped

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return unexpected("a number that is not a 64-bit integer");
  }
  bool binary(binary_t&) override { return unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::shape) {
      if (value > static_cast<uint64_t>(INT64_MAX)) return refuse(fmt::format("dim {} is too large", value));
      tensors.back().shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (place_ == Place::offsets) {
      if (offsets_ == 2) return refuse("data_offsets has more than two numbers");
      (offsets_++ == 0 ? tensors.back().begin : tensors.back().end) = value;
      return true;
    }
    return unexpected("a number");
  }

  bool string(string_t& value) override {
    if (place_ == Place::metadata) {
      metadata.emplace(key_, value);
      return true;
    }
    if (place_ == Place::tensor && key_ == "dtype") {
      tensors.back().dtype_text = value;
      return true;
    }
    return unexpected("a string");
  }

  bool start_object(size_t) override {
    if (place_ == Place::outside) {
      place_ = Place::top;
      return true;
    }
    if (place_ != Place::top) return unexpected("an object");
    fields_.clear();
    if (key_ == kMetadata) {
      place_ = Place::metadata;
    } else {
      place_ = Place::tensor;
      tensors.emplace_back().name = key_;
    }
    return true;
  }

  bool key(string_t& name) override {
    key_ = name;
    if (place_ == Place::top) {
      if (!names_.insert(name).second) {
        return name == kMetadata ? refuse("__metadata__ appears twice")
                                 : refuse_tensor(name, "appears twice");
      }
      return true;
    }
    if (place_ == Place::tensor && name != "dtype" && name != "shape" && name != "data_offsets") {
      return refuse(fmt::format("unknown field '{}'; known: dtype, shape, data_offsets", shown(name)));
    }
    if (!fields_.insert(name).second) return refuse(fmt::format("field '{}' appears twice", shown(name)));
    return true;
  }

  bool end_object() override {
    if (place_ == Place::tensor) {
      for (const char* field : {"dtype", "shape", "data_offsets"}) {
        if (!fields_.contains(field)) return refuse(fmt::format("field '{}' is missing", field));
      }
    }
    place_ = place_ == Place::top ? Place::outside : Place::top;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ == Place::tensor && key_ == "shape") {
      place_ = Place::shape;
      return true;
    }
    if (place_ == Place::tensor && key_ == "data_offsets") {
      place_ = Place::offsets;
      offsets_ = 0;
      return true;
    }
    return unexpected("a list");
  }

  bool end_array() override {
    if (place_ == Place::offsets && offsets_ != 2) return refuse("data_offsets needs two numbers");
    place_ = Place::tensor;
    return true;
  }

  bool parse_error(size_t, const std::string&, const Json::exception& exception) override {
    error = fmt::format("the header is not JSON: {}", shown(exception.what()));
    return false;
  }

 private:
  enum class Place { outside, top, tensor, shape, offsets, metadata };

  bool refuse_tensor(std::string_view name, std::string_view reason) {
    error = fmt::format("tensor '{}': {}", shown(name), reason);
    return false;
  }

  // Says which tensor, where the place is inside one.
  bool refuse(std::string_view reason) {
    if (place_ == Place::tensor || place_ == Place::shape || place_ == Place::offsets) {
      return refuse_tensor(tensors.back().name, reason);
    }
    error = place_ == Place::metadata ? fmt::format("{}: {}", kMetadata, reason) : std::string(reason);
    return false;
  }

  bool unexpected(std::string_view what) {
    switch (place_) {
      case Place::outside:
        return refuse(fmt::format("the header is {}, not an object", what));
      case Place::top:
        return key_ == kMetadata
                   ? refuse(fmt::format("{} is {}, not an object", kMetadata, what))
                   : refuse_tensor(key_, fmt::format("described by {}, not by an object", what));
      case Place::tensor:
        return refuse(fmt::format("field '{}' is {}", key_, what));
      case Place::shape:
        return refuse(fmt::format("shape holds {}", what));
      case Place::offsets:
        return refuse(fmt::format("data_offsets holds {}", what));
      case Place::metadata:
        return refuse(fmt::format("'{}' is {}, not a string", shown(key_), what));
    }
    return false;
  }

  Place place_ = Place::outside;
  std::string key_;
  int offsets_ = 0;
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> fields_;  // of the object that is being read
};

}  // namespace

const DtypeRow* find_dtype(std::string_view text) {
  const auto* row = std::find_if(kDtypes.begin(), kDtypes.end(), [&](auto& r) { return r.text == text; });
  return row == kDtypes.end() ? nullptr : row;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  constexpr size_t kShown = 16;
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i == kShown) return text + ", ...]";
    text += fmt::format("{}{}", i == 0 ? "" : ", ", shape[i]);
  }
  return text + "]";
}

std::optional<int64_t> element_count(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  bool empty = false;
  for (const int64_t dim : shape) {
    if (dim == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(count, dim, &count)) {
      return {};
    }
  }
  return empty ? 0 : count;
}

std::optional<uint64_t> byte_count(int64_t count, int bits) {
  uint64_t total = 0;
  if (__builtin_mul_overflow(static_cast<uint64_t>(count), static_cast<uint64_t>(bits), &total)) return {};
  if (total % 8 != 0) return {};
  return total / 8;
}

Result<Header> parse_header(std::string_view json) {
  if (!json.starts_with('{')) return user_error("the header does not begin with '{{'");
  HeaderEvents events;
  if (!Json::sax_parse(json, &events)) return user_error("{}", events.error);
  return Header{std::move(events.tensors), std::move(events.metadata)};
}

Status check_tensor(TensorInfo& tensor, uint64_t data_size) {
  const DtypeRow* row = find_dtype(tensor.dtype_text);
  if (row == nullptr) {
    std::string known;
    for (const DtypeRow& r : kDtypes) known += fmt::format("{}{}", known.empty() ? "" : ", ", r.text);
    return user_error("unknown dtype '{}'; known: {}", shown(tensor.dtype_text), known);
  }
  tensor.dtype = row->dtype;
  const std::optional<int64_t> elements = element_count(tensor.shape);
  const std::optional<uint64_t> bytes = elements ? byte_count(*elements, row->bits) : std::nullopt;
  if (!bytes) {
    return user_error("shape {} of {} is not a whole number of bytes that fits 64 bits",
                      shape_text(tensor.shape), tensor.dtype_text);
  }
  tensor.elements = *elements;
  if (tensor.begin > tensor.end) {
    return user_error("data_offsets [{}, {}] run backwards", tensor.begin, tensor.end);
  }
  if (tensor.end > data_size) {
    return user_error("data_offsets [{}, {}] end beyond the {} bytes of data", tensor.begin, tensor.end,
                      data_size);
  }
  if (tensor.end - tensor.begin != *bytes) {
    return user_error("data_offsets [{}, {}] hold {} bytes, but shape {} of {} needs {}", tensor.begin,
                      tensor.end, tensor.end - tensor.begin, shape_text(tensor.shape), tensor.dtype_text,
                      *bytes);
  }
  return {};
}

}  // namespace safetensors

std::string_view safetensors_dtype(DType dtype) {
  for (const safetensors::DtypeRow& row : safetensors::kDtypes) {
    if (row.dtype == dtype) return row.text;
  }
  LIGNUM_CHECK(false, "dtype {} has no name in safetensors", dtype_name(dtype));
  return {};
}

}  // namespace lignum
