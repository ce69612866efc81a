// From a node's Cost facet to seconds on a specification: the one place where the words of ops and of hw
// meet. calibrate measures row ops under the names given here, so that a plan finds what was measured.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "hw/roofline.h"
#include "hw/spec.h"
#include "ops/op.h"
#include "plan/reuse.h"

namespace lignum::plan {

// What a row op is measured and priced by (hw::RowsPoint).
struct RowWork {
  std::string name;          // the kind and its string attributes: "rms_norm", "elementwise:exp", "glu:silu"
  DType dtype = DType::f32;  // of its first floating input (no such: of its first result)
  double elements = 0;       // elements of that dtype moved: bytes read and written over its size
};
RowWork row_work(std::string_view kind, const ops::Site& site, const ops::Cost& cost);

// Scores of attention: the number of products tells the pass (two forward, five backward), the number of
// exponentials tells how many scores there are.
hw::AttentionWork attention_work(const ops::Site& site, const ops::Cost& cost);

// Of one run on the compute engine, without dispatch. Work::none costs nothing; collectives are not for it.
// CPU: a row op that was not measured under its name costs its traffic alone. `traffic`: how cold its
// operands are (empty: as if it ran by itself, again and again). bf16_dot, fp16_sums: as in ProgramOptions.
Result<hw::Estimate> node_time(const hw::Spec& spec, hw::Share share, std::string_view kind,
                               const ops::Site& site, const ops::Cost& cost,
                               std::span<const Traffic> traffic = {}, std::string_view bf16_dot = {},
                               bool fp16_sums = false);

}  // namespace lignum::plan
