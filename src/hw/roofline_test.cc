#include "hw/roofline.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace lignum::hw {
namespace {

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

Spec load(const char* name, Fitted fitted = Fitted::use) {
  Result<Spec> spec = Spec::load(name, fitted);
  EXPECT_TRUE(spec.ok()) << spec.status().message();
  return std::move(spec).value();
}
Topology topology(const char* text, int slices = 1) {
  Result<Topology> t = parse_topology(text, slices);
  EXPECT_TRUE(t.ok()) << t.status().message();
  return std::move(t).value();
}
double gather(const Spec& spec, double bytes, const Topology& t) {
  const Result<Group> group = whole_group(t);
  EXPECT_TRUE(group.ok()) << group.status().message();
  return *collective_time(spec, Collective::all_gather, bytes, *group);
}

TEST(Topology, ChipsAndDevicesAreNotConfused) {
  const Topology by_chips = topology("tpu7x:2x2x1"), by_cores = topology("tpu7x-8");
  EXPECT_EQ(by_chips.shape, by_cores.shape);
  EXPECT_EQ(by_chips.chips(), 4);
  EXPECT_EQ(by_chips.devices(), 8);
  EXPECT_EQ(by_cores.text(), "tpu7x:2x2x1");
  EXPECT_EQ(topology("tpu7x:4x4x8").devices(), 256);
  EXPECT_EQ(topology("tpu7x-256").text(), "tpu7x:4x4x8");
  EXPECT_EQ(topology("tpu7x:16x16x36").devices(), 18432);
  EXPECT_EQ(topology("tpu7x:2x2x1", 2).devices(), 16);
  // v5p names count TensorCores, two a device; v6e has one core, one device a chip.
  EXPECT_EQ(topology("v5p-8").chips(), 4);
  EXPECT_EQ(topology("v5p-8").devices(), 4);
  EXPECT_EQ(topology("v6e-256").text(), "v6e:16x16");
  EXPECT_EQ(topology("v6e-256").devices(), 256);
}

TEST(Topology, WrapRule) {
  using Wraps = std::vector<bool>;
  EXPECT_EQ(topology("tpu7x:2x2x1").wrapped, (Wraps{false, false, false}));
  EXPECT_EQ(topology("tpu7x:2x4x4").wrapped, (Wraps{false, false, false}));
  EXPECT_EQ(topology("tpu7x:4x4x4").wrapped, (Wraps{true, true, true}));
  EXPECT_EQ(topology("tpu7x:4x4x12").wrapped, (Wraps{true, true, true}));
  EXPECT_EQ(topology("v6e:8x16").wrapped, (Wraps{false, true}));
  EXPECT_EQ(whole_group(topology("v6e:16x16"))->directions(), 4);
  EXPECT_EQ(whole_group(topology("v6e:8x16"))->directions(), 3);
  EXPECT_EQ(whole_group(topology("v6e:8x8"))->directions(), 2);
  EXPECT_EQ(whole_group(topology("tpu7x:4x4x4"))->directions(), 6);
  EXPECT_EQ(whole_group(topology("tpu7x:2x2x1"))->directions(), 2);
}

TEST(Topology, RefusesWhatIsNotASlice) {
  const auto message = [](const std::string& text) {
    const Result<Topology> t = parse_topology(text);
    return t.ok() ? "accepted " + t->text() : t.status().message();
  };
  EXPECT_SAYS(message("tpu7x-9"), "no slice is named \"tpu7x-9\"");
  EXPECT_SAYS(message("tpu7x-9"), "tpu7x-8 (2x2x1)");
  EXPECT_SAYS(message("tpu7x:2x2"), "has 2 axes");
  EXPECT_SAYS(message("tpu7x:2x0x1"), "is not a shape");
  EXPECT_SAYS(message("tpu7x:2x2x1x"), "is not a shape");
  EXPECT_SAYS(message("tpu7x:-2x2x1"), "is not a shape");
  EXPECT_SAYS(message("tpu7x"), "is not a slice");
  EXPECT_SAYS(message("tpu7:2x2x1"), "tpu7x");
  EXPECT_SAYS(message(""), "not known");
  EXPECT_SAYS(parse_topology("v6e:2x2", load("tpu7x")).status().message(), "not a slice of tpu7x");
}

TEST(MeshGroup, FollowsDeviceOrder) {
  const Topology t = topology("tpu7x:4x4x4");
  const Group pair = *mesh_group(t, 2, 1);  // the two cores of one chip
  EXPECT_EQ(pair.link, Group::Link::die);
  const Group x = *mesh_group(t, 4, 2);  // a whole ring along x, one core of each chip
  EXPECT_EQ(x.link, Group::Link::ici);
  EXPECT_EQ(x.shape, (std::vector<int>{4, 1, 1}));
  EXPECT_EQ(x.directions(), 2);
  const Group half = *mesh_group(t, 4, 1);  // both cores of two neighbours: a line
  EXPECT_EQ(half.shape, (std::vector<int>{2, 1, 1}));
  EXPECT_EQ(half.directions(), 1);
  const Group yz = *mesh_group(t, 16, 8);
  EXPECT_EQ(yz.shape, (std::vector<int>{1, 4, 4}));
  EXPECT_EQ(yz.directions(), 4);
  const Group apart =
      *mesh_group(t, 2, 4);  // chips 0 and 2 of a side of four: two such groups share the links
  EXPECT_EQ(apart.directions(), 0.5);
  EXPECT_EQ(mesh_group(t, 1, 1)->link, Group::Link::none);
  // Every way to cut 128 devices into three mesh axes of powers of two is a set of groups.
  for (int64_t a = 1; a <= 128; a *= 2) {
    for (int64_t b = 1; a * b <= 128; b *= 2) {
      ASSERT_TRUE(mesh_group(t, b, a).ok()) << b << " inside " << a;
      EXPECT_EQ(mesh_group(t, b, a)->devices, b);
    }
  }
}

TEST(MeshGroup, OverSlices) {
  const Topology slices = topology("tpu7x:2x2x1", 4);
  EXPECT_EQ(slices.devices(), 32);
  EXPECT_EQ(slices.describe(), "tpu7x:2x2x1 x 4 slices");
  // One device of each of two slices; two chips of each of four; all.
  const Group apart = *mesh_group(slices, 1, 8, 2);
  EXPECT_EQ(apart.devices, 2);
  EXPECT_EQ(apart.slices, 2);
  EXPECT_EQ(apart.link, Group::Link::none);
  const Group y = *mesh_group(slices, 2, 4, 4);
  EXPECT_EQ(y.devices, 8);
  EXPECT_EQ(y.shape, (std::vector<int>{1, 2, 1}));
  EXPECT_EQ(whole_group(slices)->devices, 32);
  EXPECT_EQ(whole_group(slices)->slices, 4);
  EXPECT_EQ(mesh_group(slices, 8, 1)->slices, 1);
  EXPECT_SAYS(mesh_group(slices, 8, 1, 3).status().message(),
              "3 slices does not divide the 4 of tpu7x:2x2x1 x 4 slices");
}

TEST(MeshGroup, SaysWhereItLies) {
  const Topology t = topology("tpu7x:4x4x4", 2);
  EXPECT_EQ(whole_group(t)->describe(), "2 slices, z 4 (ring), y 4 (ring), x 4 (ring), 2 cores of a chip");
  EXPECT_EQ(mesh_group(t, 4, 1)->describe(), "x 2, 2 cores of a chip");
  EXPECT_EQ(mesh_group(t, 32, 4)->describe(), "z 4 (ring), y 4 (ring), x 2 in steps of 2");
  EXPECT_EQ(mesh_group(t, 1, 128, 2)->describe(), "2 slices");
  EXPECT_EQ(mesh_group(t, 1, 1)->describe(), "-");
}

TEST(MeshGroup, RefusesCutsAcrossTheTorus) {
  EXPECT_SAYS(mesh_group(topology("tpu7x:2x2x1"), 3, 1).status().message(), "does not divide the 8 devices");
  EXPECT_SAYS(mesh_group(topology("tpu7x:4x4x12"), 3, 2).status().message(), "cuts across");
  EXPECT_TRUE(mesh_group(topology("tpu7x:4x4x12"), 3, 32).ok());
}

// The published all-gather on 2x2x1: f32[16384,8,128] -> f32[65536,8,128] on both cores of each of 4 chips
// moves 2 * 3/4 * 268,435,456 bytes a chip in 2252.3 us (178.8 GB/s).
TEST(CollectiveTime, PublishedAllGatherOf2x2x1) {
  const Spec spec = load("tpu7x");
  const double bytes = 65536.0 * 8 * 128 * 4;
  Group four_chips = *mesh_group(topology("tpu7x:2x2x1"), 4, 2);
  const double seconds = *collective_time(spec, Collective::all_gather, bytes, four_chips);
  EXPECT_NEAR(seconds / 2252.3e-6, 1.0, 0.01);
}

// The compiler prices a gather of bf16[4096,14336] (117 MB) at 2.05 M cycles of 1.9 GHz on 2x2x1, and at 2.37
// M on 4x4x4. On 2x2x1 the formula is 6 % above. On 4x4x4 it is 2.9 times faster than the compiler's price:
// with all six links of a wrapped torus it expects three times the bandwidth, which the compiler's estimate
// does not grant; published step times bear the formula out only as far as such gathers stay hidden under
// compute.
TEST(CollectiveTime, AgainstTheCompilersPriceOfA117MBGather) {
  const Spec spec = load("tpu7x");
  const double bytes = 4096.0 * 14336 * 2;
  const double on_8 = gather(spec, bytes, topology("tpu7x:2x2x1"));
  EXPECT_NEAR(on_8, bytes * 7 / 8 / 89.5e9, 1e-9);
  EXPECT_NEAR(on_8 / (2.05e6 / 1.9e9), 1.064, 0.005);
  const double on_128 = gather(spec, bytes, topology("tpu7x:4x4x4"));
  EXPECT_NEAR(on_128, bytes * 127 / 128 / 268.5e9, 1e-9);
  EXPECT_NEAR((2.37e6 / 1.9e9) / on_128, 2.87, 0.02);
}

// 22.5 GB of bf16 weights over tpu7x:4x4x8, 256 devices with six links a chip: 22.5e9 * 255/256 / 268.5e9.
TEST(CollectiveTime, LargeTorusGatherAndScatter) {
  const Spec spec = load("tpu7x");
  const Group all = *whole_group(topology("tpu7x:4x4x8"));
  const double gather_seconds = *collective_time(spec, Collective::all_gather, 22.5e9, all);
  EXPECT_NEAR(gather_seconds, 0.0835, 0.0001);
  EXPECT_EQ(*collective_time(spec, Collective::reduce_scatter, 22.5e9, all), gather_seconds);
  EXPECT_EQ(*collective_time(spec, Collective::all_reduce, 22.5e9, all), 2 * gather_seconds);
}

TEST(CollectiveTime, ALinkOfGivenSpeed) {
  const Link link{1e9, 1e-5};
  EXPECT_DOUBLE_EQ(link_time(link, Collective::all_gather, 4e6, 4), 3 * (1e-3 + 1e-5));
  EXPECT_DOUBLE_EQ(link_time(link, Collective::reduce_scatter, 4e6, 4), 3 * (1e-3 + 1e-5));
  EXPECT_DOUBLE_EQ(link_time(link, Collective::all_reduce, 4e6, 4), 6 * (1e-3 + 1e-5));
  EXPECT_DOUBLE_EQ(link_time(link, Collective::collective_permute, 4e6, 4), 4e-3 + 1e-5);
  EXPECT_EQ(link_time(link, Collective::all_gather, 4e6, 1), 0);
  EXPECT_EQ(link_time({}, Collective::all_gather, 4e6, 4), 0);
}

TEST(CollectiveTime, InsideAChipNextDoorAndAcross) {
  const Spec spec = load("tpu7x");
  const Topology t = topology("tpu7x:4x4x4");
  EXPECT_DOUBLE_EQ(*collective_time(spec, Collective::all_gather, 1.2e9, *mesh_group(t, 2, 1)),
                   0.6e9 / 600e9);
  // To the neighbour on one link, which both cores of the chip use.
  EXPECT_DOUBLE_EQ(*collective_time(spec, Collective::collective_permute, 1e9, *mesh_group(t, 4, 2)),
                   2e9 / 89.5e9);
  // A ring of four chips: each sends quarters one hop left, one hop right, one two hops. Half of a chip's 2
  // GB crosses the middle, over two cuts of one link each way: 2e9 * 4 / 8.
  EXPECT_DOUBLE_EQ(*collective_time(spec, Collective::all_to_all, 1e9, *mesh_group(t, 4, 2)),
                   2e9 * 4 / 8 / 89.5e9);
  EXPECT_EQ(*collective_time(spec, Collective::all_gather, 1e9, *mesh_group(t, 1, 8)), 0);
  EXPECT_EQ(*collective_time(spec, Collective::all_gather, 0, *whole_group(t)), 0);
}

TEST(CollectiveTime, SlicesExchangeShardsFirst) {
  const Spec spec = load("tpu7x");
  const Topology t = topology("tpu7x:2x2x1", 2);
  const double bytes = 1e9, dcn = 12.5e9 / 2;  // a device's part of its chip's 100 Gbit/s
  const double inside = gather(spec, bytes, topology("tpu7x:2x2x1"));
  EXPECT_NEAR(gather(spec, bytes, t), inside + bytes / 8 / 2 / dcn, 1e-12);
  // A sum is whole inside the slice before it is scattered over slices.
  EXPECT_NEAR(*collective_time(spec, Collective::reduce_scatter, bytes, *whole_group(t)),
              2 * inside + bytes / 8 / 2 / dcn, 1e-12);
  EXPECT_NEAR(*collective_time(spec, Collective::all_reduce, bytes, *whole_group(t)),
              2 * inside + 2 * bytes / 8 / 2 / dcn, 1e-12);
  const Group data = *mesh_group(t, 1, 8, 2);  // plain data parallelism over slices
  EXPECT_NEAR(*collective_time(spec, Collective::all_reduce, bytes, data), 2 * bytes / 2 / dcn, 1e-12);
}

TEST(CollectiveTime, MoreDevicesNeverGatherFasterOnTheSameLinks) {
  const Spec spec = load("tpu7x");
  double last = 0;
  for (const char* text : {"tpu7x:4x4x4", "tpu7x:4x4x8", "tpu7x:8x8x8", "tpu7x:16x16x16"}) {
    const double seconds = gather(spec, 1e9, topology(text));
    EXPECT_GT(seconds, last) << text;
    last = seconds;
  }
}

TEST(Roofline, NamesTheBound) {
  EXPECT_EQ(roofline(100, 10, 10, 10).bound, Bound::compute);
  EXPECT_EQ(roofline(100, 10, 10, 10).seconds, 10);
  EXPECT_EQ(roofline(1, 10, 50, 10).bound, Bound::memory);
  EXPECT_EQ(roofline(1, 10, 50, 10).seconds, 5);
  EXPECT_EQ(roofline(0, 1, 0, 1).bound, Bound::none);
  EXPECT_EQ(arithmetic_intensity(100, 50), 2);
  EXPECT_EQ(bound_name(Bound::memory), "memory");
}

TEST(Roofline, IntensitiesAsTheGuidePrintsThem) {
  std::map<std::string, double> at;
  for (const Intensity& i : hardware_intensities(load("tpu7x"))) at[i.name] = i.flops_per_byte;
  EXPECT_NEAR(at["HBM"], 312.6, 0.1);
  EXPECT_NEAR(at["ICI, one axis"], 11535, 1);
  EXPECT_NEAR(at["die to die"], 11535.0 / 6, 1);
  EXPECT_NEAR(at["DCN"], 184560, 1);
}

TEST(MatmulTime, BoundsOnTpu7x) {
  const Spec spec = load("tpu7x");
  // One layer's wi of Llama 70B at 16384 tokens: the compiler's estimate is 15,688,016 cycles of 1.9 GHz.
  const Estimate big = *matmul_time(spec, {}, {DType::bf16, DType::bf16, 16384, 28672, 8192});
  EXPECT_EQ(big.bound, Bound::compute);
  EXPECT_NEAR(big.seconds / (15688016 / 1.9e9), 1.0, 0.02);
  // A few rows against a big matrix is bound by reading the matrix.
  const Estimate thin = *matmul_time(spec, {}, {DType::bf16, DType::bf16, 8, 28672, 8192});
  EXPECT_EQ(thin.bound, Bound::memory);
  EXPECT_NEAR(thin.seconds, 28672.0 * 8192 * 2 / 3.2e12, 1e-6);
  EXPECT_EQ(matmul_time(spec, {}, {DType::bf16, DType::bf16, 0, 8, 8})->seconds, 0);
  const Estimate f8 = *matmul_time(spec, {}, {DType::f8e4m3fn, DType::bf16, 16384, 28672, 8192});
  EXPECT_NEAR(big.seconds / f8.seconds, 2.02, 0.01);
}

TEST(AttentionTime, Tpu7xFormula) {
  const Spec spec = load("tpu7x", Fitted::ignore);
  AttentionWork w;
  w.sequences = 2, w.heads = 64, w.seq = 8192, w.head_dim = 128;
  const double forward = attention_time(spec, {}, w)->seconds;
  EXPECT_NEAR(forward, 128 * 1.42e-12 * 4096 * (8192 + 2900), 1e-9);
  w.head_dim = 64;
  EXPECT_EQ(attention_time(spec, {}, w)->seconds, forward);
  // In useful FLOP/s at S = 8192, head_dim 128: 257e12 was measured.
  EXPECT_NEAR(attention_flops(w.pass, 2, 64, 8192, 128, true) / forward / 257e12, 1.0, 0.05);
  w.head_dim = 256;
  EXPECT_NEAR(attention_time(spec, {}, w)->seconds / forward, 1.22, 1e-9);
  w.head_dim = 512;  // the matmul floor is more
  EXPECT_NEAR(attention_time(spec, {}, w)->seconds / forward, 4.0 * 512 / 690e12 / 1.42e-12, 1e-9);
  w.head_dim = 128, w.causal = false;
  EXPECT_NEAR(attention_time(spec, {}, w)->seconds, 128 * 1.42e-12 * 8192.0 * 8192, 1e-9);
  w.causal = true, w.window = 128;  // still two blocks of 1024 a row of blocks
  EXPECT_NEAR(attention_time(spec, {}, w)->seconds, 128 * 1.42e-12 * 8192.0 * 2048 * 1.2, 1e-9);
  w.window = 0, w.pass = AttentionPass::backward;
  EXPECT_NEAR(attention_time(spec, {}, w)->seconds, 128 * 3.1e-12 * 4096 * (8192 + 3150), 1e-9);
}

TEST(StreamTime, MultiplierIsFittedApart) {
  const double plain = stream_time(load("tpu7x", Fitted::ignore), {}, {3.2e9})->seconds;
  EXPECT_DOUBLE_EQ(plain, 1e-3);
  EXPECT_DOUBLE_EQ(stream_time(load("tpu7x"), {}, {3.2e9})->seconds, 1.77e-3);
  EXPECT_EQ(stream_time(load("tpu7x"), {}, {3.2e9})->bound, Bound::memory);
  EXPECT_DOUBLE_EQ(copy_time(load("tpu7x"), {}, 25e9)->seconds, 1);
}

}  // namespace
}  // namespace lignum::hw
