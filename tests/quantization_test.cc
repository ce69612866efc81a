// What a quantised run tells: losses of its operands against the weights themselves, ranges that one run
// records and another takes, and a step beside the same one without.
#include "plan/quantization.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "hw/spec.h"
#include "plan/price.h"
#include "process.h"
#include "runs.h"
#include "train/setup.h"

namespace lignum::testing {
namespace {

#define ASSERT_OK(result) ASSERT_TRUE((result).ok()) << (result).status().message()

using Words = std::vector<std::string>;

constexpr const char* kDots[][2] = {
    {"decoder/layers/self_attention/query", "self_attn.q_proj"},
    {"decoder/layers/self_attention/key", "self_attn.k_proj"},
    {"decoder/layers/self_attention/value", "self_attn.v_proj"},
    {"decoder/layers/self_attention/out", "self_attn.o_proj"},
    {"decoder/layers/mlp/wi_0", "mlp.gate_proj"},
    {"decoder/layers/mlp/wi_1", "mlp.up_proj"},
    {"decoder/layers/mlp/wo", "mlp.down_proj"},
};

Words fp8(Words more) {
  more.insert(more.begin(), {"use_qwix_quantization=true", "quantization=fp8_full"});
  return more;
}

// The first record of quantization.jsonl: by operand, for each dot.
std::map<std::string, nlohmann::json> first_losses(const RunFolder& f, const std::string& run) {
  std::map<std::string, nlohmann::json> out;
  const auto text = read_text(f.run(run) + "/quantization.jsonl");
  EXPECT_TRUE(text.ok()) << text.status().message();
  if (!text.ok()) return out;
  const auto record = parse_json(text->substr(0, text->find('\n')), run);
  EXPECT_TRUE(record.ok()) << record.status().message();
  for (const nlohmann::json& o : (*record)["operands"])
    for (const std::string dot : o["dots"]) out[o["operand"].get<std::string>() + " " + dot] = o;
  return out;
}

std::vector<float> weight_of(const RunFolder& f, const std::string& run, int64_t layer,
                             const std::string& name) {
  const auto file = SafetensorsReader::open(f.checkpoint(run, 1) + "/model.safetensors").value();
  const std::string tensor = fmt::format("model.layers.{}.{}.weight", layer, name);
  const TensorInfo* info = file.require(tensor).value();
  std::vector<float> w(static_cast<size_t>(info->shape[0] * info->shape[1]));
  EXPECT_TRUE(file.read_as_f32(tensor, w.data(), 0, static_cast<int64_t>(w.size())).ok());
  return w;
}

// Weights that nothing has changed, quantised here once more.
TEST(QuantizationMetrics, AreThoseOfTheWeights) {
  const RunFolder f;
  constexpr double kBound = 0.03;  // weights have a deviation of 0.02
  const Words words = fp8({"quantization_metrics=true", "steps=1", "learning_rate=0", "log_period=1",
                           "weight_quantization_calibration_method=fixed,-0.03,0.03"});
  ASSERT_OK(f.train("a", words));
  const auto losses = first_losses(f, "a");
  const float scale = static_cast<float>(kBound) / 448.0F;
  double worst = 0;
  for (const auto& [dot, tensor] : kDots) {
    const nlohmann::json& o = losses.at(std::string("weight ") + dot);
    EXPECT_EQ(o["format"], "f8e4m3fn");
    EXPECT_EQ(o["layers"], (std::vector<int64_t>{0, 1}));
    for (size_t layer = 0; layer < 2; ++layer) {
      const std::vector<float> w = weight_of(f, "a", static_cast<int64_t>(layer), tensor);
      double saturated = 0, flushed = 0, error = 0, squares = 0;
      for (const float x : w) {
        uint8_t code = 0;
        store_from_double(DType::f8e4m3fn, &code, 0, static_cast<double>(x / scale));
        const double back = load_as_double(DType::f8e4m3fn, &code, 0) * static_cast<double>(scale);
        const double v = static_cast<double>(x);
        saturated += std::abs(v) > 464 * static_cast<double>(scale) ? 1 : 0;
        flushed += v != 0 && back == 0 ? 1 : 0;
        error += (v - back) * (v - back);
        squares += v * v;
      }
      const double percent = 100 / static_cast<double>(w.size());
      EXPECT_GT(saturated, 0);
      EXPECT_NEAR(o["saturation_percent"][layer].get<double>(), saturated * percent, 1e-9) << dot;
      EXPECT_NEAR(o["underflow_percent"][layer].get<double>(), flushed * percent, 1e-9) << dot;
      EXPECT_NEAR(o["relative_error"][layer].get<double>(), std::sqrt(error / squares), 1e-6) << dot;
      EXPECT_FLOAT_EQ(o["scale"][layer].get<float>(), scale);
      worst = std::max(worst, saturated * percent);
    }
  }
  // Activations are shared by the dots that read them; gradients come in E5M2, for each of their two dots.
  EXPECT_EQ(losses.at("act decoder/layers/self_attention/key")["dots"].size(), 3U);
  for (const auto& [dot, tensor] : kDots) {
    for (const std::string operand : {"act ", "dgrad ", "wgrad "}) {
      const nlohmann::json& o = losses.at(operand + dot);
      EXPECT_EQ(o["format"], operand == "act " ? "f8e4m3fn" : "f8e5m2");
      for (size_t layer = 0; layer < 2; ++layer) {
        EXPECT_EQ(o["saturation_percent"][layer], 0.0) << operand << dot;
        EXPECT_GT(o["relative_error"][layer], 0.005) << operand << dot;
        EXPECT_LT(o["relative_error"][layer], operand == "act " ? 0.04 : 0.08) << operand << dot;
      }
    }
  }
  EXPECT_NEAR(f.records("a")[0]["quantization"]["saturation_percent"].get<double>(), worst, 1e-9);

  // Parts of a tensor add up to the whole's.
  const auto agree = [&](const std::string& name, const Words& mesh) {
    Words more = words;
    more.insert(more.end(), mesh.begin(), mesh.end());
    ASSERT_OK(f.train(name, more));
    const auto parts = first_losses(f, name);
    ASSERT_EQ(parts.size(), losses.size());
    for (const auto& [operand, whole] : losses) {
      // Where tokens are contracted their scales are a micro-step's own.
      if (name == "micro_steps" && operand.starts_with("wgrad")) continue;
      for (const char* number : {"saturation_percent", "underflow_percent", "relative_error"}) {
        for (size_t layer = 0; layer < 2; ++layer) {
          const double want = whole[number][layer];
          EXPECT_NEAR(parts.at(operand)[number][layer].get<double>(), want, 2e-3 * want + 1e-9)
              << name << " " << operand << " " << number;
        }
      }
    }
  };
  agree("ranks", {"ranks=2", "ici_fsdp_parallelism=2", "per_device_batch_size=1"});
  agree("micro_steps", {"gradient_accumulation_steps=2", "per_device_batch_size=1"});
}

TEST(QuantizationMetrics, AreOnLoggedStepsAndOffLeaveNothing) {
  const RunFolder f;
  ASSERT_OK(f.train("on", fp8({"quantization_metrics=true", "steps=4", "log_period=3"})));
  for (const nlohmann::json& record : f.records("on"))
    EXPECT_EQ(record.contains("quantization"), record["step"] == 0 || record["step"] == 3);
  const auto lines = read_text(f.run("on") + "/quantization.jsonl").value();
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 2);
  ASSERT_OK(f.train("off", fp8({"steps=4"})));
  EXPECT_FALSE(path_exists(f.run("off") + "/quantization.jsonl"));
  EXPECT_FALSE(f.records("off")[0].contains("quantization"));
  EXPECT_EQ(f.tensors("on", 4), f.tensors("off", 4));
}

// Of the width that a TPU is for: a passing tiny tensor costs nothing there.
plan::Program program_of(const RunFolder& f, Words words, double& tpu_seconds) {
  words.insert(words.end(),
               {"base_emb_dim=1024", "base_mlp_dim=4096", "head_dim=256", "max_target_length=1024"});
  const auto config = config::Config::parse(f.yaml(), "tiny.yml", words);
  EXPECT_TRUE(config.ok()) << config.status().message();
  const auto setup = train::make_setup(*config, nullptr);
  EXPECT_TRUE(setup.ok()) << setup.status().message();
  auto program = plan::make_program(setup->step);
  EXPECT_TRUE(program.ok()) << program.status().message();
  const hw::Spec spec = hw::Spec::load("tpu7x").value();
  const auto price = plan::price(*program, setup->step, spec, hw::parse_topology("tpu7x-2", spec).value());
  EXPECT_TRUE(price.ok()) << price.status().message();
  tpu_seconds = price->step_seconds;
  return std::move(program).value();
}

int64_t count_of(const ir::Graph& g, const std::function<bool(const ir::Node&)>& is) {
  int64_t n = 0;
  ir::for_each_node(g, [&](const ir::Graph& in, int32_t id, int) { n += is(in.node(id)) ? 1 : 0; });
  return n;
}

TEST(StaticRanges, AreRecordedByOneRunAndTakenByAnother) {
  const RunFolder f;
  const std::string stats = f / "stats.json";
  const Words record = {"quantization_scales=tensor", "save_quant_stats_path=" + stats};
  Words still = fp8({"steps=1", "learning_rate=0"});
  still.insert(still.end(), record.begin(), record.end());
  ASSERT_OK(f.train("still", still));
  auto file = read_json(stats).value();
  for (const auto& [dot, tensor] : kDots) {
    for (size_t layer = 0; layer < 2; ++layer) {
      float largest = 0;
      for (const float w : weight_of(f, "still", static_cast<int64_t>(layer), tensor))
        largest = std::max(largest, std::abs(w));
      EXPECT_EQ(file["quant_stats"][dot]["weight"]["mean"][layer].get<float>(), largest) << dot;
      EXPECT_EQ(file["quant_stats"][dot]["weight"]["max"][layer].get<float>(), largest) << dot;
    }
  }

  Words dynamic = fp8({"ranks=2", "ici_fsdp_parallelism=2"});
  dynamic.insert(dynamic.end(), record.begin(), record.end());
  ASSERT_OK(f.train("dynamic", dynamic));
  file = read_json(stats).value();
  EXPECT_EQ(file["steps"], 8);
  for (const auto& [dot, tensor] : kDots) {
    for (const char* operand : {"weight", "act", "bwd"}) {
      const nlohmann::json& o = file["quant_stats"][dot][operand];
      for (size_t layer = 0; layer < 2; ++layer) {
        EXPECT_GT(o["mean"][layer], 0.0) << dot << operand;
        EXPECT_LT(o["mean"][layer], o["max"][layer]) << dot << operand;
      }
    }
  }

  // No pass over a tensor finds its scale, and no rank asks another for it.
  Words recorded = fp8({"ranks=2", "ici_fsdp_parallelism=2", "load_quant_stats_path=" + stats});
  for (const char* operand : {"weight", "act", "bwd"})
    recorded.push_back(fmt::format("{}_quantization_calibration_method=static", operand));
  double static_seconds = 0, dynamic_seconds = 0;
  dynamic.pop_back();
  const plan::Program with = program_of(f, recorded, static_seconds),
                      without = program_of(f, dynamic, dynamic_seconds);
  const auto is_absmax = [](const ir::Node& n) { return n.kind == "absmax"; };
  const auto is_maximum = [](const ir::Node& n) {
    return n.kind == "all_reduce" && n.attrs.get_or<std::string>("fn", "") == "max";
  };
  EXPECT_EQ(count_of(*with.local, is_absmax), 0);
  EXPECT_EQ(count_of(*with.local, is_maximum), 0);
  EXPECT_GT(count_of(*without.local, is_absmax), 10);
  EXPECT_GT(count_of(*without.local, is_maximum), 10);
  EXPECT_LT(static_seconds, dynamic_seconds);

  ASSERT_OK(f.train("static", recorded));
  const auto want = f.steps("dynamic"), got = f.steps("static");
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NE(got[i]["loss"], want[i]["loss"]);
    EXPECT_NEAR(got[i]["loss"].get<double>(), want[i]["loss"].get<double>(),
                0.01 * want[i]["loss"].get<double>());
  }
}

TEST(StaticRanges, AFileThatDoesNotFitIsRefused) {
  const RunFolder f;
  const std::string stats = f / "stats.json";
  const auto error = [&](const std::string& text, Words more) {
    EXPECT_TRUE(write_file_atomic(stats, text).ok());
    more.insert(more.end(), {"act_quantization_calibration_method=static", "steps=1"});
    const auto s = f.train("a", fp8(std::move(more)));
    EXPECT_EQ(s.status().code(), Code::user_error);
    return s.status().message();
  };
  const std::string load = "load_quant_stats_path=" + stats;
  EXPECT_EQ(error("", {}),
            "static quantization needs recorded ranges: set load_quant_stats_path to what a run with "
            "save_quant_stats_path wrote");
  EXPECT_NE(error("{", {load}).find(stats), std::string::npos);
  EXPECT_EQ(error("{}", {load}),
            stats + ": an object quant_stats is wanted; a run with save_quant_stats_path writes such a file");
  const std::string act = R"({"quant_stats": {"decoder/layers/mlp/wo": {"act": {"mean": )";
  EXPECT_NE(error(act + "[1, 2, 3]}}}}", {load})
                .find("act of decoder/layers/mlp/wo: ranges of 3 layers, and this model has 2"),
            std::string::npos);
  EXPECT_NE(error(act + "[1, -2]}}}}", {load}).find("act of decoder/layers/mlp/wo: -2 is no range"),
            std::string::npos);
  EXPECT_NE(
      error(act + "[1, 2]}}}}", {load})
          .find("decoder/layers/self_attention/query: load_quant_stats_path: there is no range of act in "
                "layer 0"),
      std::string::npos);
  EXPECT_NE(error(act + "[1, null]}}}}", {load, "bwd_quantization_calibration_method=static"})
                .find("static gradients need one scale a tensor"),
            std::string::npos);
}

TEST(StaticRanges, ARuleNamesThemAsQwixDoes) {
  const auto rules = [](const std::string& keys) {
    return plan::parse_quantization_rules(
        R"([{"weight_qtype": "float8_e4m3fn", "bwd_qtype": "float8_e5m2", )" + keys + "}]", "rules.json");
  };
  const auto read = rules(R"("act_qtype": "float8_e4m3fn", "act_static_scale": true)");
  ASSERT_OK(read);
  EXPECT_EQ(read->at(0).act.text(), "static");
  EXPECT_EQ(read->at(0).weight.text(), "absmax");
  EXPECT_EQ(rules(R"("act_static_scale": true)").status().message(),
            "rules.json: rule 1: act_static_scale needs an act_qtype");
  EXPECT_EQ(rules(R"("act_static_scale": true, "act_calibration_method": "rms,7")").status().message(),
            "rules.json: rule 1: act_static_scale and act_calibration_method: give one");
  EXPECT_NE(rules(R"("act_static_scale": 1)").status().message().find("true or false"), std::string::npos);
}

TEST(Compare, IsTheFirstStepOfBothRuns) {
  const RunFolder f;
  const Words words = {"dtype=bfloat16", "bf16_dot=fma", "steps=1", "gradient_clipping_threshold=0"};
  ASSERT_OK(f.train("plain", words));
  Words quantised = fp8({"quantization_metrics=true"});
  quantised.insert(quantised.end(), words.begin(), words.end());
  ASSERT_OK(f.train("quantised", quantised));
  Words command = {"compare", f / "tiny.yml", "--json"};
  command.insert(command.end(), quantised.begin(), quantised.end());
  const Ended ended = run(f, command);
  ASSERT_EQ(ended.code, 0) << ended.err;
  const auto j = parse_json(ended.out, "compare").value();
  const auto plain = f.records("plain")[0], own = f.records("quantised")[0];
  EXPECT_EQ(j["loss"], plain["loss"]);
  EXPECT_EQ(j["quantised_loss"], own["loss"]);
  EXPECT_NE(j["loss"], j["quantised_loss"]);
  EXPECT_NEAR(j["grad_norm"].get<double>(), plain["grad_norm"].get<double>(), 1e-5);
  EXPECT_NEAR(j["quantised_grad_norm"].get<double>(), own["grad_norm"].get<double>(), 1e-5);
  EXPECT_GT(j["gradient_error"], 0.01);
  EXPECT_LT(j["gradient_error"], 0.3);
  EXPECT_EQ(j["gradients"].size(), 2 * 9 + 3U);
  const auto losses = first_losses(f, "quantised");
  for (const nlohmann::json& o : j["operands"])
    for (const std::string dot : o["dots"])
      EXPECT_EQ(o, losses.at(o["operand"].get<std::string>() + " " + dot));

  // On a mesh, of a checkpoint, as text; a tolerance that it is beyond; nothing to compare.
  command.insert(command.end(), {"run_name=quantised", "ranks=2", "ici_fsdp_parallelism=2"});
  std::erase(command, "--json");
  const Ended text = run(f, command);
  EXPECT_EQ(text.code, 0) << text.err;
  for (const char* part : {"checkpoints/1", "gradients that differ most", "operands that lose most", "of dot",
                           "decoder/layers/"})
    EXPECT_NE(text.out.find(part), std::string::npos) << part << " is not in " << text.out;
  command.insert(command.begin() + 1, {"--tolerance", "0.0001"});
  const Ended beyond = run(f, command);
  EXPECT_EQ(beyond.code, 1);
  EXPECT_NE(beyond.err.find("more than --tolerance 0.0001"), std::string::npos) << beyond.err;
  const Ended nothing = run(f, {"compare", f / "tiny.yml"});
  EXPECT_EQ(nothing.code, 2);
  EXPECT_NE(nothing.err.find("nothing is quantised"), std::string::npos) << nothing.err;
}

}  // namespace
}  // namespace lignum::testing
