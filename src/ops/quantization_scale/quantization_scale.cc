// quantization_scale {dtype}: the scale by which a tensor whose magnitudes reach `bound` fills the 8-bit
// format dtype: bound / its largest finite value; 1 where that is below 2^-63, the root of f32's and bf16's
// smallest normal number, so that zeros stay zeros and no quotient overflows (Qwix's rule).
#include "ops/quantize/tiles.h"

namespace lignum::ops {
namespace {

constexpr double kLeast = 0x1p-63;

struct QuantizationScale {
  static constexpr std::string_view kName = "quantization_scale";
  static constexpr bool kStraightThrough = true;

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 1));
    LIGNUM_RETURN_IF_ERROR(expect_edge(in[0], "bound"));
    LIGNUM_ASSIGN_OR_RETURN(const DType dtype, dtype_attr(attrs, "dtype"));
    LIGNUM_RETURN_IF_ERROR(
        expect_dtype({dtype, {}, {}}, "attribute dtype", {DType::f8e4m3fn, DType::f8e5m2}));
    return Types{in[0]};
  }

  static Gradients grad(const GradCall&) { return {std::nullopt}; }

  static ShardRule partition(const Site& s) {
    const auto f = factors(s.in[0].rank());
    return {.in = {f}, .out = {f}};
  }

  static Cost cost(const Site& s) { return streaming_cost(s, 2); }

  static Values decompose(Builder& b, const Site& s, std::span<const Value> in) {
    Arith m(b);
    const Value scale = m.div(in[0], m.like(in[0], largest(s)));
    return {m.select(m.compare("lt", scale, m.like(scale, kLeast)), m.like(scale, 1), scale)};
  }

  static void reference(const RefCall& c) {
    for (size_t i = 0; i < c.out[0].data.size(); ++i) {
      const double scale = c.in[0]->data[i] / largest(c.site);
      c.out[0].data[i] = scale < kLeast ? 1 : scale;
    }
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    const auto limit = static_cast<float>(largest(c.site));
    const auto run = [&]<class T>(const T* bound, T* scale) {
      for (int64_t i = 0; i < c.site.in[0].elements(); ++i) {
        const T s = from_float<T>(to_float(bound[i]) / limit);
        scale[i] = to_float(s) < static_cast<float>(kLeast) ? from_float<T>(1.0F) : s;
      }
    };
    if (c.site.in[0].dtype == DType::f32)
      run(data_in<float>(c, 0), data_out<float>(c, 0));
    else
      run(data_in<bf16>(c, 0), data_out<bf16>(c, 0));
    return {};
  }

  static Buffers buffers(const Site&) { return {.in_place = {{0, 0}}}; }

  static constexpr ByDecomposition emit{};

  static std::vector<Case> cases() {
    const auto make = [](std::string name, DType dtype, Dims dims, DType format, double size) {
      return Case{std::move(name),
                  {tensor(dtype, std::move(dims), size == 1 ? Fill::positive : Fill::normal, size)},
                  {{"dtype", std::string(dtype_name(format))}}};
    };
    std::vector<Case> cases = {make("scalar", DType::f32, {1, 1, 1}, DType::f8e4m3fn, 1),
                               make("odd", DType::bf16, {3, 37}, DType::f8e5m2, 1),
                               make("tiny", DType::f32, {4, 18}, DType::f8e4m3fn, 1e-20),
                               make("empty", DType::f32, {0, 5}, DType::f8e4m3fn, 1),
                               make("bench", DType::bf16, {4096, 1}, DType::f8e4m3fn, 1)};
    cases.back().bench = true;
    return cases;
  }

 private:
  static double largest(const Site& s) {
    return float8_largest(*dtype_from_name(s.attrs.get<std::string>("dtype")));
  }
};

}  // namespace

LIGNUM_DEFINE_OP(quantization_scale, QuantizationScale)

}  // namespace lignum::ops
