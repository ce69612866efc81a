#include "train/metrics.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/text.h"
#include "plan/report.h"

namespace lignum::train {

nlohmann::ordered_json to_json(const StepMetrics& m) {
  nlohmann::ordered_json j = {{"step", m.step}, {"loss", m.loss}};  // a number that is not finite is null
  if (m.z_loss) j["z_loss"] = *m.z_loss;
  j["grad_norm"] = m.grad_norm;
  j["learning_rate"] = m.learning_rate;
  if (!m.skipped.empty()) j["skipped"] = m.skipped;
  j["tokens"] = m.tokens;
  j["tokens_per_s"] = m.tokens_per_s;
  j["tflops"] = m.tflops;
  if (m.mfu) j["mfu"] = *m.mfu;
  if (m.hfu) j["hfu"] = *m.hfu;
  if (const auto& q = m.quantization) {
    j["quantization"] = {{"saturation_percent", q->saturation},
                         {"underflow_percent", q->underflow},
                         {"relative_error", q->relative_error}};
  }
  j["memory_bytes"] = m.memory_bytes;
  j["process_bytes"] = m.process_bytes;
  return j;
}

std::string to_line(const StepMetrics& m) {
  std::string line = fmt::format("step {:>6}  loss {:.4f}", m.step, m.loss);
  if (m.z_loss) line += fmt::format("  z_loss {:.2e}", *m.z_loss);
  line += fmt::format("  grad_norm {:.3f}  lr {:.2e}  {:.0f} tokens/s  {:.1f} ms  {:.3f} TFLOP/s",
                      m.grad_norm, m.learning_rate, m.tokens_per_s, 1e3 * m.seconds, m.tflops);
  if (m.mfu) line += fmt::format("  MFU {:.1f} %", 100 * *m.mfu);
  if (m.hfu) line += fmt::format("  HFU {:.1f} %", 100 * *m.hfu);
  line += fmt::format("  arena {}  process {}", plan::bytes_text(static_cast<double>(m.memory_bytes)),
                      plan::bytes_text(static_cast<double>(m.process_bytes)));
  if (m.eta_seconds) line += "  ETA " + duration_text(*m.eta_seconds);
  return line;
}

Result<int64_t> process_resident_bytes() {
  std::ifstream statm("/proc/self/statm");  // in pages: size, resident, ... (proc(5))
  int64_t size = 0, resident = 0;
  if (!(statm >> size >> resident)) return internal_error("/proc/self/statm cannot be read");
  return resident * ::sysconf(_SC_PAGESIZE);
}

nlohmann::ordered_json to_json(const EvalMetrics& m) {
  nlohmann::ordered_json j = {{"step", m.step}, {"eval_loss", m.loss}};
  if (m.loss_per_byte) j["eval_loss_per_byte"] = *m.loss_per_byte;
  j["eval_tokens"] = m.tokens;
  j["eval_seconds"] = m.seconds;
  for (const EvalMetrics::Set& set : m.sets) {
    nlohmann::ordered_json& own = j["eval_sets"][set.name] = {{"loss", set.loss}};
    if (set.loss_per_byte) own["loss_per_byte"] = *set.loss_per_byte;
    own["tokens"] = set.tokens;
  }
  return j;
}

std::string to_line(const EvalMetrics& m) {
  const std::string byte = m.loss_per_byte ? fmt::format(" a token, {:.4f} a byte", *m.loss_per_byte) : "";
  std::string line = fmt::format("eval {:>6}  loss {:.4f}{}  {} tokens  {:.1f} s", m.step, m.loss, byte,
                                 m.tokens, m.seconds);
  for (const EvalMetrics::Set& set : m.sets)
    line += fmt::format("  {} {:.4f}", set.name.empty() ? "others" : set.name, set.loss);
  return line;
}

Result<MetricsFile> MetricsFile::open(const std::string& path, int64_t first_step) {
  if (path_exists(path)) {
    constexpr uint64_t kMaxBytes = uint64_t{4} << 30;
    LIGNUM_ASSIGN_OR_RETURN(const std::string old, read_text(path, kMaxBytes));
    std::string kept;
    size_t begin = 0;
    while (begin < old.size()) {
      const size_t end = old.find('\n', begin);
      if (end == std::string::npos) break;  // the last line of a killed run
      const std::string_view line(old.data() + begin, end - begin);
      const auto record = nlohmann::json::parse(line, nullptr, false);
      // An evaluation after n updates belongs to the steps before step n.
      const bool is_eval = record.is_object() && record.contains("eval_loss");
      const int64_t step = record.is_object() && record.contains("step") && record["step"].is_number_integer()
                               ? record["step"].get<int64_t>() - (is_eval ? 1 : 0)
                               : first_step;
      if (step < first_step) kept.append(line).push_back('\n');
      begin = end + 1;
    }
    if (kept.size() != old.size()) LIGNUM_RETURN_IF_ERROR(write_file_atomic(path, kept));
  }
  File file(std::fopen(path.c_str(), "ae"));
  if (!file) return user_error("{}: cannot open for appending: {}", path, std::strerror(errno));
  return MetricsFile(path, std::move(file));
}

Status MetricsFile::append(const nlohmann::ordered_json& record) {
  const std::string line = record.dump() + "\n";
  if (std::fwrite(line.data(), 1, line.size(), file_.get()) != line.size() || std::fflush(file_.get()) != 0)
    return user_error("{}: cannot write: {}", path_, std::strerror(errno));
  return {};
}

}  // namespace lignum::train
