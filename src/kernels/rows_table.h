// The inner loops of the row kernels, one table an ISA, filled by rows_impl.h. Private to rows*.cc: rows.h
// states what each computes; here is only how work is cut. All run on the calling thread. Index [t] is an
// edge type, kF32 or kBf16. Ranges are rows [begin, end) of the whole buffers.
#pragma once

#include <cstdint>

namespace lignum::kernels {

enum EdgeIndex { kF32 = 0, kBf16 = 1, kI32 = 2 };                     // columns of `elementwise`
enum ConvertIndex { kFloat = 0, kBfloat = 1, kE4m3 = 2, kE5m2 = 3 };  // columns of `convert`

enum QuantizeIndex { kByF32 = 0, kByBf16 = 1, kF32ByBf16 = 2 };  // x, and its scale if of another type

inline constexpr int kElementwiseCount = 23;
// Columns that sum_rows takes in one call.
inline constexpr int64_t kSumColumns = 512;

struct AdamWScalars {
  float learning_rate, beta1, one_minus_beta1, beta2, one_minus_beta2, eps, eps_root, weight_decay,
      inverse_correction1, inverse_correction2, grad_scale;
};
// What the random bits of elements `first`, ... of a row of a tensor depend on (quantize_stochastic).
struct RowNoise {
  uint64_t stream;
  uint32_t row;
  int64_t first;
};
struct LossSums {
  double loss = 0, lse_squares = 0;
  LossSums& operator+=(const LossSums& other) {
    loss += other.loss;
    lse_squares += other.lse_squares;
    return *this;
  }
};
struct SgdScalars {
  float learning_rate, momentum, grad_scale;
  bool nesterov;
};

struct RowTable {
  // [x][scale]
  void (*rms_norm[2][2])(int64_t begin, int64_t end, int64_t d, const void* x, const void* scale, float eps,
                         void* y, float* rstd);
  // [x][scale]; partial[d] = these rows' sum of dy * xhat.
  void (*rms_norm_grad[2][2])(int64_t begin, int64_t end, int64_t d, const void* dy, const void* x,
                              const void* scale, const float* rstd, void* dx, float* partial);
  // [x][scale and bias]
  void (*layer_norm[2][2])(int64_t begin, int64_t end, int64_t d, const void* x, const void* scale,
                           const void* bias, float eps, void* y, float* mean, float* rstd);
  // [x][scale]; partial[2 d] = these rows' sums of dy * xhat, then of dy.
  void (*layer_norm_grad[2][2])(int64_t begin, int64_t end, int64_t d, const void* dy, const void* x,
                                const void* scale, const float* mean, const float* rstd, void* dx,
                                float* partial);
  // [out]; out[c] for c in [begin, end) = the sum over the blocks of partials[blocks, stride], in double.
  void (*fold[2])(int64_t blocks, int64_t stride, int64_t begin, int64_t end, const float* partials,
                  void* out);

  // c, s [pairs] for one position.
  void (*rope_angles)(int64_t pairs, int32_t position, const double* inv_freq, float scaling, bool inverse,
                      float* c, float* s);
  // The heads of token `token`.
  void (*rope[2])(int64_t token, int64_t heads, int64_t pairs, const float* c, const float* s, const void* x,
                  void* y);

  // [activation][type]
  void (*glu[2][2])(int64_t begin, int64_t end, const void* gate, const void* up, void* y);
  void (*glu_grad[2][2])(int64_t begin, int64_t end, const void* dy, const void* gate, const void* up,
                         void* dgate, void* dup);

  // [activation][type]
  void (*activation[2][2])(int64_t begin, int64_t end, const void* x, void* y);
  void (*activation_grad[2][2])(int64_t begin, int64_t end, const void* dy, const void* x, void* dx);

  // [Elementwise][type]; nullptr where the function has no such type.
  void (*elementwise[kElementwiseCount][3])(int64_t begin, int64_t end, const void* a, const void* b,
                                            const void* c, void* out);
  // [from][to]
  void (*convert[4][4])(int64_t begin, int64_t end, const void* in, void* out);

  // The largest magnitude of n elements, as the bits of a float; or of each with what `largest` has.
  uint32_t (*absmax[2])(int64_t n, const void* x);
  void (*absmax_columns[2])(int64_t n, const void* x, uint32_t* largest);
  // [QuantizeIndex][E4M3 or E5M2]; n elements by one scale, or by one each.
  void (*quantize[3][2])(int64_t n, const void* x, float scale, void* q);
  void (*quantize_columns[3][2])(int64_t n, const void* x, const void* scale, void* q);
  // By one scale (step 0) or one each (step 1).
  void (*quantize_stochastic[3][2])(int64_t n, const void* x, const void* scale, int64_t step,
                                    const RowNoise&, void* q);
  void (*scale_tiles[2])(int64_t n, const void* x, float scale, void* y);
  void (*scale_columns[2])(int64_t n, const void* x, const void* scale, void* y);
  // [g][x]
  void (*clip_gradient[2][2])(int64_t n, const void* g, const void* x, float bound, void* out);
  void (*clip_gradient_columns[2][2])(int64_t n, const void* g, const void* x, const void* bound, void* out);

  // [x][bias]
  void (*add_bias[2][2])(int64_t begin, int64_t end, int64_t d, const void* x, const void* bias, void* y);
  // [x][out]; columns [begin, end), at most kSumColumns of them, over all n rows, blocks of row_block.
  void (*sum_rows[2][2])(int64_t n, int64_t row_block, int64_t d, int64_t begin, int64_t end, const void* x,
                         void* out);

  // These rows' loss and, of those that count, the squares of lse.
  LossSums (*cross_entropy[2])(int64_t begin, int64_t end, int64_t vocab, const void* logits,
                               const int32_t* labels, float* lse);
  // [logits][dlogits]; nullptr where bf16 would widen.
  void (*cross_entropy_grad[2][2])(int64_t begin, int64_t end, int64_t vocab, const void* logits,
                                   const int32_t* labels, const float* lse, float dloss, float z_slope,
                                   void* dlogits);

  // sum[k] += x[begin + k]
  void (*accumulate[2])(int64_t begin, int64_t end, const void* x, float* sum);
  double (*sum_squares[2])(int64_t begin, int64_t end, const void* x);
  int64_t (*find_nonfinite[2])(int64_t begin, int64_t end, const void* x);  // -1: none

  // [m][v]
  void (*adamw[2][2])(const AdamWScalars&, int64_t begin, int64_t end, float* p, void* m, void* v,
                      const float* g);
  void (*sgd)(const SgdScalars&, int64_t begin, int64_t end, float* p, float* trace, const float* g);
};

extern const RowTable kRowsScalar, kRowsAvx2, kRowsAvx512;

}  // namespace lignum::kernels
