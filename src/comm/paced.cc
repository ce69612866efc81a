#include "comm/paced.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace lignum::comm {

Status PacedTransport::run(const Collective& c) {
  using Clock = std::chrono::steady_clock;
  const double seconds = c.kind == Kind::barrier ? 0 : seconds_(c, inner_.group_size(c.group));
  if (seconds <= 0) return inner_.run(c);
  LIGNUM_RETURN_IF_ERROR(inner_.barrier(c.group, c.id));
  const auto end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  LIGNUM_RETURN_IF_ERROR(inner_.run(c));
  constexpr auto kNap = std::chrono::milliseconds(20);
  for (auto now = Clock::now(); now < end; now = Clock::now()) {
    std::this_thread::sleep_for(std::min<Clock::duration>(end - now, kNap));
    LIGNUM_RETURN_IF_ERROR(inner_.status());
  }
  return {};
}

}  // namespace lignum::comm
