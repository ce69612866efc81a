#include "ops/scaled_matmul/backward.h"

#include <algorithm>

#include "ops/matmul/contraction.h"
#include "ops/quantize/tiles.h"

namespace lignum::ops {
namespace {

// One scale for each index of every dim, but for tiles of `block` along one.
Dims block_scales(Dims dims, int64_t tiled, int64_t block) {
  int64_t& d = dims[static_cast<size_t>(tiled)];
  LIGNUM_CHECK(d % block == 0, "blocks of {} in a dim of {}", block, d);
  d /= block;
  return dims;
}

// Whether an operand's scales are numbers of single indices that are contracted.
bool goes_into_gradient(const Type& x, const Type& scale, const Dims& contracted) {
  for (size_t d = 0; d < x.dims.size(); ++d) {
    if (scale.dims[d] == 1) continue;
    const bool here =
        std::find(contracted.begin(), contracted.end(), static_cast<int64_t>(d)) != contracted.end();
    if (!here || scale.dims[d] != x.dims[d]) return false;
  }
  return true;
}

// What v stands for, in that dtype, where the graph has it.
std::optional<Value> origin(Builder& b, Value v, DType dtype) {
  if (!is_float8(b.type(v).dtype)) return v;
  const ir::Node& n = b.graph().node(v);
  if (n.kind != "quantize") return std::nullopt;
  const Value x = n.inputs[0];
  return b.convert(x, dtype);
}

Value gradient_of(const GradCall& c, int operand, const std::optional<BackwardDots>& how) {
  Builder& b = c.build;
  GradientProduct p = gradient_product(c.site, operand);
  const auto other = static_cast<size_t>(1 - operand);
  const Type& x = c.site.in[other];
  const Type& scale = c.site.in[2 + other];
  Value dy = b.convert(c.cotangent(0), c.site.in[2 + static_cast<size_t>(operand)].dtype);
  const DType dtype = b.type(dy).dtype;
  const bool in_blocks = how && how->block > 0;
  Value y = c.inputs[other], y_scale = b.convert(c.inputs[2 + other], dtype);
  const Value one = b.constant(dtype, Dims(x.dims.size(), 1), 1);

  const bool goes_into_dy = goes_into_gradient(x, scale, p.other_dims);
  const bool from_origin = !how || (!goes_into_dy && !in_blocks);
  const auto original = from_origin ? origin(b, y, scale.dtype) : std::nullopt;
  if (!how && original) return gradient_matmul(b, std::move(p), dy, *original, dtype);
  if (original) {
    y = *original;
    y_scale = one;
  } else if (in_blocks && scale.elements() > 1) {
    if (how->weight != static_cast<int64_t>(other)) {
      const auto whole = origin(b, y, scale.dtype);
      LIGNUM_CHECK(whole.has_value(), "an operand in blocks that is no quantize");
      const Quantised again =
          quantised(b, *whole, dtype, x.dtype, how->residual,
                    block_scales(x.dims, p.other_dims.back(), how->block), std::string(kResidualName));
      y = again.q;
      y_scale = again.scale;
    }
  } else if (goes_into_dy && (scale.elements() > 1 || (how && !how->calibration.follows_scale()))) {
    // Its dims that are not 1 are contracted here; the others of dy share.
    Dims of_dy(b.type(dy).dims.size(), 1);
    for (size_t i = 0; i < p.dy_dims.size(); ++i)
      of_dy[static_cast<size_t>(p.dy_dims[i])] = scale.dims[static_cast<size_t>(p.other_dims[i])];
    dy = b.add("scale_tiles", {dy, b.reshape(y_scale, of_dy)});
    y_scale = one;
  }

  Quantised q{dy, {}};
  if (how) {
    Dims dims = b.type(dy).dims;
    const int64_t innermost = p.dy_dims.back();
    const int64_t size = dims[static_cast<size_t>(innermost)];
    if (in_blocks) {
      dims = block_scales(dims, innermost, how->block);
    } else {
      if (!how->channelwise) dims.assign(dims.size(), 1);
      for (const int64_t d : p.dy_dims) dims[static_cast<size_t>(d)] = 1;
      if (how->tile > 0 && how->weight == operand) dims[static_cast<size_t>(innermost)] = size / how->tile;
    }
    QuantiseInputs with;
    if (const auto range = how->range_input()) with.range = c.inputs[*range];
    if (const auto keys = how->keys_input()) with.noise = Noise{c.inputs[*keys], *how->stream};
    q = quantised(b, dy, dtype, how->dtype, how->calibration, dims, "", with);
  } else {
    q.scale = b.constant(dtype, Dims(b.type(dy).dims.size(), 1), 1);
  }
  p.attrs.set("dtype", std::string(dtype_name(dtype)));
  const Values inputs = p.other_first ? Values{y, q.q, y_scale, q.scale} : Values{q.q, y, q.scale, y_scale};
  return b.transpose(b.add("scaled_matmul", inputs, std::move(p.attrs)), p.permutation);
}

Result<Calibration> calibration_attr(const Attrs& attrs, std::string_view key) {
  LIGNUM_ASSIGN_OR_RETURN(const std::string text, string_attr(attrs, key));
  auto parsed = parse_calibration(text);
  if (!parsed.ok()) return parsed.status().with_context(fmt::format("attribute {}", key));
  return parsed;
}

}  // namespace

std::optional<size_t> BackwardDots::range_input() const {
  if (calibration.method != Calibration::Method::recorded) return std::nullopt;
  return 4;
}
std::optional<size_t> BackwardDots::keys_input() const {
  if (!stream) return std::nullopt;
  return range_input() ? 5 : 4;
}
size_t BackwardDots::inputs() const { return 4U + (range_input() ? 1 : 0) + (keys_input() ? 1 : 0); }

void BackwardDots::set(Attrs& attrs) const {
  attrs.set("bwd_dtype", std::string(dtype_name(dtype)));
  attrs.set("bwd_calibration", calibration.text());
  attrs.set("bwd_channelwise", channelwise);
  if (weight && (tile > 0 || block > 0)) attrs.set("weight", *weight);
  if (weight && tile > 0) attrs.set("bwd_tile", tile);
  if (stream) attrs.set("bwd_stream", *stream);
  if (block == 0) return;
  attrs.set("bwd_block", block);
  attrs.set("bwd_residual", residual.text());
}

Result<std::optional<BackwardDots>> backward_dots(const Attrs& attrs) {
  const auto& all = attrs.all();
  std::optional<BackwardDots> how;
  if (!all.contains("bwd_dtype")) return how;
  how.emplace();
  LIGNUM_ASSIGN_OR_RETURN(how->dtype, dtype_attr(attrs, "bwd_dtype"));
  LIGNUM_RETURN_IF_ERROR(
      expect_dtype({how->dtype, {}, {}}, "attribute bwd_dtype", {DType::f8e4m3fn, DType::f8e5m2}));
  LIGNUM_ASSIGN_OR_RETURN(how->calibration, calibration_attr(attrs, "bwd_calibration"));
  LIGNUM_ASSIGN_OR_RETURN(how->channelwise, bool_attr(attrs, "bwd_channelwise"));
  constexpr int64_t kMost = int64_t{1} << 40;
  if (all.contains("weight")) {
    LIGNUM_ASSIGN_OR_RETURN(how->weight, int_in(attrs, "weight", 0, 1));
  }
  if (all.contains("bwd_tile")) {
    LIGNUM_ASSIGN_OR_RETURN(how->tile, int_in(attrs, "bwd_tile", 1, kMost));
  }
  if (all.contains("bwd_stream")) {
    LIGNUM_ASSIGN_OR_RETURN(how->stream, int_attr(attrs, "bwd_stream"));
  }
  if (all.contains("bwd_block")) {
    LIGNUM_ASSIGN_OR_RETURN(how->block, int_in(attrs, "bwd_block", 1, kMost));
    LIGNUM_ASSIGN_OR_RETURN(how->residual, calibration_attr(attrs, "bwd_residual"));
  }
  if (how->tile > 0 && !how->weight) return user_error("attribute bwd_tile: it goes with attribute weight");
  return how;
}

Gradients backward(const GradCall& c) {
  const std::optional<BackwardDots> how = *backward_dots(c.site.attrs);
  Gradients out;
  for (const int operand : {0, 1}) out.emplace_back(gradient_of(c, operand, how));
  out.resize(c.inputs.size());
  return out;
}

}  // namespace lignum::ops
