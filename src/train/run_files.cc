#include "train/run_files.h"

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "hw/cpu_spec_builder.h"

namespace lignum::train {

report::RunRecord start_record(const Run& run, const plan::Price* price, const std::string& no_prediction) {
  const Setup& s = run.setup;
  const hw::CpuMachine machine = hw::this_machine(std::string(kernels::isa_name(s.kernels.choice.isa)), "");
  report::RunRecord r;
  r.name = run.folder.substr(run.folder.rfind('/') + 1);
  r.commit = run.options.commit;
  r.started = machine.date;
  r.machine = fmt::format("{} ({} core{})", machine.cpu, machine.cores, machine.cores == 1 ? "" : "s");
  r.mesh = mesh_text(s.step.mesh.axes);
  r.isa = machine.isa;
  r.dtype = dtype_name(s.step.shape.dtype);
  r.parameters = s.model.parameters();
  r.ranks = s.ranks;
  r.threads = s.threads;
  r.rows = s.batch.global_rows();
  r.sequence = s.batch.seq;
  r.config = run.config.to_yaml();
  r.steps = run.config.integer("steps");
  for (const passes::MemoryPart& p : run.program.memory.parts) r.memory.push_back({p.name, p.bytes});
  r.planned_bytes = run.program.memory.arena_bytes;
  if (price != nullptr) {
    r.predicted_step_seconds = price->step_seconds;
  } else {
    r.no_prediction = no_prediction;
  }
  if (const hw::Spec* spec = run.options.spec; spec != nullptr) {
    for (const DType dtype : {DType::f32, DType::bf16})
      if (const Result<double> peak = spec->peak_matmul_flops(dtype); peak.ok())
        r.roofs.push_back({std::string(dtype_name(dtype)), *peak});
    if (const Result<double> rate = spec->memory_bandwidth(); rate.ok()) r.memory_rate = *rate;
  }
  return r;
}

void add_measured(const TrainSummary& summary, const Profile& profile, const plan::Price* price,
                  report::RunRecord& record) {
  record.resident_bytes = summary.resident_bytes;
  if (summary.last) record.process_bytes = summary.last->process_bytes;
  if (summary.median_step_seconds > 0) record.measured_step_seconds = summary.median_step_seconds;
  record.traced_steps = profile.steps();
  record.traced_step_seconds = profile.step_seconds();
  record.ops = profile.ops(price);
}

Status write_record(const std::string& folder, const report::RunRecord& record) {
  return write_file_atomic(join_path(folder, "run.json"), report::to_json(record).dump(1) + "\n");
}

}  // namespace lignum::train
