#include "kernels/gemm.h"

#include <algorithm>
#include <cstring>

#include "base/round.h"
#include "kernels/gemm_bf16.h"
#include "kernels/gemm_path.h"

namespace lignum::kernels {
namespace {

// Best first within an ISA.
constexpr const GemmPath* kGemmPaths[] = {&kGemmLinesAvx512, &kGemmAvx512,      &kGemmLinesAvx2,
                                          &kGemmAvx2,        &kGemmLinesScalar, &kGemmScalar};

bool by_fp16(Choice choice, const Gemm& g) {
  return choice.fp8_accumulation == Fp8Accumulation::fp16_64 && kGemmFloat8Fp16.refuses(g) == nullptr;
}

const GemmPath& path_for(Choice choice, const Gemm& g) {
  if (by_fp16(choice, g)) return kGemmFloat8Fp16;
  for (const GemmPath* path : kGemmPaths) {
    if (path->isa == choice.isa && path->refuses(g) == nullptr) return *path;
  }
  LIGNUM_CHECK(false, "no GEMM path of {} takes m={} n={} k={}", isa_name(choice.isa), g.m, g.n, g.k);
  __builtin_unreachable();
}

Status check_dtype(const char* which, DType dtype, bool operand) {
  if (dtype == DType::f32 || dtype == DType::bf16 || (operand && is_float8(dtype))) return {};
  return user_error("gemm: {} is {}; f32{} bf16{} allowed: convert it first", which, dtype_name(dtype),
                    operand ? "," : " and", operand ? ", f8e4m3fn and f8e5m2 are" : " are");
}

Status check_leading(const char* which, int64_t ld, int64_t columns, int64_t rows) {
  if (rows <= 1 || ld >= columns) return {};
  return user_error("gemm: {} is {}; stored rows have {} elements, so at least {} is allowed", which, ld,
                    columns, columns);
}

// C cut into parts along its longer side. Where the cuts fall does not matter to the bits.
struct Cut {
  bool rows = true;
  int64_t parts = 1, unit = 1;
};

Cut cut_for(const Gemm& g, const GemmPath& path, int threads) {
  Cut cut;
  cut.rows = g.m >= g.n;
  cut.unit = cut.rows ? path.row_unit : path.column_unit;
  // Two parts a thread: each part packs the whole shorter operand for itself, but a core that others use for
  // a while then holds up only half a share. Under 64^3 products a hand-over costs more than it saves.
  if (threads == 1 || g.m * g.n * g.k < int64_t{64} * 64 * 64) return cut;
  const int64_t wanted = (int64_t{2} * threads + g.batch - 1) / g.batch;
  cut.parts = std::clamp<int64_t>(wanted, 1, ((cut.rows ? g.m : g.n) + cut.unit - 1) / cut.unit);
  return cut;
}

void zero(const Gemm& g, void* c) {
  const int64_t size = dtype_size(g.c);
  for (int64_t b = 0; b < g.batch; ++b) {
    for (int64_t i = 0; i < g.m; ++i) {
      std::memset(static_cast<char*>(c) + (b * g.stride_c + i * g.ldc) * size, 0,
                  static_cast<size_t>(g.n * size));
    }
  }
}

}  // namespace

Status gemm_supported(const Gemm& g) {
  LIGNUM_RETURN_IF_ERROR(check_dtype("a", g.a, true));
  LIGNUM_RETURN_IF_ERROR(check_dtype("b", g.b, true));
  LIGNUM_RETURN_IF_ERROR(check_dtype("c", g.c, false));
  if ((g.row_scale == nullptr) != (g.column_scale == nullptr))
    return user_error("gemm: one of row_scale and column_scale is given; give both or neither");
  if (g.scale_k < 0 || (g.scale_k > 0 && (g.row_scale == nullptr || g.k % g.scale_k != 0)))
    return user_error("gemm: scale_k is {}; it divides k, {}, and goes with row_scale and column_scale",
                      g.scale_k, g.k);
  for (auto [name, size] : {std::pair{"m", g.m}, {"n", g.n}, {"k", g.k}, {"batch", g.batch}}) {
    if (size < 0) return user_error("gemm: {} is {}; sizes are 0 or more", name, size);
  }
  LIGNUM_RETURN_IF_ERROR(check_leading("lda", g.lda, g.trans_a ? g.m : g.k, g.trans_a ? g.k : g.m));
  LIGNUM_RETURN_IF_ERROR(check_leading("ldb", g.ldb, g.trans_b ? g.k : g.n, g.trans_b ? g.n : g.k));
  LIGNUM_RETURN_IF_ERROR(check_leading("ldc", g.ldc, g.n, g.m));
  return {};
}

GemmScratch gemm_scratch(const Gemm& g) {
  const int64_t kc = std::min(g.k, kGemmKc), nc = std::min(g.n, kGemmNc), mc = std::min(g.m, kGemmMc);
  GemmScratch s;
  // Enough for every ISA: panels of 14 rows take 16 floats, of 6 take 8, of 4 take 4.
  s.b = round_up(std::max((mc + 13) / 14 * 16, (mc + 5) / 6 * 8) * kc, 16);
  s.partial = s.b + round_up(nc, 32) * kc;
  s.end = s.partial;
  if (g.c == DType::bf16 && g.k > std::min(kGemmKc, scaled_tile(g)))
    s.end += round_up(std::min(g.m, kGemmPartialRows) * nc, 16);
  // A in fp32, for the path that reads B's lines as they lie.
  if (g.m <= kGemmLinesRows) s.end = std::max(s.end, round_up(g.m * g.k, 16));
  return s;
}

GemmScratch float8_scratch(const Gemm& g) {
  const int64_t block = float8_block(scaled_tile(g)), pairs = (std::min(g.k, block) + 1) / 2;
  const int64_t nc = std::min(g.n, kGemmNc), mc = std::min(g.m, kGemmMc);
  GemmScratch s;
  s.a = kGemmMc + kGemmNc;  // what undoes the powers of rows and columns
  s.b = s.a + (mc + 13) / 14 * 16 * pairs;
  s.partial = s.b + round_up(nc, 32) * pairs;
  s.end = s.partial;
  if (g.c == DType::bf16 && g.k > block) s.end += round_up(std::min(g.m, kGemmPartialRows) * nc, 16);
  return s;
}

int64_t gemm_workspace(const Gemm& g, int threads) {
  int64_t end = gemm_scratch(g).end;
  if (is_float8(g.a) && is_float8(g.b)) end = std::max(end, float8_scratch(g).end);
  const int64_t bytes = end * static_cast<int64_t>(sizeof(float)) * threads;
  if (g.a == DType::f32 || g.b == DType::f32 || g.m == 0 || g.n == 0 || g.k == 0) return bytes;
  return std::max(bytes, gemm_bf16_workspace(g, threads));
}

void gemm(Choice choice, const Gemm& g, const void* a, const void* b, void* c, void* workspace,
          Parallel& pool) {
  if (g.batch == 0 || g.m == 0 || g.n == 0) return;
  if (g.k == 0) return zero(g, c);
  const bool fp16 = by_fp16(choice, g);
  if (const GemmBf16Path* path = fp16 ? nullptr : gemm_bf16_path(choice.bf16_dot, g)) {
    return gemm_bf16(*path, g, a, b, c, workspace, pool);
  }
  const GemmPath& path = path_for(choice, g);
  const GemmScratch scratch = fp16 ? float8_scratch(g) : gemm_scratch(g);
  const Cut cut = cut_for(g, path, pool.threads());
  const int64_t whole = cut.rows ? g.m : g.n;
  const int64_t units = (whole + cut.unit - 1) / cut.unit;
  const auto task = [&](int64_t t, int thread) {
    const int64_t matrix = t / cut.parts, part = t % cut.parts;
    const int64_t begin = units * part / cut.parts * cut.unit;
    const int64_t end = std::min(units * (part + 1) / cut.parts * cut.unit, whole);
    path.block(g, scratch, static_cast<const char*>(a) + matrix * g.stride_a * dtype_size(g.a),
               static_cast<const char*>(b) + matrix * g.stride_b * dtype_size(g.b),
               static_cast<char*>(c) + matrix * g.stride_c * dtype_size(g.c), cut.rows ? begin : 0,
               cut.rows ? end - begin : g.m, cut.rows ? 0 : begin, cut.rows ? g.n : end - begin,
               static_cast<float*>(workspace) + scratch.end * thread);
  };
  pool.run(g.batch * cut.parts, task);
}

void gemm_serial(Choice choice, const Gemm& g, const void* a, const void* b, void* c, void* workspace) {
  Serial serial;
  gemm(choice, g, a, b, c, workspace, serial);
}

}  // namespace lignum::kernels
