// Part of rows_impl.h: quantising to 8-bit floats by a scale for each tile.
namespace lignum::kernels::LIGNUM_ROWS_ISA {
namespace {

// |x| as the bits of a float, which order as the magnitudes do; a NaN's are above infinity's.
inline uint32_t magnitude(const float* p, int64_t i) {
  return __builtin_bit_cast(uint32_t, p[i]) & 0x7fffffffu;
}
inline uint32_t magnitude(const bf16* p, int64_t i) {
  return static_cast<uint32_t>(p[i].bits & 0x7fffu) << 16;
}

template <class T>
uint32_t absmax(int64_t n, const void* xs) {
  const T* x = typed<T>(xs);
  uint32_t lane[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      const uint32_t m = magnitude(x, i + l);
      lane[l] = m > lane[l] ? m : lane[l];
    }
  }
  uint32_t largest = 0;
  for (; i < n; ++i) {
    const uint32_t m = magnitude(x, i);
    largest = m > largest ? m : largest;
  }
  for (int l = 0; l < kLanes; ++l) largest = lane[l] > largest ? lane[l] : largest;
  return largest;
}

template <class T>
void absmax_columns(int64_t n, const void* xs, uint32_t* largest) {
  const T* x = typed<T>(xs);
  LIGNUM_IN_PLACE
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t m = magnitude(x, i);
    largest[i] = m > largest[i] ? m : largest[i];
  }
}

// A number as T has it.
template <class T>
inline float rounded(float x) {
  if constexpr (sizeof(T) == sizeof(float)) return x;
  const uint32_t u = __builtin_bit_cast(uint32_t, x);
  const uint32_t up = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
  return __builtin_bit_cast(float, x != x ? u : up);
}

// S: the scale's type, which x is rounded to first, and the quotient.
template <class T, class S, class F>
void quantize(int64_t n, const void* xs, float scale, void* qs) {
  const T* x = typed<T>(xs);
  F* q = typed<F>(qs);
  LIGNUM_IN_PLACE
  for (int64_t i = 0; i < n; ++i) q[i] = float8_of<F>(rounded<S>(rounded<S>(load(x, i)) / scale));
}

template <class T, class S, class F>
void quantize_columns(int64_t n, const void* xs, const void* scales, void* qs) {
  const T* x = typed<T>(xs);
  const S* scale = typed<S>(scales);
  F* q = typed<F>(qs);
  LIGNUM_IN_PLACE
  for (int64_t i = 0; i < n; ++i) q[i] = float8_of<F>(rounded<S>(rounded<S>(load(x, i)) / load(scale, i)));
}

// step 0: one scale.
template <class T, class S, class F>
void quantize_stochastic(int64_t n, const void* xs, const void* scales, int64_t step, const RowNoise& noise,
                         void* qs) {
  const T* x = typed<T>(xs);
  const S* scale = typed<S>(scales);
  F* q = typed<F>(qs);
  uint32_t words[kNoiseWords];
  for (int64_t at = 0; at < n;) {
    const int64_t index = noise.first + at, skip = index % 4;
    const int64_t count = n - at < kNoiseWords - skip ? n - at : kNoiseWords - skip;
    noise_words(static_cast<uint64_t>(index / 4), noise.row, noise.stream, words);
    for (int64_t i = 0; i < count; ++i) {
      const float quotient = rounded<S>(rounded<S>(load(x, at + i)) / load(scale, (at + i) * step));
      q[at + i] = float8_stochastic<F>(quotient, words[skip + i]);
    }
    at += count;
  }
}

template <class T>
void scale_tiles(int64_t n, const void* xs, float scale, void* ys) {
  const T* x = typed<T>(xs);
  T* y = typed<T>(ys);
  LIGNUM_IN_PLACE
  for (int64_t i = 0; i < n; ++i) store(y, i, load(x, i) * scale);
}

template <class T>
void scale_columns(int64_t n, const void* xs, const void* scales, void* ys) {
  const T* x = typed<T>(xs);
  const T* scale = typed<T>(scales);
  T* y = typed<T>(ys);
  LIGNUM_IN_PLACE
  for (int64_t i = 0; i < n; ++i) store(y, i, load(x, i) * load(scale, i));
}

// bound(i): of element i.
template <class G, class T, class Bound>
LIGNUM_INLINE void clip(int64_t n, const void* gs, const void* xs, Bound bound, void* outs) {
  const G* g = typed<G>(gs);
  const T* x = typed<T>(xs);
  G* out = typed<G>(outs);
  LIGNUM_IN_PLACE
  for (int64_t i = 0; i < n; ++i) {
    const float y = load(g, i);
    store(out, i, __builtin_fabsf(load(x, i)) <= bound(i) ? y : 0.0f);
  }
}

template <class G, class T>
void clip_gradient(int64_t n, const void* gs, const void* xs, float bound, void* outs) {
  clip<G, T>(n, gs, xs, [bound](int64_t) { return bound; }, outs);
}

template <class G, class T>
void clip_gradient_columns(int64_t n, const void* gs, const void* xs, const void* bounds, void* outs) {
  const T* bound = typed<T>(bounds);
  clip<G, T>(n, gs, xs, [bound](int64_t i) { return load(bound, i); }, outs);
}

// In the order of QuantizeIndex.
#define LIGNUM_QUANTIZE_TABLE(loop)                                                                         \
  {                                                                                                         \
    {loop<float, float, E4m3>, loop<float, float, E5m2>}, {loop<bf16, bf16, E4m3>, loop<bf16, bf16, E5m2>}, \
    {                                                                                                       \
      loop<float, bf16, E4m3>, loop<float, bf16, E5m2>                                                      \
    }                                                                                                       \
  }
#define LIGNUM_CLIP_TABLE(loop)                                                      \
  {                                                                                  \
    {loop<float, float>, loop<float, bf16>}, { loop<bf16, float>, loop<bf16, bf16> } \
  }

}  // namespace
}  // namespace lignum::kernels::LIGNUM_ROWS_ISA
