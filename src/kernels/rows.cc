#include "kernels/rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/rows_table.h"

namespace lignum::kernels {
namespace {

int64_t blocks_of(int64_t n, int64_t block) { return (n + block - 1) / block; }

// Elements of work that are worth a task of their own; results do not depend on it.
constexpr int64_t kTaskElements = 16384;

// fn(begin, end) over [0, n) in parallel, about kTaskElements elements a task, `width` elements a row.
template <class F>
void over_rows(Parallel& parallel, int64_t n, int64_t width, F fn) {
  const int64_t rows = std::max<int64_t>(1, kTaskElements / std::max<int64_t>(1, width));
  parallel.run(blocks_of(n, rows),
               [&](int64_t task, int) { fn(task * rows, std::min(n, (task + 1) * rows)); });
}

// The sum over [0, n) in blocks of `block`, added in ascending order. S starts at S{} and has +=. Rounds of
// kRound blocks keep the partial sums on the stack.
template <class S, class F>
S blocked_sum(Parallel& parallel, int64_t n, int64_t block, F fn) {
  constexpr int64_t kRound = 512;
  std::array<S, kRound> partial;
  S sum{};
  for (int64_t first = 0; first < n; first += kRound * block) {
    const int64_t last = std::min(n, first + kRound * block);
    const int64_t tasks = blocks_of(last - first, block);
    parallel.run(tasks, [&](int64_t task, int) {
      const int64_t begin = first + task * block;
      partial[task] = fn(begin, std::min(last, begin + block));
    });
    for (int64_t task = 0; task < tasks; ++task) sum += partial[task];
  }
  return sum;
}

int edge(DType type) {
  LIGNUM_CHECK(type == DType::f32 || type == DType::bf16, "row kernel on {}: an edge is f32 or bf16",
               dtype_name(type));
  return type == DType::f32 ? kF32 : kBf16;
}

int edges(DType type, DType same) {
  LIGNUM_CHECK(type == same, "row kernel on {} and {}: they must be one type", dtype_name(type),
               dtype_name(same));
  return edge(type);
}

int elementwise_type(DType type) { return type == DType::i32 ? kI32 : edge(type); }

// `ignored` passes as well.
Status check_ids(const char* what, int64_t n, const int32_t* ids, int64_t bound, int32_t ignored) {
  for (int64_t i = 0; i < n; ++i) {
    if ((ids[i] < 0 || ids[i] >= bound) && ids[i] != ignored) {
      return user_error(
          "{} {} in row {} is outside [0, {}): the data and the model's vocabulary do not fit; check "
          "the tokeniser and vocab_size",
          what, ids[i], i, bound);
    }
  }
  return {};
}

}  // namespace

const RowKernels& row_kernels(const Choice& choice) {
  static const RowKernels scalar(kRowsScalar), avx2(kRowsAvx2), avx512(kRowsAvx512);
  const char* refusal = isa_refusal(choice.isa);
  LIGNUM_CHECK(refusal == nullptr, "row kernels for {}: {}", isa_name(choice.isa), refusal);
  switch (choice.isa) {
    case Isa::scalar:
      return scalar;
    case Isa::avx2:
      return avx2;
    case Isa::avx512:
      return avx512;
  }
  LIGNUM_CHECK(false, "isa {}", static_cast<int>(choice.isa));
  __builtin_unreachable();
}

int elementwise_inputs(Elementwise fn) {
  if (fn < Elementwise::add) return 1;
  return fn < Elementwise::select ? 2 : 3;
}

void RowKernels::rms_norm(int64_t n, int64_t d, In x, In scale, float eps, Out y, float* rstd,
                          Parallel& parallel) const {
  const auto kernel = table_.rms_norm[edges(x.type, y.type)][edge(scale.type)];
  over_rows(parallel, n, d, [&](int64_t begin, int64_t end) {
    kernel(begin, end, d, x.data, scale.data, eps, y.data, rstd);
  });
}

int64_t RowKernels::rms_norm_grad_workspace(int64_t n, int64_t d) {
  return blocks_of(n, kRowBlock) * d * static_cast<int64_t>(sizeof(float));
}

void RowKernels::rms_norm_grad(int64_t n, int64_t d, In dy, In x, In scale, const float* rstd, Out dx,
                               Out dscale, void* workspace, Parallel& parallel) const {
  LIGNUM_CHECK(dy.type == x.type, "rms_norm_grad: dy {}, x {}", dtype_name(dy.type), dtype_name(x.type));
  const int scale_edge = edges(scale.type, dscale.type);
  const auto kernel = table_.rms_norm_grad[edges(x.type, dx.type)][scale_edge];
  float* partials = static_cast<float*>(workspace);
  const int64_t blocks = blocks_of(n, kRowBlock);
  parallel.run(blocks, [&](int64_t block, int) {
    const int64_t begin = block * kRowBlock;
    kernel(begin, std::min(n, begin + kRowBlock), d, dy.data, x.data, scale.data, rstd, dx.data,
           partials + block * d);
  });
  over_rows(parallel, d, blocks, [&](int64_t begin, int64_t end) {
    table_.fold[scale_edge](blocks, d, begin, end, partials, dscale.data);
  });
}

void RowKernels::layer_norm(int64_t n, int64_t d, In x, In scale, In bias, float eps, Out y, float* mean,
                            float* rstd, Parallel& parallel) const {
  const auto kernel = table_.layer_norm[edges(x.type, y.type)][edges(scale.type, bias.type)];
  over_rows(parallel, n, d, [&](int64_t begin, int64_t end) {
    kernel(begin, end, d, x.data, scale.data, bias.data, eps, y.data, mean, rstd);
  });
}

int64_t RowKernels::layer_norm_grad_workspace(int64_t n, int64_t d) {
  return 2 * rms_norm_grad_workspace(n, d);
}

void RowKernels::layer_norm_grad(int64_t n, int64_t d, In dy, In x, In scale, const float* mean,
                                 const float* rstd, Out dx, Out dscale, Out dbias, void* workspace,
                                 Parallel& parallel) const {
  LIGNUM_CHECK(dy.type == x.type && dbias.type == dscale.type,
               "layer_norm_grad: dy {}, x {}, dscale {}, dbias {}", dtype_name(dy.type), dtype_name(x.type),
               dtype_name(dscale.type), dtype_name(dbias.type));
  const int scale_edge = edges(scale.type, dscale.type);
  const auto kernel = table_.layer_norm_grad[edges(x.type, dx.type)][scale_edge];
  float* partials = static_cast<float*>(workspace);
  const int64_t blocks = blocks_of(n, kRowBlock);
  parallel.run(blocks, [&](int64_t block, int) {
    const int64_t begin = block * kRowBlock;
    kernel(begin, std::min(n, begin + kRowBlock), d, dy.data, x.data, scale.data, mean, rstd, dx.data,
           partials + block * 2 * d);
  });
  over_rows(parallel, d, 2 * blocks, [&](int64_t begin, int64_t end) {
    table_.fold[scale_edge](blocks, 2 * d, begin, end, partials, dscale.data);
    table_.fold[scale_edge](blocks, 2 * d, begin, end, partials + d, dbias.data);
  });
}

void RowKernels::rope(const RopeShape& shape, In x, const int32_t* positions, const double* inv_freq,
                      float attention_scaling, bool inverse, Out y, Parallel& parallel) const {
  LIGNUM_CHECK(shape.dim % 2 == 0 && shape.dim <= kRopeMaxDim, "rope: head dimension {}", shape.dim);
  const auto kernel = table_.rope[edges(x.type, y.type)];
  const int64_t pairs = shape.dim / 2;
  over_rows(parallel, shape.batch * shape.seq, shape.heads * shape.dim, [&](int64_t begin, int64_t end) {
    std::array<float, kRopeMaxDim / 2> c;
    std::array<float, kRopeMaxDim / 2> s;
    for (int64_t token = begin; token < end; ++token) {
      table_.rope_angles(pairs, positions[token], inv_freq, attention_scaling, inverse, c.data(), s.data());
      kernel(token, shape.heads, pairs, c.data(), s.data(), x.data, y.data);
    }
  });
}

void RowKernels::glu(Activation activation, int64_t n, In gate, In up, Out y, Parallel& parallel) const {
  LIGNUM_CHECK(gate.type == up.type, "glu: gate {}, up {}", dtype_name(gate.type), dtype_name(up.type));
  const auto kernel = table_.glu[static_cast<size_t>(activation)][edges(gate.type, y.type)];
  over_rows(parallel, n, 1,
            [&](int64_t begin, int64_t end) { kernel(begin, end, gate.data, up.data, y.data); });
}

void RowKernels::glu_grad(Activation activation, int64_t n, In dy, In gate, In up, Out dgate, Out dup,
                          Parallel& parallel) const {
  LIGNUM_CHECK(dy.type == gate.type && dy.type == up.type && dy.type == dgate.type,
               "glu_grad: dy {}, gate {}, up {}, dgate {}", dtype_name(dy.type), dtype_name(gate.type),
               dtype_name(up.type), dtype_name(dgate.type));
  const auto kernel = table_.glu_grad[static_cast<size_t>(activation)][edges(dy.type, dup.type)];
  over_rows(parallel, n, 1, [&](int64_t begin, int64_t end) {
    kernel(begin, end, dy.data, gate.data, up.data, dgate.data, dup.data);
  });
}

void RowKernels::activation(Activation activation, int64_t n, In x, Out y, Parallel& parallel) const {
  const auto kernel = table_.activation[static_cast<size_t>(activation)][edges(x.type, y.type)];
  over_rows(parallel, n, 1, [&](int64_t begin, int64_t end) { kernel(begin, end, x.data, y.data); });
}

void RowKernels::activation_grad(Activation activation, int64_t n, In dy, In x, Out dx,
                                 Parallel& parallel) const {
  LIGNUM_CHECK(dy.type == x.type, "activation_grad: dy {}, x {}", dtype_name(dy.type), dtype_name(x.type));
  const auto kernel = table_.activation_grad[static_cast<size_t>(activation)][edges(x.type, dx.type)];
  over_rows(parallel, n, 1,
            [&](int64_t begin, int64_t end) { kernel(begin, end, dy.data, x.data, dx.data); });
}

void RowKernels::elementwise(Elementwise fn, DType type, int64_t n, const void* in0, const void* in1,
                             const void* in2, void* out, Parallel& parallel) const {
  const auto kernel = table_.elementwise[static_cast<size_t>(fn)][elementwise_type(type)];
  LIGNUM_CHECK(kernel != nullptr, "elementwise function {} on {}", static_cast<int>(fn), dtype_name(type));
  over_rows(parallel, n, 1, [&](int64_t begin, int64_t end) { kernel(begin, end, in0, in1, in2, out); });
}

void RowKernels::add_bias(int64_t n, int64_t d, In x, In b, Out y, Parallel& parallel) const {
  const auto kernel = table_.add_bias[edges(x.type, y.type)][edge(b.type)];
  over_rows(parallel, n, d,
            [&](int64_t begin, int64_t end) { kernel(begin, end, d, x.data, b.data, y.data); });
}

void RowKernels::sum_rows(int64_t n, int64_t d, In x, Out y, Parallel& parallel) const {
  const auto kernel = table_.sum_rows[edge(x.type)][edge(y.type)];
  // Some tasks a thread, in whole cache lines; a column's sum does not depend on its neighbours.
  const int64_t wanted = blocks_of(d, 4 * parallel.threads());
  const int64_t columns = std::clamp<int64_t>(blocks_of(wanted, 64) * 64, 64, kSumColumns);
  parallel.run(blocks_of(d, columns), [&](int64_t task, int) {
    const int64_t begin = task * columns;
    kernel(n, kRowBlock, d, begin, std::min(d, begin + columns), x.data, y.data);
  });
}

namespace {

// Column of RowTable::convert, or -1.
int convert_index(DType type) {
  switch (type) {
    case DType::f32:
      return kFloat;
    case DType::bf16:
      return kBfloat;
    case DType::f8e4m3fn:
      return kE4m3;
    case DType::f8e5m2:
      return kE5m2;
    default:
      return -1;
  }
}

// Towards zero, to the nearest end of T's range if outside it, NaN to 0.
template <class T>
T saturated(double x) {
  if (std::isnan(x)) return 0;
  // 2^digits, the first value above the range, is exact in double; the largest T may not be.
  const double above = std::ldexp(1.0, std::numeric_limits<T>::digits);
  if (x >= above) return std::numeric_limits<T>::max();
  if (x <= static_cast<double>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
  return static_cast<T>(x);
}

// Via double, which holds every value of every type but i64's beyond 2^53 and rounds once more only to 8 or
// 16 bits (store_from_double sees to that).
void convert_any(In x, Out y, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const double value = load_as_double(x.type, x.data, i);
    switch (y.type) {
      case DType::f32:
      case DType::f64:
      case DType::bf16:
      case DType::f8e4m3fn:
      case DType::f8e5m2:
        store_from_double(y.type, y.data, i, value);
        break;
      case DType::pred:
        static_cast<uint8_t*>(y.data)[i] = value != 0.0 ? 1 : 0;
        break;
      case DType::i32:
        static_cast<int32_t*>(y.data)[i] = saturated<int32_t>(value);
        break;
      case DType::u32:
        static_cast<uint32_t*>(y.data)[i] = saturated<uint32_t>(value);
        break;
      case DType::i64:
        static_cast<int64_t*>(y.data)[i] = saturated<int64_t>(value);
        break;
      case DType::u8:
        static_cast<uint8_t*>(y.data)[i] = saturated<uint8_t>(value);
        break;
    }
  }
}

}  // namespace

void RowKernels::convert(int64_t n, In x, Out y, Parallel& parallel) const {
  if (x.type == y.type) {
    if (x.data == y.data) return;
    const int64_t size = dtype_size(x.type);
    over_rows(parallel, n, 1, [&](int64_t begin, int64_t end) {
      std::memcpy(static_cast<char*>(y.data) + begin * size, static_cast<const char*>(x.data) + begin * size,
                  static_cast<size_t>((end - begin) * size));
    });
    return;
  }
  const int from = convert_index(x.type);
  const int to = convert_index(y.type);
  over_rows(parallel, n, 1, [&](int64_t begin, int64_t end) {
    if (from >= 0 && to >= 0) {
      table_.convert[from][to](begin, end, x.data, y.data);
    } else {
      convert_any(x, y, begin, end);
    }
  });
}

Status RowKernels::cross_entropy(int64_t n, int64_t vocab, In logits, const int32_t* labels, float* loss_sum,
                                 int32_t* count, float* lse, Parallel& parallel, double* lse_squares) const {
  const auto kernel = table_.cross_entropy[edge(logits.type)];
  LIGNUM_ASSIGN_OR_RETURN(const int64_t counted, count_labels(n, labels, vocab));
  const auto sums = blocked_sum<LossSums>(parallel, n, kLossBlock, [&](int64_t begin, int64_t end) {
    return kernel(begin, end, vocab, logits.data, labels, lse);
  });
  *loss_sum = static_cast<float>(sums.loss);
  if (lse_squares != nullptr) *lse_squares = sums.lse_squares;
  *count = static_cast<int32_t>(counted);
  return {};
}

void RowKernels::cross_entropy_grad(int64_t n, int64_t vocab, In logits, const int32_t* labels,
                                    const float* lse, float dloss, Out dlogits, Parallel& parallel,
                                    float z_slope) const {
  const int type = edges(logits.type, dlogits.type);
  const auto kernel = table_.cross_entropy_grad[type][type];
  over_rows(parallel, n, vocab, [&](int64_t begin, int64_t end) {
    kernel(begin, end, vocab, logits.data, labels, lse, dloss, z_slope, dlogits.data);
  });
}

void RowKernels::cross_entropy_tile(int64_t n, int64_t vocab, const float* logits, const int32_t* labels,
                                    double* losses, Out dlogits, int64_t stride, Parallel& parallel,
                                    double* lse_squares, float z_slope) const {
  const auto loss = table_.cross_entropy[kF32];
  const auto gradient = table_.cross_entropy_grad[kF32][edge(dlogits.type)];
  parallel.run(blocks_of(n, kLossBlock), [&](int64_t block, int) {
    LossSums sum;
    for (int64_t row = block * kLossBlock; row < std::min(n, (block + 1) * kLossBlock); ++row) {
      float lse = 0;
      const float* x = logits + row * vocab;
      sum += loss(0, 1, vocab, x, labels + row, &lse);
      if (dlogits.data == nullptr) continue;
      gradient(0, 1, vocab, x, labels + row, &lse, 1.0f, z_slope,
               static_cast<char*>(dlogits.data) + row * stride * dtype_size(dlogits.type));
    }
    losses[block] = sum.loss;
    if (lse_squares != nullptr) lse_squares[block] = sum.lse_squares;
  });
}

Result<int64_t> RowKernels::count_labels(int64_t n, const int32_t* labels, int64_t vocab) {
  LIGNUM_RETURN_IF_ERROR(check_ids("label", n, labels, vocab, kIgnoredLabel));
  return n - std::count(labels, labels + n, kIgnoredLabel);
}

Status RowKernels::embed(int64_t vocab, int64_t width, int64_t n, In table, const int32_t* ids, Out out,
                         Parallel& parallel) const {
  const auto kernel = table_.convert[edge(table.type)][edge(out.type)];
  LIGNUM_RETURN_IF_ERROR(check_ids("token id", n, ids, vocab, 0));
  const int64_t in_row = width * dtype_size(table.type);
  const int64_t out_row = width * dtype_size(out.type);
  over_rows(parallel, n, width, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      kernel(0, width, static_cast<const char*>(table.data) + ids[i] * in_row,
             static_cast<char*>(out.data) + i * out_row);
    }
  });
  return {};
}

int64_t RowKernels::embed_grad_workspace(int64_t vocab, int64_t n) {
  return (vocab + 1 + n) * static_cast<int64_t>(sizeof(int32_t));
}

Status RowKernels::embed_grad(int64_t vocab, int64_t width, int64_t n, In dy, const int32_t* ids, Out dtable,
                              void* workspace, Parallel& parallel) const {
  return sum_by_id(vocab, width, n, dy, ids, dtable, false, workspace, parallel);
}

Status RowKernels::embed_grad_add(int64_t vocab, int64_t width, int64_t n, In dy, const int32_t* ids,
                                  Out dtable, void* workspace, Parallel& parallel) const {
  return sum_by_id(vocab, width, n, dy, ids, dtable, true, workspace, parallel);
}

Status RowKernels::sum_by_id(int64_t vocab, int64_t width, int64_t n, In dy, const int32_t* ids, Out dtable,
                             bool add, void* workspace, Parallel& parallel) const {
  const auto sum_edges = table_.elementwise[static_cast<int>(Elementwise::add)][edge(dtable.type)];
  const auto accumulate = table_.accumulate[edge(dy.type)];
  const auto store = table_.convert[kFloat][edge(dtable.type)];
  LIGNUM_RETURN_IF_ERROR(check_ids("token id", n, ids, vocab, 0));
  // A stable counting sort: rows[first[v] .. first[v + 1]) are the i with ids[i] = v, ascending.
  int32_t* first = static_cast<int32_t*>(workspace);
  int32_t* rows = first + vocab + 1;
  std::fill_n(first, vocab + 1, 0);
  for (int64_t i = 0; i < n; ++i) ++first[ids[i]];
  int32_t sum = 0;
  for (int64_t v = 0; v <= vocab; ++v) sum += std::exchange(first[v], sum);
  // Placing moves first[v] to its end, which is first[v + 1] as it was: reading below takes the previous
  // entry as begin.
  for (int64_t i = 0; i < n; ++i) rows[first[ids[i]]++] = static_cast<int32_t>(i);

  // Vocabulary blocks by column blocks, so that one frequent token does not keep one thread busy.
  constexpr int64_t kColumns = 512;
  constexpr int64_t kVocabulary = 64;
  const int64_t column_blocks = blocks_of(width, kColumns);
  const int64_t size = dtype_size(dtable.type);
  parallel.run(blocks_of(vocab, kVocabulary) * column_blocks, [&](int64_t task, int) {
    const int64_t column = task % column_blocks * kColumns;
    const int64_t columns = std::min(width - column, kColumns);
    const int64_t last = std::min(vocab, (task / column_blocks + 1) * kVocabulary);
    std::array<float, kColumns> total, rounded;
    for (int64_t v = task / column_blocks * kVocabulary; v < last; ++v) {
      char* out = static_cast<char*>(dtable.data) + (v * width + column) * size;
      const int32_t begin = v == 0 ? 0 : first[v - 1];
      if (begin == first[v] && !add) {
        std::memset(out, 0, static_cast<size_t>(columns * size));
        continue;
      }
      std::fill_n(total.begin(), columns, 0.0f);
      for (int32_t k = begin; k < first[v]; ++k) {
        const int64_t at = rows[k] * width + column;
        accumulate(at, at + columns, dy.data, total.data());
      }
      if (!add) {
        store(0, columns, total.data(), out);
        continue;
      }
      store(0, columns, total.data(), rounded.data());
      sum_edges(0, columns, out, rounded.data(), nullptr, out);
    }
  });
  return {};
}

double RowKernels::sum_squares(int64_t n, In x, Parallel& parallel) const {
  const auto kernel = table_.sum_squares[edge(x.type)];
  return blocked_sum<double>(parallel, n, kElementBlock,
                             [&](int64_t begin, int64_t end) { return kernel(begin, end, x.data); });
}

int64_t RowKernels::find_nonfinite(int64_t n, In x, Parallel& parallel) const {
  // "Sum" = the first index found, in ascending order of blocks.
  struct First {
    int64_t index = -1;
    First& operator+=(First other) {
      if (index < 0) index = other.index;
      return *this;
    }
  };
  const auto kernel = table_.find_nonfinite[edge(x.type)];
  return blocked_sum<First>(parallel, n, kElementBlock,
                            [&](int64_t begin, int64_t end) { return First{kernel(begin, end, x.data)}; })
      .index;
}

void RowKernels::adamw(const AdamW& a, int64_t n, float* p, Out m, Out v, In g, Parallel& parallel) const {
  const AdamWScalars scalars = {
      .learning_rate = static_cast<float>(a.learning_rate),
      .beta1 = static_cast<float>(a.beta1),
      .one_minus_beta1 = static_cast<float>(1.0 - a.beta1),
      .beta2 = static_cast<float>(a.beta2),
      .one_minus_beta2 = static_cast<float>(1.0 - a.beta2),
      .eps = static_cast<float>(a.eps),
      .eps_root = static_cast<float>(a.eps_root),
      .weight_decay = static_cast<float>(a.weight_decay),
      .inverse_correction1 = static_cast<float>(1.0 / a.correction1),
      .inverse_correction2 = static_cast<float>(1.0 / a.correction2),
      .grad_scale = static_cast<float>(a.grad_scale),
  };
  const auto kernel = table_.adamw[edge(m.type)][edge(v.type)];
  const auto widen = table_.convert[edge(g.type)][kFloat];
  const auto at = [](const Out& t, int64_t i) { return static_cast<char*>(t.data) + i * dtype_size(t.type); };
  over_rows(parallel, n, 1, [&](int64_t begin, int64_t end) {
    if (g.type == DType::f32)
      return kernel(scalars, begin, end, p, m.data, v.data, static_cast<const float*>(g.data));
    constexpr int64_t kChunk = 2048;
    std::array<float, kChunk> wide;
    for (int64_t first = begin; first < end; first += kChunk) {
      const int64_t count = std::min(kChunk, end - first);
      widen(0, count, static_cast<const bf16*>(g.data) + first, wide.data());
      kernel(scalars, 0, count, p + first, at(m, first), at(v, first), wide.data());
    }
  });
}

void RowKernels::sgd(const Sgd& s, int64_t n, float* p, float* trace, const float* g,
                     Parallel& parallel) const {
  const SgdScalars scalars = {static_cast<float>(s.learning_rate), static_cast<float>(s.momentum),
                              static_cast<float>(s.grad_scale), s.nesterov};
  over_rows(parallel, n, 1,
            [&](int64_t begin, int64_t end) { table_.sgd(scalars, begin, end, p, trace, g); });
}

}  // namespace lignum::kernels
