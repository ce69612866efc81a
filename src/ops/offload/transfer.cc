#include "ops/offload/transfer.h"

namespace lignum::ops {

Result<Types> infer_transfer(std::span<const Type> in, bool to_host) {
  if (in.size() != 1) return user_error("takes 1 input, not {}", in.size());
  if (in[0].async) return user_error("takes no async value; await {} first", ir::to_string(in[0]));
  if (in[0].host == to_host)
    return user_error("takes a value in {} memory, not {}", to_host ? "device" : "host",
                      ir::to_string(in[0]));
  Type out = in[0];
  out.host = to_host;
  out.async = true;
  return Types{std::move(out)};
}

Gradients grad_transfer(const GradCall& c) {
  if (!dtype_is_float(c.site.in[0].dtype)) return {std::nullopt};
  return {c.cotangents[0]};
}

ShardRule partition_transfer(const Site& s) {
  const auto f = factors(s.in[0].rank());
  return {.in = {f}, .out = {f}};
}

Cost cost_transfer(const Site& s) {
  const auto bytes = static_cast<double>(s.in[0].bytes());
  return {.work = Work::transfer, .read = bytes, .write = bytes};
}

std::vector<std::string> emit_placement(const EmitCall& c, std::string_view memory) {
  if (!c.out.host_memory()) return {c.in[0]};
  std::string placed = c.out.fresh();
  const std::string type = mlir_type(c.site.out[0]);
  c.out.line(
      fmt::format("{} = stablehlo.custom_call @annotate_device_placement({}) {{backend_config = \"\", "
                  "has_side_effect = true, mhlo.frontend_attributes = {{_xla_buffer_placement = \"{}\"}}}} : "
                  "({}) -> {}",
                  placed, c.in[0], memory, type, type));
  return {std::move(placed)};
}

std::vector<Case> cases_transfer(bool to_host) {
  const auto make = [&](std::string name, DType dtype, Dims dims, bool bench = false) {
    CaseInput x = tensor(dtype, std::move(dims));
    x.type.host = !to_host;
    return Case{std::move(name), {std::move(x)}, {}, 1, bench};
  };
  return {
      make("one_row", DType::f32, {1, 8}),
      make("odd", DType::f32, {3, 37}),
      make("misaligned", DType::bf16, {211}),
      make("empty", DType::bf16, {0, 5}),
      make("bench", DType::bf16, {4096, 1024}, true),
  };
}

}  // namespace lignum::ops
