// attention: softmax attention with grouped queries.
//   q [B, Sq, H, D], k and v [B, Sk, Hkv, D], f32 or bf16; if segmented, segments of the queries i32 [B, Sq]
//   and of the keys i32 [B, Sk]; if placed, starts of the queries' pieces i32 [P] and of the keys' i32 [K]
//   -> out like q, lse f32 [B, H, Sq]
//   attributes: scale; causal: a query sees keys up to its own position; window w, if any: the last w of
//   them; softcap c, if any: scores are c tanh(scaled score / c); segmented: a row holds several documents,
//   segments is the number of each token's, 0 to 2^24, and a query sees keys of its own document only;
//   query_at, key_at (placed): tokens stand in as many pieces of consecutive positions, which begin where
//   the starts say; the lists are for cost alone. Else Sk = Sq and token i stands at position i
// out[i] = sum_j p[i, j] v[j], p[i, :] = softmax_j(scale q[i] . k[j]); lse[i] = log(sum_j exp(scale q[i] .
// k[j])), for the gradient; 0 and -inf where a query sees no key. Query head h reads head h / (H / Hkv) of k
// and v. Arithmetic in f32.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/attention/context.h"
#include "ops/attention/scores.h"
#include "ops/attention/tiles.h"
#include "ops/gradient.h"

namespace lignum::ops {
namespace {

kernels::Attention shape_of(const Site& s) { return attention_shape(s.in[0], s.in[1], s.attrs); }

struct AttentionOp {
  static constexpr std::string_view kName = "attention";

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, token_inputs(attrs, 3).count));
    LIGNUM_RETURN_IF_ERROR(check_attention(in[0], in[1], in[2], attrs));
    LIGNUM_RETURN_IF_ERROR(check_tokens(in, 3, in[0], in[1], attrs));
    return Types{in[0], lse_type(in[0])};
  }

  static Gradients grad(const GradCall& c) {
    if (c.cotangents[1]) return gradient_by_decomposition(get_op(kName), c);
    Values in = {c.cotangent(0), c.inputs[0], c.inputs[1], c.inputs[2], c.outputs[0], c.outputs[1]};
    in.insert(in.end(), c.inputs.begin() + 3, c.inputs.end());
    const Values g = c.build.add_all("attention_grad", std::move(in), c.site.attrs);
    Gradients out = {g[0], g[1], g[2]};
    out.resize(c.inputs.size());
    return out;
  }

  static ShardRule partition(const Site& s) {
    return attention_rule(
        s,
        [](const AttentionFactors& f, ShardRule& rule) {
          rule.in = {f.q, f.kv, f.kv};
          rule.out = {f.q, f.lse};
        },
        local_attention);
  }

  static Cost cost(const Site& s) { return attention_cost(s, shape_of(s), 2); }

  static Values decompose(Builder& b, const Site& s, std::span<const Value> in) {
    return attention_of(b, all_rows(b, in[0], in[1], in[2], in.subspan(3), s.attrs), s.attrs);
  }

  static void reference(const RefCall& c) {
    const auto a = shape_of(c.site);
    const double scale = c.site.attrs.get<double>("scale"), cap = c.site.attrs.get_or<double>("softcap", 0.0);
    const auto row = [&](const RefTensor& t, int64_t batch, int64_t i, int64_t head) {
      return t.data.data() + ((batch * t.dims[1] + i) * t.dims[2] + head) * a.dim;
    };
    for (int64_t batch = 0; batch < a.batch; ++batch)
      for (int64_t head = 0; head < a.heads; ++head)
        for (int64_t i = 0; i < a.queries; ++i) {
          const int64_t kv = head / (a.heads / a.kv_heads);
          const double* q = row(*c.in[0], batch, i, head);
          std::vector<double> p;
          const std::vector<int64_t> seen = seen_by(c, a, 3, batch, i);
          for (const int64_t j : seen) {
            const double* k = row(*c.in[1], batch, j, kv);
            double score = 0;
            for (int64_t d = 0; d < a.dim; ++d) score += q[d] * k[d];
            p.push_back(cap > 0 ? cap * std::tanh(scale * score / cap) : scale * score);
          }
          double& lse = c.out[1].data[static_cast<size_t>((batch * a.heads + head) * a.queries + i)];
          lse = -std::numeric_limits<double>::infinity();
          if (seen.empty()) continue;
          const double largest = *std::max_element(p.begin(), p.end());
          double sum = 0;
          for (double& x : p) sum += x = std::exp(x - largest);
          double* out = const_cast<double*>(row(c.out[0], batch, i, head));
          for (size_t j = 0; j < p.size(); ++j) {
            const double* v = row(*c.in[2], batch, seen[j], kv);
            for (int64_t d = 0; d < a.dim; ++d) out[d] += p[j] / sum * v[d];
          }
          lse = largest + std::log(sum);
        }
  }

  static int64_t workspace(const Site& s, int threads) {
    return kernels::attention_workspace(shape_of(s), threads);
  }

  static Status cpu(const CpuCall& c) {
    const auto a = shape_of(c.site);
    LIGNUM_ASSIGN_OR_RETURN(const kernels::AttentionTokens tokens, attention_tokens(c, a, 3));
    kernels::attention(c.choice, a, c.in[0], c.in[1], c.in[2], c.out[0], data_out<float>(c, 1), c.workspace,
                       c.parallel, tokens);
    return {};
  }

  static Buffers buffers(const Site&) { return {}; }

  static std::vector<std::string> emit(const EmitCall& c) { return emit_attention(c); }

  static std::vector<Case> cases() {
    return attention_cases([](Case&, const kernels::Attention&) {});
  }
};

}  // namespace

LIGNUM_DEFINE_OP(attention, AttentionOp)

}  // namespace lignum::ops
