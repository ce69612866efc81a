// Row ops to measure, made from the ops' own bench cases.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "kernels/isa.h"
#include "ops/cases.h"
#include "ops/op.h"
#include "plan/node_time.h"

namespace lignum::tune {

// Bytes that the op moves for the case; nothing where it is not well typed.
std::optional<double> traffic(const ops::Op& op, const ops::Case& c);

// The case with every bf16 input as f32, or as it is.
ops::Case retyped(ops::Case c, DType edge);

// The case with about `bytes` read and written: the first dim, by its size in all inputs at once, that makes
// the op smaller is cut or grown. Nothing where no dim does so and keeps the case well typed.
std::optional<ops::Case> rescaled(const ops::Op& op, const ops::Case& c, double bytes);

// One op on one case, ready to be called: inputs drawn as the tests draw them (a repeated block of 2^16
// elements; labels that are all supervised), results and workspace apart, state updated in place.
class RowBench {
 public:
  RowBench(const ops::Op& op, ops::Case c, kernels::Choice choice);
  // From one thread at a time.
  Status run(Parallel& pool);
  const plan::RowWork& work() const { return work_; }
  double bytes() const { return bytes_; }  // read and written by one call

 private:
  void* workspace(const Parallel& pool);

  const ops::Op& op_;
  ops::Case case_;
  ops::CaseSite site_;
  kernels::Choice choice_;
  plan::RowWork work_;
  double bytes_ = 0;
  std::vector<std::unique_ptr<ops::Buffer>> in_, out_;
  std::vector<const void*> in_pointers_;
  std::vector<void*> out_pointers_;
  std::unique_ptr<ops::Buffer> workspace_;
  int64_t workspace_bytes_ = 0;
};

// Every bench case of every op whose work is rows, transcendental or copy (where an op has none: its other
// cases on f32 and bf16), in f32 and in bf16 where the op takes it, at each of the sizes.
struct RowSubject {
  std::string name;  // RowWork's
  DType dtype;
  const ops::Op* op;
  std::vector<ops::Case> cases;  // one a size
};
std::vector<RowSubject> row_subjects(const std::vector<double>& sizes_in_bytes);

}  // namespace lignum::tune
