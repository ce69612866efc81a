// attention_merge: two attentions of the same queries over keys apart are one over all of them.
//   a [B, S, H, D] f32 or bf16, its lse f32 [B, H, S], b like a but for the dtype, its lse -> out f32, lse
//   f32 lse = log(exp(lse_a) + exp(lse_b)), out = exp(lse_a - lse) a + exp(lse_b - lse) b
// An lse of -inf is one over no key; both so: 0 and -inf. Arithmetic in f32, exponentials in double.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/facets.h"

namespace lignum::ops {
namespace {

// What each counts for, and the sum's logarithm.
struct Shares {
  double a, b, lse;
};
Shares shares_of(double a, double b) {
  const double largest = std::max(a, b);
  if (largest == -std::numeric_limits<double>::infinity()) return {0, 0, largest};
  const double of_a = std::exp(a - largest), of_b = std::exp(b - largest), sum = of_a + of_b;
  return {of_a / sum, of_b / sum, largest + std::log(sum)};
}

struct AttentionMerge {
  static constexpr std::string_view kName = "attention_merge";

  static Result<Types> infer(std::span<const Type> in, const Attrs&) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 4));
    LIGNUM_RETURN_IF_ERROR(expect_edge(in[0], "a"));
    LIGNUM_RETURN_IF_ERROR(expect_rank(in[0], "a", 4));
    LIGNUM_RETURN_IF_ERROR(expect_edge(in[2], "b"));
    LIGNUM_RETURN_IF_ERROR(expect_dims(in[2], "b", in[0].dims, "those of a"));
    const Type& a = in[0];
    Type out = a, lse{DType::f32,
                      {a.dims[0], a.dims[2], a.dims[1]},
                      tidy_names({name_of(a, 0), name_of(a, 2), name_of(a, 1)})};
    out.dtype = DType::f32;
    for (const size_t i : {size_t{1}, size_t{3}}) {
      LIGNUM_RETURN_IF_ERROR(expect_dtype(in[i], "lse", {DType::f32}));
      LIGNUM_RETURN_IF_ERROR(expect_dims(in[i], "lse", lse.dims, "batch, heads, sequence of a"));
    }
    return Types{std::move(out), std::move(lse)};
  }

  static constexpr ByDecomposition grad{};

  static ShardRule partition(const Site&) {
    const std::vector<int> x = {0, 1, 2, -1}, lse = {0, 2, 1};
    return {.in = {x, lse, x, lse}, .out = {x, lse}};
  }

  static Cost cost(const Site& s) {
    Cost c = streaming_cost(s, 1.5);
    c.transcendentals = 3 * static_cast<double>(s.out[1].elements());
    return c;
  }

  static Values decompose(Builder& b, const Site& s, std::span<const Value> in) {
    Arith m(b);
    // Finite, so that the difference of two infinities does not come about.
    const Value largest = b.elementwise(
        "max", {b.elementwise("max", {in[1], in[3]}), m.like(in[1], -std::numeric_limits<float>::max())});
    const Value of_a = m.exp(m.sub(in[1], largest)), of_b = m.exp(m.sub(in[3], largest));
    const Value sum = m.add(of_a, of_b), any = m.compare("gt", sum, m.like(sum, 0));
    const Value safe = m.select(any, sum, m.like(sum, 1));
    const auto part = [&](Value x, Value of) {
      return m.mul(m.f32(x), b.broadcast(b.transpose(m.div(of, safe), {0, 2, 1}), s.out[0].dims, {0, 1, 2}));
    };
    const Value none = m.like(sum, -std::numeric_limits<double>::infinity());
    return {m.add(part(in[0], of_a), part(in[2], of_b)), m.select(any, m.add(largest, m.log(safe)), none)};
  }

  static void reference(const RefCall& c) {
    const Dims& dims = c.site.out[0].dims;
    for_each_index(c.site.out[1].dims, [&](const Dims& at, int64_t n) {
      const auto i = static_cast<size_t>(n);
      const Shares shares = shares_of(c.in[1]->data[i], c.in[3]->data[i]);
      c.out[1].data[i] = shares.lse;
      for (int64_t d = 0; d < dims[3]; ++d) {
        const auto e = static_cast<size_t>(((at[0] * dims[1] + at[2]) * dims[2] + at[1]) * dims[3] + d);
        c.out[0].data[e] = shares.a * c.in[0]->data[e] + shares.b * c.in[2]->data[e];
      }
    });
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    const auto with = [&]<class A>(const A* a) {
      if (c.site.in[2].dtype == DType::f32)
        run(c, a, data_in<float>(c, 2));
      else
        run(c, a, data_in<bf16>(c, 2));
    };
    if (c.site.in[0].dtype == DType::f32)
      with(data_in<float>(c, 0));
    else
      with(data_in<bf16>(c, 0));
    return {};
  }

  static Buffers buffers(const Site& s) {
    Buffers b{.view = {}, .in_place = {{1, 1}}};
    if (s.in[0].dtype == DType::f32) b.in_place.emplace_back(0, 0);
    return b;
  }

  static constexpr ByDecomposition emit{};

  static std::vector<Case> cases() {
    constexpr DType f32 = DType::f32, bf16 = DType::bf16;
    const auto make = [](std::string name, DType a, DType b, Dims dims) {
      const Dims lse = {dims[0], dims[2], dims[1]};
      return Case{std::move(name), {tensor(a, dims), tensor(f32, lse), tensor(b, dims), tensor(f32, lse)}};
    };
    std::vector<Case> cases = {
        make("one_row", f32, f32, {1, 1, 1, 8}),  make("odd", f32, bf16, {2, 7, 3, 5}),
        make("first", bf16, bf16, {2, 4, 2, 16}), make("misaligned", f32, f32, {1, 37, 1, 11}),
        make("empty", f32, f32, {0, 4, 2, 8}),    make("bench", f32, bf16, {512, 4, 8, 64}),
    };
    cases.back().bench = true;
    return cases;
  }

 private:
  template <class A, class B>
  static void run(const CpuCall& c, const A* a, const B* b) {
    const Dims& dims = c.site.out[0].dims;
    const int64_t tokens = dims[1], heads = dims[2], dim = dims[3];
    const float *lse_a = data_in<float>(c, 1), *lse_b = data_in<float>(c, 3);
    float *out = data_out<float>(c, 0), *lse = data_out<float>(c, 1);
    c.parallel.run(dims[0] * tokens, [&](int64_t token, int) {
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t at = (token / tokens * heads + h) * tokens + token % tokens;
        const Shares shares = shares_of(static_cast<double>(lse_a[at]), static_cast<double>(lse_b[at]));
        lse[at] = static_cast<float>(shares.lse);
        const auto of_a = static_cast<float>(shares.a), of_b = static_cast<float>(shares.b);
        const int64_t first = (token * heads + h) * dim;
        for (int64_t i = first; i < first + dim; ++i) out[i] = of_a * to_float(a[i]) + of_b * to_float(b[i]);
      }
    });
  }
};

}  // namespace

LIGNUM_DEFINE_OP(attention_merge, AttentionMerge)

}  // namespace lignum::ops
