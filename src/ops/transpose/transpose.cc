// transpose {permutation}: dim i of the result is dim permutation[i] of the input.
#include "kernels/rows.h"
#include "ops/rules.h"

namespace lignum::ops {
namespace {

struct Transpose {
  static constexpr std::string_view kName = "transpose";

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 1));
    LIGNUM_ASSIGN_OR_RETURN(const Dims permutation, indices_attr(attrs, "permutation", in[0].rank()));
    if (static_cast<int64_t>(permutation.size()) != in[0].rank())
      return user_error("attribute permutation={}: names every dim of an input of rank {} once",
                        mlir_list(permutation), in[0].rank());
    Dims dims;
    std::vector<std::string> names;
    for (const int64_t d : permutation) {
      dims.push_back(in[0].dims[static_cast<size_t>(d)]);
      names.push_back(name_of(in[0], d));
    }
    return one_type(in[0].dtype, std::move(dims), std::move(names));
  }

  static Gradients grad(const GradCall& c) {
    if (!dtype_is_float(c.site.in[0].dtype)) return {std::nullopt};
    const Dims& permutation = c.site.attrs.get<Dims>("permutation");
    Dims inverse(permutation.size());
    for (size_t i = 0; i < permutation.size(); ++i)
      inverse[static_cast<size_t>(permutation[i])] = static_cast<int64_t>(i);
    return {c.build.transpose(c.cotangent(0), inverse)};
  }

  static ShardRule partition(const Site& s) {
    const Dims& permutation = s.attrs.get<Dims>("permutation");
    ShardRule rule;
    rule.out = {factors(s.out[0].rank())};
    rule.in = {std::vector<int>(permutation.size())};
    for (size_t i = 0; i < permutation.size(); ++i)
      rule.in[0][static_cast<size_t>(permutation[i])] = static_cast<int>(i);
    rule.linear = true;
    return rule;
  }

  static Cost cost(const Site& s) {
    Cost c = streaming_cost(s, 0);
    c.work = Work::copy;
    return c;
  }

  static constexpr Primitive decompose{"moves bytes only"};

  static void reference(const RefCall& c) {
    const Dims& permutation = c.site.attrs.get<Dims>("permutation");
    const Dims strides = row_major_strides(c.in[0]->dims);
    for_each_index(c.out[0].dims, [&](const Dims& index, int64_t n) {
      int64_t from = 0;
      for (size_t i = 0; i < index.size(); ++i)
        from += index[i] * strides[static_cast<size_t>(permutation[i])];
      c.out[0].data[static_cast<size_t>(n)] = c.in[0]->data[static_cast<size_t>(from)];
    });
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    const Dims& permutation = c.site.attrs.get<Dims>("permutation");
    const std::vector<int> dims(permutation.begin(), permutation.end());
    kernels::transpose(c.site.in[0].dtype, c.site.in[0].dims, dims, c.in[0], c.out[0], c.parallel);
    return {};
  }

  static Buffers buffers(const Site&) { return {}; }

  static std::vector<std::string> emit(const EmitCall& c) {
    const std::string result = c.out.fresh();
    c.out.line(fmt::format("{} = stablehlo.transpose {}, dims = {} : {} -> {}", result, c.in[0],
                           mlir_list(c.site.attrs.get<Dims>("permutation")), mlir_types(c.site.in),
                           mlir_type(c.site.out[0])));
    return {result};
  }

  static std::vector<Case> cases() {
    const auto make = [](std::string name, DType dtype, Dims from, Dims permutation) {
      Case c;
      c.name = std::move(name);
      c.in = {{Type{dtype, std::move(from), {}}}};
      if (dtype == DType::i32) c.in[0].fill = Fill::token, c.in[0].bound = 100;
      c.attrs = {{"permutation", std::move(permutation)}};
      return c;
    };
    std::vector<Case> cases = {make("matrix", DType::f32, {37, 19}, {1, 0}),
                               make("heads", DType::bf16, {2, 6, 4, 8}, {0, 2, 1, 3}),
                               make("rotate", DType::f32, {3, 4, 5}, {2, 0, 1}),
                               make("reverse", DType::i32, {2, 3, 2, 3}, {3, 2, 1, 0}),
                               make("same", DType::f32, {2, 3}, {0, 1}),
                               make("one_row", DType::f32, {1, 9}, {1, 0}),
                               make("scalar", DType::f32, {}, {}),
                               make("empty", DType::f32, {3, 0}, {1, 0}),
                               make("bench", DType::f32, {1536, 1024}, {1, 0})};
    cases.back().bench = true;
    return cases;
  }
};

}  // namespace

LIGNUM_DEFINE_OP(transpose, Transpose)

}  // namespace lignum::ops
