// Fills and reads the parameters of a step, a rank's shards at a time.
#pragma once

#include "base/safetensors.h"
#include "exec/param_view.h"
#include "models/model.h"
#include "plan/program.h"
#include "train/shards.h"

namespace lignum::train {

// Which shards a rank holds: the step's parameters come first among its params, in the order of
// models::parameters.
struct RankShards {
  const plan::Program& program;
  const passes::Mesh& mesh;
  int64_t rank = 0;
};

// Normal values with the model's initializer_range (norm scales 1, biases 0), by (seed, file name, index):
// the same whatever the mesh, the number of layers loaded or the order.
Status init_parameters(const config::ModelConfig& model, const RankShards& shards, exec::Executor& executor,
                       uint64_t seed);

// From a Hugging Face folder's tensors, in the type that the step's params have (f32, or bf16: a generating
// step's). A missing tensor, another shape, or a tensor that the model has no use for (a feature that would
// be dropped) is an error that names it. With tied embeddings an lm_head.weight must equal the table.
Status load_parameters(const config::ModelConfig& model, const ModelFiles& files, const RankShards& shards,
                       exec::Executor& executor);

// CRC-32C of all names and bytes of a folder's tensors, which it reads: two folders of one fingerprint are
// the same weights.
Result<uint32_t> weights_fingerprint(const ModelFiles& files);

// Writes this rank's part of every parameter, or of what an optimizer keeps of it (of those ranks that hold
// the same shard, one writes). `from`: the shard of parameter i, in the file's dtype.
Status write_parameters(const config::ModelConfig& model, const RankShards& shards,
                        const SafetensorsWriter& writer, const std::string& prefix, DType dtype,
                        FunctionRef<exec::ParamView(int64_t parameter)> from);

// The inverse: fills this rank's shard of every parameter, in `dtype`, from tensors of the names and shapes
// that write_parameters gives them, whatever their dtype. `to`: the shard of parameter i, padding zero
// already.
Status read_parameters(const config::ModelConfig& model, const RankShards& shards,
                       const SafetensorsReader& reader, const std::string& prefix, DType dtype,
                       FunctionRef<exec::ParamView(int64_t parameter)> to);

// Whole tensors, in the order of models::parameters.
using WholeTensors = std::vector<std::vector<float>>;
WholeTensors zero_tensors(const config::ModelConfig& model);
// This rank's part of the gradients of a step with outputs=grads (of those ranks that hold the same shard,
// one writes): ranks may write into one `out` at once. `output`: the bytes of an output by its name.
void gather_gradients(const config::ModelConfig& model, const RankShards& shards,
                      FunctionRef<const std::byte*(const std::string& name)> output, WholeTensors& out);
void gather_gradients(const config::ModelConfig& model, const RankShards& shards,
                      const exec::Executor& executor, WholeTensors& out);

}  // namespace lignum::train
