# What the room pjrt needs from outside: the C header to build, and where it looks for plug-ins at run time.
if(NOT EXISTS ${LIGNUM_DEPS_DIR}/include/pjrt_c_api.h)
  message(FATAL_ERROR "${LIGNUM_DEPS_DIR}/include/pjrt_c_api.h is missing: run scripts/setup-pjrt, which fetches "
                      "the PJRT C header and the plug-ins (or set LIGNUM_DEPS_DIR to where it put them).")
endif()
target_include_directories(lignum_pjrt SYSTEM PRIVATE ${LIGNUM_DEPS_DIR}/include)
target_compile_definitions(lignum_pjrt PRIVATE LIGNUM_PLUGIN_DIR="${LIGNUM_DEPS_DIR}/plugins")
target_link_libraries(lignum_pjrt PUBLIC ${CMAKE_DL_LIBS})
