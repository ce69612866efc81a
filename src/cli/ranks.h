// Verbs whose ranks may be processes: under an MPI launcher, or with comm=mpi.
#pragma once

#include <functional>

#include "cli/common.h"
#include "cli/verbs.h"
#include "train/ranks.h"

namespace lignum::cli {

// Runs the verb. Its ranks are threads of this process, unless a launcher (mpiexec, srun) has started
// several, or comm=mpi asks for it: then this process becomes mpiexec, which starts the same command once a
// rank. On each rank's process body is called once; the first one speaks, in the body and for errors of all.
void run_on_ranks(
    const ConfigWords& words, Outcome& outcome,
    const std::function<Status(const config::Config&, const train::Processes&, int& code)>& body);

// Whether this process speaks: it has the first rank, or all.
inline bool speaks(const train::Processes& processes) {
  return processes.transport == nullptr || processes.transport->rank() == 0;
}

}  // namespace lignum::cli
