// attention_grad: the gradients of attention's q, k and v from its inputs and results.
//   dout, q, k, v, out, lse, then attention's segments and starts, if any -> dq like q, dk like k, dv like v
// With p = exp(scale q . k - lse), dp = dout . v, delta[i] = dout[i] . out[i]:
//   dv = p^T dout, ds = p (dp - delta) scale, dq = ds k, dk = ds^T q. Arithmetic in f32. Window,
//   softcap and segments as in attention; a soft cap's slope is 1 - (capped score / cap)^2.
#include <cmath>

#include "ops/attention/context.h"
#include "ops/attention/scores.h"
#include "ops/attention/tiles.h"

namespace lignum::ops {
namespace {

kernels::Attention grad_shape_of(const Site& s) { return attention_shape(s.in[1], s.in[2], s.attrs); }

struct AttentionGrad {
  static constexpr std::string_view kName = "attention_grad";

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, token_inputs(attrs, 6).count));
    LIGNUM_RETURN_IF_ERROR(check_attention(in[1], in[2], in[3], attrs));
    LIGNUM_RETURN_IF_ERROR(check_tokens(in, 6, in[1], in[2], attrs));
    LIGNUM_RETURN_IF_ERROR(expect_like(in[0], "dout", in[1], "q"));
    LIGNUM_RETURN_IF_ERROR(expect_like(in[4], "out", in[1], "q"));
    LIGNUM_RETURN_IF_ERROR(expect_dtype(in[5], "lse", {DType::f32}));
    LIGNUM_RETURN_IF_ERROR(expect_dims(in[5], "lse", lse_type(in[1]).dims, "batch, heads, sequence of q"));
    return Types{in[1], in[2], in[3]};
  }

  static constexpr ByDecomposition grad{};

  static ShardRule partition(const Site& s) {
    return attention_rule(
        s,
        [](const AttentionFactors& f, ShardRule& rule) {
          rule.in = {f.q, f.q, f.kv, f.kv, f.q, f.lse};
          rule.out = {f.q, f.kv, f.kv};
        },
        local_attention_grad);
  }

  static Cost cost(const Site& s) {
    return attention_cost(s, grad_shape_of(s), 5);  // the scores once more, four gradients
  }

  static Values decompose(Builder& b, const Site& s, std::span<const Value> in) {
    const QueryRows rows = all_rows(b, in[1], in[2], in[3], in.subspan(6), s.attrs);
    Values g = gradients_of(b, {rows, in[0], in[4], in[5]}, s.attrs);
    for (Value& v : g) v = b.convert(v, s.in[1].dtype);
    return g;
  }

  static void reference(const RefCall& c) {
    const auto a = grad_shape_of(c.site);
    const double scale = c.site.attrs.get<double>("scale"), cap = c.site.attrs.get_or<double>("softcap", 0.0);
    const auto row = [&](const RefTensor& t, int64_t batch, int64_t i, int64_t head) {
      return const_cast<double*>(t.data.data()) + ((batch * t.dims[1] + i) * t.dims[2] + head) * a.dim;
    };
    const auto dot = [&](const double* x, const double* y) {
      double sum = 0;
      for (int64_t d = 0; d < a.dim; ++d) sum += x[d] * y[d];
      return sum;
    };
    const auto accumulate = [&](double* y, double factor, const double* x) {
      for (int64_t d = 0; d < a.dim; ++d) y[d] += factor * x[d];
    };
    for (int64_t batch = 0; batch < a.batch; ++batch)
      for (int64_t head = 0; head < a.heads; ++head)
        for (int64_t i = 0; i < a.queries; ++i) {
          const int64_t kv = head / (a.heads / a.kv_heads);
          const double* dout = row(*c.in[0], batch, i, head);
          const double* q = row(*c.in[1], batch, i, head);
          const double lse = c.in[5]->data[static_cast<size_t>((batch * a.heads + head) * a.queries + i)];
          const double delta = dot(dout, row(*c.in[4], batch, i, head));
          for (const int64_t j : seen_by(c, a, 6, batch, i)) {
            const double* k = row(*c.in[2], batch, j, kv);
            const double y = cap > 0 ? std::tanh(scale * dot(q, k) / cap) : 0;
            const double p = std::exp((cap > 0 ? cap * y : scale * dot(q, k)) - lse);
            const double ds = p * (dot(dout, row(*c.in[3], batch, j, kv)) - delta) * scale * (1 - y * y);
            accumulate(row(c.out[0], batch, i, head), ds, k);
            accumulate(row(c.out[1], batch, j, kv), ds, q);
            accumulate(row(c.out[2], batch, j, kv), p, dout);
          }
        }
  }

  static int64_t workspace(const Site& s, int threads) {
    return kernels::attention_grad_workspace(grad_shape_of(s), threads);
  }

  static Status cpu(const CpuCall& c) {
    const auto a = grad_shape_of(c.site);
    LIGNUM_ASSIGN_OR_RETURN(const kernels::AttentionTokens tokens, attention_tokens(c, a, 6));
    kernels::attention_grad(c.choice, a, c.in[0], c.in[1], c.in[2], c.in[3], c.in[4], data_in<float>(c, 5),
                            c.out[0], c.out[1], c.out[2], c.workspace, c.parallel, tokens);
    return {};
  }

  static Buffers buffers(const Site&) { return {}; }

  static std::vector<std::string> emit(const EmitCall& c) { return emit_attention_grad(c); }

  static std::vector<Case> cases() {
    return attention_cases([](Case& c, const kernels::Attention& a) {
      const Type q = c.in[0].type;
      c.in.insert(c.in.begin(), tensor(a.dtype, q.dims));
      c.in.push_back(tensor(a.dtype, q.dims));
      // Not the lse of q and k: the op is a function of six free inputs. Positive keeps p small.
      c.in.push_back(tensor(DType::f32, lse_type(q).dims, Fill::positive));
    });
  }
};

}  // namespace

LIGNUM_DEFINE_OP(attention_grad, AttentionGrad)

}  // namespace lignum::ops
