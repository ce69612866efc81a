// The bytes of a step's params, wherever the plan has put them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "exec/executor.h"

namespace lignum::exec {

// One param, row by row: in the arena it is seen as it lies there, in host memory through a copy of one row
// (passes::HostRows), so that no param is ever held whole beside its place. Not during a step, and one view
// of a param at a time.
class ParamView {
 public:
  ParamView(Executor& executor, int64_t param);
  ParamView(Executor& executor, std::string_view name);
  ParamView(ParamView&&) = default;

  // The address of the param's byte `at`, good to the end of its row and until the next call. What is written
  // there is kept after write(), by the next call or by finish().
  const std::byte* read(int64_t at) { return address(at, false); }
  std::byte* write(int64_t at) { return address(at, true); }
  int64_t bytes() const { return bytes_; }
  int64_t row_bytes() const { return row_bytes_; }
  // Once, at the end: the first error of all transfers. After one, addresses lead nowhere that counts.
  Status finish();

 private:
  std::byte* address(int64_t at, bool written);
  void put();

  Executor* executor_;
  int64_t param_, bytes_, row_bytes_;
  std::byte* arena_ = nullptr;   // null: host memory
  std::vector<std::byte> copy_;  // of row_
  int64_t row_ = -1;
  bool written_ = false;
  Status status_;
};

}  // namespace lignum::exec
