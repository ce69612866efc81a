// Ranks as processes: the same bits as ranks that are threads.
#include "mpi.h"

namespace lignum::testing {
namespace {

TEST_F(Mpi, TransportsPassTheSameTests) {
  const Ended e = Process(f, {"-n", "4", LIGNUM_TEST_RANKS, "--gtest_brief=1"}, kMpiexec).wait();
  EXPECT_EQ(e.code, 0) << e.out << e.err;
}

TEST_F(Mpi, HasTheBitsOfThreads) {
  const std::vector<std::vector<std::string>> levers = {
      {"ici_data_parallelism=2", "ici_fsdp_parallelism=1"},
      {"ici_fsdp_parallelism=2", "gradient_accumulation_steps=2"},
      {"ici_pipeline_parallelism=2", "ici_fsdp_parallelism=1"},
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

TEST_F(Mpi, SigtermSaves) {
  const std::string yml = f / "tiny.yml";
  const Process p(f,
                  {"train", yml, "run_name=a", "steps=100000", "ranks=2", "comm=mpi", "checkpoint_period=2"});
  ASSERT_TRUE(within_a_minute([&] { return newest("a") > 0; }));
  // Another run in its folder is refused meanwhile.
  const RunFolder elsewhere;
  const Ended second = run(elsewhere, {"train", yml, "run_name=a", "ranks=2", "comm=mpi"});
  EXPECT_EQ(second.code, 2);
  EXPECT_NE(second.err.find("the lock of the run"), std::string::npos) << second.err;
  p.send(SIGTERM);
  const Ended e = p.wait();
  EXPECT_EQ(e.code, 143) << e.err;
  const int64_t at = newest("a");
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
