// Scales of tiles, quantising by them, and the gradient of what was clipped: rows.h.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/round.h"
#include "kernels/rows.h"
#include "kernels/rows_table.h"

namespace lignum::kernels {
namespace {

constexpr int64_t kPiece = 16384;  // elements of a task, about; results do not depend on it

// Rows of `columns` elements, in tiles of `tile` that share a scale; a row's scales are those of one row of
// scales.
class Grid {
 public:
  explicit Grid(const Tiles& t) {
    LIGNUM_CHECK(t.dims.size() == t.scales.size() && t.dims.size() <= kMaxRank, "{} dims, {} of scales",
                 t.dims.size(), t.scales.size());
    for (size_t d = 0; d < t.dims.size(); ++d) {
      if (t.dims[d] == 1) continue;
      const Dim next{t.dims[d], t.scales[d]};
      // Neighbours that share one scale, or share none, are one dim.
      if (rank_ > 0 && dims_[rank_ - 1].whole() == next.whole() && dims_[rank_ - 1].each() == next.each() &&
          (next.whole() || next.each())) {
        dims_[rank_ - 1].size *= next.size;
        dims_[rank_ - 1].scales *= next.scales;
      } else {
        dims_[rank_++] = next;
      }
    }
    if (rank_ > 0) {
      const Dim last = dims_[--rank_];
      columns = last.size;
      tile = last.scales == 0 ? 1 : last.size / last.scales;
      scale_columns_ = last.scales;
    }
    scale_count = scale_columns_;
    for (size_t d = 0; d < rank_; ++d) {
      rows *= dims_[d].size;
      scale_count *= dims_[d].scales;
      own_rows_ = own_rows_ && dims_[d].each();
    }
    // A piece has whole tiles, unless it is part of a row of one tile.
    if (tile != columns) piece = std::max(tile, kPiece / tile * tile);
  }

  int64_t rows = 1, columns = 1, tile = 1, scale_count = 1;
  int64_t piece = kPiece;  // columns, at most, of a task

  // No two tasks meet in a scale.
  bool apart() const { return own_rows_ && (tile != columns || columns <= piece); }

  // fn(thread, first element, count, first scale): the elements share the scale (tile > 1), or have one each.
  template <class F>
  void run(Parallel& parallel, F fn) const {
    if (rows * columns == 0) return;
    const int64_t pieces = (columns + piece - 1) / piece;
    const int64_t rows_a_task = std::max<int64_t>(1, kPiece / columns);
    parallel.run((rows + rows_a_task - 1) / rows_a_task * pieces, [&](int64_t task, int thread) {
      const int64_t first = task / pieces * rows_a_task, from = task % pieces * piece;
      const int64_t to = std::min(columns, from + piece);
      for (int64_t row = first; row < std::min(rows, first + rows_a_task); ++row) {
        const int64_t scales = scale_row(row) * scale_columns_;
        if (tile == 1) {
          fn(thread, row * columns + from, to - from, scales + from);
          continue;
        }
        for (int64_t at = from; at < to; at += tile)
          fn(thread, row * columns + at, std::min(tile, to - at), scales + at / tile);
      }
    });
  }

 private:
  struct Dim {
    int64_t size = 1, scales = 1;
    bool whole() const { return scales == 1; }
    bool each() const { return scales == size; }
  };

  int64_t scale_row(int64_t row) const {
    int64_t scale = 0, stride = 1;
    for (size_t d = rank_; d-- > 0;) {
      const int64_t at = row % dims_[d].size;
      row /= dims_[d].size;
      scale += at / (dims_[d].size / dims_[d].scales) * stride;
      stride *= dims_[d].scales;
    }
    return scale;
  }

  std::array<Dim, kMaxRank> dims_{};  // of the rows
  size_t rank_ = 0;
  int64_t scale_columns_ = 1;
  bool own_rows_ = true;
};

int edge_of(DType type) {
  LIGNUM_CHECK(type == DType::f32 || type == DType::bf16, "{} is quantised: f32 and bf16 are",
               dtype_name(type));
  return type == DType::f32 ? kF32 : kBf16;
}

int quantize_way(In x, In scale, Out q) {
  const bool narrows = x.type == DType::f32 && scale.type == DType::bf16;
  LIGNUM_CHECK((scale.type == x.type || narrows) && is_float8(q.type), "quantising {} by {} to {}",
               dtype_name(x.type), dtype_name(scale.type), dtype_name(q.type));
  return narrows ? kF32ByBf16 : edge_of(x.type) == kF32 ? kByF32 : kByBf16;
}

float value_at(In x, int64_t i) {
  return x.type == DType::f32 ? static_cast<const float*>(x.data)[i]
                              : to_float(static_cast<const bf16*>(x.data)[i]);
}
const void* from(In x, int64_t i) { return static_cast<const char*>(x.data) + i * dtype_size(x.type); }
void* from(Out x, int64_t i) { return static_cast<char*>(x.data) + i * dtype_size(x.type); }

}  // namespace

int64_t RowKernels::absmax_workspace(const Tiles& tiles, int threads) {
  const Grid grid(tiles);
  return round_up(grid.scale_count * (grid.apart() ? 1 : threads) * static_cast<int64_t>(sizeof(uint32_t)),
                  64);
}

void RowKernels::absmax(const Tiles& tiles, In x, Out y, void* workspace, Parallel& parallel) const {
  const Grid grid(tiles);
  const auto whole = table_.absmax[edge_of(x.type)];
  const auto columns = table_.absmax_columns[edge_of(x.type)];
  LIGNUM_CHECK(y.type == x.type, "absmax of {} is {}", dtype_name(x.type), dtype_name(y.type));
  // A maximum is exact, in whatever order it is taken: each thread has its own, where tasks meet.
  auto* largest = static_cast<uint32_t*>(workspace);
  const int copies = grid.apart() ? 1 : parallel.threads();
  std::memset(largest, 0, static_cast<size_t>(grid.scale_count * copies) * sizeof(uint32_t));
  grid.run(parallel, [&](int thread, int64_t element, int64_t count, int64_t scale) {
    uint32_t* mine = largest + (copies == 1 ? 0 : thread * grid.scale_count) + scale;
    if (grid.tile == 1) {
      columns(count, from(x, element), mine);
    } else {
      *mine = std::max(*mine, whole(count, from(x, element)));
    }
  });
  for (int64_t i = 0; i < grid.scale_count; ++i) {
    uint32_t bits = largest[i];
    for (int t = 1; t < copies; ++t) bits = std::max(bits, largest[t * grid.scale_count + i]);
    if (y.type == DType::f32) {
      static_cast<float*>(y.data)[i] = std::bit_cast<float>(bits);
    } else {
      static_cast<bf16*>(y.data)[i] = bf16(std::bit_cast<float>(bits));
    }
  }
}

void RowKernels::quantize(const Tiles& tiles, In x, In scale, Out q, Parallel& parallel) const {
  const Grid grid(tiles);
  const int way = quantize_way(x, scale, q);
  const int format = q.type == DType::f8e4m3fn ? 0 : 1;
  const auto whole = table_.quantize[way][format];
  const auto columns = table_.quantize_columns[way][format];
  grid.run(parallel, [&](int, int64_t element, int64_t count, int64_t at) {
    if (grid.tile == 1) {
      columns(count, from(x, element), from(scale, at), from(q, element));
    } else {
      whole(count, from(x, element), value_at(scale, at), from(q, element));
    }
  });
}

void RowKernels::quantize_stochastic(const Tiles& tiles, In x, In scale, const int32_t* keys, uint64_t stream,
                                     Out q, Parallel& parallel) const {
  const Grid grid(tiles);
  const auto loop = table_.quantize_stochastic[quantize_way(x, scale, q)][q.type == DType::f8e4m3fn ? 0 : 1];
  LIGNUM_CHECK(!tiles.dims.empty(), "a scalar has no rows");
  int64_t row_size = 1;
  for (const int64_t d : tiles.dims.subspan(1)) row_size *= d;
  grid.run(parallel, [&](int, int64_t element, int64_t count, int64_t at) {
    while (count > 0) {
      const int64_t row = element / row_size, first = element % row_size;
      const int64_t n = std::min(count, row_size - first);
      const RowNoise noise{stream, static_cast<uint32_t>(keys[row]), first};
      loop(n, from(x, element), from(scale, at), grid.tile == 1 ? 1 : 0, noise, from(q, element));
      element += n;
      count -= n;
      if (grid.tile == 1) at += n;
    }
  });
}

void RowKernels::scale_tiles(const Tiles& tiles, In x, In scale, Out y, Parallel& parallel) const {
  const Grid grid(tiles);
  LIGNUM_CHECK(scale.type == x.type && y.type == x.type, "{} scaled by {} as {}", dtype_name(x.type),
               dtype_name(scale.type), dtype_name(y.type));
  const auto whole = table_.scale_tiles[edge_of(x.type)];
  const auto columns = table_.scale_columns[edge_of(x.type)];
  grid.run(parallel, [&](int, int64_t element, int64_t count, int64_t at) {
    if (grid.tile == 1) {
      columns(count, from(x, element), from(scale, at), from(y, element));
    } else {
      whole(count, from(x, element), value_at(scale, at), from(y, element));
    }
  });
}

void RowKernels::clip_gradient(const Tiles& tiles, In g, In x, In bound, Out out, Parallel& parallel) const {
  const Grid grid(tiles);
  LIGNUM_CHECK(bound.type == x.type && out.type == g.type, "a gradient of {} clipped as {} by {} to {}",
               dtype_name(g.type), dtype_name(x.type), dtype_name(bound.type), dtype_name(out.type));
  const auto whole = table_.clip_gradient[edge_of(g.type)][edge_of(x.type)];
  const auto columns = table_.clip_gradient_columns[edge_of(g.type)][edge_of(x.type)];
  grid.run(parallel, [&](int, int64_t element, int64_t count, int64_t at) {
    if (grid.tile == 1) {
      columns(count, from(g, element), from(x, element), from(bound, at), from(out, element));
    } else {
      whole(count, from(g, element), from(x, element), value_at(bound, at), from(out, element));
    }
  });
}

}  // namespace lignum::kernels
