// What take_row and put_row share: a stack of rows and an index that is a value, so that ranks of one program
// may each take another row.
#pragma once

#include <string>

#include "ops/facets.h"

namespace lignum::ops {

// stack [n, ...], n >= 1, and index, an i32 scalar.
Status check_stack(const Type& stack, const Type& index);
// The stack's type without its first dim.
Type row_of_stack(const Type& stack);
// Whether there is such a row; no other row is an error.
bool has_row(const Type& stack, int32_t index);
// Rows are moved in runs of so many bytes, each of which a thread takes.
void copy_row(void* to, const void* from, int64_t bytes, Parallel& parallel);

// For the printed form: whether 0 <= index < n (i1 scalar), and row `index` as [1, ...] (the nearest one
// where there is none such).
std::string emit_has_row(Emitter& out, const Type& stack, const std::string& index);
struct EmittedRow {
  std::string value;
  Type type;           // [1, ...]
  std::string starts;  // ", %zero, ...": the indices that follow the row's
  std::string starts_types;
};
EmittedRow emit_row(Emitter& out, const Type& stack, const std::string& name, const std::string& index);

}  // namespace lignum::ops
