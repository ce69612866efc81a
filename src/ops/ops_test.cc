// Every case of every op against the op's reference: types, kernels (each ISA, both placements, one and two
// threads, in place), decomposition, cost, buffers, StableHLO.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "ops/emit.h"
#include "ops/testing.h"

namespace lignum::ops {
namespace {

class OpTest : public ::testing::TestWithParam<OpCase> {
 protected:
  const Op& op() const { return *GetParam().op; }
  const Case& the_case() const { return GetParam().c; }
};
INSTANTIATE_TEST_SUITE_P(Case, OpTest, ::testing::ValuesIn(op_cases(false)), param_name);

using Bytes = std::vector<std::byte>;

// Runs the CPU facet. misaligned: every buffer starts one element past a 64-byte boundary. shared: result
// shared.first has the buffer of input shared.second.
std::vector<Bytes> run_cpu(const Op& op, const Site& site, const std::vector<CaseTensor>& inputs,
                           kernels::Choice choice, Parallel& parallel, bool misaligned,
                           std::pair<int, int> shared = {-1, -1}) {
  const auto offset = [&](const Type& t) { return misaligned ? dtype_size(t.dtype) : 0; };
  std::vector<std::unique_ptr<Buffer>> in, out;
  std::vector<const void*> in_data;
  std::vector<void*> out_data;
  for (const CaseTensor& t : inputs) {
    in.push_back(std::make_unique<Buffer>(t.type.bytes(), offset(t.type)));
    if (!t.bytes.empty()) std::memcpy(in.back()->data(), t.bytes.data(), t.bytes.size());
    in_data.push_back(in.back()->data());
  }
  for (size_t r = 0; r < site.out.size(); ++r) {
    out.push_back(std::make_unique<Buffer>(site.out[r].bytes(), offset(site.out[r])));
    out_data.push_back(static_cast<int>(r) == shared.first ? in[static_cast<size_t>(shared.second)]->data()
                                                           : out.back()->data());
  }
  const int64_t space = op.workspace(site, parallel.threads());
  EXPECT_GE(space, 0);
  Buffer workspace(space, 0);
  const Status status = op.cpu(CpuCall{site, in_data, out_data, workspace.data(), parallel, choice, nullptr});
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(workspace.intact()) << "wrote beside the workspace";
  for (size_t i = 0; i < in.size(); ++i) {
    EXPECT_TRUE(in[i]->intact()) << "wrote beside input " << i;
    const bool is_result = static_cast<int>(i) == shared.second;
    EXPECT_TRUE(is_result || inputs[i].bytes.empty() ||
                std::memcmp(in[i]->data(), inputs[i].bytes.data(), inputs[i].bytes.size()) == 0)
        << "changed input " << i;
  }
  std::vector<Bytes> results;
  for (size_t r = 0; r < out.size(); ++r) {
    EXPECT_TRUE(out[r]->intact()) << "wrote beside result " << r;
    const auto* data = static_cast<const std::byte*>(out_data[r]);
    results.emplace_back(data, data + site.out[r].bytes());
  }
  return results;
}

TEST_P(OpTest, RuleTypesTheCase) {
  const CaseSite s(op(), the_case());
  for (const Type& t : s.out) {
    EXPECT_EQ(t.async, op().cost(s.site).work == Work::transfer);
    EXPECT_TRUE(t.names.empty()) << "names from nowhere: " << ir::to_string(t);
  }
  const auto result = op().infer(s.in, Attrs{});
  if (!s.attrs.all().empty()) {
    // Without its attributes an op either has defaults or says what is missing.
    if (!result.ok()) {
      EXPECT_EQ(result.status().code(), Code::user_error);
      EXPECT_FALSE(result.status().message().empty());
    }
  }
  Types twice = s.in;
  twice.insert(twice.end(), s.in.begin(), s.in.end());
  if (!s.in.empty() && op().infer(twice, s.attrs).ok()) return;  // takes any number of inputs
  Types one_more = s.in;
  one_more.push_back(Type{DType::u8, {3}, {}});
  EXPECT_FALSE(op().infer(one_more, s.attrs).ok()) << "takes an input too many";
  if (!s.in.empty()) {
    one_more.resize(s.in.size() - 1);
    EXPECT_FALSE(op().infer(one_more, s.attrs).ok()) << "takes an input too few";
  }
}

// Every ISA, and where operands of bf16 or less meet every way of their dots.
std::vector<kernels::Choice> choices_for(const Site& site) {
  const auto narrow = [](const Type& t) { return t.dtype == DType::bf16 || is_float8(t.dtype); };
  const bool bf16_dots = site.in.size() > 1 && narrow(site.in[0]) && narrow(site.in[1]);
  std::vector<kernels::Choice> choices;
  for (const kernels::Isa isa : kernels::available_isas()) {
    for (const kernels::Bf16Dot dot : kernels::available_bf16_dots(isa)) {
      if (dot == kernels::Bf16Dot::fma || bf16_dots) choices.push_back({isa, dot});
    }
  }
  return choices;
}

// What attention by pairs rounds to bf16 on the way (kernels/attention.h): errors of independent sign, one a
// product, with a margin of 8 as in result_bound().
double pairs_bound(const Op& op, const Site& site, std::span<const RefTensor* const> in,
                   const RefTensor& want) {
  if (op.cost(site).work != Work::attention) return 0;
  double scale = scale_of(want);
  for (const RefTensor* t : in) scale = std::max(scale, scale_of(*t));
  return 8 * 0x1p-8 * scale;
}

TEST_P(OpTest, CpuAgreesWithReference) {
  const CaseSite s(op(), the_case());
  const std::vector<CaseTensor> inputs = case_inputs(op(), the_case());
  const std::vector<RefTensor> values = values_of(inputs);
  const auto in = pointers(values);
  const std::vector<RefTensor> want = evaluate(op(), s.site, in);
  for (const kernels::Choice choice : choices_for(s.site)) {
    SCOPED_TRACE(kernels::isa_name(choice.isa));
    SCOPED_TRACE(kernels::bf16_dot_name(choice.bf16_dot));
    Serial serial;
    TwoThreads two;
    const std::vector<Bytes> got = run_cpu(op(), s.site, inputs, choice, serial, false);
    for (size_t r = 0; r < got.size(); ++r) {
      Bound bound = result_bound(op(), s.site, in, want[r], s.out[r].dtype);
      if (choice.bf16_dot != kernels::Bf16Dot::fma) bound.absolute += pairs_bound(op(), s.site, in, want[r]);
      EXPECT_EQ(compare(want[r], load(s.out[r], got[r].data()).data, bound), "") << "result " << r;
    }
    EXPECT_EQ(run_cpu(op(), s.site, inputs, choice, two, false), got) << "two threads give other bits";
    EXPECT_EQ(run_cpu(op(), s.site, inputs, choice, serial, true), got)
        << "misaligned buffers give other bits";
  }
}

TEST_P(OpTest, BuffersMayBeShared) {
  const CaseSite s(op(), the_case());
  const std::vector<CaseTensor> inputs = case_inputs(op(), the_case());
  Serial serial;
  const kernels::Choice choice{kernels::best_isa()};
  const std::vector<Bytes> apart = run_cpu(op(), s.site, inputs, choice, serial, false);
  const Buffers buffers = op().buffers(s.site);
  for (const auto* list : {&buffers.view, &buffers.in_place}) {
    for (const auto& [r, i] : *list) {
      ASSERT_TRUE(r >= 0 && r < static_cast<int>(s.out.size()) && i >= 0 && i < static_cast<int>(s.in.size()))
          << "result " << r << ", input " << i;
      ASSERT_EQ(s.out[static_cast<size_t>(r)].bytes(), s.in[static_cast<size_t>(i)].bytes());
      EXPECT_EQ(run_cpu(op(), s.site, inputs, choice, serial, false, {r, i}), apart)
          << "result " << r << " in the buffer of input " << i;
      if (list == &buffers.view) {
        EXPECT_EQ(apart[static_cast<size_t>(r)], inputs[static_cast<size_t>(i)].bytes)
            << "a view has the bytes of its input";
      }
    }
  }
}

TEST_P(OpTest, DecompositionAgreesWithReference) {
  if (op().decompose == nullptr) {
    EXPECT_FALSE(op().primitive_because.empty());
    return;
  }
  const CaseSite s(op(), the_case());
  const std::vector<RefTensor> values = values_of(case_inputs(op(), the_case()));
  const auto in = pointers(values);
  const std::vector<RefTensor> want = evaluate(op(), s.site, in);
  const ir::Graph graph = decomposition(op(), s.site);
  const Status verified = verify(graph);
  ASSERT_TRUE(verified.ok()) << verified.message();
  const std::vector<RefTensor> got = interpret(graph, values);
  ASSERT_EQ(got.size(), want.size());
  for (size_t r = 0; r < want.size(); ++r) {
    double scale = scale_of(want[r]);
    for (size_t i = 0; i < values.size(); ++i)
      if (dtype_is_float(s.in[i].dtype)) scale = std::max(scale, scale_of(values[i]));
    EXPECT_EQ(compare(want[r], got[r].data, {1e-9, 1e-9 * scale}), "") << "result " << r;
  }
}

TEST_P(OpTest, CostIsPlausible) {
  const CaseSite s(op(), the_case());
  const Cost c = op().cost(s.site);
  for (const double x : {c.flops, c.transcendentals, c.read, c.write, c.wire}) {
    EXPECT_TRUE(std::isfinite(x));
    EXPECT_GE(x, 0);
  }
  EXPECT_EQ(c.wire, 0) << "only collectives use the wire";
  // All results are written, but for views; of one that takes an input's place at least as much as the
  // smallest tensor of its rank, or of a row, brings (a cache or a stack keeps the rest).
  std::set<int> views;
  const Buffers buffers = op().buffers(s.site);
  for (const auto& [r, i] : buffers.view) views.insert(r);
  double written = 0;
  for (size_t r = 0; r < s.out.size(); ++r) {
    if (views.contains(static_cast<int>(r))) continue;
    int64_t bytes = s.out[r].bytes();
    for (const auto& [result, input] : buffers.in_place) {
      if (result != static_cast<int>(r)) continue;
      for (const Type& t : s.in)
        if (t.rank() == s.out[r].rank() || (t.rank() > 0 && t.rank() + 1 == s.out[r].rank()))
          bytes = std::min(bytes, t.bytes());
    }
    written += static_cast<double>(bytes);
  }
  EXPECT_GE(c.write, written);
  if (c.work == Work::matmul || c.work == Work::attention) {
    const double products = 2.0 * static_cast<double>(c.batch) * static_cast<double>(c.m) *
                            static_cast<double>(c.n) * static_cast<double>(c.k);
    if (c.work == Work::matmul) {
      EXPECT_EQ(c.flops, products);
    }
    EXPECT_EQ(c.flops > 0, products > 0) << "shape without work, or work without shape";
  }
}

TEST_P(OpTest, PrintsStableHlo) {
  const CaseSite s(op(), the_case());
  std::vector<std::string> names;
  for (size_t i = 0; i < s.in.size(); ++i) names.push_back(fmt::format("%arg{}", i));
  Lines out;
  const std::vector<std::string> results = emit_node(out, op(), s.site, names);
  ASSERT_EQ(results.size(), s.out.size());
  // Each result is an operand passed through or a name that a line defines with the result's type.
  for (size_t r = 0; r < results.size(); ++r) {
    // (An op with a region says its types behind it, on the line that closes it.)
    bool open = false;
    const auto defines = [&](const std::string& line) {
      const bool starts = line.find(results[r].substr(0, results[r].find('#'))) == 0;
      if (starts) open = line.ends_with("({");
      return (starts || (open && line.starts_with("})"))) &&
             line.find(mlir_type(s.out[r])) != std::string::npos;
    };
    const bool passed = std::find(names.begin(), names.end(), results[r]) != names.end();
    EXPECT_TRUE(passed || std::any_of(out.lines.begin(), out.lines.end(), defines))
        << "result " << r << " is " << results[r];
  }
}

TEST(Ops, NamesAreUniqueAndFound) {
  std::set<std::string_view> names;
  for (const Op* op : all_ops()) {
    EXPECT_TRUE(names.insert(op->name).second) << op->name;
    EXPECT_EQ(find_op(op->name), op);
    EXPECT_FALSE(op->cases().empty()) << op->name;
    std::set<std::string> cases;
    for (const Case& c : op->cases()) EXPECT_TRUE(cases.insert(c.name).second) << op->name << " " << c.name;
  }
  EXPECT_EQ(find_op("no_such_op"), nullptr);
}

}  // namespace
}  // namespace lignum::ops
