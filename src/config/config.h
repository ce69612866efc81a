// The configuration of a run: one table of keys (key_table), and the values that defaults, a YAML file and
// key=value words gave, in that order. MaxText's keys mean here what they mean there and have its defaults
// but for the exceptions that explain() lists; a key that MaxText has and Lignum does not implement is
// refused by its own message unless it repeats MaxText's default, which is accepted and noted.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"

namespace lignum::config {

enum class Type { boolean, integer, real, text, list, bytes };
enum class Source { maxtext, own };
enum class Support { implemented, known };  // known: MaxText's, not implemented here
enum class Origin { default_value, yaml, command_line };

// One row of the table. Rows are alive for the whole process.
struct Key {
  std::string_view name;
  Type type = Type::text;
  std::string_view default_text;     // ours
  std::string_view maxtext_default;  // "" where source is own
  Source source = Source::own;
  Support support = Support::implemented;
  std::string_view help;
  std::vector<std::string_view> allowed;  // of text; empty: any
  double min = 0, max = 0;                // of integer, real and bytes, inclusive
  std::string_view because;               // why no more is allowed, and what to do; "" where that is plain
  bool minus_one = false;                 // -1 is taken beside [min, max]: "to be derived"
};

const std::vector<Key>& key_table();  // implemented keys first, then MaxText's others
const Key* find_key(std::string_view name);

// bytes are int64; a list is of strings.
using Value = std::variant<bool, int64_t, double, std::string, std::vector<std::string>>;

// The mesh that the keys dcn_AXIS_parallelism (over slices) and ici_AXIS_parallelism (inside a slice) give:
// an axis is as long as their product, and a step along its dcn part is the longer one. Ranks are numbered by
// the axes in MaxText's order, the last fastest: tensor parallelism has the nearest devices. Where a rank
// stands (slice, device of it) is passes::Mesh::device.
inline constexpr std::array<std::string_view, 6> kMeshAxes = {"data",           "pipeline", "fsdp",
                                                              "fsdp_transpose", "context",  "tensor"};
struct Mesh {
  std::array<int64_t, kMeshAxes.size()> sizes{1, 1, 1, 1, 1, 1};
  std::array<int64_t, kMeshAxes.size()> dcn{1, 1, 1, 1, 1, 1};  // divides sizes
  int64_t size(std::string_view axis) const;
  int64_t devices() const;
  // The keys that make an axis, for messages: "ici_tensor_parallelism=4", or "dcn_fsdp_parallelism=2 x
  // ici_fsdp_parallelism=8"; a key of 1 is left out beside another.
  std::string said(std::string_view axis) const;
  // Ranks that see rows of their own: all axes but context and tensor.
  int64_t row_groups() const { return devices() / (size("context") * size("tensor")); }
};

class Config {
 public:
  // YAML: one flat map of at most 1 MiB, without anchors, duplicates or nested values. Overrides:
  // "key=value".
  static Result<Config> load(const std::optional<std::string>& yaml_path,
                             const std::vector<std::string>& overrides);
  static Result<Config> parse(std::string_view yaml, const std::string& yaml_name,
                              const std::vector<std::string>& overrides);

  // A key that is not implemented, or of another type, is a broken invariant of the caller.
  bool boolean(std::string_view key) const;
  int64_t integer(std::string_view key) const;  // integer and bytes
  double real(std::string_view key) const;
  const std::string& text(std::string_view key) const;
  const std::vector<std::string>& list(std::string_view key) const;

  Origin origin(std::string_view key) const;
  bool is_set(std::string_view key) const { return origin(key) != Origin::default_value; }
  const std::vector<std::string>& notes() const { return notes_; }  // what was accepted and has no effect

  // The mesh over `devices` (at most 2^20) in slices() slices; of the dcn_* and of the ici_* axes one each
  // may be -1 and takes what the others leave. ranks() is the native run's number: the key, or where it is -1
  // the product of all axes (a -1 axis counting as 1).
  Result<Mesh> mesh(int64_t devices) const;
  int64_t ranks() const;
  // With a compile_topology compile_topology_num_slices (-1: one); ranks of this machine are in as many as
  // the dcn_* axes say (a -1 axis counting as 1).
  int64_t slices() const;
  // Rows of one micro-step over the whole mesh: per_device_batch_size times the devices, as many for each
  // that sees rows of its own.
  Result<int64_t> rows(const Mesh& mesh) const;
  int64_t schedule_steps() const;  // learning_rate_schedule_steps, or steps where that is -1

  nlohmann::json to_json() const;  // every implemented key with its value
  // What was set as YAML with its origin, in the table's order, defaults as comments; load() takes it back.
  std::string to_yaml() const;
  std::string value_text(std::string_view key) const;
  // "key: before's value -> this one's" of each implemented key whose value differs, in the table's order.
  std::vector<std::string> changes_since(const Config& before) const;

 private:
  Config() = default;
  Status set(const Key& key, std::string_view text, Origin origin, const std::string& where);
  Status check() const;  // what needs several keys
  Status check_quantization() const;
  void note_without_effect();
  const Value& value(std::string_view key) const;
  std::vector<int64_t> mesh_sizes(std::string_view net) const;  // "dcn" or "ici", by kMeshAxes, as given

  std::map<std::string, Value, std::less<>> values_;
  std::map<std::string, Origin, std::less<>> origins_;
  std::vector<std::string> notes_;
};

// What a key is: type, default, allowed values, source, status, help; an unknown key is an error with nearest
// names.
Result<std::string> explain(std::string_view key);

}  // namespace lignum::config
