// broadcast {dims, where}: dim i of the input becomes dim where[i] of the result (ascending), of the same
// size, or of size 1 and repeated; the other dims of the result repeat it.
#include <algorithm>

#include "kernels/rows.h"
#include "ops/rules.h"

namespace lignum::ops {
namespace {

struct Broadcast {
  static constexpr std::string_view kName = "broadcast";

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 1));
    LIGNUM_ASSIGN_OR_RETURN(Dims dims, dims_attr(attrs, "dims"));
    LIGNUM_ASSIGN_OR_RETURN(const Dims where,
                            indices_attr(attrs, "where", static_cast<int64_t>(dims.size())));
    if (static_cast<int64_t>(where.size()) != in[0].rank())
      return user_error("attribute where: {} entries for an input of rank {}", where.size(), in[0].rank());
    if (!std::is_sorted(where.begin(), where.end()))
      return user_error("attribute where={}: ascending, please; transpose first", mlir_list(where));
    std::vector<std::string> names(dims.size());
    for (size_t i = 0; i < where.size(); ++i) {
      const int64_t from = in[0].dims[i], to = dims[static_cast<size_t>(where[i])];
      if (from != to && from != 1)
        return user_error("dim {} has size {}, dim {} of the result {}: equal sizes, or 1", i, from, where[i],
                          to);
      if (from == to) names[static_cast<size_t>(where[i])] = name_of(in[0], static_cast<int64_t>(i));
    }
    return one_type(in[0].dtype, std::move(dims), std::move(names));
  }

  // The sum over all that was repeated.
  static Gradients grad(const GradCall& c) {
    const Type& x = c.site.in[0];
    if (!dtype_is_float(x.dtype)) return {std::nullopt};
    Dims summed;
    for (int64_t d = 0; d < c.site.out[0].rank(); ++d)
      if (!kept(c.site, d)) summed.push_back(d);
    const Value dy = c.cotangent(0);
    const Value sum = summed.empty() ? dy : c.build.reduce("sum", dy, summed);
    return {c.build.reshape(sum, x.dims)};
  }

  static ShardRule partition(const Site& s) {
    const auto& where = s.attrs.get<Dims>("where");
    ShardRule rule;
    rule.out = {factors(s.out[0].rank())};
    rule.in.emplace_back();
    for (const int64_t d : where) rule.in[0].push_back(kept(s, d) ? static_cast<int>(d) : -1);
    rule.linear = true;
    rule.result_dims = "dims";
    return rule;
  }

  static Cost cost(const Site& s) {
    Cost c = streaming_cost(s, 0);
    c.work = Work::copy;
    return c;
  }

  static constexpr Primitive decompose{"moves bytes only"};

  static void reference(const RefCall& c) {
    const auto& where = c.site.attrs.get<Dims>("where");
    const Dims strides = row_major_strides(c.in[0]->dims);
    for_each_index(c.out[0].dims, [&](const Dims& index, int64_t n) {
      int64_t from = 0;
      for (size_t i = 0; i < where.size(); ++i)
        if (c.in[0]->dims[i] != 1) from += index[static_cast<size_t>(where[i])] * strides[i];
      c.out[0].data[static_cast<size_t>(n)] = c.in[0]->data[static_cast<size_t>(from)];
    });
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    const auto& where = c.site.attrs.get<Dims>("where");
    const std::vector<int> dims(where.begin(), where.end());
    kernels::broadcast(c.site.in[0].dtype, c.site.in[0].dims, dims, c.site.out[0].dims, c.in[0], c.out[0],
                       c.parallel);
    return {};
  }

  static Buffers buffers(const Site&) { return {}; }

  static std::vector<std::string> emit(const EmitCall& c) {
    const std::string result = c.out.fresh();
    c.out.line(fmt::format("{} = stablehlo.broadcast_in_dim {}, dims = {} : {} -> {}", result, c.in[0],
                           mlir_list(c.site.attrs.get<Dims>("where")), mlir_types(c.site.in),
                           mlir_type(c.site.out[0])));
    return {result};
  }

  static std::vector<Case> cases() {
    const auto make = [](std::string name, DType dtype, Dims from, Dims dims, Dims where) {
      Case c;
      c.name = std::move(name);
      c.in = {{Type{dtype, std::move(from), {}}}};
      if (dtype == DType::i32) c.in[0].fill = Fill::token, c.in[0].bound = 100;
      c.attrs = {{"dims", std::move(dims)}, {"where", std::move(where)}};
      return c;
    };
    return {make("splat", DType::f32, {}, {3, 37}, {}),
            make("over_row", DType::f32, {4, 3}, {4, 3, 8}, {0, 1}),
            make("over_rows", DType::bf16, {37}, {2, 5, 37}, {2}),
            make("middle", DType::f32, {2, 6}, {2, 5, 6}, {0, 2}),
            make("of_one", DType::f32, {2, 1, 4}, {2, 3, 4}, {0, 1, 2}),
            make("same", DType::f32, {2, 3}, {2, 3}, {0, 1}),
            make("i32", DType::i32, {6}, {6, 2}, {0}),
            make("empty", DType::f32, {3}, {0, 3}, {1})};
  }

 private:
  // Whether dim d of the result is a dim of the input, not a repetition.
  static bool kept(const Site& s, int64_t d) {
    const auto& where = s.attrs.get<Dims>("where");
    const auto it = std::find(where.begin(), where.end(), d);
    return it != where.end() &&
           s.in[0].dims[static_cast<size_t>(it - where.begin())] == s.out[0].dims[static_cast<size_t>(d)];
  }
};

}  // namespace

LIGNUM_DEFINE_OP(broadcast, Broadcast)

}  // namespace lignum::ops
