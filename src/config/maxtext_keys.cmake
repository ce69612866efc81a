# MaxText's keys and defaults, compiled into lignum_config: the binary does not need the source tree.
set(maxtext_keys_csv ${CMAKE_SOURCE_DIR}/specs/maxtext_keys.csv)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${maxtext_keys_csv})
file(READ ${maxtext_keys_csv} maxtext_keys_text)
set(generated ${CMAKE_CURRENT_BINARY_DIR}/maxtext_keys.cc)
file(CONFIGURE OUTPUT ${generated} @ONLY CONTENT [=[
#include "config/keys.h"

namespace lignum::config {

const std::string_view kMaxTextKeysCsv = R"lignum_csv(@maxtext_keys_text@)lignum_csv";

}  // namespace lignum::config
]=])
target_sources(lignum_config PRIVATE ${generated})
target_link_libraries(lignum_config PRIVATE yaml-cpp)
