// libFuzzer target: any bytes are a GGUF file or an error; of what is accepted every tensor can be read, and
// model and tokeniser are made or refused.
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "base/gguf.h"
#include "convert/gguf_model.h"
#include "tokenizer/tokenizer.h"

namespace {

void must_be_the_users(const lignum::Status& status) {
  if (!status.ok() && (status.code() != lignum::Code::user_error || status.message().empty())) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lignum;
  const auto file = GgufReader::parse(std::as_bytes(std::span(data, size)), "fuzz");
  must_be_the_users(file.status());
  if (!file.ok()) return 0;
  for (const GgufTensor& t : file->tensors()) {
    if (file->find(t.name) != &t) std::abort();
    std::vector<float> out(static_cast<size_t>(t.elements));  // four bits an element at least
    file->read_as_f32(t, out.data(), 0, t.elements);
  }
  must_be_the_users(convert::model_from_gguf(*file).status());
  const auto tokens = convert::tokenizer_from_gguf(*file);
  must_be_the_users(tokens.status());
  if (tokens.ok()) must_be_the_users(tokenizer::Tokenizer::parse(tokens->tokenizer, "fuzz").status());
  return 0;
}
