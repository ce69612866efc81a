#include "train/verify_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json.h"
#include "exec/thread_pool.h"
#include "train/parameters.h"

namespace lignum::train {
namespace {

struct Tensor {
  std::vector<int64_t> shape;
  std::vector<float> data;
};

Result<Tensor> read(const SafetensorsReader& file, const std::string& name) {
  LIGNUM_ASSIGN_OR_RETURN(const TensorInfo* info, file.require(name));
  Tensor t;
  t.shape = info->shape;
  int64_t n = 1;
  for (const int64_t d : t.shape) n *= d;
  t.data.resize(static_cast<size_t>(n));
  LIGNUM_RETURN_IF_ERROR(file.read_as_f32(name, t.data.data(), 0, n));
  return t;
}

Result<std::vector<int32_t>> read_integers(const SafetensorsReader& file, const std::string& name,
                                           std::vector<int64_t>& shape) {
  LIGNUM_ASSIGN_OR_RETURN(const TensorInfo* info, file.require(name));
  const std::span<const std::byte> bytes = file.data(*info);
  if (info->dtype != DType::i64 && info->dtype != DType::i32)
    return user_error("{}: {} is of no integer type", file.path(), name);
  if (info->shape.size() != 2)
    return user_error("{}: {} has {} dims, not 2", file.path(), name, info->shape.size());
  shape = info->shape;
  std::vector<int32_t> out(static_cast<size_t>(shape[0] * shape[1]));
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<int32_t>(load_as_double(*info->dtype, bytes.data(), static_cast<int64_t>(i)));
  return out;
}

struct Norms {
  double error = 0, norm = 0;
};
Norms norms(const float* got, const float* want, size_t n) {
  double e = 0, w = 0;
  for (size_t i = 0; i < n; ++i) {
    const double d = static_cast<double>(got[i]) - static_cast<double>(want[i]);
    e += d * d;
    w += static_cast<double>(want[i]) * static_cast<double>(want[i]);
  }
  return {std::sqrt(e), std::sqrt(w)};
}

float scalar(const std::byte* p) {
  float v = 0;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

// The program of one rank and what runs it.
struct Runtime {
  plan::Program program;
  std::unique_ptr<exec::ThreadPool> pool;
  std::unique_ptr<exec::Executor> executor;
};
Status start(const plan::ProgramOptions& program_options, const VerifyOptions& options, Runtime& r) {
  LIGNUM_ASSIGN_OR_RETURN(r.program, plan::make_program(program_options));
  LIGNUM_ASSIGN_OR_RETURN(r.pool, exec::ThreadPool::create(options.threads));
  exec::ExecutorOptions e;
  e.step = &r.program.scheduled;
  e.plan = &r.program.memory;
  e.parallel = r.pool.get();
  e.choice = options.choice;
  LIGNUM_ASSIGN_OR_RETURN(r.executor, exec::Executor::create(e));
  return {};
}

struct ReferenceBatch {
  std::vector<int64_t> shape;
  std::vector<int32_t> ids, labels, positions;
  void put(exec::Executor& e) const {
    std::memcpy(e.param("input_ids"), ids.data(), ids.size() * sizeof(int32_t));
    std::memcpy(e.param("labels"), labels.data(), labels.size() * sizeof(int32_t));
    std::memcpy(e.param("positions"), positions.data(), positions.size() * sizeof(int32_t));
  }
};

Result<ReferenceBatch> read_batch(const SafetensorsReader& file) {
  ReferenceBatch b;
  std::vector<int64_t> label_shape;
  LIGNUM_ASSIGN_OR_RETURN(b.ids, read_integers(file, "input_ids", b.shape));
  LIGNUM_ASSIGN_OR_RETURN(const std::vector<int32_t> labels, read_integers(file, "labels", label_shape));
  if (label_shape != b.shape) return user_error("{}: input_ids and labels differ in shape", file.path());
  // The file's labels are aligned with input_ids, as Hugging Face takes them; ours are those of the next
  // position.
  const int64_t rows = b.shape[0], seq = b.shape[1];
  b.labels.assign(labels.size(), -100);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t t = 0; t + 1 < seq; ++t)
      b.labels[static_cast<size_t>(r * seq + t)] = labels[static_cast<size_t>(r * seq + t + 1)];
  for (int64_t i = 0; i < rows * seq; ++i) b.positions.push_back(static_cast<int32_t>(i % seq));
  return b;
}

// The columns of a file's tensor that are the parameter, where it holds several.
Tensor columns_of(const models::Parameter& p, Tensor whole) {
  if (p.file_columns == 0) return whole;
  Tensor part{whole.shape, {}};
  part.shape.back() = p.dims.back();
  for (size_t row = 0; row < whole.data.size(); row += static_cast<size_t>(p.file_columns)) {
    const auto first = whole.data.begin() + static_cast<int64_t>(row) + p.first_column;
    part.data.insert(part.data.end(), first, first + p.dims.back());
  }
  return part;
}

Status compare_gradients(const config::ModelConfig& model, const SafetensorsReader& reference,
                         const Runtime& r, std::vector<Comparison>& out) {
  std::vector<Comparison> grads;
  double total = 0;
  for (const models::Parameter& p : models::parameters(model)) {
    const auto* got = reinterpret_cast<const float*>(r.executor->output("grad:" + p.pattern));
    const int64_t layers = p.stacked ? p.dims[0] : 1;
    for (int64_t layer = 0; layer < layers; ++layer) {
      const std::string name = p.file_name(layer);
      LIGNUM_ASSIGN_OR_RETURN(Tensor whole, read(reference, "grad." + name));
      const Tensor want = columns_of(p, std::move(whole));
      const Norms n = norms(got, want.data.data(), want.data.size());
      got += want.data.size();
      grads.push_back({"gradient", name, n.error, n.norm, 0});
      total += n.norm * n.norm;
    }
  }
  for (Comparison& c : grads) c.bound = 1e-5 * c.norm + 1e-7 * std::sqrt(total);
  out.insert(out.end(), grads.begin(), grads.end());
  return {};
}

Comparison number(std::string kind, std::string name, double got, double want) {
  return {std::move(kind), std::move(name), std::fabs(got - want), std::fabs(want), 1e-5 * std::fabs(want)};
}

Status compare_training(const plan::ProgramOptions& base, const VerifyOptions& options,
                        const ModelFiles& files, const ReferenceBatch& batch, const nlohmann::json& json,
                        std::vector<Comparison>& out) {
  plan::ProgramOptions o = base;
  o.outputs = plan::Outputs::state;
  o.logits = false;
  // The head of a training step, and more than one tile; a soft cap has the whole logits.
  o.vocab_tiling = o.model.logit_softcap > 0 ? 1 : 2;
  const nlohmann::json& adam = json.at("adamw");
  o.optimizer.b1 = adam.at("betas").at(0);
  o.optimizer.b2 = adam.at("betas").at(1);
  o.optimizer.eps = adam.at("eps");
  o.optimizer.weight_decay = adam.at("weight_decay_on_all_parameters");
  o.optimizer.clip = adam.at("clip_global_norm");
  Runtime r;
  LIGNUM_RETURN_IF_ERROR(start(o, options, r));
  LIGNUM_RETURN_IF_ERROR(load_parameters(o.model, files, {r.program, o.mesh, 0}, *r.executor));
  const auto learning_rate = adam.at("lr").get<float>();
  std::memcpy(r.executor->param("learning_rate"), &learning_rate, sizeof(float));
  int32_t k = 0;
  for (const nlohmann::json& step : adam.at("steps")) {
    batch.put(*r.executor);
    std::memcpy(r.executor->param("step"), &k, sizeof(k));
    LIGNUM_RETURN_IF_ERROR(r.executor->step());
    out.push_back(
        number("adamw loss", fmt::format("step {}", k), scalar(r.executor->output("loss")), step.at("loss")));
    out.push_back(number("adamw grad_norm", fmt::format("step {}", k),
                         scalar(r.executor->output("grad_norm")), step.at("grad_norm")));
    ++k;
  }
  return {};
}

}  // namespace

Result<std::vector<Comparison>> verify_model(const std::string& folder, const VerifyOptions& options) {
  LIGNUM_ASSIGN_OR_RETURN(const config::ModelConfig model, config::model_from_folder(folder));
  LIGNUM_ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::open(folder));
  LIGNUM_ASSIGN_OR_RETURN(const SafetensorsReader reference,
                          SafetensorsReader::open(folder + "/reference.safetensors"));
  LIGNUM_ASSIGN_OR_RETURN(const ReferenceBatch batch, read_batch(reference));
  plan::ProgramOptions o;
  o.model = model;
  o.shape = {batch.shape[0], batch.shape[1], DType::f32};
  o.remat.save_all = true;
  o.threads = options.threads;
  const auto& tensors = reference.tensors();
  const bool gradients = std::any_of(tensors.begin(), tensors.end(),
                                     [](const TensorInfo& t) { return t.name.starts_with("grad."); });
  o.outputs = gradients ? plan::Outputs::grads : plan::Outputs::loss;
  o.logits = true;
  Runtime r;
  LIGNUM_RETURN_IF_ERROR(start(o, options, r));
  LIGNUM_RETURN_IF_ERROR(load_parameters(model, files, {r.program, o.mesh, 0}, *r.executor));
  batch.put(*r.executor);
  LIGNUM_RETURN_IF_ERROR(r.executor->step());

  std::vector<Comparison> out;
  LIGNUM_ASSIGN_OR_RETURN(const Tensor logits, read(reference, "logits"));
  const Norms n = norms(reinterpret_cast<const float*>(r.executor->output("logits")), logits.data.data(),
                        logits.data.size());
  out.push_back({"logits", "logits", n.error, n.norm, 1e-5 * n.norm + 1e-7 * n.norm});
  LIGNUM_ASSIGN_OR_RETURN(const Tensor loss, read(reference, "loss"));
  if (!gradients) {
    const float tokens = scalar(r.executor->output("tokens"));
    out.push_back(number("loss", "loss", scalar(r.executor->output("loss_sum")) / tokens, loss.data.at(0)));
    return out;
  }
  out.push_back(number("loss", "loss", scalar(r.executor->output("loss")), loss.data.at(0)));
  LIGNUM_RETURN_IF_ERROR(compare_gradients(model, reference, r, out));

  LIGNUM_ASSIGN_OR_RETURN(const nlohmann::json numbers, read_json(folder + "/reference.json"));
  try {
    LIGNUM_RETURN_IF_ERROR(compare_training(o, options, files, batch, numbers, out));
  } catch (const nlohmann::json::exception& e) {
    return user_error("{}/reference.json: {}", folder, e.what());
  }
  return out;
}

}  // namespace lignum::train
