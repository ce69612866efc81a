// scaled_matmul: matmul of a and b where each stands for itself times a scale, each tile its own
// (quantize/tiles.h). Products and their sums are those of a and b; each sum is multiplied by a's and then by
// b's scale, and rounded once to `dtype`. Where tiles lie along contracted dims, the sum of each part of k
// that has one pair of scales is multiplied by these, and the parts are added. No batch dims; contraction.h's
// other attributes.
//   (a, b, scale_a, scale_b)   operands f32, bf16 or 8-bit floats; scales f32 or bf16
//   (.., range?, keys?)        for the gradient alone, where its attributes ask for them (backward.h)
// The gradient of an operand is that of what it stands for, in its scale's dtype (backward.h, with the
// attributes that it reads).
#include <algorithm>
#include <array>
#include <numeric>

#include "ops/matmul/contraction.h"
#include "ops/quantize/tiles.h"
#include "ops/scaled_matmul/backward.h"

namespace lignum::ops {
namespace {

// The contracted dims of an operand in the order of its products (contraction.h). Takes no memory: cpu()
// comes here.
class Contracted {
 public:
  Contracted(const Site& s, size_t operand) : x_(s.in[operand]), scale_(s.in[2 + operand]) {
    const Dims& of_a = s.attrs.get<Dims>("contract_a");
    const Dims& own = operand == 0 ? of_a : s.attrs.get<Dims>("contract_b");
    for (int64_t d = 0; d < s.in[0].rank(); ++d) {
      const auto at = std::find(of_a.begin(), of_a.end(), d);
      if (at != of_a.end())
        dims_[count_++] = static_cast<size_t>(own[static_cast<size_t>(at - of_a.begin())]);
    }
  }
  bool has(size_t dim) const {
    return std::find(dims_.begin(), dims_.begin() + count_, dim) != dims_.begin() + count_;
  }
  // Products of a line.
  int64_t size() const {
    int64_t n = 1;
    for (size_t i = 0; i < count_; ++i) n *= x_.dims[dims_[i]];
    return n;
  }
  // Neighbouring products that share a scale.
  int64_t run() const {
    int64_t n = 1;
    for (size_t i = count_; i-- > 0;) {
      const int64_t scales = scale_.dims[dims_[i]];
      n *= x_.dims[dims_[i]] / scales;
      if (scales != 1) break;
    }
    return n;
  }
  // Product k's part of the number of its scale.
  int64_t scale_at(int64_t k) const {
    int64_t at = 0;
    for (size_t i = count_; i-- > 0;) {
      const size_t d = dims_[i];
      at += k % x_.dims[d] / (x_.dims[d] / scale_.dims[d]) * stride(d);
      k /= x_.dims[d];
    }
    return at;
  }
  // Line n's part: the free dims', in order.
  int64_t scale_of_line(int64_t n) const {
    int64_t at = 0;
    for (size_t d = x_.dims.size(); d-- > 0;) {
      if (has(d)) continue;
      at += n % x_.dims[d] / (x_.dims[d] / scale_.dims[d]) * stride(d);
      n /= x_.dims[d];
    }
    return at;
  }
  int64_t lines() const {
    int64_t n = 1;
    for (size_t d = 0; d < x_.dims.size(); ++d)
      if (!has(d)) n *= x_.dims[d];
    return n;
  }

 private:
  int64_t stride(size_t dim) const {
    int64_t n = 1;
    for (size_t d = dim + 1; d < scale_.dims.size(); ++d) n *= scale_.dims[d];
    return n;
  }

  const Type& x_;
  const Type& scale_;
  std::array<size_t, kernels::kMaxRank> dims_{};
  size_t count_ = 0;
};

// The scales of the lines of both operands, and the products that share them.
struct Parts {
  Contracted a, b;
  int64_t tile = 0, count = 1;  // tile 0: all products of a line share one pair
  explicit Parts(const Site& s) : a(s, 0), b(s, 1) {
    const int64_t k = a.size();
    if (k == 0) return;
    const int64_t run = std::gcd(a.run(), b.run());
    if (run == k) return;
    tile = run;
    count = k / run;
  }
  int64_t floats() const { return (count * (a.lines() + b.lines()) + 15) / 16 * 16; }
};

struct ScaledMatmul {
  static constexpr std::string_view kName = "scaled_matmul";
  static constexpr bool kStraightThrough = true;

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_ASSIGN_OR_RETURN(const std::optional<BackwardDots> how, backward_dots(attrs));
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, how ? how->inputs() : 4));
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
    }
    if (const auto i = how ? how->range_input() : std::nullopt) {
      LIGNUM_RETURN_IF_ERROR(expect_dtype(in[*i], "range", {DType::f32}));
      LIGNUM_RETURN_IF_ERROR(expect_rank(in[*i], "range", 0));
    }
    if (const auto i = how ? how->keys_input() : std::nullopt) {
      LIGNUM_RETURN_IF_ERROR(expect_last_dim(out[0], "the result"));
      LIGNUM_RETURN_IF_ERROR(expect_dtype(in[*i], "keys", {DType::i32}));
      LIGNUM_RETURN_IF_ERROR(
          expect_dims(in[*i], "keys", {out[0].dims[0]}, "one for each index of the result's first dim"));
    }
    return out;
  }

  static Gradients grad(const GradCall& c) { return backward(c); }

  static ShardRule partition(const Site& s) {
    ShardRule rule = contraction_rule(s);
    for (size_t i = 0; i < 2; ++i) {
      std::vector<int> of_scale = scale_factors(s.in[i], rule.in[i], s.in[2 + i], rule.exact);
      rule.in.push_back(std::move(of_scale));
    }
    rule.in.resize(s.in.size());  // a range is whole
    const auto how = *backward_dots(s.attrs);
    if (const auto keys = how ? how->keys_input() : std::nullopt) rule.in[*keys] = {rule.out[0][0]};
    return rule;
  }

  static Cost cost(const Site& s) { return contraction_cost(s); }

  // Parts of k become batch dims, each pair of contracted dims two: the part, and the place in it.
  static Values decompose(Builder& b, const Site& s, std::span<const Value> in) {
    const Contraction g(s);
    Arith m(b);
    Dims parts;  // of each pair
    for (size_t i = 0; i < g.contract_a.size(); ++i) {
      const auto da = static_cast<size_t>(g.contract_a[i]), db = static_cast<size_t>(g.contract_b[i]);
      parts.push_back(s.in[0].dims[da] == 0 ? 1 : std::lcm(s.in[2].dims[da], s.in[3].dims[db]));
    }
    const auto cut =
        static_cast<int64_t>(std::count_if(parts.begin(), parts.end(), [](int64_t n) { return n > 1; }));
    struct Cut {
      Value x;
      Dims batch, contract;
    };
    const auto split = [&](Value x, const Dims& contract) {
      const Dims from = b.type(x).dims;
      Cut c{x, {}, Dims(contract.size())};
      Dims dims, where(contract.size());
      for (size_t d = 0; d < from.size(); ++d) {
        const auto pair = std::find(contract.begin(), contract.end(), static_cast<int64_t>(d));
        const auto i = static_cast<size_t>(pair - contract.begin());
        const int64_t n = pair == contract.end() ? 1 : parts[i];
        if (n > 1) {
          where[i] = static_cast<int64_t>(dims.size());
          dims.push_back(n);
        }
        if (pair != contract.end()) c.contract[i] = static_cast<int64_t>(dims.size());
        dims.push_back(from[d] / n);
      }
      for (size_t i = 0; i < parts.size(); ++i)
        if (parts[i] > 1) c.batch.push_back(where[i]);
      c.x = b.reshape(x, dims);
      return c;
    };
    const Cut ca = split(in[0], g.contract_a), cb = split(in[1], g.contract_b);
    Value y = m.matmul(ca.x, cb.x, ca.contract, cb.contract, ca.batch, cb.batch);
    const Dims dims = b.type(y).dims;
    const auto times = [&](Value scale, const Type& x, const Dims& free, const Dims& contract,
                           int64_t first) {
      Dims kept, where, order;
      Dims whole = b.type(scale).dims;  // of the dims that stay, each element its own
      for (size_t i = 0; i < contract.size(); ++i) {
        if (parts[i] == 1) continue;
        whole[static_cast<size_t>(contract[i])] = parts[i];
        order.push_back(contract[i]);
        where.push_back(static_cast<int64_t>(where.size()));
        kept.push_back(parts[i]);
      }
      for (size_t i = 0; i < free.size(); ++i) {
        const auto d = static_cast<size_t>(free[i]);
        whole[d] = x.dims[d];
        order.push_back(free[i]);
        where.push_back(cut + first + static_cast<int64_t>(i));
        kept.push_back(x.dims[d]);
      }
      Value each = spread(b, m.f32(scale), whole);
      if (cut > 0) {
        for (size_t i = 0; i < contract.size(); ++i)
          if (parts[i] == 1) order.push_back(contract[i]);
        each = b.transpose(each, order);
      }
      y = m.mul(y, b.broadcast(b.reshape(each, kept), dims, where));
    };
    times(in[2], s.in[0], g.free_a, g.contract_a, 0);
    times(in[3], s.in[1], g.free_b, g.contract_b, static_cast<int64_t>(g.free_a.size()));
    if (cut > 0) y = b.reduce("sum", y, first_dims(cut));
    return {b.convert(y, s.out[0].dtype)};
  }

  static void reference(const RefCall& c) {
    std::array<RefTensor, 2> scaled{*c.in[0], *c.in[1]};
    for (size_t i = 0; i < 2; ++i) {
      const Dims& scales = c.site.in[2 + i].dims;
      for_each_index(scaled[i].dims, [&](const Dims& index, int64_t n) {
        scaled[i].data[static_cast<size_t>(n)] *=
            c.in[2 + i]->data[static_cast<size_t>(tile_of(index, scaled[i].dims, scales))];
      });
    }
    const RefTensor* in[] = {&scaled[0], &scaled[1]};
    contraction_reference({c.site, in, c.out}, c.out[0].data);
  }

  static int64_t workspace(const Site& s, int threads) {
    const Parts parts(s);
    return parts.floats() * static_cast<int64_t>(sizeof(float)) +
           contraction_workspace(s, threads, parts.tile);
  }

  static Status cpu(const CpuCall& c) {
    const Parts parts(c.site);
    auto* of_a = static_cast<float*>(c.workspace);
    float* of_b = of_a + parts.count * parts.a.lines();
    expand(c, 0, parts.a, parts, of_a);
    expand(c, 1, parts.b, parts, of_b);
    return run_contraction(c, of_a + parts.floats(), {of_a, of_b, parts.tile});
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
        make("k_tiles", {e4m3, {2, 4, 96}, {2, 4, 6}, {2}}, {e4m3, {22, 96}, {22, 6}, {1}}, bf16, bf16),
        make("k_blocks", {e4m3, {6, 256}, {6, 4}, {1}}, {e4m3, {64, 256}, {2, 4}, {1}}, f32, f32),
        make("k_coarse_and_fine", {e5m2, {4, 64}, {2, 4}, {1}}, {bf16, {64, 10}, {8, 1}, {0}}, f32, f32),
        make("k_two_dims", {e5m2, {2, 64, 20}, {2, 2, 20}, {0, 1}}, {e4m3, {2, 64, 12}, {1, 4, 1}, {0, 1}},
             f32, f32),
        make("mixed", {e5m2, {6, 40}, {6, 1}, {1}}, {bf16, {40, 18}, {1, 1}, {0}}, bf16, bf16),
        make("f32", {f32, {3, 9}, {1, 1}, {1}}, {e4m3, {4, 9}, {4, 1}, {1}}, f32, f32),
        make("one_row", {e4m3, {1, 64}, {1, 1}, {1}}, {e4m3, {33, 64}, {33, 1}, {1}}, f32, f32),
        make("empty", {e4m3, {0, 8}, {1, 1}, {1}}, {e4m3, {4, 8}, {1, 1}, {1}}, f32, f32),
        make("bench", {e4m3, {1024, 576}, {1, 1}, {1}}, {e4m3, {1536, 576}, {1, 1}, {1}}, bf16, bf16),
    };
    cases.back().bench = true;
    BackwardDots how;
    how.calibration = *parse_calibration("static,2");
    how.channelwise = false;
    for (const bool with_keys : {false, true}) {
      cases.push_back(make(with_keys ? "range_keys" : "range", {e4m3, {6, 40}, {1, 1}, {1}},
                           {e4m3, {18, 40}, {1, 1}, {1}}, bf16, bf16));
      cases.back().in.push_back(tensor(f32, {}, Fill::positive));
      if (with_keys) {
        how.stream = 7;
        cases.back().in.push_back(tensor(DType::i32, {6}, Fill::token, 1000));
      }
      how.set(cases.back().attrs);
    }
    return cases;
  }

 private:
  // The scales of an operand's lines, part after part.
  static void expand(const CpuCall& c, size_t operand, const Contracted& x, const Parts& parts, float* out) {
    const Type& scale = c.site.in[2 + operand];
    const int64_t lines = x.lines();
    const auto value = [&](int64_t i) {
      return scale.dtype == DType::f32 ? data_in<float>(c, 2 + operand)[i]
                                       : to_float(data_in<bf16>(c, 2 + operand)[i]);
    };
    if (scale.elements() == 1) {
      std::fill(out, out + parts.count * lines, value(0));
      return;
    }
    for (int64_t n = 0; n < lines; ++n) {
      const int64_t of_line = x.scale_of_line(n);
      for (int64_t part = 0; part < parts.count; ++part)
        out[part * lines + n] = value(of_line + (parts.tile > 0 ? x.scale_at(part * parts.tile) : 0));
    }
  }
};

}  // namespace

LIGNUM_DEFINE_OP(scaled_matmul, ScaledMatmul)

}  // namespace lignum::ops
