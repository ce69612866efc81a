#include "comm/paced.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace lignum::comm {

// The sleep comes first: a rank meets the others once, and the last to arrive sleeps its time out before it
// does, so all wait for it that long.
Status PacedTransport::run(const Collective& c) {
  using Clock = std::chrono::steady_clock;
  const double seconds = c.kind == Kind::barrier ? 0 : seconds_(c, inner_.group_size(c.group));
  const auto end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  constexpr auto kNap = std::chrono::milliseconds(20);
  for (auto now = Clock::now(); now < end; now = Clock::now()) {
    LIGNUM_RETURN_IF_ERROR(inner_.status());
    std::this_thread::sleep_for(std::min<Clock::duration>(end - now, kNap));
  }
  return inner_.run(c);
}

}  // namespace lignum::comm
