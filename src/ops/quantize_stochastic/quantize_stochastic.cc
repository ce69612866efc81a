// quantize_stochastic {dtype, stream}: as quantize, but each quotient goes to one of its two neighbours in
// the 8-bit format dtype, to the nearer one more often, so that the mean is kept. Gupta et al., "Deep
// learning with limited numerical precision", 2015.
//   (x, scale, keys)   keys i32, one for each index of x's first dim
// The random bits of an element are a function of the attribute stream, its row's key and its number in the
// row (kernels/rows.h), so of nothing that ranks, threads or recomputing change: a row is whole on a rank.
#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "ops/emit.h"
#include "ops/quantize/tiles.h"

namespace lignum::ops {
namespace {

// What the format's numbers are, for the reference and the printed form.
struct Format {
  int mantissa, bias;
  uint32_t largest, nan;  // codes
  explicit Format(DType d)
      : mantissa(d == DType::f8e4m3fn ? 3 : 2),
        bias(d == DType::f8e4m3fn ? 7 : 15),
        largest(d == DType::f8e4m3fn ? 0x7e : 0x7b),
        nan(0x7f) {}
};

// Lines of StableHLO on tensors of some dims, whose element types Type does not know.
class TypedLines {
 public:
  TypedLines(Emitter& out, const Dims& dims) : out_(out) {
    for (const int64_t d : dims) dims_ += fmt::format("{}x", d);
  }
  std::string type(std::string_view dtype) const { return fmt::format("tensor<{}{}>", dims_, dtype); }
  std::string constant(std::string_view value, std::string_view dtype) {
    return line(fmt::format("stablehlo.constant dense<{}> : {}", value, type(dtype)));
  }
  std::string number(uint64_t value, std::string_view dtype) {
    return constant(std::to_string(value), dtype);
  }
  std::string binary(std::string_view op, const std::string& a, const std::string& b,
                     std::string_view dtype) {
    return line(fmt::format("stablehlo.{} {}, {} : {}", op, a, b, type(dtype)));
  }
  std::string cast(std::string_view op, const std::string& a, std::string_view from, std::string_view to) {
    return line(fmt::format("stablehlo.{} {} : ({}) -> {}", op, a, type(from), type(to)));
  }
  std::string compare(std::string_view direction, const std::string& a, const std::string& b) {  // of ui32
    return line(fmt::format("stablehlo.compare {}, {}, {}, UNSIGNED : ({}, {}) -> {}", direction, a, b,
                            type("ui32"), type("ui32"), type("i1")));
  }
  std::string select(const std::string& which, const std::string& yes, const std::string& no,
                     std::string_view dtype) {
    return line(fmt::format("stablehlo.select {}, {}, {} : {}, {}", which, yes, no, type("i1"), type(dtype)));
  }

 private:
  std::string line(const std::string& what) {
    std::string name = out_.fresh();
    out_.line(fmt::format("{} = {}", name, what));
    return name;
  }
  Emitter& out_;
  std::string dims_;
};

// Word `number` mod 4 of philox4x32({number / 4, 0, key, 0}, stream): ui32 each.
std::string random_words(TypedLines& l, const std::string& number, const std::string& key, uint64_t stream) {
  const auto u32 = [&](uint64_t v) { return l.number(v, "ui32"); };
  std::string c0 = l.binary("shift_right_logical", number, u32(2), "ui32"), c1 = u32(0), c2 = key, c3 = c1;
  const std::string half = l.number(32, "ui64");
  const auto high = [&](const std::string& c, uint64_t multiplier) {
    const std::string wide = l.cast("convert", c, "ui32", "ui64");
    const std::string product = l.binary("multiply", wide, l.number(multiplier, "ui64"), "ui64");
    return l.cast("convert", l.binary("shift_right_logical", product, half, "ui64"), "ui64", "ui32");
  };
  auto k0 = static_cast<uint32_t>(stream), k1 = static_cast<uint32_t>(stream >> 32);
  for (int round = 0; round < 10; ++round) {
    constexpr uint32_t kM0 = 0xD2511F53, kM1 = 0xCD9E8D57;
    const std::string next0 = l.binary("xor", l.binary("xor", high(c2, kM1), c1, "ui32"), u32(k0), "ui32");
    const std::string next1 = l.binary("multiply", c2, u32(kM1), "ui32");
    const std::string next2 = l.binary("xor", l.binary("xor", high(c0, kM0), c3, "ui32"), u32(k1), "ui32");
    const std::string next3 = l.binary("multiply", c0, u32(kM0), "ui32");
    c0 = next0, c1 = next1, c2 = next2, c3 = next3;
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  const std::string which = l.binary("and", number, u32(3), "ui32");
  std::string word = l.select(l.compare("EQ", which, u32(2)), c2, c3, "ui32");
  word = l.select(l.compare("EQ", which, u32(1)), c1, word, "ui32");
  return l.select(l.compare("EQ", which, u32(0)), c0, word, "ui32");
}

struct QuantizeStochastic {
  static constexpr std::string_view kName = "quantize_stochastic";
  static constexpr bool kStraightThrough = true;

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 3));
    LIGNUM_RETURN_IF_ERROR(expect_edge(in[0], "x"));
    LIGNUM_RETURN_IF_ERROR(expect_last_dim(in[0], "x"));
    const bool narrows = in[0].dtype == DType::f32 && in[1].dtype == DType::bf16;
    LIGNUM_RETURN_IF_ERROR(expect_scale(in[0], in[1], "scale", narrows ? DType::bf16 : in[0].dtype));
    LIGNUM_RETURN_IF_ERROR(expect_dtype(in[2], "keys", {DType::i32}));
    LIGNUM_RETURN_IF_ERROR(
        expect_dims(in[2], "keys", {in[0].dims[0]}, "one for each index of x's first dim"));
    LIGNUM_RETURN_IF_ERROR(int_attr(attrs, "stream").status());
    LIGNUM_ASSIGN_OR_RETURN(const DType dtype, dtype_attr(attrs, "dtype"));
    LIGNUM_RETURN_IF_ERROR(
        expect_dtype({dtype, {}, {}}, "attribute dtype", {DType::f8e4m3fn, DType::f8e5m2}));
    if (row_size(in[0]) > int64_t{1} << 31)
      return user_error("x is {}: a row has {} elements, at most 2^31 are numbered", ir::to_string(in[0]),
                        row_size(in[0]));
    return one_type(dtype, in[0].dims, in[0].names);
  }

  static Gradients grad(const GradCall& c) {
    return {c.build.convert(c.cotangent(0), c.site.in[0].dtype), std::nullopt, std::nullopt};
  }

  static ShardRule partition(const Site& s) {
    std::vector<int> f(s.in[0].dims.size(), -1);
    f[0] = 0;
    ShardRule rule;
    std::vector<int> exact;
    rule.in = {f, scale_factors(s.in[0], f, s.in[1], exact), {0}};
    rule.out = {f};
    if (std::find(exact.begin(), exact.end(), 0) != exact.end()) rule.exact = {0};
    return rule;
  }

  // By Philox some twenty operations an element.
  static Cost cost(const Site& s) {
    Cost c = streaming_cost(s, 20);
    c.inner = s.out[0].dtype;  // up to a whole step, not half of one
    return c;
  }

  static constexpr Primitive decompose{"random bits are not made of simpler ops"};

  static void reference(const RefCall& c) {
    const Dims& dims = c.site.in[0].dims;
    const Format format(c.site.out[0].dtype);
    const double limit = float8_largest(c.site.out[0].dtype);
    const int64_t row = std::max<int64_t>(1, row_size(c.site.in[0]));
    const auto stream = static_cast<uint64_t>(c.site.attrs.get<int64_t>("stream"));
    for_each_index(dims, [&](const Dims& index, int64_t n) {
      const double scale = c.in[1]->data[static_cast<size_t>(tile_of(index, dims, c.in[1]->dims))];
      const double x = c.in[0]->data[static_cast<size_t>(n)] / scale;
      double& y = c.out[0].data[static_cast<size_t>(n)];
      const double a = std::fabs(x);
      if (!(a < limit)) {
        y = a >= limit ? std::copysign(limit, x) : x;
        return;
      }
      const auto key =
          static_cast<uint32_t>(static_cast<int32_t>(c.in[2]->data[static_cast<size_t>(index[0])]));
      const auto words = philox4x32({static_cast<uint32_t>(n % row / 4), 0, key, 0},
                                    {static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)});
      const uint32_t random = words[static_cast<size_t>(n % row % 4)];
      const bool tiny = a < std::ldexp(1, 1 - format.bias);
      const double step = std::ldexp(1, (tiny ? 1 - format.bias : std::ilogb(a)) - format.mantissa);
      const double part = tiny ? std::ldexp(random >> 8, -24)
                               : std::ldexp(random >> (9 + format.mantissa), format.mantissa - 23);
      y = std::copysign(std::min(std::floor(a / step + part) * step, limit), x);
    });
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    kernels::row_kernels(c.choice).quantize_stochastic(
        tiles_of(c.site.in[0], c.site.in[1]), kernel_in(c, 0), kernel_in(c, 1), data_in<int32_t>(c, 2),
        static_cast<uint64_t>(c.site.attrs.get<int64_t>("stream")), kernel_out(c, 0), c.parallel);
    return {};
  }

  static Buffers buffers(const Site&) { return {}; }

  // float8_stochastic (kernels/float8.h), line by line.
  static std::vector<std::string> emit(const EmitCall& c) {
    const Type& x = c.site.in[0];
    const Format format(c.site.out[0].dtype);
    ir::Graph g;
    Builder b(g);
    const Value in = g.param("x", x), scale = g.param("scale", c.site.in[1]),
                keys = g.param("keys", c.site.in[2]);
    const Value quotient = Arith(b).div(b.convert(in, c.site.in[1].dtype), spread(b, scale, x.dims));
    const Value number =
        b.add("iota", {},
              {{"dtype", std::string("i32")}, {"dims", Dims{x.dims[0], row_size(x)}}, {"dim", int64_t{1}}});
    g.output("quotient", b.convert(quotient, DType::f32));
    g.output("number", b.reshape(number, x.dims));
    g.output("key", b.broadcast(keys, x.dims, {0}));
    const std::vector<std::string> made = emit_graph(c.out, g, c.in);
    TypedLines l(c.out, x.dims);
    const auto u32 = [&](uint64_t v) { return l.number(v, "ui32"); };
    const std::string random = random_words(l, l.cast("bitcast_convert", made[1], "i32", "ui32"),
                                            l.cast("bitcast_convert", made[2], "i32", "ui32"),
                                            static_cast<uint64_t>(c.site.attrs.get<int64_t>("stream")));
    const int drop = 23 - format.mantissa;
    const std::string u = l.cast("bitcast_convert", made[0], "f32", "ui32");
    const std::string a = l.binary("and", u, u32(0x7fffffff), "ui32");
    const std::string bits =
        l.binary("shift_right_logical", random, u32(static_cast<uint64_t>(32 - drop)), "ui32");
    const std::string up = l.binary("shift_right_logical", l.binary("add", a, bits, "ui32"),
                                    u32(static_cast<uint64_t>(drop)), "ui32");
    const std::string normal =
        l.binary("subtract", up, u32(static_cast<uint64_t>(127 - format.bias) << format.mantissa), "ui32");
    const std::string is_tiny = l.compare("LT", a, u32(static_cast<uint64_t>(128 - format.bias) << 23));
    const std::string tiny = l.cast("bitcast_convert", l.select(is_tiny, a, u32(0), "ui32"), "ui32", "f32");
    const auto f32 = [&](double v) { return l.constant(mlir_number(DType::f32, v), "f32"); };
    const std::string steps =
        l.binary("multiply", tiny, f32(std::ldexp(1, format.bias + format.mantissa - 1)), "f32");
    const std::string part = l.binary(
        "multiply", l.cast("convert", l.binary("shift_right_logical", random, u32(8), "ui32"), "ui32", "f32"),
        f32(0x1p-24), "f32");
    const std::string on_grid = l.cast("convert", l.binary("add", steps, part, "f32"), "f32", "ui32");
    std::string code = l.select(is_tiny, on_grid, normal, "ui32");
    code = l.binary("minimum", code, u32(format.largest), "ui32");
    code = l.select(l.compare("GT", a, u32(0x7f800000)), u32(format.nan), code, "ui32");
    const std::string sign =
        l.binary("and", l.binary("shift_right_logical", u, u32(24), "ui32"), u32(0x80), "ui32");
    const std::string byte = l.cast("convert", l.binary("or", code, sign, "ui32"), "ui32", "ui8");
    return {l.cast("bitcast_convert", byte, "ui8", mlir_dtype(c.site.out[0].dtype))};
  }

  static std::vector<Case> cases() {
    const auto make = [](std::string name, DType dtype, Dims x, Dims scale, DType format, double size,
                         bool narrows = false) {
      Case c{std::move(name), {tensor(dtype, x, Fill::normal, size)}, {}};
      c.in.push_back(tensor(narrows ? DType::bf16 : dtype, std::move(scale), Fill::positive));
      c.in.push_back(tensor(DType::i32, {x[0]}, Fill::token, 1000));
      c.attrs = {{"dtype", std::string(dtype_name(format))}, {"stream", int64_t{-6148914691236517205}}};
      return c;
    };
    constexpr DType e4m3 = DType::f8e4m3fn, e5m2 = DType::f8e5m2;
    std::vector<Case> cases = {
        make("tensor", DType::bf16, {4, 6, 37}, {1, 1, 1}, e4m3, 100),
        make("rows", DType::f32, {4, 6, 37}, {4, 6, 1}, e4m3, 300),
        make("columns", DType::bf16, {6, 38}, {1, 38}, e5m2, 20000),
        make("tiles", DType::f32, {4, 256}, {4, 2}, e5m2, 1),
        make("tiny", DType::f32, {4, 70}, {4, 1}, e4m3, 0.003),
        make("master", DType::f32, {6, 38}, {6, 1}, e4m3, 1, true),
        make("one_row", DType::f32, {1, 64}, {1, 1}, e4m3, 0.01),
        make("empty", DType::f32, {0, 5}, {1, 5}, e4m3, 1),
        make("bench", DType::bf16, {2048, 4096}, {1, 1}, e4m3, 100),
    };
    cases.back().bench = true;
    return cases;
  }

 private:
  static int64_t row_size(const Type& x) { return product(std::span(x.dims).subspan(1)); }
};

}  // namespace

LIGNUM_DEFINE_OP(quantize_stochastic, QuantizeStochastic)

}  // namespace lignum::ops
