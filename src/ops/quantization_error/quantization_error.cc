// quantization_error: what was lost where x [..] f32 or bf16 became q, an 8-bit float, by a scale f32 or bf16
// (each tile its own: quantize/tiles.h), as f32[4]:
//   saturated      elements beyond the largest finite value by more than rounding can be: |x| > scale times
//                  the middle between that and what the next exponent step would hold (464 and 61440)
//   flushed        elements that are not zero, and whose q is
//   squared_error  the sum of (x - q scale)^2
//   squares        the sum of x^2
// Sums, so that parts of a tensor add up to the whole's. A CPU adds up blocks of kBlock elements in double.
#include <array>
#include <cmath>

#include "base/round.h"
#include "ops/quantize/tiles.h"

namespace lignum::ops {
namespace {

constexpr int64_t kResults = 4;
constexpr int64_t kBlock = 16384;  // elements of a task; fixes the order of sums

// Half a step of the last place above the largest finite value: what is nearer rounds to that.
double saturates_above(DType format) {
  const double largest = float8_largest(format);
  const double step = std::ldexp(1.0, std::ilogb(largest) - (format == DType::f8e4m3fn ? 3 : 2));
  return largest + step / 2;
}

// The value of each of the 256 codes.
std::array<float, 256> values_of(DType format) {
  std::array<float, 256> values{};
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<uint8_t>(code);
    values[static_cast<size_t>(code)] = static_cast<float>(load_as_double(format, &byte, 0));
  }
  return values;
}

struct QuantizationError {
  static constexpr std::string_view kName = "quantization_error";
  static constexpr bool kStraightThrough = true;  // what is observed has no gradient

  static Result<Types> infer(std::span<const Type> in, const Attrs&) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 3));
    LIGNUM_RETURN_IF_ERROR(expect_edge(in[0], "x"));
    LIGNUM_RETURN_IF_ERROR(expect_dtype(in[1], "q", {DType::f8e4m3fn, DType::f8e5m2}));
    LIGNUM_RETURN_IF_ERROR(expect_dims(in[1], "q", in[0].dims, "those of x"));
    LIGNUM_RETURN_IF_ERROR(expect_edge(in[2], "scale"));
    LIGNUM_RETURN_IF_ERROR(expect_scale(in[0], in[2], "scale", in[2].dtype));
    return one_type(DType::f32, {kResults});
  }

  static Gradients grad(const GradCall&) { return {std::nullopt, std::nullopt, std::nullopt}; }

  static ShardRule partition(const Site& s) {
    ShardRule rule;
    const auto f = factors(s.in[0].rank());
    rule.in = {f, f, {}};
    rule.in[2] = scale_factors(s.in[0], f, s.in[2], rule.exact);
    rule.out = {{-1}};
    return rule;
  }

  static Cost cost(const Site& s) {
    Cost c = streaming_cost(s, 0);
    c.flops = 8.0 * static_cast<double>(s.in[0].elements());
    return c;
  }

  static Values decompose(Builder& b, const Site& s, std::span<const Value> in) {
    Arith m(b);
    const Dims& dims = s.in[0].dims;
    const Value x = m.f32(in[0]), q = m.f32(in[1]), scale = spread(b, m.f32(in[2]), dims);
    const Value size = b.elementwise("abs", {x}), zero = m.like(x, 0);
    const Value error = m.sub(x, m.mul(q, scale));
    const Value saturated = m.compare("gt", size, m.mul(scale, saturates_above(s.in[1].dtype)));
    // q is 0 and x is not.
    const Value flushed = m.select(m.compare("eq", q, zero), m.f32(m.compare("gt", size, zero)), zero);
    const Values parts = {m.f32(saturated), flushed, m.mul(error, error), m.mul(x, x)};
    const Value which = m.iota({kResults}, 0);
    Value out = b.constant(DType::f32, {kResults}, 0);
    for (size_t i = 0; i < parts.size(); ++i) {
      const Value sum = dims.empty() ? parts[i] : b.reduce("sum", parts[i], first_dims(s.in[0].rank()));
      const Value here = m.compare("eq", which, m.like(which, static_cast<double>(i)));
      out = m.select(here, b.splat(sum, b.type(out)), out);
    }
    return {out};
  }

  static void reference(const RefCall& c) {
    const Dims& dims = c.site.in[0].dims;
    const double limit = saturates_above(c.site.in[1].dtype);
    std::vector<double>& y = c.out[0].data;
    for_each_index(dims, [&](const Dims& index, int64_t n) {
      const auto i = static_cast<size_t>(n);
      const double scale = c.in[2]->data[static_cast<size_t>(tile_of(index, dims, c.in[2]->dims))];
      const double x = c.in[0]->data[i], q = c.in[1]->data[i];
      y[0] += std::fabs(x) > scale * limit ? 1 : 0;
      y[1] += q == 0 && std::fabs(x) > 0 ? 1 : 0;
      y[2] += (x - q * scale) * (x - q * scale);
      y[3] += x * x;
    });
  }

  static int64_t workspace(const Site& s, int) {
    return round_up(blocks(s) * static_cast<int64_t>(sizeof(Sums)), 64);
  }

  static Status cpu(const CpuCall& c) {
    const auto with_scale = [&](const auto* x) {
      if (c.site.in[2].dtype == DType::f32)
        sum_up(c, x, data_in<float>(c, 2));
      else
        sum_up(c, x, data_in<bf16>(c, 2));
    };
    if (c.site.in[0].dtype == DType::f32)
      with_scale(data_in<float>(c, 0));
    else
      with_scale(data_in<bf16>(c, 0));
    return {};
  }

  static Buffers buffers(const Site&) { return {}; }

  static constexpr ByDecomposition emit{};

  static std::vector<Case> cases() {
    const auto make = [](std::string name, DType dtype, const Dims& x, Dims scale, DType format, double size,
                         double q, DType scales) {
      return Case{std::move(name),
                  {tensor(dtype, x, Fill::normal, size), tensor(format, x, Fill::normal, q),
                   tensor(scales, std::move(scale), Fill::positive)},
                  {}};
    };
    constexpr DType e4m3 = DType::f8e4m3fn, e5m2 = DType::f8e5m2, f32 = DType::f32, bf16 = DType::bf16;
    std::vector<Case> cases = {
        make("tensor", bf16, {4, 6, 37}, {1, 1, 1}, e4m3, 300, 100, bf16),
        make("rows", f32, {4, 6, 38}, {4, 6, 1}, e4m3, 300, 1e-3, f32),
        make("columns", bf16, {6, 38}, {1, 38}, e5m2, 50000, 20000, bf16),
        make("tiles", f32, {4, 256}, {4, 2}, e5m2, 1, 1, f32),
        make("blocks", bf16, {8, 384}, {2, 6}, e4m3, 10, 10, bf16),
        make("master", f32, {6, 38}, {6, 1}, e4m3, 1, 1e-3, bf16),
        make("several_tasks", f32, {2, 3, 6000}, {2, 1, 6000}, e4m3, 1, 1, f32),
        make("one_row", f32, {1, 64}, {1, 1}, e4m3, 0.01, 1, f32),
        make("scalar", f32, {}, {}, e4m3, 1, 1, f32),
        make("empty", f32, {0, 5}, {1, 5}, e4m3, 1, 1, f32),
        make("bench", bf16, {2048, 4096}, {1, 1}, e4m3, 100, 100, bf16),
    };
    cases.back().bench = true;
    return cases;
  }

 private:
  struct Sums {
    double parts[kResults] = {};
  };

  static int64_t blocks(const Site& s) { return (s.in[0].elements() + kBlock - 1) / kBlock; }

  // The scales of a row, of `columns` elements: the first one's number, and elements that share one.
  struct ScaleRow {
    int64_t first, tile;
  };
  static ScaleRow scale_row(const Site& s, int64_t row) {
    const Dims &dims = s.in[0].dims, &scales = s.in[2].dims;
    if (dims.empty()) return {0, 1};
    int64_t first = 0, stride = scales.back();
    for (size_t d = dims.size() - 1; d-- > 0;) {
      first += row % dims[d] / (dims[d] / scales[d]) * stride;
      row /= dims[d];
      stride *= scales[d];
    }
    return {first, dims.back() / scales.back()};
  }

  template <class X, class S>
  static void sum_up(const CpuCall& c, const X* x, const S* scale) {
    const Site& s = c.site;
    const auto* q = data_in<uint8_t>(c, 1);
    const std::array<float, 256> values = values_of(s.in[1].dtype);
    const auto limit = static_cast<float>(saturates_above(s.in[1].dtype));
    const int64_t elements = s.in[0].elements(), columns = s.in[0].dims.empty() ? 1 : s.in[0].dims.back();
    auto* sums = static_cast<Sums*>(c.workspace);
    c.parallel.run(blocks(s), [&](int64_t block, int) {
      Sums total;
      const int64_t end = std::min(elements, (block + 1) * kBlock);
      for (int64_t at = block * kBlock; at < end;) {
        const int64_t column = at % columns;
        const ScaleRow row = scale_row(s, at / columns);
        // What shares a scale; where each element has its own, what is left of the row.
        const bool own = row.tile == 1;
        const int64_t width = own ? columns : row.tile;
        const int64_t last = std::min(end, at - column % width + width);
        const S* of = scale + row.first + column / row.tile;
        for (int64_t i = at; i < last; ++i) {
          const float v = to_float(x[i]), by = to_float(own ? of[i - at] : *of), code = values[q[i]];
          const double error = static_cast<double>(v) - static_cast<double>(code) * static_cast<double>(by);
          total.parts[0] += std::fabs(v) > by * limit ? 1 : 0;
          total.parts[1] += code == 0 && std::fabs(v) > 0 ? 1 : 0;
          total.parts[2] += error * error;
          total.parts[3] += static_cast<double>(v) * static_cast<double>(v);
        }
        at = last;
      }
      sums[block] = total;
    });
    Sums all;
    for (int64_t block = 0; block < blocks(s); ++block)
      for (int64_t i = 0; i < kResults; ++i) all.parts[i] += sums[block].parts[i];
    for (int64_t i = 0; i < kResults; ++i) data_out<float>(c, 0)[i] = static_cast<float>(all.parts[i]);
  }
};

}  // namespace

LIGNUM_DEFINE_OP(quantization_error, QuantizationError)

}  // namespace lignum::ops
