// What each remat policy keeps, against shapes multiplied out by hand; what makes a step fit.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "config/config.h"
#include "config/model_config.h"
#include "plan/budget.h"
#include "plan/price.h"

namespace lignum::plan {
namespace {

using Bytes = std::map<std::string, int64_t>;

constexpr int64_t kRows = 2, kTokens = 64;

Result<ProgramOptions> options(const std::vector<std::string>& words) {
  LIGNUM_ASSIGN_OR_RETURN(
      const config::Config c,
      config::Config::parse("model_name: lignum-tiny\nper_device_batch_size: 2\nmax_target_length: 64\n",
                            "base.yml", words));
  LIGNUM_ASSIGN_OR_RETURN(const config::ModelConfig m, config::model_from_config(c));
  return program_options(c, m, 1);
}

Program made(const std::vector<std::string>& words) {
  const Result<ProgramOptions> o = options(words);
  EXPECT_TRUE(o.ok()) << o.status().message();
  Result<Program> p = make_program(*o);
  EXPECT_TRUE(p.ok()) << p.status().message();
  return std::move(p).value();
}

// Every named tensor of all layers: rows x tokens x width. Nothing reads mlpwo: the layer's output is the
// next layer's input.
Bytes all_tensors(const config::ModelConfig& m, int64_t width) {
  const int64_t each = m.layers * kRows * kTokens * width;
  const int64_t sums = m.layers * kRows * kTokens * m.heads * 4;  // attention's, f32
  return {{"decoder_layer_input", each * m.hidden},
          {"query_proj", each * m.heads * m.head_dim},
          {"key_proj", each * m.kv_heads * m.head_dim},
          {"value_proj", each * m.kv_heads * m.head_dim},
          {"context", each * m.heads * m.head_dim + sums},
          {"out_proj", each * m.hidden},
          {"mlpwi_0", each * m.mlp},
          {"mlpwi_1", each * m.mlp}};
}

Bytes saved(const Program& p) {
  Bytes bytes;
  for (const passes::MemoryPart& part : p.memory.saved)
    if (part.name.find('/') == std::string::npos && part.name.find(' ') == std::string::npos)
      bytes[part.name] = part.bytes;
  return bytes;
}

Bytes only(const Bytes& all, const std::vector<std::string>& names) {
  Bytes bytes = {{"decoder_layer_input", all.at("decoder_layer_input")}};
  for (const std::string& name : names) bytes[name] = all.at(name);
  return bytes;
}

const std::vector<std::string> kQkv = {"query_proj", "key_proj", "value_proj"};
std::vector<std::string> with(std::vector<std::string> names, const std::vector<std::string>& more) {
  names.insert(names.end(), more.begin(), more.end());
  return names;
}

TEST(Saved, EqualsThePlanTensorByTensor) {
  const std::vector<std::string> dots = with(kQkv, {"out_proj", "mlpwi_0", "mlpwi_1"});
  const std::pair<std::vector<std::string>, std::vector<std::string>> cases[] = {
      {{"remat_policy=full"}, {}},
      {{"remat_policy=minimal"}, dots},
      {{"remat_policy=minimal_with_context"}, with(dots, {"context"})},
      {{"remat_policy=minimal_flash"}, with(dots, {"context"})},
      {{"remat_policy=minimal_with_quantization"}, dots},
      {{"remat_policy=minimal_with_context_and_quantization"}, with(dots, {"context"})},
      {{"remat_policy=save_dot_with_context_except_mlp"}, with(kQkv, {"context", "out_proj"})},
      {{"remat_policy=save_dot_except_mlpwi"}, with(kQkv, {"out_proj"})},
      {{"remat_policy=save_dot_except_mlp"}, with(kQkv, {"out_proj"})},
      {{"remat_policy=save_qkv_proj"}, kQkv},
      {{"remat_policy=save_out_proj"}, {"out_proj"}},
      {{"remat_policy=custom"}, {}},
      {{"remat_policy=custom", "context=device", "mlpwi_1=device"}, {"context", "mlpwi_1"}},
  };
  for (const char* dtype : {"float32", "bfloat16"}) {
    const Bytes all = all_tensors(*config::preset("lignum-tiny"), dtype == std::string("float32") ? 4 : 2);
    for (const auto& [words, names] : cases) {
      SCOPED_TRACE(words.back() + " " + dtype);
      EXPECT_EQ(saved(made(with(words, {std::string("dtype=") + dtype}))), only(all, names));
    }
    // All named ones, and others beside them.
    const Program none = made({"remat_policy=none", std::string("dtype=") + dtype});
    for (const auto& [name, bytes] : saved(none)) EXPECT_EQ(bytes, all.at(name)) << name;
    EXPECT_GT(none.memory.saved.size(), saved(none).size());
  }
}

// In host memory each row begins at a block of its own.
TEST(Saved, HostMemoryHasWhatIsOffloaded) {
  const config::ModelConfig m = *config::preset("lignum-tiny");
  const std::pair<std::vector<std::string>, std::vector<std::string>> cases[] = {
      {{"remat_policy=qkv_proj_offloaded"}, kQkv},
      {{"remat_policy=minimal_offloaded"}, with(kQkv, {"out_proj", "mlpwi_0", "mlpwi_1"})},
      {{"remat_policy=custom", "context=device", "mlpwi_0=offload"}, {"mlpwi_0"}},
      {{"remat_policy=custom", "decoder_layer_input=offload"}, {"decoder_layer_input"}},
  };
  for (const auto& [words, names] : cases) {
    SCOPED_TRACE(words.back());
    const Program p = made(words);
    Bytes expected, offloaded;
    const Bytes all = all_tensors(m, 4);
    for (const std::string& name : names)
      expected[name] = m.layers * ((all.at(name) / m.layers + passes::kHostAlign - 1) / passes::kHostAlign *
                                   passes::kHostAlign);
    int64_t sum = 0;
    for (const passes::MemoryPart& part : p.memory.offloaded) {
      offloaded[part.name] = part.bytes;
      sum += part.bytes;
    }
    EXPECT_EQ(offloaded, expected);
    EXPECT_EQ(p.memory.host_bytes, sum);
    for (const auto& [name, bytes] : saved(p)) EXPECT_FALSE(expected.contains(name)) << name;
  }
}

// Parameters and moments leave the arena whole: each row of a stack, each other tensor, in whole blocks.
TEST(Saved, HostMemoryHasTheState) {
  const Program device = made({"remat_policy=full"}),
                host = made({"remat_policy=full", "optimizer_memory_host_offload=true",
                             "parameter_memory_host_offload=true"});
  const ir::Graph& g = *device.scheduled.graph;
  int64_t sum = 0, left = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(g.params().size()); ++i) {
    const ir::Type& t = g.type(g.param_value(i));
    if (t.names.empty() || t.names[0] == "activation_batch" || t.rank() == 0) continue;
    const int64_t rows = t.names[0] == "layers" ? t.dims[0] : 1;
    sum += rows * ((t.bytes() / rows + 4095) / 4096 * 4096);
    left += (t.bytes() + 63) / 64 * 64;
  }
  EXPECT_EQ(host.memory.host_state_bytes, sum);
  EXPECT_EQ(host.memory.host_bytes, sum);
  EXPECT_EQ(host.memory.state_bytes, device.memory.state_bytes - left);
  EXPECT_LT(host.memory.arena_bytes, device.memory.arena_bytes - left / 2);
  ASSERT_EQ(host.memory.host_state.size(), 2U);
}

TEST(Saved, WhatKeepsNothingIsSaid) {
  const auto notes = [](const std::vector<std::string>& words) {
    std::string text;
    for (const std::string& note : made(words).notes) text += note + "\n";
    return text;
  };
  EXPECT_EQ(notes({"remat_policy=minimal"}), "");
  EXPECT_EQ(notes({"remat_policy=custom", "context=device"}), "");
  EXPECT_EQ(notes({"remat_policy=full", "context=device", "mlpwo=remat"}),
            "context=device: no effect with remat_policy=full; remat_policy=custom reads it\n");
  EXPECT_EQ(
      notes({"remat_policy=custom", "qkv_proj=device"}),
      "qkv_proj=device: this model has no tensor of that name; it has context, key_proj, mlpwi_0, mlpwi_1, "
      "mlpwo, out_proj, query_proj, value_proj\n");
  EXPECT_EQ(notes({"remat_policy=custom", "mlpwo=device"}),
            "mlpwo=device: no gradient of this model reads it, so it is not kept\n");
  EXPECT_EQ(notes({"remat_policy=minimal_with_quantization"}),
            "remat_policy: nothing is quantised, so no quantization is kept\n");
  EXPECT_EQ(notes({"remat_policy=custom", "mlpwo=offload"}),
            "mlpwo=offload: no gradient of this model reads it, so it is not kept\n");
}

// From the policy that keeps most to the one that keeps least: more is computed again, less is held.
TEST(Saved, LessHeldIsMoreComputed) {
  double flops = -1;
  int64_t bytes = int64_t{1} << 60;
  for (const std::string_view policy : passes::device_policies()) {
    const Program p = made({fmt::format("remat_policy={}", policy)});
    EXPECT_GE(recomputed_flops(p.scheduled), flops) << policy;
    EXPECT_LE(p.memory.arena_bytes, bytes) << policy;
    flops = recomputed_flops(p.scheduled);
    bytes = p.memory.arena_bytes;
  }
}

TEST(Budget, ChangesThatFitArePlanned) {
  const Result<ProgramOptions> o = options({"remat_policy=none"});
  ASSERT_TRUE(o.ok());
  const Program p = *make_program(*o);
  Machine machine;
  EXPECT_TRUE(check_budget(*o, p, machine).ok());  // no budget
  machine.device_memory = p.memory.arena_bytes;
  EXPECT_TRUE(check_budget(*o, p, machine).ok());
  --machine.device_memory;
  const Changes changes = find_changes(*o, p, machine);
  ASSERT_FALSE(changes.fitting.empty());
  // What recomputes nothing of weight comes first, what recomputes a layer later.
  for (size_t i = 1; i < changes.fitting.size(); ++i)
    EXPECT_LE(changes.fitting[i - 1].computed_flops, changes.fitting[i].computed_flops);
  for (const Change& c : changes.fitting) EXPECT_LE(c.arena_bytes, machine.device_memory) << c.keys;
  // What is offered is what the same keys give.
  const Change& last = changes.fitting.back();
  EXPECT_EQ(last.keys, "remat_policy=full");
  EXPECT_EQ(made({last.keys}).memory.arena_bytes, last.arena_bytes);

  const Status refused = check_budget(*o, p, machine);
  ASSERT_FALSE(refused.ok());
  for (const char* part : {"device_memory", "TOO MUCH", "weights", "optimizer", "gradients", "mlpwi_0",
                           "what fits", "remat_policy=minimal", "per_device_batch_size=1"})
    EXPECT_NE(refused.message().find(part), std::string::npos) << part << "\n" << refused.message();
}

TEST(Budget, SeveralLeversAreTakenWhereOneIsNotEnough) {
  const Result<ProgramOptions> o = options({"remat_policy=none", "per_device_batch_size=8"});
  ASSERT_TRUE(o.ok());
  const Program p = *make_program(*o);
  Machine machine;
  machine.device_memory = p.memory.arena_bytes;  // less than this: what one lever alone reaches
  const Changes ones = find_changes(*o, p, machine);
  for (const Change& one : ones.fitting)
    machine.device_memory = std::min(machine.device_memory, one.arena_bytes - 1);
  const Changes two = find_changes(*o, p, machine);
  ASSERT_FALSE(two.fitting.empty());
  EXPECT_TRUE(std::any_of(two.fitting.begin(), two.fitting.end(),
                          [](const Change& c) { return c.keys.find("remat_policy") != std::string::npos; }));
  EXPECT_NE(two.fitting[0].keys.find(' '), std::string::npos);
  machine.device_memory = 1;
  const Changes none = find_changes(*o, p, machine);
  EXPECT_TRUE(none.fitting.empty());
  ASSERT_TRUE(none.least);
  EXPECT_LT(none.least->arena_bytes, p.memory.arena_bytes);
  EXPECT_NE(check_budget(*o, p, machine).message().find("no other plan fits"), std::string::npos);
}

}  // namespace
}  // namespace lignum::plan
