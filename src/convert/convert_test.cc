#include "convert/convert.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/dtype.h"
#include "base/file.h"
#include "base/gguf_testing.h"
#include "base/json.h"
#include "base/rng.h"
#include "base/safetensors.h"
#include "base/test_folder.h"
#include "config/model_config.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

namespace lignum::convert {
namespace {

using testing::GgufBuilder;
using testing::TestFolder;

constexpr int64_t kHidden = 64, kHeads = 4, kKvHeads = 2, kDim = 16, kMlp = 96, kVocab = 260;

// A weight's rows as f32, by its Hugging Face name. Whole sixteenths from -8 to 7 sixteenths: each type has
// them exactly.
std::vector<float> weight(const std::string& name, int64_t rows, int64_t width) {
  const Random random(5, name);
  std::vector<float> w(static_cast<size_t>(rows * width));
  for (size_t i = 0; i < w.size(); ++i)
    w[i] = static_cast<float>(static_cast<int>(random.uniform(i) * 16) - 8) / 16;
  return w;
}

std::string f32_bytes(const std::vector<float>& w) {
  return {reinterpret_cast<const char*>(w.data()), w.size() * sizeof(float)};
}
// Each block's scale is 1 / 16; minimum -1 / 2.
std::string q8_bytes(const std::vector<float>& w) {
  std::string bytes;
  for (size_t i = 0; i < w.size(); ++i) {
    if (i % 32 == 0) bytes += std::string("\x00\x2c", 2);
    bytes += static_cast<char>(static_cast<int>(w[i] * 16));
  }
  return bytes;
}
std::string q41_bytes(const std::vector<float>& w) {
  const auto digit = [&](size_t i) { return static_cast<int>(w[i] * 16) + 8; };
  std::string bytes;
  for (size_t i = 0; i < w.size(); i += 32) {
    bytes += std::string("\x00\x2c\x00\xb8", 4);
    for (size_t k = 0; k < 16; ++k) bytes += static_cast<char>(digit(i + k) | digit(i + 16 + k) << 4);
  }
  return bytes;
}

// llama.cpp's order of a head's rows: those that are turned together side by side.
std::vector<float> interleaved(const std::vector<float>& w, int64_t heads) {
  std::vector<float> out(w.size());
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t j = 0; j < 2; ++j) {
      for (int64_t i = 0; i < kDim / 2; ++i) {
        const int64_t from = h * kDim + j * kDim / 2 + i, to = h * kDim + 2 * i + j;
        std::copy_n(w.begin() + from * kHidden, kHidden, out.begin() + to * kHidden);
      }
    }
  }
  return out;
}

struct Expected {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
};

// A Llama of two layers and a byte-level tokeniser of 256 bytes, two merges and two special tokens.
GgufBuilder small_llama(std::vector<Expected>& expected) {
  GgufBuilder b;
  b.string("general.architecture", "llama").u32("llama.block_count", 2).u32("llama.context_length", 128);
  b.u32("llama.embedding_length", kHidden).u32("llama.feed_forward_length", kMlp);
  b.u32("llama.attention.head_count", kHeads).u32("llama.attention.head_count_kv", kKvHeads);
  b.f32("llama.attention.layer_norm_rms_epsilon", 1e-5f).f32("llama.rope.freq_base", 1e5f);
  b.u32("llama.rope.dimension_count", kDim).u32("llama.vocab_size", kVocab);
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte)
    tokens.push_back(tokenizer::bytes_to_chars(std::string(1, static_cast<char>(byte))));
  tokens.insert(tokens.end(), {"ab", "abc", "<|start|>", "<|end|>"});
  std::vector<int32_t> types(258, 1);
  types.insert(types.end(), {3, 3});
  b.string("tokenizer.ggml.model", "gpt2").string("tokenizer.ggml.pre", "smollm");
  b.strings("tokenizer.ggml.tokens", tokens).integers("tokenizer.ggml.token_type", types);
  b.strings("tokenizer.ggml.merges", {"a b", "ab c"});
  b.u32("tokenizer.ggml.bos_token_id", 258).u32("tokenizer.ggml.eos_token_id", 259);

  const auto add = [&](const std::string& gguf, const std::string& hf, int64_t rows, int64_t width,
                       uint32_t type, int64_t heads = 0) {
    const std::vector<float> w = weight(hf, rows, width);
    const std::vector<float> stored = heads > 0 ? interleaved(w, heads) : w;
    std::vector<uint64_t> dims = {static_cast<uint64_t>(width)};
    if (rows > 1) dims.push_back(static_cast<uint64_t>(rows));
    b.tensor(gguf, dims, type,
             type == 0   ? f32_bytes(stored)
             : type == 8 ? q8_bytes(stored)
                         : q41_bytes(stored));
    expected.push_back({hf, rows > 1 ? std::vector<int64_t>{rows, width} : std::vector<int64_t>{width}, w});
  };
  add("token_embd.weight", "model.embed_tokens.weight", kVocab, kHidden, 8);
  for (int layer = 0; layer < 2; ++layer) {
    const std::string g = fmt::format("blk.{}.", layer), h = fmt::format("model.layers.{}.", layer);
    add(g + "attn_norm.weight", h + "input_layernorm.weight", 1, kHidden, 0);
    add(g + "ffn_down.weight", h + "mlp.down_proj.weight", kHidden, kMlp, 3);
    add(g + "ffn_gate.weight", h + "mlp.gate_proj.weight", kMlp, kHidden, 3);
    add(g + "ffn_up.weight", h + "mlp.up_proj.weight", kMlp, kHidden, 0);
    add(g + "ffn_norm.weight", h + "post_attention_layernorm.weight", 1, kHidden, 0);
    add(g + "attn_k.weight", h + "self_attn.k_proj.weight", kKvHeads * kDim, kHidden, 3, kKvHeads);
    add(g + "attn_output.weight", h + "self_attn.o_proj.weight", kHidden, kHidden, 8);
    add(g + "attn_q.weight", h + "self_attn.q_proj.weight", kHeads * kDim, kHidden, 8, kHeads);
    add(g + "attn_v.weight", h + "self_attn.v_proj.weight", kKvHeads * kDim, kHidden, 3);
  }
  add("output_norm.weight", "model.norm.weight", 1, kHidden, 0);
  return b;
}

TEST(Convert, GgufBecomesAHuggingFaceFolder) {
  const TestFolder folder;
  std::vector<Expected> expected;
  ASSERT_TRUE(write_file_atomic(folder / "m.gguf", small_llama(expected).build()).ok());
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::string to = folder / std::string(dtype_name(dtype));
    const auto done = convert(folder / "m.gguf", to, dtype);
    ASSERT_TRUE(done.ok()) << done.status().message();
    EXPECT_EQ(done->tensors, static_cast<int64_t>(expected.size()));
    const auto model = config::model_from_folder(to);
    ASSERT_TRUE(model.ok()) << model.status().message();
    EXPECT_EQ(model->norm_eps, 1e-5);
    EXPECT_EQ(model->rope.theta, 1e5);
    EXPECT_EQ(model->head_dim, kDim);
    EXPECT_TRUE(model->tie_embeddings);
    EXPECT_EQ(model->bos_token_id, 258);
    const auto files = ModelFiles::open(to);
    ASSERT_TRUE(files.ok()) << files.status().message();
    EXPECT_EQ(files->tensors().size(), expected.size());
    for (const Expected& e : expected) {
      const auto info = files->require(e.name);
      ASSERT_TRUE(info.ok()) << info.status().message();
      EXPECT_EQ((*info)->shape, e.shape);
      EXPECT_EQ((*info)->dtype, dtype);
      std::vector<float> got(e.values.size());
      ASSERT_TRUE(files->read_as_f32(e.name, got.data(), 0, static_cast<int64_t>(got.size())).ok());
      EXPECT_EQ(got, e.values) << e.name;  // bf16 has them too
    }
    const auto tokens = tokenizer::Tokenizer::load(to + "/tokenizer.json");
    ASSERT_TRUE(tokens.ok()) << tokens.status().message();
    EXPECT_EQ(*tokens->encode("abc12"), (std::vector<int32_t>{257, '1', '2'}));
    EXPECT_EQ(*tokens->decode(std::vector<int32_t>{257, ' ', 256}), "abc ab");
    EXPECT_EQ(convert(folder / "m.gguf", to, dtype).status().message(),
              to + ": holds config.json already; name another folder, or remove it");
  }
}

TEST(Convert, GgufOfOtherModelsIsRefusedByName) {
  const TestFolder folder;
  const auto refused = [&](const GgufBuilder& b, const std::string& expected) {
    ASSERT_TRUE(write_file_atomic(folder / "m.gguf", b.build()).ok());
    const auto done = convert(folder / "m.gguf", folder / "to", DType::f32);
    ASSERT_FALSE(done.ok()) << expected;
    EXPECT_EQ(done.status().code(), Code::user_error);
    EXPECT_NE(done.status().message().find(expected), std::string::npos) << done.status().message();
    EXPECT_FALSE(path_exists(folder / "to/config.json"));
  };
  std::vector<Expected> ignored;
  const auto small = [&] { return small_llama(ignored); };
  refused(GgufBuilder().string("general.architecture", "falcon"),
          "general.architecture=falcon must be llama");
  refused(GgufBuilder(), "general.architecture=(none) must be llama");
  refused(GgufBuilder().string("general.architecture", "llama"), "no tensor token_embd.weight");
  refused(small().u32("llama.logit_scale", 2), "llama.logit_scale is a feature that is not implemented");
  refused(small().u32("llama.expert_count", 8), "llama.expert_count=8 must be 0");
  refused(small().u32("llama.attention.value_length", 8), "llama.attention.value_length=8 must be 16");
  refused(small().string("llama.rope.scaling.type", "yarn"),
          "llama.rope.scaling.type=yarn must be none or linear");
  refused(small().tensor("rope_freqs.weight", {8}, 0, std::string(32, '\0')),
          "tensor rope_freqs.weight has no place");
  refused(small().tensor("output.weight", {64, 2}, 0, std::string(512, '\0')),
          "output.weight has shape [2, 64], the file's keys ask for [260, 64]");
  refused(small().u32("llama.attention.key_length", 15), "llama.rope.dimension_count=16 must be 15");
  refused(small().string("tokenizer.ggml.pre", "x"), "key 'tokenizer.ggml.pre' stands twice");
}

std::string golden(const std::string& name) { return LIGNUM_SOURCE_DIR "/tests/golden/" + name; }

// Hugging Face, Lignum, Hugging Face: every bit of every tensor, and what config.json says, for each family.
TEST(Convert, EveryFamilyKeepsItsBits) {
  for (const char* name : {"llama_rope_llama3", "llama_tied_linear", "mistral_window", "qwen3", "gemma2",
                           "gemma3", "gpt2-tiny"}) {
    SCOPED_TRACE(name);
    const TestFolder folder;
    const auto done = convert(golden(name), folder / "to", DType::f32);
    ASSERT_TRUE(done.ok()) << done.status().message();
    EXPECT_EQ(*config::model_from_folder(folder / "to"), *config::model_from_folder(golden(name)));
    const auto before = ModelFiles::open(golden(name)), after = ModelFiles::open(folder / "to");
    ASSERT_TRUE(before.ok() && after.ok());
    ASSERT_EQ(after->tensors().size(), before->tensors().size());
    for (const TensorInfo* t : before->tensors()) {
      ASSERT_NE(after->find(t->name), nullptr) << t->name;
      EXPECT_EQ(after->find(t->name)->shape, t->shape);
      const auto a = *before->data(t->name), b = *after->data(t->name);
      EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end())) << t->name;
    }
  }
}

// GPT-2's published file: no "transformer.", and masks beside the weights.
TEST(Convert, Gpt2sPublishedNames) {
  const TestFolder folder;
  const auto files = ModelFiles::open(golden("gpt2-tiny"));
  ASSERT_TRUE(files.ok());
  std::vector<TensorData> tensors;
  for (const TensorInfo* t : files->tensors())
    tensors.push_back({{t->name.substr(std::string_view("transformer.").size()), DType::f32, t->shape},
                       *files->data(t->name)});
  const std::vector<float> mask(16, 1);
  tensors.push_back({{"h.0.attn.bias", DType::f32, {1, 1, 4, 4}}, std::as_bytes(std::span(mask))});
  ASSERT_TRUE(make_directories(folder / "from").ok());
  ASSERT_TRUE(write_safetensors(folder / "from/model.safetensors", tensors).ok());
  ASSERT_TRUE(
      write_file_atomic(folder / "from/config.json", *read_text(golden("gpt2-tiny") + "/config.json")).ok());
  const auto done = convert(folder / "from", folder / "to", DType::f32);
  ASSERT_TRUE(done.ok()) << done.status().message();
  const auto after = ModelFiles::open(folder / "to");
  ASSERT_EQ(after->tensors().size(), files->tensors().size());
  for (const TensorInfo* t : files->tensors()) {
    const auto a = *files->data(t->name), b = *after->data(t->name);
    EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end())) << t->name;
  }
}

TEST(Convert, ErrorsNameThePath) {
  const TestFolder folder;
  EXPECT_NE(
      convert(folder / "no", folder / "to", DType::f32).status().message().find("no such folder or file"),
      std::string::npos);
  EXPECT_NE(
      convert(folder.path(), folder / "to", DType::f32).status().message().find("config.json: cannot open"),
      std::string::npos);
}

}  // namespace
}  // namespace lignum::convert
