// cache_write: the rows of new tokens into a cache that a generating step keeps.
//   cache [B, P, H, D] f32 or bf16, x [B, T, H, D] of the same dtype, start [B] i32, count [B] i32 -> like
//   cache
// out[b, start[b] + t] = x[b, t] for t < count[b]; all else as in cache, whose buffer the result takes.
// On a CPU rows that do not fit (0 <= count <= T, 0 <= start <= P - count) are a user error; on a PJRT device
// and in the decomposition what lies outside the cache is dropped.
#include <cstring>

#include "kernels/cached_attention.h"
#include "ops/facets.h"

namespace lignum::ops {
namespace {

struct CacheWrite {
  static constexpr std::string_view kName = "cache_write";

  static Result<Types> infer(std::span<const Type> in, const Attrs&) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 4));
    const Type &cache = in[0], &x = in[1];
    LIGNUM_RETURN_IF_ERROR(expect_edge(cache, "cache"));
    LIGNUM_RETURN_IF_ERROR(expect_rank(cache, "cache", 4));
    LIGNUM_RETURN_IF_ERROR(expect_dtype(x, "x", {cache.dtype}));
    LIGNUM_RETURN_IF_ERROR(expect_rank(x, "x", 4));
    LIGNUM_RETURN_IF_ERROR(expect_dims(x, "x", {cache.dims[0], x.dims[1], cache.dims[2], cache.dims[3]},
                                       "those of cache but for the positions"));
    for (size_t i = 2; i < 4; ++i) {
      const std::string_view name = i == 2 ? "start" : "count";
      LIGNUM_RETURN_IF_ERROR(expect_dtype(in[i], name, {DType::i32}));
      LIGNUM_RETURN_IF_ERROR(expect_dims(in[i], name, {cache.dims[0]}, "the first dim of cache"));
    }
    return Types{cache};
  }

  static constexpr ByDecomposition grad{};

  static ShardRule partition(const Site&) {
    return {.in = {{0, -1, 1, 2}, {0, -1, 1, 2}, {0}, {0}}, .out = {{0, -1, 1, 2}}};
  }

  // The cache stays where it is: what moves are the tokens' rows.
  static Cost cost(const Site& s) {
    Cost c;
    c.work = Work::copy;
    c.read = c.write = static_cast<double>(s.in[1].bytes());
    return c;
  }

  static Values decompose(Builder& b, const Site& s, std::span<const Value> in) {
    Arith m(b);
    const Dims& cache = s.in[0].dims;
    const Dims hot = {cache[0], cache[1], s.in[1].dims[1]};  // [B, P, T]
    const Value t = m.iota(hot, 2);
    const Value position = m.add(t, b.broadcast(in[2], hot, {0}));
    const Value here = m.f32(m.compare("eq", m.iota(hot, 1), position));
    const Value used = m.compare("lt", t, b.broadcast(in[3], hot, {0}));
    const Value one = m.select(used, here, m.like(here, 0));
    const Value rows = m.matmul(one, m.f32(in[1]), {2}, {1}, {0}, {0});  // [B, P, H, D]
    const Value any = b.broadcast(b.reduce("max", one, {2}), cache, {0, 1});
    const Value written = m.compare("gt", any, m.like(any, 0.5));
    return {m.select(written, b.convert(rows, s.out[0].dtype), in[0])};
  }

  static void reference(const RefCall& c) {
    const Dims &cache = c.site.in[0].dims, &x = c.site.in[1].dims;
    const auto row = static_cast<size_t>(cache[2] * cache[3]);
    c.out[0].data = c.in[0]->data;
    for (int64_t b = 0; b < cache[0]; ++b) {
      const auto start = static_cast<int64_t>(c.in[2]->data[static_cast<size_t>(b)]);
      const auto count = static_cast<int64_t>(c.in[3]->data[static_cast<size_t>(b)]);
      for (int64_t t = 0; t < count; ++t) {
        const double* from = c.in[1]->data.data() + static_cast<size_t>(b * x[1] + t) * row;
        std::copy(from, from + row,
                  c.out[0].data.data() + static_cast<size_t>(b * cache[1] + start + t) * row);
      }
    }
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    const Dims &cache = c.site.in[0].dims, &x = c.site.in[1].dims;
    const auto* start = data_in<int32_t>(c, 2);
    const auto* count = data_in<int32_t>(c, 3);
    LIGNUM_RETURN_IF_ERROR(kernels::cached_rows_fit(cache[0], x[1], cache[1], start, count));
    copy_through(c, 0, 0);
    const int64_t row = cache[2] * cache[3] * dtype_size(c.site.in[0].dtype);
    c.parallel.run(cache[0], [&](int64_t b, int) {
      std::memcpy(data_out<char>(c, 0) + (b * cache[1] + start[b]) * row,
                  data_in<char>(c, 1) + b * x[1] * row, static_cast<size_t>(count[b] * row));
    });
    return {};
  }

  static Buffers buffers(const Site&) { return {.in_place = {{0, 0}}}; }

  // A scatter of rows, which XLA makes in place; a token beyond its row's count goes to a position past the
  // cache, and is dropped there.
  static std::vector<std::string> emit(const EmitCall& c) {
    const Dims& x = c.site.in[1].dims;
    const Type position{DType::i32, {x[0], x[1]}, {}};
    const std::string type = mlir_type(position), row_type = mlir_type(c.site.in[2]);
    const auto line = [&](const std::string& expression) {
      const std::string name = c.out.fresh();
      c.out.line(name + " = " + expression);
      return name;
    };
    const auto over_tokens = [&](const std::string& v) {
      return line(fmt::format("stablehlo.broadcast_in_dim {}, dims = [0] : ({}) -> {}", v, row_type, type));
    };
    const std::string t = line(fmt::format("stablehlo.iota dim = 1 : {}", type));
    const std::string b = line(fmt::format("stablehlo.iota dim = 0 : {}", type));
    const std::string at = line(fmt::format("stablehlo.add {}, {} : {}", over_tokens(c.in[2]), t, type));
    const std::string past =
        line(fmt::format("stablehlo.constant dense<{}> : {}", c.site.in[0].dims[1], type));
    const std::string outside = line(fmt::format("stablehlo.add {}, {} : {}", past, t, type));
    Type predicate = position;
    predicate.dtype = DType::pred;
    const std::string used = line(fmt::format("stablehlo.compare LT, {}, {} : ({}, {}) -> {}", t,
                                              over_tokens(c.in[3]), type, type, mlir_type(predicate)));
    const std::string where = line(fmt::format("stablehlo.select {}, {}, {} : ({}, {}, {}) -> {}", used, at,
                                               outside, mlir_type(predicate), type, type, type));
    Type index = position;
    index.dims.push_back(1);
    const auto as_column = [&](const std::string& v) {
      return line(fmt::format("stablehlo.reshape {} : ({}) -> {}", v, type, mlir_type(index)));
    };
    const std::string rows = as_column(b), positions = as_column(where);
    Type pair = index;
    pair.dims.back() = 2;
    const std::string indices =
        line(fmt::format("stablehlo.concatenate {}, {}, dim = 2 : ({}, {}) -> {}", rows, positions,
                         mlir_type(index), mlir_type(index), mlir_type(pair)));
    const std::string written = c.out.fresh();
    const std::string scalar = mlir_type(Type{c.site.in[0].dtype, {}, {}});
    c.out.line(fmt::format(
        "{} = \"stablehlo.scatter\"({}, {}, {}) <{{indices_are_sorted = false, scatter_dimension_numbers = "
        "#stablehlo.scatter<update_window_dims = [2, 3], inserted_window_dims = [0, 1], "
        "scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 2>, unique_indices = true}}> ({{",
        written, c.in[0], indices, c.in[1]));
    const std::string old_value = c.out.fresh(), new_value = c.out.fresh();
    c.out.line(fmt::format("^bb0({}: {}, {}: {}):", old_value, scalar, new_value, scalar));
    c.out.line(fmt::format("stablehlo.return {} : {}", new_value, scalar));
    c.out.line(fmt::format("}}) : ({}, {}, {}) -> {}", mlir_type(c.site.in[0]), mlir_type(pair),
                           mlir_type(c.site.in[1]), mlir_type(c.site.out[0])));
    return {written};
  }

  // None of real size: what a step costs depends on where its rows stand, which no size tells. It is priced
  // by its bytes.
  static std::vector<Case> cases() {
    const auto make = [](std::string name, DType dtype, int64_t batch, int64_t capacity, int64_t tokens,
                         int64_t heads, int64_t dim) {
      return Case{std::move(name),
                  {tensor(dtype, {batch, capacity, heads, dim}), tensor(dtype, {batch, tokens, heads, dim}),
                   tensor(DType::i32, {batch}, Fill::position, static_cast<double>(capacity - tokens + 1)),
                   tensor(DType::i32, {batch}, Fill::position, static_cast<double>(tokens + 1))},
                  {}};
    };
    constexpr DType f32 = DType::f32, bf16 = DType::bf16;
    return {
        make("one_row", f32, 1, 1, 1, 1, 8), make("odd", f32, 3, 7, 1, 2, 5),
        make("chunk", f32, 2, 9, 4, 2, 6),   make("misaligned", f32, 2, 5, 5, 3, 37),
        make("bf16", bf16, 4, 11, 3, 2, 16), make("empty", f32, 0, 5, 1, 2, 4),
    };
  }
};

}  // namespace

LIGNUM_DEFINE_OP(cache_write, CacheWrite)

}  // namespace lignum::ops
