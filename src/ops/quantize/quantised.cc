#include "ops/quantize/quantised.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include "ops/rules.h"

namespace lignum::ops {
namespace {

// A number as the dtype has it.
double rounded(DType dtype, double v) {
  return dtype == DType::bf16 ? static_cast<double>(to_float(bf16(static_cast<float>(v))))
                              : static_cast<double>(static_cast<float>(v));
}

}  // namespace

std::string Calibration::text() const {
  switch (method) {
    case Method::absmax:
      return factor == 1 ? "absmax" : fmt::format("absmax,{}", factor);
    case Method::rms:
      return fmt::format("rms,{}", factor);
    case Method::fixed:
      return fmt::format("fixed,{},{}", -factor, factor);
    case Method::recorded:
      return factor == 1 ? "static" : fmt::format("static,{}", factor);
  }
  LIGNUM_CHECK(false, "method {}", static_cast<int>(method));
  __builtin_unreachable();
}

Result<Calibration> parse_calibration(std::string_view text) {
  constexpr std::string_view kAllowed =
      "absmax, absmax,k, rms,k, fixed,-m,m, static or static,k (k and m above 0) are allowed: fixed,-224,224 "
      "say";
  std::vector<double> numbers;
  const size_t comma = std::min(text.find(','), text.size());
  const std::string_view method = text.substr(0, comma);
  for (std::string_view rest = text.substr(comma); !rest.empty();) {
    rest.remove_prefix(1);
    const size_t end = std::min(rest.find(','), rest.size());
    const std::string_view word = rest.substr(0, end);
    double number = 0;
    const auto [last, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (error != std::errc() || last != word.data() + word.size() || !std::isfinite(number))
      return user_error("'{}': '{}' is not a number; {}", text, word, kAllowed);
    numbers.push_back(number);
    rest.remove_prefix(end);
  }
  const auto refuse = [&](std::string_view why) { return user_error("'{}': {}; {}", text, why, kAllowed); };
  if (method == "minmax") return refuse("minmax gives integers a zero point, which an 8-bit float has not");
  if (method == "fixed") {
    if (numbers.size() == 2 && numbers[0] != -numbers[1])
      return refuse("a range that is not symmetric needs a zero point, which an 8-bit float has not");
    if (numbers.empty() || numbers.size() > 2 || !(numbers.back() > 0)) return refuse("fixed takes a range");
    return Calibration{Calibration::Method::fixed, numbers.back()};
  }
  if (method != "absmax" && method != "rms" && method != "static") return refuse("there is no such method");
  if (numbers.size() > 1 || (numbers.empty() && method == "rms") || (!numbers.empty() && !(numbers[0] > 0)))
    return refuse("one factor is taken");
  return Calibration{method == "rms"      ? Calibration::Method::rms
                     : method == "static" ? Calibration::Method::recorded
                                          : Calibration::Method::absmax,
                     numbers.empty() ? 1 : numbers[0]};
}

Quantised quantised(Builder& b, Value x, DType as, DType format, const Calibration& calibration,
                    Dims scale_dims, std::string name, const QuantiseInputs& with) {
  const Type type = b.type(x);
  const std::string dtype(dtype_name(format));
  const std::string outer = b.tag.name;
  Value bound, scale;
  LIGNUM_CHECK((calibration.method == Calibration::Method::recorded) == with.range.has_value(),
               "{} with{} a range", calibration.text(), with.range ? "" : "out");
  if (calibration.whole()) scale_dims.assign(type.dims.size(), 1);
  if (calibration.method == Calibration::Method::fixed) {
    const double m = rounded(as, calibration.factor);
    const double s = rounded(as, m / float8_largest(format));
    bound = b.constant(as, scale_dims, m);
    scale = b.constant(as, scale_dims, s < 0x1p-63 ? 1 : s);
  } else {
    b.tag.name = kScaleName;
    if (with.range) {
      bound = b.reshape(b.convert(*with.range, as), scale_dims);
    } else if (calibration.method == Calibration::Method::rms) {
      // The mean of squares over each tile, in f32. A dim of tiles is two: the tile, and the place in it.
      Dims split, reduced;
      for (size_t d = 0; d < type.dims.size(); ++d) {
        const int64_t tiles = scale_dims[d], each = tiles == 0 ? 1 : type.dims[d] / tiles;
        if (tiles != 1 || each == 1) split.push_back(tiles);
        if (each == 1) continue;
        reduced.push_back(static_cast<int64_t>(split.size()));
        split.push_back(each);
      }
      double count = 1;
      for (const int64_t d : reduced) count *= static_cast<double>(split[static_cast<size_t>(d)]);
      const Value wide = b.reshape(b.convert(b.convert(x, as), DType::f32), split);
      const Value sum = b.reshape(b.reduce("sum", b.elementwise("mul", {wide, wide}), reduced), scale_dims);
      const Value mean =
          b.elementwise("div", {sum, b.constant(DType::f32, scale_dims, std::max(count, 1.0))});
      bound = b.convert(b.elementwise("sqrt", {mean}), as);
    } else {
      // Rounding is monotonic: the largest of what is rounded is the largest, rounded.
      bound = b.convert(b.add("absmax", {x}, {{"dims", scale_dims}}), as);
    }
    if (calibration.factor != 1)
      bound = b.elementwise("mul", {bound, b.constant(as, scale_dims, calibration.factor)});
    scale = b.add("quantization_scale", {bound}, {{"dtype", dtype}});
  }
  b.tag.name = std::move(name);
  Attrs attrs = {{"dtype", dtype}};
  Values inputs = {x, scale};
  if (with.noise) {
    attrs.set("stream", with.noise->stream);
    inputs.push_back(with.noise->keys);
  } else if (calibration.clips()) {
    attrs.set("clips", true);
    inputs.push_back(bound);
  }
  const Value q = b.add(with.noise ? "quantize_stochastic" : "quantize", std::move(inputs), std::move(attrs));
  b.tag.name = outer;
  return {q, scale};
}

}  // namespace lignum::ops
