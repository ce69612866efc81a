// all_reduce: starts to add up the x of a group's ranks, or with fn="max" to find the largest of each
// element; every rank gets the result, the same bits everywhere. A NaN is the largest.
//   x of any shape -> async, like x; f32, bf16, i32
// attributes: axis, group (all_gather/collective.h); dtype and sums as in reduce_scatter.
#include <algorithm>
#include <limits>

#include "ops/all_gather/collective.h"

namespace lignum::ops {
namespace {

struct AllReduce {
  static constexpr std::string_view kName = "all_reduce";

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 1));
    LIGNUM_RETURN_IF_ERROR(check_summed(in[0]));
    LIGNUM_RETURN_IF_ERROR(check_group(attrs));
    Type out = in[0];
    out.async = true;
    LIGNUM_ASSIGN_OR_RETURN(out.dtype, sum_dtype(in[0], attrs));
    if (attrs.all().contains("fn")) {
      LIGNUM_ASSIGN_OR_RETURN(const std::string fn, string_attr(attrs, "fn"));
      if (fn != "max") return user_error("attribute fn=\"{}\": max is allowed; without fn it is a sum", fn);
      LIGNUM_RETURN_IF_ERROR(expect_edge(in[0], "x"));
      if (out.dtype != in[0].dtype)
        return user_error("a maximum of {} is {}", dtype_name(in[0].dtype), dtype_name(in[0].dtype));
    }
    return Types{std::move(out)};
  }

  // Each rank's x is in every rank's sum. A maximum comes after differentiation: it has no gradient.
  static Gradients grad(const GradCall& c) {
    if (is_max(c.site)) return {std::nullopt};
    return {c.build.convert(run_collective(c.build, "all_reduce", c.cotangent(0),
                                           Attrs{{"axis", c.site.attrs.get<std::string>("axis")},
                                                 {"group", c.site.attrs.get<int64_t>("group")}}),
                            c.site.in[0].dtype)};
  }

  static ShardRule partition(const Site& s) {
    const auto f = factors(s.in[0].rank());
    return {.in = {f}, .out = {f}, .linear = !is_max(s)};
  }

  // A reduce-scatter and an all-gather.
  static Cost cost(const Site& s) {
    const auto group = static_cast<double>(s.attrs.get<int64_t>("group"));
    Cost c =
        collective_cost(s, (group - 1) / group * static_cast<double>(s.in[0].bytes() + s.out[0].bytes()));
    c.flops = (group - 1) / group * static_cast<double>(s.out[0].elements());
    return c;
  }

  static constexpr Primitive decompose{"communication"};

  static void reference(const RefGroupCall& c) {
    const bool max = is_max(c.site);
    if (max) std::fill(c.out.data.begin(), c.out.data.end(), -std::numeric_limits<double>::infinity());
    for (const RefTensor* peer : c.peers) {
      for (size_t i = 0; i < c.out.data.size(); ++i) {
        double& y = c.out.data[i];
        const double x = peer->data[i];
        if (!max) {
          y += x;
        } else if (!(x <= y)) {  // a NaN stays
          y = y != y ? y : x;
        }
      }
    }
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    return start_collective(c, CollectiveCall::Kind::all_reduce, c.site.in[0], {.maximum = is_max(c.site)});
  }

  static Buffers buffers(const Site& s) {
    return s.in[0].dtype == s.out[0].dtype ? Buffers{.in_place = {{0, 0}}} : Buffers{};
  }

  static std::vector<std::string> emit(const EmitCall& c) {
    const std::string sum = c.out.fresh();
    c.out.line(fmt::format("{} = \"stablehlo.all_reduce\"({}) <{{replica_groups = {}}}> ({{", sum, c.in[0],
                           mlir_table(c.out.groups(c.site.attrs.get<std::string>("axis")))));
    emit_region(c.out, c.site.in[0].dtype, is_max(c.site) ? "maximum" : "add");
    Type narrow = c.site.out[0];
    narrow.dtype = c.site.in[0].dtype;
    c.out.line(fmt::format("}}) : {} -> {}", mlir_types(c.site.in), mlir_type(narrow)));
    return {emit_converted(c.out, sum, narrow, c.site.out[0])};
  }

  static std::vector<Case> cases() {
    constexpr DType f32 = DType::f32, bf16 = DType::bf16;
    return {
        collective_case("one_row", f32, {1, 8}, 2, {}),
        collective_case("one_rank", f32, {3}, 1, {}),
        collective_case("scalar", f32, {}, 4, {}),
        collective_case("odd", f32, {3, 37}, 3, {}),
        collective_case("misaligned", bf16, {211}, 2, {}),
        collective_case("fewer_than_ranks", bf16, {3}, 4, {}),
        collective_case("wide_sum", bf16, {5, 7}, 2, {{"dtype", std::string("f32")}}),
        collective_case("integers", DType::i32, {9, 2}, 3, {}),
        collective_case("maximum", bf16, {5, 7}, 3, {{"fn", std::string("max")}}),
        collective_case("bench", bf16, {4096, 1024}, 2, {}, true),
    };
  }

 private:
  static bool is_max(const Site& s) { return s.attrs.has<std::string>("fn"); }
};

}  // namespace

LIGNUM_DEFINE_OP(all_reduce, AllReduce)

}  // namespace lignum::ops
