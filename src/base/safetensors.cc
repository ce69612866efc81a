#include "base/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/half.h"
#include "base/json.h"
#include "base/safetensors_format.h"
#include "base/text.h"

namespace lignum {
namespace {

using safetensors::DtypeRow;
using safetensors::find_dtype;
using Json = nlohmann::json;

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

// memcpy: the data need not be aligned.
template <class T, class Convert>
void convert(const std::byte* from, float* out, int64_t count, Convert&& to_f32) {
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, from + static_cast<size_t>(i) * sizeof(T), sizeof(T));
    out[i] = to_f32(value);
  }
}

Status no_such_tensor(const std::string& where, std::string_view name,
                      const std::vector<std::string_view>& names) {
  return user_error("{}: no tensor '{}' among {}{}", where, shown(name), names.size(),
                    nearest_hint(name, names));
}

}  // namespace

Result<SafetensorsReader> SafetensorsReader::open(const std::string& path) {
  LIGNUM_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
  SafetensorsReader reader;
  reader.path_ = path;
  reader.file_ = std::move(file);
  LIGNUM_RETURN_IF_ERROR(reader.read_header(reader.file_->bytes()).with_context(path));
  return reader;
}

Result<SafetensorsReader> SafetensorsReader::parse(std::span<const std::byte> bytes,
                                                   const std::string& name) {
  SafetensorsReader reader;
  reader.path_ = name;
  LIGNUM_RETURN_IF_ERROR(reader.read_header(bytes).with_context(name));
  return reader;
}

Status SafetensorsReader::read_header(std::span<const std::byte> bytes) {
  if (bytes.size() < safetensors::kLengthBytes) {
    return user_error("{} bytes are too few for a safetensors file, which begins with a length of 8",
                      bytes.size());
  }
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), safetensors::kLengthBytes);
  if (length > safetensors::kMaxHeader) {
    return user_error("header length {} exceeds the format's limit of {}", length, safetensors::kMaxHeader);
  }
  if (length > bytes.size() - safetensors::kLengthBytes) {
    return user_error("header length {} reaches beyond the file of {} bytes", length, bytes.size());
  }
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + safetensors::kLengthBytes,
                                length);
  LIGNUM_ASSIGN_OR_RETURN(safetensors::Header parsed, safetensors::parse_header(header));

  data_ = bytes.subspan(safetensors::kLengthBytes + length);
  tensors_ = std::move(parsed.tensors);
  metadata_ = std::move(parsed.metadata);
  for (TensorInfo& tensor : tensors_) {
    LIGNUM_RETURN_IF_ERROR(safetensors::check_tensor(tensor, data_.size())
                               .with_context(fmt::format("tensor '{}'", shown(tensor.name))));
  }
  // By end too: an empty tensor stands before the one that begins at the same byte.
  std::sort(tensors_.begin(), tensors_.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  uint64_t end = 0;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const TensorInfo& tensor = tensors_[i];
    if (tensor.begin < end) {
      return user_error("tensor '{}': overlaps tensor '{}' by {} bytes", shown(tensor.name),
                        shown(tensors_[i - 1].name), end - tensor.begin);
    }
    if (tensor.begin > end) {
      return user_error("tensor '{}': begins at byte {} of the data, leaving a gap of {} bytes before it",
                        shown(tensor.name), tensor.begin, tensor.begin - end);
    }
    end = tensor.end;
  }
  if (end != data_.size()) {
    const std::string last =
        tensors_.empty() ? "no tensor" : fmt::format("the last tensor, '{}'", shown(tensors_.back().name));
    return user_error("{} bytes of data follow {}", data_.size() - end, last);
  }
  for (size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
  return {};
}

const TensorInfo* SafetensorsReader::find(std::string_view name) const {
  const auto it = index_.find(std::string(name));
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

Result<const TensorInfo*> SafetensorsReader::require(std::string_view name) const {
  if (const TensorInfo* info = find(name)) return info;
  std::vector<std::string_view> names;
  for (const TensorInfo& tensor : tensors_) names.push_back(tensor.name);
  return no_such_tensor(path_, name, names);
}

std::span<const std::byte> SafetensorsReader::data(const TensorInfo& info) const {
  LIGNUM_CHECK(info.begin <= info.end && info.end <= data_.size(), "'{}' is not of {}", info.name, path_);
  return data_.subspan(info.begin, info.end - info.begin);
}

Status SafetensorsReader::read_as_f32(std::string_view name, float* out, int64_t begin, int64_t count) const {
  LIGNUM_ASSIGN_OR_RETURN(const TensorInfo* info, require(name));
  LIGNUM_CHECK(begin >= 0 && count >= 0 && count <= info->elements - begin, "{}: [{}, +{}) of {}", name,
               begin, count, info->elements);
  const DtypeRow* row = find_dtype(info->dtype_text);
  const std::byte* from =
      data(*info).data() + static_cast<size_t>(begin) * static_cast<size_t>(row->bits / 8);
  if (row->text == "F32") {
    if (count > 0) std::memcpy(out, from, static_cast<size_t>(count) * sizeof(float));
  } else if (row->text == "BF16") {
    convert<bf16>(from, out, count, [](bf16 x) { return to_float(x); });
  } else if (row->text == "F16") {
    convert<uint16_t>(from, out, count, half_to_float);
  } else if (row->text == "F64") {
    convert<double>(from, out, count, [](double x) { return static_cast<float>(x); });
  } else {
    return user_error("{}: tensor '{}' of {} is not read as float; F64, F32, F16 and BF16 are", path_,
                      shown(name), row->text);
  }
  return {};
}

Result<ModelFiles> ModelFiles::open(const std::string& folder) {
  ModelFiles files;
  files.folder_ = folder;
  const std::string single = join_path(folder, "model.safetensors");
  const std::string index = join_path(folder, "model.safetensors.index.json");
  if (!path_exists(index)) {
    if (!path_exists(single)) {
      return user_error("{}: neither model.safetensors nor model.safetensors.index.json is in this folder",
                        folder);
    }
    LIGNUM_ASSIGN_OR_RETURN(SafetensorsReader reader, SafetensorsReader::open(single));
    for (const TensorInfo& tensor : reader.tensors()) files.shard_of_.emplace(tensor.name, 0);
    files.shards_.push_back(std::move(reader));
    return files;
  }
  if (path_exists(single)) {
    return user_error(
        "{}: both model.safetensors and model.safetensors.index.json are here; remove the stale one", folder);
  }
  LIGNUM_ASSIGN_OR_RETURN(const Json json, read_json(index));
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    return user_error("{}: has no object 'weight_map'", index);
  }
  std::map<std::string, size_t> shard_numbers;
  for (const auto& [tensor, shard] : json["weight_map"].items()) {
    const std::string file = shard.is_string() ? shard.get<std::string>() : "";
    if (file.empty() || file == "." || file == ".." ||
        file.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) {
      return user_error("{}: tensor '{}': shard '{}' is not the name of a file in this folder", index,
                        shown(tensor), shown(file));
    }
    const auto [it, is_new] = shard_numbers.emplace(file, files.shards_.size());
    if (is_new) {
      const std::string path = join_path(folder, file);
      if (!path_exists(path)) {
        return user_error("{}: tensor '{}' is in shard '{}', which is missing", index, shown(tensor),
                          shown(file));
      }
      LIGNUM_ASSIGN_OR_RETURN(SafetensorsReader reader, SafetensorsReader::open(path));
      files.shards_.push_back(std::move(reader));
    }
    const SafetensorsReader& reader = files.shards_[it->second];
    if (reader.find(tensor) == nullptr) {
      return user_error("{}: tensor '{}' is not in shard '{}', which the index names for it", index,
                        shown(tensor), shown(file));
    }
    files.shard_of_.emplace(tensor, it->second);
  }
  for (size_t s = 0; s < files.shards_.size(); ++s) {
    for (const TensorInfo& tensor : files.shards_[s].tensors()) {
      const auto it = files.shard_of_.find(tensor.name);
      if (it == files.shard_of_.end() || it->second != s) {
        return user_error("{}: holds tensor '{}', which the index does not place there",
                          files.shards_[s].path(), shown(tensor.name));
      }
    }
  }
  return files;
}

std::vector<const TensorInfo*> ModelFiles::tensors() const {
  std::vector<const TensorInfo*> all;
  for (const SafetensorsReader& shard : shards_) {
    for (const TensorInfo& tensor : shard.tensors()) all.push_back(&tensor);
  }
  return all;
}

const TensorInfo* ModelFiles::find(std::string_view name) const {
  const auto it = shard_of_.find(std::string(name));
  return it == shard_of_.end() ? nullptr : shards_[it->second].find(name);
}

Result<const SafetensorsReader*> ModelFiles::shard_of(std::string_view name) const {
  const auto it = shard_of_.find(std::string(name));
  if (it != shard_of_.end()) return &shards_[it->second];
  std::vector<std::string_view> names;
  for (const TensorInfo* tensor : tensors()) names.push_back(tensor->name);
  return no_such_tensor(folder_, name, names);
}

Result<const TensorInfo*> ModelFiles::require(std::string_view name) const {
  LIGNUM_ASSIGN_OR_RETURN(const SafetensorsReader* shard, shard_of(name));
  return shard->require(name);
}

Result<std::span<const std::byte>> ModelFiles::data(std::string_view name) const {
  LIGNUM_ASSIGN_OR_RETURN(const SafetensorsReader* shard, shard_of(name));
  return shard->data(*shard->find(name));
}

Status ModelFiles::read_as_f32(std::string_view name, float* out, int64_t begin, int64_t count) const {
  LIGNUM_ASSIGN_OR_RETURN(const SafetensorsReader* shard, shard_of(name));
  return shard->read_as_f32(name, out, begin, count);
}

}  // namespace lignum
