// Any text: parse refuses it or gives a graph that prints, and whose print parses to the same text. Whatever
// parses is also walked by the passes that take any structure.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "ir/graph.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lignum::ir;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  lignum::Result<Graph> graph = parse(text);
  if (!graph.ok()) {
    LIGNUM_CHECK(!graph.status().message().empty());
    return 0;
  }
  const std::string printed = print(*graph);
  const lignum::Result<Graph> again = parse(printed);
  LIGNUM_CHECK(again.ok(), "{}\n{}", again.status().message(), printed);
  LIGNUM_CHECK(print(*again) == printed, "{}", printed);

  const Graph small = prune(*graph);
  const lignum::Status status = verify_structure(small);
  LIGNUM_CHECK(status.ok(), "{}\n{}\n{}", status.message(), printed, print(small));
  LIGNUM_CHECK(print(prune(small)) == print(small), "{}", printed);
  number_origins(*graph);
  return 0;
}
