// From logits to the next token. With temperature > 0 three steps, in the order in which Hugging Face's
// generate applies its warpers, each on what the one before has left:
//   temperature  logits / temperature
//   top_k        the k largest stay; logits that equal the k-th stay too
//   top_p        from the largest down, ids ascending among equals: a token stays while the probability of
//   those before
//                it is below top_p, so at least one does
// and a draw by the softmax of what is left. temperature = 0 takes the largest logit, of equals the lowest
// id.
//
// A draw is the inverse of the cumulative distribution, ids ascending, at Philox's uniform value by (seed,
// row, index): the same for any thread count, batch and history. Probabilities are in double.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace lignum::generate {

struct Sampling {
  double temperature = 1;  // 0: greedy
  int64_t top_k = 0;       // 0: all
  double top_p = 1;        // in (0, 1]
  uint64_t seed = 0;
};
// ok, or a user error that names the key, its value and what is allowed.
Status check(const Sampling&);

class Sampler {
 public:
  // check(sampling) holds.
  explicit Sampler(const Sampling& sampling) : sampling_(sampling) {}

  struct Candidate {
    int32_t id;
    double probability;
  };
  // What may be drawn, ids ascending; the probabilities sum to 1. Greedy: one. An error when a logit is NaN
  // or none is finite. The span lives until the next call.
  Result<std::span<const Candidate>> candidates(std::span<const float> logits);
  // The draw number `index` of sequence `row`.
  Result<int32_t> sample(std::span<const float> logits, int64_t row, int64_t index);

 private:
  void keep_top_k(std::span<const float> logits);
  void keep_top_p();

  Sampling sampling_;
  std::vector<Candidate> left_;  // probability: the logit first, its exponential later
};

}  // namespace lignum::generate
