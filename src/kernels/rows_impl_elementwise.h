// Part of rows_impl.h: element-wise functions, gated units, conversions between the small float types.
namespace lignum::kernels::LIGNUM_ROWS_ISA {
namespace {

// i32 wraps: the arithmetic is done in uint32_t.
inline int32_t wrapped(uint32_t x) { return static_cast<int32_t>(x); }
inline uint32_t bits_of(int32_t x) { return static_cast<uint32_t>(x); }

struct Neg {
  float operator()(float x) const { return -x; }
  int32_t operator()(int32_t x) const { return wrapped(0u - bits_of(x)); }
};
struct Abs {
  float operator()(float x) const { return __builtin_fabsf(x); }
  int32_t operator()(int32_t x) const { return x < 0 ? wrapped(0u - bits_of(x)) : x; }
};
struct Exp {
  float operator()(float x) const { return exp_of(x); }
};
// libm, in double: rarely called, and nearly always rounded right.
struct Log {
  float operator()(float x) const { return static_cast<float>(__builtin_log(static_cast<double>(x))); }
};
struct Sin {
  float operator()(float x) const { return static_cast<float>(__builtin_sin(static_cast<double>(x))); }
};
struct Cos {
  float operator()(float x) const { return static_cast<float>(__builtin_cos(static_cast<double>(x))); }
};
struct Sqrt {
  float operator()(float x) const { return __builtin_sqrtf(x); }
};
struct Rsqrt {
  float operator()(float x) const { return 1.0f / __builtin_sqrtf(x); }
};
struct Logistic {
  float operator()(float x) const { return logistic(x); }
};
struct Tanh {
  float operator()(float x) const { return __builtin_copysignf(tanh_of<ScalarOps>(x), x); }
};
struct Add {
  float operator()(float x, float y) const { return x + y; }
  int32_t operator()(int32_t x, int32_t y) const { return wrapped(bits_of(x) + bits_of(y)); }
};
struct Sub {
  float operator()(float x, float y) const { return x - y; }
  int32_t operator()(int32_t x, int32_t y) const { return wrapped(bits_of(x) - bits_of(y)); }
};
struct Mul {
  float operator()(float x, float y) const { return x * y; }
  int32_t operator()(int32_t x, int32_t y) const { return wrapped(bits_of(x) * bits_of(y)); }
};
struct Div {
  float operator()(float x, float y) const { return x / y; }
  int32_t operator()(int32_t x, int32_t y) const {
    if (y == 0) return -1;
    return y == -1 ? wrapped(0u - bits_of(x)) : x / y;
  }
};
struct Max {
  float operator()(float x, float y) const { return x > y || x != x ? x : y; }
  int32_t operator()(int32_t x, int32_t y) const { return x > y ? x : y; }
};
struct Min {
  float operator()(float x, float y) const { return x < y || x != x ? x : y; }
  int32_t operator()(int32_t x, int32_t y) const { return x < y ? x : y; }
};
struct Eq {
  bool operator()(auto x, auto y) const { return x == y; }
};
struct Ne {
  bool operator()(auto x, auto y) const { return x != y; }
};
struct Lt {
  bool operator()(auto x, auto y) const { return x < y; }
};
struct Le {
  bool operator()(auto x, auto y) const { return x <= y; }
};
struct Gt {
  bool operator()(auto x, auto y) const { return x > y; }
};
struct Ge {
  bool operator()(auto x, auto y) const { return x >= y; }
};

inline int32_t load(const int32_t* p, int64_t i) { return p[i]; }
inline void store(int32_t* p, int64_t i, int32_t x) { p[i] = x; }
inline void store(uint8_t* p, int64_t i, bool x) { p[i] = x ? 1 : 0; }

template <class T, class F>
void unary(int64_t begin, int64_t end, const void* as, const void*, const void*, void* outs) {
  const T* a = typed<T>(as);
  T* out = typed<T>(outs);
  LIGNUM_IN_PLACE
  for (int64_t i = begin; i < end; ++i) store(out, i, F{}(load(a, i)));
}

template <class T, class F>
void binary(int64_t begin, int64_t end, const void* as, const void* bs, const void*, void* outs) {
  const T* a = typed<T>(as);
  const T* b = typed<T>(bs);
  T* out = typed<T>(outs);
  LIGNUM_IN_PLACE
  for (int64_t i = begin; i < end; ++i) store(out, i, F{}(load(a, i), load(b, i)));
}

template <class T, class F>
void compare(int64_t begin, int64_t end, const void* as, const void* bs, const void*, void* outs) {
  const T* a = typed<T>(as);
  const T* b = typed<T>(bs);
  uint8_t* out = typed<uint8_t>(outs);
  LIGNUM_IN_PLACE
  for (int64_t i = begin; i < end; ++i) store(out, i, F{}(load(a, i), load(b, i)));
}

// T an unsigned integer of the element's size: bits move, whatever the type.
template <class T>
void select(int64_t begin, int64_t end, const void* preds, const void* as, const void* bs, void* outs) {
  const uint8_t* pred = typed<uint8_t>(preds);
  const T* a = typed<T>(as);
  const T* b = typed<T>(bs);
  T* out = typed<T>(outs);
  LIGNUM_IN_PLACE
  for (int64_t i = begin; i < end; ++i) {
    const T x = a[i];
    const T y = b[i];
    out[i] = pred[i] != 0 ? x : y;
  }
}

// Activations are x s(z(x)), s the logistic function; slope is z'.
struct Silu {
  static float z(float x) { return x; }
  static float slope(float) { return 1.0f; }
};
struct GeluTanh {
  static constexpr float kTwiceRoot = 0x1.988454p0f;  // 2 sqrt(2 / pi)
  static constexpr float kCube = 0.044715f;
  // Past 16 s is 0 or 1, and a cube of a large x would be Inf. NaN stays, from x.
  static float held(float x) { return x < -16.0f ? -16.0f : x > 16.0f ? 16.0f : x; }
  static float z(float x) {
    x = held(x);
    return kTwiceRoot * __builtin_fmaf(kCube * x * x, x, x);
  }
  static float slope(float x) {
    x = held(x);
    return kTwiceRoot * __builtin_fmaf(3.0f * kCube * x, x, 1.0f);
  }
};

template <class A, class T>
void glu(int64_t begin, int64_t end, const void* gates, const void* ups, void* ys) {
  const T* gate = typed<T>(gates);
  const T* up = typed<T>(ups);
  T* y = typed<T>(ys);
  LIGNUM_IN_PLACE
  for (int64_t i = begin; i < end; ++i) {
    const float x = load(gate, i);
    store(y, i, x * logistic(A::z(x)) * load(up, i));
  }
}

template <class A, class T>
void glu_grad(int64_t begin, int64_t end, const void* dys, const void* gates, const void* ups, void* dgates,
              void* dups) {
  const T* dy = typed<T>(dys);
  const T* gate = typed<T>(gates);
  const T* up = typed<T>(ups);
  T* dgate = typed<T>(dgates);
  T* dup = typed<T>(dups);
  LIGNUM_IN_PLACE
  for (int64_t i = begin; i < end; ++i) {
    const float g = load(dy, i);
    const float x = load(gate, i);
    const float u = load(up, i);
    const float s = logistic(A::z(x));
    store(dgate, i, g * u * (s * (1.0f + x * A::slope(x) * (1.0f - s))));
    store(dup, i, g * (x * s));
  }
}

template <class A, class T>
void activation(int64_t begin, int64_t end, const void* xs, void* ys) {
  const T* x = typed<T>(xs);
  T* y = typed<T>(ys);
  LIGNUM_IN_PLACE
  for (int64_t i = begin; i < end; ++i) {
    const float v = load(x, i);
    store(y, i, v * logistic(A::z(v)));
  }
}

template <class A, class T>
void activation_grad(int64_t begin, int64_t end, const void* dys, const void* xs, void* dxs) {
  const T* dy = typed<T>(dys);
  const T* x = typed<T>(xs);
  T* dx = typed<T>(dxs);
  LIGNUM_IN_PLACE
  for (int64_t i = begin; i < end; ++i) {
    const float v = load(x, i);
    const float s = logistic(A::z(v));
    store(dx, i, load(dy, i) * (s * (1.0f + v * A::slope(v) * (1.0f - s))));
  }
}

// The 8-bit formats, as base/dtype.h has them, without branches.
struct Format {
  int mantissa, bias;
  uint32_t largest, nan;
};
constexpr Format kFormatE4m3 = {3, 7, 0x7e, 0x7f};
constexpr Format kFormatE5m2 = {2, 15, 0x7b, 0x7f};

struct E4m3 {
  uint8_t bits;
  static constexpr Format kFormat = kFormatE4m3;
  static constexpr uint32_t kFirstSpecial = 0x7f;  // NaN
  static constexpr uint32_t kInfinity = 0x100;     // none
};
struct E5m2 {
  uint8_t bits;
  static constexpr Format kFormat = kFormatE5m2;
  static constexpr uint32_t kFirstSpecial = 0x7c;
  static constexpr uint32_t kInfinity = 0x7c;
};

template <class T>
inline float load8(const T* p, int64_t i) {
  constexpr Format k = T::kFormat;
  const uint32_t code = p[i].bits & 0x7fu;
  const uint32_t sign = static_cast<uint32_t>(p[i].bits & 0x80u) << 24;
  const uint32_t normal = (code << (23 - k.mantissa)) + (static_cast<uint32_t>(127 - k.bias) << 23);
  constexpr float kGrid =
      __builtin_bit_cast(float, static_cast<uint32_t>(127 + 1 - k.bias - k.mantissa) << 23);
  const float tiny = static_cast<float>(static_cast<int32_t>(code)) * kGrid;
  uint32_t bits = code < (1u << k.mantissa) ? __builtin_bit_cast(uint32_t, tiny) : normal;
  bits = code >= T::kFirstSpecial ? (code == T::kInfinity ? 0x7f800000u : 0x7fc00000u) : bits;
  return __builtin_bit_cast(float, bits | sign);
}
template <class T>
inline void store8(T* p, int64_t i, float x) {
  constexpr Format k = T::kFormat;
  constexpr int kDrop = 23 - k.mantissa;
  const uint32_t u = __builtin_bit_cast(uint32_t, x);
  const uint32_t a = u & 0x7fffffffu;
  const uint32_t rounded = (a + ((1u << (kDrop - 1)) - 1u) + ((a >> kDrop) & 1u)) >> kDrop;
  uint32_t code = rounded - (static_cast<uint32_t>(127 - k.bias) << k.mantissa);
  // Below the smallest normal: adding a float whose ulp is the grid's step rounds to the grid.
  constexpr uint32_t kMagic = static_cast<uint32_t>(127 + 1 - k.bias - k.mantissa + 23) << 23;
  const float shifted = __builtin_bit_cast(float, a) + __builtin_bit_cast(float, kMagic);
  code =
      a < (static_cast<uint32_t>(128 - k.bias) << 23) ? __builtin_bit_cast(uint32_t, shifted) - kMagic : code;
  code = code > k.largest ? k.largest : code;
  code = a > 0x7f800000u ? k.nan : code;
  p[i].bits = static_cast<uint8_t>(code | ((u >> 24) & 0x80u));
}
inline float load(const E4m3* p, int64_t i) { return load8(p, i); }
inline float load(const E5m2* p, int64_t i) { return load8(p, i); }
inline void store(E4m3* p, int64_t i, float x) { store8(p, i, x); }
inline void store(E5m2* p, int64_t i, float x) { store8(p, i, x); }

template <class From, class To>
void convert(int64_t begin, int64_t end, const void* ins, void* outs) {
  const From* in = typed<From>(ins);
  To* out = typed<To>(outs);
  LIGNUM_IN_PLACE
  for (int64_t i = begin; i < end; ++i) store(out, i, load(in, i));
}

#define LIGNUM_FLOATS(loop, F) {loop<float, F>, loop<bf16, F>, nullptr}
#define LIGNUM_ALL(loop, F) {loop<float, F>, loop<bf16, F>, loop<int32_t, F>}
// In the order of Elementwise.
#define LIGNUM_ELEMENTWISE_TABLE                                                                            \
  {                                                                                                         \
    LIGNUM_ALL(unary, Neg), LIGNUM_FLOATS(unary, Exp), LIGNUM_FLOATS(unary, Log),                           \
        LIGNUM_FLOATS(unary, Sqrt), LIGNUM_FLOATS(unary, Rsqrt), LIGNUM_FLOATS(unary, Logistic),            \
        LIGNUM_FLOATS(unary, Tanh), LIGNUM_FLOATS(unary, Sin), LIGNUM_FLOATS(unary, Cos),                   \
        LIGNUM_ALL(unary, Abs), LIGNUM_ALL(binary, Add), LIGNUM_ALL(binary, Sub), LIGNUM_ALL(binary, Mul),  \
        LIGNUM_ALL(binary, Div), LIGNUM_ALL(binary, Max), LIGNUM_ALL(binary, Min), LIGNUM_ALL(compare, Eq), \
        LIGNUM_ALL(compare, Ne), LIGNUM_ALL(compare, Lt), LIGNUM_ALL(compare, Le), LIGNUM_ALL(compare, Gt), \
        LIGNUM_ALL(compare, Ge), {                                                                          \
      select<uint32_t>, select<uint16_t>, select<uint32_t>                                                  \
    }                                                                                                       \
  }
#define LIGNUM_CONVERT_FROM(T) {convert<T, float>, convert<T, bf16>, convert<T, E4m3>, convert<T, E5m2>}
#define LIGNUM_CONVERT_TABLE                                                         \
  {LIGNUM_CONVERT_FROM(float), LIGNUM_CONVERT_FROM(bf16), LIGNUM_CONVERT_FROM(E4m3), \
   LIGNUM_CONVERT_FROM(E5m2)}

}  // namespace
}  // namespace lignum::kernels::LIGNUM_ROWS_ISA
