// Quantising as a whole: scales and quotients of awkward tensors on this machine's kernels, and the gradients
// that pass through a quantised dot.
#include "ops/quantize/quantised.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/rng.h"
#include "ops/gradient.h"
#include "ops/scaled_matmul/backward.h"
#include "ops/testing.h"

namespace lignum::ops {
namespace {

std::string error_of(std::string_view text) {
  const auto c = parse_calibration(text);
  return c.ok() ? "" : c.status().message();
}

TEST(Calibration, IsReadAndPrinted) {
  for (const char* text : {"absmax", "absmax,0.8", "rms,7", "fixed,-224,224", "static", "static,2"})
    EXPECT_EQ(parse_calibration(text)->text(), text);
  EXPECT_EQ(parse_calibration("fixed,224")->text(), "fixed,-224,224");
  EXPECT_TRUE(parse_calibration("static,0.9")->clips() && parse_calibration("static")->whole());
  EXPECT_FALSE(parse_calibration("static")->clips() || parse_calibration("static,2")->clips());
  EXPECT_TRUE(parse_calibration("absmax,0.8")->clips() && parse_calibration("rms,7")->clips());
  EXPECT_FALSE(parse_calibration("absmax")->clips() || parse_calibration("absmax,1.5")->clips());
  for (const char* text : {"", "absmx", "rms", "rms,0", "rms,x", "absmax,1,2", "fixed", "fixed,-1,2",
                           "fixed,0", "fixed,nan", "absmax,", "static,0", "static,1,2"})
    EXPECT_NE(error_of(text).find("fixed,-224,224 say"), std::string::npos) << text;
  EXPECT_NE(error_of("minmax").find("zero point"), std::string::npos);
}

// A flat graph, node by node, on the best kernels of the machine.
std::vector<RefTensor> run_native(const ir::Graph& g, const std::vector<RefTensor>& inputs) {
  std::vector<std::vector<std::vector<std::byte>>> values(g.nodes().size());
  size_t param = 0;
  Serial serial;
  for (size_t id = 0; id < g.nodes().size(); ++id) {
    const ir::Node& n = g.nodes()[id];
    for (const Type& t : n.types)
      values[id].emplace_back(static_cast<size_t>(std::max<int64_t>(t.bytes(), 1)));
    if (n.kind == "param") {
      const RefTensor& from = inputs[param++];
      for (size_t i = 0; i < from.data.size(); ++i)
        store_from_double(n.types[0].dtype, values[id][0].data(), static_cast<int64_t>(i), from.data[i]);
      continue;
    }
    const NodeSite site(g, n);
    std::vector<const void*> in;
    std::vector<void*> out;
    for (const Value v : n.inputs)
      in.push_back(values[static_cast<size_t>(v.node)][static_cast<size_t>(v.index)].data());
    for (auto& bytes : values[id]) out.push_back(bytes.data());
    const Op& op = get_op(n.kind);
    Buffer space(op.workspace(site.site, 1), 0);
    const Status s = op.cpu({site.site, in, out, space.data(), serial, {kernels::best_isa()}, nullptr});
    EXPECT_TRUE(s.ok()) << s.message();
  }
  std::vector<RefTensor> results;
  for (const ir::Output& o : g.outputs())
    results.push_back(load(g.type(o.value), values[static_cast<size_t>(o.value.node)][0].data()));
  return results;
}

struct Made {
  RefTensor q, scale;
  // q * scale of element i, which has scale number s.
  double back(size_t i, size_t s) const { return q.data[i] * scale.data[s]; }
};
Made quantise(Dims dims, std::vector<double> x, Dims scales, DType format, std::string_view method = "absmax",
              DType dtype = DType::f32) {
  ir::Graph g;
  Builder b(g);
  const Value in = g.param("x", {dtype, dims, {}});
  const Quantised made = quantised(b, in, dtype, format, *parse_calibration(method), std::move(scales), "");
  g.output("q", made.q);
  g.output("scale", made.scale);
  const std::vector<RefTensor> out = run_native(g, {{dims, std::move(x)}});
  return {out[0], out[1]};
}

TEST(Quantised, ZerosStayZeroWithScaleOne) {
  for (const Dims& scales : {Dims{1, 1}, Dims{128, 1}, Dims{1, 128}, Dims{2, 2}}) {
    const Made m = quantise({128, 128}, std::vector<double>(128 * 128), scales, DType::f8e4m3fn);
    EXPECT_EQ(scale_of(m.q), 0);
    for (const double s : m.scale.data) EXPECT_EQ(s, 1);
  }
}

TEST(Quantised, AZeroRowDoesNotTouchAnother) {
  const Made m = quantise({2, 4}, {0, 0, 0, 0, 1, -2, 448, 3}, {2, 1}, DType::f8e4m3fn);
  EXPECT_EQ(m.q.data, (std::vector<double>{0, 0, 0, 0, 1, -2, 448, 3}));
  EXPECT_EQ(m.scale.data, (std::vector<double>{1, 1}));
}

TEST(Quantised, ATinyTensorHasScaleOne) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Made m = quantise({4}, {1e-30, -3e-31, 0, 1e-31}, {1}, DType::f8e4m3fn, "absmax", dtype);
    EXPECT_EQ(m.scale.data[0], 1);
    EXPECT_EQ(scale_of(m.q), 0);
  }
  // The rule's limit is of the scale: 2^-63.
  EXPECT_EQ(quantise({1}, {448 * 0x1p-63}, {1}, DType::f8e4m3fn).scale.data[0], 0x1p-63);
  EXPECT_EQ(quantise({1}, {447 * 0x1p-63}, {1}, DType::f8e4m3fn).scale.data[0], 1);
}

TEST(Quantised, AHalfRangeRowComesBack) {
  const Made m = quantise({1, 4}, {0.1, 0, 0, 0.2}, {1, 1}, DType::f8e5m2);
  EXPECT_GE(m.back(3, 0), 0.1875);
  EXPECT_LE(m.back(3, 0), 0.21875);
  EXPECT_EQ(m.q.data[1], 0);
}

TEST(Quantised, FixedRangesClip) {
  const Made m =
      quantise({1, 4}, {0.5, -224, 1000, 1}, {1, 4}, DType::f8e4m3fn, "fixed,-224,224", DType::bf16);
  EXPECT_EQ(m.scale.data, std::vector<double>{0.5});
  EXPECT_EQ(m.q.data, (std::vector<double>{1, -448, 448, 2}));
}

TEST(Quantised, RmsFillsByTheMeanSquare) {
  const Made m = quantise({1, 4}, {1, -1, 1, -1}, {1, 1}, DType::f8e4m3fn, "rms,448");
  EXPECT_EQ(m.scale.data[0], 1);
  EXPECT_EQ(m.q.data, (std::vector<double>{1, -1, 1, -1}));
}

// Without rounding (but of the fixed scales, to f32) a quantised dot is the dot, and its gradient the dot's
// gradient, but for what is clipped: whatever has a scale of its own, and whatever the backward dots read.
TEST(Quantised, GradientsPassStraightThrough) {
  enum class Scales { axis, tensor, tiles, blocks };
  const Dims xd = {2, 4, 8}, wd = {6, 8}, yd = {2, 4, 6};
  const std::map<Scales, std::pair<Dims, Dims>> scale_dims = {{Scales::axis, {{2, 4, 1}, {6, 1}}},
                                                              {Scales::tensor, {{1, 1, 1}, {1, 1}}},
                                                              {Scales::tiles, {{2, 4, 4}, {6, 4}}},
                                                              {Scales::blocks, {{2, 4, 4}, {3, 4}}}};
  for (const auto& [method, bwd, scales] :
       {std::tuple("absmax", "absmax", Scales::axis), std::tuple("absmax", "absmax", Scales::tensor),
        std::tuple("fixed,-1,1", "absmax", Scales::axis), std::tuple("absmax", "fixed,-9,9", Scales::tensor),
        std::tuple("absmax,0.5", "rms,20", Scales::axis), std::tuple("absmax", "absmax", Scales::tiles),
        std::tuple("rms,30", "rms,30", Scales::tiles), std::tuple("absmax", "", Scales::tiles),
        std::tuple("absmax,0.5", "", Scales::axis), std::tuple("absmax", "absmax", Scales::blocks),
        std::tuple("fixed,-1,1", "fixed,-9,9", Scales::blocks), std::tuple("rms,30", "", Scales::blocks)}) {
    SCOPED_TRACE(fmt::format("{} {} {}", method, bwd, static_cast<int>(scales)));
    const bool channelwise = scales != Scales::tensor;
    ir::Graph g;
    Builder b(g);
    const Value x = g.param("x", {DType::f32, xd, {}}), w = g.param("w", {DType::f32, wd, {}});
    const Value dy = g.param("dy", {DType::f32, yd, {}});
    const auto end_of_params = static_cast<int32_t>(g.nodes().size());
    const Calibration c = *parse_calibration(method);
    const Quantised qx = quantised(b, x, DType::f32, DType::f8e4m3fn, c, scale_dims.at(scales).first, "");
    const Quantised qw = quantised(b, w, DType::f32, DType::f8e4m3fn, c, scale_dims.at(scales).second, "");
    Attrs attrs = {{"contract_a", Dims{2}},
                   {"contract_b", Dims{1}},
                   {"batch_a", Dims{}},
                   {"batch_b", Dims{}},
                   {"dtype", std::string("f32")}};
    if (*bwd != 0) {
      BackwardDots how{DType::f8e5m2, *parse_calibration(bwd), channelwise, 1, 0, 0, c};
      if (scales == Scales::tiles) how.tile = 2;
      if (scales == Scales::blocks) how.block = 2;
      how.set(attrs);
      EXPECT_EQ((*backward_dots(attrs))->block, how.block);
    }
    const Value y = b.add("scaled_matmul", {qx.q, qw.q, qx.scale, qw.scale}, std::move(attrs));
    std::map<Value, Value> seeds = {{y, dy}};
    walk_back({b, seeds, {}, {}, {}}, end_of_params, static_cast<int32_t>(g.nodes().size()));
    g.output("dx", seeds.at(x));
    g.output("dw", seeds.at(w));
    ASSERT_TRUE(verify(g).ok()) << verify(g).message();

    std::vector<RefTensor> in;
    for (const auto& [name, dims] : {std::pair("x", xd), std::pair("w", wd), std::pair("dy", yd)}) {
      const Random random(3, name);
      in.push_back({dims, {}});
      int64_t n = 1;
      for (const int64_t d : dims) n *= d;
      for (int64_t i = 0; i < n; ++i) in.back().data.push_back(random.normal(static_cast<uint64_t>(i)));
    }
    const std::vector<RefTensor> got = interpret(g, in);
    // What each operand stands for, and whether it has a gradient: clipped at its bound, tile by tile.
    const auto clipped = [&](const RefTensor& t) {
      std::vector<double> out = t.data;
      std::vector<bool> inside(out.size(), true);
      if (!c.clips()) return std::pair(out, inside);
      for (size_t i = 0; i < out.size(); ++i) {
        double bound = c.method == Calibration::Method::rms ? 1e9 : c.factor;  // rms,30 clips nothing here
        if (c.method == Calibration::Method::absmax) {
          const size_t row = channelwise ? i / 8 * 8 : 0, end = channelwise ? row + 8 : out.size();
          double most = 0;
          for (size_t k = row; k < end; ++k) most = std::max(most, std::fabs(t.data[k]));
          bound *= most;
        }
        inside[i] = std::fabs(t.data[i]) <= bound;
        out[i] = std::clamp(t.data[i], -bound, bound);
      }
      return std::pair(out, inside);
    };
    auto [xs, x_inside] = clipped(in[0]);
    auto [ws, w_inside] = clipped(in[1]);
    if (*bwd == 0) {  // the backward dots read what was quantised
      xs = in[0].data;
      ws = in[1].data;
    }
    for (size_t t = 0; t < 8; ++t) {
      for (size_t k = 0; k < 8; ++k) {
        double want = 0;
        for (size_t o = 0; o < 6; ++o) want += in[2].data[t * 6 + o] * ws[o * 8 + k];
        EXPECT_NEAR(got[0].data[t * 8 + k], x_inside[t * 8 + k] ? want : 0, 1e-6);
      }
    }
    for (size_t o = 0; o < 6; ++o) {
      for (size_t k = 0; k < 8; ++k) {
        double want = 0;
        for (size_t t = 0; t < 8; ++t) want += in[2].data[t * 6 + o] * xs[t * 8 + k];
        EXPECT_NEAR(got[1].data[o * 8 + k], w_inside[o * 8 + k] ? want : 0, 1e-6);
      }
    }
  }
}

}  // namespace
}  // namespace lignum::ops
