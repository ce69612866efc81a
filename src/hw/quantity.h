// A number of a hardware specification: never bare, always with its unit, how it is known, and where it comes
// from.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace lignum::hw {

// How a number is known. `fitted` stands under "fitted" and nowhere else: it was chosen to explain step
// times, so that an error measured on those step times flatters it.
enum class Evidence { nominal, measured, compiler_estimate, assumed, fitted };
std::string_view evidence_name(Evidence);
std::optional<Evidence> evidence_from_name(std::string_view);

// What a unit measures. Every value is kept in the base unit named here; files may use the prefixed units of
// units_of().
enum class Dimension { flop_rate, byte_rate, bytes, seconds, frequency, seconds_per_score, count, ratio };
std::string_view dimension_base_unit(
    Dimension);                   // "FLOP/s", "byte/s", "byte", "s", "Hz", "s/score", "count", "ratio"
std::string units_of(Dimension);  // "byte, KiB, MiB, GiB, ...": for messages
// 2^30 for "GiB" as bytes; none when the unit does not measure that dimension.
std::optional<double> unit_scale(Dimension, std::string_view unit);

struct Quantity {
  double value = 0;  // in the dimension's base unit
  Dimension dimension = Dimension::ratio;
  Evidence evidence = Evidence::nominal;
  std::string source;
  std::string note;     // may be empty
  std::string density;  // "dense" or "sparse" for a flop_rate, else empty
};

// Reads {"value", "unit", "kind", "source", "note"?, "density"?}. The error names the key `where`, what is
// wrong and what is allowed: an unknown or wrong unit, a value that is not a positive finite number, a rate
// without density, no source.
Result<Quantity> parse_quantity(const nlohmann::json& object, Dimension expected, std::string_view where);
nlohmann::json to_json(const Quantity&);

}  // namespace lignum::hw
