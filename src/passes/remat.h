// Rematerialisation: which forward values the backward scans read from memory, and which they compute again.
#pragma once

#include <set>
#include <span>
#include <string>
#include <string_view>

#include "ir/graph.h"

namespace lignum::passes {

// Which values a layer's backward pass finds in memory. save_all: nothing is recomputed (but casts and
// gathers of weights always are: they are the layer's weights, not activations; and views cost nothing).
// Otherwise a value is kept if its remat name is in `saved`; the layer's input and the scales of what is
// quantised always are.
struct RematPolicy {
  bool save_all = false;
  std::set<std::string, std::less<>> saved;
  std::set<std::string, std::less<>> offloaded;  // those of them that lie in host memory (passes/offload.h)
  friend bool operator==(const RematPolicy&, const RematPolicy&) = default;
};

// The presets of MaxText's remat_policy with its saved sets (get_remat_policy of nnx_decoders.py): none,
// full, minimal, ... A name that is none is a user error.
Result<RematPolicy> remat_policy(std::string_view name);
// The presets that keep everything on the device, from the one that keeps most to the one that keeps least.
std::span<const std::string_view> device_policies();
// The tensors that remat_policy=custom names, one key of MaxText each.
std::span<const std::string_view> remat_tensors();

// Rewrites every reversed scan that autodiff made: a stacked value that the policy does not keep is computed
// again in the backward body by copies tagged Role::remat, behind one `barrier` over all that they read,
// which keeps a compiler from merging them with the forward pass. Prunes what nobody reads afterwards.
ir::Graph remat(const ir::Graph& step, const RematPolicy& policy);

// The remat names of a forward graph's values, and of what a step after remat keeps for its backward pass.
std::set<std::string, std::less<>> named_tensors(const ir::Graph& forward);
std::set<std::string, std::less<>> saved_tensors(const ir::Graph& step);

}  // namespace lignum::passes
