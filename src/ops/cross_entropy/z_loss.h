// The attribute z_loss of a loss and of its gradient: what the squares of the tokens' log-sum-exps are
// multiplied by and added to the loss (Chowdhery et al., "PaLM", 2022, section 5). 0 where it is not there.
#pragma once

#include "ops/facets.h"

namespace lignum::ops {

inline Result<double> z_loss_in(const Attrs& attrs) {  // for infer
  if (!attrs.all().contains("z_loss")) return 0.0;
  return number_in(attrs, "z_loss", 0, 1e3);
}
inline double z_loss_of(const Attrs& attrs) { return attrs.get_or<double>("z_loss", 0); }

}  // namespace lignum::ops
