// Sums in rank order, in blocks that stay in the first-level cache: each part is read once, in long runs.
#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "comm/collective.h"

namespace lignum::comm {
namespace {

// Elements a block. A constant trip count lets the compiler vectorise the loops at -O2; the small one is for
// the end of a run, and for runs that are short: rows of a tensor that is cut in its last dim.
constexpr int64_t kBlock = 1024, kSmallBlock = 32;

template <class T>
struct Accumulator {
  using type = T;
};
template <>
struct Accumulator<bf16> {
  using type = float;
};
template <>
struct Accumulator<int32_t> {
  using type = uint32_t;  // wraps, as the contract says
};

template <class In, class Acc>
Acc widen(In x) {
  return static_cast<Acc>(x);
}

template <class Out, class Acc>
Out narrow(Acc x) {
  return static_cast<Out>(x);
}

// Loads and stores go by memcpy of whole elements: buffers of a slice may be misaligned.
template <class T>
T load(const std::byte* p, int64_t i) {
  T x;
  std::memcpy(&x, p + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return x;
}
template <class T>
void store(std::byte* p, int64_t i, T x) {
  std::memcpy(p + i * static_cast<int64_t>(sizeof(T)), &x, sizeof(T));
}

template <class In, class Out>
inline __attribute__((always_inline)) void sum_block(std::span<const void* const> parts, void* out,
                                                     int64_t begin, int64_t n) {
  using Acc = Accumulator<In>::type;
  std::array<Acc, kBlock> acc;
  const auto* first = static_cast<const std::byte*>(parts[0]) + begin * static_cast<int64_t>(sizeof(In));
  for (int64_t i = 0; i < n; ++i) acc[i] = widen<In, Acc>(load<In>(first, i));
  for (const void* part : parts.subspan(1)) {
    const auto* p = static_cast<const std::byte*>(part) + begin * static_cast<int64_t>(sizeof(In));
    for (int64_t i = 0; i < n; ++i) acc[i] += widen<In, Acc>(load<In>(p, i));
  }
  auto* o = static_cast<std::byte*>(out) + begin * static_cast<int64_t>(sizeof(Out));
  for (int64_t i = 0; i < n; ++i) store<Out>(o, i, narrow<Out, Acc>(acc[i]));
}

template <class In, class Out>
void sum(std::span<const void* const> parts, void* out, int64_t n) {
  int64_t begin = 0;
  for (; begin + kBlock <= n; begin += kBlock) sum_block<In, Out>(parts, out, begin, kBlock);
  for (; begin + kSmallBlock <= n; begin += kSmallBlock) sum_block<In, Out>(parts, out, begin, kSmallBlock);
  if (begin < n) sum_block<In, Out>(parts, out, begin, n - begin);
}

}  // namespace

void sum_in_order(DType in, DType out_dtype, std::span<const void* const> parts, void* out, int64_t n) {
  LIGNUM_CHECK(!parts.empty());
  if (in == DType::f32 && out_dtype == DType::f32) return sum<float, float>(parts, out, n);
  if (in == DType::bf16 && out_dtype == DType::bf16) return sum<bf16, bf16>(parts, out, n);
  if (in == DType::bf16 && out_dtype == DType::f32) return sum<bf16, float>(parts, out, n);
  if (in == DType::f64 && out_dtype == DType::f64) return sum<double, double>(parts, out, n);
  if (in == DType::i32 && out_dtype == DType::i32) return sum<int32_t, int32_t>(parts, out, n);
  LIGNUM_CHECK(false, "no sum of {} to {}", dtype_name(in), dtype_name(out_dtype));
}

void combine(const Collective& c, std::span<const void* const> parts, void* out, int64_t n) {
  if (!c.maximum) return sum_in_order(c.dtype, c.out_dtype.value_or(c.dtype), parts, out, n);
  const auto largest = [&]<class T>(T) {
    for (int64_t i = 0; i < n; ++i) {
      T best = load<T>(static_cast<const std::byte*>(parts[0]), i);
      for (const void* part : parts.subspan(1)) {
        const T x = load<T>(static_cast<const std::byte*>(part), i);
        if (!(to_float(x) <= to_float(best)) && to_float(best) == to_float(best)) best = x;
      }
      store<T>(static_cast<std::byte*>(out), i, best);
    }
  };
  c.dtype == DType::f32 ? largest(float{}) : largest(bf16{});
}

}  // namespace lignum::comm
