#include <algorithm>
#include <cmath>
#include <numbers>

#include "config/model_config.h"

namespace lignum::config {
namespace {

// 1 / theta^(2i / dim), as torch rounds it: the exponent, the power and the quotient each to float32.
std::vector<float> plain_inv_freq(double theta, int64_t dim) {
  std::vector<float> inv_freq;
  for (int64_t i = 0; i < dim / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
    inv_freq.push_back(
        1.0f / static_cast<float>(std::pow(static_cast<double>(static_cast<float>(theta)), exponent)));
  }
  return inv_freq;
}

// Long waves are slowed by `factor`, short ones kept, those between interpolated. torch divides a number by a
// tensor as the tensor's reciprocal times the number.
float llama3_inv_freq(const RopeConfig& rope, float inv_freq) {
  const auto context = static_cast<double>(rope.original_max_position);
  const auto low_wavelength = static_cast<float>(context / rope.low_freq_factor);
  const auto high_wavelength = static_cast<float>(context / rope.high_freq_factor);
  const auto factor = static_cast<float>(rope.factor);
  const float wavelength = (1.0f / inv_freq) * static_cast<float>(2 * std::numbers::pi);
  if (wavelength > low_wavelength) return inv_freq / factor;
  if (wavelength < high_wavelength) return inv_freq;
  const float turns = (1.0f / wavelength) * static_cast<float>(context);
  const float smooth = (turns - static_cast<float>(rope.low_freq_factor)) /
                       static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
  return (1.0f - smooth) * inv_freq / factor + smooth * inv_freq;
}

// The pair index that makes `turns` turns over the original context (a real number).
double yarn_pair(const RopeConfig& rope, int64_t dim, double turns) {
  return static_cast<double>(dim) *
         std::log(static_cast<double>(rope.original_max_position) / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(rope.theta));
}

std::vector<float> yarn_inv_freq(const RopeConfig& rope, int64_t dim) {
  double low = yarn_pair(rope, dim, rope.beta_fast);
  double high = yarn_pair(rope, dim, rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(dim - 1));
  if (low == high) high += 0.001;  // no division by zero
  std::vector<float> inv_freq;
  for (int64_t i = 0; i < dim / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
    const auto power =
        static_cast<float>(std::pow(static_cast<double>(static_cast<float>(rope.theta)), exponent));
    const float extrapolated = 1.0f / power;
    const float interpolated = 1.0f / (static_cast<float>(rope.factor) * power);
    const float ramp = (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
    const float kept = 1.0f - std::clamp(ramp, 0.0f, 1.0f);
    inv_freq.push_back(interpolated * (1.0f - kept) + extrapolated * kept);
  }
  return inv_freq;
}

double yarn_mscale(double factor, double scale) {
  return factor <= 1 ? 1.0 : 0.1 * scale * std::log(factor) + 1.0;
}

// The base grows with the text, once it is longer than the model's (bloc97, "NTK-aware scaled RoPE", 2023).
double dynamic_theta(const RopeConfig& rope, int64_t dim, int64_t max_position, int64_t sequence) {
  if (sequence <= max_position) return rope.theta;
  const auto length = static_cast<double>(sequence), longest = static_cast<double>(max_position),
             d = static_cast<double>(dim);
  return rope.theta * std::pow(rope.factor * length / longest - (rope.factor - 1), d / (d - 2));
}

// A factor a pair, one list for texts within the original context and one for longer ones (Ding et al.,
// "LongRoPE", 2024).
std::vector<float> longrope_inv_freq(const RopeConfig& rope, int64_t dim, int64_t sequence) {
  const std::vector<double>& factors =
      sequence > rope.original_max_position ? rope.long_factor : rope.short_factor;
  std::vector<float> inv_freq;
  for (int64_t i = 0; i < dim / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
    const auto power =
        static_cast<float>(std::pow(static_cast<double>(static_cast<float>(rope.theta)), exponent));
    inv_freq.push_back(1.0f / (static_cast<float>(factors[static_cast<size_t>(i)]) * power));
  }
  return inv_freq;
}

double attention_scaling(const RopeConfig& rope) {
  if (rope.type == RopeType::longrope) {
    if (rope.attention_factor) return *rope.attention_factor;
    if (rope.factor <= 1) return 1.0;
    return std::sqrt(1 + std::log(rope.factor) / std::log(static_cast<double>(rope.original_max_position)));
  }
  if (rope.type != RopeType::yarn) return 1.0;
  if (rope.attention_factor) return *rope.attention_factor;
  const double mscale = rope.mscale.value_or(0), all_dim = rope.mscale_all_dim.value_or(0);
  if (mscale != 0 && all_dim != 0)
    return yarn_mscale(rope.factor, mscale) / yarn_mscale(rope.factor, all_dim);
  return yarn_mscale(rope.factor, 1);
}

}  // namespace

std::string_view rope_type_name(RopeType type) {
  switch (type) {
    case RopeType::standard:
      return "default";
    case RopeType::linear:
      return "linear";
    case RopeType::dynamic:
      return "dynamic";
    case RopeType::llama3:
      return "llama3";
    case RopeType::yarn:
      return "yarn";
    case RopeType::longrope:
      return "longrope";
  }
  return "";
}

RopeFrequencies rope_frequencies(const RopeConfig& rope, int64_t head_dim, int64_t max_position,
                                 int64_t sequence) {
  std::vector<float> inv_freq;
  switch (rope.type) {
    case RopeType::yarn:
      inv_freq = yarn_inv_freq(rope, head_dim);
      break;
    case RopeType::longrope:
      inv_freq = longrope_inv_freq(rope, head_dim, sequence);
      break;
    case RopeType::dynamic:
      inv_freq = plain_inv_freq(dynamic_theta(rope, head_dim, max_position, sequence), head_dim);
      break;
    case RopeType::standard:
    case RopeType::linear:
    case RopeType::llama3:
      inv_freq = plain_inv_freq(rope.theta, head_dim);
  }
  for (float& f : inv_freq) {
    if (rope.type == RopeType::linear) f /= static_cast<float>(rope.factor);
    if (rope.type == RopeType::llama3) f = llama3_inv_freq(rope, f);
  }
  return {{inv_freq.begin(), inv_freq.end()}, attention_scaling(rope)};
}

std::vector<double> rope_inv_freq(const ModelConfig& model) {
  return rope_frequencies(model.rope, model.head_dim, model.max_position, 0).inv_freq;
}

double rope_attention_scaling(const ModelConfig& model) { return attention_scaling(model.rope); }

}  // namespace lignum::config
