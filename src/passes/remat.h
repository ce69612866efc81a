// Rematerialisation: which forward values the backward scans read from memory, and which they compute again.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "ir/graph.h"

namespace lignum::passes {

// MaxText's remat_policy. save_all: nothing is recomputed (but casts and gathers of weights always are: they
// are the layer's weights, not activations). Otherwise a value is kept if its remat name is in `saved`; the
// layer's input always is.
struct RematPolicy {
  bool save_all = false;
  std::set<std::string, std::less<>> saved;
};
// none, or one of MaxText's names with the saved set of its nnx_decoders.get_remat_policy; none is offloaded,
// and none takes a list of names (custom).
Result<RematPolicy> remat_policy(std::string_view name);

// Rewrites every reversed scan that autodiff made: a stacked value that the policy does not keep is computed
// again in the backward body by copies tagged Role::remat, behind one `barrier` over all that they read,
// which keeps a compiler from merging them with the forward pass. Prunes what nobody reads afterwards.
ir::Graph remat(const ir::Graph& step, const RematPolicy& policy);

}  // namespace lignum::passes
