#include "train/ranks.h"

#include <numeric>
#include <vector>

namespace lignum::train {

Result<Ranks> Ranks::join(comm::Transport& transport) {
  Ranks r(transport);
  if (transport.size() > 1) {
    std::vector<int> all(static_cast<size_t>(transport.size()));
    std::iota(all.begin(), all.end(), 0);
    LIGNUM_ASSIGN_OR_RETURN(r.group_, transport.add_group(all));
  }
  return r;
}

}  // namespace lignum::train
