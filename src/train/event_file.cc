#include "train/event_file.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <vector>

#include "base/file.h"
#include "base/wire.h"
#include "train/crc32c.h"

namespace lignum::train {
namespace {

// event.proto and summary.proto.
namespace event {
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
}
namespace session_log {
constexpr int kStatus = 1, kStart = 1;
}
namespace summary {
constexpr int kValue = 1, kTag = 1, kSimpleValue = 2;
}

void append(std::string& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(std::as_bytes(std::span(bytes)));
  return std::rotr(crc, 15) + 0xa282ead8U;
}

// An Event with its time and step.
wire::Writer event_at(int64_t step) {
  wire::Writer out;
  out.fixed64(event::kWallTime,
              std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
  if (step != 0) out.integer(event::kStep, step);
  return out;
}

}  // namespace

std::string event_record(std::string_view message) {
  std::string out;
  out.reserve(message.size() + 16);
  append(out, message.size(), 8);
  append(out, masked_crc(out), 4);
  out.append(message);
  append(out, masked_crc(message), 4);
  return out;
}

Result<EventFile> EventFile::create(const std::string& folder, const Options& options) {
  LIGNUM_RETURN_IF_ERROR(make_directories(folder));
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::string name =
      fmt::format("events.out.tfevents.{:010}.lignum.{}",
                  std::chrono::duration_cast<std::chrono::seconds>(now).count(), ::getpid());
  // Files are read in the order of their names; two runs of one process may start in the same second.
  std::string path;
  File file;
  for (int i = 0; i < 10000 && !file; ++i) {
    path = join_path(folder, fmt::format("{}.{:04}", name, i));
    file.reset(std::fopen(path.c_str(), "wxe"));
    if (!file && errno != EEXIST) break;
  }
  if (!file) return user_error("{}: cannot be made: {}", path, std::strerror(errno));
  EventFile out(std::move(path), std::move(file), options);
  wire::Writer version = event_at(0);
  version.bytes(event::kFileVersion, "brain.Event:2");
  LIGNUM_RETURN_IF_ERROR(out.write(version.str()));
  wire::Writer log;
  log.integer(session_log::kStatus, session_log::kStart);
  wire::Writer start = event_at(options.first_step);
  start.bytes(event::kSessionLog, log.str());
  LIGNUM_RETURN_IF_ERROR(out.write(start.str()));
  return out;
}

Status EventFile::add(int64_t step, std::span<const Scalar> scalars) {
  wire::Writer values;
  for (const Scalar& s : scalars) {
    wire::Writer value;
    value.bytes(summary::kTag, s.tag);
    value.fixed32(summary::kSimpleValue, static_cast<float>(s.value));
    values.bytes(summary::kValue, value.str());
  }
  wire::Writer message = event_at(step);
  message.bytes(event::kSummary, values.str());
  return write(message.str());
}

Status EventFile::add(const StepMetrics& m) {
  const auto ranks = static_cast<double>(options_.ranks), tokens = static_cast<double>(m.tokens);
  std::vector<Scalar> scalars = {
      {"learning/loss", m.loss},
      // MaxText's grad_norm is that of the gradient as it is applied.
      {"learning/grad_norm", options_.clip > 0 ? std::min(m.grad_norm, options_.clip) : m.grad_norm},
      {"learning/raw_grad_norm", m.grad_norm},
      {"learning/current_learning_rate", m.learning_rate},
      {"learning/total_weights", tokens},
      {"perf/step_time_seconds", m.seconds},
      {"perf/per_device_tflops", m.tflops * m.seconds},
      {"perf/per_device_tflops_per_sec", m.tflops},
      {"perf/per_device_tokens", tokens / ranks},
      {"perf/per_device_tokens_per_sec", m.tokens_per_s / ranks},
      {"memory/arena_bytes", static_cast<double>(m.memory_bytes)},
      {"memory/process_bytes", static_cast<double>(m.process_bytes)}};
  if (m.z_loss) scalars.push_back({"learning/z_loss", *m.z_loss});
  if (m.quantization) {
    scalars.push_back({"quantization/saturation_percent", m.quantization->saturation});
    scalars.push_back({"quantization/underflow_percent", m.quantization->underflow});
    scalars.push_back({"quantization/relative_error", m.quantization->relative_error});
  }
  if (m.mfu) scalars.push_back({"perf/mfu", *m.mfu});
  if (m.hfu) scalars.push_back({"perf/hfu", *m.hfu});
  return add(m.step, scalars);
}

Status EventFile::add(const EvalMetrics& m) {
  const auto tokens = static_cast<double>(m.tokens);
  std::vector<Scalar> scalars = {
      {"eval/avg_loss", m.loss}, {"eval/total_loss", m.loss * tokens}, {"eval/total_weights", tokens}};
  std::vector<std::string> names;
  names.reserve(m.sets.size());
  for (const EvalMetrics::Set& set : m.sets)
    scalars.push_back({names.emplace_back(fmt::format("eval/avg_loss/{}", set.name)), set.loss});
  return add(std::max<int64_t>(0, m.step - 1), scalars);
}

Status EventFile::write(std::string_view message) {
  const std::string record = event_record(message);
  if (std::fwrite(record.data(), 1, record.size(), file_.get()) != record.size() ||
      std::fflush(file_.get()) != 0)
    return user_error("{}: cannot write: {}", path_, std::strerror(errno));
  return {};
}

}  // namespace lignum::train
