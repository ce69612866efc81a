#include "tune/row_timing.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

namespace lignum::tune {
namespace {

using ops::Case;
using ops::CaseInput;
using ops::Op;
using ops::Type;
using ops::Types;

constexpr int64_t kBlock = int64_t{1} << 16;

// A dim by its place and size: inputs that agree in both share it.
struct Dim {
  size_t place;
  int64_t size;
  friend bool operator==(const Dim&, const Dim&) = default;
};

// Outer dims first.
std::vector<Dim> dims_of(const Case& c) {
  std::vector<Dim> dims;
  size_t rank = 0;
  for (const CaseInput& i : c.in) rank = std::max(rank, i.type.dims.size());
  for (size_t d = 0; d < rank; ++d) {
    for (const CaseInput& i : c.in) {
      if (d >= i.type.dims.size() || i.type.dims[d] < 2) continue;
      const Dim dim{d, i.type.dims[d]};
      if (std::find(dims.begin(), dims.end(), dim) == dims.end()) dims.push_back(dim);
    }
  }
  return dims;
}

Case with_size(Case c, Dim dim, int64_t size) {
  for (CaseInput& i : c.in)
    if (dim.place < i.type.dims.size() && i.type.dims[dim.place] == dim.size) i.type.dims[dim.place] = size;
  return c;
}

// An optimiser's step, say: several results, each the new value of one input and of no other. Such an op runs
// in place in a step; apart, it copies its state first, which made it look half as fast.
bool updates(const ops::Buffers& buffers, size_t results) {
  std::set<int> result, input;
  for (const auto& [r, i] : buffers.in_place) {
    result.insert(r);
    input.insert(i);
  }
  return results > 1 && buffers.in_place.size() == results && result.size() == results &&
         input.size() == results;
}

size_t input_of(const ops::Buffers& buffers, size_t result) {
  for (const auto& [r, i] : buffers.in_place)
    if (r == static_cast<int>(result)) return static_cast<size_t>(i);
  LIGNUM_CHECK(false, "result {} has no place", result);
}

// Floating inputs and results are f32 or bf16: what steps are made of.
bool edges(const ops::CaseSite& site) {
  const auto edge = [](const Type& t) { return t.dtype == DType::f32 || t.dtype == DType::bf16; };
  return !site.in.empty() && std::all_of(site.in.begin(), site.in.end(), edge) &&
         std::all_of(site.out.begin(), site.out.end(), edge);
}

void fill(const Op& op, const CaseInput& input, void* data) {
  // As many as the input has, at most a block, in one dim.
  Case c;
  c.name = "bench";
  c.in = {input};
  c.in[0].type.dims = {std::min(kBlock, input.type.elements())};
  if (input.fill == ops::Fill::label) c.in[0].fill = ops::Fill::token;
  const std::vector<std::byte> block = ops::case_inputs(op, c)[0].bytes;
  const int64_t bytes = input.type.bytes();
  for (int64_t at = 0; at < bytes; at += static_cast<int64_t>(block.size())) {
    const auto n = static_cast<size_t>(std::min<int64_t>(static_cast<int64_t>(block.size()), bytes - at));
    std::memcpy(static_cast<std::byte*>(data) + at, block.data(), n);
  }
}

}  // namespace

std::optional<double> traffic(const Op& op, const Case& c) {
  Types in;
  for (const CaseInput& i : c.in) in.push_back(i.type);
  Result<Types> out = op.infer(in, c.attrs);
  if (!out.ok()) return std::nullopt;
  const ops::CaseSite site(in, std::move(out).value(), c.attrs);
  const ops::Cost cost = op.cost(site.site);
  return cost.read + cost.write;
}

Case retyped(Case c, DType edge) {
  for (CaseInput& i : c.in)
    if (i.type.dtype == DType::bf16) i.type.dtype = edge;
  return c;
}

std::optional<Case> rescaled(const Op& op, const Case& c, double bytes) {
  const std::optional<double> whole = traffic(op, c);
  if (!whole) return std::nullopt;
  for (const Dim dim : dims_of(c)) {
    const std::optional<double> half = traffic(op, with_size(c, dim, dim.size / 2));
    if (!half || *half > 0.75 * *whole) continue;
    const auto wanted = std::llround(static_cast<double>(dim.size) * bytes / *whole);
    Case scaled = with_size(c, dim, std::max<int64_t>(1, wanted));
    if (!traffic(op, scaled)) continue;
    return scaled;
  }
  return std::nullopt;
}

RowBench::RowBench(const Op& op, Case c, kernels::Choice choice)
    : op_(op), case_(std::move(c)), site_(op, case_), choice_(choice) {
  const ops::Cost cost = op.cost(site_.site);
  work_ = plan::row_work(op.name, site_.site, cost);
  bytes_ = cost.read + cost.write;
  for (size_t i = 0; i < case_.in.size(); ++i) {
    in_.push_back(std::make_unique<ops::Buffer>(case_.in[i].type.bytes(), 0));
    if (case_.in[i].type.elements() > 0) fill(op, case_.in[i], in_.back()->data());
    in_pointers_.push_back(in_.back()->data());
  }
  const bool in_place = updates(op.buffers(site_.site), site_.out.size());
  for (size_t r = 0; r < site_.out.size(); ++r) {
    out_.push_back(std::make_unique<ops::Buffer>(in_place ? 0 : site_.out[r].bytes(), 0));
    out_pointers_.push_back(in_place ? in_[input_of(op.buffers(site_.site), r)]->data()
                                     : out_.back()->data());
  }
}

void* RowBench::workspace(const Parallel& pool) {
  const int64_t bytes = op_.workspace(site_.site, pool.threads());
  if (bytes > workspace_bytes_) {
    workspace_ = std::make_unique<ops::Buffer>(bytes, 0);
    workspace_bytes_ = bytes;
  }
  return workspace_ != nullptr ? workspace_->data() : nullptr;
}

Status RowBench::run(Parallel& pool) {
  return op_.cpu({site_.site, in_pointers_, out_pointers_, workspace(pool), pool, choice_, nullptr});
}

std::vector<RowSubject> row_subjects(const std::vector<double>& sizes_in_bytes) {
  std::vector<RowSubject> subjects;
  std::set<std::pair<std::string, DType>> known;
  for (const Op* op : ops::all_ops()) {
    std::vector<Case> cases = op->cases();
    const auto large = std::partition(cases.begin(), cases.end(), [](const Case& c) { return c.bench; });
    // An op without a bench case has others, and they can be grown.
    if (large != cases.begin()) cases.erase(large, cases.end());
    for (const Case& bench : cases) {
      if (bench.ranks > 1) continue;
      for (const DType edge : {DType::f32, DType::bf16}) {
        const Case c = retyped(bench, edge);
        if (!traffic(*op, c)) continue;
        const ops::CaseSite site(*op, c);
        const ops::Cost cost = op->cost(site.site);
        if (cost.work != ops::Work::rows && cost.work != ops::Work::transcendental &&
            cost.work != ops::Work::copy)
          continue;
        if (!bench.bench && !edges(site)) continue;
        const plan::RowWork work = plan::row_work(op->name, site.site, cost);
        if (!known.emplace(work.name, work.dtype).second) continue;
        RowSubject subject{work.name, work.dtype, op, {}};
        for (const double bytes : sizes_in_bytes)
          if (std::optional<Case> scaled = rescaled(*op, c, bytes))
            subject.cases.push_back(std::move(*scaled));
        if (!subject.cases.empty()) subjects.push_back(std::move(subject));
      }
    }
  }
  return subjects;
}

}  // namespace lignum::tune
