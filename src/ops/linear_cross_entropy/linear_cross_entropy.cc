// linear_cross_entropy: the head and the loss in one, so that no reader holds the logits of all tokens.
//   hidden [..., E] f32 or bf16, weight [V, E] as hidden, labels [...] i32
//   attributes tile: the tokens whose logits are held at a time; gradients
//   -> loss_sum f32[], count f32[]; with gradients also dhidden like hidden, dweight like weight
//   attribute z_loss > 0, if any -> last, z_loss_sum f32[]
// logits = hidden weight^T, loss_sum, count and z_loss_sum as cross_entropy gives them for these; dhidden and
// dweight are the gradients of loss_sum + z_loss_sum, that is for a cotangent of 1 of each.
//
// The gradients come with the loss because they are linear in its cotangent: with a tile's logits at hand,
// softmax minus one-hot takes their place, and two products later the tile is done. (Hsu et al., "Liger
// Kernel", 2024.) The other way is to make the logits anew for the gradients (Wijmans et al., "Cut Your
// Losses", 2024): a fourth product of the head's size, where this way reads and writes the sum of dweight
// once a tile. For 2048 tokens 576 wide and 32000 words that is 75 GFLOP against 8 times 147 MB: 220 ms
// against 50 ms at the 340 GFLOP/s and 24 GB/s that two cores with AVX-512 were measured to have.
//
// Logits are f32 in a tile. Softmax minus one-hot is rounded to hidden's dtype, in which both products take
// it. A tile's part of dweight is one GEMM, tiles are added in f32 in ascending order, and the sum is rounded
// once. With f32 and tiles of 256 tokens these are the bits of matmul and cross_entropy, whose GEMM adds in
// blocks of 256 as well.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/round.h"
#include "kernels/gemm.h"
#include "ops/cross_entropy/z_loss.h"
#include "ops/emit.h"
#include "ops/facets.h"
#include "ops/gradient.h"

namespace lignum::ops {
namespace {

// Rows of dweight that are one task: their part from one tile stays in L2 until it is added.
constexpr int64_t kVocabBlock = 512;

struct HeadForm {
  bool gradients;
  double z_loss;
  explicit HeadForm(const Attrs& a) : gradients(a.get<bool>("gradients")), z_loss(z_loss_of(a)) {}
};

// The results for tokens [n, E], but dweight in f32.
Values of_tokens(Builder& b, Value hidden, Value weight, Value labels, const HeadForm& form) {
  Arith m(b);
  const Value logits = m.matmul(hidden, weight, {1}, {1});
  const Dims dims = b.type(logits).dims;
  const Value largest = m.max_last(logits);
  const Value lse = m.add(m.log(m.sum_last(m.exp(m.sub(logits, m.over_row(largest, dims))))), largest);
  const Value is_label = m.one_hot(labels, dims[1]);
  const Value at_label = m.sum_last(m.select(is_label, logits, m.like(logits, 0)));
  const Value counts = m.compare("ne", labels, m.like(labels, kernels::kIgnoredLabel));
  const Value loss = m.select(counts, m.sub(lse, at_label), m.like(lse, 0));
  Values out = {b.reduce("sum", loss, {0}), b.reduce("sum", m.f32(counts), {0})};
  if (form.gradients) {
    const Value p = m.exp(m.sub(logits, m.over_row(lse, dims)));
    Value slope = m.sub(p, m.f32(is_label));
    if (form.z_loss > 0) slope = m.add(slope, m.mul(p, m.over_row(m.mul(lse, 2 * form.z_loss), dims)));
    const Value dlogits =
        b.convert(m.select(m.over_row(counts, dims), slope, m.like(logits, 0)), b.type(hidden).dtype);
    out.push_back(b.convert(m.matmul(dlogits, weight, {1}, {0}), b.type(hidden).dtype));
    out.push_back(m.matmul(dlogits, hidden, {0}, {0}));
  }
  if (form.z_loss > 0) {
    const Value squares = m.select(counts, m.mul(lse, lse), m.like(lse, 0));
    out.push_back(m.mul(b.reduce("sum", squares, {0}), form.z_loss));
  }
  return out;
}

// The same for `tiles` tiles, hidden [tiles, n, E] and labels [tiles, n]: a loop that adds up, dhidden
// stacked.
ir::Graph loop_over_tiles(const Type& hidden, const Type& weight, const Type& labels, const HeadForm& form) {
  ir::Graph g;
  Builder b(g);
  const Value h = g.param("hidden", hidden), w = g.param("weight", weight), l = g.param("labels", labels);
  const auto row = [](Type t) {
    t.dims.erase(t.dims.begin());
    return t;
  };
  const Type scalar{DType::f32, {}, {}};
  std::vector<Type> sums = {scalar, scalar};
  if (form.gradients) sums.push_back({DType::f32, weight.dims, {}});
  if (form.z_loss > 0) sums.push_back(scalar);
  auto body = std::make_shared<ir::Graph>();
  Builder inner(*body);
  ir::Node scan;
  scan.kind = "scan";
  Values before;
  for (size_t i = 0; i < sums.size(); ++i) {
    before.push_back(body->param(fmt::format("sum{}", i), sums[i]));
    scan.inputs.push_back(b.constant(DType::f32, sums[i].dims, 0));
  }
  const Value tile = body->param("hidden", row(hidden)), tile_labels = body->param("labels", row(labels));
  const Value whole_weight = body->param("weight", weight);
  scan.inputs.insert(scan.inputs.end(), {h, l, w});
  const Values made = of_tokens(inner, tile, whole_weight, tile_labels, form);
  Values parts = made;
  if (form.gradients) parts.erase(parts.begin() + 2);  // dhidden is no sum
  for (size_t i = 0; i < sums.size(); ++i)
    body->output(fmt::format("sum{}", i), inner.elementwise("add", {before[i], parts[i]}));
  scan.types = sums;
  if (form.gradients) {
    body->output("dhidden", made[2]);
    scan.types.push_back(hidden);
  }
  scan.attrs = ir::scan_attrs(
      {hidden.dims[0], false, static_cast<int64_t>(sums.size()), 2, 1, static_cast<int64_t>(form.gradients)});
  scan.body = std::move(body);
  const int32_t id = g.add(std::move(scan));
  // In the order of of_tokens: dhidden, the scan's last, before dweight.
  std::vector<int32_t> order(sums.size());
  std::iota(order.begin(), order.end(), 0);
  if (form.gradients) order.insert(order.begin() + 2, static_cast<int32_t>(sums.size()));
  for (const int32_t r : order) g.output(fmt::format("out{}", r), {id, r});
  return g;
}

// Sizes, the GEMMs of a tile of `rows` tokens, and the workspace.
struct HeadPlan {
  int64_t tokens, width, vocab, tile;
  bool gradients;
  double z_loss;
  DType dtype;
  // The logits, and over them dlogits: rows of that many elements, narrow ones at the beginning of f32 ones.
  int64_t dlogits_stride;
  int64_t sum, losses, squares, scratch;  // bytes from the workspace's start

  explicit HeadPlan(const Site& s)
      : tokens(product(s.in[2].dims)),
        width(s.in[1].dims[1]),
        vocab(s.in[1].dims[0]),
        tile(std::min(tokens, s.attrs.get<int64_t>("tile"))),
        gradients(s.attrs.get<bool>("gradients")),
        z_loss(z_loss_of(s.attrs)),
        dtype(s.in[0].dtype) {
    const bool narrow = gradients && dtype != DType::f32;  // f32: the sum is dweight itself
    sum = round_up(tile * vocab * 4, 64);
    dlogits_stride = narrow ? 2 * vocab : vocab;
    losses = sum + (narrow && tokens > tile ? round_up(vocab * width * 4, 64) : 0);
    const int64_t blocks = round_up((tokens + kernels::kLossBlock) / kernels::kLossBlock * 8, 64);
    squares = losses + blocks;
    scratch = squares + (z_loss > 0 ? blocks : 0);
  }

  kernels::Gemm make_logits(int64_t rows) const {
    return {.m = rows,
            .n = vocab,
            .k = width,
            .trans_b = true,
            .a = dtype,
            .b = dtype,
            .c = DType::f32,
            .lda = width,
            .ldb = width,
            .ldc = vocab};
  }
  kernels::Gemm make_dhidden(int64_t rows) const {
    return {.m = rows,
            .n = width,
            .k = vocab,
            .a = dtype,
            .b = dtype,
            .c = dtype,
            .lda = dlogits_stride,
            .ldb = width,
            .ldc = width};
  }
  kernels::Gemm make_dweight(int64_t rows, int64_t words, DType c) const {
    return {.m = words,
            .n = width,
            .k = rows,
            .trans_a = true,
            .a = dtype,
            .b = dtype,
            .c = c,
            .lda = dlogits_stride,
            .ldb = width,
            .ldc = width};
  }
  // Of a thread that adds up dweight: a block's part, then GEMM's own.
  int64_t part_bytes() const { return round_up(std::min(vocab, kVocabBlock) * width * 4, 64); }
  int64_t block_bytes() const {
    const kernels::Gemm g = make_dweight(tile, std::min(vocab, kVocabBlock), DType::f32);
    return part_bytes() + kernels::gemm_workspace(g, 1);
  }
  int64_t workspace(int threads) const {
    int64_t most = kernels::gemm_workspace(make_logits(tile), threads);
    if (gradients) {
      most = std::max({most, kernels::gemm_workspace(make_dhidden(tile), threads), block_bytes() * threads,
                       kernels::gemm_workspace(make_dweight(tile, vocab, dtype), threads)});
    }
    return scratch + most;
  }
};

struct LinearCrossEntropy {
  static constexpr std::string_view kName = "linear_cross_entropy";

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 3));
    LIGNUM_RETURN_IF_ERROR(expect_edge(in[0], "hidden"));
    LIGNUM_RETURN_IF_ERROR(expect_last_dim(in[0], "hidden"));
    LIGNUM_RETURN_IF_ERROR(expect_dtype(in[1], "weight", {in[0].dtype}));
    LIGNUM_RETURN_IF_ERROR(expect_rank(in[1], "weight", 2));
    if (in[1].dims[0] < 1 || in[1].dims[1] != in[0].dims.back())
      return user_error("weight is {}; it must be [vocabulary, {}], as wide as hidden, {}",
                        ir::to_string(in[1]), in[0].dims.back(), ir::to_string(in[0]));
    LIGNUM_RETURN_IF_ERROR(expect_dtype(in[2], "labels", {DType::i32}));
    LIGNUM_RETURN_IF_ERROR(expect_dims(in[2], "labels", without_last(in[0].dims), "one label a token"));
    LIGNUM_RETURN_IF_ERROR(int_in(attrs, "tile", kernels::kLossBlock, int64_t{1} << 30).status());
    const int64_t tile = attrs.get<int64_t>("tile");
    if (tile % kernels::kLossBlock != 0)
      return user_error("attribute tile={}: a multiple of {}, the block in which losses are added", tile,
                        kernels::kLossBlock);
    LIGNUM_ASSIGN_OR_RETURN(const bool gradients, bool_attr(attrs, "gradients"));
    LIGNUM_ASSIGN_OR_RETURN(const double z_loss, z_loss_in(attrs));
    const Type scalar{DType::f32, {}, {}};
    Types out{scalar, scalar};
    if (gradients) out.insert(out.end(), {in[0], in[1]});
    if (z_loss > 0) out.push_back(scalar);
    return out;
  }

  static Gradients grad(const GradCall& c) {
    const bool gradients = c.site.attrs.get<bool>("gradients");
    if (gradients && (c.cotangents[2] || c.cotangents[3])) return gradient_by_decomposition(get_op(kName), c);
    if (z_loss_of(c.site.attrs) > 0) {
      // The two sums are one here: another weight of either is the decomposition's business.
      if (c.cotangents[0] != c.cotangents.back()) return gradient_by_decomposition(get_op(kName), c);
    }
    if (!c.cotangents[0]) return {std::nullopt, std::nullopt, std::nullopt};  // the count alone
    Values out(c.outputs.begin(), c.outputs.end());
    if (!gradients) {
      Attrs attrs = c.site.attrs;
      attrs.set("gradients", true);
      out = c.build.add_all(kName, {c.inputs.begin(), c.inputs.end()}, attrs);
    }
    return {scaled(c.build, out[2], *c.cotangents[0]), scaled(c.build, out[3], *c.cotangents[0]),
            std::nullopt};
  }

  // The vocabulary and the width are whole on each rank: a token's softmax needs all of its logits.
  static ShardRule partition(const Site& s) {
    auto hidden = factors(s.in[0].rank());
    hidden.back() = -1;
    ShardRule rule{.in = {hidden, {-1, -1}, factors(s.in[2].rank())}, .out = {{}, {}}};
    const HeadForm form(s.attrs);
    if (form.gradients) rule.out.insert(rule.out.end(), {hidden, {-1, -1}});
    if (form.z_loss > 0) rule.out.emplace_back();
    return rule;
  }

  static Cost cost(const Site& s) {
    Cost c = streaming_cost(s, 0);
    const HeadPlan p(s);
    c.work = Work::matmul;
    c.batch = p.gradients ? 3 : 1;
    c.m = p.tokens;
    c.n = p.vocab;
    c.k = p.width;
    const double logits = static_cast<double>(p.tokens) * static_cast<double>(p.vocab);
    c.flops = 2.0 * static_cast<double>(c.batch) * logits * static_cast<double>(p.width);
    c.transcendentals = (p.gradients ? 2 : 1) * logits;
    if (p.gradients) c.inner = p.dtype;
    return c;
  }

  static Values decompose(Builder& b, const Site& s, std::span<const Value> in) {
    const Rows r = rows_of(s.in[0]);
    const Value hidden = b.reshape(in[0], {r.n, r.d}), labels = b.reshape(in[2], {r.n});
    const HeadForm form(s.attrs);
    Values out = of_tokens(b, hidden, in[1], labels, form);
    if (form.gradients) {
      out[2] = b.reshape(out[2], s.in[0].dims);
      out[3] = b.convert(out[3], s.in[1].dtype);
    }
    return out;
  }

  static void reference(const RefCall& c) {
    const Rows r = rows_of(c.site.in[0]);
    const int64_t vocab = c.site.in[1].dims[0];
    const HeadForm form(c.site.attrs);
    std::vector<double> logits(static_cast<size_t>(vocab));
    for (int64_t i = 0; i < r.n; ++i) {
      const double* h = c.in[0]->data.data() + i * r.d;
      const auto word = [&](int64_t v) { return c.in[1]->data.data() + v * r.d; };
      for (int64_t v = 0; v < vocab; ++v) {
        double& logit = logits[static_cast<size_t>(v)];
        logit = 0;
        for (int64_t k = 0; k < r.d; ++k) logit += h[k] * word(v)[k];
      }
      const double largest = *std::max_element(logits.begin(), logits.end());
      double sum = 0;
      for (const double x : logits) sum += std::exp(x - largest);
      const double lse = largest + std::log(sum);
      const auto label = static_cast<int64_t>(c.in[2]->data[static_cast<size_t>(i)]);
      if (label == kernels::kIgnoredLabel) continue;
      c.out[0].data[0] += lse - logits[static_cast<size_t>(label)];
      c.out[1].data[0] += 1;
      if (form.z_loss > 0) c.out.back().data[0] += form.z_loss * lse * lse;
      if (!form.gradients) continue;
      for (int64_t v = 0; v < vocab; ++v) {
        const double d = std::exp(logits[static_cast<size_t>(v)] - lse) * (1 + 2 * form.z_loss * lse) -
                         (v == label ? 1 : 0);
        for (int64_t k = 0; k < r.d; ++k) {
          c.out[2].data[static_cast<size_t>(i * r.d + k)] += d * word(v)[k];
          c.out[3].data[static_cast<size_t>(v * r.d + k)] += d * h[k];
        }
      }
    }
  }

  static int64_t workspace(const Site& s, int threads) { return HeadPlan(s).workspace(threads); }

  static Status cpu(const CpuCall& c) {
    const HeadPlan p(c.site);
    const auto& rows = kernels::row_kernels(c.choice);
    const auto* labels = data_in<int32_t>(c, 2);
    LIGNUM_ASSIGN_OR_RETURN(const int64_t count,
                            kernels::RowKernels::count_labels(p.tokens, labels, p.vocab));
    auto* space = static_cast<char*>(c.workspace);
    auto* logits = reinterpret_cast<float*>(space);
    auto* losses = reinterpret_cast<double*>(space + p.losses);
    auto* squares = p.z_loss > 0 ? reinterpret_cast<double*>(space + p.squares) : nullptr;
    const int64_t size = dtype_size(p.dtype);
    for (int64_t first = 0; first < p.tokens; first += p.tile) {
      const int64_t n = std::min(p.tile, p.tokens - first);
      const auto* hidden = static_cast<const char*>(c.in[0]) + first * p.width * size;
      kernels::gemm(c.choice, p.make_logits(n), hidden, c.in[1], logits, space + p.scratch, c.parallel);
      const kernels::Out dlogits(p.dtype, p.gradients ? space : nullptr);
      const int64_t block = first / kernels::kLossBlock;
      rows.cross_entropy_tile(n, p.vocab, logits, labels + first, losses + block, dlogits, p.dlogits_stride,
                              c.parallel, squares != nullptr ? squares + block : nullptr,
                              static_cast<float>(2 * p.z_loss));
      if (!p.gradients) continue;
      kernels::gemm(c.choice, p.make_dhidden(n), dlogits.data, c.in[1],
                    static_cast<char*>(c.out[2]) + first * p.width * size, space + p.scratch, c.parallel);
      add_dweight(c, p, first, n, hidden, dlogits.data);
    }
    const auto total = [&](const double* blocks) {
      double sum = 0;
      for (int64_t b = 0; b * kernels::kLossBlock < p.tokens; ++b) sum += blocks[b];
      return sum;
    };
    *data_out<float>(c, 0) = static_cast<float>(total(losses));
    if (squares != nullptr)
      *data_out<float>(c, c.out.size() - 1) = static_cast<float>(p.z_loss * total(squares));
    *data_out<float>(c, 1) = static_cast<float>(count);
    if (p.gradients && p.tokens == 0) std::memset(c.out[3], 0, static_cast<size_t>(c.site.out[3].bytes()));
    return {};
  }

  static Buffers buffers(const Site&) { return {}; }

  // More tokens than a tile: a loop over tiles, so that XLA does not hold all logits either, and what is left
  // of the tokens behind it.
  static std::vector<std::string> emit(const EmitCall& c) {
    const HeadPlan p(c.site);
    const HeadForm form(c.site.attrs);
    if (p.tokens <= p.tile) return emit_parts(c);
    const Type scalar{DType::f32, {}, {}}, sum{DType::f32, c.site.in[1].dims, {}};
    const int64_t tiles = p.tokens / p.tile, whole = tiles * p.tile, rest = p.tokens - whole;
    const std::string hidden = reshaped(c.out, c.in[0], c.site.in[0], {p.tokens, p.width});
    const std::string labels = reshaped(c.out, c.in[2], c.site.in[2], {p.tokens});
    const Type all_hidden{p.dtype, {p.tokens, p.width}, {}}, all_labels{DType::i32, {p.tokens}, {}};

    const std::string in_tiles[] = {reshaped(c.out, emit_slice(c.out, hidden, all_hidden, 0, 0, whole),
                                             rows_type(all_hidden, whole), {tiles, p.tile, p.width}),
                                    c.in[1],
                                    reshaped(c.out, emit_slice(c.out, labels, all_labels, 0, 0, whole),
                                             rows_type(all_labels, whole), {tiles, p.tile})};
    const ir::Graph loop = loop_over_tiles({p.dtype, {tiles, p.tile, p.width}, {}}, c.site.in[1],
                                           {DType::i32, {tiles, p.tile}, {}}, form);
    std::vector<std::string> out = emit_graph(c.out, loop, in_tiles);
    std::string dhidden;
    if (p.gradients)
      dhidden = reshaped(c.out, out[2], {p.dtype, {tiles, p.tile, p.width}, {}}, {whole, p.width});
    if (rest > 0) {
      const Type rest_hidden = rows_type(all_hidden, rest), rest_labels = rows_type(all_labels, rest);
      ir::Graph g;
      Builder b(g);
      const Value h = g.param("hidden", rest_hidden), w = g.param("weight", c.site.in[1]);
      const Values made = of_tokens(b, h, w, g.param("labels", rest_labels), form);
      for (size_t i = 0; i < made.size(); ++i) g.output(fmt::format("out{}", i), made[i]);
      const std::string in_rest[] = {emit_slice(c.out, hidden, all_hidden, 0, whole, p.tokens), c.in[1],
                                     emit_slice(c.out, labels, all_labels, 0, whole, p.tokens)};
      const std::vector<std::string> more = emit_graph(c.out, g, in_rest);
      for (size_t i = 0; i < out.size(); ++i) {
        const bool is_gradient = p.gradients && (i == 2 || i == 3);
        if (!is_gradient) out[i] = added(c.out, out[i], more[i], scalar);
      }
      if (p.gradients) {
        out[3] = added(c.out, out[3], more[3], sum);
        const std::string joined = c.out.fresh();
        c.out.line(fmt::format("{} = stablehlo.concatenate {}, {}, dim = 0 : {} -> {}", joined, dhidden,
                               more[2], mlir_types(Types{rows_type(all_hidden, whole), rest_hidden}),
                               mlir_type(all_hidden)));
        dhidden = joined;
      }
    }
    if (!p.gradients) return out;
    out[2] = reshaped(c.out, dhidden, all_hidden, c.site.out[2].dims);
    if (p.dtype != DType::f32) {
      const std::string narrow = c.out.fresh();
      c.out.line(fmt::format("{} = stablehlo.convert {} : {} -> {}", narrow, out[3], mlir_types(Types{sum}),
                             mlir_type(c.site.out[3])));
      out[3] = narrow;
    }
    return out;
  }

  static std::vector<Case> cases() {
    const auto make = [](std::string name, DType dtype, const Dims& tokens, int64_t width, int64_t vocab,
                         int64_t tile, bool gradients = true, double bound = -1, bool bench = false,
                         double z_loss = 0) {
      Dims dims = tokens;
      dims.push_back(width);
      Attrs attrs{{"tile", tile}, {"gradients", gradients}};
      if (z_loss > 0) attrs.set("z_loss", z_loss);
      return Case{std::move(name),
                  {tensor(dtype, std::move(dims)), tensor(dtype, {vocab, width}, Fill::normal, 0.5),
                   tensor(DType::i32, tokens, Fill::label, bound < 0 ? static_cast<double>(vocab) : bound)},
                  std::move(attrs),
                  1,
                  bench};
    };
    constexpr DType f32 = DType::f32, bf16 = DType::bf16;
    return {
        make("one_token", f32, {}, 5, 7, 8),
        make("one_row", f32, {1}, 8, 8, 8),
        make("one_word", f32, {3}, 4, 1, 8),
        make("odd", f32, {3, 7}, 5, 37, 8),
        make("even", f32, {2, 16}, 6, 12, 16),
        make("whole_tiles", f32, {2, 8}, 11, 19, 8),
        make("loss_alone", f32, {2, 9}, 6, 10, 8, false),
        make("misaligned", f32, {11}, 3, 211, 16),
        make("two_blocks", f32, {9}, 2, 521, 8),
        make("none_supervised", f32, {2, 3}, 4, 7, 8, true, 0),
        make("bf16", bf16, {2, 10}, 16, 37, 8),
        make("bf16_one_tile", bf16, {6}, 16, 9, 8),
        make("empty", f32, {0}, 5, 3, 8),
        make("z_loss", f32, {2, 9}, 6, 10, 8, true, -1, false, 0.1),
        make("z_loss_alone", f32, {11}, 6, 10, 8, false, -1, false, 0.1),
        make("z_loss_bf16", bf16, {2, 10}, 16, 37, 8, true, -1, false, 1e-2),
        make("bench", bf16, {2048}, 576, 32000, 256, true, -1, true),
    };
  }

 private:
  // v times the scalar; a training step's loss has the cotangent 1, and nothing is done then.
  static Value scaled(Builder& b, Value v, Value factor) {
    const ir::Node& n = b.graph().node(factor);
    if (n.kind == "constant" && n.attrs.has<double>("value") && n.attrs.get<double>("value") == 1) return v;
    Arith m(b);
    const Type wide{DType::f32, b.type(v).dims, {}};
    return b.convert(m.mul(m.f32(v), b.splat(factor, wide)), b.type(v).dtype);
  }

  // dweight plus what tokens [first, first + n) give, block by block.
  static void add_dweight(const CpuCall& c, const HeadPlan& p, int64_t first, int64_t n, const void* hidden,
                          const void* dlogits) {
    auto* space = static_cast<char*>(c.workspace);
    const bool last = first + n == p.tokens;
    const auto& rows = kernels::row_kernels(c.choice);
    if (first == 0 && last)  // one tile
      return kernels::gemm(c.choice, p.make_dweight(n, p.vocab, p.dtype), dlogits, hidden, c.out[3],
                           space + p.scratch, c.parallel);
    const bool narrow = p.dtype != DType::f32;
    auto* sum = narrow ? reinterpret_cast<float*>(space + p.sum) : data_out<float>(c, 3);
    const int64_t size = dtype_size(p.dtype);
    c.parallel.run((p.vocab + kVocabBlock - 1) / kVocabBlock, [&](int64_t block, int thread) {
      const int64_t word = block * kVocabBlock, words = std::min(kVocabBlock, p.vocab - word);
      char* mine = space + p.scratch + thread * p.block_bytes();
      float* to = sum + word * p.width;
      float* part = first == 0 ? to : reinterpret_cast<float*>(mine);
      kernels::gemm_serial(c.choice, p.make_dweight(n, words, DType::f32),
                           static_cast<const char*>(dlogits) + word * size, hidden, part,
                           mine + p.part_bytes());
      if (first == 0) return;
      Serial serial;
      rows.elementwise(kernels::Elementwise::add, DType::f32, words * p.width, to, part, nullptr, to, serial);
      if (narrow && last)
        rows.convert(words * p.width, to, {p.dtype, static_cast<char*>(c.out[3]) + word * p.width * size},
                     serial);
    });
  }

  // --- pieces of text

  static std::vector<std::string> emit_parts(const EmitCall& c) {
    const ir::Graph parts = decomposition(get_op(kName), c.site);
    return emit_graph(c.out, parts, c.in);
  }
  static Type rows_type(Type t, int64_t rows) {
    t.dims[0] = rows;
    return t;
  }
  static std::string reshaped(Emitter& out, const std::string& v, const Type& from, const Dims& dims) {
    if (from.dims == dims) return v;
    const std::string result = out.fresh();
    out.line(fmt::format("{} = stablehlo.reshape {} : ({}) -> {}", result, v, mlir_type(from),
                         mlir_type({from.dtype, dims, {}})));
    return result;
  }
  static std::string added(Emitter& out, const std::string& a, const std::string& b, const Type& t) {
    const std::string result = out.fresh();
    out.line(fmt::format("{} = stablehlo.add {}, {} : {}", result, a, b, mlir_type(t)));
    return result;
  }
};

}  // namespace

LIGNUM_DEFINE_OP(linear_cross_entropy, LinearCrossEntropy)

}  // namespace lignum::ops
