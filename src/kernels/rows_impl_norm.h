// Part of rows_impl.h: normalisation, rotary positions, bias, sums over rows.
namespace lignum::kernels::LIGNUM_ROWS_ISA {
namespace {

template <class T, class S>
void rms_norm(int64_t begin, int64_t end, int64_t d, const void* xs, const void* scales, float eps, void* ys,
              float* rstds) {
  const S* scale = typed<S>(scales);
  for (int64_t row = begin; row < end; ++row) {
    const T* x = typed<T>(xs) + row * d;
    T* y = typed<T>(ys) + row * d;
    const float squares = lane_sum<float>(d, [x](int64_t i) { return load(x, i) * load(x, i); });
    const float rstd = 1.0f / __builtin_sqrtf(squares / static_cast<float>(d) + eps);
    rstds[row] = rstd;
    LIGNUM_IN_PLACE
    for (int64_t i = 0; i < d; ++i) store(y, i, load(x, i) * rstd * load(scale, i));
  }
}

template <class T, class S>
void rms_norm_grad(int64_t begin, int64_t end, int64_t d, const void* dys, const void* xs, const void* scales,
                   const float* rstds, void* dxs, float* partial) {
  const S* scale = typed<S>(scales);
  for (int64_t i = 0; i < d; ++i) partial[i] = 0.0f;
  for (int64_t row = begin; row < end; ++row) {
    const T* dy = typed<T>(dys) + row * d;
    const T* x = typed<T>(xs) + row * d;
    T* dx = typed<T>(dxs) + row * d;
    const float rstd = rstds[row];
    const float projection =
        lane_sum<float>(d, [=](int64_t i) { return load(dy, i) * load(scale, i) * (load(x, i) * rstd); });
    const float mean = projection / static_cast<float>(d);
    LIGNUM_IN_PLACE
    for (int64_t i = 0; i < d; ++i) {
      const float g = load(dy, i);
      const float xhat = load(x, i) * rstd;
      partial[i] += g * xhat;
      store(dx, i, (g * load(scale, i) - xhat * mean) * rstd);
    }
  }
}

template <class T, class S>
void layer_norm(int64_t begin, int64_t end, int64_t d, const void* xs, const void* scales, const void* biases,
                float eps, void* ys, float* means, float* rstds) {
  const S* scale = typed<S>(scales);
  const S* bias = typed<S>(biases);
  const float width = static_cast<float>(d);
  for (int64_t row = begin; row < end; ++row) {
    const T* x = typed<T>(xs) + row * d;
    T* y = typed<T>(ys) + row * d;
    const float mean = lane_sum<float>(d, [x](int64_t i) { return load(x, i); }) / width;
    const float squares = lane_sum<float>(d, [=](int64_t i) {
      const float centred = load(x, i) - mean;
      return centred * centred;
    });
    const float rstd = 1.0f / __builtin_sqrtf(squares / width + eps);
    means[row] = mean;
    rstds[row] = rstd;
    LIGNUM_IN_PLACE
    for (int64_t i = 0; i < d; ++i) store(y, i, (load(x, i) - mean) * rstd * load(scale, i) + load(bias, i));
  }
}

template <class T, class S>
void layer_norm_grad(int64_t begin, int64_t end, int64_t d, const void* dys, const void* xs,
                     const void* scales, const float* means, const float* rstds, void* dxs, float* partial) {
  const S* scale = typed<S>(scales);
  const float width = static_cast<float>(d);
  float* dscale = partial;
  float* dbias = partial + d;
  for (int64_t i = 0; i < 2 * d; ++i) partial[i] = 0.0f;
  for (int64_t row = begin; row < end; ++row) {
    const T* dy = typed<T>(dys) + row * d;
    const T* x = typed<T>(xs) + row * d;
    T* dx = typed<T>(dxs) + row * d;
    const float mean = means[row];
    const float rstd = rstds[row];
    const float direct = lane_sum<float>(d, [=](int64_t i) { return load(dy, i) * load(scale, i); }) / width;
    const float projection =
        lane_sum<float>(
            d, [=](int64_t i) { return load(dy, i) * load(scale, i) * ((load(x, i) - mean) * rstd); }) /
        width;
    LIGNUM_IN_PLACE
    for (int64_t i = 0; i < d; ++i) {
      const float g = load(dy, i);
      const float xhat = (load(x, i) - mean) * rstd;
      dscale[i] += g * xhat;
      dbias[i] += g;
      store(dx, i, (g * load(scale, i) - direct - xhat * projection) * rstd);
    }
  }
}

template <class S>
void fold(int64_t blocks, int64_t stride, int64_t begin, int64_t end, const float* partials, void* outs) {
  S* out = typed<S>(outs);
  for (; begin < end; begin += kSumColumns) {
    const int64_t width = end - begin < kSumColumns ? end - begin : kSumColumns;
    double total[kSumColumns] = {};
    for (int64_t b = 0; b < blocks; ++b) {
      const float* p = partials + b * stride + begin;
      for (int64_t i = 0; i < width; ++i) total[i] += static_cast<double>(p[i]);
    }
    for (int64_t i = 0; i < width; ++i) store(out, begin + i, static_cast<float>(total[i]));
  }
}

template <class T, class O>
void sum_rows(int64_t n, int64_t row_block, int64_t d, int64_t begin, int64_t end, const void* xs,
              void* outs) {
  const int64_t width = end - begin;
  double total[kSumColumns] = {};
  float partial[kSumColumns];
  for (int64_t block = 0; block < n; block += row_block) {
    const int64_t last = n - block < row_block ? n : block + row_block;
    for (int64_t i = 0; i < width; ++i) partial[i] = 0.0f;
    for (int64_t row = block; row < last; ++row) {
      const T* x = typed<T>(xs) + row * d + begin;
      for (int64_t i = 0; i < width; ++i) partial[i] += load(x, i);
    }
    for (int64_t i = 0; i < width; ++i) total[i] += static_cast<double>(partial[i]);
  }
  O* out = typed<O>(outs) + begin;
  for (int64_t i = 0; i < width; ++i) store(out, i, static_cast<float>(total[i]));
}

template <class T, class B>
void add_bias(int64_t begin, int64_t end, int64_t d, const void* xs, const void* biases, void* ys) {
  const B* bias = typed<B>(biases);
  for (int64_t row = begin; row < end; ++row) {
    const T* x = typed<T>(xs) + row * d;
    T* y = typed<T>(ys) + row * d;
    LIGNUM_IN_PLACE
    for (int64_t i = 0; i < d; ++i) store(y, i, load(x, i) + load(bias, i));
  }
}

// Sine and cosine of a float a, |a| <= 2^31, to about 2^-44: far below half an ulp of a float result.
// a = k pi/2 + r. pi/2 is cut into 22 + 22 + 53 bits, so that k times the first two parts is exact. Taylor
// polynomials on |r| <= pi/4 leave 2e-14; libm's double functions took 5 times as long, and rope would have
// felt it.
inline void sine_cosine(float angle, float& sine, float& cosine) {
  constexpr double kShift = 0x1.8p52;
  const double a = static_cast<double>(angle);
  const double shifted = a * 0x1.45f306dc9c883p-1 + kShift;
  const double k = shifted - kShift;
  const uint64_t quadrant = __builtin_bit_cast(uint64_t, shifted);
  const double r = ((a - k * 0x1.921fbp0) - k * 0x1.5110bp-22) - k * 0x1.18469898cc517p-44;
  const double q = r * r;
  const double s =
      r + r * q *
              (-1.0 / 6 + q * (1.0 / 120 + q * (-1.0 / 5040 + q * (1.0 / 362880 + q * (-1.0 / 39916800 +
                                                                                       q / 6227020800.0)))));
  const double c =
      1.0 +
      q * (-0.5 + q * (1.0 / 24 + q * (-1.0 / 720 +
                                       q * (1.0 / 40320 + q * (-1.0 / 3628800 +
                                                               q * (1.0 / 479001600 - q / 87178291200.0))))));
  const bool odd = (quadrant & 1) != 0;
  const double sine_size = odd ? c : s;
  const double cosine_size = odd ? s : c;
  sine = static_cast<float>((quadrant & 2) != 0 ? -sine_size : sine_size);
  cosine = static_cast<float>(((quadrant + 1) & 2) != 0 ? -cosine_size : cosine_size);
}

void rope_angles(int64_t pairs, int32_t position, const double* inv_freq, float scaling, bool inverse,
                 float* c, float* s) {
  const float p = static_cast<float>(position);
  const float sine_scaling = inverse ? -scaling : scaling;
  for (int64_t i = 0; i < pairs; ++i) {
    float sine;
    float cosine;
    sine_cosine(static_cast<float>(inv_freq[i]) * p, sine, cosine);
    c[i] = cosine * scaling;
    s[i] = sine * sine_scaling;
  }
}

template <class T>
void rope(int64_t token, int64_t heads, int64_t pairs, const float* c, const float* s, const void* xs,
          void* ys) {
  for (int64_t head = token * heads; head < (token + 1) * heads; ++head) {
    const T* x = typed<T>(xs) + head * 2 * pairs;
    T* y = typed<T>(ys) + head * 2 * pairs;
    LIGNUM_IN_PLACE
    for (int64_t i = 0; i < pairs; ++i) {
      const float low = load(x, i);
      const float high = load(x, pairs + i);
      store(y, i, low * c[i] - high * s[i]);
      store(y, pairs + i, high * c[i] + low * s[i]);
    }
  }
}

}  // namespace
}  // namespace lignum::kernels::LIGNUM_ROWS_ISA
