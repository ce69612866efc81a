// Part of rows_impl.h: cross-entropy, embedding gradient, norms of gradients, the optimiser.
namespace lignum::kernels::LIGNUM_ROWS_ISA {
namespace {

template <class T>
LossSums cross_entropy(int64_t begin, int64_t end, int64_t vocab, const void* logits, const int32_t* labels,
                       float* lses) {
  // A chunk's exponentials are summed in f32 and chunks in double: 100,000 terms in one f32 sum would lose
  // digits.
  constexpr int64_t kChunk = 512;
  double loss = 0.0, squares = 0.0;
  for (int64_t row = begin; row < end; ++row) {
    const T* x = typed<T>(logits) + row * vocab;
    // A NaN is skipped here and comes back through its exponential.
    const float largest = lane_max(vocab, [x](int64_t i) { return load(x, i); });
    double sum = 0.0;
    for (int64_t first = 0; first < vocab; first += kChunk) {
      const int64_t width = vocab - first < kChunk ? vocab - first : kChunk;
      float e[kChunk];
      for (int64_t i = 0; i < width; ++i) e[i] = exp_of(load(x, first + i) - largest);
      sum += static_cast<double>(lane_sum<float>(width, [&e](int64_t i) { return e[i]; }));
    }
    const double lse = static_cast<double>(largest) + __builtin_log(sum);
    lses[row] = static_cast<float>(lse);
    if (labels[row] < 0) continue;
    loss += lse - static_cast<double>(load(x, labels[row]));
    squares += lse * lse;
  }
  return {loss, squares};
}

template <class T, class D>
void cross_entropy_grad(int64_t begin, int64_t end, int64_t vocab, const void* logits, const int32_t* labels,
                        const float* lses, float dloss, float z_slope, void* dlogits) {
  for (int64_t row = begin; row < end; ++row) {
    const T* x = typed<T>(logits) + row * vocab;
    D* dx = typed<D>(dlogits) + row * vocab;
    const int64_t label = labels[row];
    if (label < 0) {
      for (int64_t i = 0; i < vocab; ++i) store(dx, i, 0.0f);
      continue;
    }
    const float lse = lses[row];
    const float p = exp_of(load(x, label) - lse);
    float at_label = (p - 1.0f) * dloss, of_lse = dloss;  // the gradients of x[label] and, beside it, of lse
    if (z_slope != 0.0f) {
      at_label += p * (z_slope * lse);
      of_lse += z_slope * lse;
    }
    if constexpr (sizeof(T) == sizeof(D)) {
      LIGNUM_IN_PLACE
      for (int64_t i = 0; i < vocab; ++i) store(dx, i, exp_of(load(x, i) - lse) * of_lse);
    } else {  // dx may begin where x does: a chunk is read before what stands in its place is written
      constexpr int64_t kChunk = 256;
      for (int64_t first = 0; first < vocab; first += kChunk) {
        const int64_t width = vocab - first < kChunk ? vocab - first : kChunk;
        float d[kChunk];
        for (int64_t i = 0; i < width; ++i) d[i] = exp_of(load(x, first + i) - lse) * of_lse;
        for (int64_t i = 0; i < width; ++i) store(dx, first + i, d[i]);
      }
    }
    store(dx, label, at_label);
  }
}

template <class T>
void accumulate(int64_t begin, int64_t end, const void* xs, float* sum) {
  const T* x = typed<T>(xs) + begin;
  for (int64_t i = 0; i < end - begin; ++i) sum[i] += load(x, i);
}

template <class T>
double sum_squares(int64_t begin, int64_t end, const void* xs) {
  const T* x = typed<T>(xs) + begin;
  return lane_sum<double>(end - begin, [x](int64_t i) {
    const double v = static_cast<double>(load(x, i));
    return v * v;
  });
}

template <class T>
int64_t find_nonfinite(int64_t begin, int64_t end, const void* xs) {
  const T* x = typed<T>(xs);
  const auto nonfinite = [x](int64_t i) {
    return (__builtin_bit_cast(uint32_t, load(x, i)) & 0x7f800000u) == 0x7f800000u;
  };
  uint32_t any = 0;
  for (int64_t i = begin; i < end; ++i) any |= nonfinite(i) ? 1u : 0u;
  if (any == 0) return -1;
  while (!nonfinite(begin)) ++begin;
  return begin;
}

template <class M, class V>
void adamw(const AdamWScalars& a, int64_t begin, int64_t end, float* p, void* ms, void* vs, const float* g) {
  const AdamWScalars k = a;
  M* m = typed<M>(ms);
  V* v = typed<V>(vs);
  LIGNUM_IN_PLACE
  for (int64_t i = begin; i < end; ++i) {
    const float gradient = g[i] * k.grad_scale;
    const float mean = k.beta1 * load(m, i) + k.one_minus_beta1 * gradient;
    const float square = k.beta2 * load(v, i) + k.one_minus_beta2 * (gradient * gradient);
    const float step =
        mean * k.inverse_correction1 / (__builtin_sqrtf(square * k.inverse_correction2 + k.eps_root) + k.eps);
    store(m, i, mean);
    store(v, i, square);
    p[i] = p[i] - k.learning_rate * (step + k.weight_decay * p[i]);
  }
}

void sgd(const SgdScalars& a, int64_t begin, int64_t end, float* p, float* trace, const float* g) {
  const SgdScalars k = a;
  if (trace == nullptr) {
    LIGNUM_IN_PLACE
    for (int64_t i = begin; i < end; ++i) p[i] = p[i] - k.learning_rate * (g[i] * k.grad_scale);
    return;
  }
  // The step is trace, or with Nesterov's form gradient + momentum * trace: one loop, without a branch.
  const float of_gradient = k.nesterov ? 1.0f : 0.0f, of_trace = k.nesterov ? k.momentum : 1.0f;
  LIGNUM_IN_PLACE
  for (int64_t i = begin; i < end; ++i) {
    const float gradient = g[i] * k.grad_scale;
    const float sum = gradient + k.momentum * trace[i];
    trace[i] = sum;
    p[i] = p[i] - k.learning_rate * (of_gradient * gradient + of_trace * sum);
  }
}

}  // namespace
}  // namespace lignum::kernels::LIGNUM_ROWS_ISA
