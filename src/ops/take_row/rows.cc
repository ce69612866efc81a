#include "ops/take_row/rows.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

namespace lignum::ops {

Status check_stack(const Type& stack, const Type& index) {
  if (stack.rank() == 0 || stack.dims[0] == 0)
    return user_error("stack is {}: it has no rows", ir::to_string(stack));
  LIGNUM_RETURN_IF_ERROR(expect_dtype(index, "index", {DType::i32}));
  return expect_rank(index, "index", 0);
}

Type row_of_stack(const Type& stack) {
  Type row = stack;
  row.dims.erase(row.dims.begin());
  if (!row.names.empty()) row.names.erase(row.names.begin());
  return row;
}

bool has_row(const Type& stack, int32_t index) { return index >= 0 && index < stack.dims[0]; }

void copy_row(void* to, const void* from, int64_t bytes, Parallel& parallel) {
  constexpr int64_t kRun = int64_t{1} << 18;
  parallel.run((bytes + kRun - 1) / kRun, [&](int64_t task, int) {
    const int64_t begin = task * kRun;
    std::memcpy(static_cast<std::byte*>(to) + begin, static_cast<const std::byte*>(from) + begin,
                static_cast<size_t>(std::min(kRun, bytes - begin)));
  });
}

std::string emit_has_row(Emitter& out, const Type& stack, const std::string& index) {
  const auto line = [&](const std::string& expression) {
    std::string name = out.fresh();
    out.line(fmt::format("{} = stablehlo.{}", name, expression));
    return name;
  };
  const auto number = [&](int64_t v) { return line(fmt::format("constant dense<{}> : tensor<i32>", v)); };
  const auto compare = [&](const char* direction, const std::string& with) {
    return line(fmt::format("compare {}, {}, {}, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>",
                            direction, index, with));
  };
  const std::string least = compare("GE", number(0)), most = compare("LT", number(stack.dims[0]));
  return line(fmt::format("and {}, {} : tensor<i1>", least, most));
}

EmittedRow emit_row(Emitter& out, const Type& stack, const std::string& name, const std::string& index) {
  EmittedRow row;
  row.type = stack;
  row.type.dims[0] = 1;
  if (stack.rank() > 1) {
    const std::string zero = out.fresh();
    out.line(fmt::format("{} = stablehlo.constant dense<0> : tensor<i32>", zero));
    for (int64_t d = 1; d < stack.rank(); ++d) {
      row.starts += ", " + zero;
      row.starts_types += ", tensor<i32>";
    }
  }
  row.value = out.fresh();
  out.line(
      fmt::format("{} = \"stablehlo.dynamic_slice\"({}, {}{}) <{{slice_sizes = array<i64: {}>}}> : "
                  "({}, tensor<i32>{}) -> {}",
                  row.value, name, index, row.starts, fmt::join(row.type.dims, ", "), mlir_type(stack),
                  row.starts_types, mlir_type(row.type)));
  return row;
}

}  // namespace lignum::ops
