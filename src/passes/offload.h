// What a forward loop saves for the backward one, and the parameters, in host memory.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "ir/graph.h"
#include "ops/op.h"

namespace lignum::passes {

// Takes a GLOBAL step after remat, without an optimizer. Each stack that a loop saves under one of the names
// (its remat name; "decoder_layer_input") and that loops alone slice becomes a stack in host memory: its rows
// are offloaded as they are made, and fetched in the bodies that read them. With `parameters` every parameter
// lies there too: a loop over layers fetches its rows, each other node that reads one the whole. The bits are
// the same.
ir::Graph offload(const ir::Graph& step, const std::set<std::string, std::less<>>& names,
                  bool parameters = false);

// The first dim of a parameter that loops slice: it lies in host memory row by row, and only a loop reads it.
bool is_stack(const ir::Type& parameter);

// The awaited result of a copy between the memories: kind is offload or fetch.
ir::Value transferred(ops::Builder& b, std::string_view kind, ir::Value v);

}  // namespace lignum::passes
