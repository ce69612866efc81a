// libFuzzer target: any bytes are a safetensors file or an error; what is accepted can be read to its last
// byte.
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "base/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lignum;
  const auto reader = SafetensorsReader::parse(std::as_bytes(std::span(data, size)), "fuzz");
  if (!reader.ok()) {
    if (reader.status().code() != Code::user_error || reader.status().message().empty()) std::abort();
    return 0;
  }
  uint64_t end = 0;
  for (const TensorInfo& tensor : reader->tensors()) {
    if (tensor.begin != end || reader->find(tensor.name) != &tensor) std::abort();
    end = tensor.end;
    const auto bytes = reader->data(tensor);
    [[maybe_unused]] volatile std::byte sink{};
    for (const std::byte b : bytes) sink = b;  // each is readable
    // An element takes at least four bits, so this is at most eight times the input.
    std::vector<float> out(static_cast<size_t>(tensor.elements));
    const Status status = reader->read_as_f32(tensor.name, out.data(), 0, tensor.elements);
    if (!status.ok() && status.code() != Code::user_error) std::abort();
  }
  return 0;
}
