#include "cli/ranks.h"

#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "comm/mpi_launch.h"
#include "comm/mpi_world.h"

namespace lignum::cli {
namespace {

// The configuration of a rank among `size` processes: `ranks` is their number where nothing else says so.
Result<config::Config> load_for(const ConfigWords& words, int size) {
  LIGNUM_ASSIGN_OR_RETURN(config::Config config, words.load());
  if (config.text("comm") == "threads" && size > 1) {
    return user_error(
        "comm=threads under an MPI launcher that started {} processes: each would be a run of its own; leave "
        "comm out, "
        "or start lignum without the launcher",
        size);
  }
  if (config.is_set("ranks") || config.ranks() == size) return config;
  return words.load({fmt::format("ranks={}", size)});
}

}  // namespace

void run_on_ranks(
    const ConfigWords& words, Outcome& outcome,
    const std::function<Status(const config::Config&, const train::Processes&, int& code)>& body) {
  const std::optional<comm::Launched> self = comm::launched();
  if (!self) {
    const Result<config::Config> config = words.load();
    outcome.status = !config.ok()                    ? config.status()
                     : config->text("comm") == "mpi" ? comm::start_ranks(static_cast<int>(config->ranks()))
                                                     : body(*config, {}, outcome.code);
    return;
  }
  const Result<int> silence = comm::heartbeat_seconds();
  comm::guard_rank(*self, silence.ok() ? *silence : 0);
  Result<std::unique_ptr<comm::MpiWorld>> world = comm::MpiWorld::join();
  if (!world.ok()) {
    outcome.status = world.status();
    // All fail in the same way. The first to exit takes the others with it: it is the one that speaks.
    outcome.said = self->rank != 0;
    if (outcome.said) ::sleep(1);
    return;
  }
  const auto on_this_rank = [&]() -> Status {
    LIGNUM_RETURN_IF_ERROR(silence.status());
    LIGNUM_ASSIGN_OR_RETURN(const config::Config config, load_for(words, self->size));
    return body(config, {&(*world)->transport(), (*world)->ranks_here()}, outcome.code);
  };
  outcome.status = (*world)->close(on_this_rank(), [](const Status& status) {
    std::cout.flush();
    std::fflush(stdout);
    if (!status.ok()) fmt::print(stderr, "lignum: {}\n", status.message());
  });
  outcome.said = true;
}

}  // namespace lignum::cli
