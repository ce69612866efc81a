// The row kernels: all that is neither GEMM nor attention. Normalisation, rotary positions, gated units,
// element-wise functions, sums, layout, conversions, cross-entropy, embedding, the optimiser.
//
// Contracts shared by all of them:
// - Buffers are dense, row-major and aligned to their element, no more. The caller owns them; nothing is
// allocated.
// - Activations are f32 or bf16 ("edge" types); mathematics is in f32 (double where said); a result is
// rounded once, to
//   the type of its Out. A type that a kernel does not list is a broken invariant: ops check types before.
// - An output may be the same buffer as an input of the same type where "in place" is said; never partly
// overlapping.
// - Bits: an element is a function of its own row or inputs. Sums over rows or elements go over fixed blocks
//   (constants below) in a fixed order. Neither thread count, alignment nor the row's position matters. Every
//   step is a correctly rounded operation, so that all ISAs give the same bits as well (a NaN's payload and,
//   between machines, libm's log, sin and cos in double excepted).
// - NaN inputs give NaN results wherever they take part.
// - An empty tensor (n = 0 or d = 0) is fine: sums over nothing are 0, a maximum of nothing is -infinity.
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "base/parallel.h"
#include "base/status.h"
#include "kernels/isa.h"

namespace lignum::kernels {

// A buffer with the type of its elements.
struct In {
  DType type;
  const void* data;
  In(DType t, const void* p) : type(t), data(p) {}
  In(const float* p) : type(DType::f32), data(p) {}  // NOLINT: conversions are the point
  In(const bf16* p) : type(DType::bf16), data(p) {}  // NOLINT
};
struct Out {
  DType type;
  void* data;
  Out(DType t, void* p) : type(t), data(p) {}
  Out(float* p) : type(DType::f32), data(p) {}  // NOLINT
  Out(bf16* p) : type(DType::bf16), data(p) {}  // NOLINT
  operator In() const { return {type, data}; }  // NOLINT
};

// Sums over rows: f32 inside a block of this many rows (ascending), double over the blocks (ascending),
// rounded once.
inline constexpr int64_t kRowBlock = 64;
// Sums over elements (sum_squares): double, in blocks of this many elements, blocks added in ascending order.
inline constexpr int64_t kElementBlock = 32768;
// The loss: double, in blocks of this many rows, blocks added in ascending order.
inline constexpr int64_t kLossBlock = 8;
// reduce, broadcast, transpose, iota.
inline constexpr int kMaxRank = 6;
// rope: the largest head dimension.
inline constexpr int64_t kRopeMaxDim = 1024;
// A label that takes no part in the loss (PyTorch's ignore_index).
inline constexpr int32_t kIgnoredLabel = -100;

enum class Elementwise : uint8_t {
  // unary: f32, bf16 (neg and abs also i32)
  neg,
  exp,
  log,
  sqrt,
  rsqrt,
  logistic,
  tanh,
  sin,
  cos,
  abs,
  // binary: f32, bf16, i32 (i32 wraps; div truncates towards zero, x / 0 = -1 as in XLA). max and min keep
  // NaN.
  add,
  sub,
  mul,
  div,
  max,
  min,
  // compare: f32, bf16, i32 -> pred (u8, 0 or 1). With a NaN only ne holds.
  eq,
  ne,
  lt,
  le,
  gt,
  ge,
  // select: in0 pred, in1 where it is not 0, in2 where it is; f32, bf16, i32
  select,
};
int elementwise_inputs(Elementwise);  // 1, 2 or 3

enum class Reduction : uint8_t { sum, max };
// silu(x) = x s(x), s the logistic function; gelu_tanh(x) = x s(2u) = x (1 + tanh u) / 2,
// u = sqrt(2 / pi) (x + 0.044715 x^3) (Hendrycks and Gimpel, 2016).
enum class Activation : uint8_t { silu, gelu_tanh };

// x, y: [batch, seq, heads, dim], dim even and at most kRopeMaxDim.
struct RopeShape {
  int64_t batch, seq, heads, dim;
};

// One AdamW step's scalars; rounded to f32 inside, after 1 - beta is taken in double.
struct AdamW {
  double learning_rate = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, eps_root = 0, weight_decay = 0;
  double correction1 = 1, correction2 = 1;  // 1 - beta^t, t = 1 in the first step
  double grad_scale = 1;                    // g is multiplied by it first (clipping, 1 / tokens)
};

// One step of gradient descent.
struct Sgd {
  double learning_rate = 0, momentum = 0;
  bool nesterov = false;
  double grad_scale = 1;  // as AdamW's
};

// Which elements of a dense tensor share a scale. dims and scales have one rank; scales[d] divides dims[d],
// and index i of dim d belongs to scale i / (dims[d] / scales[d]): all to one (1), each to its own (dims[d]),
// or tiles.
struct Tiles {
  std::span<const int64_t> dims, scales;
};

struct RowTable;  // the inner loops of one ISA (rows_table.h)

class RowKernels {
 public:
  explicit RowKernels(const RowTable& table) : table_(table) {}

  // rstd = 1 / sqrt(mean(x^2) + eps), y = x * rstd * scale over each row of d. x, y one edge type; scale [d]
  // f32 or bf16. In place. eps is added in f32, the mean is taken in f32 (Zhang, Sennrich 2019; Hugging
  // Face's Llama in fp32).
  void rms_norm(int64_t n, int64_t d, In x, In scale, float eps, Out y, float* rstd, Parallel&) const;
  // dx = rstd * (dy * scale - xhat * mean(dy * scale * xhat)), dscale = sum over rows of dy * xhat, xhat = x
  // * rstd. dy, x, dx one edge type; scale, dscale one type. dx may be dy or x. workspace:
  // rms_norm_grad_workspace bytes, aligned to 8.
  void rms_norm_grad(int64_t n, int64_t d, In dy, In x, In scale, const float* rstd, Out dx, Out dscale,
                     void* workspace, Parallel&) const;
  static int64_t rms_norm_grad_workspace(int64_t n, int64_t d);

  // mean = mean(x), rstd = 1 / sqrt(mean((x - mean)^2) + eps), y = (x - mean) * rstd * scale + bias over each
  // row of d (Ba, Kiros, Hinton 2016). x, y one edge type; scale, bias [d] one type, f32 or bf16. In place.
  // Both means are taken in f32, the second of centred values.
  void layer_norm(int64_t n, int64_t d, In x, In scale, In bias, float eps, Out y, float* mean, float* rstd,
                  Parallel&) const;
  // With g = dy * scale, xhat = (x - mean) * rstd: dx = rstd * (g - mean(g) - xhat * mean(g * xhat)), dscale
  // = sum over rows of dy * xhat, dbias = sum over rows of dy. dy, x, dx one edge type; scale, dscale, dbias
  // one type. dx may be dy or x. workspace: layer_norm_grad_workspace bytes, aligned to 4.
  void layer_norm_grad(int64_t n, int64_t d, In dy, In x, In scale, const float* mean, const float* rstd,
                       Out dx, Out dscale, Out dbias, void* workspace, Parallel&) const;
  static int64_t layer_norm_grad_workspace(int64_t n, int64_t d);

  // Rotary positions in the half-split form (Su et al. 2021; Hugging Face's rotate_half): for pair i of dim /
  // 2, angle = f32(inv_freq[i]) * f32(position) in f32, c and s its cosine and sine (from double, rounded to
  // f32) times attention_scaling; y[i] = x[i] c - x[i + dim/2] s, y[i + dim/2] = x[i + dim/2] c + x[i] s.
  // inverse: s negated, which is the gradient. positions: [batch, seq]. In place.
  void rope(const RopeShape&, In x, const int32_t* positions, const double* inv_freq, float attention_scaling,
            bool inverse, Out y, Parallel&) const;

  // y = act(gate) * up; n elements, one edge type. In place.
  void glu(Activation, int64_t n, In gate, In up, Out y, Parallel&) const;
  // dgate = dy * up * act'(gate), dup = dy * act(gate). An output may be any one of the inputs.
  void glu_grad(Activation, int64_t n, In dy, In gate, In up, Out dgate, Out dup, Parallel&) const;

  // y = act(x); n elements, one edge type. In place.
  void activation(Activation, int64_t n, In x, Out y, Parallel&) const;
  // dx = dy * act'(x). dx may be dy or x.
  void activation_grad(Activation, int64_t n, In dy, In x, Out dx, Parallel&) const;

  // out[i] = fn(in0[i], ...) for n elements of `type`; inputs that fn does not take are ignored. In place.
  void elementwise(Elementwise fn, DType type, int64_t n, const void* in0, const void* in1, const void* in2,
                   void* out, Parallel&) const;

  // y = x + b in every row; x, y one edge type, b [d] f32 or bf16. In place.
  void add_bias(int64_t n, int64_t d, In x, In b, Out y, Parallel&) const;
  // y[d] = sum of x's rows (order: kRowBlock). x, y each f32 or bf16.
  void sum_rows(int64_t n, int64_t d, In x, Out y, Parallel&) const;

  // in of `shape`, the dims of `dims` (a bit each: bit k = dim k) reduced away; out has the other dims in
  // their order. sum: f32 and bf16, in f32 over blocks of kReduceBlock elements in row-major order of the
  // reduced dims, double over blocks; i32 wraps. max: f32, bf16, i32.
  void reduce(Reduction, DType, std::span<const int64_t> shape, uint32_t dims, const void* in, void* out,
              Parallel&) const;

  // n elements from any dtype to any other: to nearest even; 8-bit floats saturate and keep NaN
  // (base/dtype.h); float -> integer truncates towards zero, saturates, NaN -> 0; anything -> pred is x != 0.
  // In place when both types have one size.
  void convert(int64_t n, In x, Out y, Parallel&) const;

  // y [scales] = the largest |x| of each tile, 0 of nothing; a NaN stays. x and y one edge type. workspace:
  // absmax_workspace bytes, aligned to 4.
  void absmax(const Tiles&, In x, Out y, void* workspace, Parallel&) const;
  static int64_t absmax_workspace(const Tiles&, int threads);
  // q = x / scale, x and the quotient rounded to scale's type, then clipped to q's finite range and rounded
  // to nearest even; NaN is kept. scale has x's type, or is bf16 where x is f32; q is E4M3 or E5M2.
  void quantize(const Tiles&, In x, In scale, Out q, Parallel&) const;
  // The same but for the last rounding: each quotient goes to one of its neighbours, to the nearer one more
  // often (float8_stochastic in float8.h). Element i (row-major) of row r of dim 0 by word i mod 4 of
  // philox4x32({i / 4, as two words, keys[r], 0}, stream): a function of these and of nothing else.
  void quantize_stochastic(const Tiles&, In x, In scale, const int32_t* keys, uint64_t stream, Out q,
                           Parallel&) const;
  // y = x * scale. All of one edge type. In place.
  void scale_tiles(const Tiles&, In x, In scale, Out y, Parallel&) const;
  // out = g where |x| <= bound, else 0. g and out of one edge type, x and bound of one; g, x and out of the
  // tensor's dims. In place over g.
  void clip_gradient(const Tiles&, In g, In x, In bound, Out out, Parallel&) const;

  // Per row: lse = log(sum(exp(logits))), loss = lse - logits[label], 0 where label = kIgnoredLabel. loss_sum
  // = the sum of the rows' losses, in double over blocks of kLossBlock rows; count = rows that are not
  // ignored. logits [n, vocab] edge type; lse [n], written for ignored rows as well. Another label outside
  // [0, vocab) is a user error (row and value named) and nothing is written.
  // lse_squares, unless null: the sum of lse^2 over the rows that count, in the same order.
  Status cross_entropy(int64_t n, int64_t vocab, In logits, const int32_t* labels, float* loss_sum,
                       int32_t* count, float* lse, Parallel&, double* lse_squares = nullptr) const;
  // dlogits = (exp(logits - lse) - [column = label]) * dloss; 0 in ignored rows. With z_slope also the
  // gradient of z_slope / 2 * lse^2 a row: exp(logits - lse) * z_slope * lse. In place. Labels were checked
  // before.
  void cross_entropy_grad(int64_t n, int64_t vocab, In logits, const int32_t* labels, const float* lse,
                          float dloss, Out dlogits, Parallel&, float z_slope = 0) const;
  // Both of one tile of rows, each row's while it is in the cache: losses[b] = the loss of block b of
  // kLossBlock rows, in double (added up in order they are cross_entropy's sum, before it is rounded), and
  // the gradient with dloss = 1 unless dlogits is null. f32 logits; dlogits f32 or bf16, its rows `stride`
  // elements apart; each may begin where the row of logits does. lse_squares (a block, as losses; may be
  // null) and z_slope as above. Labels were checked before.
  void cross_entropy_tile(int64_t n, int64_t vocab, const float* logits, const int32_t* labels,
                          double* losses, Out dlogits, int64_t stride, Parallel&,
                          double* lse_squares = nullptr, float z_slope = 0) const;
  // The number of labels that are not ignored; a user error (row and value named) for one outside [0, vocab).
  static Result<int64_t> count_labels(int64_t n, const int32_t* labels, int64_t vocab);

  // out[i] = table[ids[i]]; table [vocab, width], out [n, width], each an edge type. An id outside [0, vocab)
  // is a user error (row and value named) and nothing is written.
  Status embed(int64_t vocab, int64_t width, int64_t n, In table, const int32_t* ids, Out out,
               Parallel&) const;
  // dtable[v] = sum of dy[i] over the i with ids[i] = v, in f32 in ascending i, rounded once; other rows 0. n
  // < 2^31. workspace: embed_grad_workspace bytes, aligned to 4. Errors as embed.
  Status embed_grad(int64_t vocab, int64_t width, int64_t n, In dy, const int32_t* ids, Out dtable,
                    void* workspace, Parallel&) const;
  static int64_t embed_grad_workspace(int64_t vocab, int64_t n);
  // dtable += the same sums, each rounded to dtable's type first.
  Status embed_grad_add(int64_t vocab, int64_t width, int64_t n, In dy, const int32_t* ids, Out dtable,
                        void* workspace, Parallel&) const;

  // The sum of squares of n elements of an edge type (order: kElementBlock).
  double sum_squares(int64_t n, In x, Parallel&) const;
  // The first index that holds an infinity or a NaN, or -1. Edge types.
  int64_t find_nonfinite(int64_t n, In x, Parallel&) const;

  // Decoupled weight decay (Loshchilov, Hutter 2019): g' = g * grad_scale, m = b1 m + (1 - b1) g', v = b2 v +
  // (1 - b2) g'^2, p -= lr * (m / correction1 / (sqrt(v / correction2 + eps_root) + eps) + weight_decay * p).
  // One pass over memory, in place. g, m, v each f32 or bf16; m and v are rounded where they are
  // stored, not where p reads them.
  void adamw(const AdamW&, int64_t n, float* p, Out m, Out v, In g, Parallel&) const;
  // g' = g * grad_scale, trace = g' + momentum * trace, p -= lr * trace, or with nesterov lr * (g' + momentum
  // * trace). trace may be null: p -= lr * g'. In place.
  void sgd(const Sgd&, int64_t n, float* p, float* trace, const float* g, Parallel&) const;

 private:
  Status sum_by_id(int64_t vocab, int64_t width, int64_t n, In dy, const int32_t* ids, Out dtable, bool add,
                   void* workspace, Parallel&) const;

  const RowTable& table_;
};

// The kernels of a choice made by choose() (isa.h).
const RowKernels& row_kernels(const Choice&);

// reduce: elements summed in f32 before the partial sum goes into a double.
inline constexpr int64_t kReduceBlock = 64;

// Layout and constants move bytes only, so no ISA makes a difference. Any dtype; rank at most kMaxRank.
// out dim i is in dim perm[i]; shape is in's.
void transpose(DType, std::span<const int64_t> shape, std::span<const int> perm, const void* in, void* out,
               Parallel&);
// StableHLO's broadcast_in_dim: dim i of in is dim dims[i] of out, of the same size or 1.
void broadcast(DType, std::span<const int64_t> in_shape, std::span<const int> dims,
               std::span<const int64_t> out_shape, const void* in, void* out, Parallel&);
// out[..., i, ...] = i along `dim`. i32, f32 and bf16.
void iota(DType, std::span<const int64_t> shape, int dim, void* out, Parallel&);
// n elements of `value`, rounded to the dtype.
void fill(DType, int64_t n, double value, void* out, Parallel&);

}  // namespace lignum::kernels
