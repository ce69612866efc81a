#include "passes/partition_factors.h"

#include <algorithm>
#include <optional>

#include "ops/rules.h"

namespace lignum::passes {
namespace {

// The tokens of a row. Between a layer's blocks ranks of a tensor axis hold a part of them each; ranks of the
// context axis do so everywhere.
constexpr std::string_view kTokens = "activation_length", kVocabulary = "vocab";

}  // namespace

Factors::Factors(const Mesh& mesh, const ops::ShardRule& rule, const ops::Site& site,
                 std::span<const Sharding* const> in, const Sharding& named)
    : mesh_(mesh), rule_(rule), site_(site) {
  int count = 0;
  for (const auto* side : {&rule.in, &rule.out})
    for (const auto& dims : *side)
      for (const int f : dims) count = std::max(count, f + 1);
  for (size_t i = 0; i < in.size(); ++i)
    for (size_t d = 0; d < rule.in[i].size() && in[i] != nullptr; ++d)
      if (const std::string& name = ops::name_of(site.in[i], static_cast<int64_t>(d));
          rule.in[i][d] >= 0 && name != kTokens && name != kVocabulary)
        asked_.insert(in[i]->dims[d].begin(), in[i]->dims[d].end());
  for (int f = 0; f < count; ++f) {
    axes_.push_back(of(f, in, named));
    taken_.insert(axes_.back().begin(), axes_.back().end());
  }
}

Axes Factors::cut(int factor, int64_t size) const {
  return factor < 0 ? Axes{} : cut(factor, axes_[static_cast<size_t>(factor)], size);
}

Axes Factors::cut(int factor, const Axes& axes, int64_t size) const {
  if (factor != rule_.shared) return axes;
  Axes out;
  for (const std::string& axis : axes) {
    if (size <= 1) break;
    out.push_back(axis);
    size /= mesh_.size(axis);
  }
  return out;
}

// An axis that tokens and something else ask for: the tokens give way. Not on the context axis, with which
// weights are stored as with fsdp, and gathered for use; nor to the vocabulary, for what follows the logits
// needs all those of a token, and would be done by each rank for all tokens.
bool Factors::gives_way(size_t input, size_t dim, const std::string& axis) const {
  return ops::name_of(site_.in[input], static_cast<int64_t>(dim)) == kTokens && axis != kContextAxis &&
         asked_.contains(axis);
}

Axes Factors::of(int factor, std::span<const Sharding* const> in, const Sharding& named) const {
  const auto each_dim = [&](const auto& visit) {
    for (size_t i = 0; i < in.size(); ++i)
      for (size_t d = 0; d < rule_.in[i].size(); ++d)
        if (in[i] != nullptr && rule_.in[i][d] == factor) visit(i, d, in[i]->dims[d]);
  };
  std::optional<Axes> axes;
  each_dim([&](size_t i, size_t d, const Axes& have) {
    Axes here;
    for (const std::string& axis : have)
      if (!taken_.contains(axis) && !gives_way(i, d, axis) &&
          (factor != rule_.placed || axis == kContextAxis))
        here.push_back(axis);
    if (!axes || (factor == rule_.shared && here.size() > axes->size())) {
      axes = here;
    } else if (factor != rule_.shared) {  // the common prefix: an operand that has the dim less cut decides
      axes->erase(std::ranges::mismatch(*axes, here).in1, axes->end());
    }
  });
  if (!axes) {
    // A factor of the result alone (a constant's dim, a broadcast's new one) can be made in any shape: as its
    // name asks.
    if (rule_.result_dims.empty()) return {};
    axes.emplace();
    if (const auto d = std::ranges::find(rule_.out[0], factor); d != rule_.out[0].end())
      axes = named.dims[static_cast<size_t>(d - rule_.out[0].begin())];
    std::erase_if(*axes, [&](const std::string& axis) { return taken_.contains(axis); });
  }
  // What partition can reach by gathering is a prefix of each operand's own axes.
  each_dim([&](size_t i, size_t d, const Axes& have) {
    const auto wanted = static_cast<std::ptrdiff_t>(cut(factor, *axes, site_.in[i].dims[d]).size());
    const auto reached =
        std::ranges::mismatch(axes->begin(), axes->begin() + wanted, have.begin(), have.end()).in1;
    if (reached - axes->begin() < wanted) axes->erase(reached, axes->end());
  });
  if (std::ranges::find(rule_.exact, factor) != rule_.exact.end()) shrink_to_exact(factor, *axes);
  return *axes;
}

// Axes are given up, innermost first, until they divide every dim that walks the factor.
void Factors::shrink_to_exact(int factor, Axes& axes) const {
  const auto divides = [&](std::span<const ir::Type> types, const std::vector<std::vector<int>>& dims) {
    for (size_t i = 0; i < dims.size(); ++i)
      for (size_t d = 0; d < dims[i].size(); ++d) {
        if (dims[i][d] != factor) continue;
        int64_t parts = 1;
        for (const std::string& axis : cut(factor, axes, types[i].dims[d])) parts *= mesh_.size(axis);
        if (types[i].dims[d] % parts != 0) return false;
      }
    return true;
  };
  while (!axes.empty() && !(divides(site_.in, rule_.in) && divides(site_.out, rule_.out))) axes.pop_back();
}

}  // namespace lignum::passes
