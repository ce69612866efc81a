// scaled_matmul: matmul of a and b where each stands for itself times a scale, each tile its own
// (quantize/tiles.h); no dim of a tile is contracted. Products and their sums are those of a and b; each sum
// is multiplied by a's and then by b's scale, and rounded once to `dtype`. No batch dims; contraction.h's
// other attributes.
//   (a, b, scale_a, scale_b)   operands f32, bf16 or 8-bit floats; scales f32 or bf16
//   (.., range)                where bwd_calibration is static: f32 [], that of dy, which only the gradient
//   reads
// The gradient of an operand is that of what it stands for, in its scale's dtype. It is a scaled_matmul of dy
// with the other operand as it is, whose scales along the dims that are now contracted go into dy first; with
// attributes
//   bwd_dtype (an 8-bit float), bwd_calibration (quantised.h), bwd_channelwise
// dy is quantised after that: by a scale of the whole tensor, or one for each index of the dims that are not
// contracted. (Qwix: dot_general_qt. It moves a scale of the whole tensor into dy, too: the quotient is the
// same number unless the bound is fixed, and dy is quantised once for both operands here.)
#include <algorithm>

#include "base/round.h"
#include "ops/matmul/contraction.h"
#include "ops/quantize/quantised.h"
#include "ops/quantize/tiles.h"

namespace lignum::ops {
namespace {

bool shared(const Type& scale) { return scale.elements() == 1; }

struct ScaledMatmul {
  static constexpr std::string_view kName = "scaled_matmul";
  static constexpr bool kStraightThrough = true;

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, has_range(attrs) ? 5 : 4));
    if (in.size() == 5) {
      LIGNUM_RETURN_IF_ERROR(expect_dtype(in[4], "range", {DType::f32}));
      LIGNUM_RETURN_IF_ERROR(expect_rank(in[4], "range", 0));
    }
    LIGNUM_RETURN_IF_ERROR(dtype_attr(attrs, "dtype").status());
    LIGNUM_ASSIGN_OR_RETURN(Types out, infer_contraction(in, attrs));
    for (const std::string_view key : {"batch_a", "batch_b"})
      if (!attrs.get<Dims>(key).empty())
        return user_error("attribute {}: scaled_matmul takes no batch dims", key);
    for (size_t i = 0; i < 2; ++i) {
      const std::string_view name = i == 0 ? "scale_a" : "scale_b";
      const Type& scale = in[2 + i];
      LIGNUM_RETURN_IF_ERROR(expect_edge(scale, name));
      LIGNUM_RETURN_IF_ERROR(expect_scale(in[i], scale, name, scale.dtype));
      for (const int64_t d : attrs.get<Dims>(i == 0 ? "contract_a" : "contract_b"))
        if (scale.dims[static_cast<size_t>(d)] != 1)
          return user_error("{} is {}: dim {} is contracted, so one scale is shared along it", name,
                            ir::to_string(scale), d);
    }
    if (attrs.all().contains("bwd_dtype")) {
      LIGNUM_ASSIGN_OR_RETURN(const DType dtype, dtype_attr(attrs, "bwd_dtype"));
      LIGNUM_RETURN_IF_ERROR(
          expect_dtype({dtype, {}, {}}, "attribute bwd_dtype", {DType::f8e4m3fn, DType::f8e5m2}));
      LIGNUM_ASSIGN_OR_RETURN(const std::string method, string_attr(attrs, "bwd_calibration"));
      LIGNUM_RETURN_IF_ERROR(parse_calibration(method).status().with_context("attribute bwd_calibration"));
      LIGNUM_RETURN_IF_ERROR(bool_attr(attrs, "bwd_channelwise").status());
    }
    return out;
  }

  static Gradients grad(const GradCall& c) {
    Gradients out;
    for (const int operand : {0, 1}) out.push_back(gradient_of(c, operand));
    out.resize(c.inputs.size());
    return out;
  }

  static ShardRule partition(const Site& s) {
    ShardRule rule = contraction_rule(s);
    for (size_t i = 0; i < 2; ++i) {
      std::vector<int> of_scale = scale_factors(s.in[i], rule.in[i], s.in[2 + i], rule.exact);
      rule.in.push_back(std::move(of_scale));
    }
    rule.in.resize(s.in.size());
    return rule;
  }

  static Cost cost(const Site& s) { return contraction_cost(s); }

  static Values decompose(Builder& b, const Site& s, std::span<const Value> in) {
    const Contraction g(s);
    Arith m(b);
    Value y = m.matmul(in[0], in[1], g.contract_a, g.contract_b);
    const Dims& dims = s.out[0].dims;
    const auto times = [&](Value scale, const Type& x, const Dims& free, int64_t first) {
      Dims kept, where;
      for (const int64_t d : free) kept.push_back(x.dims[static_cast<size_t>(d)]);
      for (size_t i = 0; i < free.size(); ++i) where.push_back(first + static_cast<int64_t>(i));
      Dims whole = b.type(scale).dims;  // of the dims that stay, each element its own
      for (const int64_t d : free) whole[static_cast<size_t>(d)] = x.dims[static_cast<size_t>(d)];
      const Value each = b.reshape(spread(b, m.f32(scale), whole), kept);
      y = m.mul(y, b.broadcast(each, dims, where));
    };
    times(in[2], s.in[0], g.free_a, 0);
    times(in[3], s.in[1], g.free_b, static_cast<int64_t>(g.free_a.size()));
    return {b.convert(y, s.out[0].dtype)};
  }

  static void reference(const RefCall& c) {
    contraction_reference(c, c.out[0].data);
    const Contraction g(c.site);
    const size_t na = g.free_a.size();
    for_each_index(c.site.out[0].dims, [&](const Dims& index, int64_t n) {
      for (size_t i = 0; i < 2; ++i) {
        const Dims& free = i == 0 ? g.free_a : g.free_b;
        Dims at(c.site.in[i].dims.size(), 0);
        for (size_t k = 0; k < free.size(); ++k)
          at[static_cast<size_t>(free[k])] = index[(i == 0 ? 0 : na) + k];
        c.out[0].data[static_cast<size_t>(n)] *=
            c.in[2 + i]->data[static_cast<size_t>(scale_at(at, c.site.in[i], c.site.in[2 + i]))];
      }
    });
  }

  static int64_t workspace(const Site& s, int threads) {
    return floats_of(s) * static_cast<int64_t>(sizeof(float)) + contraction_workspace(s, threads);
  }

  static Status cpu(const CpuCall& c) {
    auto* rows = static_cast<float*>(c.workspace);
    float* columns = rows + round_up(lines_of(c.site, 0), 16);
    expand(c, 0, rows);
    expand(c, 1, columns);
    return run_contraction(c, rows + floats_of(c.site), rows, columns);
  }

  static Buffers buffers(const Site&) { return {}; }

  static constexpr ByDecomposition emit{};

  static std::vector<Case> cases() {
    struct Operand {
      DType dtype;
      Dims dims, scale, contract;
    };
    const auto make = [](std::string name, const Operand& a, const Operand& b, DType result, DType scales) {
      Case c{std::move(name), {tensor(a.dtype, a.dims), tensor(b.dtype, b.dims)}, {}};
      for (const Operand* o : {&a, &b}) c.in.push_back(tensor(scales, o->scale, Fill::positive));
      c.attrs = contraction_attrs(a.contract, b.contract, {}, {});
      c.attrs.set("dtype", std::string(dtype_name(result)));
      return c;
    };
    constexpr DType e4m3 = DType::f8e4m3fn, e5m2 = DType::f8e5m2, f32 = DType::f32, bf16 = DType::bf16;
    std::vector<Case> cases = {
        make("tensor", {e4m3, {2, 5, 70}, {1, 1, 1}, {2}}, {e4m3, {21, 70}, {1, 1}, {1}}, bf16, bf16),
        make("rows_columns", {e4m3, {2, 6, 70}, {2, 6, 1}, {2}}, {e4m3, {22, 70}, {22, 1}, {1}}, f32, f32),
        make("blocks", {e5m2, {4, 70}, {2, 1}, {1}}, {e4m3, {24, 70}, {4, 1}, {1}}, f32, bf16),
        make("input_gradient", {e5m2, {2, 5, 20}, {2, 5, 1}, {2}}, {e4m3, {20, 34}, {1, 1}, {0}}, bf16, bf16),
        make("weight_gradient", {e5m2, {2, 5, 20}, {1, 1, 20}, {0, 1}}, {e4m3, {2, 5, 34}, {1, 1, 1}, {0, 1}},
             bf16, bf16),
        make("mixed", {e5m2, {6, 40}, {6, 1}, {1}}, {bf16, {40, 18}, {1, 1}, {0}}, bf16, bf16),
        make("f32", {f32, {3, 9}, {1, 1}, {1}}, {e4m3, {4, 9}, {4, 1}, {1}}, f32, f32),
        make("one_row", {e4m3, {1, 64}, {1, 1}, {1}}, {e4m3, {33, 64}, {33, 1}, {1}}, f32, f32),
        make("empty", {e4m3, {0, 8}, {1, 1}, {1}}, {e4m3, {4, 8}, {1, 1}, {1}}, f32, f32),
        make("bench", {e4m3, {1024, 576}, {1, 1}, {1}}, {e4m3, {1536, 576}, {1, 1}, {1}}, bf16, bf16),
    };
    cases.back().bench = true;
    cases.push_back(make("range", {e4m3, {6, 40}, {1, 1}, {1}}, {e4m3, {18, 40}, {1, 1}, {1}}, bf16, bf16));
    cases.back().in.push_back(tensor(f32, {}, Fill::positive));
    cases.back().attrs.set("bwd_dtype", std::string(dtype_name(e5m2)));
    cases.back().attrs.set("bwd_calibration", std::string("static,2"));
    cases.back().attrs.set("bwd_channelwise", false);
    return cases;
  }

 private:
  static bool has_range(const Attrs& attrs) {
    if (!attrs.has<std::string>("bwd_calibration")) return false;
    const auto c = parse_calibration(attrs.get<std::string>("bwd_calibration"));
    return c.ok() && c->method == Calibration::Method::recorded;
  }

  static std::optional<Value> gradient_of(const GradCall& c, int operand) {
    Builder& b = c.build;
    GradientProduct p = gradient_product(c.site, operand);
    const auto other = static_cast<size_t>(1 - operand);
    Value dy = b.convert(c.cotangent(0), c.site.in[2 + static_cast<size_t>(operand)].dtype);
    const DType dtype = b.type(dy).dtype;
    Value other_scale = c.inputs[2 + other];
    const Dims ones(c.site.in[other].dims.size(), 1);
    std::optional<Calibration> calibration;
    if (c.site.attrs.has<std::string>("bwd_dtype"))
      calibration = *parse_calibration(c.site.attrs.get<std::string>("bwd_calibration"));
    if (!shared(c.site.in[2 + other]) || (calibration && !calibration->follows_scale())) {
      // Its dims that are not 1 are contracted here; the others of dy share.
      Dims of_dy(b.type(dy).dims.size(), 1);
      for (size_t i = 0; i < p.dy_dims.size(); ++i)
        of_dy[static_cast<size_t>(p.dy_dims[i])] =
            c.site.in[2 + other].dims[static_cast<size_t>(p.other_dims[i])];
      dy = b.add("scale_tiles", {dy, b.reshape(b.convert(other_scale, dtype), of_dy)});
      other_scale = b.constant(dtype, ones, 1);
    }
    Quantised q{dy, {}};
    if (calibration) {
      Dims dims(b.type(dy).dims.size(), 1);
      if (c.site.attrs.get<bool>("bwd_channelwise")) {
        dims = b.type(dy).dims;
        for (const int64_t d : p.dy_dims) dims[static_cast<size_t>(d)] = 1;
      }
      q = quantised(b, dy, dtype, *dtype_from_name(c.site.attrs.get<std::string>("bwd_dtype")), *calibration,
                    dims, "", has_range(c.site.attrs) ? std::optional(c.inputs[4]) : std::nullopt);
    } else {
      q.scale = b.constant(dtype, Dims(b.type(dy).dims.size(), 1), 1);
    }
    p.attrs.set("dtype", std::string(dtype_name(dtype)));
    const Value y = c.inputs[other];
    const Values inputs =
        p.other_first ? Values{y, q.q, other_scale, q.scale} : Values{q.q, y, q.scale, other_scale};
    return b.transpose(b.add(kName, inputs, std::move(p.attrs)), p.permutation);
  }

  // The index of a scale: an element of the operand, whose contracted dims share.
  static int64_t scale_at(const Dims& index, const Type& x, const Type& scale) {
    return tile_of(index, x.dims, scale.dims);
  }
  // What follows takes no memory: cpu() comes here.
  static bool contracted(const Site& s, size_t operand, size_t dim) {
    const Dims& list = s.attrs.get<Dims>(operand == 0 ? "contract_a" : "contract_b");
    return std::find(list.begin(), list.end(), static_cast<int64_t>(dim)) != list.end();
  }
  static int64_t lines_of(const Site& s, size_t operand) {
    int64_t n = 1;
    for (size_t d = 0; d < s.in[operand].dims.size(); ++d)
      if (!contracted(s, operand, d)) n *= s.in[operand].dims[d];
    return n;
  }
  static int64_t floats_of(const Site& s) {
    return round_up(lines_of(s, 0), 16) + round_up(lines_of(s, 1), 16);
  }

  // The scale of each index of the operand's free dims.
  static void expand(const CpuCall& c, size_t operand, float* out) {
    const Type& x = c.site.in[operand];
    const Type& scale = c.site.in[2 + operand];
    const int64_t count = lines_of(c.site, operand);
    const auto value = [&](int64_t i) {
      return scale.dtype == DType::f32 ? data_in<float>(c, 2 + operand)[i]
                                       : to_float(data_in<bf16>(c, 2 + operand)[i]);
    };
    if (shared(scale)) {
      std::fill(out, out + count, value(0));
      return;
    }
    for (int64_t n = 0; n < count; ++n) {
      int64_t rest = n, at = 0, stride = 1;
      for (size_t d = x.dims.size(); d-- > 0;) {
        if (contracted(c.site, operand, d)) continue;
        const int64_t index = rest % x.dims[d];
        rest /= x.dims[d];
        at += index / (x.dims[d] / scale.dims[d]) * stride;
        stride *= scale.dims[d];
      }
      out[n] = value(at);
    }
  }
};

}  // namespace

LIGNUM_DEFINE_OP(scaled_matmul, ScaledMatmul)

}  // namespace lignum::ops
