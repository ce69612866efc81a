#include "train/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json.h"
#include "config/hf_fields.h"
#include "models/files.h"
#include "tokenizer/tokenizer.h"
#include "train/crc32c.h"

namespace lignum::train {
namespace {

using nlohmann::json;

constexpr int kFormat = 1;
constexpr std::string_view kUnfinished = ".tmp";
constexpr const char* kConfig = "config.json";
constexpr const char* kModel = "model.safetensors";
constexpr const char* kOptimizer = "optimizer.safetensors";
constexpr const char* kState = "state.json";
constexpr const char* kManifest = "manifest.json";
// No run reads as many; what follows from it stays in 64 bits.
constexpr int64_t kMostRows = int64_t{1} << 60;

std::string checkpoints_folder(const std::string& run) { return join_path(run, "checkpoints"); }

struct FileSum {
  int64_t size = 0;
  uint32_t crc = 0;
};
Result<FileSum> sum_of(const std::string& path) {
  LIGNUM_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  return FileSum{static_cast<int64_t>(file.bytes().size()), crc32c(file.bytes())};
}

json state_to_json(const CheckpointState& s) {
  json mesh = json::array();
  for (const passes::MeshAxis& axis : s.mesh) mesh.push_back({{"name", axis.name}, {"size", axis.size}});
  return {{"format", kFormat},
          {"step", s.step},
          {"rows_consumed", s.rows_consumed},
          {"data", s.data},
          {"isa", s.isa},
          {"bf16_dot", s.bf16_dot},
          {"mesh", mesh},
          {"policy", to_json(s.policy)},
          {"init_weights_seed", s.init_weights_seed},
          {"data_shuffle_seed", s.data_shuffle_seed},
          {"config", s.config}};
}

Result<CheckpointState> state_from_json(const json& j, const std::string& path) {
  if (!j.is_object()) return user_error("{} is no JSON object", path);
  config::Fields f(j, path);
  const int64_t format = f.integer("format", {});
  LIGNUM_RETURN_IF_ERROR(f.status());
  if (format != kFormat) return user_error("{}: format {}, this program reads {}", path, format, kFormat);
  CheckpointState s;
  s.step = f.integer("step", {});
  s.rows_consumed = f.integer("rows_consumed", {});
  s.data = f.text("data", {});
  s.isa = f.text("isa", {});
  s.bf16_dot = f.text("bf16_dot", "fma");  // there was no other way once, nor a word of it
  for (const json& axis : f.objects("mesh")) {
    config::Fields of_axis(axis, path + ": mesh");
    s.mesh.push_back({of_axis.text("name", {}), of_axis.integer("size", {})});
    f.fail(of_axis.status());
  }
  s.init_weights_seed = f.integer("init_weights_seed", {});
  s.data_shuffle_seed = f.integer("data_shuffle_seed", {});
  s.config = f.text("config", {});
  LIGNUM_RETURN_IF_ERROR(f.status());
  LIGNUM_ASSIGN_OR_RETURN(s.policy, policy_state_from(j.value("policy", json::object()), path + ": policy"));
  if (s.step < 0) return user_error("{}: step {} must be at least 0", path, s.step);
  if (s.rows_consumed < 0 || s.rows_consumed > kMostRows)
    return user_error("{}: rows_consumed {} must be in 0..{}", path, s.rows_consumed, kMostRows);
  if (s.policy.skipped_steps < 0 || s.policy.skipped_steps > s.step)
    return user_error("{}: {} of {} steps were skipped", path, s.policy.skipped_steps, s.step);
  for (const passes::MeshAxis& axis : s.mesh)
    if (axis.size < 1) return user_error("{}: mesh axis {} of size {}", path, axis.name, axis.size);
  return s;
}

Result<SafetensorsLayout> model_layout(const config::ModelConfig& model) {
  return SafetensorsLayout::plan(models::file_tensors(model), {{"format", "pt"}});
}

// "adam_m:" in the graph is "adam_m." in the file.
std::string file_prefix(const passes::Moment& m) {
  return std::string(m.prefix.substr(0, m.prefix.size() - 1)) + ".";
}

Result<SafetensorsLayout> optimizer_layout(const RankState& rank) {
  std::vector<TensorPlan> all;
  for (const passes::Moment& m : rank.moments)
    for (TensorPlan t : models::file_tensors(rank.model)) {
      t.name = file_prefix(m) + t.name;
      t.dtype = m.dtype;
      all.push_back(std::move(t));
    }
  return SafetensorsLayout::plan(all);
}

// The shard of a parameter, or of one of its moments.
exec::ParamView shard(const RankState& rank, std::string_view moment, const models::Parameter& p) {
  return {rank.executor, std::string(moment) + p.pattern};
}

Status write_tensors(const std::string& folder, const RankState& rank) {
  LIGNUM_ASSIGN_OR_RETURN(SafetensorsLayout model, model_layout(rank.model));
  LIGNUM_ASSIGN_OR_RETURN(SafetensorsLayout optimizer, optimizer_layout(rank));
  const auto open = rank.ranks.is_first() ? SafetensorsWriter::create : SafetensorsWriter::attach;
  const auto parameters = models::parameters(rank.model);
  if (!rank.ranks.is_first()) LIGNUM_RETURN_IF_ERROR(rank.ranks.barrier());  // the files are there
  LIGNUM_ASSIGN_OR_RETURN(SafetensorsWriter model_file, open(std::move(model), join_path(folder, kModel)));
  LIGNUM_ASSIGN_OR_RETURN(SafetensorsWriter optimizer_file,
                          open(std::move(optimizer), join_path(folder, kOptimizer)));
  if (rank.ranks.is_first()) LIGNUM_RETURN_IF_ERROR(rank.ranks.barrier());
  const auto write = [&](const SafetensorsWriter& file, const std::string& prefix, const passes::Moment& m) {
    return write_parameters(rank.model, rank.shards, file, prefix, m.dtype, [&](int64_t i) {
      return shard(rank, m.prefix, parameters[static_cast<size_t>(i)]);
    });
  };
  LIGNUM_RETURN_IF_ERROR(write(model_file, "", {"", DType::f32}));
  for (const passes::Moment& m : rank.moments)
    LIGNUM_RETURN_IF_ERROR(write(optimizer_file, file_prefix(m), m));
  if (!rank.ranks.is_first()) {
    LIGNUM_RETURN_IF_ERROR(model_file.sync());
    LIGNUM_RETURN_IF_ERROR(optimizer_file.sync());
  }
  LIGNUM_RETURN_IF_ERROR(rank.ranks.barrier());  // all have written
  if (!rank.ranks.is_first()) return {};
  LIGNUM_RETURN_IF_ERROR(model_file.finish());
  return optimizer_file.finish();
}

Status write_texts(const std::string& folder, const CheckpointState& state,
                   const config::ModelConfig& model) {
  LIGNUM_RETURN_IF_ERROR(write_file_atomic(join_path(folder, kConfig), config::model_to_hf_json(model)));
  LIGNUM_RETURN_IF_ERROR(write_file_atomic(join_path(folder, kState), state_to_json(state).dump(2) + "\n"));
  std::vector<std::string> names = {kConfig, kModel, kOptimizer, kState};
  if (!state.tokenizer.empty()) {
    LIGNUM_RETURN_IF_ERROR(write_file_atomic(join_path(folder, state.tokenizer_file), state.tokenizer));
    names.push_back(state.tokenizer_file);
  }
  json files = json::object();
  for (const std::string& name : names) {
    LIGNUM_ASSIGN_OR_RETURN(const FileSum sum, sum_of(join_path(folder, name)));
    files[name] = {{"bytes", sum.size}, {"crc32c", fmt::format("{:08x}", sum.crc)}};
  }
  const json manifest = {{"format", kFormat}, {"files", files}};
  return write_file_atomic(join_path(folder, kManifest), manifest.dump(2) + "\n");
}

// Into c: the bytes of all files, the manifest's CRC.
Status check_manifest(const std::string& folder, Checkpoint& c) {
  const std::string path = join_path(folder, kManifest);
  LIGNUM_ASSIGN_OR_RETURN(const json manifest, read_json(path));
  const std::string text = manifest.dump();
  c.manifest = crc32c(std::as_bytes(std::span(text)));
  try {
    if (const int format = manifest.at("format"); format != kFormat)
      return user_error("{}: format {}, this program reads {}", path, format, kFormat);
    std::vector<std::string> names = {kConfig, kModel, kOptimizer, kState};
    for (const char* name : {tokenizer::kFileName, tokenizer::kModelFileName})
      if (manifest.at("files").contains(name)) names.emplace_back(name);
    for (const std::string& name : names) {
      const json& want = manifest.at("files").at(name);
      LIGNUM_ASSIGN_OR_RETURN(const FileSum sum, sum_of(join_path(folder, name)));
      if (sum.size != want.at("bytes").get<int64_t>())
        return user_error("{} has {} bytes, {} were written", name, sum.size,
                          want.at("bytes").get<int64_t>());
      const std::string crc = fmt::format("{:08x}", sum.crc);
      if (crc != want.at("crc32c").get<std::string>())
        return user_error("{} has CRC {}, {} was written", name, crc, want.at("crc32c").get<std::string>());
      c.bytes += sum.size;
    }
  } catch (const json::exception& e) {
    return user_error("{}: {}", path, e.what());
  }
  return {};
}

}  // namespace

std::string checkpoint_folder(const std::string& run, int64_t step) {
  return join_path(checkpoints_folder(run), std::to_string(step));
}

Result<std::vector<int64_t>> list_checkpoints(const std::string& run) {
  std::vector<int64_t> steps;
  const std::string folder = checkpoints_folder(run);
  if (!path_exists(folder)) return steps;
  LIGNUM_ASSIGN_OR_RETURN(const std::vector<std::string> names, list_directory(folder));
  for (const std::string& name : names) {
    int64_t step = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
    if (error == std::errc() && end == name.data() + name.size() && step >= 0) steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

Status remove_unfinished(const std::string& run) {
  const std::string folder = checkpoints_folder(run);
  if (!path_exists(folder)) return {};
  LIGNUM_ASSIGN_OR_RETURN(const std::vector<std::string> names, list_directory(folder));
  for (const std::string& name : names)
    if (name.ends_with(kUnfinished)) LIGNUM_RETURN_IF_ERROR(remove_tree(join_path(folder, name)));
  return {};
}

Result<Checkpoint> open_checkpoint(const std::string& folder) {
  Checkpoint c;
  c.folder = folder;
  const auto damaged = [&](const Status& why) {
    return user_error(
        "checkpoint {} is damaged: {}; remove or rename the folder to go on from the one before it", folder,
        why.message());
  };
  if (const Status sums = check_manifest(folder, c); !sums.ok()) return damaged(sums);
  LIGNUM_ASSIGN_OR_RETURN(c.model, config::model_from_folder(folder));
  const std::string path = join_path(folder, kState);
  LIGNUM_ASSIGN_OR_RETURN(const json json_state, read_json(path));
  Result<CheckpointState> state = state_from_json(json_state, path);
  if (!state.ok()) return damaged(state.status());
  c.state = std::move(state).value();
  return c;
}

Status write_checkpoint(const std::string& run, const CheckpointState& state, const RankState& rank) {
  const std::string folder = checkpoint_folder(run, state.step);
  const std::string unfinished = folder + std::string(kUnfinished);
  bool exists = false;
  if (rank.ranks.is_first()) {
    exists = path_exists(folder);
    if (!exists) {
      LIGNUM_RETURN_IF_ERROR(remove_tree(unfinished));
      LIGNUM_RETURN_IF_ERROR(make_directories(unfinished));
    }
  }
  LIGNUM_RETURN_IF_ERROR(rank.ranks.share(exists));
  if (exists) return {};
  LIGNUM_RETURN_IF_ERROR(write_tensors(unfinished, rank).with_context("checkpoint"));
  if (rank.ranks.is_first()) {
    LIGNUM_RETURN_IF_ERROR(write_texts(unfinished, state, rank.model));
    LIGNUM_RETURN_IF_ERROR(sync_directory(unfinished));
    LIGNUM_RETURN_IF_ERROR(rename_durably(unfinished, folder));
  }
  return rank.ranks.barrier();
}

Status read_checkpoint(const Checkpoint& checkpoint, const RankState& rank) {
  LIGNUM_ASSIGN_OR_RETURN(const SafetensorsReader model,
                          SafetensorsReader::open(join_path(checkpoint.folder, kModel)));
  LIGNUM_ASSIGN_OR_RETURN(const SafetensorsReader optimizer,
                          SafetensorsReader::open(join_path(checkpoint.folder, kOptimizer)));
  const auto parameters = models::parameters(rank.model);
  const auto read = [&](const SafetensorsReader& file, const std::string& prefix, const passes::Moment& m) {
    return read_parameters(rank.model, rank.shards, file, prefix, m.dtype, [&](int64_t i) {
      return shard(rank, m.prefix, parameters[static_cast<size_t>(i)]);
    });
  };
  LIGNUM_RETURN_IF_ERROR(read(model, "", {"", DType::f32}));
  for (const passes::Moment& m : rank.moments) {
    LIGNUM_RETURN_IF_ERROR(
        read(optimizer, file_prefix(m), m)
            .with_context("the checkpoint of another optimizer? (opt_type and momentum must stay, or use "
                          "another run_name)"));
  }
  return {};
}

}  // namespace lignum::train
