#include "config/config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "base/text.h"
#include "config/keys.h"
#include "config/model_config.h"
#include "config/yaml.h"

namespace lignum::config {
namespace {

constexpr int64_t kMaxDevices = 1 << 20;

// A MaxText key that Lignum lacks: fine as long as it asks for what happens anyway.
Status check_known(const Key& key, const YamlValue& value, std::vector<std::string>& notes) {
  const auto own_default = read_yaml_value(key.maxtext_default);
  if (own_default.ok() && own_default->canonical == value.canonical) {
    notes.push_back(
        fmt::format("{} is not implemented; its value is MaxText's default and has no effect", key.name));
    return {};
  }
  return user_error(
      "MaxText's key '{}' is known but not implemented in Lignum; remove it, or leave it at MaxText's "
      "default, {}",
      key.name, key.maxtext_default);
}

// A run stays below base_output_directory, and its name on one line.
Status check_run_name(const std::string& name) {
  const bool control =
      std::any_of(name.begin(), name.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  const std::string parts = fmt::format("/{}/", name);
  const auto has = [&](const char* part) { return parts.find(part) != std::string::npos; };
  if (name.empty() || (!control && !has("/../") && !has("/./") && !has("//"))) return {};
  return user_error(
      "run_name={}: a folder below base_output_directory: no part that is empty, . or .., no control "
      "characters",
      shown(name));
}

std::string origin_name(Origin origin) {
  switch (origin) {
    case Origin::default_value:
      return "default";
    case Origin::yaml:
      return "file";
    case Origin::command_line:
      return "command line";
  }
  return "";
}

template <class T>
const T& typed(const Value& value, std::string_view key) {
  const T* typed = std::get_if<T>(&value);
  LIGNUM_CHECK(typed != nullptr, "'{}' is of type {}", key, type_name(find_key(key)->type));
  return *typed;
}

}  // namespace

Result<Config> Config::load(const std::optional<std::string>& yaml_path,
                            const std::vector<std::string>& overrides) {
  if (!yaml_path) return parse("", "", overrides);
  LIGNUM_ASSIGN_OR_RETURN(const std::string text, read_text(*yaml_path, uint64_t{1} << 20));
  return parse(text, *yaml_path, overrides);
}

Result<Config> Config::parse(std::string_view yaml, const std::string& yaml_name,
                             const std::vector<std::string>& overrides) {
  static const Config kDefaults = [] {
    Config defaults;
    for (const Key& key : key_table()) {
      if (key.support != Support::implemented) continue;
      const Status status = defaults.set(key, key.default_text, Origin::default_value, "default");
      LIGNUM_CHECK(status.ok(), "{}", status.message());
    }
    return defaults;
  }();
  Config config = kDefaults;
  LIGNUM_ASSIGN_OR_RETURN(const std::vector<YamlEntry> entries, read_flat_yaml(yaml, yaml_name));
  for (const YamlEntry& entry : entries) {
    const std::string where = fmt::format("{}:{}", yaml_name, entry.line);
    const Key* key = find_key(entry.key);
    if (key == nullptr) return unknown_key(entry.key).with_context(where);
    if (key->support == Support::known) {
      LIGNUM_RETURN_IF_ERROR(check_known(*key, entry.value, config.notes_).with_context(where));
    } else if (key->type == Type::list && entry.value.is_flat_list) {
      LIGNUM_RETURN_IF_ERROR(config.set(*key, value_to_text(entry.value.items), Origin::yaml, where));
    } else if (!entry.value.is_scalar) {
      return user_error("{}: {}: expected {}, not a nested value", where, key->name, allowed_text(*key));
    } else {
      LIGNUM_RETURN_IF_ERROR(config.set(*key, entry.value.text, Origin::yaml, where));
    }
  }
  std::set<std::string_view> seen;
  for (const std::string& word : overrides) {
    constexpr std::string_view kWhere = "command line";
    const size_t equals = word.find('=');
    if (equals == 0 || equals == std::string::npos)
      return user_error("{}: '{}' is not key=value", kWhere, shown(word));
    const std::string_view name = std::string_view(word).substr(0, equals);
    const std::string_view text = std::string_view(word).substr(equals + 1);
    const Key* key = find_key(name);
    if (key == nullptr) return unknown_key(name).with_context(std::string(kWhere));
    if (!seen.insert(key->name).second) return user_error("{}: '{}' is given twice", kWhere, key->name);
    if (key->support == Support::known) {
      const auto value = read_yaml_value(text);
      if (!value.ok()) return value.status().with_context(fmt::format("{}: {}", kWhere, name));
      LIGNUM_RETURN_IF_ERROR(check_known(*key, *value, config.notes_).with_context(std::string(kWhere)));
    } else {
      LIGNUM_RETURN_IF_ERROR(config.set(*key, text, Origin::command_line, std::string(kWhere)));
    }
  }
  LIGNUM_RETURN_IF_ERROR(config.check());
  config.note_without_effect();
  return config;
}

Status Config::set(const Key& key, std::string_view text, Origin origin, const std::string& where) {
  auto value = parse_value(key, text);
  if (!value.ok()) return value.status().with_context(where);
  values_.insert_or_assign(std::string(key.name), std::move(value).value());
  origins_.insert_or_assign(std::string(key.name), origin);
  return {};
}

Status Config::check_quantization() const {
  const std::string& quantization = text("quantization");
  const std::vector<std::string_view> known = {"fp8_full", "fp8", "fp8_e4m3", "fp8_e5m2"};
  if (!quantization.empty() && std::find(known.begin(), known.end(), quantization) == known.end())
    return user_error("quantization={}: fp8_full, fp8, fp8_e4m3 and fp8_e5m2 are implemented{}",
                      shown(quantization), nearest_hint(quantization, known));
  if (boolean("use_qwix_quantization") && quantization.empty() && text("quantization_rules").empty())
    return user_error(
        "use_qwix_quantization=true quantises nothing by itself; set quantization=fp8_full, or a file of "
        "quantization_rules");
  if (boolean("use_qwix_quantization")) return {};
  for (const std::string_view key : {"quantization", "quantization_rules"})
    if (!text(key).empty())
      return user_error("{}={} needs Qwix's rules, the only ones there are: set use_qwix_quantization=true",
                        key, shown(text(key)));
  return {};
}

// Keys that are set and that nothing reads, in this combination.
void Config::note_without_effect() {
  const std::string& quantization = text("quantization");
  for (const std::string_view key :
       {"weight_quantization_calibration_method", "act_quantization_calibration_method",
        "bwd_quantization_calibration_method"})
    if (is_set(key) && quantization != "fp8_full")
      notes_.push_back(fmt::format("{} has no effect with quantization={}: only fp8_full reads it", key,
                                   quantization.empty() ? "''" : quantization));
  for (const std::string_view key :
       {"quantization_scales", "bwd_stochastic_rounding", "stochastic_rounding_seed", "fp8_accumulation"})
    if (is_set(key) && quantization.empty() &&
        (key == "quantization_scales" || key == "bwd_stochastic_rounding" ||
         text("quantization_rules").empty()))
      notes_.push_back(fmt::format("{} has no effect: nothing is quantised by `quantization`", key));
  if (is_set("compile_topology_num_slices") && text("compile_topology").empty())
    notes_.push_back(fmt::format("compile_topology_num_slices={} has no effect without compile_topology",
                                 integer("compile_topology_num_slices")));
  if (boolean("use_qwix_quantization")) return;
  for (const std::string_view key : {"quantization_metrics", "save_quant_stats_path", "load_quant_stats_path",
                                     "num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16"})
    if (is_set(key)) notes_.push_back(fmt::format("{} has no effect: nothing is quantised", key));
}

Status Config::check() const {
  LIGNUM_RETURN_IF_ERROR(check_run_name(text("run_name")));
  if (is_set("model_path") && is_set("model_name") && !text("model_path").empty() &&
      text("model_name") != "default") {
    return user_error("model_path={} and model_name={} both name a model; give one", text("model_path"),
                      text("model_name"));
  }
  LIGNUM_RETURN_IF_ERROR(check_quantization());
  if (text("model_name") != "default") LIGNUM_RETURN_IF_ERROR(preset(text("model_name")).status());
  if (const std::string& where = text("host_memory"); where != "ram" && !where.starts_with("file:"))
    return user_error("host_memory={}: it is ram, or file:FOLDER", where);
  if (text("dataset_type") == "text" && integer("eval_interval") > 0 && list("eval_files").empty()) {
    return user_error("eval_interval={} needs held-out files: set eval_files, or eval_interval=-1",
                      integer("eval_interval"));
  }
  if (integer("eval_interval") < 0 && (real("target_eval_loss") > 0 || integer("eval_patience") > 0)) {
    const char* key = real("target_eval_loss") > 0 ? "target_eval_loss" : "eval_patience";
    return user_error("{}={} needs evaluations: set eval_interval", key, value_text(key));
  }
  if (text("lr_schedule_type") == "wsd" &&
      real("warmup_steps_fraction") + real("wsd_decay_steps_fraction") > 1) {
    return user_error("warmup_steps_fraction={} and wsd_decay_steps_fraction={}: together at most 1",
                      real("warmup_steps_fraction"), real("wsd_decay_steps_fraction"));
  }
  if (real("momentum") > 0 && text("opt_type") != "sgd") {
    return user_error("momentum={} is that of opt_type=sgd; set that, or adam_b1 for opt_type={}",
                      real("momentum"), text("opt_type"));
  }
  if (real("momentum") == 0 && boolean("nesterov"))
    return user_error("nesterov=true needs a momentum; set opt_type=sgd momentum=0.9, say");
  if (text("opt_type") == "adamw" && real("adam_eps") == 0 && real("adam_eps_root") == 0) {
    return user_error(
        "adam_eps=0 and adam_eps_root=0: a weight without a gradient would be moved by 0 / 0; set one above "
        "0");
  }
  // Below half a unit in the last place, 2^-8 of itself, a decay would leave the moment where it is.
  if (text("nu_dtype") == "bfloat16" && real("adam_b2") > 1 - 0x1p-8) {
    return user_error("nu_dtype=bfloat16 with adam_b2={}: bfloat16 cannot hold so slow a decay; at most {}",
                      real("adam_b2"), 1 - 0x1p-8);
  }
  // With a topology the number of devices is the topology's: whoever resolves that calls mesh().
  if (!text("compile_topology").empty()) return {};
  LIGNUM_ASSIGN_OR_RETURN(const Mesh m, mesh(ranks()));
  return rows(m).status();
}

const Value& Config::value(std::string_view key) const {
  const auto it = values_.find(key);
  LIGNUM_CHECK(it != values_.end(), "'{}' is not an implemented key", key);
  return it->second;
}

bool Config::boolean(std::string_view key) const { return typed<bool>(value(key), key); }
int64_t Config::integer(std::string_view key) const { return typed<int64_t>(value(key), key); }
double Config::real(std::string_view key) const { return typed<double>(value(key), key); }
const std::string& Config::text(std::string_view key) const { return typed<std::string>(value(key), key); }
const std::vector<std::string>& Config::list(std::string_view key) const {
  return typed<std::vector<std::string>>(value(key), key);
}

Origin Config::origin(std::string_view key) const {
  const auto it = origins_.find(key);
  LIGNUM_CHECK(it != origins_.end(), "'{}' is not an implemented key", key);
  return it->second;
}

int64_t Mesh::size(std::string_view axis) const {
  const auto* const at = std::find(kMeshAxes.begin(), kMeshAxes.end(), axis);
  LIGNUM_CHECK(at != kMeshAxes.end(), "no mesh axis {}", axis);
  return sizes[static_cast<size_t>(at - kMeshAxes.begin())];
}

int64_t Mesh::devices() const {
  int64_t n = 1;
  for (const int64_t size : sizes) n *= size;
  return n;
}

namespace {

std::string mesh_key(std::string_view net, std::string_view axis) {
  return fmt::format("{}_{}_parallelism", net, axis);
}

// The product of the axes, a -1 axis counting as 1; more than kMaxDevices is kMaxDevices + 1.
int64_t mesh_product(const std::vector<int64_t>& sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) product = std::min(kMaxDevices + 1, product * std::abs(size));
  return product;
}

// One of the two sets of axes over `count` of `what` (singular); `given_by` says who asks for as many.
Status fill_axes(std::string_view net, std::vector<int64_t>& sizes, int64_t count, std::string_view what,
                 std::string_view given_by) {
  // Said: the axis that is open by default, fsdp or data, and what is more than one device.
  std::vector<std::string> said, factors;
  int open = 0;
  size_t rest = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (kMeshAxes[i] == "data" || (net == "ici" && kMeshAxes[i] == "fsdp") || sizes[i] != 1) {
      said.push_back(fmt::format("{}={}", mesh_key(net, kMeshAxes[i]), sizes[i]));
      factors.push_back(std::to_string(sizes[i]));
    }
    if (sizes[i] != -1) continue;
    ++open;
    rest = i;
  }
  const std::string axes = fmt::format("{}", fmt::join(said, ", "));
  const auto what_of = [&](int64_t n) { return fmt::format("{}{}", what, n == 1 ? "" : "s"); };
  if (open > 1) return user_error("{}: only one axis may be -1; set the others", axes);
  const int64_t given = mesh_product(sizes);
  if (open == 1) {
    if (count % given != 0)
      return user_error("{}: {} {} ({}) cannot be parted by {}; make it a multiple of that", axes, count,
                        what_of(count), given_by, given);
    sizes[rest] = count / given;
  } else if (given != count) {
    return user_error("{}: the mesh has {} = {} {}, but there {} {} ({}); make one axis -1 to fit", axes,
                      fmt::join(factors, " x "),
                      given > kMaxDevices ? fmt::format("over {}", kMaxDevices) : std::to_string(given),
                      what_of(given), count == 1 ? "is" : "are", count, given_by);
  }
  return {};
}

}  // namespace

std::string Mesh::said(std::string_view axis) const {
  const auto at =
      static_cast<size_t>(std::find(kMeshAxes.begin(), kMeshAxes.end(), axis) - kMeshAxes.begin());
  LIGNUM_CHECK(at < kMeshAxes.size(), "no mesh axis {}", axis);
  const int64_t inside = sizes[at] / dcn[at];
  std::vector<std::string> keys;
  if (dcn[at] > 1) keys.push_back(fmt::format("{}={}", mesh_key("dcn", axis), dcn[at]));
  if (inside > 1 || dcn[at] == 1) keys.push_back(fmt::format("{}={}", mesh_key("ici", axis), inside));
  return fmt::format("{}", fmt::join(keys, " x "));
}

std::vector<int64_t> Config::mesh_sizes(std::string_view net) const {
  std::vector<int64_t> sizes;
  for (const std::string_view axis : kMeshAxes) sizes.push_back(integer(mesh_key(net, axis)));
  return sizes;
}

Result<Mesh> Config::mesh(int64_t devices) const {
  LIGNUM_CHECK(devices >= 1, "{} devices", devices);
  if (devices > kMaxDevices) return user_error("a mesh over {} devices: at most {}", devices, kMaxDevices);
  const bool ahead = !text("compile_topology").empty();
  const int64_t slices = this->slices();
  std::vector<int64_t> outer = mesh_sizes("dcn"), inner = mesh_sizes("ici");
  LIGNUM_RETURN_IF_ERROR(
      fill_axes("dcn", outer, slices, "slice",
                ahead ? fmt::format("compile_topology_num_slices={}", integer("compile_topology_num_slices"))
                      : "the product of dcn_*"));
  if (devices % slices != 0)
    return user_error("ranks={}: not a multiple of the {} slices that the dcn_* axes make; set it to one",
                      devices, slices);
  LIGNUM_RETURN_IF_ERROR(
      fill_axes("ici", inner, devices / slices, "device",
                fmt::format("{}{}", ahead ? "compile_topology" : "ranks", slices > 1 ? ", each slice" : "")));
  Mesh mesh;
  for (size_t i = 0; i < inner.size(); ++i) {
    mesh.dcn[i] = outer[i];
    mesh.sizes[i] = outer[i] * inner[i];
  }
  return mesh;
}

int64_t Config::slices() const {
  if (!text("compile_topology").empty()) return std::max<int64_t>(1, integer("compile_topology_num_slices"));
  return std::min(kMaxDevices, mesh_product(mesh_sizes("dcn")));
}

int64_t Config::ranks() const {
  const int64_t ranks = integer("ranks");
  return ranks != -1 ? ranks : std::min(kMaxDevices, mesh_product(mesh_sizes("ici")) * slices());
}

Result<int64_t> Config::rows(const Mesh& mesh) const {
  const double each = real("per_device_batch_size"), all = each * static_cast<double>(mesh.devices()),
               rows = all / static_cast<double>(mesh.row_groups());
  if (all == std::floor(all) && rows == std::floor(rows)) return static_cast<int64_t>(all);
  return user_error(
      "per_device_batch_size={}: {} rows over {} devices are not whole rows for each of the {} that see rows "
      "of their own ({} share each row: context and tensor parallelism); a multiple of {} is",
      each, all, mesh.devices(), mesh.row_groups(), mesh.devices() / mesh.row_groups(),
      static_cast<double>(mesh.row_groups()) / static_cast<double>(mesh.devices()));
}

int64_t Config::schedule_steps() const {
  const int64_t steps = integer("learning_rate_schedule_steps");
  return steps == -1 ? integer("steps") : steps;
}

nlohmann::json Config::to_json() const {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [key, value] : values_) {
    std::visit([&](const auto& v) { json[key] = v; }, value);
  }
  return json;
}

std::string Config::value_text(std::string_view key) const { return value_to_text(value(key)); }

std::vector<std::string> Config::changes_since(const Config& before) const {
  std::vector<std::string> changes;
  for (const Key& key : key_table()) {
    if (key.support != Support::implemented || value(key.name) == before.value(key.name)) continue;
    const auto text_of = [&](const Config& config) {
      const std::string text = config.value_text(key.name);
      return text.empty() ? "''" : text;
    };
    changes.push_back(fmt::format("{}: {} -> {}", key.name, text_of(before), text_of(*this)));
  }
  return changes;
}

std::string Config::to_yaml() const {
  std::string yaml;
  for (const Key& key : key_table()) {
    if (key.support != Support::implemented) continue;
    const Value& v = value(key.name);
    const auto* text = std::get_if<std::string>(&v);
    // Shape keys beside a preset would be taken for overrides of it: defaults stand as comments.
    const bool is_default = origin(key.name) == Origin::default_value;
    yaml += fmt::format("{}{}: {}", is_default ? "# " : "", key.name,
                        text != nullptr ? nlohmann::json(*text).dump() : value_to_text(v));
    yaml += is_default ? "\n" : fmt::format("  # {}\n", origin_name(origin(key.name)));
  }
  return yaml;
}

}  // namespace lignum::config
