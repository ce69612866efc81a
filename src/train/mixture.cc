#include "train/mixture.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/text.h"

namespace lignum::train {

Result<Mixture> Mixture::parse(std::string_view key, const std::vector<std::string>& texts) {
  std::vector<double> weights;
  for (const std::string& text : texts) {
    double weight = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), weight);
    if (error != std::errc() || end != text.data() + text.size() || !(weight > 0) || !std::isfinite(weight)) {
      return user_error("{}: '{}': a weight is a number above 0; leave a source that is not wanted out", key,
                        shown(text));
    }
    weights.push_back(weight);
  }
  Mixture m;
  if (weights.size() < 2) return m;
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<double> rest;
  for (size_t s = 0; s < weights.size(); ++s) {
    const double part = weights[s] / sum * static_cast<double>(kPeriod);
    if (!(part >= 1)) {
      return user_error("{}: '{}' is less than 1/{} of all weights, {:g}; raise it or leave the source out",
                        key, shown(texts[s]), kPeriod, sum);
    }
    m.quotas_.push_back(static_cast<int64_t>(part));
    rest.push_back(part - std::floor(part));
  }
  // What rounding down left goes to the largest remainders, one each.
  std::vector<size_t> order(weights.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return rest[a] > rest[b] || (rest[a] == rest[b] && a < b); });
  const int64_t given = std::accumulate(m.quotas_.begin(), m.quotas_.end(), int64_t{0});
  for (int64_t i = 0; i < kPeriod - given; ++i) ++m.quotas_[order[static_cast<size_t>(i) % order.size()]];
  // Each place goes to the source that is furthest behind its part.
  std::vector<int64_t> taken(m.quotas_.size());
  for (int64_t place = 0; place < kPeriod; ++place) {
    const auto behind = [&](size_t s) { return m.quotas_[s] * (place + 1) - taken[s] * kPeriod; };
    size_t next = 0;
    for (size_t s = 1; s < taken.size(); ++s)
      if (behind(s) > behind(next)) next = s;
    m.pattern_.push_back({static_cast<int64_t>(next), taken[next]++});
  }
  return m;
}

Mixture::Place Mixture::at(int64_t place) const {
  if (quotas_.empty()) return {0, place};
  const int64_t period = place / kPeriod;
  Place p = pattern_[static_cast<size_t>(place % kPeriod)];
  p.row += period * quotas_[static_cast<size_t>(p.source)];
  return p;
}

int64_t Mixture::place_of(int64_t source, int64_t rows) const {
  if (quotas_.empty()) return rows;
  const int64_t quota = quotas_[static_cast<size_t>(source)];
  if (rows / quota >= std::numeric_limits<int64_t>::max() / kPeriod - 1)
    return std::numeric_limits<int64_t>::max();
  const auto at = std::find(pattern_.begin(), pattern_.end(), Place{source, rows % quota});
  return rows / quota * kPeriod + (at - pattern_.begin());
}

double Mixture::part(size_t source) const {
  return quotas_.empty() ? 1 : static_cast<double>(quotas_[source]) / static_cast<double>(kPeriod);
}

std::string Mixture::text() const {
  return quotas_.empty() ? "" : fmt::format("{}", fmt::join(quotas_, ":"));
}

}  // namespace lignum::train
