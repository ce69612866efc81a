// Quantised training, lever by lever: the same bits on ranks that split the work, and however often they are
// made.
#include <cmath>

#include "ops/op.h"
#include "parity.h"

namespace lignum::train {
namespace {

using namespace parity;  // NOLINT: the tests are one with it

class QuantizedParity : public Parity {};

TEST_P(QuantizedParity, FixedScalesLeaveTheBitsToAnyMesh) {
  const std::string fixed = "fixed,-4,4 fixed,-16,16 fixed,-2,2";
  const Outcome data = run(with({.data = 2, .fp8 = fixed}));
  EXPECT_EQ(data, run(with({.fsdp = 2, .remat = "full", .fp8 = fixed})));
  EXPECT_EQ(data, run(with({.accumulation = 2, .threads = 2, .fp8 = fixed})));
  EXPECT_NE(data, run(with({.data = 2})));
}

// Scales that are found are those of the whole tensor, on every rank; recomputed, they are the same.
TEST_P(QuantizedParity, FoundScalesLeaveTheBitsToRanksAndRemat) {
  for (const bool per_tensor : {false, true}) {
    const auto fp8 = [&](Setting s) {
      s.fp8 = "absmax absmax,0.9 absmax";
      s.per_tensor = per_tensor;
      return run(with(s));
    };
    const Outcome data = fp8({.data = 2});
    EXPECT_EQ(data, fp8({.fsdp = 2, .remat = "full"}));
    if (per_tensor) continue;
    EXPECT_EQ(data, fp8({.fsdp = 2, .remat = "minimal_with_quantization", .prefetch = 0, .threads = 2}));
    const Outcome one = fp8({});
    EXPECT_EQ(one, fp8({.remat = "save_qkv_proj", .fuse = false}));
    EXPECT_EQ(one, fp8({.offload = {"decoder_layer_input", "query_proj", "mlpwi_0"}}));
    EXPECT_EQ(one, fp8({.remat = "minimal_offloaded"}));
    // Near the run without quantisation, and not it.
    const Outcome plain = run(with({}));
    for (size_t step = 0; step < one.losses.size(); ++step) {
      EXPECT_NE(one.losses[step], plain.losses[step]);
      EXPECT_NEAR(one.losses[step], plain.losses[step], 0.02 * plain.losses[step]) << step;
    }
  }
}

TEST_P(QuantizedParity, TilesAndBlocksLeaveTheBitsToRanksAndRemat) {
  const std::string absmax = "absmax absmax absmax";
  std::vector<Outcome> seen;
  for (const Setting& way :
       {Setting{.fp8 = absmax, .tile = 16}, Setting{.fp8 = absmax, .tile = 16, .bwd = false},
        Setting{.fp8 = absmax, .block = 16},
        // 48 wide, three tiles: two ranks cut one of them.
        Setting{.hidden = 48, .fp8 = absmax, .tile = 16}}) {
    const auto other = [&](int64_t data, int64_t fsdp, const char* remat, int threads = 1) {
      Setting s = with(way);
      s.data = data;
      s.fsdp = fsdp;
      s.remat = remat;
      s.threads = threads;
      return run(s);
    };
    const Outcome data = other(2, 1, "none");
    EXPECT_EQ(data, other(1, 2, "full"));
    const Outcome one = other(1, 1, "none");
    EXPECT_EQ(one, other(1, 1, "minimal", 2));
    EXPECT_EQ(std::find(seen.begin(), seen.end(), one), seen.end());
    seen.push_back(one);
    Setting plain;
    plain.hidden = way.hidden;
    const Outcome exact = run(with(plain));
    for (size_t step = 0; step < one.losses.size(); ++step)
      EXPECT_NEAR(one.losses[step], exact.losses[step], 0.02 * exact.losses[step]) << step;
  }
}

// A row's gradients are rounded alike wherever it is: on any mesh, in any micro-step, on any number of
// threads.
TEST_P(QuantizedParity, RandomRoundingLeavesTheBitsToAnyMesh) {
  const std::string fixed = "fixed,-4,4 fixed,-16,16 fixed,-2,2";
  const auto rounded = [&](Setting s, uint64_t seed = 1) {
    s.fp8 = fixed;
    s.rounding_seed = seed;
    return run(with(std::move(s)));
  };
  const Outcome data = rounded({.data = 2});
  EXPECT_EQ(data, rounded({.fsdp = 2, .remat = "full"}));
  EXPECT_EQ(data, rounded({.accumulation = 2, .threads = 2}));
  const Outcome one = rounded({});
  EXPECT_EQ(one, rounded({.remat = "minimal", .threads = 2}));
  EXPECT_NE(one, rounded({}, 2));
  EXPECT_NE(one, run(with({.fp8 = fixed})));
  const auto blocks = [&](Setting s) {
    s.fp8 = "absmax absmax absmax";
    s.block = 16;
    s.rounding_seed = 1;
    return run(with(std::move(s)));
  };
  EXPECT_EQ(blocks({.data = 2}), blocks({.fsdp = 2, .remat = "full"}));
}

// Loops break where the layers that are quantised begin and end, which leaves no trace in the bits.
TEST_P(QuantizedParity, SomeLayersAndTheHead) {
  const std::string absmax = "absmax absmax absmax";
  const auto losses = [&](Setting s) {
    s.fp8 = absmax;
    return run(with(std::move(s))).losses;
  };
  const auto all = losses({});
  EXPECT_EQ(run(with({})).losses, losses({.ends = {2, 2}}));  // none is left
  const auto some = losses({.remat = "full", .ends = {1, 1}});
  EXPECT_EQ(some, losses({.threads = 2, .ends = {1, 1}}));
  EXPECT_NE(some, all);
  const auto head = losses({.head = true});
  EXPECT_NE(head, all);
  EXPECT_EQ(head, losses({.remat = "full", .head = true}));
  EXPECT_EQ(losses({.data = 2, .head = true}), losses({.fsdp = 2, .head = true}));
}

// A norm whose scale is zero gives every dot behind it zeros: their scale is 1, and all stays finite.
TEST(Quantisation, ZeroActivationsAreNoFault) {
  for (const bool per_tensor : {false, true}) {
    const plan::ProgramOptions o =
        options_of({.dtype = DType::bf16, .fp8 = "absmax absmax absmax", .per_tensor = per_tensor});
    const Outcome out = run(o, 2, [&](exec::Executor& e, const RankShards& shards, int32_t step) {
      if (step == 0) {
        EXPECT_TRUE(init_parameters(o.model, shards, e, 7).ok());
        const auto parameters = models::parameters(o.model);
        for (size_t p = 0; p < parameters.size(); ++p)
          if (parameters[p].pattern.ends_with("post_attention_layernorm.weight"))
            std::fill_n(reinterpret_cast<float*>(e.param(static_cast<int64_t>(p))),
                        o.model.layers * o.model.hidden, 0.0F);
      }
      put_step(e, step);
      fill_batch(e, 0, kRows);
    });
    for (const float loss : out.losses) EXPECT_TRUE(std::isfinite(loss));
    for (const auto& weights : out.parameters)
      EXPECT_TRUE(std::all_of(weights.begin(), weights.end(), [](float w) { return std::isfinite(w); }));
  }
}

// Bytes that a rank gets by gathers of a graph and its bodies, each as often as it runs.
double gathered_bytes(const ir::Graph& g) {
  double bytes = 0;
  for (const ir::Node& n : g.nodes()) {
    if (n.kind == "scan") bytes += static_cast<double>(ir::scan_of(n).trip) * gathered_bytes(*n.body);
    if (n.kind != "all_gather") continue;
    const ops::NodeSite site(g, n);
    bytes += ops::get_op(n.kind).cost(site.site).wire;
  }
  return bytes;
}

TEST(Quantisation, WeightsTravelInEightBits) {
  const auto layers = [](Setting s) {
    const auto program = plan::make_program(options_of(s)).value();
    double bytes = 0;
    for (const ir::Node& n : program.local->nodes())
      if (n.kind == "scan") bytes += static_cast<double>(ir::scan_of(n).trip) * gathered_bytes(*n.body);
    return bytes;
  };
  const Setting plain{.fsdp = 2, .remat = "full", .dtype = DType::bf16};
  Setting fixed = plain, found = plain;
  fixed.fp8 = "fixed,-224,224 fixed,-224,224 absmax";
  found.fp8 = "absmax absmax absmax";
  found.per_tensor = true;
  // Norms' scales, a hundredth of a layer here, stay f32.
  EXPECT_LT(layers(fixed), 0.53 * layers(plain));
  EXPECT_GT(layers(fixed), 0.49 * layers(plain));
  EXPECT_EQ(layers(found), layers(fixed));
  Setting blocks = found;
  blocks.per_tensor = false;
  blocks.block = 16;  // whose scales are two bytes for 256
  EXPECT_LT(layers(blocks), 1.01 * layers(fixed));
  EXPECT_GT(layers(blocks), layers(fixed));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, QuantizedParity, testing::Values(DType::f32, DType::bf16),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

}  // namespace
}  // namespace lignum::train
