// axis_index: where this rank stands on a mesh axis, 0..group-1: i32 scalar. The one op whose result differs
// between ranks that have the same inputs.
// attributes: axis, group (all_gather/collective.h)
#include <fmt/ranges.h>

#include "ops/all_gather/collective.h"

namespace lignum::ops {
namespace {

struct AxisIndex {
  static constexpr std::string_view kName = "axis_index";

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 0));
    LIGNUM_RETURN_IF_ERROR(check_group(attrs));
    return one_type(DType::i32, {});
  }

  static Gradients grad(const GradCall&) { return {}; }
  static ShardRule partition(const Site&) { return {.in = {}, .out = {{}}}; }

  static Cost cost(const Site& s) {
    Cost c = streaming_cost(s, 0);
    c.work = Work::copy;
    return c;
  }

  static constexpr Primitive decompose{"known to the rank alone"};

  static void reference(const RefCall& c) { c.out[0].data[0] = static_cast<double>(c.position); }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    LIGNUM_CHECK(c.collectives != nullptr || group(c.site) == 1, "axis_index without a transport");
    const int64_t at = group(c.site) == 1 ? 0 : c.collectives->position(axis(c.site));
    *data_out<int32_t>(c, 0) = static_cast<int32_t>(at);
    return {};
  }

  static Buffers buffers(const Site&) { return {}; }

  // Row `replica_id` of a table of all replicas' places.
  static std::vector<std::string> emit(const EmitCall& c) {
    const std::string type = mlir_type(c.site.out[0]), index = c.out.fresh();
    if (group(c.site) == 1) {
      c.out.line(fmt::format("{} = stablehlo.constant dense<0> : {}", index, type));
      return {index};
    }
    const auto groups = c.out.groups(axis(c.site));
    Dims places(groups.size() * groups[0].size());
    for (const auto& ranks : groups)
      for (size_t i = 0; i < ranks.size(); ++i)
        places[static_cast<size_t>(ranks[i])] = static_cast<int64_t>(i);
    const std::string table_type = fmt::format("tensor<{}xi32>", places.size());
    const std::string table = c.out.fresh(), id = c.out.fresh(), row = c.out.fresh();
    c.out.line(
        fmt::format("{} = stablehlo.constant dense<[{}]> : {}", table, fmt::join(places, ", "), table_type));
    c.out.line(fmt::format("{} = stablehlo.replica_id : tensor<ui32>", id));
    c.out.line(
        fmt::format("{} = \"stablehlo.dynamic_slice\"({}, {}) <{{slice_sizes = array<i64: 1>}}> : "
                    "({}, tensor<ui32>) -> tensor<1xi32>",
                    row, table, id, table_type));
    c.out.line(fmt::format("{} = stablehlo.reshape {} : (tensor<1xi32>) -> {}", index, row, type));
    return {index};
  }

  static std::vector<Case> cases() {
    return {{"one_rank", {}, {{"axis", std::string("fsdp")}, {"group", int64_t{1}}}}};
  }

 private:
  static int64_t group(const Site& s) { return s.attrs.get<int64_t>("group"); }
  static const std::string& axis(const Site& s) { return s.attrs.get<std::string>("axis"); }
};

}  // namespace

LIGNUM_DEFINE_OP(axis_index, AxisIndex)

}  // namespace lignum::ops
