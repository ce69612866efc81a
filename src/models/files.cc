#include "models/files.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "models/model.h"

namespace lignum::models {
namespace {

constexpr std::string_view kHead = "lm_head.weight";

std::string table_name(const config::ModelConfig& model) { return parameters(model)[0].file_name(0); }

}  // namespace

std::vector<TensorPlan> file_tensors(const config::ModelConfig& model) {
  std::vector<TensorPlan> out;
  for (const Parameter& p : parameters(model)) {
    if (p.first_column > 0) continue;  // named by the one before it
    std::vector<int64_t> shape(p.dims.begin() + (p.stacked ? 1 : 0), p.dims.end());
    if (p.file_columns > 0) shape.back() = p.file_columns;
    for (int64_t layer = 0; layer < (p.stacked ? p.dims[0] : 1); ++layer)
      out.push_back({p.file_name(layer), DType::f32, shape});
  }
  return out;
}

StoredNames::StoredNames(const config::ModelConfig& model, const ModelFiles& files) {
  constexpr std::string_view kBody = "transformer.";
  const std::string table = table_name(model);
  if (table.starts_with(kBody) && files.find(table) == nullptr &&
      files.find(std::string_view(table).substr(kBody.size())) != nullptr)
    absent_ = kBody;
}

std::string StoredNames::of(std::string_view name) const {
  if (!absent_.empty() && name.starts_with(absent_)) name.remove_prefix(absent_.size());
  return std::string(name);
}

Status check_tensors(const config::ModelConfig& model, const ModelFiles& files) {
  const StoredNames names(model, files);
  std::set<std::string> known;
  for (const TensorPlan& t : file_tensors(model)) {
    const std::string name = names.of(t.name);
    LIGNUM_ASSIGN_OR_RETURN(const TensorInfo* info, files.require(name));
    if (info->shape != t.shape)
      return user_error("{}: {} has shape [{}], config.json asks for [{}]", files.folder(), name,
                        fmt::join(info->shape, ", "), fmt::join(t.shape, ", "));
    known.insert(name);
  }
  for (const TensorInfo* info : files.tensors()) {
    if (known.contains(info->name) || is_buffer(model, info->name)) continue;
    if (info->name == kHead && model.tie_embeddings) {
      const std::string table = names.of(table_name(model));
      LIGNUM_ASSIGN_OR_RETURN(const auto head, files.data(info->name));
      LIGNUM_ASSIGN_OR_RETURN(const auto tokens, files.data(table));
      if (std::equal(head.begin(), head.end(), tokens.begin(), tokens.end())) continue;
      return user_error(
          "{}: {} differs from {}, but config.json has tie_word_embeddings=true; set it to false",
          files.folder(), kHead, table);
    }
    return user_error("{}: tensor {} has no place in this model ({}); a feature of it is not implemented",
                      files.folder(), info->name, model.family);
  }
  return {};
}

}  // namespace lignum::models
