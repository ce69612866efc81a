// For tests: ranks however they are joined. transport_test.cc is one list for all worlds: ranks as threads,
// ranks that share no memory on a mail of this process's own (here), and processes on an MPI
// (src/mpi/mpi_test.cc).
#pragma once

#include <string>
#include <vector>

#include "base/parallel.h"
#include "comm/transport.h"

namespace lignum::comm {

class TestWorld {
 public:
  virtual ~TestWorld() = default;
  virtual std::string name() const = 0;
  // Calls body(transport) on each of n new ranks; ends as ThreadWorld::run does, on every process with the
  // same status.
  virtual Status run(int n, FunctionRef<Status(Transport&)> body) = 0;
  // Where ranks are processes body sees its own one's variables only.
  virtual bool shares_memory() const { return true; }
  // A transport of this world allocates nothing beside what the project's own code does.
  virtual bool counts_allocations() const { return true; }
};

// Of this binary.
std::vector<TestWorld*> test_worlds();

// Those of them where it holds.
template <class Holds>
std::vector<TestWorld*> test_worlds_where(Holds holds) {
  std::vector<TestWorld*> worlds = test_worlds();
  std::erase_if(worlds, [&](const TestWorld* w) { return !holds(*w); });
  return worlds;
}

}  // namespace lignum::comm
