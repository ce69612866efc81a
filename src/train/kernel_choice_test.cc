#include "train/kernel_choice.h"

#include <gtest/gtest.h>

#include "hw/cpu_spec_builder.h"

namespace lignum::train {
namespace {

using kernels::Bf16Dot;

config::Config config_with(const std::vector<std::string>& settings) {
  const Result<config::Config> config = config::Config::parse("model_name: lignum-tiny\n", "test", settings);
  EXPECT_TRUE(config.ok()) << config.status().message();
  return *config;
}

// As if this machine had been calibrated: the way that is named is the fastest of those that `measured` has.
hw::Spec calibrated(const std::vector<Bf16Dot>& measured, Bf16Dot fastest, const std::string& cpu) {
  hw::CpuMachine machine = hw::this_machine(std::string(kernels::isa_name(kernels::best_isa())), "test");
  if (!cpu.empty()) machine.cpu = cpu;
  hw::CpuSpecBuilder b("cpu", machine);
  b.memory(1e9, 1e6).copy_bandwidth(1e9);
  hw::Measurement m;
  m.seconds = 1e-3;
  m.n = 3;
  b.stream(1, 1 << 20, m);
  b.dispatch(1, m);
  b.gemm(DType::f32, 1, 256, 256, 256, m);
  for (const Bf16Dot dot : measured) {
    m.seconds = dot == fastest ? 1e-4 : 1e-3;
    b.gemm(DType::bf16, 1, 256, 256, 256, m, kernels::bf16_dot_name(dot));
  }
  const Result<std::string> text = b.build();
  EXPECT_TRUE(text.ok()) << text.status().message();
  return *hw::Spec::parse(*text, "cpu.json");
}

TEST(KernelChoice, Float32HasNothingToChoose) {
  const auto k = choose_kernels(config_with({"dtype=float32"}), nullptr);
  ASSERT_TRUE(k.ok()) << k.status().message();
  EXPECT_EQ(k->choice, (kernels::Choice{kernels::best_isa(), Bf16Dot::fma}));
  EXPECT_EQ(describe(*k).find("bf16"), std::string::npos);
}

TEST(KernelChoice, SumsOf8BitDotsAreThoseOfTheKeyOrRefused) {
  const std::vector<std::string> words = {"use_qwix_quantization=true", "quantization=fp8_full",
                                          "fp8_accumulation=fp16_64"};
  const auto k = choose_kernels(config_with(words), nullptr);
  constexpr auto kSums = kernels::Fp8Accumulation::fp16_64;
  if (kernels::fp8_accumulation_refusal(kSums, kernels::best_isa()) == nullptr) {
    ASSERT_TRUE(k.ok()) << k.status().message();
    EXPECT_EQ(k->choice.fp8_accumulation, kSums);
    EXPECT_NE(describe(*k).find(", 8-bit dots by fp16_64"), std::string::npos);
  } else {
    EXPECT_EQ(k.status().code(), Code::user_error);
  }
  std::vector<std::string> scalar = words;
  scalar.emplace_back("isa=scalar");
  const auto refused = choose_kernels(config_with(scalar), nullptr);
  EXPECT_EQ(refused.status().message(),
            "fp8_accumulation=fp16_64: it goes with the kernels of isa=avx512 only; set fp32");
}

TEST(KernelChoice, CalibrationDecidesWhereItKnowsEveryWay) {
  const std::vector<Bf16Dot> ways = kernels::available_bf16_dots(kernels::best_isa());
  const config::Config config = config_with({"dtype=bfloat16"});
  for (const Bf16Dot fastest : ways) {
    const hw::Spec spec = calibrated(ways, fastest, "");
    const auto k = choose_kernels(config, &spec);
    ASSERT_TRUE(k.ok()) << k.status().message();
    EXPECT_EQ(k->choice.bf16_dot, fastest);
    EXPECT_NE(describe(*k).find("bf16 dots by " + std::string(kernels::bf16_dot_name(fastest))),
              std::string::npos);
    if (ways.size() > 1) {
      EXPECT_TRUE(k->why.starts_with("calibrated: ")) << k->why;
    }
  }
  if (ways.size() == 1) return;
  // Another machine's numbers, too few of them, or none: this machine is asked.
  const hw::Spec other = calibrated(ways, Bf16Dot::fma, "Another CPU"),
                 part = calibrated({Bf16Dot::fma}, Bf16Dot::fma, "");
  for (const hw::Spec* spec : {&other, &part, static_cast<const hw::Spec*>(nullptr)}) {
    const auto k = choose_kernels(config, spec);
    ASSERT_TRUE(k.ok());
    EXPECT_TRUE(k->why.starts_with("probed: ")) << k->why;
  }
}

TEST(KernelChoice, KeysForceAndAreRefusedWithAReason) {
  for (const Bf16Dot dot : kernels::available_bf16_dots(kernels::best_isa())) {
    const std::string word = "bf16_dot=" + std::string(kernels::bf16_dot_name(dot));
    const auto k = choose_kernels(config_with({"dtype=bfloat16", word}), nullptr);
    ASSERT_TRUE(k.ok()) << k.status().message();
    EXPECT_EQ(k->choice.bf16_dot, dot);
    EXPECT_EQ(k->why, word);
  }
  const auto refused = choose_kernels(config_with({"dtype=bfloat16", "isa=scalar", "bf16_dot=amx"}), nullptr);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::user_error);
  EXPECT_NE(refused.status().message().find("bf16_dot=amx"), std::string::npos);
  EXPECT_NE(refused.status().message().find("this machine has fma"), std::string::npos);
}

TEST(KernelChoice, AResumeFollowsTheCheckpointWhereItMay) {
  const kernels::Isa best = kernels::best_isa();
  const std::string isa(kernels::isa_name(best));
  const config::Config automatic = config_with({"dtype=bfloat16"});
  for (const Bf16Dot now : kernels::available_bf16_dots(best)) {
    const KernelChoice chosen{{best, now}, "probed"};
    for (const Bf16Dot before : kernels::available_bf16_dots(best)) {
      const AdoptedKernels a =
          adopt_kernels(automatic, isa, std::string(kernels::bf16_dot_name(before)), chosen);
      EXPECT_EQ(a.kernels.choice, (kernels::Choice{best, before}));
      EXPECT_TRUE(a.differs.empty());
    }
  }
  // Forced to another way, or a way that this machine cannot have: said.
  const KernelChoice fma{{best, Bf16Dot::fma}, "bf16_dot=fma"};
  const config::Config forced = config_with({"dtype=bfloat16", "bf16_dot=fma"});
  for (const AdoptedKernels& a :
       {adopt_kernels(forced, isa, "amx", fma), adopt_kernels(automatic, isa, "of tomorrow", fma)}) {
    EXPECT_EQ(a.kernels.choice, fma.choice);
    ASSERT_EQ(a.differs.size(), 1U);
    EXPECT_NE(a.differs[0].find("now by fma"), std::string::npos) << a.differs[0];
  }
  // Without a dot of bf16 its way says nothing about bits.
  EXPECT_TRUE(adopt_kernels(config_with({"dtype=float32", "bf16_dot=fma"}), isa, "amx", fma).differs.empty());
  // Kernels of another ISA take their ways with them.
  const AdoptedKernels scalar = adopt_kernels(automatic, "scalar", "fma", {{best, Bf16Dot::fma}, ""});
  EXPECT_EQ(scalar.kernels.choice, kernels::Choice{kernels::Isa::scalar});
  EXPECT_TRUE(scalar.differs.empty());
}

}  // namespace
}  // namespace lignum::train
