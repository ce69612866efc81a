// What verbs share: reading a configuration from the command line, finding a specification, printing.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "hw/spec.h"

namespace lignum::cli {

inline constexpr int kSavedOnSignal = 143;  // a run that a signal ended, with its checkpoint written

// The words behind a verb: at most one path of a YAML file, the rest key=value.
class ConfigWords {
 public:
  explicit ConfigWords(CLI::App& verb);
  // Once the command line is parsed. `more` are key=value words behind it.
  Result<config::Config> load(const std::vector<std::string>& more = {}) const;

 private:
  const CLI::App& verb_;
};

// The specification that the key `spec` names: empty or "cpu" is this machine's, as calibrated, else a name
// or a path. Only where the key is empty may it be absent; `why_not` then says why. With host_memory=file a
// CPU's that has measured no file is given the rates of that folder, measured now (some 0.3 s).
Result<std::optional<hw::Spec>> find_spec(const config::Config& config, std::string& why_not);

// The newest checkpoint of the run that the configuration names, checked; the step is that of its name.
struct RunWeights {
  std::string folder;
  int64_t step = 0;
};
Result<RunWeights> newest_weights(const config::Config& config);

// A flag --json of the verb.
void add_json(CLI::App& verb, bool& json, const std::string& what);
// The end of the verb's help: its form, and one example a line; "lignum " is put in front of each.
void add_examples(CLI::App& verb, const std::string& form, const std::vector<std::string>& examples);

// On standard output, at once: a person may watch, another program may read.
void print_line(const std::string& line);
void print_json(const nlohmann::ordered_json& json);

}  // namespace lignum::cli
