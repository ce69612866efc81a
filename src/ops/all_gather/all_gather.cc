// all_gather: starts to put the shards of a group's ranks side by side along dim, in rank order.
//   x, a shard: dims[dim] = ceil(size / group) -> async, dims[dim] = size; any dtype
// attributes: axis, group, dim (collective.h); size, the gathered dim's, without padding
#include "ops/all_gather/collective.h"

namespace lignum::ops {
namespace {

struct AllGather {
  static constexpr std::string_view kName = "all_gather";

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 1));
    LIGNUM_RETURN_IF_ERROR(check_group(attrs));
    LIGNUM_ASSIGN_OR_RETURN(const int64_t dim, check_dim(attrs, in[0].rank()));
    LIGNUM_ASSIGN_OR_RETURN(const int64_t size, int_in(attrs, "size", 1, int64_t{1} << 40));
    const int64_t local = shard_size(size, attrs.get<int64_t>("group"));
    if (in[0].dims[static_cast<size_t>(dim)] != local)
      return user_error("x is {}; dim {} of size {} over {} ranks has shards of {}", ir::to_string(in[0]),
                        dim, size, attrs.get<int64_t>("group"), local);
    return Types{started(in[0], dim, size)};
  }

  // The gradients of all ranks' copies are added where the shard lives.
  static Gradients grad(const GradCall& c) {
    Attrs attrs;
    for (const auto& [key, value] : c.site.attrs.all())
      if (key != "size") attrs.set(key, value);
    return {run_collective(c.build, "reduce_scatter", c.cotangent(0), std::move(attrs))};
  }

  static ShardRule partition(const Site& s) {
    auto f = factors(s.in[0].rank());
    f[static_cast<size_t>(s.attrs.get<int64_t>("dim"))] = -1;
    return {.in = {f}, .out = {f}, .linear = true};
  }

  static Cost cost(const Site& s) {
    const auto group = static_cast<double>(s.attrs.get<int64_t>("group"));
    return collective_cost(s, (group - 1) / group * static_cast<double>(s.out[0].bytes()));
  }

  static constexpr Primitive decompose{"communication"};

  static void reference(const RefGroupCall& c) {
    const auto dim = static_cast<size_t>(c.site.attrs.get<int64_t>("dim"));
    const int64_t local = c.site.in[0].dims[dim];
    const Dims strides = row_major_strides(c.site.in[0].dims);
    for_each_index(c.out.dims, [&](const Dims& index, int64_t n) {
      int64_t at = 0;
      for (size_t i = 0; i < index.size(); ++i) at += (i == dim ? index[i] % local : index[i]) * strides[i];
      const RefTensor& peer = *c.peers[static_cast<size_t>(index[dim] / local)];
      c.out.data[static_cast<size_t>(n)] = peer.data[static_cast<size_t>(at)];
    });
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    return start_collective(c, CollectiveCall::Kind::all_gather, c.site.out[0]);
  }

  static Buffers buffers(const Site&) { return {}; }

  static std::vector<std::string> emit(const EmitCall& c) {
    const int64_t dim = c.site.attrs.get<int64_t>("dim");
    Type whole = c.site.in[0];
    whole.dims[static_cast<size_t>(dim)] *= c.site.attrs.get<int64_t>("group");
    const std::string gathered = c.out.fresh();
    c.out.line(fmt::format(
        "{} = \"stablehlo.all_gather\"({}) <{{all_gather_dim = {} : i64, replica_groups = {}}}> : {} -> {}",
        gathered, c.in[0], dim, mlir_table(c.out.groups(c.site.attrs.get<std::string>("axis"))),
        mlir_types(c.site.in), mlir_type(whole)));
    return {emit_cut(c.out, gathered, whole, c.site.out[0])};
  }

  static std::vector<Case> cases() {
    const auto make = [](std::string name, DType dtype, Dims dims, int64_t dim, int64_t size, int64_t group,
                         bool bench = false) {
      dims[static_cast<size_t>(dim)] = shard_size(size, group);
      return collective_case(std::move(name), dtype, std::move(dims), group, {{"dim", dim}, {"size", size}},
                             bench);
    };
    constexpr DType f32 = DType::f32, bf16 = DType::bf16;
    return {
        make("one_row", f32, {0, 8}, 0, 2, 2),
        make("one_rank", f32, {0, 3}, 0, 5, 1),
        make("odd", f32, {3, 0, 7}, 1, 6, 2),
        make("last_dim", f32, {5, 0}, 1, 12, 4),
        make("uneven", f32, {2, 0, 3}, 1, 7, 4),
        make("empty_rank", bf16, {0, 5}, 0, 5, 4),
        make("misaligned", bf16, {0}, 0, 37, 2),
        make("integers", DType::i32, {0, 2}, 0, 9, 3),
        make("bench", bf16, {0, 4096}, 0, 4096, 2, true),
    };
  }
};

}  // namespace

LIGNUM_DEFINE_OP(all_gather, AllGather)

}  // namespace lignum::ops
