# The specifications of specs/*.json, compiled into lignum_hw: the binary does not need the source tree.
file(GLOB LIGNUM_SPEC_FILES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/specs/*.json)
set(entries "")
foreach(file ${LIGNUM_SPEC_FILES})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  get_filename_component(name ${file} NAME_WE)
  file(READ ${file} text)
  string(APPEND entries "    {\"${name}\", R\"lignum_spec(${text})lignum_spec\"},\n")
endforeach()
set(generated ${CMAKE_CURRENT_BINARY_DIR}/embedded_specs.cc)
file(CONFIGURE OUTPUT ${generated} @ONLY CONTENT [=[
#include "hw/embedded_specs.h"

namespace lignum::hw {

const std::vector<EmbeddedSpec>& embedded_specs() {
  static const std::vector<EmbeddedSpec> kSpecs = {
@entries@  };
  return kSpecs;
}

}  // namespace lignum::hw
]=])
target_sources(lignum_hw PRIVATE ${generated})
