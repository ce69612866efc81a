#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/safetensors.h"
#include "base/safetensors_format.h"
#include "base/text.h"

namespace lignum {

using safetensors::byte_count;
using safetensors::element_count;
using safetensors::kLengthBytes;
using safetensors::kMaxHeader;
using safetensors::kMetadata;
using safetensors::shape_text;

Result<SafetensorsLayout> SafetensorsLayout::plan(const std::vector<TensorPlan>& tensors,
                                                  const std::map<std::string, std::string>& metadata) {
  SafetensorsLayout layout;
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[std::string(kMetadata)] = metadata;
  for (const TensorPlan& tensor : tensors) {
    if (tensor.name == kMetadata) return user_error("a tensor cannot have the reserved name {}", kMetadata);
    const bool is_new = layout.index_.emplace(tensor.name, layout.tensors_.size()).second;
    if (!is_new) return user_error("tensor '{}' is listed twice", shown(tensor.name));
    TensorInfo info;
    info.name = tensor.name;
    info.dtype_text = safetensors_dtype(tensor.dtype);
    info.dtype = tensor.dtype;
    info.shape = tensor.shape;
    const bool negative = std::any_of(info.shape.begin(), info.shape.end(), [](int64_t d) { return d < 0; });
    const std::optional<int64_t> elements = negative ? std::nullopt : element_count(info.shape);
    const std::optional<uint64_t> bytes =
        elements ? byte_count(*elements, static_cast<int>(8 * dtype_size(tensor.dtype))) : std::nullopt;
    info.begin = layout.data_size_;
    if (!bytes || __builtin_add_overflow(info.begin, *bytes, &info.end)) {
      return user_error("tensor '{}': shape {} does not fit 64 bits", shown(info.name),
                        shape_text(info.shape));
    }
    info.elements = *elements;
    layout.data_size_ = info.end;
    header[info.name] = {
        {"dtype", info.dtype_text}, {"shape", info.shape}, {"data_offsets", {info.begin, info.end}}};
    layout.tensors_.push_back(std::move(info));
  }
  std::string json;
  try {
    json = header.dump();
  } catch (const nlohmann::json::exception& error) {  // a name that is not UTF-8
    return user_error("a tensor's name or the metadata cannot be written: {}", error.what());
  }
  json.resize((json.size() + 7) / 8 * 8, ' ');
  if (json.size() > kMaxHeader) {
    return user_error("a header of {} bytes exceeds the format's limit of {}", json.size(), kMaxHeader);
  }
  const uint64_t length = json.size();
  layout.header_.resize(kLengthBytes);
  std::memcpy(layout.header_.data(), &length, kLengthBytes);
  layout.header_ += json;
  return layout;
}

const TensorInfo* SafetensorsLayout::find(std::string_view name) const {
  const auto it = index_.find(std::string(name));
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

Result<SafetensorsWriter> SafetensorsWriter::create(SafetensorsLayout layout, const std::string& path) {
  LIGNUM_ASSIGN_OR_RETURN(OutputFile file, OutputFile::create(path + ".tmp", layout.file_size()));
  SafetensorsWriter writer(std::move(layout), path, std::move(file), /*owner=*/true);
  LIGNUM_RETURN_IF_ERROR(writer.file_->write_at(0, std::as_bytes(std::span(writer.layout_.header()))));
  return writer;
}

Result<SafetensorsWriter> SafetensorsWriter::attach(SafetensorsLayout layout, const std::string& path) {
  LIGNUM_ASSIGN_OR_RETURN(OutputFile file, OutputFile::attach(path + ".tmp"));
  return SafetensorsWriter(std::move(layout), path, std::move(file), /*owner=*/false);
}

SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&& other) noexcept
    : layout_(std::move(other.layout_)),
      path_(std::move(other.path_)),
      file_(std::move(other.file_)),
      owner_(std::exchange(other.owner_, false)) {}

SafetensorsWriter::~SafetensorsWriter() {
  if (owner_)
    (void)remove_tree(path_ + ".tmp");  // nothing can be said from here; the next create truncates it
}

Status SafetensorsWriter::write(std::string_view name, uint64_t begin,
                                std::span<const std::byte> bytes) const {
  const TensorInfo* info = layout_.find(name);
  LIGNUM_CHECK(info != nullptr, "'{}' is not in the layout of {}", name, path_);
  const uint64_t size = info->end - info->begin;
  LIGNUM_CHECK(begin <= size && bytes.size() <= size - begin, "'{}': [{}, +{}) of {}", name, begin,
               bytes.size(), size);
  return file_->write_at(layout_.header().size() + info->begin + begin, bytes);
}

Status SafetensorsWriter::sync() const { return file_->sync(); }

Status SafetensorsWriter::finish() {
  LIGNUM_CHECK(owner_, "{}: only the writer that created the file finishes it, once", path_);
  LIGNUM_RETURN_IF_ERROR(sync());
  LIGNUM_RETURN_IF_ERROR(rename_durably(path_ + ".tmp", path_));
  owner_ = false;
  return {};
}

Status write_safetensors(const std::string& path, const std::vector<TensorData>& tensors,
                         const std::map<std::string, std::string>& metadata) {
  std::vector<TensorPlan> plans;
  plans.reserve(tensors.size());
  for (const TensorData& tensor : tensors) plans.push_back(tensor.plan);
  LIGNUM_ASSIGN_OR_RETURN(SafetensorsLayout layout, SafetensorsLayout::plan(plans, metadata));
  LIGNUM_ASSIGN_OR_RETURN(SafetensorsWriter writer, SafetensorsWriter::create(std::move(layout), path));
  for (const TensorData& tensor : tensors) {
    const TensorInfo* info = writer.layout().find(tensor.plan.name);
    LIGNUM_CHECK(tensor.bytes.size() == info->end - info->begin, "'{}': {} bytes for {}", info->name,
                 tensor.bytes.size(), info->end - info->begin);
    LIGNUM_RETURN_IF_ERROR(writer.write(info->name, 0, tensor.bytes));
  }
  return writer.finish();
}

}  // namespace lignum
