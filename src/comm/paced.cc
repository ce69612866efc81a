#include "comm/paced.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "comm/work_queue.h"

namespace lignum::comm {

// The sleep comes first: a rank meets the others once, and the last to arrive sleeps its time out before it
// does, so all wait for it that long.
Status PacedTransport::run(const Collective& c) {
  if (c.kind == Kind::barrier) return inner_.run(c);
  const int64_t begin = std::max(c.submitted_ns > 0 ? c.submitted_ns : steady_ns(), free_ns_);
  free_ns_ = begin + static_cast<int64_t>(1e9 * seconds_(c, inner_.group_size(c.group)));
  constexpr int64_t kNap = 20'000'000;
  for (int64_t now = steady_ns(); now < free_ns_; now = steady_ns()) {
    LIGNUM_RETURN_IF_ERROR(inner_.status());
    std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(free_ns_ - now, kNap)));
  }
  return inner_.run(c);
}

}  // namespace lignum::comm
