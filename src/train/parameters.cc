#include "train/parameters.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/rng.h"
#include "models/files.h"
#include "train/crc32c.h"

namespace lignum::train {
namespace {

// Calls fn(layer, index in the file's tensor, local index, count) for each run of parameter p that the rank
// holds. Where the parameter is some columns of that tensor, its rows are apart in the file.
void for_each_file_run(const models::Parameter& p, const passes::Sharding& sharding, const RankShards& shards,
                       FunctionRef<void(int64_t layer, int64_t index, int64_t local, int64_t count)> fn) {
  const int64_t layers = p.stacked ? p.dims[0] : 1;
  int64_t whole = 1;
  for (const int64_t d : p.dims) whole *= d;
  const int64_t each = whole / layers, columns = p.dims.back();
  for_each_run(p.dims, sharding, shards.mesh, shards.rank, [&](int64_t local, int64_t global, int64_t count) {
    // A run may go over several layers: their tensors are apart in the file.
    while (count > 0) {
      const int64_t layer = global / each, index = global % each;
      int64_t n = std::min(count, each - index), in_file = index;
      if (p.file_columns > 0) {
        n = std::min(n, columns - index % columns);
        in_file = index / columns * p.file_columns + p.first_column + index % columns;
      }
      fn(layer, in_file, local, n);
      local += n;
      global += n;
      count -= n;
    }
  });
}

// Elements of a tensor of a ModelFiles or a SafetensorsReader, as `dtype`; bf16 is rounded once from the
// file's type if that is f32 or bf16.
template <class Files>
Status read_elements(const Files& files, const std::string& name, DType dtype, std::byte* to, int64_t begin,
                     int64_t count) {
  if (dtype == DType::f32) return files.read_as_f32(name, reinterpret_cast<float*>(to), begin, count);
  bf16* out = reinterpret_cast<bf16*>(to);
  constexpr int64_t kPiece = 16384;
  std::vector<float> piece(static_cast<size_t>(std::min(kPiece, count)));
  for (int64_t at = 0; at < count; at += kPiece) {
    const int64_t n = std::min(kPiece, count - at);
    LIGNUM_RETURN_IF_ERROR(files.read_as_f32(name, piece.data(), begin + at, n));
    for (int64_t k = 0; k < n; ++k) out[at + k] = bf16(piece[static_cast<size_t>(k)]);
  }
  return {};
}

}  // namespace

Status init_parameters(const config::ModelConfig& model, const RankShards& shards, exec::Executor& executor,
                       uint64_t seed) {
  const auto parameters = models::parameters(model);
  Status status;
  for (size_t i = 0; i < parameters.size() && status.ok(); ++i) {
    const models::Parameter& p = parameters[i];
    exec::ParamView view(executor, static_cast<int64_t>(i));
    for_each_file_run(
        p, shards.program.params[i], shards, [&](int64_t layer, int64_t index, int64_t local, int64_t count) {
          const Random random(seed, p.file_name(layer));
          auto* data = reinterpret_cast<float*>(view.write(local * static_cast<int64_t>(sizeof(float))));
          for (int64_t k = 0; k < count; ++k) {
            switch (p.init) {
              case models::Parameter::Init::normal:
                data[k] = static_cast<float>(model.initializer_range *
                                             random.normal(static_cast<uint64_t>(index + k)));
                break;
              case models::Parameter::Init::ones:
                data[k] = 1;
                break;
              case models::Parameter::Init::zeros:
                data[k] = 0;
                break;
            }
          }
        });
    status = view.finish();
  }
  return status;
}

Result<uint32_t> weights_fingerprint(const ModelFiles& files) {
  uint32_t crc = 0;
  for (const TensorInfo* tensor : files.tensors()) {
    LIGNUM_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, files.data(tensor->name));
    crc = crc32c(bytes, crc32c(std::as_bytes(std::span(tensor->name)), crc));
  }
  return crc;
}

Status load_parameters(const config::ModelConfig& model, const ModelFiles& files, const RankShards& shards,
                       exec::Executor& executor) {
  LIGNUM_RETURN_IF_ERROR(models::check_tensors(model, files));
  const models::StoredNames names(model, files);
  const auto parameters = models::parameters(model);
  Status status;
  for (size_t i = 0; i < parameters.size() && status.ok(); ++i) {
    const models::Parameter& p = parameters[i];
    const ir::Graph& graph = *shards.program.local;
    const DType dtype = graph.type(graph.param_value(static_cast<int64_t>(i))).dtype;
    exec::ParamView view(executor, static_cast<int64_t>(i));
    for_each_file_run(p, shards.program.params[i], shards,
                      [&](int64_t layer, int64_t index, int64_t local, int64_t count) {
                        if (!status.ok()) return;
                        status = read_elements(files, names.of(p.file_name(layer)), dtype,
                                               view.write(local * dtype_size(dtype)), index, count);
                      });
    if (status.ok()) status = view.finish();
  }
  return status;
}

Status write_parameters(const config::ModelConfig& model, const RankShards& shards,
                        const SafetensorsWriter& writer, const std::string& prefix, DType dtype,
                        FunctionRef<exec::ParamView(int64_t)> from) {
  const int64_t size = dtype_size(dtype);
  const auto parameters = models::parameters(model);
  Status status;
  for (size_t i = 0; i < parameters.size() && status.ok(); ++i) {
    const passes::Sharding& sharding = shards.program.params[i];
    if (!writes_shard(sharding, shards.mesh, shards.rank)) continue;
    exec::ParamView view = from(static_cast<int64_t>(i));
    for_each_file_run(parameters[i], sharding, shards,
                      [&](int64_t layer, int64_t index, int64_t local, int64_t count) {
                        if (!status.ok()) return;
                        const std::span bytes(view.read(local * size), static_cast<size_t>(count * size));
                        status = writer.write(prefix + parameters[i].file_name(layer),
                                              static_cast<uint64_t>(index * size), bytes);
                      });
    if (status.ok()) status = view.finish();
  }
  return status;
}

Status read_parameters(const config::ModelConfig& model, const RankShards& shards,
                       const SafetensorsReader& reader, const std::string& prefix, DType dtype,
                       FunctionRef<exec::ParamView(int64_t)> to) {
  for (const TensorPlan& t : models::file_tensors(model)) {
    LIGNUM_ASSIGN_OR_RETURN(const TensorInfo* info, reader.require(prefix + t.name));
    if (info->shape != t.shape) {
      return user_error("{}: {} has shape [{}], the model's is [{}]", reader.path(), info->name,
                        fmt::join(info->shape, ", "), fmt::join(t.shape, ", "));
    }
  }
  const auto parameters = models::parameters(model);
  Status status;
  for (size_t i = 0; i < parameters.size() && status.ok(); ++i) {
    exec::ParamView view = to(static_cast<int64_t>(i));
    for_each_file_run(parameters[i], shards.program.params[i], shards,
                      [&](int64_t layer, int64_t index, int64_t local, int64_t count) {
                        if (!status.ok()) return;
                        status = read_elements(reader, prefix + parameters[i].file_name(layer), dtype,
                                               view.write(local * dtype_size(dtype)), index, count);
                      });
    if (status.ok()) status = view.finish();
  }
  return status;
}

WholeTensors zero_tensors(const config::ModelConfig& model) {
  WholeTensors out;
  for (const models::Parameter& p : models::parameters(model)) {
    int64_t count = 1;
    for (const int64_t d : p.dims) count *= d;
    out.emplace_back(static_cast<size_t>(count));
  }
  return out;
}

void gather_gradients(const config::ModelConfig& model, const RankShards& shards,
                      const exec::Executor& executor, WholeTensors& out) {
  const auto output = [&](const std::string& name) { return executor.output(name); };
  gather_gradients(model, shards, output, out);
}

void gather_gradients(const config::ModelConfig& model, const RankShards& shards,
                      FunctionRef<const std::byte*(const std::string& name)> output, WholeTensors& out) {
  const std::vector<models::Parameter> parameters = models::parameters(model);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const passes::Sharding& sharding = shards.program.params[i];
    if (!writes_shard(sharding, shards.mesh, shards.rank)) continue;
    const auto* from = reinterpret_cast<const float*>(output("grad:" + parameters[i].pattern));
    for_each_run(parameters[i].dims, sharding, shards.mesh, shards.rank,
                 [&](int64_t local, int64_t global, int64_t count) {
                   std::copy_n(from + local, count, out[i].begin() + global);
                 });
  }
}

}  // namespace lignum::train
