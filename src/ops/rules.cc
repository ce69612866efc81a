#include "ops/rules.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/rows.h"

namespace lignum::ops {
namespace {

constexpr int64_t kMaxElements = int64_t{1} << 50;

template <class T>
Result<T> attr_of(const Attrs& attrs, std::string_view key, std::string_view wanted) {
  if (!attrs.has<T>(key)) return user_error("attribute {} is {}: give it", key, wanted);
  return attrs.get<T>(key);
}

Status sizes_fit(const Dims& dims) {
  if (dims.size() > static_cast<size_t>(kernels::kMaxRank))
    return user_error("{} dims; at most {}", dims.size(), kernels::kMaxRank);
  int64_t elements = 1;
  for (const int64_t d : dims) {
    if (d < 0) return user_error("dim {}; dims are at least 0", d);
    if (d > kMaxElements || elements > kMaxElements / std::max<int64_t>(d, 1))
      return user_error("more than 2^50 elements");
    elements *= std::max<int64_t>(d, 1);
  }
  return {};
}

}  // namespace

Status expect_inputs(std::span<const Type> in, size_t count) {
  if (in.size() != count) return user_error("takes {} inputs, not {}", count, in.size());
  for (const Type& t : in) {
    if (t.async) return user_error("takes no async value; await {} first", ir::to_string(t));
    if (t.host) return user_error("takes no value in host memory; fetch {} first", ir::to_string(t));
  }
  return {};
}

Status expect_dtype(const Type& t, std::string_view what, std::initializer_list<DType> allowed) {
  if (std::find(allowed.begin(), allowed.end(), t.dtype) != allowed.end()) return {};
  std::string names;
  for (const DType d : allowed) names += (names.empty() ? "" : ", ") + std::string(dtype_name(d));
  return user_error("{} is {}; allowed: {}", what, dtype_name(t.dtype), names);
}

Status expect_same_dims(const Type& a, const Type& b) {
  if (a.dims == b.dims) return {};
  return user_error("{} and {} differ in dims; there is no implicit broadcasting", ir::to_string(a),
                    ir::to_string(b));
}

Result<std::string> string_attr(const Attrs& attrs, std::string_view key) {
  return attr_of<std::string>(attrs, key, "a string");
}
Result<int64_t> int_attr(const Attrs& attrs, std::string_view key) {
  return attr_of<int64_t>(attrs, key, "a whole number");
}
Result<double> double_attr(const Attrs& attrs, std::string_view key) {
  return attr_of<double>(attrs, key, "a number");
}
Result<bool> bool_attr(const Attrs& attrs, std::string_view key) {
  return attr_of<bool>(attrs, key, "true or false");
}

Result<DType> dtype_attr(const Attrs& attrs, std::string_view key) {
  LIGNUM_ASSIGN_OR_RETURN(const std::string name, string_attr(attrs, key));
  const auto dtype = dtype_from_name(name);
  if (!dtype) return user_error("attribute {}=\"{}\": no such dtype; f32, bf16, i32, pred ...", key, name);
  return *dtype;
}

Result<Dims> dims_attr(const Attrs& attrs, std::string_view key) {
  LIGNUM_ASSIGN_OR_RETURN(const Dims dims, attr_of<Dims>(attrs, key, "a list of whole numbers"));
  LIGNUM_RETURN_IF_ERROR(sizes_fit(dims).with_context(fmt::format("attribute {}", key)));
  return dims;
}

Result<Dims> indices_attr(const Attrs& attrs, std::string_view key, int64_t rank) {
  LIGNUM_ASSIGN_OR_RETURN(const Dims list, attr_of<Dims>(attrs, key, "a list of dims' indices"));
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i] < 0 || list[i] >= rank)
      return user_error("attribute {}: {} is no dim of a tensor of rank {}", key, list[i], rank);
    if (std::find(list.begin(), list.begin() + static_cast<int64_t>(i), list[i]) !=
        list.begin() + static_cast<int64_t>(i))
      return user_error("attribute {}: {} is there twice", key, list[i]);
  }
  return list;
}

Result<Types> one_type(DType dtype, Dims dims, std::vector<std::string> names) {
  LIGNUM_RETURN_IF_ERROR(sizes_fit(dims).with_context("result"));
  Type t;
  t.dtype = dtype;
  t.dims = std::move(dims);
  t.names = tidy_names(std::move(names));
  return Types{std::move(t)};
}

std::string name_of(const Type& t, int64_t i) {
  return t.names.empty() ? std::string() : t.names[static_cast<size_t>(i)];
}

std::vector<std::string> tidy_names(std::vector<std::string> names) {
  const bool none = std::all_of(names.begin(), names.end(), [](const std::string& n) { return n.empty(); });
  return none ? std::vector<std::string>() : std::move(names);
}

Dims row_major_strides(std::span<const int64_t> dims) {
  Dims strides(dims.size(), 1);
  for (size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
  return strides;
}

Dims others(int64_t rank, std::initializer_list<std::span<const int64_t>> lists) {
  Dims out;
  for (int64_t i = 0; i < rank; ++i) {
    bool taken = false;
    for (const auto& list : lists) taken |= std::find(list.begin(), list.end(), i) != list.end();
    if (!taken) out.push_back(i);
  }
  return out;
}

std::vector<int> factors(int64_t rank, int first) {
  std::vector<int> out;
  for (int64_t i = 0; i < rank; ++i) out.push_back(first + static_cast<int>(i));
  return out;
}

void for_each_index(std::span<const int64_t> dims, const std::function<void(const Dims&, int64_t)>& fn) {
  int64_t elements = 1;
  for (const int64_t d : dims) elements *= d;
  Dims index(dims.size(), 0);
  for (int64_t n = 0; n < elements; ++n) {
    fn(index, n);
    for (size_t i = dims.size(); i-- > 0;) {
      if (++index[i] < dims[i]) break;
      index[i] = 0;
    }
  }
}

std::string mlir_number(DType dtype, double v) {
  if (dtype == DType::pred) return v != 0 ? "true" : "false";
  if (!dtype_is_float(dtype)) return fmt::format("{}", static_cast<int64_t>(v));
  // Rounded here, so that no parser rounds a second time; what is not finite goes by its bits.
  std::array<unsigned char, 8> bytes{};
  store_from_double(dtype, bytes.data(), 0, v);
  const double rounded = load_as_double(dtype, bytes.data(), 0);
  if (std::isfinite(rounded)) return fmt::format("{:.16e}", rounded);
  uint64_t bits = 0;
  std::memcpy(&bits, bytes.data(), bytes.size());
  return fmt::format("0x{:0{}X}", bits, 2 * dtype_size(dtype));
}

std::string mlir_list(std::span<const int64_t> v) {
  std::string out = "[";
  for (size_t i = 0; i < v.size(); ++i) out += fmt::format("{}{}", i == 0 ? "" : ", ", v[i]);
  return out + "]";
}

std::string mlir_types(std::span<const Type> v) {
  std::string out = "(";
  for (size_t i = 0; i < v.size(); ++i) out += (i == 0 ? "" : ", ") + mlir_type(v[i]);
  return out + ")";
}

}  // namespace lignum::ops
