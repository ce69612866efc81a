// The text of specs/*.json as it was when the binary was built (specs.cmake).
#pragma once

#include <string_view>
#include <vector>

namespace lignum::hw {

struct EmbeddedSpec {
  std::string_view name;
  std::string_view json;
};
const std::vector<EmbeddedSpec>& embedded_specs();

}  // namespace lignum::hw
