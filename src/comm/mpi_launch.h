// Ranks as processes: how they come to be, and what becomes of them when one dies. Needs no MPI itself.
#pragma once

#include <optional>
#include <string>

#include "base/status.h"

namespace lignum::comm {

// What an MPI launcher (mpiexec, srun) tells a process that it starts, by environment variables.
struct Launched {
  int rank = 0;
  int size = 1;
};
std::optional<Launched> launched();

// Replaces this process by `mpiexec -n RANKS` of the command line that it was started with. Returns only with
// an error: no mpiexec, or this build has no MPI.
Status start_ranks(int ranks);

// Called by a launched process before it has threads. The caller returns as a child, which is the rank; its
// parent waits for it, hands on signals and the exit code, and when a signal kills the rank says so in one
// line that names it. (A launcher names a process number at best, and kills the others before they can say
// anything.) A rank outlives neither.
//
// A thread of the rank does nothing but count, once a second, whatever a step takes. A rank that has not
// counted for `silence` seconds (stopped, or without a processor) is ended by its guard, which says so; so is
// one that has not met the others (rank_has_joined) in twice that. 0 seconds: never, for a debugger that
// stops it. A guard that was itself suspended does not count that time.
void guard_rank(const Launched& self, int silence);
// Tells the guard that the ranks have met.
void rank_has_joined();

// LIGNUM_HEARTBEAT_SECONDS: 0 (no watch) or 2 to 86400; 15 where it is not set.
Result<int> heartbeat_seconds();

// liblignum_mpi.so: LIGNUM_MPI_MODULE, else beside the binary. An error names what was tried.
Result<std::string> find_mpi_module();

}  // namespace lignum::comm
