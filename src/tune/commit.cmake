# The commit that the binary was built from goes into what it measures. Looked up at every build, since configuring
# is rarer than committing; the file changes, and its one reader recompiles, only when the commit does.
set(LIGNUM_COMMIT_FILE ${CMAKE_BINARY_DIR}/generated/tune_commit.h)
add_custom_target(lignum_commit
  COMMAND ${CMAKE_COMMAND} -DSOURCE=${CMAKE_SOURCE_DIR} -DOUT=${LIGNUM_COMMIT_FILE}
          -P ${CMAKE_CURRENT_LIST_DIR}/write_commit.cmake
  BYPRODUCTS ${LIGNUM_COMMIT_FILE}
  COMMENT "commit")
add_dependencies(lignum_tune lignum_commit)
target_include_directories(lignum_tune PRIVATE ${CMAKE_BINARY_DIR}/generated)
