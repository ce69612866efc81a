// all_reduce: starts to add up the x of a group's ranks; every rank gets the sum, the same bits everywhere.
//   x of any shape -> async, like x; f32, bf16, i32
// attributes: axis, group (all_gather/collective.h); dtype and sums as in reduce_scatter.
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
    return Types{std::move(out)};
  }

  // Each rank's x is in every rank's sum.
  static Gradients grad(const GradCall& c) {
    return {c.build.convert(run_collective(c.build, "all_reduce", c.cotangent(0),
                                           Attrs{{"axis", c.site.attrs.get<std::string>("axis")},
                                                 {"group", c.site.attrs.get<int64_t>("group")}}),
                            c.site.in[0].dtype)};
  }

  static ShardRule partition(const Site& s) {
    const auto f = factors(s.in[0].rank());
    return {.in = {f}, .out = {f}, .linear = true};
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
    for (const RefTensor* peer : c.peers)
      for (size_t i = 0; i < c.out.data.size(); ++i) c.out.data[i] += peer->data[i];
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    return start_collective(c, CollectiveCall::Kind::all_reduce, c.site.in[0]);
  }

  static Buffers buffers(const Site& s) {
    return s.in[0].dtype == s.out[0].dtype ? Buffers{.in_place = {{0, 0}}} : Buffers{};
  }

  static std::vector<std::string> emit(const EmitCall& c) {
    const std::string sum = c.out.fresh();
    c.out.line(fmt::format("{} = \"stablehlo.all_reduce\"({}) <{{replica_groups = {}}}> ({{", sum, c.in[0],
                           c.out.replica_groups(c.site.attrs.get<std::string>("axis"))));
    emit_sum_region(c.out, c.site.in[0].dtype);
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
        collective_case("bench", bf16, {4096, 1024}, 2, {}, true),
    };
  }
};

}  // namespace

LIGNUM_DEFINE_OP(all_reduce, AllReduce)

}  // namespace lignum::ops
