// iota {dtype, dims, dim}: the element at [..., i, ...] is i, its index along `dim`.
#include "kernels/rows.h"
#include "ops/rules.h"

namespace lignum::ops {
namespace {

struct Iota {
  static constexpr std::string_view kName = "iota";

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 0));
    LIGNUM_ASSIGN_OR_RETURN(const DType dtype, dtype_attr(attrs, "dtype"));
    LIGNUM_RETURN_IF_ERROR(
        expect_dtype(Type{dtype, {}, {}}, "the result", {DType::i32, DType::f32, DType::bf16}));
    LIGNUM_ASSIGN_OR_RETURN(Dims dims, dims_attr(attrs, "dims"));
    LIGNUM_ASSIGN_OR_RETURN(const int64_t dim, int_attr(attrs, "dim"));
    if (dim < 0 || dim >= static_cast<int64_t>(dims.size()))
      return user_error("attribute dim={}: no dim of a tensor of rank {}", dim, dims.size());
    if (dims[static_cast<size_t>(dim)] > int64_t{1} << 31)
      return user_error("attribute dims: {} along dim {}; at most 2^31", dims[static_cast<size_t>(dim)], dim);
    return one_type(dtype, std::move(dims));
  }

  static Gradients grad(const GradCall&) { return {}; }

  // Along `dim` a shard would begin at its own offset: whole there.
  static ShardRule partition(const Site& s) {
    ShardRule rule;
    rule.out = {factors(s.out[0].rank())};
    rule.out[0][static_cast<size_t>(s.attrs.get<int64_t>("dim"))] = -1;
    rule.result_dims = "dims";
    return rule;
  }

  static Cost cost(const Site& s) {
    Cost c = streaming_cost(s, 0);
    c.work = Work::copy;
    return c;
  }

  static constexpr Primitive decompose{"where indices come from"};

  static void reference(const RefCall& c) {
    const auto dim = static_cast<size_t>(c.site.attrs.get<int64_t>("dim"));
    for_each_index(c.out[0].dims, [&](const Dims& index, int64_t n) {
      c.out[0].data[static_cast<size_t>(n)] = static_cast<double>(index[dim]);
    });
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    const Type& t = c.site.out[0];
    kernels::iota(t.dtype, t.dims, static_cast<int>(c.site.attrs.get<int64_t>("dim")), c.out[0], c.parallel);
    return {};
  }

  static Buffers buffers(const Site&) { return {}; }

  static std::vector<std::string> emit(const EmitCall& c) {
    const std::string result = c.out.fresh();
    c.out.line(fmt::format("{} = stablehlo.iota dim = {} : {}", result, c.site.attrs.get<int64_t>("dim"),
                           mlir_type(c.site.out[0])));
    return {result};
  }

  static std::vector<Case> cases() {
    const auto make = [](std::string name, DType dtype, Dims dims, int64_t dim) {
      Case c;
      c.name = std::move(name);
      c.attrs = {{"dtype", std::string(dtype_name(dtype))}, {"dims", std::move(dims)}, {"dim", dim}};
      return c;
    };
    return {make("i32", DType::i32, {37}, 0), make("rows", DType::i32, {4, 6, 2}, 0),
            make("columns", DType::f32, {2, 4, 37}, 2), make("middle", DType::bf16, {2, 300, 2}, 1),
            make("empty", DType::i32, {2, 0}, 1)};
  }
};

}  // namespace

LIGNUM_DEFINE_OP(iota, Iota)

}  // namespace lignum::ops
