// rope: rotary positions in the half-split form (Su et al., "RoFormer", 2021; Hugging Face's rotate_half).
//   x [B, S, H, D] f32 or bf16, positions [B, S] i32 -> y like x
//   attributes: inv_freq f[D / 2]; scaling: a factor on cosine and sine (YaRN's attention factor, else 1.0);
//               inverse: rotates back
// With angle = f32(position) * f32(inv_freq[i]), rounded to f32, c and s its cosine and sine times scaling
// (s negated when inverse): y[i] = x[i] c - x[i + D/2] s,  y[i + D/2] = x[i + D/2] c + x[i] s.
// The gradient is the same rotation the other way round.
#include <cmath>

#include "ops/facets.h"

namespace lignum::ops {
namespace {

using Frequencies = std::vector<double>;

struct Rope {
  static constexpr std::string_view kName = "rope";

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 2));
    const Type& x = in[0];
    LIGNUM_RETURN_IF_ERROR(expect_edge(x, "x"));
    LIGNUM_RETURN_IF_ERROR(expect_rank(x, "x", 4));
    if (x.dims[3] < 2 || x.dims[3] % 2 != 0)
      return user_error("x is {}; its last dim must be even and at least 2", ir::to_string(x));
    LIGNUM_RETURN_IF_ERROR(expect_dtype(in[1], "positions", {DType::i32}));
    LIGNUM_RETURN_IF_ERROR(
        expect_dims(in[1], "positions", {x.dims[0], x.dims[1]}, "the first two dims of x"));
    if (!attrs.has<Frequencies>("inv_freq"))
      return user_error("attribute inv_freq is a list of numbers: give it, f[1.0, 0.01], say");
    const auto& inv_freq = attrs.get<Frequencies>("inv_freq");
    if (static_cast<int64_t>(inv_freq.size()) != x.dims[3] / 2)
      return user_error("attribute inv_freq has {} numbers; it must have {}, half the last dim of x",
                        inv_freq.size(), x.dims[3] / 2);
    for (const double f : inv_freq)
      if (!std::isfinite(f)) return user_error("attribute inv_freq holds {}; all must be finite", f);
    LIGNUM_RETURN_IF_ERROR(number_in(attrs, "scaling", 0, 1e6).status());
    LIGNUM_RETURN_IF_ERROR(bool_attr(attrs, "inverse").status());
    return Types{x};
  }

  static Gradients grad(const GradCall& c) {
    Attrs attrs = c.site.attrs;
    attrs.set("inverse", !attrs.get<bool>("inverse"));
    return {c.build.add("rope", {c.cotangent(0), c.inputs[1]}, std::move(attrs)), std::nullopt};
  }

  static ShardRule partition(const Site&) { return {.in = {{0, 1, 2, -1}, {0, 1}}, .out = {{0, 1, 2, -1}}}; }

  static Cost cost(const Site& s) {
    Cost c = streaming_cost(s, 3);
    const Dims& d = s.in[0].dims;
    c.transcendentals = static_cast<double>(d[0] * d[1] * d[3]);  // once for all heads
    return c;
  }

  static Values decompose(Builder& b, const Site& s, std::span<const Value> in) {
    const Dims& d = s.in[0].dims;
    const int64_t half = d[3] / 2;
    const Dims pairs = {d[0], d[1], d[2], 2, half}, halves = {d[0], d[1], d[2], half},
               angles = {d[0], d[1], half};
    Arith m(b);
    const Value x = b.reshape(m.f32(in[0]), pairs);
    const Value which = m.iota(pairs, 3);
    const Value first = m.compare("eq", which, m.like(which, 0));
    // No op slices or joins: a half is the sum over both with the other one replaced by zero, which is exact.
    const Value zero = m.like(x, 0);
    const Value x1 = b.reduce("sum", m.select(first, x, zero), {3});
    const Value x2 = b.reduce("sum", m.select(first, zero, x), {3});

    const Value position = b.broadcast(m.f32(in[1]), angles, {0, 1});
    const Value frequency = b.broadcast(b.add("constant", {},
                                              {{"dtype", std::string("f32")},
                                               {"dims", Dims{half}},
                                               {"values", s.attrs.get<Frequencies>("inv_freq")}}),
                                        angles, {2});
    const Value angle = m.mul(position, frequency);
    const double scaling = s.attrs.get<double>("scaling");
    const auto over_heads = [&](std::string_view fn, double factor) {
      return b.broadcast(m.mul(b.elementwise(fn, {angle}), factor), halves, {0, 1, 3});
    };
    const Value cosine = over_heads("cos", scaling);
    const Value sine = over_heads("sin", s.attrs.get<bool>("inverse") ? -scaling : scaling);
    const Value y1 = m.sub(m.mul(x1, cosine), m.mul(x2, sine));
    const Value y2 = m.add(m.mul(x2, cosine), m.mul(x1, sine));
    const Value y =
        m.select(first, b.broadcast(y1, pairs, {0, 1, 2, 4}), b.broadcast(y2, pairs, {0, 1, 2, 4}));
    return {b.convert(b.reshape(y, d), s.out[0].dtype)};
  }

  static void reference(const RefCall& c) {
    const Dims& d = c.site.in[0].dims;
    const int64_t half = d[3] / 2;
    const auto& inv_freq = c.site.attrs.get<Frequencies>("inv_freq");
    const double scaling = c.site.attrs.get<double>("scaling");
    const double sign = c.site.attrs.get<bool>("inverse") ? -1 : 1;
    for (int64_t token = 0; token < d[0] * d[1]; ++token) {
      for (int64_t i = 0; i < half; ++i) {
        // The rounding of the angle to f32 is part of what rope is: models were trained with it.
        const float angle = static_cast<float>(c.in[1]->data[static_cast<size_t>(token)]) *
                            static_cast<float>(inv_freq[static_cast<size_t>(i)]);
        const double cosine = std::cos(static_cast<double>(angle)) * scaling;
        const double sine = std::sin(static_cast<double>(angle)) * scaling * sign;
        for (int64_t h = 0; h < d[2]; ++h) {
          const auto at = static_cast<size_t>((token * d[2] + h) * d[3] + i);
          const auto pair = at + static_cast<size_t>(half);
          const double x1 = c.in[0]->data[at], x2 = c.in[0]->data[pair];
          c.out[0].data[at] = x1 * cosine - x2 * sine;
          c.out[0].data[pair] = x2 * cosine + x1 * sine;
        }
      }
    }
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    const Dims& d = c.site.in[0].dims;
    if (d[3] > kernels::kRopeMaxDim)
      return user_error("rope: head dim {} on a CPU; at most {}", d[3], kernels::kRopeMaxDim);
    kernels::row_kernels(c.choice).rope({d[0], d[1], d[2], d[3]}, kernel_in(c, 0), data_in<int32_t>(c, 1),
                                        c.site.attrs.get<Frequencies>("inv_freq").data(),
                                        static_cast<float>(c.site.attrs.get<double>("scaling")),
                                        c.site.attrs.get<bool>("inverse"), kernel_out(c, 0), c.parallel);
    return {};
  }

  static Buffers buffers(const Site&) { return {.in_place = {{0, 0}}}; }

  // As the decomposition, but with slices and a concatenation for the halves.
  static std::vector<std::string> emit(const EmitCall& c) {
    const Dims& d = c.site.in[0].dims;
    const int64_t half = d[3] / 2;
    const auto f32 = [](Dims dims) { return mlir_type({DType::f32, std::move(dims), {}}); };
    const std::string whole = f32(d), halves = f32({d[0], d[1], d[2], half}),
                      angles = f32({d[0], d[1], half});
    const auto line = [&](const std::string& right) {
      std::string name = c.out.fresh();
      c.out.line(name + " = " + right);
      return name;
    };
    const auto number = [](double v) { return fmt::format("{:.9e}", static_cast<float>(v)); };
    const auto unary = [&](const char* op, const std::string& x, const std::string& type) {
      return line(fmt::format("stablehlo.{} {} : {}", op, x, type));
    };
    const auto binary = [&](const char* op, const std::string& x, const std::string& y,
                            const std::string& type) {
      return line(fmt::format("stablehlo.{} {}, {} : {}", op, x, y, type));
    };
    const auto converted = [&](const std::string& x, const std::string& from, const std::string& to) {
      return from == to ? x : line(fmt::format("stablehlo.convert {} : ({}) -> {}", x, from, to));
    };
    const auto spread = [&](const std::string& x, const std::string& from, const char* dims,
                            const std::string& to) {
      return line(fmt::format("stablehlo.broadcast_in_dim {}, dims = {} : ({}) -> {}", x, dims, from, to));
    };

    std::string list;
    for (const double f : c.site.attrs.get<Frequencies>("inv_freq"))
      list += (list.empty() ? "" : ", ") + number(f);
    const std::string positions = f32({d[0], d[1]});
    const std::string position =
        spread(converted(c.in[1], mlir_type(c.site.in[1]), positions), positions, "[0, 1]", angles);
    const std::string frequency =
        spread(line(fmt::format("stablehlo.constant dense<[{}]> : {}", list, f32({half}))), f32({half}),
               "[2]", angles);
    const std::string angle = binary("multiply", position, frequency, angles);
    const double scaling = c.site.attrs.get<double>("scaling");
    const auto over_heads = [&](const char* fn, double factor) {
      const std::string scale =
          line(fmt::format("stablehlo.constant dense<{}> : {}", number(factor), angles));
      return spread(binary("multiply", unary(fn, angle, angles), scale, angles), angles, "[0, 1, 3]", halves);
    };
    const std::string cosine = over_heads("cosine", scaling);
    const std::string sine = over_heads("sine", c.site.attrs.get<bool>("inverse") ? -scaling : scaling);

    const std::string x = converted(c.in[0], mlir_type(c.site.in[0]), whole);
    const auto slice = [&](int64_t begin) {
      return line(fmt::format("stablehlo.slice {} [0:{}, 0:{}, 0:{}, {}:{}] : ({}) -> {}", x, d[0], d[1],
                              d[2], begin, begin + half, whole, halves));
    };
    const std::string x1 = slice(0), x2 = slice(half);
    const std::string y1 = binary("subtract", binary("multiply", x1, cosine, halves),
                                  binary("multiply", x2, sine, halves), halves);
    const std::string y2 =
        binary("add", binary("multiply", x2, cosine, halves), binary("multiply", x1, sine, halves), halves);
    const std::string y = line(
        fmt::format("stablehlo.concatenate {}, {}, dim = 3 : ({}, {}) -> {}", y1, y2, halves, halves, whole));
    return {converted(y, whole, mlir_type(c.site.out[0]))};
  }

  static std::vector<Case> cases() {
    const auto make = [](std::string name, DType dtype, Dims dims, double largest, double scaling = 1,
                         bool inverse = false, bool bench = false) {
      Frequencies inv_freq;
      // Eight bits each: angles are then exact in f32, and the decomposition finds them in double as well.
      for (int64_t i = 0; i < dims[3] / 2; ++i) {
        const double power = -2.0 * static_cast<double>(i) / static_cast<double>(dims[3]);
        inv_freq.push_back(static_cast<float>(bf16(static_cast<float>(std::pow(10000.0, power)))));
      }
      const Dims tokens = {dims[0], dims[1]};
      return Case{std::move(name),
                  {tensor(dtype, std::move(dims)), tensor(DType::i32, tokens, Fill::position, largest)},
                  {{"inv_freq", std::move(inv_freq)}, {"scaling", scaling}, {"inverse", inverse}},
                  1,
                  bench};
    };
    constexpr DType f32 = DType::f32, bf16 = DType::bf16;
    return {
        make("one_row", f32, {1, 1, 1, 8}, 8),
        make("one_pair", f32, {1, 3, 2, 2}, 3),
        make("odd", f32, {2, 5, 3, 14}, 37),
        make("misaligned", f32, {1, 11, 1, 74}, 11),
        make("scaled", f32, {1, 7, 2, 16}, 37, 1.25),
        make("inverse", f32, {2, 3, 1, 16}, 37, 0.75, true),
        make("bf16", bf16, {1, 5, 3, 38}, 37),
        make("empty", f32, {0, 4, 2, 8}, 4),
        make("bench", bf16, {1, 2048, 32, 128}, 2048, 1, false, true),
    };
  }
};

}  // namespace

LIGNUM_DEFINE_OP(rope, Rope)

}  // namespace lignum::ops
