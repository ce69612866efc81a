// Partition rules, by what they mean: cut every operand in two along a factor, run the op's reference on each
// half, and put the halves together again: concatenated where the result has the factor, summed where not.
#include <algorithm>
#include <cmath>
#include <map>

#include "ops/testing.h"

namespace lignum::ops {
namespace {

class PartitionTest : public ::testing::TestWithParam<OpCase> {};
INSTANTIATE_TEST_SUITE_P(Case, PartitionTest, ::testing::ValuesIn(op_cases(false)), param_name);

// Half `h` of t along dim d.
RefTensor half_of(const RefTensor& t, int64_t d, int h) {
  RefTensor out;
  out.dims = t.dims;
  out.dims[static_cast<size_t>(d)] /= 2;
  int64_t outer = 1, inner = 1;
  for (int64_t i = 0; i < d; ++i) outer *= t.dims[static_cast<size_t>(i)];
  for (size_t i = static_cast<size_t>(d) + 1; i < t.dims.size(); ++i) inner *= t.dims[i];
  const int64_t rows = out.dims[static_cast<size_t>(d)] * inner;
  for (int64_t o = 0; o < outer; ++o) {
    const auto from = t.data.begin() + (2 * o + h) * rows;
    out.data.insert(out.data.end(), from, from + rows);
  }
  return out;
}
// Dims that walk factor f, at most one an operand.
int64_t dim_of(const std::vector<int>& walks, int f) {
  const auto it = std::find(walks.begin(), walks.end(), f);
  return it == walks.end() ? -1 : it - walks.begin();
}

TEST_P(PartitionTest, HalvesMakeTheWhole) {
  const Op& op = *GetParam().op;
  const CaseSite s(op, GetParam().c);
  const ShardRule rule = op.partition(s.site);
  ASSERT_EQ(rule.in.size(), s.in.size());
  ASSERT_EQ(rule.out.size(), s.out.size());
  if (rule.separate) {
    EXPECT_EQ(rule.in, rule.out);
    EXPECT_EQ(s.in, s.out);
    return;
  }
  int factors_used = 0;
  const auto check = [&](const std::vector<int>& walks, const Type& t) {
    ASSERT_EQ(walks.size(), t.dims.size()) << ir::to_string(t);
    for (const int f : walks) {
      ASSERT_GE(f, -1);
      if (f >= 0) {
        ASSERT_EQ(std::count(walks.begin(), walks.end(), f), 1) << "factor " << f << " twice";
      }
      factors_used = std::max(factors_used, f + 1);
    }
  };
  for (size_t i = 0; i < s.in.size(); ++i) check(rule.in[i], s.in[i]);
  for (size_t r = 0; r < s.out.size(); ++r) check(rule.out[r], s.out[r]);
  for (const int f : rule.exact) ASSERT_TRUE(f >= 0 && f < factors_used);
  if (!rule.result_dims.empty()) {
    ASSERT_TRUE(s.attrs.has<Dims>(rule.result_dims)) << rule.result_dims;
  }

  const std::vector<RefTensor> values = values_of(case_inputs(op, GetParam().c));
  const std::vector<RefTensor> whole = evaluate(op, s.site, pointers(values));
  for (int f = 0; f < factors_used; ++f) {
    SCOPED_TRACE(fmt::format("factor {}", f));
    bool divides = true, there = false;
    std::map<int64_t, int> sizes;
    const auto see = [&](const std::vector<int>& walks, const Type& t) {
      const int64_t d = dim_of(walks, f);
      if (d < 0) return;
      there = true;
      ++sizes[t.dims[static_cast<size_t>(d)]];
      divides &= t.dims[static_cast<size_t>(d)] % 2 == 0;
    };
    for (size_t i = 0; i < s.in.size(); ++i) see(rule.in[i], s.in[i]);
    for (size_t r = 0; r < s.out.size(); ++r) see(rule.out[r], s.out[r]);
    if (!there || f == rule.placed) continue;  // numbers may have gaps
    // Padding cuts every dim of a factor at the same index: unequal sizes must say that they cannot be
    // padded.
    if (std::find(rule.exact.begin(), rule.exact.end(), f) == rule.exact.end()) {
      EXPECT_EQ(sizes.size(), 1u) << "dims of different sizes share a factor that is not exact";
    }
    if (!divides) continue;

    std::vector<std::vector<RefTensor>> halves;
    for (int h = 0; h < 2; ++h) {
      std::vector<RefTensor> in;
      Types in_types = s.in;
      Attrs attrs = s.attrs;
      for (size_t i = 0; i < s.in.size(); ++i) {
        const int64_t d = dim_of(rule.in[i], f);
        in.push_back(d < 0 ? values[i] : half_of(values[i], d, h));
        in_types[i].dims = in.back().dims;
      }
      const int64_t result_dim = dim_of(rule.out[0], f);
      if (!rule.result_dims.empty() && result_dim >= 0) {
        Dims dims = s.attrs.get<Dims>(rule.result_dims);
        dims[static_cast<size_t>(result_dim)] /= 2;
        attrs.set(std::string(rule.result_dims), dims);
      }
      const auto out_types = op.infer(in_types, attrs);
      ASSERT_TRUE(out_types.ok()) << out_types.status().message();
      const CaseSite half(in_types, *out_types, attrs);
      halves.push_back(evaluate(op, half.site, pointers(in)));
    }
    for (size_t r = 0; r < s.out.size(); ++r) {
      SCOPED_TRACE(fmt::format("result {}", r));
      const int64_t d = dim_of(rule.out[r], f);
      const Bound bound{1e-12, 1e-12 * scale_of(whole[r])};
      if (d < 0) {
        RefTensor sum = halves[0][r];
        for (size_t i = 0; i < sum.data.size(); ++i) {
          const double other = halves[1][r].data[i];
          sum.data[i] =
              rule.open == ShardRule::Open::sum ? sum.data[i] + other : std::max(sum.data[i], other);
        }
        ASSERT_EQ(sum.dims, whole[r].dims);
        EXPECT_EQ(compare(whole[r], sum.data, bound), "") << "sum or maximum of the halves";
        continue;
      }
      for (int h = 0; h < 2; ++h) {
        const RefTensor want = half_of(whole[r], d, h);
        const RefTensor& got = halves[static_cast<size_t>(h)][r];
        ASSERT_EQ(got.dims, want.dims);
        EXPECT_EQ(compare(want, got.data, bound), "") << "half " << h;
      }
    }
  }
}

// Pieces of t along dim d, in that order.
RefTensor pieces_of(const RefTensor& t, int64_t d, std::span<const int64_t> starts, int64_t length) {
  RefTensor out;
  out.dims = t.dims;
  out.dims[static_cast<size_t>(d)] = length * static_cast<int64_t>(starts.size());
  for_each_index(out.dims, [&](const Dims& index, int64_t) {
    Dims from = index;
    int64_t& at = from[static_cast<size_t>(d)];
    at = starts[static_cast<size_t>(at / length)] + at % length;
    int64_t place = 0;
    for (size_t i = 0; i < from.size(); ++i) place = place * t.dims[i] + from[i];
    out.data.push_back(t.data[static_cast<size_t>(place)]);
  });
  return out;
}

// Where a factor's index matters, what ranks run for their tokens and all keys, in the ranks' order, makes
// the whole, whichever pieces they have.
TEST_P(PartitionTest, PlacedShardsMakeTheWhole) {
  const Op& op = *GetParam().op;
  const CaseSite s(op, GetParam().c);
  const ShardRule rule = op.partition(s.site);
  if (rule.placed < 0) return;
  const int64_t tokens = s.out[0].dims[static_cast<size_t>(dim_of(rule.out[0], rule.placed))];
  const std::vector<RefTensor> values = values_of(case_inputs(op, GetParam().c));
  const std::vector<RefTensor> whole = evaluate(op, s.site, pointers(values));
  for (const bool balanced : {false, true}) {
    const TokenAxis axis{"context", 2, balanced, false};
    const int64_t length = tokens / (axis.group * axis.pieces());
    if (length * axis.group * axis.pieces() != tokens) continue;
    SCOPED_TRACE(balanced);
    Dims order;
    for (int64_t rank = 0; rank < axis.group; ++rank)
      for (const int64_t start : axis.starts(rank, tokens)) order.push_back(start);
    // What all ranks have is in the ranks' order along the dim of its tokens, which is the second.
    const auto laid = [&](const RefTensor& t, const std::vector<int>& walks, const Dims& starts) {
      const int64_t d = dim_of(walks, rule.placed);
      return d >= 0 ? pieces_of(t, d, starts, length) : pieces_of(t, 1, order, length);
    };
    std::vector<RefTensor> sums(s.out.size());
    for (int64_t rank = 0; rank < axis.group; ++rank) {
      const Dims starts = axis.starts(rank, tokens);
      ir::Graph graph;
      Builder build(graph);
      std::vector<RefTensor> arguments;
      Values in;
      for (size_t i = 0; i < s.in.size(); ++i) {
        arguments.push_back(laid(values[i], rule.in[i], starts));
        Type t = s.in[i];
        t.dims = arguments.back().dims;
        in.push_back(graph.param(fmt::format("in{}", i), t));
      }
      const Value place = build.constant(DType::i32, {}, static_cast<double>(rank));
      const Values made = rule.local({build, s.site, in, axis, place});
      for (const Value v : made) graph.output("out", v);
      const std::vector<RefTensor> got = interpret(graph, arguments);
      for (size_t r = 0; r < got.size(); ++r) {
        SCOPED_TRACE(fmt::format("rank {}, result {}", rank, r));
        const RefTensor want = laid(whole[r], rule.out[r], starts);
        ASSERT_EQ(got[r].dims, want.dims);
        const Bound bound{1e-12, 1e-12 * scale_of(whole[r])};
        if (dim_of(rule.out[r], rule.placed) >= 0) {
          EXPECT_EQ(compare(want, got[r].data, bound), "");
          continue;
        }
        RefTensor& sum = sums[r];
        if (rank == 0) sum = {want.dims, std::vector<double>(want.data.size())};
        for (size_t i = 0; i < sum.data.size(); ++i) sum.data[i] += got[r].data[i];
        if (rank + 1 == axis.group) {
          EXPECT_EQ(compare(want, sum.data, bound), "");
        }
      }
    }
  }
}

// linear: partial inputs give partial results.
TEST_P(PartitionTest, LinearRulesAdd) {
  const Op& op = *GetParam().op;
  const CaseSite s(op, GetParam().c);
  if (!op.partition(s.site).linear) return;
  for (const Type& t : s.in)
    if (!dtype_is_float(t.dtype)) return;  // nothing of integers is summed over ranks
  const std::vector<RefTensor> one = values_of(case_inputs(op, GetParam().c, 0));
  const std::vector<RefTensor> two = values_of(case_inputs(op, GetParam().c, 1));
  std::vector<RefTensor> both = one;
  for (size_t i = 0; i < both.size(); ++i)
    for (size_t e = 0; e < both[i].data.size(); ++e) both[i].data[e] += two[i].data[e];
  const auto y1 = evaluate(op, s.site, pointers(one)), y2 = evaluate(op, s.site, pointers(two));
  const auto y = evaluate(op, s.site, pointers(both));
  for (size_t r = 0; r < y.size(); ++r) {
    RefTensor sum = y1[r];
    for (size_t e = 0; e < sum.data.size(); ++e) sum.data[e] += y2[r].data[e];
    EXPECT_EQ(compare(y[r], sum.data, {1e-12, 1e-12 * scale_of(y[r])}), "") << "result " << r;
  }
}

}  // namespace
}  // namespace lignum::ops
