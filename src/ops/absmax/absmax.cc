// absmax {dims}: the largest magnitude of each tile of x, as a tensor of those dims (quantize/tiles.h); 0 of
// nothing. A NaN stays. Dims that are sharded and shared leave a maximum open over the ranks.
#include <cmath>

#include "ops/quantize/tiles.h"

namespace lignum::ops {
namespace {

struct Absmax {
  static constexpr std::string_view kName = "absmax";
  static constexpr bool kStraightThrough = true;

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 1));
    LIGNUM_RETURN_IF_ERROR(expect_edge(in[0], "x"));
    LIGNUM_ASSIGN_OR_RETURN(const Dims dims, dims_attr(attrs, "dims"));
    LIGNUM_RETURN_IF_ERROR(expect_scale(in[0], {in[0].dtype, dims, {}}, "the result", in[0].dtype));
    std::vector<std::string> names;
    for (int64_t d = 0; d < in[0].rank(); ++d)
      names.push_back(dims[static_cast<size_t>(d)] == 1 ? "" : name_of(in[0], d));
    return one_type(in[0].dtype, dims, std::move(names));
  }

  static Gradients grad(const GradCall&) { return {std::nullopt}; }

  static ShardRule partition(const Site& s) {
    ShardRule rule;
    rule.in = {factors(s.in[0].rank())};
    rule.out = {scale_factors(s.in[0], rule.in[0], s.out[0], rule.exact)};
    rule.result_dims = "dims";
    rule.open = ShardRule::Open::maximum;
    return rule;
  }

  static Cost cost(const Site& s) {
    Cost c = streaming_cost(s, 0);
    c.flops = static_cast<double>(s.in[0].elements());
    return c;
  }

  static Values decompose(Builder& b, const Site& s, std::span<const Value> in) {
    const Dims& dims = s.in[0].dims;
    const Dims& tiles = s.out[0].dims;
    Dims split, reduced;
    for (size_t d = 0; d < dims.size(); ++d) {
      if (tiles[d] != 1) split.push_back(tiles[d]);
      if (tiles[d] == dims[d] && tiles[d] != 1) continue;
      reduced.push_back(static_cast<int64_t>(split.size()));
      split.push_back(tiles[d] == 0 ? 1 : dims[d] / tiles[d]);
    }
    // A maximum of nothing is -infinity: 0 is at least in it.
    const Value largest = b.reduce("max", b.reshape(b.elementwise("abs", {in[0]}), split), reduced);
    const Value y = b.reshape(largest, tiles);
    return {b.elementwise("max", {y, b.constant(s.out[0].dtype, tiles, 0)})};
  }

  static void reference(const RefCall& c) {
    const Dims& dims = c.site.in[0].dims;
    for_each_index(dims, [&](const Dims& index, int64_t n) {
      double& y = c.out[0].data[static_cast<size_t>(tile_of(index, dims, c.out[0].dims))];
      const double x = std::fabs(c.in[0]->data[static_cast<size_t>(n)]);
      if (!(x <= y)) y = y != y ? y : x;
    });
  }

  static int64_t workspace(const Site& s, int threads) {
    return kernels::RowKernels::absmax_workspace(tiles_of(s.in[0], s.out[0]), threads);
  }

  static Status cpu(const CpuCall& c) {
    kernels::row_kernels(c.choice).absmax(tiles_of(c.site.in[0], c.site.out[0]), kernel_in(c, 0),
                                          kernel_out(c, 0), c.workspace, c.parallel);
    return {};
  }

  static Buffers buffers(const Site&) { return {}; }

  static constexpr ByDecomposition emit{};

  static std::vector<Case> cases() {
    const auto make = [](std::string name, DType dtype, Dims x, Dims dims) {
      return Case{std::move(name), {tensor(dtype, std::move(x))}, {{"dims", std::move(dims)}}};
    };
    std::vector<Case> cases = {
        make("tensor", DType::bf16, {4, 6, 37}, {1, 1, 1}),
        make("rows", DType::f32, {4, 6, 37}, {4, 6, 1}),
        make("columns", DType::bf16, {6, 38}, {1, 38}),
        make("tiles", DType::f32, {4, 256}, {4, 2}),
        make("blocks", DType::bf16, {256, 384}, {2, 3}),
        make("one_row", DType::f32, {1, 64}, {1, 1}),
        make("scalar", DType::f32, {}, {}),
        make("empty", DType::f32, {0, 5}, {1, 5}),
        make("bench", DType::bf16, {2048, 4096}, {1, 1}),
    };
    cases.back().bench = true;
    return cases;
  }
};

}  // namespace

LIGNUM_DEFINE_OP(absmax, Absmax)

}  // namespace lignum::ops
