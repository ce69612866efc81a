#include "cli/common.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "train/checkpoint.h"
#include "train/setup.h"
#include "tune/calibrate.h"
#include "tune/file_timing.h"

namespace lignum::cli {

// Not an option of CLI11's: it would take a value in brackets, train_files=[a, b], apart.
ConfigWords::ConfigWords(CLI::App& verb) : verb_(verb) { verb.allow_extras(); }

Result<config::Config> ConfigWords::load(const std::vector<std::string>& more) const {
  std::optional<std::string> path;
  std::vector<std::string> overrides;
  for (const std::string& word : verb_.remaining()) {
    if (word.starts_with("-"))
      return user_error("'{}' is not an option of this verb; see --help", shown(word));
    if (word.find('=') != std::string::npos) {
      overrides.push_back(word);
    } else if (path) {
      return user_error("'{}' and '{}': one configuration file is read; settings are key=value", shown(*path),
                        shown(word));
    } else {
      path = word;
    }
  }
  overrides.insert(overrides.end(), more.begin(), more.end());
  return config::Config::load(path, overrides);
}

namespace {

// A specification that has measured no file gets the rates of the one that the run uses.
Result<std::optional<hw::Spec>> with_file_rates(hw::Spec spec, const config::Config& config) {
  constexpr std::string_view kFile = "file:";
  constexpr double kSeconds = 0.3;
  const std::string& where = config.text("host_memory");
  if (spec.is_cpu() && where.starts_with(kFile) && spec.curves().host_file.empty()) {
    LIGNUM_ASSIGN_OR_RETURN(
        std::vector<hw::HostFilePoint> points,
        tune::time_file(where.substr(kFile.size()), kSeconds, "measured at the start of this command"));
    spec.set_host_file(std::move(points));
  }
  return std::optional<hw::Spec>(std::move(spec));
}

}  // namespace

Result<std::optional<hw::Spec>> find_spec(const config::Config& config, std::string& why_not) {
  const std::string& name = config.text("spec");
  if (name.empty()) {
    Result<hw::Spec> spec = tune::load_calibrated_spec();
    if (!spec.ok()) {
      why_not = spec.status().message();
      return std::optional<hw::Spec>();
    }
    return with_file_rates(std::move(spec).value(), config);
  }
  LIGNUM_ASSIGN_OR_RETURN(hw::Spec spec, name == "cpu" ? tune::load_calibrated_spec() : hw::Spec::load(name));
  return with_file_rates(std::move(spec), config);
}

Result<RunWeights> newest_weights(const config::Config& config) {
  const std::string run = train::run_folder(config);
  LIGNUM_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, train::list_checkpoints(run));
  if (steps.empty()) return user_error("run_name={}: {} has no checkpoint", config.text("run_name"), run);
  const std::string folder = train::checkpoint_folder(run, steps.back());
  LIGNUM_RETURN_IF_ERROR(train::open_checkpoint(folder).status());
  return RunWeights{folder, steps.back()};
}

void add_json(CLI::App& verb, bool& json, const std::string& what) { verb.add_flag("--json", json, what); }

void add_examples(CLI::App& verb, const std::string& form, const std::vector<std::string>& examples) {
  std::string text = "Form:\n  lignum " + form + "\nExamples:";
  for (const std::string& e : examples) text += "\n  lignum " + e;
  verb.footer(text);
}

void print_line(const std::string& line) {
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fputc('\n', stdout);
  std::fflush(stdout);
}

void print_json(const nlohmann::ordered_json& json) { print_line(json.dump()); }

}  // namespace lignum::cli
