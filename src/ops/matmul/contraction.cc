#include "ops/matmul/contraction.h"

#include <algorithm>
#include <array>

#include "base/round.h"
#include "kernels/rows.h"

namespace lignum::ops {
namespace {

using List = std::span<const int64_t>;

// A few numbers, one a dim, without the heap: cpu() plans each of its calls, and a step allocates nothing.
template <class T>
class Few {
 public:
  void push_back(T v) {
    LIGNUM_CHECK(size_ < items_.size(), "more than {} dims", items_.size());
    items_[size_++] = v;
  }
  operator std::span<const T>() const { return {items_.data(), size_}; }  // NOLINT: a Few is such a span

 private:
  std::array<T, kernels::kMaxRank> items_{};
  size_t size_ = 0;
};

int64_t size_of(const Type& t, List which) {
  int64_t n = 1;
  for (const int64_t d : which) n *= t.dims[static_cast<size_t>(d)];
  return n;
}

// A group of dims as one index: its size and the distance of neighbours. Dims of size 1 have no say. False
// when no single distance does.
struct Line {
  int64_t size = 1, stride = 1;
};
bool collapse(const Type& t, List which, Line& line) {
  const auto stride = [&](size_t d) {
    int64_t n = 1;
    for (size_t i = d + 1; i < t.dims.size(); ++i) n *= t.dims[i];
    return n;
  };
  line = {};
  bool first = true;
  for (size_t i = which.size(); i-- > 0;) {
    const auto d = static_cast<size_t>(which[i]);
    if (t.dims[d] == 1) continue;
    if (first) {
      line = {t.dims[d], stride(d)};
      first = false;
    } else if (stride(d) != line.stride * line.size) {
      return false;
    } else {
      line.size *= t.dims[d];
    }
  }
  return true;
}

// How GEMM reads one operand of (batch, rows, contract): where it lies, or from a transposed copy in the
// workspace, [batch, rows, contract] dense, when its dims cannot be walked with one stride a group.
struct Operand {
  bool copied = false;
  Few<int> permutation;         // of the copy
  bool contract_first = false;  // stored [contract, rows]
  int64_t ld = 1, stride = 0;
};
Operand plan_operand(const Type& t, List batch, List rows, List contract) {
  Operand o;
  Line b, r, c;
  if (t.elements() > 0 && collapse(t, batch, b) && collapse(t, rows, r) && collapse(t, contract, c)) {
    o.stride = b.size == 1 ? 0 : b.stride;
    if (c.size == 1 || c.stride == 1) {
      o.ld = r.size == 1 ? c.size : r.stride;
      return o;
    }
    if (r.size == 1 || r.stride == 1) {
      o.contract_first = true;
      o.ld = c.stride;
      return o;
    }
  }
  o.copied = t.elements() > 0;
  for (const List group : {batch, rows, contract})
    for (const int64_t d : group) o.permutation.push_back(static_cast<int>(d));
  o.ld = std::max<int64_t>(1, size_of(t, contract));
  o.stride = size_of(t, rows) * size_of(t, contract);
  return o;
}

Few<int64_t> free_dims(const Type& t, List batch, List contract) {
  Few<int64_t> free;
  for (int64_t d = 0; d < t.rank(); ++d) {
    const auto taken = [d](List list) { return std::find(list.begin(), list.end(), d) != list.end(); };
    if (!taken(batch) && !taken(contract)) free.push_back(d);
  }
  return free;
}

struct Plan {
  Operand a, b;
  kernels::Gemm gemm;
  int64_t copy_a = 0, copy_b = 0;  // bytes of workspace in front of GEMM's own

  explicit Plan(const Site& s) {
    const List batch_a = s.attrs.get<Dims>("batch_a"), batch_b = s.attrs.get<Dims>("batch_b");
    const List listed_a = s.attrs.get<Dims>("contract_a"), listed_b = s.attrs.get<Dims>("contract_b");
    // The order of the contracted pairs is free (fixed by the node, so its bits are): a's is kept.
    Few<int64_t> contract_a, contract_b;
    for (int64_t d = 0; d < s.in[0].rank(); ++d) {
      const auto at = std::find(listed_a.begin(), listed_a.end(), d);
      if (at == listed_a.end()) continue;
      contract_a.push_back(d);
      contract_b.push_back(listed_b[static_cast<size_t>(at - listed_a.begin())]);
    }
    const Few<int64_t> free_a = free_dims(s.in[0], batch_a, listed_a),
                       free_b = free_dims(s.in[1], batch_b, listed_b);
    a = plan_operand(s.in[0], batch_a, free_a, contract_a);
    b = plan_operand(s.in[1], batch_b, free_b, contract_b);
    gemm.batch = size_of(s.in[0], batch_a);
    gemm.m = size_of(s.in[0], free_a);
    gemm.n = size_of(s.in[1], free_b);
    gemm.k = size_of(s.in[0], contract_a);
    gemm.a = s.in[0].dtype;
    gemm.b = s.in[1].dtype;
    gemm.c = s.out[0].dtype;
    gemm.trans_a = a.contract_first;
    gemm.trans_b = !b.contract_first;
    gemm.lda = a.ld;
    gemm.ldb = b.ld;
    gemm.ldc = std::max<int64_t>(1, gemm.n);
    gemm.stride_a = a.stride;
    gemm.stride_b = b.stride;
    gemm.stride_c = gemm.m * gemm.n;
    if (a.copied) copy_a = round_up(s.in[0].bytes(), 64);
    if (b.copied) copy_b = round_up(s.in[1].bytes(), 64);
  }
};

Status paired(std::span<const Type> in, std::string_view what, const Dims& a, const Dims& b) {
  if (a.size() != b.size())
    return user_error("{}_a has {} dims, {}_b has {}: they go in pairs", what, a.size(), what, b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    const int64_t da = in[0].dims[static_cast<size_t>(a[i])], db = in[1].dims[static_cast<size_t>(b[i])];
    if (da != db)
      return user_error("{}: dim {} of a has size {}, dim {} of b has {}", what, a[i], da, b[i], db);
  }
  return {};
}

Dims range(int64_t begin, int64_t end) {
  Dims d;
  for (int64_t i = begin; i < end; ++i) d.push_back(i);
  return d;
}

}  // namespace

Contraction::Contraction(const Site& s)
    : batch_a(s.attrs.get<Dims>("batch_a")),
      batch_b(s.attrs.get<Dims>("batch_b")),
      contract_a(s.attrs.get<Dims>("contract_a")),
      contract_b(s.attrs.get<Dims>("contract_b")) {
  free_a = others(s.in[0].rank(), {batch_a, contract_a});
  free_b = others(s.in[1].rank(), {batch_b, contract_b});
}

Attrs contraction_attrs(const Dims& contract_a, const Dims& contract_b, const Dims& batch_a,
                        const Dims& batch_b) {
  return {{"contract_a", contract_a}, {"contract_b", contract_b}, {"batch_a", batch_a}, {"batch_b", batch_b}};
}

Status expect_operand(const Type& t, std::string_view input) {
  return expect_dtype(t, input, {DType::f32, DType::bf16, DType::f8e4m3fn, DType::f8e5m2});
}

Result<Types> infer_contraction(std::span<const Type> in, const Attrs& attrs) {
  LIGNUM_RETURN_IF_ERROR(expect_operand(in[0], "a"));
  LIGNUM_RETURN_IF_ERROR(expect_operand(in[1], "b"));
  LIGNUM_ASSIGN_OR_RETURN(const Dims contract_a, indices_attr(attrs, "contract_a", in[0].rank()));
  LIGNUM_ASSIGN_OR_RETURN(const Dims contract_b, indices_attr(attrs, "contract_b", in[1].rank()));
  LIGNUM_ASSIGN_OR_RETURN(const Dims batch_a, indices_attr(attrs, "batch_a", in[0].rank()));
  LIGNUM_ASSIGN_OR_RETURN(const Dims batch_b, indices_attr(attrs, "batch_b", in[1].rank()));
  LIGNUM_RETURN_IF_ERROR(paired(in, "contract", contract_a, contract_b));
  LIGNUM_RETURN_IF_ERROR(paired(in, "batch", batch_a, batch_b));
  for (const int64_t d : batch_a)
    if (std::find(contract_a.begin(), contract_a.end(), d) != contract_a.end())
      return user_error("dim {} of a is in batch_a and in contract_a", d);
  for (const int64_t d : batch_b)
    if (std::find(contract_b.begin(), contract_b.end(), d) != contract_b.end())
      return user_error("dim {} of b is in batch_b and in contract_b", d);

  DType dtype = in[0].dtype;
  if (attrs.all().contains("dtype")) {
    LIGNUM_ASSIGN_OR_RETURN(dtype, dtype_attr(attrs, "dtype"));
  } else if (is_float8(dtype)) {
    return user_error("a is {}: attribute dtype must say what the result is, f32 or bf16", dtype_name(dtype));
  }
  LIGNUM_RETURN_IF_ERROR(expect_dtype(Type{dtype, {}, {}}, "the result", {DType::f32, DType::bf16}));
  Dims dims;
  std::vector<std::string> names;
  const auto take = [&](const Type& t, const Dims& which) {
    for (const int64_t d : which) {
      dims.push_back(t.dims[static_cast<size_t>(d)]);
      names.push_back(name_of(t, d));
    }
  };
  take(in[0], batch_a);
  take(in[0], others(in[0].rank(), {batch_a, contract_a}));
  take(in[1], others(in[1].rank(), {batch_b, contract_b}));
  return one_type(dtype, std::move(dims), std::move(names));
}

ShardRule contraction_rule(const Site& s) {
  const Contraction g(s);
  ShardRule rule;
  rule.in = {std::vector<int>(s.in[0].dims.size(), -1), std::vector<int>(s.in[1].dims.size(), -1)};
  rule.out = {factors(s.out[0].rank())};
  int factor = 0;
  for (size_t i = 0; i < g.batch_a.size(); ++i, ++factor) {
    rule.in[0][static_cast<size_t>(g.batch_a[i])] = factor;
    rule.in[1][static_cast<size_t>(g.batch_b[i])] = factor;
  }
  for (const int64_t d : g.free_a) rule.in[0][static_cast<size_t>(d)] = factor++;
  for (const int64_t d : g.free_b) rule.in[1][static_cast<size_t>(d)] = factor++;
  for (size_t i = 0; i < g.contract_a.size(); ++i, ++factor) {
    rule.in[0][static_cast<size_t>(g.contract_a[i])] = factor;
    rule.in[1][static_cast<size_t>(g.contract_b[i])] = factor;
  }
  return rule;
}

Cost contraction_cost(const Site& s) {
  const Contraction g(s);
  Cost c = streaming_cost(s, 0);
  c.work = Work::matmul;
  c.batch = size_of(s.in[0], g.batch_a);
  c.m = size_of(s.in[0], g.free_a);
  c.n = size_of(s.in[1], g.free_b);
  c.k = size_of(s.in[0], g.contract_a);
  c.flops = 2.0 * static_cast<double>(c.batch) * static_cast<double>(c.m) * static_cast<double>(c.n) *
            static_cast<double>(c.k);
  return c;
}

void contraction_reference(const RefCall& c, std::vector<double>& out) {
  const Contraction g(c.site);
  const Dims stride_a = row_major_strides(c.in[0]->dims), stride_b = row_major_strides(c.in[1]->dims);
  // The step that result dim i makes in each operand.
  Dims step_a, step_b;
  const auto walk = [](const Dims& group, const Dims& strides, Dims& steps) {
    for (const int64_t d : group) steps.push_back(strides[static_cast<size_t>(d)]);
  };
  walk(g.batch_a, stride_a, step_a);
  walk(g.free_a, stride_a, step_a);
  walk(g.batch_b, stride_b, step_b);
  step_a.resize(step_a.size() + g.free_b.size(), 0);
  step_b.resize(step_b.size() + g.free_a.size(), 0);
  walk(g.free_b, stride_b, step_b);
  Dims contract_dims;
  for (const int64_t d : g.contract_a) contract_dims.push_back(c.in[0]->dims[static_cast<size_t>(d)]);
  // Where the products of one element lie, relative to its first.
  std::vector<std::pair<int64_t, int64_t>> offsets;
  for_each_index(contract_dims, [&](const Dims& index, int64_t) {
    int64_t oa = 0, ob = 0;
    for (size_t i = 0; i < index.size(); ++i) {
      oa += index[i] * stride_a[static_cast<size_t>(g.contract_a[i])];
      ob += index[i] * stride_b[static_cast<size_t>(g.contract_b[i])];
    }
    offsets.emplace_back(oa, ob);
  });
  for_each_index(c.site.out[0].dims, [&](const Dims& index, int64_t n) {
    int64_t oa = 0, ob = 0;
    for (size_t i = 0; i < index.size(); ++i) {
      oa += index[i] * step_a[i];
      ob += index[i] * step_b[i];
    }
    double sum = 0;
    for (const auto& [da, db] : offsets)
      sum += c.in[0]->data[static_cast<size_t>(oa + da)] * c.in[1]->data[static_cast<size_t>(ob + db)];
    out[static_cast<size_t>(n)] = sum;
  });
}

int64_t contraction_workspace(const Site& s, int threads, int64_t tile) {
  Plan p(s);
  p.gemm.scale_k = tile;
  return p.copy_a + p.copy_b + kernels::gemm_workspace(p.gemm, threads);
}

Status run_contraction(const CpuCall& c, void* workspace, const LineScales& scales) {
  Plan p(c.site);
  p.gemm.row_scale = scales.of_a;
  p.gemm.column_scale = scales.of_b;
  p.gemm.scale_k = scales.tile;
  LIGNUM_RETURN_IF_ERROR(kernels::gemm_supported(p.gemm));
  auto* space = static_cast<char*>(workspace);
  const void* a = c.in[0];
  const void* b = c.in[1];
  const auto copy = [&](const Type& t, const Operand& o, void* to, const void* from) {
    kernels::transpose(t.dtype, t.dims, o.permutation, from, to, c.parallel);
    return to;
  };
  if (p.a.copied) a = copy(c.site.in[0], p.a, space, a);
  if (p.b.copied) b = copy(c.site.in[1], p.b, space + p.copy_a, b);
  kernels::gemm(c.choice, p.gemm, a, b, c.out[0], space + p.copy_a + p.copy_b, c.parallel);
  return {};
}

GradientProduct gradient_product(const Site& s, int operand) {
  const Contraction g(s);
  const auto nb = static_cast<int64_t>(g.batch_a.size());
  const auto na = static_cast<int64_t>(g.free_a.size());
  const Dims dy_batch = range(0, nb), dy_a = range(nb, nb + na), dy_b = range(nb + na, s.out[0].rank());
  const bool of_a = operand == 0;
  const Dims& own_batch = of_a ? g.batch_a : g.batch_b;
  const Dims& own_free = of_a ? g.free_a : g.free_b;
  const Dims& own_contract = of_a ? g.contract_a : g.contract_b;
  const Dims& other_batch = of_a ? g.batch_b : g.batch_a;
  const Dims& other_contract = of_a ? g.contract_b : g.contract_a;

  GradientProduct p;
  p.dy_dims = of_a ? dy_b : dy_a;
  p.other_dims = of_a ? g.free_b : g.free_a;
  // The contracted dims of this operand come out in the order of the other one's.
  Dims sorted = other_contract, partners;
  std::sort(sorted.begin(), sorted.end());
  for (const int64_t d : sorted)
    partners.push_back(own_contract[static_cast<size_t>(
        std::find(other_contract.begin(), other_contract.end(), d) - other_contract.begin())]);
  const auto join = [](std::initializer_list<const Dims*> parts) {
    Dims all;
    for (const Dims* part : parts) all.insert(all.end(), part->begin(), part->end());
    return all;
  };
  // The operand's dim that each result dim is.
  const Dims dy_first = join({&own_batch, &own_free, &partners});
  const Dims other_first = join({&own_batch, &partners, &own_free});
  p.other_first = !std::is_sorted(dy_first.begin(), dy_first.end()) &&
                  std::is_sorted(other_first.begin(), other_first.end());
  p.attrs = p.other_first ? contraction_attrs(p.other_dims, p.dy_dims, other_batch, dy_batch)
                          : contraction_attrs(p.dy_dims, p.other_dims, dy_batch, other_batch);
  const Dims& order = p.other_first ? other_first : dy_first;
  p.permutation.resize(order.size());
  for (size_t i = 0; i < order.size(); ++i)
    p.permutation[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  return p;
}

Value gradient_matmul(Builder& b, GradientProduct p, Value dy, Value other, DType dtype) {
  const Value first = p.other_first ? other : dy, second = p.other_first ? dy : other;
  if (b.type(first).dtype != dtype) p.attrs.set("dtype", std::string(dtype_name(dtype)));
  return b.transpose(b.add("matmul", {first, second}, std::move(p.attrs)), p.permutation);
}

}  // namespace lignum::ops
