#include "pjrt/options.h"

#include <set>

#include "base/wire.h"

namespace lignum::pjrt {
namespace {

// Field numbers of xla/pjrt/proto/compile_options.proto and xla/xla_data.proto.
namespace compile_options {
constexpr int kExecutableBuildOptions = 3, kEnvOptionOverrides = 7;
}
namespace build_options {
constexpr int kDeviceOrdinal = 1, kNumReplicas = 4, kNumPartitions = 5, kUseSpmdPartitioning = 6,
              kDeviceAssignment = 9, kUseShardyPartitioner = 19;
}
namespace device_assignment {
constexpr int kReplicaCount = 1, kComputationCount = 2, kComputationDevices = 3;
constexpr int kReplicaDeviceIds = 1;  // of a ComputationDevice: one a partition
}  // namespace device_assignment
namespace override_value {
constexpr int kString = 1, kBool = 2, kInt = 3, kDouble = 4;
}

std::string encode_override(const OptionValue& value) {
  wire::Writer out;
  if (const auto* s = std::get_if<std::string>(&value)) out.bytes(override_value::kString, *s);
  if (const auto* b = std::get_if<bool>(&value)) out.boolean(override_value::kBool, *b);
  if (const auto* i = std::get_if<int64_t>(&value)) out.integer(override_value::kInt, *i);
  if (const auto* d = std::get_if<double>(&value)) out.fixed64(override_value::kDouble, *d);
  return std::move(out).str();
}

std::string encode_device_assignment(const CompileOptions& options) {
  wire::Writer out;
  out.integer(device_assignment::kReplicaCount, options.num_replicas);
  out.integer(device_assignment::kComputationCount, options.num_partitions);
  for (int p = 0; p < options.num_partitions; ++p) {
    std::vector<int64_t> ids;
    for (int r = 0; r < options.num_replicas; ++r)
      ids.push_back(options.device_ids[r * options.num_partitions + p]);
    wire::Writer computation;
    computation.packed(device_assignment::kReplicaDeviceIds, ids);
    out.bytes(device_assignment::kComputationDevices, computation.str());
  }
  return std::move(out).str();
}

}  // namespace

Result<std::string> CompileOptions::serialize() const {
  if (num_replicas < 1 || num_partitions < 1) {
    return user_error("compile options: num_replicas = {}, num_partitions = {}: both must be at least 1",
                      num_replicas, num_partitions);
  }
  if (!device_ids.empty()) {
    const size_t wanted = static_cast<size_t>(num_replicas) * static_cast<size_t>(num_partitions);
    if (device_ids.size() != wanted) {
      return user_error(
          "compile options: device_ids has {} ids, num_replicas * num_partitions = {} * {} needs {}",
          device_ids.size(), num_replicas, num_partitions, wanted);
    }
    std::set<int64_t> seen;
    for (int64_t id : device_ids) {
      if (!seen.insert(id).second) return user_error("compile options: device_ids names device {} twice", id);
    }
  }
  wire::Writer build;
  build.integer(build_options::kDeviceOrdinal, -1);  // any: the assignment decides
  build.integer(build_options::kNumReplicas, num_replicas);
  build.integer(build_options::kNumPartitions, num_partitions);
  build.boolean(build_options::kUseSpmdPartitioning, use_spmd_partitioning);
  if (!device_ids.empty()) build.bytes(build_options::kDeviceAssignment, encode_device_assignment(*this));
  build.boolean(build_options::kUseShardyPartitioner, use_shardy);

  wire::Writer out;
  out.bytes(compile_options::kExecutableBuildOptions, build.str());
  for (const auto& [name, value] : overrides) {
    wire::Writer entry;
    entry.bytes(1, name);
    entry.bytes(2, encode_override(value));
    out.bytes(compile_options::kEnvOptionOverrides, entry.str());
  }
  return std::move(out).str();
}

Result<std::map<std::string, OptionValue>> parse_flags(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n";
  std::map<std::string, OptionValue> flags;
  for (size_t at = text.find_first_not_of(kSpace); at != std::string_view::npos;
       at = text.find_first_not_of(kSpace, at)) {
    const std::string_view word = text.substr(at, text.find_first_of(kSpace, at) - at);
    at += word.size();
    const std::string_view flag = word.substr(word.starts_with("--") ? 2 : 0);
    const size_t equals = flag.find('=');
    const std::string name(flag.substr(0, equals));
    if (!name.starts_with("xla_"))
      return user_error("compile_xla_flags: '{}' is no flag; say --xla_name=value, separated by spaces",
                        word);
    std::string value = equals == std::string_view::npos ? "true" : std::string(flag.substr(equals + 1));
    if (!flags.emplace(name, std::move(value)).second)
      return user_error("compile_xla_flags: {} is given twice", name);
  }
  return flags;
}

}  // namespace lignum::pjrt
