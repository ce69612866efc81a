#include "hw/quantity.h"

#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

namespace lignum::hw {
namespace {

struct EvidenceName {
  Evidence evidence;
  std::string_view name;
};
constexpr std::array<EvidenceName, 5> kEvidence = {{{Evidence::nominal, "nominal"},
                                                    {Evidence::measured, "measured"},
                                                    {Evidence::compiler_estimate, "compiler_estimate"},
                                                    {Evidence::assumed, "assumed"},
                                                    {Evidence::fitted, "fitted"}}};

struct Unit {
  Dimension dimension;
  std::string_view name;
  double scale;
};
constexpr double kKi = 1024.0;
// The first unit of a dimension is its base unit.
constexpr std::array<Unit, 26> kUnits = {{{Dimension::flop_rate, "FLOP/s", 1},
                                          {Dimension::flop_rate, "GFLOP/s", 1e9},
                                          {Dimension::flop_rate, "TFLOP/s", 1e12},
                                          {Dimension::byte_rate, "byte/s", 1},
                                          {Dimension::byte_rate, "MB/s", 1e6},
                                          {Dimension::byte_rate, "GB/s", 1e9},
                                          {Dimension::byte_rate, "TB/s", 1e12},
                                          {Dimension::byte_rate, "Gbit/s", 1e9 / 8},
                                          {Dimension::bytes, "byte", 1},
                                          {Dimension::bytes, "KiB", kKi},
                                          {Dimension::bytes, "MiB", kKi * kKi},
                                          {Dimension::bytes, "GiB", kKi * kKi * kKi},
                                          {Dimension::bytes, "GB", 1e9},
                                          {Dimension::seconds, "s", 1},
                                          {Dimension::seconds, "ms", 1e-3},
                                          {Dimension::seconds, "us", 1e-6},
                                          {Dimension::seconds, "ns", 1e-9},
                                          {Dimension::frequency, "Hz", 1},
                                          {Dimension::frequency, "MHz", 1e6},
                                          {Dimension::frequency, "GHz", 1e9},
                                          {Dimension::seconds_per_score, "s/score", 1},
                                          {Dimension::seconds_per_score, "ns/score", 1e-9},
                                          {Dimension::seconds_per_score, "ps/score", 1e-12},
                                          {Dimension::count, "count", 1},
                                          {Dimension::ratio, "ratio", 1},
                                          {Dimension::ratio, "percent", 0.01}}};

Result<std::string> text_field(const nlohmann::json& object, const char* field, std::string_view where,
                               bool required) {
  auto it = object.find(field);
  if (it == object.end()) {
    if (!required) return std::string();
    return user_error("{}: no \"{}\"; a quantity is {{\"value\", \"unit\", \"kind\", \"source\"}}", where,
                      field);
  }
  if (!it->is_string() || it->get_ref<const std::string&>().empty()) {
    return user_error("{}.{}: {} is not a text; write a non-empty string", where, field, it->dump());
  }
  return it->get<std::string>();
}

}  // namespace

std::string_view evidence_name(Evidence evidence) { return kEvidence[static_cast<size_t>(evidence)].name; }

std::optional<Evidence> evidence_from_name(std::string_view name) {
  for (const EvidenceName& e : kEvidence) {
    if (e.name == name) return e.evidence;
  }
  return std::nullopt;
}

std::string_view dimension_base_unit(Dimension dimension) {
  for (const Unit& unit : kUnits) {
    if (unit.dimension == dimension) return unit.name;
  }
  abort_with(__FILE__, __LINE__, "every dimension has a unit", std::to_string(static_cast<int>(dimension)));
}

std::string units_of(Dimension dimension) {
  std::vector<std::string_view> names;
  for (const Unit& unit : kUnits) {
    if (unit.dimension == dimension) names.push_back(unit.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

std::optional<double> unit_scale(Dimension dimension, std::string_view name) {
  for (const Unit& unit : kUnits) {
    if (unit.dimension == dimension && unit.name == name) return unit.scale;
  }
  return std::nullopt;
}

Result<Quantity> parse_quantity(const nlohmann::json& object, Dimension expected, std::string_view where) {
  if (!object.is_object()) {
    return user_error("{}: {} is a bare value; write {{\"value\", \"unit\", \"kind\", \"source\"}}", where,
                      object.dump());
  }
  for (const auto& [field, unused] : object.items()) {
    if (field != "value" && field != "unit" && field != "kind" && field != "source" && field != "note" &&
        field != "density") {
      return user_error("{}.{}: no such field; a quantity has value, unit, kind, source, note, density",
                        where, field);
    }
  }
  Quantity quantity;
  quantity.dimension = expected;

  auto value = object.find("value");
  if (value == object.end() || !value->is_number()) {
    return user_error("{}.value: {}; write a number", where,
                      value == object.end() ? "missing" : value->dump());
  }
  LIGNUM_ASSIGN_OR_RETURN(const std::string unit, text_field(object, "unit", where, true));
  const std::optional<double> scale = unit_scale(expected, unit);
  if (!scale) return user_error("{}.unit: \"{}\" does not fit; allowed: {}", where, unit, units_of(expected));
  quantity.value = value->get<double>() * *scale;
  // A ratio may be zero (no overlap); nothing else here may.
  const bool in_range = expected == Dimension::ratio ? quantity.value >= 0 : quantity.value > 0;
  if (!std::isfinite(quantity.value) || !in_range) {
    return user_error("{}.value: {} is not a {} number; leave the key out if it is not known", where,
                      value->dump(),
                      expected == Dimension::ratio ? "finite non-negative" : "finite positive");
  }
  if (expected == Dimension::count && quantity.value != std::floor(quantity.value)) {
    return user_error("{}.value: {} is not a whole number, and its unit is count", where, value->dump());
  }

  LIGNUM_ASSIGN_OR_RETURN(const std::string kind, text_field(object, "kind", where, true));
  const std::optional<Evidence> evidence = evidence_from_name(kind);
  if (!evidence) {
    return user_error("{}.kind: \"{}\"; allowed: nominal, measured, compiler_estimate, assumed, fitted",
                      where, kind);
  }
  quantity.evidence = *evidence;
  LIGNUM_ASSIGN_OR_RETURN(quantity.source, text_field(object, "source", where, true));
  LIGNUM_ASSIGN_OR_RETURN(quantity.note, text_field(object, "note", where, false));
  LIGNUM_ASSIGN_OR_RETURN(quantity.density, text_field(object, "density", where, false));
  const bool density_known = quantity.density == "dense" || quantity.density == "sparse";
  if (expected == Dimension::flop_rate && !density_known) {
    return user_error("{}.density: \"{}\"; a FLOP rate says \"dense\" or \"sparse\"", where,
                      quantity.density);
  }
  if (expected != Dimension::flop_rate && !quantity.density.empty()) {
    return user_error("{}.density: only a FLOP rate has one; remove it", where);
  }
  return quantity;
}

nlohmann::json to_json(const Quantity& quantity) {
  nlohmann::json object = {{"value", quantity.value},
                           {"unit", dimension_base_unit(quantity.dimension)},
                           {"kind", evidence_name(quantity.evidence)},
                           {"source", quantity.source}};
  if (!quantity.note.empty()) object["note"] = quantity.note;
  if (!quantity.density.empty()) object["density"] = quantity.density;
  return object;
}

}  // namespace lignum::hw
