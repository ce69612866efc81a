// barrier: n values -> the same n values, of any types. A compiler may not move or merge computation across
// it: what remat puts before a recomputation, so that it is not merged with the forward pass.
#include "ops/facets.h"

namespace lignum::ops {
namespace {

struct Barrier {
  static constexpr std::string_view kName = "barrier";

  static Result<Types> infer(std::span<const Type> in, const Attrs&) {
    if (in.empty()) return user_error("has no inputs; it takes at least one");
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, in.size()));
    return Types{in.begin(), in.end()};
  }

  static Gradients grad(const GradCall& c) {
    Gradients out(c.cotangents.begin(), c.cotangents.end());
    for (size_t i = 0; i < out.size(); ++i)
      if (!dtype_is_float(c.site.in[i].dtype)) out[i].reset();
    return out;
  }

  static ShardRule partition(const Site& s) {
    ShardRule rule;
    for (const Type& t : s.in) rule.in.push_back(factors(t.rank()));
    rule.out = rule.in;
    rule.separate = true;
    return rule;
  }

  static Cost cost(const Site&) { return {.work = Work::none}; }

  static Values decompose(Builder&, const Site&, std::span<const Value> in) { return {in.begin(), in.end()}; }

  static void reference(const RefCall& c) {
    for (size_t i = 0; i < c.in.size(); ++i) c.out[i].data = c.in[i]->data;
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    for (size_t i = 0; i < c.in.size(); ++i) copy_through(c, i, i);
    return {};
  }

  static Buffers buffers(const Site& s) {
    Buffers b;
    for (int i = 0; i < static_cast<int>(s.in.size()); ++i) b.view.emplace_back(i, i);
    return b;
  }

  static std::vector<std::string> emit(const EmitCall& c) {
    const size_t n = c.in.size();
    const std::string name = c.out.fresh();
    std::vector<std::string> results;
    std::string operands, types;
    for (size_t i = 0; i < n; ++i) {
      const char* comma = i == 0 ? "" : ", ";
      operands += comma + c.in[i];
      types += comma + mlir_type(c.site.in[i]);
      results.push_back(n == 1 ? name : fmt::format("{}#{}", name, i));
    }
    const std::string count = n == 1 ? "" : fmt::format(":{}", n);
    c.out.line(fmt::format("{}{} = stablehlo.optimization_barrier {} : {}", name, count, operands, types));
    return results;
  }

  static std::vector<Case> cases() {
    constexpr DType f32 = DType::f32, bf16 = DType::bf16;
    return {
        {"one_row", {tensor(f32, {1, 8})}},
        {"odd", {tensor(f32, {3, 37}), tensor(bf16, {5})}},
        {"mixed", {tensor(f32, {}), tensor(DType::i32, {7}, Fill::token, 9), tensor(bf16, {2, 3, 5})}},
        {"misaligned", {tensor(f32, {211})}},
        {"empty", {tensor(f32, {0, 4})}},
        {"bench", {tensor(f32, {4096, 1024})}, {}, 1, true},
    };
  }
};

}  // namespace

LIGNUM_DEFINE_OP(barrier, Barrier)

}  // namespace lignum::ops
