#include "kernels/gemm_bf16.h"

#include <algorithm>

#include "base/round.h"

namespace lignum::kernels {
namespace {

// Best first.
constexpr const GemmBf16Path* kBf16Paths[] = {&kGemmAmx, &kGemmVdpbf16ps};

// Bytes of packed operands that L2 (2 MiB a core) is asked to keep: a block of the longer operand, and as
// much of the shorter one as passes by it again and again.
constexpr int64_t kLongBytes = 1 << 20, kShortBytes = 1 << 19;
constexpr int64_t kMostK = 2048;  // of one block of k
constexpr int64_t kPairLines = 2 * kTileLines;

// C is cut along its longer side. The shorter side's operand is packed once for all tasks (the pool takes
// part in that) or, where each task has a matrix of the batch to itself or threads have little to do, by each
// task; a task packs its blocks of the longer side's operand. So each operand is packed once, into L2 or
// shared memory.
struct Plan {
  bool long_rows = true;
  int64_t longer = 0, shorter = 0;
  int64_t k_blocks = 1, kc = 0;  // kc: a multiple of 32, and of scale_k, unless it is all of k
  bool shared = false;
  int64_t parts = 1;        // of the longer side
  int64_t block_lines = 0;  // of the longer side, in L2
  int64_t short_lines = 0;  // of the shorter side, between visits of a line of the longer
  // Bytes: the packed shorter operand, a task's block, the sums between blocks of k.
  int64_t short_bytes = 0, block_bytes = 0, partial_bytes = 0;

  Plan(const Gemm& g, int threads) {
    long_rows = g.m >= g.n;
    longer = std::max(g.m, g.n);
    shorter = std::min(g.m, g.n);
    k_blocks = tiles_of(g.k, kMostK);
    const int64_t unit = g.scale_k > 0 ? g.scale_k : kTileK;
    kc = k_blocks == 1 ? g.k : tiles_of(tiles_of(g.k, k_blocks), unit) * unit;
    k_blocks = tiles_of(g.k, kc);
    const int64_t line = round_up(kc, kTileK) * 2;
    const int64_t most = std::max(kPairLines, kLongBytes / line / kPairLines * kPairLines);
    parts = tiles_of(longer, most);
    // Under 64^3 products a hand-over costs more than it saves.
    shared = threads > 1 && g.batch == 1 && g.m * g.n * g.k >= 64 * 64 * 64;
    if (shared) parts = round_up(parts, 2 * threads);
    parts = std::min(parts, tiles_of(longer, kPairLines));
    block_lines = round_up(tiles_of(longer, parts), kPairLines);
    parts = tiles_of(longer, block_lines);
    short_lines = std::max(kPairLines, kShortBytes / line / kPairLines * kPairLines);
    short_bytes = packed_bytes(shorter, kc);
    block_bytes = packed_bytes(block_lines, kc);
    if (k_blocks > 1) partial_bytes = tiles_of(g.m, kPairLines) * tiles_of(g.n, kPairLines) * 4 * kTileBytes;
  }
};

// One matrix of the batch.
struct Matrices {
  const char* a;
  const char* b;
  char* c;
};

class Product {
 public:
  Product(const GemmBf16Path& path, const Gemm& g, const Plan& plan) : path_(path), g_(g), plan_(plan) {}

  // Lines of the longer (or shorter) side's operand, the `block`-th part of k.
  void pack(const Matrices& x, bool longer, int64_t line, int64_t lines, int64_t block, char* to) const {
    const int64_t k0 = block * plan_.kc;
    if (longer == plan_.long_rows) {
      const int64_t at = g_.trans_a ? k0 * g_.lda + line : line * g_.lda + k0;
      path_.pack_a(g_.a, x.a + at * dtype_size(g_.a), g_.lda, g_.trans_a, lines, k_of(block), to);
    } else {
      const int64_t at = g_.trans_b ? line * g_.ldb + k0 : k0 * g_.ldb + line;
      path_.pack_b(g_.b, x.b + at * dtype_size(g_.b), g_.ldb, !g_.trans_b, lines, k_of(block), to);
    }
  }

  // Lines first, ... of the longer side against all of the packed shorter one.
  void multiply(const Matrices& x, int64_t first, int64_t lines, int64_t block, const char* packed_short,
                const char* packed_long, float* partial) const {
    const int64_t panel = panel_bytes(k_of(block));
    const int64_t step = plan_.long_rows ? plan_.short_lines : plan_.shorter;
    const int64_t partial_row = tiles_of(g_.n, kPairLines) * 2 * 256;
    for (int64_t s = 0; s < plan_.shorter; s += step) {
      const int64_t count = std::min(step, plan_.shorter - s);
      const char* shorter = packed_short + s / kTileLines * panel;
      const int64_t row = plan_.long_rows ? first : s, column = plan_.long_rows ? s : first;
      TileProduct t;
      t.rows = plan_.long_rows ? lines : count;
      t.columns = plan_.long_rows ? count : lines;
      t.k_tiles = tiles_of(k_of(block), kTileK);
      t.a = plan_.long_rows ? packed_long : shorter;
      t.b = plan_.long_rows ? shorter : packed_long;
      t.a_panel = t.b_panel = panel;
      if (plan_.k_blocks > 1) {
        t.partial = partial + row / kTileLines * partial_row + column / kTileLines * 256;
        t.partial_row = partial_row;
      }
      t.add = block > 0;
      t.store = block + 1 < plan_.k_blocks;
      t.c = x.c + (row * g_.ldc + column) * dtype_size(g_.c);
      t.ldc = g_.ldc;
      t.c_is_bf16 = g_.c == DType::bf16;
      if (g_.row_scale != nullptr) {
        const int64_t tile = g_.scale_k > 0 ? block * plan_.kc / g_.scale_k : 0;
        t.row_scale = g_.row_scale + tile * g_.m + row;
        t.column_scale = g_.column_scale + tile * g_.n + column;
        t.scale_tiles = g_.scale_k / kTileK;
        t.row_scale_step = g_.m;
        t.column_scale_step = g_.n;
      }
      path_.multiply(t);
    }
  }

  void part(const Matrices& x, int64_t part, int64_t block, const char* packed_short, char* space,
            float* partial) const {
    const int64_t first = part * plan_.block_lines;
    const int64_t lines = std::min(plan_.block_lines, plan_.longer - first);
    pack(x, true, first, lines, block, space);
    multiply(x, first, lines, block, packed_short, space, partial);
  }

 private:
  int64_t k_of(int64_t block) const { return std::min(plan_.kc, g_.k - block * plan_.kc); }

  const GemmBf16Path& path_;
  const Gemm& g_;
  const Plan& plan_;
};

}  // namespace

const GemmBf16Path* gemm_bf16_path(Bf16Dot dot, const Gemm& g) {
  for (const GemmBf16Path* path : kBf16Paths) {
    if (path->dot == dot && path->refuses(g) == nullptr) return path;
  }
  return nullptr;
}

int64_t gemm_bf16_workspace(const Gemm& g, int threads) {
  const Plan plan(g, threads);
  if (plan.shared) return plan.short_bytes + plan.partial_bytes + plan.block_bytes * threads;
  return (plan.short_bytes + plan.partial_bytes + plan.block_bytes) * threads;
}

void gemm_bf16(const GemmBf16Path& path, const Gemm& g, const void* a, const void* b, void* c,
               void* workspace, Parallel& pool) {
  const Plan plan(g, pool.threads());
  const Product product(path, g, plan);
  char* base = static_cast<char*>(workspace);
  const auto matrices = [&](int64_t i) {
    return Matrices{static_cast<const char*>(a) + i * g.stride_a * dtype_size(g.a),
                    static_cast<const char*>(b) + i * g.stride_b * dtype_size(g.b),
                    static_cast<char*>(c) + i * g.stride_c * dtype_size(g.c)};
  };
  if (!plan.shared) {
    const int64_t bytes = plan.short_bytes + plan.partial_bytes + plan.block_bytes;
    pool.run(g.batch, [&](int64_t i, int thread) {
      char* packed_short = base + bytes * thread;
      auto* partial = reinterpret_cast<float*>(packed_short + plan.short_bytes);
      char* space = packed_short + plan.short_bytes + plan.partial_bytes;
      const Matrices x = matrices(i);
      for (int64_t block = 0; block < plan.k_blocks; ++block) {
        product.pack(x, false, 0, plan.shorter, block, packed_short);
        for (int64_t p = 0; p < plan.parts; ++p) product.part(x, p, block, packed_short, space, partial);
      }
    });
    return;
  }
  char* packed_short = base;
  auto* partial = reinterpret_cast<float*>(base + plan.short_bytes);
  char* spaces = base + plan.short_bytes + plan.partial_bytes;
  const Matrices x = matrices(0);
  for (int64_t block = 0; block < plan.k_blocks; ++block) {
    const int64_t panel = panel_bytes(std::min(plan.kc, g.k - block * plan.kc));
    pool.run(tiles_of(plan.shorter, kPairLines), [&](int64_t t, int) {
      const int64_t line = t * kPairLines;
      product.pack(x, false, line, std::min(kPairLines, plan.shorter - line), block,
                   packed_short + line / kTileLines * panel);
    });
    pool.run(plan.parts, [&](int64_t p, int thread) {
      product.part(x, p, block, packed_short, spaces + plan.block_bytes * thread, partial);
    });
  }
}

}  // namespace lignum::kernels
