// Tiny training runs for tests: a Llama of 2 layers, 32 wide, in a folder that goes away.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/parallel.h"
#include "base/safetensors.h"
#include "base/test_folder.h"
#include "config/config.h"
#include "train/trainer.h"

namespace lignum::testing {

inline constexpr std::string_view kTiny = R"(
base_emb_dim: 32
base_num_decoder_layers: 2
base_num_query_heads: 4
base_num_kv_heads: 2
head_dim: 8
base_mlp_dim: 64
vocab_size: 256
max_target_length: 16
per_device_batch_size: 2
learning_rate: 1.e-2
learning_rate_schedule_steps: 8
steps: 8
threads: 1
)";

class RunFolder : public TestFolder {
 public:
  RunFolder() {
    // Text whose rows differ: a repeated batch would hide a wrong place in the stream.
    std::string text;
    for (int i = 0; text.size() < 3000; ++i)
      text += fmt::format("line {} of a text, {} squared.\n", i * 7 % 31, i);
    EXPECT_TRUE(write_file_atomic(*this / "train.txt", text).ok());
    EXPECT_TRUE(write_file_atomic(*this / "held_out.txt", text.substr(0, 700)).ok());
    EXPECT_TRUE(write_file_atomic(*this / "tiny.yml", yaml()).ok());
  }
  std::string yaml() const {
    return std::string(kTiny) + fmt::format(R"(
dataset_type: text
train_files: ["{0}/train.txt"]
eval_files: ["{0}/held_out.txt"]
base_output_directory: "{0}/runs"
)",
                                            path());
  }
  std::string run(const std::string& name) const { return *this / ("runs/" + name); }
  std::string checkpoint(const std::string& name, int64_t step) const {
    return run(name) + "/checkpoints/" + std::to_string(step);
  }

  Result<train::TrainSummary> train(const std::string& name, std::vector<std::string> settings,
                                    const train::TrainOptions& options = {}) const {
    settings.push_back("run_name=" + name);
    LIGNUM_ASSIGN_OR_RETURN(const config::Config config, config::Config::parse(yaml(), "tiny.yml", settings));
    return train::train(config, options);
  }

  // What metrics.jsonl holds.
  std::vector<nlohmann::json> records(const std::string& name) const {
    const Result<std::string> text = read_text(run(name) + "/metrics.jsonl");
    EXPECT_TRUE(text.ok()) << text.status().message();
    std::vector<nlohmann::json> out;
    for (size_t begin = 0; text.ok() && begin < text->size();) {
      const size_t end = text->find('\n', begin);
      out.push_back(parse_json(text->substr(begin, end - begin), name).value());
      begin = end + 1;
    }
    return out;
  }
  // The same without what a clock says.
  std::vector<nlohmann::json> steps(const std::string& name) const {
    std::vector<nlohmann::json> out = records(name);
    for (nlohmann::json& record : out)
      for (const char* timed :
           {"tokens_per_s", "tflops", "mfu", "hfu", "memory_bytes", "process_bytes", "eval_seconds"})
        record.erase(timed);
    return out;
  }

  // Parameters and moments of a checkpoint, as bytes.
  std::string tensors(const std::string& name, int64_t step) const {
    const Result<std::string> model = read_text(checkpoint(name, step) + "/model.safetensors"),
                              optimizer = read_text(checkpoint(name, step) + "/optimizer.safetensors");
    EXPECT_TRUE(model.ok()) << model.status().message();
    EXPECT_TRUE(optimizer.ok()) << optimizer.status().message();
    return model.ok() && optimizer.ok() ? *model + *optimizer : "";
  }
};

// A model folder with one weight (f32) edited.
inline void copy_model(const std::string& from, const std::string& to, const std::string& tensor,
                       FunctionRef<void(std::span<float>)> edit) {
  ASSERT_TRUE(make_directories(to).ok());
  const auto config = read_text(from + "/config.json");
  ASSERT_TRUE(config.ok()) << config.status().message();
  ASSERT_TRUE(write_file_atomic(to + "/config.json", *config).ok());
  const auto reader = SafetensorsReader::open(from + "/model.safetensors");
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  std::vector<std::vector<float>> values;
  std::vector<TensorData> tensors;
  for (const TensorInfo& t : reader->tensors()) {
    const auto data = reader->data(t);
    values.emplace_back(data.size() / sizeof(float));
    std::memcpy(values.back().data(), data.data(), data.size());
    if (t.name == tensor) edit(values.back());
    tensors.push_back({{t.name, DType::f32, t.shape}, std::as_bytes(std::span(values.back()))});
  }
  ASSERT_TRUE(write_safetensors(to + "/model.safetensors", tensors).ok());
}

}  // namespace lignum::testing
