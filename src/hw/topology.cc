#include "hw/topology.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <numeric>

namespace lignum::hw {
namespace {

// 0 when `text` is not a plain number from 1 to 10^7.
int64_t plain_number(std::string_view text) {
  if (text.empty() || text.size() > 7) return 0;
  int64_t n = 0;
  for (const char c : text) {
    if (std::isdigit(static_cast<unsigned char>(c)) == 0) return 0;
    n = 10 * n + (c - '0');
  }
  return n;
}

std::string forms(const Spec& spec) {
  std::vector<std::string> names;
  for (const auto& [number, shape] : spec.slices()) {
    if (names.size() == 6) {
      names.push_back(fmt::format("... {}-{}", spec.name(), spec.slices().rbegin()->first));
      break;
    }
    names.push_back(fmt::format("{}-{} ({})", spec.name(), number, fmt::join(shape, "x")));
  }
  return fmt::format("write chips as {}:{}, or TensorCores as one of {}", spec.name(),
                     spec.torus_dims() == 3 ? "2x2x1" : "2x2", fmt::join(names, ", "));
}

std::vector<bool> wrapped_axes(const WrapRule& rule, const std::vector<int>& shape) {
  std::vector<bool> wrapped;
  const bool all = std::all_of(shape.begin(), shape.end(), [&](int n) { return n % rule.number == 0; });
  for (const int n : shape) {
    wrapped.push_back(rule.kind == WrapRule::Kind::all_axes_multiple_of ? all : n == rule.number);
  }
  return wrapped;
}

}  // namespace

int64_t Topology::chips() const {
  return std::accumulate(shape.begin(), shape.end(), static_cast<int64_t>(slices), std::multiplies<>());
}
int64_t Topology::devices() const { return chips() * devices_per_chip; }
std::string Topology::text() const { return fmt::format("{}:{}", chip, fmt::join(shape, "x")); }
std::string Topology::describe() const {
  return slices == 1 ? text() : fmt::format("{} x {} slices", text(), slices);
}

double Group::directions() const {
  double sum = 0;
  for (size_t a = 0; a < shape.size(); ++a) {
    if (shape[a] > 1) sum += (ring[a] ? 2.0 : 1.0) / interleaved[a];
  }
  return sum;
}

std::string Group::describe() const {
  constexpr std::string_view kNames = "xyz";
  std::vector<std::string> parts;
  if (slices > 1) parts.push_back(fmt::format("{} slices", slices));
  for (size_t a = shape.size(); a-- > 0;) {
    if (shape[a] == 1) continue;
    parts.push_back(fmt::format("{} {}{}{}", kNames.at(a), shape[a], ring[a] ? " (ring)" : "",
                                interleaved[a] > 1 ? fmt::format(" in steps of {}", interleaved[a]) : ""));
  }
  if (cores > 1) parts.push_back(fmt::format("{} cores of a chip", cores));
  return parts.empty() ? "-" : fmt::format("{}", fmt::join(parts, ", "));
}

Result<Topology> parse_topology(const std::string& text, const Spec& spec, int slices) {
  if (spec.is_cpu())
    return user_error("topology: \"{}\": {} is a CPU; leave the topology out", text, spec.name());
  if (slices < 1) return user_error("topology: {} slices; at least 1", slices);
  const size_t mark = text.find_first_of(":-");
  if (mark == std::string::npos || text.substr(0, mark) != spec.name()) {
    return user_error("topology: \"{}\" is not a slice of {}; {}", text, spec.name(), forms(spec));
  }
  const std::string_view rest = std::string_view(text).substr(mark + 1);
  Topology topology;
  topology.chip = spec.name();
  topology.devices_per_chip = spec.devices_per_chip();
  topology.slices = slices;
  if (text[mark] == '-') {
    const int64_t cores = plain_number(rest);
    auto it = spec.slices().find(static_cast<int>(cores));
    if (it == spec.slices().end())
      return user_error("topology: no slice is named \"{}\"; {}", text, forms(spec));
    topology.shape = it->second;
  } else {
    for (size_t begin = 0; begin <= rest.size();) {
      const size_t end = std::min(rest.find('x', begin), rest.size());
      const int64_t n = plain_number(rest.substr(begin, end - begin));
      if (n < 1 || n > 1024) return user_error("topology: \"{}\" is not a shape; {}", text, forms(spec));
      topology.shape.push_back(static_cast<int>(n));
      begin = end + 1;
    }
    if (static_cast<int>(topology.shape.size()) != spec.torus_dims()) {
      return user_error("topology: \"{}\" has {} axes, the torus of {} has {}; {}", text,
                        topology.shape.size(), spec.name(), spec.torus_dims(), forms(spec));
    }
  }
  topology.wrapped = wrapped_axes(spec.wrap_rule(), topology.shape);
  return topology;
}

Result<Topology> parse_topology(const std::string& text, int slices) {
  const std::string chip = text.substr(0, text.find_first_of(":-"));
  Result<Spec> spec = Spec::load(chip);
  if (!spec.ok()) return spec.status().with_context(fmt::format("topology \"{}\"", text));
  return parse_topology(text, *spec, slices);
}

Result<Group> mesh_group(const Topology& topology, int64_t size, int64_t inner, int slices) {
  LIGNUM_CHECK(topology.shape.size() == topology.wrapped.size(), "{} axes, {} wraps", topology.shape.size(),
               topology.wrapped.size());
  if (slices < 1 || topology.slices % slices != 0) {
    return user_error("mesh: an axis over {} slices does not divide the {} of {}", slices, topology.slices,
                      topology.describe());
  }
  const int64_t devices = topology.devices() / topology.slices;
  if (size < 1 || inner < 1 || devices % (size * inner) != 0) {
    return user_error("mesh: an axis of {} with {} devices inside it does not divide the {} devices of {}",
                      size, inner, devices, topology.text());
  }
  // Device number = core + cores * (x + X * (y + Y * (z + ...))): mixed radix, from the fastest digit.
  std::vector<int64_t> radix = {topology.devices_per_chip};
  radix.insert(radix.end(), topology.shape.begin(), topology.shape.end());

  // Each digit is split into what lies inside the axis, what the axis takes of it, and what is left outside.
  std::vector<int64_t> inside(radix.size(), 1), taken(radix.size(), 1);
  int64_t skip = inner, want = size;
  for (size_t d = 0; d < radix.size(); ++d) {
    int64_t left = radix[d];
    const int64_t skipped = std::min(skip, left);
    if (skip % skipped != 0 || left % skipped != 0) {
      return user_error(
          "mesh: {} devices inside the axis cut across the torus of {} at a side of {}; order or size the "
          "mesh axes so that they divide it",
          inner, topology.text(), radix[d]);
    }
    inside[d] = skipped;
    skip /= skipped;
    left /= skipped;
    if (skip > 1) continue;
    taken[d] = std::min(want, left);
    if (want % taken[d] != 0 || left % taken[d] != 0) {
      return user_error(
          "mesh: an axis of {} (with {} devices inside it) cuts across the torus of {} at a side of {}; "
          "order "
          "or size the mesh axes so that they divide it",
          size, inner, topology.text(), radix[d]);
    }
    want /= taken[d];
  }

  Group group;
  group.devices = size * slices;
  group.slices = slices;
  group.cores = static_cast<int>(taken.front());
  for (size_t a = 0; a < topology.shape.size(); ++a) {
    const auto span = static_cast<int>(taken[a + 1]);
    group.shape.push_back(span);
    group.ring.push_back(topology.wrapped[a] && span == topology.shape[a]);
    group.interleaved.push_back(span > 1 ? static_cast<int>(inside[a + 1]) : 1);
  }
  group.link = group.directions() > 0 ? Group::Link::ici
               : taken.front() > 1    ? Group::Link::die
                                      : Group::Link::none;
  return group;
}

}  // namespace lignum::hw
