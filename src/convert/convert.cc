#include "convert/convert.h"

#include <fmt/ranges.h>

#include <array>
#include <filesystem>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/safetensors.h"
#include "base/text.h"
#include "config/model_config.h"
#include "convert/gguf_model.h"
#include "models/files.h"
#include "tokenizer/tokenizer.h"

namespace lignum::convert {
namespace {

using config::ModelConfig;

constexpr const char* kConfig = "config.json";
constexpr const char* kWeights = "model.safetensors";
constexpr const char* kTokenizerConfig = "tokenizer_config.json";

// Elements [begin, begin + count) of a Hugging Face tensor; both multiples of its last dim.
using Read = std::function<Status(const TensorPlan& tensor, float* out, int64_t begin, int64_t count)>;

Status check_target(const std::string& to) {
  for (const char* name : {kConfig, kWeights, "model.safetensors.index.json"})
    if (path_exists(join_path(to, name)))
      return user_error("{}: holds {} already; name another folder, or remove it", shown(to), name);
  return make_directories(to);
}

// Some rows at a time, in f32, rounded where the target is bf16.
Status write_weights(const ModelConfig& model, const std::string& to, DType dtype, const Read& read,
                     Converted& done) {
  constexpr int64_t kPiece = 1 << 18;  // elements in memory, or one row
  std::vector<TensorPlan> plans = models::file_tensors(model);
  for (TensorPlan& t : plans) t.dtype = dtype;
  LIGNUM_ASSIGN_OR_RETURN(SafetensorsLayout layout, SafetensorsLayout::plan(plans, {{"format", "pt"}}));
  done.bytes = layout.file_size();
  LIGNUM_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                          SafetensorsWriter::create(std::move(layout), join_path(to, kWeights)));
  std::vector<float> values;
  std::vector<bf16> rounded;
  for (const TensorPlan& t : plans) {
    const int64_t width = t.shape.back(), all = writer.layout().find(t.name)->elements;
    const int64_t piece = std::max<int64_t>(1, kPiece / width) * width;
    for (int64_t begin = 0; begin < all; begin += piece) {
      const int64_t n = std::min(piece, all - begin);
      values.resize(static_cast<size_t>(n));
      LIGNUM_RETURN_IF_ERROR(read(t, values.data(), begin, n));
      auto bytes = std::as_bytes(std::span(values));
      if (dtype == DType::bf16) {
        rounded.resize(values.size());
        for (size_t i = 0; i < values.size(); ++i) rounded[i] = bf16(values[i]);
        bytes = std::as_bytes(std::span(rounded));
      }
      LIGNUM_RETURN_IF_ERROR(writer.write(
          t.name, static_cast<uint64_t>(begin) * static_cast<uint64_t>(dtype_size(dtype)), bytes));
    }
    ++done.tensors;
    done.elements += all;
  }
  return writer.finish();
}

Status write_config(const ModelConfig& model, const std::string& to, DType dtype) {
  const std::string_view word = dtype == DType::bf16 ? "bfloat16" : "float32";
  return write_file_atomic(join_path(to, kConfig), config::model_to_hf_json(model, word));
}

Result<Converted> from_folder(const std::string& from, const std::string& to, DType dtype) {
  constexpr std::array kCopied = {tokenizer::kFileName,
                                  kTokenizerConfig,
                                  tokenizer::kModelFileName,
                                  "generation_config.json",
                                  "special_tokens_map.json",
                                  "added_tokens.json",
                                  "vocab.json",
                                  "merges.txt",
                                  "chat_template.jinja"};
  LIGNUM_ASSIGN_OR_RETURN(const ModelConfig model, config::model_from_folder(from));
  LIGNUM_ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::open(from));
  LIGNUM_RETURN_IF_ERROR(models::check_tensors(model, files));
  const models::StoredNames names(model, files);
  LIGNUM_RETURN_IF_ERROR(check_target(to));
  Converted done{model.family};
  LIGNUM_RETURN_IF_ERROR(write_weights(
      model, to, dtype,
      [&](const TensorPlan& t, float* out, int64_t begin, int64_t count) {
        return files.read_as_f32(names.of(t.name), out, begin, count);
      },
      done));
  for (const char* name : kCopied) {
    const std::string path = join_path(from, name);
    if (!path_exists(path)) continue;
    LIGNUM_ASSIGN_OR_RETURN(const std::string text, read_text(path, uint64_t{256} << 20));
    LIGNUM_RETURN_IF_ERROR(write_file_atomic(join_path(to, name), text));
    done.tokenizer = done.tokenizer || name == tokenizer::kFileName;
  }
  LIGNUM_RETURN_IF_ERROR(write_config(model, to, dtype));
  return done;
}

// Every tensor of the model is in the file in its shape, and nothing else is.
Status check_gguf(const ModelConfig& model, const GgufReader& file) {
  std::set<std::string> known;
  for (const TensorPlan& t : models::file_tensors(model)) {
    const std::string name = gguf_name(model, t.name)->name;
    const GgufTensor* info = file.find(name);
    if (info == nullptr) return user_error("{}: tensor {} is missing", file.path(), name);
    if (info->shape != t.shape)
      return user_error("{}: {} has shape [{}], the file's keys ask for [{}]", file.path(), name,
                        fmt::join(info->shape, ", "), fmt::join(t.shape, ", "));
    known.insert(name);
  }
  for (const GgufTensor& t : file.tensors())
    if (!known.contains(t.name))
      return user_error("{}: tensor {} has no place in this model; a feature of it is not implemented",
                        file.path(), shown(t.name));
  return {};
}

Result<Converted> from_gguf(const std::string& from, const std::string& to, DType dtype) {
  LIGNUM_ASSIGN_OR_RETURN(const GgufReader file, GgufReader::open(from));
  LIGNUM_ASSIGN_OR_RETURN(const ModelConfig model, model_from_gguf(file));
  LIGNUM_RETURN_IF_ERROR(check_gguf(model, file));
  LIGNUM_ASSIGN_OR_RETURN(const TokenizerFiles tokens, tokenizer_from_gguf(file));
  // What is written must be read again.
  LIGNUM_ASSIGN_OR_RETURN(const tokenizer::Tokenizer tokenizer,
                          tokenizer::Tokenizer::parse(tokens.tokenizer, from));
  if (tokenizer.vocab_size() > model.vocab_size)
    return user_error("{}: {} tokens, more than the {} rows of token_embd.weight", from,
                      tokenizer.vocab_size(), model.vocab_size);
  LIGNUM_RETURN_IF_ERROR(check_target(to));
  Converted done{model.family};
  done.tokenizer = true;
  const auto read = [&](const TensorPlan& t, float* out, int64_t begin, int64_t count) -> Status {
    const GgufName name = *gguf_name(model, t.name);
    const GgufTensor& tensor = *file.find(name.name);
    if (name.interleaved_heads == 0) {
      file.read_as_f32(tensor, out, begin, count);
      return {};
    }
    const int64_t width = t.shape.back();
    for (int64_t row = begin / width; row < (begin + count) / width; ++row, out += width)
      file.read_as_f32(tensor, out, permuted_row(row, model.head_dim) * width, width);
    return {};
  };
  LIGNUM_RETURN_IF_ERROR(write_weights(model, to, dtype, read, done));
  LIGNUM_RETURN_IF_ERROR(write_file_atomic(join_path(to, tokenizer::kFileName), tokens.tokenizer));
  LIGNUM_RETURN_IF_ERROR(write_file_atomic(join_path(to, kTokenizerConfig), tokens.config));
  LIGNUM_RETURN_IF_ERROR(write_config(model, to, dtype));
  return done;
}

}  // namespace

Result<Converted> convert(const std::string& from, const std::string& to, DType dtype) {
  LIGNUM_CHECK(dtype == DType::f32 || dtype == DType::bf16, "dtype {}", dtype_name(dtype));
  std::error_code ignored;
  if (std::filesystem::is_directory(from, ignored)) return from_folder(from, to, dtype);
  if (!path_exists(from))
    return user_error("{}: no such folder or file; a Hugging Face folder or a .gguf file is wanted",
                      shown(from));
  return from_gguf(from, to, dtype);
}

}  // namespace lignum::convert
