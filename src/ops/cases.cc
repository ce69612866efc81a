#include "ops/cases.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/rng.h"
#include "kernels/rows.h"
#include "ops/rules.h"

namespace lignum::ops {
namespace {

constexpr int64_t kFence = 64;
constexpr std::byte kFenceByte{0xa5};

double draw(const Random& random, uint64_t i, const CaseInput& input) {
  const auto below = [&](double bound) {
    return static_cast<double>(random.below(i, static_cast<uint64_t>(std::max(1.0, bound))));
  };
  switch (input.fill) {
    case Fill::normal:
      return input.bound * random.normal(i);
    case Fill::positive:
      return 0.25 + 2 * random.uniform(i);
    case Fill::uniform01:
      return random.uniform(i);
    case Fill::token:
    case Fill::position:
      return below(input.bound);
    case Fill::label:
      return input.bound < 1 || random.below(i + (uint64_t{1} << 40), 5) == 0 ? kernels::kIgnoredLabel
                                                                              : below(input.bound);
    case Fill::predicate:
      return static_cast<double>(random.below(i, 2));
  }
  LIGNUM_CHECK(false, "fill {}", static_cast<int>(input.fill));
}

// Half a unit in the last place of a number in [1, 2).
double half_ulp(DType d) {
  switch (d) {
    case DType::f32:
      return 0x1p-24;
    case DType::f64:
      return 0x1p-53;
    case DType::bf16:
      return 0x1p-8;
    case DType::f8e4m3fn:
      return 0x1p-4;
    case DType::f8e5m2:
      return 0x1p-3;
    default:
      return 0;
  }
}
// Half the distance of subnormals, where the relative error has no bound.
double half_subnormal(DType d) {
  switch (d) {
    case DType::f8e4m3fn:
      return 0x1p-10;
    case DType::f8e5m2:
      return 0x1p-17;
    default:
      return 0;
  }
}

}  // namespace

std::vector<CaseTensor> case_inputs(const Op& op, const Case& c, int64_t rank) {
  std::vector<CaseTensor> out;
  for (size_t k = 0; k < c.in.size(); ++k) {
    const CaseInput& input = c.in[k];
    const Random random(17, fmt::format("{}/{}/{}/{}", op.name, c.name, k, rank));
    CaseTensor t;
    t.type = input.type;
    const int64_t n = input.type.elements();
    t.bytes.resize(static_cast<size_t>(input.type.bytes()));
    t.values.dims = input.type.dims;
    t.values.data.resize(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      store_from_double(t.type.dtype, t.bytes.data(), i, draw(random, static_cast<uint64_t>(i), input));
      t.values.data[static_cast<size_t>(i)] = load_as_double(t.type.dtype, t.bytes.data(), i);
    }
    out.push_back(std::move(t));
  }
  return out;
}

CaseSite::CaseSite(const Op& op, const Case& c) : attrs(c.attrs), site{attrs, {}, {}} {
  for (const CaseInput& i : c.in) in.push_back(i.type);
  Result<Types> types = op.infer(in, attrs);
  LIGNUM_CHECK(types.ok(), "{}, case {}: {}", op.name, c.name, types.status().message());
  out = std::move(types).value();
  site.in = in;
  site.out = out;
}

CaseSite::CaseSite(Types in_types, Types out_types, Attrs attributes)
    : in(std::move(in_types)),
      out(std::move(out_types)),
      attrs(std::move(attributes)),
      site{attrs, in, out} {}

Buffer::Buffer(int64_t bytes, int64_t offset)
    : bytes_(bytes),
      before_(kFence + offset),
      memory_(std::make_unique<std::byte[]>(static_cast<size_t>(bytes + offset + 2 * kFence + 64))) {
  const auto address = reinterpret_cast<uintptr_t>(memory_.get());
  begin_ = memory_.get() + ((64 - address % 64) % 64);
  data_ = begin_ + before_;
  std::memset(begin_, static_cast<int>(kFenceByte), static_cast<size_t>(before_ + bytes_ + kFence));
}

bool Buffer::intact() const {
  const auto fence = [](const std::byte* from, int64_t n) {
    return std::all_of(from, from + n, [](std::byte b) { return b == kFenceByte; });
  };
  return fence(begin_, before_) && fence(data_ + bytes_, kFence);
}

double scale_of(const RefTensor& t) {
  double scale = 0;
  for (const double x : t.data)
    if (std::isfinite(x)) scale = std::max(scale, std::fabs(x));
  return scale;
}

Bound result_bound(const Op& op, const Site& site, std::span<const RefTensor* const> in,
                   const RefTensor& reference, DType dtype) {
  if (!dtype_is_float(dtype)) return {};
  double scale = scale_of(reference);
  for (size_t i = 0; i < in.size(); ++i)
    if (dtype_is_float(site.in[i].dtype)) scale = std::max(scale, scale_of(*in[i]));
  const Cost cost = op.cost(site);
  const double elements = static_cast<double>(std::max<size_t>(1, reference.data.size()));
  const double length = 1 + (cost.flops + 8 * cost.transcendentals) / elements;
  Bound b;
  // A hair more than half a unit: the f32 value that is rounded may itself be on the other side of a tie.
  b.relative = half_ulp(dtype) * (1 + 0x1p-10);
  b.absolute = half_subnormal(dtype);
  if (cost.work != Work::copy && cost.work != Work::none)
    b.absolute += 8 * half_ulp(DType::f32) * std::sqrt(length) * scale;
  if (cost.inner != DType::f32) b.absolute += half_ulp(cost.inner) * std::sqrt(length) * scale;
  return b;
}

std::string compare(const RefTensor& reference, std::span<const double> got, Bound bound) {
  LIGNUM_CHECK(got.size() == reference.data.size(), "{} elements against {}", got.size(),
               reference.data.size());
  double worst = 0;
  size_t at = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double want = reference.data[i], have = got[i];
    if (want == have || (std::isnan(want) && std::isnan(have))) continue;
    const double allowed = bound.relative * std::fabs(want) + bound.absolute;
    const double error = std::fabs(want - have);
    // An infinity or a NaN on one side alone is infinitely bad.
    const double excess = std::isfinite(error) && std::isfinite(want)
                              ? error / std::max(allowed, std::numeric_limits<double>::min())
                              : std::numeric_limits<double>::infinity();
    if (excess > worst) {
      worst = excess;
      at = i;
    }
  }
  if (worst <= 1) return "";
  std::string index;
  const Dims strides = row_major_strides(reference.dims);
  for (size_t d = 0; d < strides.size(); ++d)
    index +=
        fmt::format("{}{}", d == 0 ? "" : ", ", static_cast<int64_t>(at) / strides[d] % reference.dims[d]);
  const double want = reference.data[at];
  return fmt::format(
      "worst element [{}]: reference {:.9g}, got {:.9g}, error {:.3g}, bound {:.3g} ({:.3g} times)", index,
      want, got[at], std::fabs(want - got[at]), bound.relative * std::fabs(want) + bound.absolute, worst);
}

RefTensor load(const Type& type, const void* data) {
  RefTensor t{type.dims, std::vector<double>(static_cast<size_t>(type.elements()))};
  for (size_t i = 0; i < t.data.size(); ++i)
    t.data[i] = load_as_double(type.dtype, data, static_cast<int64_t>(i));
  return t;
}

}  // namespace lignum::ops
