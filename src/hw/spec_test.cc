#include "hw/spec.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/json.h"

namespace lignum::hw {
namespace {

using nlohmann::json;

std::string file_text(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string spec_path(const std::string& name) { return LIGNUM_SOURCE_DIR "/specs/" + name + ".json"; }

json tpu7x_json() { return parse_json(file_text(spec_path("tpu7x")), "tpu7x").value(); }

// The message of refusing tpu7x after `change`, or "accepted".
template <class F>
std::string refusal(F change) {
  json j = tpu7x_json();
  change(j);
  const Result<Spec> spec = Spec::parse(j.dump(), "t.json");
  if (spec.ok()) return "accepted";
  EXPECT_EQ(spec.status().code(), Code::user_error);
  return spec.status().message();
}

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST(Spec, EveryFileOfTheFolderLoadsAndIsTheOneBuiltIn) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(LIGNUM_SOURCE_DIR "/specs")) {
    if (entry.path().extension() != ".json") continue;
    ++files;
    const Result<Spec> from_file = Spec::load(entry.path().string());
    ASSERT_TRUE(from_file.ok()) << from_file.status().message();
    EXPECT_EQ(from_file->name(), entry.path().stem().string());
    const Result<Spec> built_in = Spec::load(from_file->name());
    ASSERT_TRUE(built_in.ok()) << built_in.status().message();
    EXPECT_SAYS(built_in->origin(), "built in");
    ASSERT_EQ(built_in->quantities().size(), from_file->quantities().size());
    for (const auto& [key, quantity] : from_file->quantities()) {
      EXPECT_EQ(built_in->find(key)->value, quantity.value) << key;
      EXPECT_FALSE(quantity.source.empty()) << key;
    }
  }
  EXPECT_EQ(files, 3);
}

TEST(Spec, Tpu7xPerDeviceAndPerChip) {
  const Result<Spec> loaded = Spec::load("tpu7x");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const Spec& s = *loaded;
  EXPECT_EQ(s.kind(), SpecKind::tpu);
  EXPECT_EQ(s.devices_per_chip(), 2);
  EXPECT_EQ(s.tensorcores_per_chip(), 2);
  EXPECT_EQ(*s.device_memory(), 101724450816.0);
  EXPECT_EQ(*s.peak_matmul_flops(DType::bf16), 1153.5e12);
  EXPECT_EQ(*s.get("chip.peak_matmul.bf16"), 2 * *s.peak_matmul_flops(DType::bf16));
  EXPECT_EQ(*s.matmul_flops(DType::bf16), 926e12);
  EXPECT_EQ(*s.matmul_flops(DType::f8e4m3fn), 1872e12);
  EXPECT_EQ(*s.matmul_flops(DType::f8e5m2), 1872e12);
  EXPECT_EQ(s.find("device.matmul.bf16")->evidence, Evidence::compiler_estimate);
  EXPECT_EQ(s.find("device.matmul.bf16")->density, "dense");
  EXPECT_EQ(*s.memory_bandwidth(), 3.2e12);
  EXPECT_EQ(*s.link_bandwidth(), 89.5e9);
  EXPECT_EQ(*s.dcn_bandwidth(), 12.5e9);  // 100 Gbit/s
  EXPECT_EQ(*s.fast_memory(), 64.0 * 1024 * 1024);
  EXPECT_EQ(*s.get("chip.memory"), 192.0 * 1024 * 1024 * 1024);
  EXPECT_EQ(*s.dispatch_seconds(), 0.0);
  // Usable memory of the two devices fits into the chip's.
  EXPECT_LT(2 * *s.device_memory(), *s.get("chip.memory"));
}

TEST(Spec, FittedNumbersStandInOnlyWhenAsked) {
  const Result<Spec> with = Spec::load("tpu7x"), without = Spec::load("tpu7x", Fitted::ignore);
  ASSERT_TRUE(with.ok() && without.ok());
  EXPECT_EQ(*with->get("elementwise.multiplier"), 1.77);
  EXPECT_EQ(with->find("elementwise.multiplier")->evidence, Evidence::fitted);
  EXPECT_EQ(*without->get("elementwise.multiplier"), 1.0);
  EXPECT_DOUBLE_EQ(*with->get("attention.forward_per_score"), 1.37e-12);
  EXPECT_DOUBLE_EQ(*without->get("attention.forward_per_score"), 1.42e-12);
  for (const auto& [key, quantity] : without->quantities())
    EXPECT_NE(quantity.evidence, Evidence::fitted) << key;
}

TEST(Spec, UnknownOperandsAndKeysAreErrors) {
  const Result<Spec> v5p = Spec::load("v5p");
  ASSERT_TRUE(v5p.ok());
  EXPECT_SAYS(v5p->matmul_flops(DType::f8e4m3fn).status().message(), "device.matmul.f8");
  EXPECT_SAYS(v5p->matmul_flops(DType::i64).status().message(), "i64");
  EXPECT_SAYS(v5p->get("device.colour").status().message(), "device.colour");
}

TEST(Spec, UnknownNameListsWhatExists) {
  const Result<Spec> spec = Spec::load("tpu9");
  ASSERT_FALSE(spec.ok());
  EXPECT_EQ(spec.status().code(), Code::user_error);
  for (const char* part : {"tpu9", "tpu7x", "v5p", "v6e", "LIGNUM_SPECS"})
    EXPECT_SAYS(spec.status().message(), part);
  EXPECT_SAYS(Spec::load("./absent.json").status().message(), "absent.json");
  EXPECT_SAYS(Spec::parse("{", "broken.json").status().message(), "broken.json: not JSON");
}

TEST(Spec, FolderOfTheEnvironmentComesFirst) {
  const std::string folder = testing::TempDir() + "/lignum_specs_test";
  std::filesystem::create_directories(folder);
  json j = tpu7x_json();
  j["device"]["memory"]["value"] = 7;
  std::ofstream(folder + "/tpu7x.json") << j.dump();
  j["name"] = "mine";
  std::ofstream(folder + "/mine.json") << j.dump();
  ASSERT_EQ(::setenv("LIGNUM_SPECS", folder.c_str(), 1), 0);
  const Result<Spec> shadowed = Spec::load("tpu7x"), mine = Spec::load("mine"), built_in = Spec::load("v6e");
  const std::vector<std::string> names = Spec::names();
  ::unsetenv("LIGNUM_SPECS");
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(shadowed.ok() && mine.ok() && built_in.ok());
  EXPECT_EQ(*shadowed->device_memory(), 7);
  EXPECT_SAYS(shadowed->origin(), folder);
  EXPECT_EQ(names, (std::vector<std::string>{"mine", "tpu7x", "v5p", "v6e"}));
}

TEST(SpecRefuses, WrongUnitNamesKeyAndAllowedUnits) {
  const std::string m = refusal([](json& j) { j["link"]["bandwidth"]["unit"] = "GiB"; });
  for (const char* part : {"t.json", "link.bandwidth.unit", "GiB", "GB/s", "Gbit/s"}) EXPECT_SAYS(m, part);
}

TEST(SpecRefuses, ValuesOutOfRange) {
  EXPECT_SAYS(refusal([](json& j) { j["device"]["memory_bandwidth"]["value"] = -3200; }),
              "device.memory_bandwidth.value");
  EXPECT_SAYS(refusal([](json& j) { j["device"]["memory_bandwidth"]["value"] = 0; }), "finite positive");
  EXPECT_SAYS(refusal([](json& j) { j["device"]["memory"]["value"] = "many"; }), "device.memory.value");
  EXPECT_SAYS(refusal([](json& j) { j["chip"]["devices"]["value"] = 1.5; }), "chip.devices.value");
  EXPECT_SAYS(refusal([](json& j) { j["collective"]["overlap"]["value"] = -0.1; }),
              "collective.overlap.value");
  EXPECT_EQ(refusal([](json& j) { j["collective"]["overlap"]["value"] = 0; }), "accepted");
}

TEST(SpecRefuses, MissingFields) {
  EXPECT_SAYS(refusal([](json& j) { j["device"].erase("memory"); }), "device.memory: missing");
  EXPECT_SAYS(refusal([](json& j) { j["device"]["matmul"].erase("bf16"); }), "device.matmul.bf16: missing");
  EXPECT_SAYS(refusal([](json& j) { j["device"]["memory"].erase("source"); }),
              "device.memory: no \"source\"");
  EXPECT_SAYS(refusal([](json& j) { j["device"]["memory"].erase("unit"); }), "device.memory: no \"unit\"");
  EXPECT_SAYS(refusal([](json& j) { j["device"]["matmul"]["bf16"].erase("density"); }),
              "device.matmul.bf16.density");
  EXPECT_SAYS(refusal([](json& j) { j["device"]["memory"] = 5; }), "device.memory: 5 is a bare value");
  EXPECT_SAYS(refusal([](json& j) { j.erase("torus"); }), "torus: missing");
  EXPECT_SAYS(refusal([](json& j) { j.erase("name"); }), "name: missing");
  EXPECT_SAYS(refusal([](json& j) { j["schema"] = 2; }), "schema: 2");
}

TEST(SpecRefuses, WhatItDoesNotKnow) {
  EXPECT_SAYS(refusal([](json& j) { j["device"]["memry"] = j["device"]["memory"]; }),
              "device.memry: no such key");
  EXPECT_SAYS(refusal([](json& j) { j["device"]["memory"]["valeu"] = 1; }), "device.memory.valeu");
  EXPECT_SAYS(refusal([](json& j) { j["device"]["memory"]["kind"] = "guessed"; }), "device.memory.kind");
  EXPECT_SAYS(refusal([](json& j) { j["device"]["matmul"]["f4"] = j["device"]["matmul"]["f8"]; }),
              "device.matmul.f4");
  EXPECT_SAYS(refusal([](json& j) { j["device"]["memory"]["density"] = "dense"; }), "device.memory.density");
  EXPECT_SAYS(refusal([](json& j) { j["curves"] = json::object(); }), "curves: no such key");
  EXPECT_SAYS(refusal([](json& j) { j["kind"] = "gpu"; }), "kind: \"gpu\"");
}

TEST(SpecRefuses, FittedOutsideItsSection) {
  EXPECT_SAYS(refusal([](json& j) { j["device"]["memory_bandwidth"]["kind"] = "fitted"; }),
              "under \"fitted\"");
  EXPECT_SAYS(refusal([](json& j) { j["fitted"]["elementwise"]["multiplier"]["kind"] = "measured"; }),
              "fitted.elementwise.multiplier.kind");
  EXPECT_SAYS(refusal([](json& j) {
                j["chip"].erase("die_bandwidth");
                j["fitted"]["chip"]["die_bandwidth"] = {
                    {"value", 1}, {"unit", "GB/s"}, {"kind", "fitted"}, {"source", "x"}};
              }),
              "fitted.chip.die_bandwidth: stands in for no number");
}

TEST(SpecRefuses, SlicesThatMixChipsAndDevices) {
  // tpu7x-8 is 4 chips: 2x2x2 would be 8 chips, the classic mistake.
  EXPECT_SAYS(refusal([](json& j) { j["torus"]["slices"]["8"] = "2x2x2"; }),
              "torus.slices.8: 2x2x2 is 8 chips");
  EXPECT_SAYS(refusal([](json& j) { j["torus"]["slices"]["8"] = "2x2"; }), "torus.slices.8");
  EXPECT_SAYS(refusal([](json& j) { j["torus"]["wrap"]["rule"] = "always"; }), "torus.wrap.rule");
}

TEST(Units, ScalesAndBaseUnits) {
  EXPECT_EQ(unit_scale(Dimension::bytes, "GiB"), 1073741824.0);
  EXPECT_EQ(unit_scale(Dimension::byte_rate, "Gbit/s"), 125e6);
  EXPECT_EQ(unit_scale(Dimension::flop_rate, "TFLOP/s"), 1e12);
  EXPECT_EQ(unit_scale(Dimension::bytes, "GB/s"), std::nullopt);
  for (const Dimension d :
       {Dimension::flop_rate, Dimension::byte_rate, Dimension::bytes, Dimension::seconds,
        Dimension::frequency, Dimension::seconds_per_score, Dimension::count, Dimension::ratio}) {
    EXPECT_EQ(unit_scale(d, dimension_base_unit(d)), 1.0) << dimension_base_unit(d);
  }
}

TEST(Units, QuantityRoundTrip) {
  const Result<Spec> spec = Spec::load("tpu7x");
  ASSERT_TRUE(spec.ok());
  for (const auto& [key, quantity] : spec->quantities()) {
    const Result<Quantity> again = parse_quantity(to_json(quantity), quantity.dimension, key);
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ(again->value, quantity.value) << key;
    EXPECT_EQ(again->evidence, quantity.evidence) << key;
    EXPECT_EQ(again->density, quantity.density) << key;
  }
}

}  // namespace
}  // namespace lignum::hw
