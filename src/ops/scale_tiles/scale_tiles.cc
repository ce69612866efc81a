// scale_tiles: x * scale, each tile by its own (quantize/tiles.h). x and scale of one dtype, f32 or bf16.
#include "ops/quantize/tiles.h"

namespace lignum::ops {
namespace {

struct ScaleTiles {
  static constexpr std::string_view kName = "scale_tiles";

  static Result<Types> infer(std::span<const Type> in, const Attrs&) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 2));
    LIGNUM_RETURN_IF_ERROR(expect_edge(in[0], "x"));
    LIGNUM_RETURN_IF_ERROR(expect_scale(in[0], in[1], "scale", in[0].dtype));
    return Types{in[0]};
  }

  static constexpr ByDecomposition grad{};

  static ShardRule partition(const Site& s) {
    ShardRule rule;
    const auto f = factors(s.in[0].rank());
    rule.in = {f, {}};
    rule.in[1] = scale_factors(s.in[0], f, s.in[1], rule.exact);
    rule.out = {f};
    return rule;
  }

  static Cost cost(const Site& s) { return streaming_cost(s); }

  static Values decompose(Builder& b, const Site& s, std::span<const Value> in) {
    return {Arith(b).mul(in[0], spread(b, in[1], s.in[0].dims))};
  }

  static void reference(const RefCall& c) {
    const Dims& dims = c.site.in[0].dims;
    for_each_index(dims, [&](const Dims& index, int64_t n) {
      const double scale = c.in[1]->data[static_cast<size_t>(tile_of(index, dims, c.in[1]->dims))];
      c.out[0].data[static_cast<size_t>(n)] = c.in[0]->data[static_cast<size_t>(n)] * scale;
    });
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    kernels::row_kernels(c.choice).scale_tiles(tiles_of(c.site.in[0], c.site.in[1]), kernel_in(c, 0),
                                               kernel_in(c, 1), kernel_out(c, 0), c.parallel);
    return {};
  }

  static Buffers buffers(const Site&) { return {.in_place = {{0, 0}}}; }

  static constexpr ByDecomposition emit{};

  static std::vector<Case> cases() {
    const auto make = [](std::string name, DType dtype, Dims x, Dims scale) {
      return Case{std::move(name),
                  {tensor(dtype, std::move(x)), tensor(dtype, std::move(scale), Fill::positive)},
                  {}};
    };
    std::vector<Case> cases = {
        make("tensor", DType::bf16, {4, 6, 37}, {1, 1, 1}), make("rows", DType::f32, {4, 6, 37}, {4, 6, 1}),
        make("columns", DType::bf16, {6, 38}, {1, 38}),     make("tiles", DType::f32, {4, 256}, {4, 2}),
        make("one_row", DType::f32, {1, 64}, {1, 1}),       make("empty", DType::f32, {0, 5}, {1, 5}),
        make("bench", DType::bf16, {2048, 4096}, {1, 4096})};
    cases.back().bench = true;
    return cases;
  }
};

}  // namespace

LIGNUM_DEFINE_OP(scale_tiles, ScaleTiles)

}  // namespace lignum::ops
