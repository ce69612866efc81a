// Which two nodes may be one: the fusions of ops, for the native-only pass `fuse`. A fused node has the bits
// of its parts: it rounds where the edge between them did.
#pragma once

#include <optional>

#include "ops/op.h"

namespace lignum::ops {

// `consumer` reads result 0 of `producer` as its input `input`, the producer's own inputs take that place,
// and the node becomes one of `kind`.
struct Fusion {
  std::string_view producer, consumer;
  size_t input;
  std::string_view kind;
  // The producer's work is lost unless this consumer is its one reader: false where it costs nothing to leave
  // it to other readers as well.
  bool alone;
  // Attributes of the fused node; nothing where the two do not fit.
  std::optional<Attrs> (*attrs)(const Site& producer, const Site& consumer);
};

std::span<const Fusion> fusions();

// That of the two nodes, or null.
const Fusion* find_fusion(std::string_view producer, std::string_view consumer, size_t input);

}  // namespace lignum::ops
