// The list of comm's transport tests on processes: `mpiexec -n 4 mpi_ranks_test`. Every process runs every
// test.
#include <gtest/gtest.h>

#include <cstdio>
#include <numeric>
#include <vector>

#include "comm/allocation_count.h"
#include "comm/mpi_world.h"
#include "comm/test_world.h"

namespace lignum::comm {
namespace {

MpiWorld* processes = nullptr;

// Each run is a world of its own, of the first n processes, on a channel of its own.
class Mpi final : public TestWorld {
 public:
  std::string name() const override { return "Mpi"; }
  bool shares_memory() const override { return false; }
  bool counts_allocations() const override { return !counts_libraries(); }  // an MPI's own are exempt

  Status run(int n, FunctionRef<Status(Transport&)> body) override {
    const int rank = processes->rank();
    LIGNUM_CHECK(n <= processes->size(), "{} ranks of {} processes", n, processes->size());
    Status own;
    if (rank < n) {
      MessageTransport transport(processes->module(), rank, n,
                                 {.channel = ++channel_, .message_bytes = 1 << 20, .piece_bytes = 8192});
      const Status result = body(transport);
      if (!result.ok()) transport.abort(result);
      transport.leave();
      EXPECT_TRUE(transport.quiet());
      own = transport.status();
    } else {
      ++channel_;
    }
    // As where ranks are threads: everybody's status is that of the lowest rank that failed.
    Transport& all = processes->transport();
    if (group_ < 0) {
      std::vector<int> ranks(static_cast<size_t>(all.size()));
      std::iota(ranks.begin(), ranks.end(), 0);
      group_ = all.add_group(ranks).value();
    }
    Status first;
    for (int r = 0; r < all.size(); ++r) {
      struct {
        int32_t code;
        char text[1000];
      } shared{};
      shared.code = static_cast<int32_t>(own.code());
      own.message().copy(shared.text, sizeof shared.text - 1);
      LIGNUM_RETURN_IF_ERROR(all.broadcast_bytes(group_, &shared, sizeof shared, r));
      if (first.ok() && shared.code != 0) first = Status(static_cast<Code>(shared.code), shared.text);
    }
    return first;
  }

 private:
  int channel_ = 0;
  int group_ = -1;
};

}  // namespace

std::vector<TestWorld*> test_worlds() {
  static Mpi mpi;
  return {&mpi};
}

}  // namespace lignum::comm

int main(int argc, char** argv) {
  using namespace lignum;
  testing::InitGoogleTest(&argc, argv);
  Result<std::unique_ptr<comm::MpiWorld>> world = comm::MpiWorld::join();
  if (!world.ok()) {
    std::fprintf(stderr, "%s\n", world.status().message().c_str());
    return 3;
  }
  comm::processes = world->get();
  const int failed = RUN_ALL_TESTS();
  const Status end = (*world)->close({}, [](const Status&) {});
  return failed != 0 || !end.ok() ? 1 : 0;
}
