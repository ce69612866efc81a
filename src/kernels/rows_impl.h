// The inner loops of the row kernels as plain loops that the compiler vectorises, compiled once an ISA:
// rows_<isa>.cc defines LIGNUM_ROWS_ISA, the namespace, and includes this file. The rules for such files are
// in isa.h: so nothing here calls an inline function that another translation unit may also emit. Sums have
// kLanes explicit partial sums, which vectorise without -ffast-math and give the same bits on every ISA.
#include <cstdint>

#include "base/dtype.h"
#include "kernels/float8.h"
#include "kernels/math.h"
#include "kernels/philox.h"
#include "kernels/rows_table.h"

// An output may be an input (in place) but never overlaps one partly: no dependence between iterations.
// Without this the compilers guard the loop by an overlap test, which sends the in-place case to scalar code.
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed"  // a loop round libm, or without an ISA, may stay scalar
#define LIGNUM_IN_PLACE _Pragma("clang loop vectorize(assume_safety)")
#else
#define LIGNUM_IN_PLACE _Pragma("GCC ivdep")
#endif

namespace lignum::kernels::LIGNUM_ROWS_ISA {
namespace {

inline float load(const float* p, int64_t i) { return p[i]; }
inline float load(const bf16* p, int64_t i) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(p[i].bits) << 16);
}
inline void store(float* p, int64_t i, float x) { p[i] = x; }
inline void store(bf16* p, int64_t i, float x) {
  const uint32_t u = __builtin_bit_cast(uint32_t, x);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  p[i].bits = static_cast<uint16_t>(x != x ? (u >> 16) | 0x40u : rounded);
}

template <class T>
const T* typed(const void* p) {
  return static_cast<const T*>(p);
}
template <class T>
T* typed(void* p) {
  return static_cast<T*>(p);
}

// Two 512-bit vectors: enough independent additions in flight to keep up with L2.
constexpr int kLanes = 32;

// The sum of f(0..n-1): element i goes to lane i mod kLanes in ascending order; then the upper half of the
// lanes is added to the lower half until one is left.
template <class S, class F>
inline S lane_sum(int64_t n, F f) {
  S lane[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) lane[l] += f(i + l);
  }
  for (int l = 0; i + l < n; ++l) lane[l] += f(i + l);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) lane[l] += lane[l + width];
  }
  return lane[0];
}

// The largest of f(0..n-1), -infinity for n = 0; NaNs are skipped.
template <class F>
inline float lane_max(int64_t n, F f) {
  float lane[kLanes];
  for (int l = 0; l < kLanes; ++l) lane[l] = -__builtin_inff();
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      const float x = f(i + l);
      lane[l] = x > lane[l] ? x : lane[l];
    }
  }
  for (int l = 0; i + l < n; ++l) {
    const float x = f(i + l);
    lane[l] = x > lane[l] ? x : lane[l];
  }
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) lane[l] = lane[l + width] > lane[l] ? lane[l + width] : lane[l];
  }
  return lane[0];
}

inline float logistic(float x) { return 1.0f / (1.0f + exp_of(-x)); }

}  // namespace
}  // namespace lignum::kernels::LIGNUM_ROWS_ISA

#include "kernels/rows_impl_elementwise.h"
#include "kernels/rows_impl_loss.h"
#include "kernels/rows_impl_norm.h"
#include "kernels/rows_impl_quantize.h"

namespace lignum::kernels::LIGNUM_ROWS_ISA {
namespace {

constexpr RowTable kTable = {
    .rms_norm = {{rms_norm<float, float>, rms_norm<float, bf16>},
                 {rms_norm<bf16, float>, rms_norm<bf16, bf16>}},
    .rms_norm_grad = {{rms_norm_grad<float, float>, rms_norm_grad<float, bf16>},
                      {rms_norm_grad<bf16, float>, rms_norm_grad<bf16, bf16>}},
    .layer_norm = {{layer_norm<float, float>, layer_norm<float, bf16>},
                   {layer_norm<bf16, float>, layer_norm<bf16, bf16>}},
    .layer_norm_grad = {{layer_norm_grad<float, float>, layer_norm_grad<float, bf16>},
                        {layer_norm_grad<bf16, float>, layer_norm_grad<bf16, bf16>}},
    .fold = {fold<float>, fold<bf16>},
    .rope_angles = rope_angles,
    .rope = {rope<float>, rope<bf16>},
    .glu = {{glu<Silu, float>, glu<Silu, bf16>}, {glu<GeluTanh, float>, glu<GeluTanh, bf16>}},
    .glu_grad = {{glu_grad<Silu, float>, glu_grad<Silu, bf16>},
                 {glu_grad<GeluTanh, float>, glu_grad<GeluTanh, bf16>}},
    .activation = {{activation<Silu, float>, activation<Silu, bf16>},
                   {activation<GeluTanh, float>, activation<GeluTanh, bf16>}},
    .activation_grad = {{activation_grad<Silu, float>, activation_grad<Silu, bf16>},
                        {activation_grad<GeluTanh, float>, activation_grad<GeluTanh, bf16>}},
    .elementwise = LIGNUM_ELEMENTWISE_TABLE,
    .convert = LIGNUM_CONVERT_TABLE,
    .absmax = {absmax<float>, absmax<bf16>},
    .absmax_columns = {absmax_columns<float>, absmax_columns<bf16>},
    .quantize = LIGNUM_QUANTIZE_TABLE(quantize),
    .quantize_columns = LIGNUM_QUANTIZE_TABLE(quantize_columns),
    .quantize_stochastic = LIGNUM_QUANTIZE_TABLE(quantize_stochastic),
    .scale_tiles = {scale_tiles<float>, scale_tiles<bf16>},
    .scale_columns = {scale_columns<float>, scale_columns<bf16>},
    .clip_gradient = LIGNUM_CLIP_TABLE(clip_gradient),
    .clip_gradient_columns = LIGNUM_CLIP_TABLE(clip_gradient_columns),
    .add_bias = {{add_bias<float, float>, add_bias<float, bf16>},
                 {add_bias<bf16, float>, add_bias<bf16, bf16>}},
    .sum_rows = {{sum_rows<float, float>, sum_rows<float, bf16>},
                 {sum_rows<bf16, float>, sum_rows<bf16, bf16>}},
    .cross_entropy = {cross_entropy<float>, cross_entropy<bf16>},
    .cross_entropy_grad = {{cross_entropy_grad<float, float>, cross_entropy_grad<float, bf16>},
                           {nullptr, cross_entropy_grad<bf16, bf16>}},
    .accumulate = {accumulate<float>, accumulate<bf16>},
    .sum_squares = {sum_squares<float>, sum_squares<bf16>},
    .find_nonfinite = {find_nonfinite<float>, find_nonfinite<bf16>},
    .adamw = {{adamw<float, float>, adamw<float, bf16>}, {adamw<bf16, float>, adamw<bf16, bf16>}},
    .sgd = sgd,
};

}  // namespace
}  // namespace lignum::kernels::LIGNUM_ROWS_ISA
