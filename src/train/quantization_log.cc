#include "train/quantization_log.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/file.h"

namespace lignum::train {
namespace {

const float* floats(const exec::Executor& executor, const std::string& output) {
  return reinterpret_cast<const float*>(executor.output(output));
}

// A NaN is worse than any number.
void raise_to(double& worst, double value) {
  if (!(value <= worst)) worst = std::isnan(worst) ? worst : value;
}

}  // namespace

std::vector<OperandLosses> quantization_losses(const plan::Program& program, int64_t accumulation,
                                               const exec::Executor& executor) {
  const auto micro_steps = static_cast<double>(accumulation);
  std::vector<OperandLosses> out;
  for (const passes::WatchedOperand& o : program.watched) {
    if (o.error.empty()) continue;
    OperandLosses losses{o.operand, o.dots, o.format, {}};
    const float *error = floats(executor, o.error), *scale = floats(executor, o.scale);
    const double percent = 100 / std::max(1.0, o.elements * micro_steps);
    for (int64_t row = 0; row < o.rows; ++row, error += 4) {
      OperandLoss l;
      if (o.first_layer >= 0) l.layer = o.first_layer + row * o.stride;
      l.saturation = static_cast<double>(error[0]) * percent;
      l.underflow = static_cast<double>(error[1]) * percent;
      l.scale = static_cast<double>(scale[row]) / micro_steps;
      const auto squared_error = static_cast<double>(error[2]), squares = static_cast<double>(error[3]);
      l.relative_error = squares == 0 ? 0 : std::sqrt(squared_error / squares);
      losses.layers.push_back(l);
    }
    out.push_back(std::move(losses));
  }
  return out;
}

WorstLoss worst_of(const std::vector<OperandLosses>& losses) {
  WorstLoss worst;
  for (const OperandLosses& o : losses) {
    for (const OperandLoss& l : o.layers) {
      raise_to(worst.saturation, l.saturation);
      raise_to(worst.underflow, l.underflow);
      raise_to(worst.relative_error, l.relative_error);
    }
  }
  return worst;
}

RangeRecorder::RangeRecorder(const plan::Program& program, int64_t accumulation, int64_t layers)
    : program_(program), micro_steps_(static_cast<double>(accumulation)), layers_(layers) {
  for (const passes::WatchedOperand& o : program.watched) {
    const std::vector<double> zeros(static_cast<size_t>(o.rows));
    rows_.push_back({zeros, zeros});
  }
}

void RangeRecorder::add(const exec::Executor& executor) {
  ++steps_;
  for (size_t i = 0; i < rows_.size(); ++i) {
    const float* range = floats(executor, program_.watched[i].range);
    for (size_t row = 0; row < rows_[i].sum.size(); ++row) {
      const double reached = static_cast<double>(range[row]) / micro_steps_;
      rows_[i].sum[row] += reached;
      rows_[i].largest[row] = std::max(rows_[i].largest[row], reached);
    }
  }
}

Status RangeRecorder::write(const std::string& path) const {
  if (steps_ == 0) return {};
  nlohmann::ordered_json file = {{"steps", steps_}};
  nlohmann::ordered_json& stats = file["quant_stats"] = nlohmann::ordered_json::object();
  for (size_t i = 0; i < rows_.size(); ++i) {
    const passes::WatchedOperand& o = program_.watched[i];
    if (o.operand == "residual") continue;  // what `act` is, in other tiles
    const bool forward = o.operand == "weight" || o.operand == "act";
    for (const std::string& dot : o.dots) {
      nlohmann::ordered_json& entry = stats[dot][forward ? o.operand : "bwd"];
      // A layer in which the dot is not quantised has none.
      const auto count = o.first_layer < 0 ? 1 : static_cast<size_t>(layers_);
      for (const char* list : {"mean", "max"})
        if (!entry.contains(list)) entry[list] = std::vector<nlohmann::ordered_json>(count);
      for (size_t row = 0; row < rows_[i].sum.size(); ++row) {
        const int64_t layer = o.first_layer < 0 ? 0 : o.first_layer + static_cast<int64_t>(row) * o.stride;
        entry["mean"][static_cast<size_t>(layer)] = rows_[i].sum[row] / static_cast<double>(steps_);
        entry["max"][static_cast<size_t>(layer)] = rows_[i].largest[row];
      }
    }
  }
  return write_file_atomic(path, file.dump(1) + "\n").with_context("save_quant_stats_path");
}

nlohmann::ordered_json to_json(int64_t step, const std::vector<OperandLosses>& losses) {
  nlohmann::ordered_json operands = nlohmann::ordered_json::array();
  for (const OperandLosses& o : losses) {
    nlohmann::ordered_json entry = {
        {"dots", o.dots}, {"operand", o.operand}, {"format", dtype_name(o.format)}};
    const auto list = [&](const char* key, double OperandLoss::* number) {
      for (const OperandLoss& l : o.layers) entry[key].push_back(l.*number);
    };
    for (const OperandLoss& l : o.layers)
      if (l.layer >= 0) entry["layers"].push_back(l.layer);
    list("saturation_percent", &OperandLoss::saturation);
    list("underflow_percent", &OperandLoss::underflow);
    list("scale", &OperandLoss::scale);
    list("relative_error", &OperandLoss::relative_error);
    operands.push_back(std::move(entry));
  }
  return {{"step", step}, {"operands", std::move(operands)}};
}

}  // namespace lignum::train
