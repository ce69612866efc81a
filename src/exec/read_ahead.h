// What a step reads, made ahead of it by threads of its own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace lignum::exec {

// Items 0, 1, 2, ... in the slots 0..slots-1 of whoever owns this. Each worker takes the next item's number
// and makes it; with no worker, next() makes it itself. What an item holds does not depend on the number of
// workers as long as `make` goes by its number alone.
class ReadAhead {
 public:
  // Makes item `number` in `slot`, whose item before nobody reads any more. Called from several threads at
  // once, each with another slot.
  using Make = std::function<void(int64_t number, int64_t slot)>;

  // ready: items that may wait, made, while another is read.
  ReadAhead(int workers, int64_t ready, Make make);
  ~ReadAhead();  // items being made are finished
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // How many slots `make` will see.
  static int64_t slots(int workers, int64_t ready);

  // The slot of the next item, which stays as it is until the next call. From one thread at a time.
  int64_t next();

 private:
  void work();

  const Make make_;
  std::vector<int64_t>
      numbers_;  // of the item that each slot holds; item n goes into slot n mod their number
  std::mutex mutex_;
  std::condition_variable filled_, emptied_;
  int64_t given_ = 0;  // items that next() has returned: the last of them is still being read
  int64_t taken_ = 0;  // numbers that workers have taken
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace lignum::exec
