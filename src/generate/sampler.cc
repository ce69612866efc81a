#include "generate/sampler.h"

#include <algorithm>
#include <cmath>

#include "base/rng.h"

namespace lignum::generate {

Status check(const Sampling& s) {
  if (!(s.temperature >= 0) || !std::isfinite(s.temperature))
    return user_error("temperature={}: a finite number is allowed, 0 (greedy) or more", s.temperature);
  if (s.top_k < 0) return user_error("top_k={}: 0 (all tokens) or more is allowed", s.top_k);
  if (!(s.top_p > 0) || s.top_p > 1)
    return user_error(
        "top_p={}: more than 0 and at most 1 is allowed; 1 keeps all tokens, temperature=0 is greedy",
        s.top_p);
  return {};
}

void Sampler::keep_top_k(std::span<const float> logits) {
  const auto k = static_cast<size_t>(sampling_.top_k);
  float least = -INFINITY;
  if (k > 0 && k < logits.size()) {
    std::vector<float> sorted(logits.begin(), logits.end());
    std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(k - 1), sorted.end(),
                     std::greater<>());
    least = sorted[k - 1];
  }
  left_.clear();
  for (size_t i = 0; i < logits.size(); ++i)
    if (logits[i] >= least && logits[i] != -INFINITY) left_.push_back({static_cast<int32_t>(i), logits[i]});
}

// By a heap: seldom are more than a few hundred of a vocabulary's tokens in question.
void Sampler::keep_top_p() {
  double sum = 0;
  for (const Candidate& c : left_) sum += c.probability;
  const auto less = [](const Candidate& a, const Candidate& b) {
    return a.probability != b.probability ? a.probability < b.probability : a.id > b.id;
  };
  std::make_heap(left_.begin(), left_.end(), less);
  double before = 0;
  auto end = left_.end();
  while (end != left_.begin() && before < sampling_.top_p * sum) {
    std::pop_heap(left_.begin(), end, less);
    before += (--end)->probability;
  }
  left_.erase(left_.begin(), end);
  std::sort(left_.begin(), left_.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
}

Result<std::span<const Sampler::Candidate>> Sampler::candidates(std::span<const float> logits) {
  size_t best = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]))
      return check_failed("the logit of token {} is NaN: the model's weights are damaged", i);
    if (logits[i] > logits[best]) best = i;
  }
  if (logits.empty() || !std::isfinite(logits[best]))
    return check_failed("no logit is finite: the model's weights are damaged");
  if (sampling_.temperature == 0) {
    left_.assign(1, {static_cast<int32_t>(best), 1});
    return std::span<const Candidate>(left_);
  }
  keep_top_k(logits);
  const double largest = logits[best];
  for (Candidate& c : left_) c.probability = std::exp((c.probability - largest) / sampling_.temperature);
  if (sampling_.top_p < 1) keep_top_p();
  double sum = 0;
  for (const Candidate& c : left_) sum += c.probability;
  for (Candidate& c : left_) c.probability /= sum;
  return std::span<const Candidate>(left_);
}

Result<int32_t> Sampler::sample(std::span<const float> logits, int64_t row, int64_t index) {
  LIGNUM_ASSIGN_OR_RETURN(const std::span<const Candidate> all, candidates(logits));
  if (all.size() == 1) return all[0].id;
  const Random random(sampling_.seed, fmt::format("generate/{}", row));
  const double u = random.uniform(static_cast<uint64_t>(index));
  double sum = 0;
  int32_t last = all[0].id;  // where rounding leaves the sum below u
  for (const Candidate& c : all) {
    if (c.probability <= 0) continue;
    last = c.id;
    sum += c.probability;
    if (u < sum) break;
  }
  return last;
}

}  // namespace lignum::generate
