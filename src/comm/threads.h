// Ranks as threads of one process: a rendezvous in shared memory. Each rank publishes where its buffers lie,
// and peers read them directly: one copy a byte.
#pragma once

#include <memory>

#include "base/parallel.h"
#include "base/status.h"
#include "comm/transport.h"

namespace lignum::comm {

class ThreadWorld {
 public:
  explicit ThreadWorld(int ranks);  // 1..kMaxRanks
  ~ThreadWorld();                   // no rank may be inside a call
  ThreadWorld(const ThreadWorld&) = delete;
  ThreadWorld& operator=(const ThreadWorld&) = delete;

  static constexpr int kMaxRanks = 1024;

  int size() const;
  Transport& transport(int rank);  // lives as long as the world

  // Calls body(transport) for every rank, each on a thread of its own (rank 0's is the caller's), and returns
  // when all have returned: ok, or the first error, which has by then ended the other ranks' calls. A rank
  // whose body returns has left. Once a world.
  Status run(FunctionRef<Status(Transport&)> body);

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace lignum::comm
