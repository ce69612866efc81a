// Ranks as processes, joined by the MPI of liblignum_mpi.so: this process's own rank. The module is loaded
// here, at run time; a binary that never joins needs no MPI.
//
// MPI_THREAD_SERIALIZED: a rank's thread of collectives drives its messages while a step runs, its main
// thread between steps, and abort() may come from any; a lock lets one at a time. More (MPI_THREAD_MULTIPLE)
// would buy nothing, since collectives run one after the other, and costs a lock inside the library for each
// call.
#pragma once

#include <memory>
#include <string>

#include "base/parallel.h"
#include "comm/messages.h"

namespace lignum::comm {

class MpiWorld {
 public:
  // Once a process, on every process that the launcher started; waits for the others.
  static Result<std::unique_ptr<MpiWorld>> join();
  ~MpiWorld();

  Transport& transport() { return *transport_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  int ranks_here() const { return ranks_here_; }  // on this machine
  const LignumMpi& module() const { return *mpi_; }

  // Every rank's last call: ends the world with one outcome, which all return: ok, or an error that the first
  // rank knows or is told. say(outcome) is called on the first rank, before any other one returns: a launcher
  // kills the others once one of its processes exits with an error. (Another rank calls it only where the
  // first one does not answer for a minute.)
  Status close(const Status& own, FunctionRef<void(const Status&)> say);

 private:
  MpiWorld(const LignumMpi& mpi, std::unique_ptr<MessageTransport> transport, int ranks_here);
  Status gather(const Status& own);
  void spread(const Status& outcome);
  Status hand_in(const Status& own);

  const LignumMpi* mpi_;
  const int rank_, size_, ranks_here_;
  std::unique_ptr<MessageTransport> transport_;
};

}  // namespace lignum::comm
