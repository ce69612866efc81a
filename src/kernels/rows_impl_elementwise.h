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

inline float load(const E4m3* p, int64_t i) { return float_of(p[i]); }
inline float load(const E5m2* p, int64_t i) { return float_of(p[i]); }
inline void store(E4m3* p, int64_t i, float x) { p[i] = float8_of<E4m3>(x); }
inline void store(E5m2* p, int64_t i, float x) { p[i] = float8_of<E5m2>(x); }

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
