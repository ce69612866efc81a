// What a program is compiled with: replicas, partitions, devices, and options of XLA by name.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"

namespace lignum::pjrt {

// A string is parsed by the plug-in as the option's own type; a typed value must have that type.
using OptionValue = std::variant<std::string, bool, int64_t, double>;

struct CompileOptions {
  // num_replicas > 1: per-device shapes, collectives name replica groups (the module says mhlo.num_replicas
  // too). num_partitions > 1 needs use_spmd_partitioning.
  int num_replicas = 1;
  int num_partitions = 1;

  // The device of replica r, partition p at [r * num_partitions + p], by the ids that the client or the
  // topology gives its devices. Empty: the devices at `places` in their own order (by id, slice by slice);
  // where that is empty too, the first num_replicas * num_partitions.
  std::vector<int64_t> device_ids;
  std::vector<int64_t> places;

  bool use_spmd_partitioning = false;
  bool use_shardy = false;  // needed by a program with sdy.* attributes

  // XLA's and the TPU compiler's flags for this compilation, e.g. {"xla_tpu_scoped_vmem_limit_kib", 65472}.
  // Unknown names are refused by the plug-in. XLA's CPU keeps extra precision between bf16 operations unless
  // xla_allow_excess_precision is false.
  std::map<std::string, OptionValue> overrides;

  // The wire form (CompileOptionsProto). A user error if the counts are not positive, or device_ids has
  // another length, or a device twice.
  Result<std::string> serialize() const;
};

// XLA's flags as a command line has them, "--xla_a=1 --xla_b=true", into overrides; a name alone is true. A
// user error for a word that is no flag, or a name given twice.
Result<std::map<std::string, OptionValue>> parse_flags(std::string_view text);

}  // namespace lignum::pjrt
