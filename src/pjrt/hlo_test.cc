#include "pjrt/hlo.h"

#include <gtest/gtest.h>

#include "base/wire.h"

namespace lignum::pjrt {
namespace {

using wire::Writer;

struct Instruction {
  int64_t id;
  std::string name;
  std::string opcode;
  std::vector<int64_t> operands = {};
  std::vector<int64_t> called = {};
  std::string backend_config;
};

std::string encode_shape() {
  Writer shape;
  shape.integer(2, 16);  // bf16
  shape.packed(3, {8, 128});
  return shape.str();
}

std::string encode(const Instruction& i) {
  Writer out;
  out.bytes(1, i.name);
  out.bytes(2, i.opcode);
  Writer tuple;
  tuple.integer(2, 13);
  tuple.bytes(4, encode_shape());
  tuple.bytes(4, encode_shape());
  out.bytes(3, i.opcode == "while" ? tuple.str() : encode_shape());
  out.integer(35, i.id);
  for (int64_t o : i.operands) out.integer(36, o);  // unpacked: readers must take both forms
  out.packed(38, i.called);
  if (!i.backend_config.empty()) out.bytes(43, i.backend_config);
  Writer attribute;
  attribute.bytes(1, "_xla_buffer_placement");
  attribute.bytes(2, "pinned_host");
  Writer attributes;
  attributes.bytes(1, attribute.str());
  if (i.opcode == "custom-call") out.bytes(68, attributes.str());
  return out.str();
}

std::string encode_computation(int64_t id, const std::string& name,
                               const std::vector<Instruction>& instructions) {
  Writer out;
  out.bytes(1, name);
  for (const Instruction& i : instructions) out.bytes(2, encode(i));
  out.integer(5, id);
  out.integer(6, instructions.back().id);
  return out.str();
}

std::string encode_module(const std::vector<std::string>& computations, int64_t entry,
                          const std::map<int64_t, std::vector<int64_t>>& schedule) {
  Writer module;
  module.bytes(1, "step");
  for (const std::string& c : computations) module.bytes(3, c);
  module.integer(6, entry);
  Writer sequences;
  for (const auto& [id, order] : schedule) {
    Writer sequence;
    sequence.packed(1, order);
    Writer entry_writer;
    entry_writer.integer(1, id);
    entry_writer.bytes(2, sequence.str());
    sequences.bytes(1, entry_writer.str());
  }
  module.bytes(7, sequences.str());
  Writer out;
  out.bytes(1, module.str());
  out.bytes(2, "ignored config");
  return out.str();
}

// A loop whose body starts a gather, hands it its operand, multiplies, and waits; the schedule differs from
// the order in which the instructions are listed.
std::string loop_module() {
  const std::string fused =
      encode_computation(1, "fused", {{10, "p", "parameter"}, {11, "dot.1", "dot", {10, 10}}});
  const std::string gather =
      encode_computation(2, "gather", {{20, "p", "parameter"}, {21, "ag", "all-gather", {20}}});
  const std::string body = encode_computation(
      3, "body",
      {{30, "arg", "parameter"},
       {31, "ag.start", "async-start", {}, {2}},
       {32, "before", "convolution", {30, 30}},
       {33, "ag.update", "async-update", {31, 30}},
       {34, "ag.done", "async-done", {33}},
       {35, "hidden", "fusion", {30}, {1}, R"({"window_config":{"estimated_cycles":"1234"}})"},
       {36,
        "after",
        "dot",
        {34, 35},
        {},
        R"({"window_config":{"estimated_cycles":"9223372036854775807"}})"}});
  const std::string condition = encode_computation(4, "condition", {{40, "p", "parameter"}});
  const std::string entry = encode_computation(
      5, "main",
      {{50, "p", "parameter"}, {51, "loop", "while", {50}, {3, 4}}, {52, "host", "custom-call", {51}}});
  return encode_module({fused, gather, body, condition, entry}, 5,
                       {{3, {30, 31, 32, 33, 35, 34, 36}}, {5, {50, 51, 52}}});
}

TEST(Hlo, DecodesInScheduleOrder) {
  auto program = HloProgram::decode(loop_module());
  ASSERT_TRUE(program.ok()) << program.status().message();
  EXPECT_EQ(program->name(), "step");
  EXPECT_EQ(program->entry().name, "main");
  const HloInstruction& loop = program->entry().instructions[1];
  EXPECT_EQ(loop.shape.to_string(), "(bf16[8,128], bf16[8,128])");
  EXPECT_EQ(program->entry().instructions[2].frontend_attributes.at("_xla_buffer_placement"), "pinned_host");

  const auto bodies = program->while_bodies();
  ASSERT_EQ(bodies.size(), 1u);
  const HloComputation& body = *bodies[0];
  EXPECT_EQ(body.name, "body");
  EXPECT_TRUE(body.scheduled);
  EXPECT_FALSE(program->computation("fused")->scheduled);
  EXPECT_EQ(body.instructions[4].name, "hidden");
  EXPECT_EQ(body.instructions[4].estimated_cycles, 1234);
  EXPECT_EQ(body.instructions[6].estimated_cycles, std::nullopt);  // the compiler's "unknown"
  EXPECT_EQ(body.instructions[0].parameter_number, 0);

  EXPECT_EQ(program->count_dots(body), 3);
  EXPECT_EQ(program->count_dots(program->entry()), 3);
  EXPECT_EQ(program->count_collectives(), (std::map<std::string, int64_t>{{"all-gather", 1}}));
  const auto collectives = program->async_collectives(body);
  ASSERT_EQ(collectives.size(), 1u);
  EXPECT_EQ(collectives[0].name, "ag.start");
  EXPECT_EQ(collectives[0].collective, "all-gather");
  EXPECT_EQ(collectives[0].start, 1u);
  EXPECT_EQ(collectives[0].issue, 3u);
  EXPECT_EQ(collectives[0].done, 5u);
  EXPECT_EQ(collectives[0].dots_between, 1);  // "before" runs before the operand is there
}

TEST(Hlo, TextNamesWhatPeopleLookFor) {
  auto program = HloProgram::decode(loop_module());
  ASSERT_TRUE(program.ok());
  const std::string text = program->to_text();
  EXPECT_EQ(text.find("module step\n\nentry main:\n"), 0u) << text;
  for (const char* line :
       {"  loop: (bf16[8,128], bf16[8,128]) = while(p) calls=body,condition dots=3\n",
        "  hidden: bf16[8,128] = fusion(arg) calls=fused dots=1 cycles=1234\n",
        "  root after: bf16[8,128] = dot(ag.done, hidden) dots=1\n", "fused (not scheduled):\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
  EXPECT_LT(text.find("ag.update:"), text.find("hidden:"));
  EXPECT_LT(text.find("hidden:"), text.find("ag.done:"));
}

TEST(Hlo, RefusesMalformedModules) {
  const auto error_of = [](const std::string& bytes) { return HloProgram::decode(bytes).status().message(); };
  EXPECT_NE(error_of("").find("no HLO module"), std::string::npos);
  const std::string leaf = encode_computation(1, "leaf", {{10, "p", "parameter"}});
  EXPECT_NE(error_of(encode_module({leaf}, 9, {})).find("entry is absent"), std::string::npos);
  EXPECT_NE(error_of(encode_module({leaf, leaf}, 1, {})).find("two computations with id 1"),
            std::string::npos);
  EXPECT_NE(error_of(encode_module({leaf}, 1, {{1, {11}}})).find("not an order"), std::string::npos);
  EXPECT_NE(error_of(encode_module({leaf}, 1, {{1, {10, 10}}})).find("not an order"), std::string::npos);
  const std::string lost = encode_computation(1, "lost", {{10, "c", "call", {}, {7}}});
  EXPECT_NE(error_of(encode_module({lost}, 1, {})).find("absent"), std::string::npos);
  const std::string one = encode_computation(1, "one", {{10, "c", "call", {}, {2}}});
  const std::string two = encode_computation(2, "two", {{20, "c", "call", {}, {1}}});
  EXPECT_NE(error_of(encode_module({one, two}, 1, {})).find("calls its own caller"), std::string::npos);
}

// No prefix of a module makes the decoder read beyond it (under ASan this is the check) or accept half an
// instruction.
TEST(Hlo, SurvivesEveryCut) {
  const std::string whole = loop_module();
  int accepted = 0;
  for (size_t cut = 0; cut < whole.size(); ++cut) {
    const std::string copy(whole.data(), cut);
    accepted += HloProgram::decode(copy).ok() ? 1 : 0;
  }
  EXPECT_EQ(accepted, 1);  // the module without its config
}

// 60 levels that each call the next twice: 2^60 dots if counted by walking.
TEST(Hlo, CountsNestedCallsOnceALevel) {
  std::vector<std::string> computations = {encode_computation(0, "c0", {{1, "dot", "dot"}})};
  for (int64_t level = 1; level <= 60; ++level) {
    computations.push_back(encode_computation(
        level, "c" + std::to_string(level),
        {{2 * level, "a", "call", {}, {level - 1}}, {2 * level + 1, "b", "call", {}, {level - 1}}}));
  }
  auto program = HloProgram::decode(encode_module(computations, 60, {}));
  ASSERT_TRUE(program.ok()) << program.status().message();
  EXPECT_EQ(program->count_dots(*program->computation("c3")), 8);
  EXPECT_GT(program->count_dots(program->entry()), int64_t{1} << 39);
}

}  // namespace
}  // namespace lignum::pjrt
