// Ranks as processes: the same bits as ranks that are threads, and how such a run ends.
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <thread>

#include "process.h"
#include "runs.h"
#include "train/checkpoint.h"

namespace lignum::testing {
namespace {

const std::string kMpiexec = LIGNUM_TEST_MPIEXEC;

class Mpi : public ::testing::Test {
 protected:
  void SetUp() override {
    // An MPI keeps memory until the process ends.
    const char* sanitizer = std::getenv("ASAN_OPTIONS");
    ::setenv("ASAN_OPTIONS", (std::string(sanitizer == nullptr ? "" : sanitizer) + ":detect_leaks=0").c_str(),
             1);
    if (kMpiexec.empty()) GTEST_SKIP() << "this build has no MPI: run scripts/setup-mpi and build again";
  }
  Ended mpi(std::vector<std::string> words) const {
    words.insert(words.begin() + 1, f / "tiny.yml");
    words.insert(words.end(), {"ranks=2", "comm=mpi"});
    return run(f, std::move(words));
  }
  void same_run(const std::string& a, const std::string& b, int64_t step) const {
    EXPECT_EQ(f.steps(a), f.steps(b)) << a << " " << b;
    EXPECT_EQ(f.tensors(a, step), f.tensors(b, step)) << a << " " << b;
  }
  RunFolder f;
};

// The process of a rank: of the two that have it in their environment, the one that the other has started.
pid_t process_of_rank(pid_t launcher, int rank) {
  const std::function<pid_t(pid_t)> find = [&](pid_t parent) -> pid_t {
    std::ifstream children(fmt::format("/proc/{0}/task/{0}/children", parent));
    for (pid_t child = 0; children >> child;) {
      if (const pid_t deeper = find(child); deeper > 0) return deeper;
      std::ifstream variables(fmt::format("/proc/{}/environ", child));
      for (std::string v; std::getline(variables, v, '\0');)
        if (v == fmt::format("PMI_RANK={}", rank)) return child;
    }
    return -1;
  };
  return find(launcher);
}

bool alive(pid_t pid) { return ::kill(pid, 0) == 0; }

template <class Condition>
bool within_a_minute(Condition condition) {
  for (int i = 0; i < 6000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

TEST_F(Mpi, TransportsPassTheSameTests) {
  const Ended e = Process(f, {"-n", "4", LIGNUM_TEST_RANKS, "--gtest_brief=1"}, kMpiexec).wait();
  EXPECT_EQ(e.code, 0) << e.out << e.err;
}

TEST_F(Mpi, HasTheBitsOfThreads) {
  const std::vector<std::vector<std::string>> levers = {
      {"ici_data_parallelism=2", "ici_fsdp_parallelism=1"},
      {"ici_fsdp_parallelism=2", "gradient_accumulation_steps=2"},
      {"ici_fsdp_parallelism=2", "dtype=bfloat16", "eval_interval=2"},
  };
  for (size_t i = 0; i < levers.size(); ++i) {
    std::vector<std::string> words = levers[i];
    words.push_back("steps=3");
    const std::string threads = fmt::format("threads{}", i), processes = fmt::format("processes{}", i);
    std::vector<std::string> of_threads = words;
    of_threads.push_back("ranks=2");
    ASSERT_TRUE(f.train(threads, of_threads).ok());
    words.insert(words.begin(), {"train", "run_name=" + processes});
    const Ended e = mpi(words);
    ASSERT_EQ(e.code, 0) << e.err;
    EXPECT_EQ(e.err, "");
    same_run(threads, processes, 3);
  }
}

TEST_F(Mpi, ARunGoesFromThreadsToProcessesAndBack) {
  ASSERT_TRUE(f.train("whole", {"ranks=2"}).ok());
  ASSERT_TRUE(f.train("parts", {"ranks=2", "steps=2"}).ok());
  // A launcher's processes are the ranks where nothing says how many.
  const Ended e =
      Process(f, {"-n", "2", LIGNUM_BINARY, "train", f / "tiny.yml", "run_name=parts", "steps=5"}, kMpiexec)
          .wait();
  ASSERT_EQ(e.code, 0) << e.err;
  ASSERT_TRUE(f.train("parts", {"ranks=2"}).ok());
  same_run("parts", "whole", 8);

  const Ended processes = mpi({"eval", "run_name=parts", "--json"});
  ASSERT_EQ(processes.code, 0) << processes.err;
  const Ended threads = run(f, {"eval", f / "tiny.yml", "run_name=parts", "ranks=2", "--json"});
  EXPECT_EQ(nlohmann::json::parse(processes.out)["eval_loss"],
            nlohmann::json::parse(threads.out)["eval_loss"]);
}

// One message, from whichever rank, and the code that one process would have ended with.
TEST_F(Mpi, MistakesEndAllRanksWithOneMessage) {
  const std::string yml = f / "tiny.yml";
  const auto launch = [&](std::vector<std::string> first, std::vector<std::string> second) {
    std::vector<std::string> words = {"-n", "1", LIGNUM_BINARY, "train", yml, "run_name=a"};
    words.insert(words.end(), first.begin(), first.end());
    words.insert(words.end(), {":", "-n", "1", LIGNUM_BINARY, "train", yml, "run_name=a"});
    words.insert(words.end(), second.begin(), second.end());
    return Process(f, words, kMpiexec).wait();
  };
  const auto expect = [](const Ended& e, const std::string& message) {
    EXPECT_EQ(e.code, 2) << e.err;
    EXPECT_EQ(e.err.substr(0, message.size()), message);
    EXPECT_EQ(std::count(e.err.begin(), e.err.end(), '\n'), 1) << e.err;
  };
  expect(launch({"stepz=1"}, {"stepz=1"}), "lignum: command line: unknown key 'stepz'");
  expect(launch({}, {"stepz=1"}), "lignum: rank 1: command line: unknown key 'stepz'");
  expect(launch({}, {"steps=5"}), "lignum: rank 1: steps is 5 here, 8 on rank 0");
  expect(launch({"comm=threads"}, {"comm=threads"}), "lignum: comm=threads under an MPI launcher");
  expect(launch({"ranks=3"}, {"ranks=3"}), "lignum: 3 ranks");
  const Ended small = mpi({"train", "run_name=a", "device_memory=1KiB"});  // with a table, once
  EXPECT_EQ(small.code, 2) << small.err;
  EXPECT_TRUE(small.err.starts_with("lignum: device_memory=1024")) << small.err;
  EXPECT_EQ(small.err.find("lignum: ", 1), std::string::npos) << small.err;
}

TEST_F(Mpi, SigtermSavesAndADeathLosesNoCheckpoint) {
  const std::string yml = f / "tiny.yml";
  const auto start = [&](int64_t period) {
    return Process(f, {"train", yml, "run_name=a", "steps=100000", "ranks=2", "comm=mpi",
                       fmt::format("checkpoint_period={}", period)});
  };
  const auto newest = [&] {
    const auto steps = train::list_checkpoints(f.run("a"));
    return steps.ok() && !steps->empty() ? steps->back() : -1;
  };
  for (const int rank : {0, 1}) {
    const int64_t before = newest();
    const Process p = start(2);
    ASSERT_TRUE(within_a_minute([&] { return newest() > before; }));
    const pid_t victim = process_of_rank(p.pid(), rank), other = process_of_rank(p.pid(), 1 - rank);
    ASSERT_GT(victim, 0);
    ASSERT_GT(other, 0);
    ::kill(victim, SIGKILL);
    const Ended e = p.wait();
    EXPECT_NE(e.code, 0);
    EXPECT_NE(
        e.err.find(fmt::format("lignum: rank {} of 2 (process {}) was ended by signal 9", rank, victim)),
        std::string::npos)
        << e.err;
    EXPECT_TRUE(within_a_minute([&] { return !alive(victim) && !alive(other); }));
    const auto kept = train::open_checkpoint(f.checkpoint("a", newest()));
    EXPECT_TRUE(kept.ok()) << kept.status().message();
  }
  const int64_t before = newest();
  const Process p = start(2);
  ASSERT_TRUE(within_a_minute([&] { return newest() > before; }));
  // Another run in its folder is refused meanwhile.
  const RunFolder elsewhere;
  const Ended second = run(elsewhere, {"train", yml, "run_name=a", "ranks=2", "comm=mpi"});
  EXPECT_EQ(second.code, 2);
  EXPECT_NE(second.err.find("the lock of the run"), std::string::npos) << second.err;
  p.send(SIGTERM);
  const Ended e = p.wait();
  EXPECT_EQ(e.code, 143) << e.err;
  const int64_t at = newest();
  ASSERT_EQ(mpi({"train", "run_name=a", fmt::format("steps={}", at + 2)}).code, 0);
  ASSERT_TRUE(f.train("whole", {"ranks=2", fmt::format("steps={}", at + 2)}).ok());
  same_run("a", "whole", at + 2);
}

TEST(MpiAbsent, IsAnErrorWithAFix) {
  const RunFolder f;
  for (const char* variable : {"LIGNUM_MPI_MODULE", "LIGNUM_MPIEXEC"}) {
    ::setenv(variable, "/absent", 1);
    const Ended e = run(f, {"train", f / "tiny.yml", "ranks=2", "comm=mpi"});
    ::unsetenv(variable);
    EXPECT_EQ(e.code, 2);
    EXPECT_TRUE(e.err.starts_with(fmt::format("lignum: comm=mpi: {}=/absent", variable))) << e.err;
    EXPECT_NE(e.err.find("unset the variable"), std::string::npos) << e.err;
  }
}

}  // namespace
}  // namespace lignum::testing
