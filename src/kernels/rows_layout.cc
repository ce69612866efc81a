// The kernels that move bytes (transpose, broadcast, iota, fill) and the general reduction. None is on a
// step's hot path.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "kernels/rows.h"

namespace lignum::kernels {
namespace {

// One dim of a walk: its size and the distance in elements between neighbours in the walked buffer.
struct Dim {
  int64_t size, stride;
};
struct Walk {
  int rank = 0;
  std::array<Dim, kMaxRank> dims{};

  // Appends an inner dim, merged into the one before where both make one evenly strided run.
  void append(Dim dim) {
    if (dim.size == 1) return;
    if (rank > 0 && dims[rank - 1].stride == dim.stride * dim.size) {
      dims[rank - 1] = {dims[rank - 1].size * dim.size, dim.stride};
    } else {
      dims[rank++] = dim;
    }
  }
  int64_t elements() const {
    int64_t n = 1;
    for (int k = 0; k < rank; ++k) n *= dims[k].size;
    return n;
  }
  // The offset of element `index` in row-major order.
  int64_t offset(int64_t index) const {
    int64_t at = 0;
    for (int k = rank - 1; k >= 0; --k) {
      at += index % dims[k].size * dims[k].stride;
      index /= dims[k].size;
    }
    return at;
  }
};

void check_rank(const char* what, size_t rank) {
  LIGNUM_CHECK(rank <= static_cast<size_t>(kMaxRank), "{}: rank {}, at most {}", what, rank, kMaxRank);
}

std::array<int64_t, kMaxRank> row_major_strides(std::span<const int64_t> shape) {
  std::array<int64_t, kMaxRank> strides{};
  int64_t stride = 1;
  for (size_t k = shape.size(); k-- > 0;) {
    strides[k] = stride;
    stride *= shape[k];
  }
  return strides;
}

// out, dense in the walk's order, from in. Tiles of kTile x kTile keep the cache lines of both sides in L1
// when in's contiguous dim is not out's.
template <class T>
void strided_copy(const Walk& walk, const T* in, T* out, Parallel& parallel) {
  constexpr int64_t kTile = 32;
  const int64_t elements = walk.elements();
  if (elements == 0) return;
  if (walk.rank == 0) {
    out[0] = in[0];
    return;
  }
  const Dim inner = walk.dims[walk.rank - 1];
  int across = -1;  // the dim in which in is contiguous
  for (int k = 0; k + 1 < walk.rank; ++k) {
    if (walk.dims[k].stride == 1) across = k;
  }
  if (inner.stride <= 1 || across < 0) {
    Walk rows = walk;
    --rows.rank;
    const int64_t rows_a_task = std::max<int64_t>(1, 16384 / inner.size);
    const int64_t n = rows.elements();
    parallel.run((n + rows_a_task - 1) / rows_a_task, [&](int64_t task, int) {
      for (int64_t row = task * rows_a_task; row < std::min(n, (task + 1) * rows_a_task); ++row) {
        const T* from = in + rows.offset(row);
        T* to = out + row * inner.size;
        if (inner.stride == 1) {
          std::memcpy(to, from, static_cast<size_t>(inner.size) * sizeof(T));
        } else {
          for (int64_t i = 0; i < inner.size; ++i) to[i] = from[i * inner.stride];
        }
      }
    });
    return;
  }
  // One task: a strip of kTile of `across`, with every other dim but the inner one fixed.
  const int64_t strips = (walk.dims[across].size + kTile - 1) / kTile;
  int64_t across_step = inner.size;  // elements of out between neighbours in `across`
  for (int k = across + 1; k + 1 < walk.rank; ++k) across_step *= walk.dims[k].size;
  Walk others;  // in's offsets, and out's
  Walk others_out;
  int64_t step = elements;
  for (int k = 0; k + 1 < walk.rank; ++k) {
    step /= walk.dims[k].size;
    if (k == across) continue;
    others.dims[others.rank++] = walk.dims[k];
    others_out.dims[others_out.rank++] = {walk.dims[k].size, step};
  }
  parallel.run(others.elements() * strips, [&](int64_t task, int) {
    const T* from = in + others.offset(task / strips);
    T* to = out + others_out.offset(task / strips);
    const int64_t begin = task % strips * kTile;
    const int64_t end = std::min(walk.dims[across].size, begin + kTile);
    std::array<std::array<T, kTile>, kTile> tile;
    for (int64_t first = 0; first < inner.size; first += kTile) {
      const int64_t last = std::min(inner.size, first + kTile);
      for (int64_t i = first; i < last; ++i) {
        std::memcpy(tile[i - first].data(), from + begin + i * inner.stride,
                    static_cast<size_t>(end - begin) * sizeof(T));
      }
      for (int64_t a = begin; a < end; ++a) {
        for (int64_t i = first; i < last; ++i) to[a * across_step + i] = tile[i - first][a - begin];
      }
    }
  });
}

void strided_copy(DType type, const Walk& walk, const void* in, void* out, Parallel& parallel) {
  const auto copy = [&]<class T>(T) {
    strided_copy(walk, static_cast<const T*>(in), static_cast<T*>(out), parallel);
  };
  switch (dtype_size(type)) {
    case 1:
      return copy(uint8_t{});
    case 2:
      return copy(uint16_t{});
    case 4:
      return copy(uint32_t{});
    case 8:
      return copy(uint64_t{});
    default:
      LIGNUM_CHECK(false, "dtype {}", dtype_name(type));
  }
}

// Reduction of T by partial results in P and totals in S. add: P <- P, T; merge: S <- S, P.
template <class T, class P, class S, class Add, class Merge, class Finish>
void reduce_as(const Walk& kept, const Walk& reduced, P p0, S s0, Add add, Merge merge, Finish finish,
               const T* in, T* out, Parallel& parallel) {
  // Neighbouring outputs go together: if they lie side by side in `in`, memory is read in order.
  constexpr int64_t kTogether = 64;
  const int64_t outputs = kept.elements();
  const int64_t terms = reduced.elements();
  parallel.run((outputs + kTogether - 1) / kTogether, [&](int64_t task, int) {
    const int64_t begin = task * kTogether;
    const int64_t width = std::min(outputs - begin, kTogether);
    std::array<const T*, kTogether> from;
    std::array<S, kTogether> total;
    for (int64_t o = 0; o < width; ++o) from[o] = in + kept.offset(begin + o);
    total.fill(s0);
    for (int64_t block = 0; block < terms; block += kReduceBlock) {
      std::array<int64_t, kReduceBlock> at;
      const int64_t size = std::min(terms - block, kReduceBlock);
      for (int64_t r = 0; r < size; ++r) at[r] = reduced.offset(block + r);
      std::array<P, kTogether> partial;
      partial.fill(p0);
      // Whichever dim is contiguous should be the inner loop; each output's order of terms is the same in
      // both.
      if (reduced.rank > 0 && reduced.dims[reduced.rank - 1].stride == 1) {
        for (int64_t o = 0; o < width; ++o) {
          for (int64_t r = 0; r < size; ++r) partial[o] = add(partial[o], from[o][at[r]]);
        }
      } else {
        for (int64_t r = 0; r < size; ++r) {
          for (int64_t o = 0; o < width; ++o) partial[o] = add(partial[o], from[o][at[r]]);
        }
      }
      for (int64_t o = 0; o < width; ++o) total[o] = merge(total[o], partial[o]);
    }
    for (int64_t o = 0; o < width; ++o) out[begin + o] = finish(total[o]);
  });
}

template <class T>
void reduce_floats(Reduction reduction, const Walk& kept, const Walk& reduced, const void* in, void* out,
                   Parallel& parallel) {
  const T* from = static_cast<const T*>(in);
  T* to = static_cast<T*>(out);
  if (reduction == Reduction::sum) {
    reduce_as(
        kept, reduced, 0.0f, 0.0, [](float p, T x) { return p + to_float(x); },
        [](double s, float p) { return s + static_cast<double>(p); },
        [](double s) { return from_float<T>(static_cast<float>(s)); }, from, to, parallel);
  } else {
    const auto larger = [](float a, float b) { return a > b || a != a ? a : b; };  // keeps NaN
    const float least = -std::numeric_limits<float>::infinity();
    reduce_as(
        kept, reduced, least, least, [larger](float p, T x) { return larger(p, to_float(x)); }, larger,
        [](float s) { return from_float<T>(s); }, from, to, parallel);
  }
}

}  // namespace

void RowKernels::reduce(Reduction reduction, DType type, std::span<const int64_t> shape, uint32_t dims,
                        const void* in, void* out, Parallel& parallel) const {
  check_rank("reduce", shape.size());
  LIGNUM_CHECK(dims >> shape.size() == 0, "reduce: dims {:#x} of rank {}", dims, shape.size());
  const auto strides = row_major_strides(shape);
  Walk kept;
  Walk reduced;
  for (size_t k = 0; k < shape.size(); ++k) {
    ((dims >> k & 1u) != 0 ? reduced : kept).append({shape[k], strides[k]});
  }
  switch (type) {
    case DType::f32:
      return reduce_floats<float>(reduction, kept, reduced, in, out, parallel);
    case DType::bf16:
      return reduce_floats<bf16>(reduction, kept, reduced, in, out, parallel);
    case DType::i32: {
      const auto wrap = [](int32_t a, int32_t b) {
        return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
      };
      const auto larger = [](int32_t a, int32_t b) { return std::max(a, b); };
      const auto same = [](int32_t a) { return a; };
      const auto* from = static_cast<const int32_t*>(in);
      auto* to = static_cast<int32_t*>(out);
      const int32_t least = std::numeric_limits<int32_t>::min();
      if (reduction == Reduction::sum)
        return reduce_as(kept, reduced, 0, 0, wrap, wrap, same, from, to, parallel);
      return reduce_as(kept, reduced, least, least, larger, larger, same, from, to, parallel);
    }
    default:
      LIGNUM_CHECK(false, "reduce on {}", dtype_name(type));
  }
}

void transpose(DType type, std::span<const int64_t> shape, std::span<const int> perm, const void* in,
               void* out, Parallel& parallel) {
  check_rank("transpose", shape.size());
  LIGNUM_CHECK(perm.size() == shape.size(), "transpose: permutation of {} dims, rank {}", perm.size(),
               shape.size());
  const auto strides = row_major_strides(shape);
  Walk walk;
  uint32_t seen = 0;
  for (int k : perm) {
    LIGNUM_CHECK(k >= 0 && static_cast<size_t>(k) < shape.size() && (seen >> k & 1u) == 0,
                 "transpose: dim {}", k);
    seen |= 1u << k;
    walk.append({shape[static_cast<size_t>(k)], strides[static_cast<size_t>(k)]});
  }
  strided_copy(type, walk, in, out, parallel);
}

void broadcast(DType type, std::span<const int64_t> in_shape, std::span<const int> dims,
               std::span<const int64_t> out_shape, const void* in, void* out, Parallel& parallel) {
  check_rank("broadcast", out_shape.size());
  LIGNUM_CHECK(dims.size() == in_shape.size() && in_shape.size() <= out_shape.size(),
               "broadcast: {} dims, rank {} to {}", dims.size(), in_shape.size(), out_shape.size());
  const auto in_strides = row_major_strides(in_shape);
  std::array<int64_t, kMaxRank> strides{};  // of in along out's dims: 0 where it repeats
  for (size_t i = 0; i < dims.size(); ++i) {
    const auto k = static_cast<size_t>(dims[i]);
    LIGNUM_CHECK(k < out_shape.size() && (in_shape[i] == out_shape[k] || in_shape[i] == 1),
                 "broadcast: dim {} of size {} to dim {}", i, in_shape[i], dims[i]);
    strides[k] = in_shape[i] == 1 ? 0 : in_strides[i];
  }
  Walk walk;
  for (size_t k = 0; k < out_shape.size(); ++k) walk.append({out_shape[k], strides[k]});
  strided_copy(type, walk, in, out, parallel);
}

void fill(DType type, int64_t n, double value, void* out, Parallel& parallel) {
  std::array<std::byte, 8> one{};
  store_from_double(type, one.data(), 0, value);
  Walk walk;
  walk.append({n, 0});
  strided_copy(type, walk, one.data(), out, parallel);
}

void iota(DType type, std::span<const int64_t> shape, int dim, void* out, Parallel& parallel) {
  check_rank("iota", shape.size());
  LIGNUM_CHECK(dim >= 0 && static_cast<size_t>(dim) < shape.size(), "iota: dim {} of rank {}", dim,
               shape.size());
  LIGNUM_CHECK(type == DType::i32 || type == DType::f32 || type == DType::bf16, "iota on {}",
               dtype_name(type));
  int64_t elements = 1;
  for (int64_t size : shape) elements *= size;
  const int64_t repeat = row_major_strides(shape)[static_cast<size_t>(dim)];
  const int64_t size = shape[static_cast<size_t>(dim)];
  constexpr int64_t kTask = 16384;
  parallel.run((elements + kTask - 1) / kTask, [&](int64_t task, int) {
    for (int64_t i = task * kTask; i < std::min(elements, (task + 1) * kTask); ++i) {
      store_from_double(type, out, i, static_cast<double>(i / repeat % size));
    }
  });
}

}  // namespace lignum::kernels
