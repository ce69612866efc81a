// reduce_scatter: starts to add up the x of a group's ranks and to leave each rank its shard of the sum along
// dim.
//   x [..., size, ...] -> async, dims[dim] = ceil(size / group), zeros beyond size; f32, bf16, i32
// attributes: axis, group, dim (collective.h); dtype=f32 keeps the sum of a bf16 x in f32. On CPU ranks the
// owner adds in f32 in ascending rank order and rounds once; on a PJRT device the order and the precision are
// the device's.
#include "ops/all_gather/collective.h"

namespace lignum::ops {
namespace {

struct ReduceScatter {
  static constexpr std::string_view kName = "reduce_scatter";

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 1));
    LIGNUM_RETURN_IF_ERROR(check_summed(in[0]));
    LIGNUM_RETURN_IF_ERROR(check_group(attrs));
    LIGNUM_ASSIGN_OR_RETURN(const int64_t dim, check_dim(attrs, in[0].rank()));
    const int64_t size = in[0].dims[static_cast<size_t>(dim)];
    if (size < 1) return user_error("x is {}; dim {} has nothing to scatter", ir::to_string(in[0]), dim);
    Type out = started(in[0], dim, shard_size(size, attrs.get<int64_t>("group")));
    LIGNUM_ASSIGN_OR_RETURN(out.dtype, sum_dtype(in[0], attrs));
    return Types{std::move(out)};
  }

  static Gradients grad(const GradCall& c) {
    Attrs attrs = c.site.attrs;
    attrs.set("size", c.site.in[0].dims[static_cast<size_t>(attrs.get<int64_t>("dim"))]);
    return {run_collective(c.build, "all_gather", c.build.convert(c.cotangent(0), c.site.in[0].dtype),
                           std::move(attrs))};
  }

  static ShardRule partition(const Site& s) {
    auto f = factors(s.in[0].rank());
    f[static_cast<size_t>(s.attrs.get<int64_t>("dim"))] = -1;
    return {.in = {f}, .out = {f}, .linear = true};
  }

  static Cost cost(const Site& s) {
    const auto group = static_cast<double>(s.attrs.get<int64_t>("group"));
    Cost c = collective_cost(
        s, (group - 1) * static_cast<double>(s.out[0].elements() * dtype_size(s.in[0].dtype)));
    c.flops = (group - 1) * static_cast<double>(s.out[0].elements());
    return c;
  }

  static constexpr Primitive decompose{"communication"};

  static void reference(const RefGroupCall& c) {
    const auto dim = static_cast<size_t>(c.site.attrs.get<int64_t>("dim"));
    const Dims strides = row_major_strides(c.site.in[0].dims);
    const int64_t first = c.rank * c.out.dims[dim];
    for_each_index(c.out.dims, [&](const Dims& index, int64_t n) {
      if (first + index[dim] >= c.site.in[0].dims[dim]) return;  // padding: zero
      int64_t at = first * strides[dim];
      for (size_t i = 0; i < index.size(); ++i) at += index[i] * strides[i];
      for (const RefTensor* peer : c.peers)
        c.out.data[static_cast<size_t>(n)] += peer->data[static_cast<size_t>(at)];
    });
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    return start_collective(c, CollectiveCall::Kind::reduce_scatter, c.site.in[0]);
  }

  static Buffers buffers(const Site&) { return {}; }

  static std::vector<std::string> emit(const EmitCall& c) {
    const int64_t dim = c.site.attrs.get<int64_t>("dim");
    Type whole = c.site.out[0];
    whole.dtype = c.site.in[0].dtype;  // what travels, and what XLA adds up in; then widened
    whole.dims[static_cast<size_t>(dim)] *= c.site.attrs.get<int64_t>("group");
    const std::string x = emit_padded(c.out, c.in[0], c.site.in[0], whole);
    const std::string shard = c.out.fresh();
    c.out.line(fmt::format(
        "{} = \"stablehlo.reduce_scatter\"({}) <{{replica_groups = {}, scatter_dimension = {} : i64}}> ({{",
        shard, x, mlir_table(c.out.groups(c.site.attrs.get<std::string>("axis"))), dim));
    emit_region(c.out, whole.dtype, "add");
    Type sum = c.site.out[0];
    sum.dtype = whole.dtype;
    c.out.line(fmt::format("}}) : ({}) -> {}", mlir_type(whole), mlir_type(sum)));
    return {emit_converted(c.out, shard, sum, c.site.out[0])};
  }

  static std::vector<Case> cases() {
    const auto make = [](std::string name, DType dtype, Dims dims, int64_t dim, int64_t group,
                         bool bench = false) {
      return collective_case(std::move(name), dtype, std::move(dims), group, {{"dim", dim}}, bench);
    };
    constexpr DType f32 = DType::f32, bf16 = DType::bf16;
    return {
        make("one_row", f32, {2, 8}, 0, 2),
        make("one_rank", f32, {5, 3}, 0, 1),
        make("odd", f32, {3, 6, 7}, 1, 2),
        make("last_dim", f32, {5, 12}, 1, 4),
        make("uneven", f32, {2, 7, 3}, 1, 4),
        make("empty_rank", bf16, {5, 5}, 0, 4),
        make("misaligned", bf16, {37}, 0, 2),
        collective_case("wide_sum", bf16, {5, 7}, 2, {{"dim", int64_t{0}}, {"dtype", std::string("f32")}}),
        make("integers", DType::i32, {9, 2}, 0, 3),
        make("bench", bf16, {4096, 4096}, 0, 2, true),
    };
  }
};

}  // namespace

LIGNUM_DEFINE_OP(reduce_scatter, ReduceScatter)

}  // namespace lignum::ops
