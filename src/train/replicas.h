// A mesh as the printer takes it: plain groups of replicas, rank r being replica r.
#pragma once

#include <cstdint>
#include <vector>

#include "passes/partition.h"
#include "pjrt/print.h"

namespace lignum::train {

inline pjrt::PrintOptions print_options(const passes::Mesh& mesh) {
  pjrt::PrintOptions out;
  out.replicas = mesh.ranks();
  for (const passes::MeshAxis& axis : mesh.axes)
    if (axis.size > 1) out.axes.push_back({axis.name, mesh.groups(axis.name)});
  return out;
}

// Where each replica runs, by device (passes::Mesh::device).
inline std::vector<int64_t> places(const passes::Mesh& mesh) {
  std::vector<int64_t> out;
  for (int64_t r = 0; r < mesh.ranks(); ++r) out.push_back(mesh.device(r));
  return out;
}

}  // namespace lignum::train
