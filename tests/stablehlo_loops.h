// What the tracer test reads off printed StableHLO: the loops, and what each value of a body depends on. The
// text is that of pjrt/print.h: one statement a line, a loop's braces at the loop's own indentation.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace lignum::tracer {

// What a value depends on.
enum Source : unsigned {
  kCounter = 1,   // the loop's counter
  kIncoming = 2,  // its first carry: the hidden state, or in a backward loop the gradient
  kLoop = 4,      // any other value that the loop hands in, not through a barrier
  kBarrier = 8,   // what came through a barrier
};

struct LoopBody {
  int64_t gathers = 0;        // all_gathers of row `counter` of something
  int64_t other_gathers = 0;  // all_gathers of what is the same in each iteration
  int64_t dots = 0;
  int64_t recomputed =
      0;  // dots that the incoming carry does not reach: in a backward loop, the forward pass again
  int64_t unprotected = 0;  // of these, those that do not come from behind a barrier
  int64_t barriers = 0;
};

struct Loops {
  std::vector<LoopBody> bodies;  // those of the main function, in order
  int64_t gathers_outside = 0;
};

namespace text {

inline std::vector<std::string_view> lines(std::string_view all) {
  std::vector<std::string_view> out;
  for (size_t begin = 0; begin < all.size();) {
    const size_t end = std::min(all.find('\n', begin), all.size());
    out.push_back(all.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}
inline size_t indentation(std::string_view line) {
  return std::min(line.find_first_not_of(' '), line.size());
}

// "%v3", "%v7#1", "%arg0" in order.
inline std::vector<std::string> names(std::string_view part) {
  std::vector<std::string> out;
  for (size_t at = part.find('%'); at != std::string_view::npos; at = part.find('%', at + 1)) {
    size_t end = at + 1;
    while (end < part.size() &&
           (std::isalnum(static_cast<unsigned char>(part[end])) != 0 || part[end] == '_' || part[end] == '#'))
      ++end;
    out.emplace_back(part.substr(at, end - at));
  }
  return out;
}
inline std::string base(const std::string& name) { return name.substr(0, name.find('#')); }

struct Statement {
  std::string result;  // without a count of results; "" when there is none
  std::string_view op, rest;
};
inline Statement statement(std::string_view line) {
  Statement s;
  line.remove_prefix(indentation(line));
  if (line.starts_with("//")) return s;
  if (line.starts_with("%")) {
    const size_t equals = line.find(" = ");
    if (equals == std::string_view::npos) return s;
    s.result = std::string(line.substr(0, std::min(line.find(':'), equals)));
    line.remove_prefix(equals + 3);
  }
  const size_t op = line.find("stablehlo.");
  if (op > 1) return s;  // npos, too
  const size_t end = line.find_first_of(" \"(", op);
  s.op = line.substr(op, end - op);
  s.rest = end == std::string_view::npos ? "" : line.substr(end);
  return s;
}

inline LoopBody read_body(const std::vector<std::string_view>& all, size_t begin, size_t end,
                          std::map<std::string, unsigned> sources) {
  LoopBody body;
  const auto of = [&](const std::string& name) {
    const auto it = sources.find(name);
    if (it != sources.end()) return it->second;
    const auto whole = sources.find(base(name));
    return whole == sources.end() ? 0U : whole->second;
  };
  for (size_t i = begin; i < end; ++i) {
    const Statement s = statement(all[i]);
    if (s.op.empty()) continue;
    const std::vector<std::string> operands = names(s.rest);
    unsigned from = 0;
    for (const std::string& o : operands) from |= of(o);
    if (s.op == "stablehlo.optimization_barrier") {
      ++body.barriers;
      // Results depend on their own operands alone.
      for (size_t k = 0; k < operands.size(); ++k) {
        const std::string name = operands.size() == 1 ? s.result : fmt::format("{}#{}", s.result, k);
        sources[name] = (of(operands[k]) & (kCounter | kIncoming)) | kBarrier;
      }
      continue;
    }
    if (s.op == "stablehlo.all_gather") ++((from & kCounter) != 0 ? body.gathers : body.other_gathers);
    if (s.op == "stablehlo.dot_general") {
      ++body.dots;
      if ((from & kIncoming) == 0) {
        ++body.recomputed;
        if ((from & kBarrier) == 0) ++body.unprotected;
      }
    }
    if (!s.result.empty()) sources[s.result] = from;
  }
  return body;
}

}  // namespace text

inline Result<Loops> read_loops(std::string_view module) {
  const auto all = text::lines(module);
  Loops out;
  for (size_t i = 0; i < all.size(); ++i) {
    const text::Statement s = text::statement(all[i]);
    if (s.op == "stablehlo.all_gather") ++out.gathers_outside;
    if (s.op != "stablehlo.while") continue;
    // Bindings: "(%inside = %outside, ...".
    const std::vector<std::string> bound = text::names(s.rest.substr(0, s.rest.find(')')));
    std::map<std::string, unsigned> sources;
    for (size_t k = 0; k < bound.size(); k += 2)
      sources[bound[k]] = k == 0 ? kCounter : k == 2 ? kIncoming : kLoop;
    const std::string margin(text::indentation(all[i]), ' ');
    size_t begin = i;
    while (begin < all.size() && all[begin] != margin + "} do {") ++begin;
    size_t end = begin;
    while (end < all.size() && all[end] != margin + "}") ++end;
    if (end >= all.size()) return check_failed("line {}: a loop without a body's end", i + 1);
    out.bodies.push_back(text::read_body(all, begin + 1, end, std::move(sources)));
    i = end;
  }
  return out;
}

}  // namespace lignum::tracer
