// collective_permute: starts to send each rank's x on along a mesh axis: rank i of a group gets what the rank
// `shift` places before it has, round the group.
//   x of any shape and dtype -> async, like x
// attributes: axis, group (all_gather/collective.h); shift, between -group and group
#include "ops/all_gather/collective.h"

namespace lignum::ops {
namespace {

struct CollectivePermute {
  static constexpr std::string_view kName = "collective_permute";

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 1));
    LIGNUM_RETURN_IF_ERROR(check_group(attrs));
    const int64_t group = attrs.get<int64_t>("group");
    LIGNUM_RETURN_IF_ERROR(int_in(attrs, "shift", 1 - group, group - 1).status());
    Type out = in[0];
    out.async = true;
    return Types{std::move(out)};
  }

  static Gradients grad(const GradCall& c) {
    Attrs attrs = c.site.attrs;
    attrs.set("shift", -c.site.attrs.get<int64_t>("shift"));
    return {run_collective(c.build, kName, c.cotangent(0), std::move(attrs))};
  }

  static ShardRule partition(const Site& s) {
    const auto f = factors(s.in[0].rank());
    return {.in = {f}, .out = {f}, .linear = true};
  }

  static Cost cost(const Site& s) {
    return collective_cost(s, shift(s) == 0 ? 0 : static_cast<double>(s.in[0].bytes()));
  }

  static constexpr Primitive decompose{"communication"};

  static void reference(const RefGroupCall& c) {
    const auto group = static_cast<int64_t>(c.peers.size());
    c.out.data = c.peers[static_cast<size_t>((c.rank + group - shift(c.site)) % group)]->data;
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    return start_collective(c, CollectiveCall::Kind::permute, c.site.in[0], {.shift = shift(c.site)});
  }

  static Buffers buffers(const Site&) { return {}; }

  static std::vector<std::string> emit(const EmitCall& c) {
    std::vector<std::vector<int64_t>> pairs;
    for (const auto& group : c.out.groups(c.site.attrs.get<std::string>("axis")))
      for (size_t i = 0; i < group.size(); ++i)
        pairs.push_back({group[i], group[(i + static_cast<size_t>(shift(c.site))) % group.size()]});
    const std::string result = c.out.fresh();
    c.out.line(
        fmt::format("{} = \"stablehlo.collective_permute\"({}) <{{source_target_pairs = {}}}> : {} -> {}",
                    result, c.in[0], mlir_table(pairs), mlir_types(c.site.in), mlir_type(c.site.out[0])));
    return {result};
  }

  static std::vector<Case> cases() {
    const auto make = [](std::string name, DType dtype, Dims dims, int64_t group, int64_t shift,
                         bool bench = false) {
      return collective_case(std::move(name), dtype, std::move(dims), group, {{"shift", shift}}, bench);
    };
    constexpr DType f32 = DType::f32, bf16 = DType::bf16;
    return {
        make("one_row", f32, {1, 8}, 2, 1),
        make("one_rank", f32, {3}, 1, 0),
        make("scalar", f32, {}, 4, 1),
        make("back", f32, {3, 37}, 3, -1),
        make("two_on", bf16, {5}, 4, 2),
        make("misaligned", bf16, {211}, 3, 1),
        make("integers", DType::i32, {9, 2}, 3, -2),
        make("bench", bf16, {4096, 1024}, 2, 1, true),
    };
  }

 private:
  // Places forward, in 0..group-1.
  static int64_t shift(const Site& s) {
    const int64_t group = s.attrs.get<int64_t>("group");
    return (s.attrs.get<int64_t>("shift") + group) % group;
  }
};

}  // namespace

LIGNUM_DEFINE_OP(collective_permute, CollectivePermute)

}  // namespace lignum::ops
