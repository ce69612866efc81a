#include "report/run_record.h"

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace lignum::report {
namespace {

using nlohmann::json;

// Reads fields of one object; the first that is missing or of another type is kept as the error.
class Fields {
 public:
  Fields(const json& object, std::string what, std::string* error)
      : object_(object), what_(std::move(what)), error_(error) {}

  void get(const char* key, std::string& out) {
    if (const json* j = find(key, true); j != nullptr && expect(key, j->is_string(), "a text"))
      out = j->get_ref<const std::string&>();
  }
  void get(const char* key, int64_t& out) {
    if (const json* j = find(key, true); j != nullptr && expect(key, j->is_number_integer(), "an integer"))
      out = j->get<int64_t>();
  }
  void get(const char* key, bool& out) {
    if (const json* j = find(key, true); j != nullptr && expect(key, j->is_boolean(), "true or false"))
      out = j->get<bool>();
  }
  void get(const char* key, double& out) {
    if (const json* j = find(key, true); j != nullptr && expect(key, j->is_number(), "a number"))
      out = j->get<double>();
  }
  void get(const char* key, std::optional<double>& out) {
    if (const json* j = find(key, false); j != nullptr && expect(key, j->is_number(), "a number"))
      out = j->get<double>();
  }
  template <class T, class Read>
  void list(const char* key, std::vector<T>& out, Read read) {
    const json* j = find(key, true);
    if (j == nullptr || !expect(key, j->is_array(), "a list")) return;
    for (const json& item : *j) {
      if (!expect(key, item.is_object(), "a list of objects")) return;
      Fields fields(item, what_ + ": " + key, error_);
      read(fields, out.emplace_back());
    }
  }

 private:
  const json* find(const char* key, bool needed) {
    const auto it = object_.find(key);
    if (it != object_.end()) return &*it;
    if (needed) expect(key, false, "a value");
    return nullptr;
  }
  bool expect(const char* key, bool right, const char* wanted) {
    if (!right && error_->empty()) *error_ = fmt::format("{}: '{}' must be {}", what_, key, wanted);
    return right;
  }

  const json& object_;
  std::string what_;
  std::string* error_;
};

}  // namespace

nlohmann::ordered_json to_json(const RunRecord& r) {
  nlohmann::ordered_json j = {
      {"name", r.name},     {"commit", r.commit},   {"started", r.started}, {"machine", r.machine},
      {"mesh", r.mesh},     {"isa", r.isa},         {"dtype", r.dtype},     {"parameters", r.parameters},
      {"ranks", r.ranks},   {"threads", r.threads}, {"rows", r.rows},       {"sequence", r.sequence},
      {"config", r.config}, {"steps", r.steps}};
  j["memory"] = nlohmann::ordered_json::array();
  for (const PartRecord& p : r.memory) j["memory"].push_back({{"name", p.name}, {"bytes", p.bytes}});
  j["planned_bytes"] = r.planned_bytes;
  j["resident_bytes"] = r.resident_bytes;
  j["process_bytes"] = r.process_bytes;
  if (r.predicted_step_seconds) j["predicted_step_seconds"] = *r.predicted_step_seconds;
  j["no_prediction"] = r.no_prediction;
  if (r.measured_step_seconds) j["measured_step_seconds"] = *r.measured_step_seconds;
  j["traced_steps"] = r.traced_steps;
  j["traced_step_seconds"] = r.traced_step_seconds;
  j["roofs"] = nlohmann::ordered_json::array();
  for (const RoofRecord& roof : r.roofs) j["roofs"].push_back({{"dtype", roof.dtype}, {"flops", roof.flops}});
  if (r.memory_rate) j["memory_rate"] = *r.memory_rate;
  j["ops"] = nlohmann::ordered_json::array();
  for (const OpRecord& op : r.ops) {
    nlohmann::ordered_json o = {{"id", op.id},     {"kind", op.kind},   {"path", op.path},
                                {"role", op.role}, {"work", op.work},   {"communication", op.communication},
                                {"runs", op.runs}, {"flops", op.flops}, {"bytes", op.bytes}};
    if (op.predicted_seconds) o["predicted_seconds"] = *op.predicted_seconds;
    if (op.measured_seconds) o["measured_seconds"] = *op.measured_seconds;
    j["ops"].push_back(std::move(o));
  }
  return j;
}

Result<RunRecord> parse_run_record(const std::string& text, const std::string& what) {
  LIGNUM_ASSIGN_OR_RETURN(const json j, parse_json(text, what));
  if (!j.is_object()) return user_error("{}: not a run's record (an object)", what);
  RunRecord r;
  std::string error;
  Fields f(j, what, &error);
  f.get("name", r.name);
  f.get("commit", r.commit);
  f.get("started", r.started);
  f.get("machine", r.machine);
  f.get("mesh", r.mesh);
  f.get("isa", r.isa);
  f.get("dtype", r.dtype);
  f.get("parameters", r.parameters);
  f.get("ranks", r.ranks);
  f.get("threads", r.threads);
  f.get("rows", r.rows);
  f.get("sequence", r.sequence);
  f.get("config", r.config);
  f.get("steps", r.steps);
  f.list("memory", r.memory, [](Fields& g, PartRecord& p) {
    g.get("name", p.name);
    g.get("bytes", p.bytes);
  });
  f.get("planned_bytes", r.planned_bytes);
  f.get("resident_bytes", r.resident_bytes);
  f.get("process_bytes", r.process_bytes);
  f.get("predicted_step_seconds", r.predicted_step_seconds);
  f.get("no_prediction", r.no_prediction);
  f.get("measured_step_seconds", r.measured_step_seconds);
  f.get("traced_steps", r.traced_steps);
  f.get("traced_step_seconds", r.traced_step_seconds);
  f.list("roofs", r.roofs, [](Fields& g, RoofRecord& roof) {
    g.get("dtype", roof.dtype);
    g.get("flops", roof.flops);
  });
  f.get("memory_rate", r.memory_rate);
  f.list("ops", r.ops, [](Fields& g, OpRecord& op) {
    g.get("id", op.id);
    g.get("kind", op.kind);
    g.get("path", op.path);
    g.get("role", op.role);
    g.get("work", op.work);
    g.get("communication", op.communication);
    g.get("runs", op.runs);
    g.get("flops", op.flops);
    g.get("bytes", op.bytes);
    g.get("predicted_seconds", op.predicted_seconds);
    g.get("measured_seconds", op.measured_seconds);
  });
  if (!error.empty()) return user_error("{}; it was written by another version of lignum, or changed", error);
  return r;
}

}  // namespace lignum::report
