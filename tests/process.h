// A running program of the tests; its output goes to files of a folder.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "base/file.h"
#include "base/test_folder.h"

namespace lignum::testing {

struct Ended {
  int code = -1;  // exit code; 128 + signal where one ended it
  std::string out, err;
};

class Process {
 public:
  // The binary with these words, or, where `program` is given, that program.
  Process(const TestFolder& folder, std::vector<std::string> words,
          const std::string& program = LIGNUM_BINARY)
      : out_(folder / "stdout"), err_(folder / "stderr") {
    words.insert(words.begin(), program);
    std::vector<char*> argv;
    for (std::string& w : words) argv.push_back(w.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_addopen(&actions, 2, err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    EXPECT_EQ(::posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
  }
  pid_t pid() const { return pid_; }
  void send(int signal) const { ::kill(pid_, signal); }
  Ended wait() const {
    int status = 0;
    EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
    Ended e;
    e.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    e.out = read_text(out_).value();
    e.err = read_text(err_).value();
    return e;
  }

 private:
  std::string out_, err_;
  pid_t pid_ = -1;
};

inline Ended run(const TestFolder& folder, std::vector<std::string> words) {
  return Process(folder, std::move(words)).wait();
}

}  // namespace lignum::testing
