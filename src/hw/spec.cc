#include "hw/spec.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/file.h"
#include "base/json.h"
#include "hw/embedded_specs.h"

namespace lignum::hw {
namespace {

namespace fs = std::filesystem;

enum Use : unsigned { kTpu = 1, kCpu = 2, kOptionalTpu = 4, kOptionalCpu = 8 };

// Every key a specification may hold, what it measures, and who must or may have it. A key ending in "."
// holds one entry an operand type.
struct Key {
  std::string_view name;
  Dimension dimension;
  unsigned use;
};
constexpr std::array<Key, 44> kKeys = {{
    {"chip.devices", Dimension::count, kTpu},
    {"chip.tensorcores", Dimension::count, kTpu},
    {"chip.sparsecores", Dimension::count, kOptionalTpu},
    {"chip.memory", Dimension::bytes, kTpu},
    {"chip.memory_bandwidth", Dimension::byte_rate, kTpu},
    {"chip.peak_matmul.", Dimension::flop_rate, kTpu},
    {"chip.link_count", Dimension::count, kTpu},
    {"chip.dcn_bandwidth", Dimension::byte_rate, kTpu},
    {"chip.die_bandwidth", Dimension::byte_rate, kOptionalTpu},
    {"chip.host_memory", Dimension::bytes, kOptionalTpu},
    {"link.bandwidth", Dimension::byte_rate, kTpu},
    {"link.nominal_bandwidth", Dimension::byte_rate, kTpu},
    {"device.peak_matmul.", Dimension::flop_rate, kTpu},
    {"device.matmul.", Dimension::flop_rate, kTpu},
    {"device.memory", Dimension::bytes, kTpu | kCpu},
    {"device.memory_bandwidth", Dimension::byte_rate, kTpu},
    {"device.host_bandwidth", Dimension::byte_rate, kTpu | kCpu},
    {"device.fast_memory", Dimension::bytes, kTpu | kCpu},
    {"device.mxu_dim", Dimension::count, kOptionalTpu},
    {"device.mxus", Dimension::count, kOptionalTpu},
    {"device.clock", Dimension::frequency, kOptionalTpu | kOptionalCpu},
    {"attention.forward_per_score", Dimension::seconds_per_score, kTpu},
    {"attention.forward_block_positions", Dimension::count, kTpu},
    {"attention.backward_per_score", Dimension::seconds_per_score, kTpu},
    {"attention.backward_block_positions", Dimension::count, kTpu},
    {"attention.wide_head_dim", Dimension::count, kOptionalTpu},
    {"attention.wide_head_factor", Dimension::ratio, kOptionalTpu},
    {"attention.forward_floor", Dimension::flop_rate, kOptionalTpu},
    {"attention.backward_floor", Dimension::flop_rate, kOptionalTpu},
    {"attention.forward_window_block", Dimension::count, kOptionalTpu},
    {"attention.backward_window_block", Dimension::count, kOptionalTpu},
    {"attention.window_factor", Dimension::ratio, kOptionalTpu},
    {"grouped_matmul.forward", Dimension::flop_rate, kOptionalTpu},
    {"grouped_matmul.forward_group_rows", Dimension::count, kOptionalTpu},
    {"grouped_matmul.drhs", Dimension::flop_rate, kOptionalTpu},
    {"grouped_matmul.drhs_group_rows", Dimension::count, kOptionalTpu},
    {"grouped_matmul.dlhs", Dimension::flop_rate, kOptionalTpu},
    {"grouped_matmul.dlhs_group_rows", Dimension::count, kOptionalTpu},
    {"grouped_matmul.overhang_factor", Dimension::ratio, kOptionalTpu},
    {"grouped_matmul.f8_speedup", Dimension::ratio, kOptionalTpu},
    {"elementwise.multiplier", Dimension::ratio, kTpu},
    {"elementwise.route_bandwidth", Dimension::byte_rate, kOptionalTpu},
    {"elementwise.gather_bandwidth", Dimension::byte_rate, kOptionalTpu},
    {"collective.overlap", Dimension::ratio, kTpu},
}};
// Operand types of the rates, as the files name them: one rate serves E4M3FN and E5M2.
constexpr std::array<std::string_view, 4> kOperands = {"bf16", "f8", "f32", "int8"};

std::optional<std::string_view> operand_name(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return "bf16";
    case DType::f8e4m3fn:
    case DType::f8e5m2:
      return "f8";
    case DType::f32:
      return "f32";
    default:
      return std::nullopt;
  }
}

const Key* find_key(std::string_view name) {
  for (const Key& key : kKeys) {
    if (key.name == name) return &key;
    if (key.name.back() != '.' || !name.starts_with(key.name)) continue;
    const std::string_view operand = name.substr(key.name.size());
    if (std::find(kOperands.begin(), kOperands.end(), operand) != kOperands.end()) return &key;
  }
  return nullptr;
}

std::string keys_below(std::string_view prefix) {
  std::vector<std::string> names;
  for (const Key& key : kKeys) {
    if (!key.name.starts_with(prefix)) continue;
    names.push_back(key.name.back() == '.' ? fmt::format("{}{{{}}}", key.name, fmt::join(kOperands, "|"))
                                           : std::string(key.name));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

Result<std::string> read_file(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error))
    return user_error("{}: a folder; name a file, or one of {}", path, fmt::join(Spec::names(), ", "));
  Result<std::string> text = read_text(path);
  if (text.ok()) return text;
  return user_error("{}: cannot be read ({}); name a file, or one of {}", path, text.status().message(),
                    fmt::join(Spec::names(), ", "));
}

std::string folder_from_environment() {
  const char* folder = std::getenv("LIGNUM_SPECS");
  return folder == nullptr ? "" : folder;
}

Result<std::vector<int>> parse_shape(const std::string& text, int dims, const std::string& where) {
  std::vector<int> shape;
  std::stringstream parts(text);
  for (std::string part; std::getline(parts, part, 'x');) {
    const bool digits =
        !part.empty() && part.size() <= 4 &&
        std::all_of(part.begin(), part.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
    if (!digits || std::stoi(part) < 1)
      return user_error("{}: \"{}\" is not a shape like 2x2x1", where, text);
    shape.push_back(std::stoi(part));
  }
  if (static_cast<int>(shape.size()) != dims) {
    return user_error("{}: \"{}\" has {} axes; this torus has {}", where, text, shape.size(), dims);
  }
  return shape;
}

}  // namespace

class SpecReader {
 public:
  SpecReader(Spec& spec, Fitted fitted) : spec_(spec), fitted_(fitted) {}

  Status read(const nlohmann::json& json) {
    if (!json.is_object()) return user_error("the file is not a JSON object");
    LIGNUM_ASSIGN_OR_RETURN(const int schema, integer(json, "schema", "schema"));
    if (schema != 1) return user_error("schema: {}; this binary reads 1", schema);
    LIGNUM_ASSIGN_OR_RETURN(spec_.name_, text(json, "name", "name"));
    LIGNUM_ASSIGN_OR_RETURN(const std::string kind, text(json, "kind", "kind"));
    if (kind != "tpu" && kind != "cpu") return user_error("kind: \"{}\"; allowed: tpu, cpu", kind);
    spec_.kind_ = kind == "tpu" ? SpecKind::tpu : SpecKind::cpu;
    for (const auto& [key, value] : json.items()) LIGNUM_RETURN_IF_ERROR(read_section(key, value));
    return finish();
  }

 private:
  static Result<std::string> text(const nlohmann::json& object, const char* key, const std::string& where) {
    auto it = object.find(key);
    if (it == object.end()) return user_error("{}: missing", where);
    if (!it->is_string() || it->get_ref<const std::string&>().empty()) {
      return user_error("{}: {} is not a non-empty text", where, it->dump());
    }
    return it->get<std::string>();
  }
  static Result<int> integer(const nlohmann::json& object, const char* key, const std::string& where) {
    auto it = object.find(key);
    if (it == object.end()) return user_error("{}: missing", where);
    if (!it->is_number_integer() || it->get<int64_t>() < 1 || it->get<int64_t>() > 1'000'000) {
      return user_error("{}: {} is not a whole number from 1 to 1000000", where, it->dump());
    }
    return it->get<int>();
  }

  Status read_section(const std::string& key, const nlohmann::json& value) {
    if (key == "schema" || key == "name" || key == "kind" || key == "about") return {};
    if (key == "torus" && !spec_.is_cpu()) return read_torus(value);
    if (key == "machine" && spec_.is_cpu()) return read_machine(value);
    if (key == "curves" && spec_.is_cpu()) {
      LIGNUM_ASSIGN_OR_RETURN(spec_.curves_, CpuCurves::parse(value));
      spec_.curves_.origin = spec_.origin_;
      has_curves_ = true;
      return {};
    }
    if (key == "fitted") return read_quantities(value, "", true);
    return read_quantities(value, key, false);
  }

  // A group of quantities, or one; `path` is its key, without "fitted.".
  Status read_quantities(const nlohmann::json& value, const std::string& path, bool in_fitted) {
    const std::string shown = in_fitted ? (path.empty() ? "fitted" : "fitted." + path) : path;
    const Key* key = find_key(path);
    if (key == nullptr) {
      const bool is_group = path.empty() || std::any_of(kKeys.begin(), kKeys.end(), [&](const Key& k) {
                              return k.name.starts_with(path + ".");
                            });
      if (!is_group || !value.is_object()) {
        const std::string group =
            path.substr(0, path.rfind('.') == std::string::npos ? 0 : path.rfind('.') + 1);
        return user_error("{}: no such key; there are {}", shown, keys_below(group));
      }
      for (const auto& [name, child] : value.items()) {
        LIGNUM_RETURN_IF_ERROR(
            read_quantities(child, path.empty() ? name : fmt::format("{}.{}", path, name), in_fitted));
      }
      return {};
    }
    const unsigned mine = spec_.is_cpu() ? kCpu | kOptionalCpu : kTpu | kOptionalTpu;
    if ((key->use & mine) == 0) {
      return user_error("{}: a specification of kind {} has no such key; remove it", shown,
                        spec_.is_cpu() ? "cpu" : "tpu");
    }
    LIGNUM_ASSIGN_OR_RETURN(Quantity quantity, parse_quantity(value, key->dimension, shown));
    if (in_fitted != (quantity.evidence == Evidence::fitted)) {
      return user_error(R"({}.kind: "{}"; fitted numbers, and no others, stand under "fitted")", shown,
                        evidence_name(quantity.evidence));
    }
    (in_fitted ? fitted_quantities_ : spec_.quantities_).emplace(path, std::move(quantity));
    return {};
  }

  Status read_torus(const nlohmann::json& torus) {
    if (!torus.is_object()) return user_error("torus: {} is not an object", torus.dump());
    LIGNUM_RETURN_IF_ERROR(only_fields(torus, "torus", {"dims", "wrap", "slices", "source"}));
    LIGNUM_RETURN_IF_ERROR(text(torus, "source", "torus.source").status());
    LIGNUM_ASSIGN_OR_RETURN(spec_.torus_dims_, integer(torus, "dims", "torus.dims"));
    if (spec_.torus_dims_ > 3) return user_error("torus.dims: {}; allowed: 1, 2, 3", spec_.torus_dims_);
    auto wrap = torus.find("wrap");
    if (wrap == torus.end() || !wrap->is_object()) return user_error("torus.wrap: missing");
    LIGNUM_RETURN_IF_ERROR(only_fields(*wrap, "torus.wrap", {"rule", "number"}));
    LIGNUM_ASSIGN_OR_RETURN(const std::string rule, text(*wrap, "rule", "torus.wrap.rule"));
    LIGNUM_ASSIGN_OR_RETURN(spec_.wrap_.number, integer(*wrap, "number", "torus.wrap.number"));
    if (rule == "all_axes_multiple_of") {
      spec_.wrap_.kind = WrapRule::Kind::all_axes_multiple_of;
    } else if (rule == "axis_equals") {
      spec_.wrap_.kind = WrapRule::Kind::axis_equals;
    } else {
      return user_error("torus.wrap.rule: \"{}\"; allowed: all_axes_multiple_of, axis_equals", rule);
    }
    auto slices = torus.find("slices");
    if (slices == torus.end() || !slices->is_object()) return user_error("torus.slices: missing");
    for (const auto& [number, shape] : slices->items()) {
      const std::string where = "torus.slices." + number;
      if (!shape.is_string()) return user_error("{}: {} is not a shape like \"2x2x1\"", where, shape.dump());
      LIGNUM_ASSIGN_OR_RETURN(std::vector<int> chips,
                              parse_shape(shape.get<std::string>(), spec_.torus_dims_, where));
      const bool digits =
          !number.empty() && number.size() <= 6 &&
          std::all_of(number.begin(), number.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
      if (!digits) return user_error("{}: \"{}\" is not a number of TensorCores", where, number);
      spec_.slices_.emplace(std::stoi(number), std::move(chips));
    }
    has_torus_ = true;
    return {};
  }

  Status read_machine(const nlohmann::json& machine) {
    if (!machine.is_object()) return user_error("machine: {} is not an object", machine.dump());
    LIGNUM_RETURN_IF_ERROR(only_fields(machine, "machine", {"cpu", "cores", "isa", "date", "commit"}));
    LIGNUM_ASSIGN_OR_RETURN(spec_.machine_.cpu, text(machine, "cpu", "machine.cpu"));
    LIGNUM_ASSIGN_OR_RETURN(spec_.machine_.cores, integer(machine, "cores", "machine.cores"));
    LIGNUM_ASSIGN_OR_RETURN(spec_.machine_.isa, text(machine, "isa", "machine.isa"));
    LIGNUM_ASSIGN_OR_RETURN(spec_.machine_.date, text(machine, "date", "machine.date"));
    LIGNUM_ASSIGN_OR_RETURN(spec_.machine_.commit, text(machine, "commit", "machine.commit"));
    has_machine_ = true;
    return {};
  }

  static Status only_fields(const nlohmann::json& object, const std::string& where,
                            const std::vector<std::string>& allowed) {
    for (const auto& [key, unused] : object.items()) {
      if (std::find(allowed.begin(), allowed.end(), key) == allowed.end()) {
        return user_error("{}.{}: no such field; there are {}", where, key, fmt::join(allowed, ", "));
      }
    }
    return {};
  }

  Status finish() {
    const unsigned required = spec_.is_cpu() ? kCpu : kTpu;
    for (const Key& key : kKeys) {
      if ((key.use & required) == 0) continue;
      const bool one_of = key.name.back() == '.';
      const std::string name = std::string(key.name) + (one_of ? "bf16" : "");
      if (!spec_.quantities_.contains(name)) {
        return user_error("{}: missing; give it in {}", name, units_of(key.dimension));
      }
    }
    if (spec_.is_cpu()) {
      if (!has_machine_) return user_error("machine: missing; {{cpu, cores, isa, date, commit}}");
      if (!has_curves_) return user_error("curves: missing; run `lignum calibrate`");
    } else {
      if (!has_torus_) return user_error("torus: missing; {{dims, wrap, slices, source}}");
      spec_.devices_per_chip_ = static_cast<int>(spec_.quantities_.at("chip.devices").value);
      spec_.tensorcores_per_chip_ = static_cast<int>(spec_.quantities_.at("chip.tensorcores").value);
      if (spec_.tensorcores_per_chip_ % spec_.devices_per_chip_ != 0) {
        return user_error("chip.devices: {} do not divide {} TensorCores", spec_.devices_per_chip_,
                          spec_.tensorcores_per_chip_);
      }
      LIGNUM_RETURN_IF_ERROR(check_slices());
    }
    for (auto& [key, quantity] : fitted_quantities_) {
      if (!spec_.quantities_.contains(key)) {
        return user_error("fitted.{}: stands in for no number; give {} too, as it is known without a fit",
                          key, key);
      }
      if (fitted_ == Fitted::use) spec_.quantities_[key] = std::move(quantity);
    }
    return {};
  }

  Status check_slices() const {
    for (const auto& [number, shape] : spec_.slices_) {
      int64_t chips = 1;
      for (const int n : shape) chips *= n;
      if (chips * spec_.tensorcores_per_chip_ != number) {
        return user_error("torus.slices.{}: {} is {} chips of {} TensorCores", number, fmt::join(shape, "x"),
                          chips, spec_.tensorcores_per_chip_);
      }
    }
    return {};
  }

  Spec& spec_;
  Fitted fitted_;
  std::map<std::string, Quantity, std::less<>> fitted_quantities_;
  bool has_torus_ = false, has_machine_ = false, has_curves_ = false;
};

std::vector<std::string> Spec::names() {
  std::set<std::string> names;
  for (const EmbeddedSpec& spec : embedded_specs()) names.emplace(spec.name);
  const std::string folder = folder_from_environment();
  std::error_code error;
  if (!folder.empty()) {
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      if (entry.path().extension() == ".json") names.insert(entry.path().stem().string());
    }
  }
  return {names.begin(), names.end()};
}

Result<Spec> Spec::load(const std::string& name_or_path, Fitted fitted) {
  const bool is_path = name_or_path.find('/') != std::string::npos || name_or_path.ends_with(".json");
  if (is_path) {
    LIGNUM_ASSIGN_OR_RETURN(const std::string text, read_file(name_or_path));
    return parse(text, name_or_path, fitted);
  }
  const std::string folder = folder_from_environment();
  if (!folder.empty() && !name_or_path.empty()) {
    const std::string path = (fs::path(folder) / (name_or_path + ".json")).string();
    std::error_code error;
    if (fs::exists(path, error)) return load(path, fitted);
  }
  for (const EmbeddedSpec& spec : embedded_specs()) {
    if (spec.name == name_or_path)
      return parse(std::string(spec.json), fmt::format("{} (built in)", spec.name), fitted);
  }
  return user_error(
      "spec: \"{}\" is not known; there are {}. A file is named by its path; LIGNUM_SPECS names a folder of "
      "more ({})",
      name_or_path, fmt::join(names(), ", "), folder.empty() ? "not set" : folder);
}

Result<Spec> Spec::parse(const std::string& json_text, const std::string& origin, Fitted fitted) {
  LIGNUM_ASSIGN_OR_RETURN(const nlohmann::json json, parse_json(json_text, origin));
  Spec spec;
  spec.origin_ = origin;
  if (Status status = SpecReader(spec, fitted).read(json); !status.ok()) return status.with_context(origin);
  return spec;
}

const Quantity* Spec::find(std::string_view key) const {
  auto it = quantities_.find(key);
  return it == quantities_.end() ? nullptr : &it->second;
}

Result<double> Spec::get(std::string_view key) const {
  if (const Quantity* quantity = find(key)) return quantity->value;
  return user_error("{}: {} is not in this specification; add it to the file to price what needs it", origin_,
                    key);
}

// Dispatch was taken off the points of products that hand work over. Of a short one that leaves the
// difference of two times that noise alone may make small, so dispatch goes back on: a call is never faster
// than it was timed, and short ones weigh as little as they should. The clock's noise needs no bound: a
// sample repeats its call until it is long beside that (ProbeOptions::sample_seconds).
Result<double> Spec::best_gemm_flops(DType operands, bool fastest_sample) const {
  double best = 0;
  for (const GemmPoint& p : curves_.gemm) {
    if (p.dtype != operands) continue;
    LIGNUM_ASSIGN_OR_RETURN(const double dispatch, curves_.dispatch_seconds(p.threads));
    best = std::max(best, p.flops() / (p.seconds + dispatch) * (fastest_sample ? 1 + p.spread : 1));
  }
  if (best > 0) return best;
  return user_error("{}: no measured {} GEMM; run `lignum calibrate` with it", origin_, dtype_name(operands));
}

Result<double> Spec::peak_matmul_flops(DType operands) const {
  // A point is a median: its fastest sample shows what the machine can do.
  if (is_cpu()) return best_gemm_flops(operands, true);
  const std::optional<std::string_view> name = operand_name(operands);
  if (!name) return user_error("{}: no matrix unit multiplies {}", origin_, dtype_name(operands));
  return get(fmt::format("device.peak_matmul.{}", *name));
}

Result<double> Spec::matmul_flops(DType operands) const {
  if (is_cpu()) return best_gemm_flops(operands, false);
  const std::optional<std::string_view> name = operand_name(operands);
  if (!name) return user_error("{}: no matrix unit multiplies {}", origin_, dtype_name(operands));
  return get(fmt::format("device.matmul.{}", *name));
}

Result<double> Spec::memory_bandwidth() const {
  if (!is_cpu()) return get("device.memory_bandwidth");
  const auto largest = std::max_element(
      curves_.stream.begin(), curves_.stream.end(), [](const StreamPoint& a, const StreamPoint& b) {
        return std::pair(a.threads, a.bytes) < std::pair(b.threads, b.bytes);
      });
  return static_cast<double>(largest->bytes) / largest->seconds;
}

Result<double> Spec::device_memory() const { return get("device.memory"); }
Result<double> Spec::copy_bandwidth() const { return get("device.host_bandwidth"); }
Result<double> Spec::fast_memory() const { return get("device.fast_memory"); }
Result<double> Spec::link_bandwidth() const { return get("link.bandwidth"); }
Result<double> Spec::die_bandwidth() const { return get("chip.die_bandwidth"); }
Result<double> Spec::dcn_bandwidth() const { return get("chip.dcn_bandwidth"); }
Result<double> Spec::collective_overlap() const { return get("collective.overlap"); }

Result<double> Spec::dispatch_seconds(int threads) const {
  return is_cpu() ? curves_.dispatch_seconds(threads) : Result<double>(0.0);
}

}  // namespace lignum::hw
