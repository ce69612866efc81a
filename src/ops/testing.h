// What the generic tests of ops share. Nothing here names an op: all comes from its facets and cases.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ops/cases.h"
#include "ops/interpreter.h"
#include "ops/rules.h"

namespace lignum::ops {

// Two real threads: odd tasks on one, even ones on the other.
class TwoThreads final : public Parallel {
 public:
  int threads() const override { return 2; }
  void run(int64_t tasks, FunctionRef<void(int64_t, int)> fn) override {
    std::thread other([&] {
      for (int64_t t = 1; t < tasks; t += 2) fn(t, 1);
    });
    for (int64_t t = 0; t < tasks; t += 2) fn(t, 0);
    other.join();
  }
};

struct OpCase {
  const Op* op;
  Case c;
};
inline std::string case_name(const OpCase& p) {
  std::string name = fmt::format("{}_{}", p.op->name, p.c.name);
  for (char& ch : name)
    if (!std::isalnum(static_cast<unsigned char>(ch))) ch = '_';
  return name;
}
inline std::string param_name(const ::testing::TestParamInfo<OpCase>& info) { return case_name(info.param); }
inline void PrintTo(const OpCase& p, std::ostream* os) { *os << case_name(p); }

// Cases of one rank (collective: of groups alone), large ones left to the benchmarks.
inline std::vector<OpCase> op_cases(bool collective) {
  std::vector<OpCase> out;
  for (const Op* op : all_ops())
    for (Case& c : op->cases())
      if (!c.bench && (op->reference_group != nullptr) == collective) out.push_back({op, std::move(c)});
  return out;
}

// Prints into a list of lines, on a mesh of two ranks.
class Lines final : public Emitter {
 public:
  std::string fresh() override { return fmt::format("%v{}", count_++); }
  void line(std::string text) override { lines.push_back(std::move(text)); }
  std::vector<std::vector<int64_t>> groups(std::string_view) override { return {{0, 1}}; }
  std::vector<std::string> lines;

 private:
  int count_ = 0;
};

inline std::vector<const RefTensor*> pointers(const std::vector<RefTensor>& list) {
  std::vector<const RefTensor*> out;
  for (const RefTensor& t : list) out.push_back(&t);
  return out;
}
inline std::vector<RefTensor> values_of(const std::vector<CaseTensor>& inputs) {
  std::vector<RefTensor> out;
  for (const CaseTensor& t : inputs) out.push_back(t.values);
  return out;
}

}  // namespace lignum::ops
