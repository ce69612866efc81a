#include "comm/collective.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

namespace lignum::comm {
namespace {

bool is_sum(Kind kind) { return kind == Kind::reduce_scatter || kind == Kind::all_reduce; }

bool summable(DType t) { return t == DType::f32 || t == DType::bf16 || t == DType::f64 || t == DType::i32; }

Status check_sum_dtypes(const Collective& c) {
  const DType out = c.out_dtype.value_or(c.dtype);
  if (!summable(c.dtype)) {
    return internal_error("{}: sums take f32, bf16, f64 and i32", describe(c));
  }
  if (out != c.dtype && !(c.dtype == DType::bf16 && out == DType::f32)) {
    return internal_error("{}: out_dtype may differ from dtype for bf16 -> f32 only", describe(c));
  }
  if (out != c.dtype && c.in == c.out && c.in != nullptr) {
    return internal_error("{}: in place needs equal dtypes", describe(c));
  }
  if (c.maximum &&
      (c.kind != Kind::all_reduce || out != c.dtype || (c.dtype != DType::f32 && c.dtype != DType::bf16))) {
    return internal_error("{}: a maximum is an all_reduce of f32 or bf16, in one dtype", describe(c));
  }
  return {};
}

}  // namespace

const char* kind_name(Kind kind) {
  switch (kind) {
    case Kind::all_gather:
      return "all_gather";
    case Kind::reduce_scatter:
      return "reduce_scatter";
    case Kind::all_reduce:
      return "all_reduce";
    case Kind::broadcast:
      return "broadcast";
    case Kind::permute:
      return "permute";
    case Kind::barrier:
      return "barrier";
  }
  return "unknown";
}

bool same_call(const Collective& a, const Collective& b) {
  if (a.kind != b.kind || a.id != b.id) return false;
  if (a.kind == Kind::barrier) return true;
  const bool rows = a.kind == Kind::all_gather || a.kind == Kind::reduce_scatter;
  return a.dtype == b.dtype && a.outer == b.outer && a.local_rows == b.local_rows &&
         a.row_elems == b.row_elems &&
         (!is_sum(a.kind) ||
          (a.out_dtype.value_or(a.dtype) == b.out_dtype.value_or(b.dtype) && a.maximum == b.maximum)) &&
         (!rows || a.logical_rows == b.logical_rows) && (a.kind != Kind::broadcast || a.root == b.root) &&
         (a.kind != Kind::permute || a.shift == b.shift);
}

std::string describe(const Collective& c) {
  if (c.kind == Kind::barrier) return fmt::format("barrier id {}", c.id);
  std::string type(dtype_name(c.dtype));
  if (is_sum(c.kind) && c.out_dtype && *c.out_dtype != c.dtype) {
    type += fmt::format(" -> {}", dtype_name(*c.out_dtype));
  }
  std::string text = fmt::format("{} id {}, {}, outer {}, local_rows {}, row_elems {}", kind_name(c.kind),
                                 c.id, type, c.outer, c.local_rows, c.row_elems);
  if (c.kind == Kind::all_gather || c.kind == Kind::reduce_scatter) {
    text += fmt::format(", logical_rows {}", c.logical_rows);
  }
  if (c.maximum) text += ", maximum";
  if (c.kind == Kind::broadcast) text += fmt::format(", root {}", c.root);
  if (c.kind == Kind::permute) text += fmt::format(", shift {}", c.shift);
  return text;
}

Status check(const Collective& c, int group_size) {
  if (c.kind == Kind::barrier) return {};
  if (c.outer < 0 || c.local_rows < 0 || c.row_elems < 0) {
    return internal_error("{}: a size is negative", describe(c));
  }
  if (c.kind == Kind::all_gather || c.kind == Kind::reduce_scatter) {
    const bool empty = c.local_rows == 0 && c.logical_rows == 0;
    if (!empty && (c.logical_rows < 1 || c.logical_rows > group_size * c.local_rows)) {
      return internal_error("{}: logical_rows must be in 1..{} for {} ranks", describe(c),
                            group_size * c.local_rows, group_size);
    }
  }
  if (c.kind == Kind::broadcast && (c.root < 0 || c.root >= group_size)) {
    return internal_error("{}: root must be in 0..{}", describe(c), group_size - 1);
  }
  if (c.kind == Kind::permute && (c.shift < 0 || c.shift >= group_size)) {
    return internal_error("{}: shift must be in 0..{}", describe(c), group_size - 1);
  }
  if (c.kind == Kind::permute && c.shift != 0 && c.in == c.out && c.in != nullptr) {
    return internal_error("{}: not in place", describe(c));
  }
  if (is_sum(c.kind)) LIGNUM_RETURN_IF_ERROR(check_sum_dtypes(c));
  const bool any = c.outer * c.local_rows * c.row_elems > 0;
  // On a broadcast only the root's `in` is read; the transport, which knows who that is, checks it.
  if (any && (c.out == nullptr || (c.in == nullptr && c.kind != Kind::broadcast))) {
    return internal_error("{}: a buffer is null", describe(c));
  }
  return {};
}

Status check_on_rank(const Collective& c, int group_size, int position) {
  LIGNUM_RETURN_IF_ERROR(check(c, group_size));
  const bool any = c.outer * c.local_rows * c.row_elems > 0;
  if (c.kind == Kind::broadcast && position == c.root && any && c.in == nullptr) {
    return internal_error("{}: the root's buffer is null", describe(c));
  }
  return {};
}

Status ranks_differ(uint64_t number, std::span<const int> group, int a, const Collective& of_a, int b,
                    const Collective& of_b) {
  return internal_error("ranks differ at collective {} of group [{}]: rank {} runs {}; rank {} runs {}",
                        number, fmt::join(group, ", "), group[static_cast<size_t>(a)], describe(of_a),
                        group[static_cast<size_t>(b)], describe(of_b));
}

Result<int> position_in_group(std::span<const int> ranks, int rank, int size) {
  const bool ascending =
      std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end();
  const auto self = std::find(ranks.begin(), ranks.end(), rank);
  if (!ascending || self == ranks.end() || ranks.front() < 0 || ranks.back() >= size) {
    return internal_error("rank {}: group [{}] must list ranks in 0..{}, ascending, this one among them",
                          rank, fmt::join(ranks, ", "), size - 1);
  }
  return static_cast<int>(self - ranks.begin());
}

Rows rows_of(const Collective& c, int i) {
  const int64_t begin = std::min(i * c.local_rows, c.logical_rows);
  return {begin, std::min(begin + c.local_rows, c.logical_rows)};
}

std::vector<int> axis_group(std::span<const int> mesh, std::span<const int> axes, int rank) {
  std::vector<int> group{0};
  int stride = 1;
  for (const int n : mesh) stride *= n;
  LIGNUM_CHECK(rank >= 0 && rank < stride, "rank {} of {}", rank, stride);
  for (size_t axis = 0; axis < mesh.size(); ++axis) {
    stride /= mesh[axis];
    const bool inside = std::find(axes.begin(), axes.end(), static_cast<int>(axis)) != axes.end();
    std::vector<int> next;
    for (const int base : group) {
      if (inside) {
        for (int i = 0; i < mesh[axis]; ++i) next.push_back(base + i * stride);
      } else {
        next.push_back(base + rank / stride % mesh[axis] * stride);
      }
    }
    group = std::move(next);
  }
  return group;
}

}  // namespace lignum::comm
