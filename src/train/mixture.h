// Several sources as one stream: which source, and which of its rows, stands at a place. A function of the
// weights and of the place, so a resume needs the place alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace lignum::train {

// Weights are met exactly over each kPeriod rows, to 1 / kPeriod of the whole; in between, any n rows from
// the start of a period on hold a source's part of n to within the number of sources.
class Mixture {
 public:
  static constexpr int64_t kPeriod = 10000;

  // One source.
  Mixture() = default;
  // Weights as the configuration has them, one a source, of any sum. `key` is named in errors.
  static Result<Mixture> parse(std::string_view key, const std::vector<std::string>& weights);

  struct Place {
    int64_t source = 0;
    int64_t row = 0;  // of those that the source gives, from 0: ascending in the place
    friend bool operator==(const Place&, const Place&) = default;
  };
  Place at(int64_t place) const;
  // The place where a source gives its row number `rows`; the largest number where none holds it.
  int64_t place_of(int64_t source, int64_t rows) const;
  double part(size_t source) const;  // of all rows
  std::string text() const;          // for a fingerprint; empty: one source

 private:
  std::vector<int64_t> quotas_;  // rows of a source in a period; empty: one source
  std::vector<Place> pattern_;   // of a period
};

}  // namespace lignum::train
