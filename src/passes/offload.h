// What a forward loop saves for the backward one, in host memory.
#pragma once

#include <set>
#include <string>

#include "ir/graph.h"

namespace lignum::passes {

// Takes a GLOBAL step after remat. Each stack that a loop saves under one of the names (its remat name;
// "decoder_layer_input") and that loops alone slice becomes a stack in host memory: its rows are offloaded as
// they are made, and fetched in the bodies that read them. The bits are the same.
ir::Graph offload(const ir::Graph& step, const std::set<std::string, std::less<>>& names);

}  // namespace lignum::passes
