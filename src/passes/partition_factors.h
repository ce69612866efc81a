// Which mesh axes cut what an op walks over: a function of the op's rule and of how its inputs lie.
#pragma once

#include <set>
#include <span>
#include <string>
#include <vector>

#include "ops/op.h"
#include "passes/partition.h"

namespace lignum::passes {

using Axes = std::vector<std::string>;  // outermost first

// The factors of a rule (ops::ShardRule) are what its dims walk. An axis goes to the first factor that an
// input asks for it with; a factor that some input has whole stays whole: the others are gathered.
class Factors {
 public:
  // in: how each input lies, null for a constant that can be made in any shape; named: how the first result
  // would lie by its names, where the rule has result_dims. All must outlive this.
  Factors(const Mesh& mesh, const ops::ShardRule& rule, const ops::Site& site,
          std::span<const Sharding* const> in, const Sharding& named);

  const std::vector<Axes>& axes() const { return axes_; }  // of each factor
  // What cuts a dim of `size` that walks the factor, nothing for -1: of a shared factor's axes those until a
  // rank has one index left.
  Axes cut(int factor, int64_t size) const;

 private:
  Axes cut(int factor, const Axes& axes, int64_t size) const;
  Axes of(int factor, std::span<const Sharding* const> in, const Sharding& named) const;
  bool gives_way(size_t input, size_t dim, const std::string& axis) const;
  void shrink_to_exact(int factor, Axes& axes) const;

  const Mesh& mesh_;
  const ops::ShardRule& rule_;
  const ops::Site& site_;
  std::vector<Axes> axes_;
  std::set<std::string> taken_;
  std::set<std::string> asked_;  // by inputs, for other dims than tokens and the vocabulary
};

}  // namespace lignum::passes
