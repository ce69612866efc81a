// The copy engine of a rank: a thread of its own that moves tensors between device and host memory while the
// rank computes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/work_queue.h"
#include "exec/host_memory.h"

namespace lignum::exec {

struct Transfer {
  bool to_host = false;
  std::byte* device = nullptr;  // read only where to_host
  int64_t host = 0;             // bytes from the host memory's start
  int64_t bytes = 0;
};

class CopyEngine {
 public:
  // Destruction runs what was submitted to its end first.
  static Result<std::unique_ptr<CopyEngine>> create(std::unique_ptr<HostMemory> memory,
                                                    const comm::EngineOptions& options = {});

  // One after the other in the order of submission: what is fetched after it was offloaded is what was
  // offloaded. Tensors are the engine's until the wait, as WorkQueue says.
  comm::Ticket submit(const Transfer& transfer, comm::Timing* timing = nullptr) {
    return queue_.submit(transfer, timing);
  }
  Status wait(comm::Ticket ticket) { return queue_.wait(ticket); }
  Status drain() { return queue_.drain(); }
  const HostMemory& memory() const { return *memory_; }

 private:
  struct Run {
    HostMemory* memory;
    Status operator()(const Transfer& t) const {
      return t.to_host ? memory->write(t.host, t.device, t.bytes) : memory->read(t.host, t.device, t.bytes);
    }
  };
  CopyEngine(std::unique_ptr<HostMemory> memory, const comm::EngineOptions& options)
      : memory_(std::move(memory)), queue_({memory_.get()}, options, "copies to host memory") {}

  std::unique_ptr<HostMemory> memory_;
  comm::WorkQueue<Transfer, Run> queue_;
};

}  // namespace lignum::exec
