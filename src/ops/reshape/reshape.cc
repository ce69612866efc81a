// reshape {dims}: the same elements in the same (row-major) order under other dims. A view: no byte moves.
#include <cstring>

#include "ops/rules.h"

namespace lignum::ops {
namespace {

// The dims of both sides fall into the smallest runs with equal products: [2, 15, 4] -> [2, 3, 5, 2, 2] is
// {2|2} {15|3,5} {4|2,2}. A dim of size 1 beside another size is in none: [6, 1] -> [1, 1, 6] is {6|6}.
struct Run {
  size_t in_begin, in_end, out_begin, out_end;
};
std::vector<Run> runs_of(const Dims& in, const Dims& out) {
  std::vector<Run> runs;
  size_t i = 0, o = 0;
  while (i < in.size() && o < out.size()) {
    if (in[i] != out[o] && (in[i] == 1 || out[o] == 1)) {
      in[i] == 1 ? ++i : ++o;
      continue;
    }
    Run r{i, i + 1, o, o + 1};
    int64_t a = in[i], b = out[o];
    while (a != b) {
      if (a < b) {
        if (r.in_end == in.size()) return runs;
        a *= in[r.in_end++];
      } else {
        if (r.out_end == out.size()) return runs;
        b *= out[r.out_end++];
      }
    }
    runs.push_back(r);
    i = r.in_end;
    o = r.out_end;
  }
  return runs;
}

struct Reshape {
  static constexpr std::string_view kName = "reshape";

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 1));
    LIGNUM_ASSIGN_OR_RETURN(Dims dims, dims_attr(attrs, "dims"));
    const int64_t elements = Type{in[0].dtype, dims, {}}.elements();
    if (elements != in[0].elements())
      return user_error("attribute dims={} has {} elements, the input {}", mlir_list(dims), elements,
                        in[0].elements());
    std::vector<std::string> names(dims.size());
    if (elements > 0)
      for (const Run& r : runs_of(in[0].dims, dims))
        if (single(r)) names[r.out_begin] = name_of(in[0], static_cast<int64_t>(r.in_begin));
    return one_type(in[0].dtype, std::move(dims), std::move(names));
  }

  static Gradients grad(const GradCall& c) {
    if (!dtype_is_float(c.site.in[0].dtype)) return {std::nullopt};
    return {c.build.reshape(c.cotangent(0), c.site.in[0].dims)};
  }

  // A dim that survives walks one factor. Of dims that merge or split, the outermost of each side are cut at
  // the same places by an axis whose size divides both, and by no other: the factor is `exact`.
  static ShardRule partition(const Site& s) {
    ShardRule rule;
    rule.in = {std::vector<int>(s.in[0].dims.size(), -1)};
    rule.out = {std::vector<int>(s.out[0].dims.size(), -1)};
    rule.linear = true;
    rule.result_dims = "dims";
    if (s.out[0].elements() == 0) return rule;
    int factor = 0;
    for (const Run& r : runs_of(s.in[0].dims, s.out[0].dims)) {
      const int64_t a = s.in[0].dims[r.in_begin], b = s.out[0].dims[r.out_begin];
      if (!single(r) && a % b != 0 && b % a != 0) continue;
      if (!single(r)) rule.exact.push_back(factor);
      rule.in[0][r.in_begin] = factor;
      rule.out[0][r.out_begin] = factor++;
    }
    return rule;
  }

  static Cost cost(const Site&) {
    Cost c;
    c.work = Work::none;
    return c;
  }

  static constexpr Primitive decompose{"changes the type alone"};

  static void reference(const RefCall& c) { c.out[0].data = c.in[0]->data; }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    if (c.out[0] != c.in[0] && c.site.out[0].bytes() > 0)
      std::memcpy(c.out[0], c.in[0], static_cast<size_t>(c.site.out[0].bytes()));
    return {};
  }

  static Buffers buffers(const Site&) { return {.view = {{0, 0}}, .in_place = {}}; }

  static std::vector<std::string> emit(const EmitCall& c) {
    const std::string result = c.out.fresh();
    c.out.line(fmt::format("{} = stablehlo.reshape {} : {} -> {}", result, c.in[0], mlir_types(c.site.in),
                           mlir_type(c.site.out[0])));
    return {result};
  }

  static std::vector<Case> cases() {
    const auto make = [](std::string name, DType dtype, Dims from, Dims dims) {
      Case c;
      c.name = std::move(name);
      c.in = {{Type{dtype, std::move(from), {}}}};
      if (dtype == DType::i32) c.in[0].fill = Fill::token, c.in[0].bound = 100;
      c.attrs = {{"dims", std::move(dims)}};
      return c;
    };
    return {make("split_heads", DType::f32, {2, 6, 32}, {2, 6, 4, 8}),
            make("merge_heads", DType::bf16, {2, 6, 4, 8}, {2, 6, 32}),
            make("merge_rows", DType::f32, {4, 3, 10}, {12, 10}),
            make("regroup", DType::f32, {6, 4}, {4, 6}),
            make("ones", DType::f32, {1, 4, 1, 3}, {4, 3, 1}),
            make("to_scalar", DType::f32, {1, 1}, {}),
            make("i32", DType::i32, {4, 5}, {20}),
            make("empty", DType::f32, {0, 3}, {5, 0})};
  }

 private:
  static bool single(const Run& r) { return r.in_end == r.in_begin + 1 && r.out_end == r.out_begin + 1; }
};

}  // namespace

LIGNUM_DEFINE_OP(reshape, Reshape)

}  // namespace lignum::ops
