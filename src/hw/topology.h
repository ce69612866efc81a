// Slices of chips: which devices there are and over which links a group of them talks. Chips and devices are
// never the same word: a shape counts chips, a rank is a device.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "hw/spec.h"

namespace lignum::hw {

struct Topology {
  std::string chip;           // "tpu7x"
  std::vector<int> shape;     // chips along each torus axis
  std::vector<bool> wrapped;  // whether that axis is a ring
  int devices_per_chip = 1;
  int slices = 1;  // equal slices joined by the data-centre network

  int64_t chips() const;         // of all slices
  int64_t devices() const;       // of all slices
  std::string text() const;      // libtpu's "tpu7x:2x2x1" (of one slice)
  std::string describe() const;  // text(), and " x 2 slices" where there are several
};

// Takes libtpu's "tpu7x:2x2x1" (chips along each axis) and MaxText's "tpu7x-8" (TensorCores; the table is in
// the specification). The text's chip must be `spec`'s. Errors name the text and the forms and slices that
// exist.
Result<Topology> parse_topology(const std::string& text, const Spec& spec, int slices = 1);
// The same with the specification looked up by the text's chip name.
Result<Topology> parse_topology(const std::string& text, int slices = 1);

// The links a group of devices uses.
struct Group {
  enum class Link { none, die, ici };
  int64_t devices = 1;     // in all slices
  int slices = 1;          // > 1: it also crosses the data-centre network
  Link link = Link::none;  // the slowest it crosses inside one slice
  int cores = 1;           // devices of a chip
  std::vector<int> shape;  // chips it spans along each torus axis
  std::vector<bool> ring;  // that span is a whole wrapped axis
  std::vector<int>
      interleaved;  // groups that lie between each other on that axis and share its links, 1: none
  // Links out of a chip that are this group's: sum over the axes it spans of 2 (ring) or 1 (line), over
  // interleaved.
  double directions() const;
  // "2 slices, z 4 (ring), x 2 in steps of 2, 2 cores of a chip": what it spans, the slowest first; "-": one
  // device.
  std::string describe() const;
};

// The groups of one mesh axis: `size` devices of a slice that lie `inner` apart in device order (core
// fastest, then the torus axes in the order of the shape: libtpu's order of ids), and the same ones in
// `slices` slices. All groups of a mesh axis look alike, so one stands for them. An axis may take a whole
// torus axis, a part of one, or several; a size that cuts across the torus is refused by name. On a CPU every
// group is shared memory: pass no topology (roofline.h).
Result<Group> mesh_group(const Topology&, int64_t size, int64_t inner, int slices = 1);
inline Result<Group> whole_group(const Topology& t) {
  return mesh_group(t, t.devices() / t.slices, 1, t.slices);
}

}  // namespace lignum::hw
