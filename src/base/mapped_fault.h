// Reading a mapping of a file that another process has shortened raises SIGBUS. For the mappings named here
// the process then ends with exit code 2 and one line that names the file, instead of a bare signal; what it
// had published (checkpoints) is whole. Other SIGBUS go where they went before.
#pragma once

#include <cstddef>
#include <string>

namespace lignum {

// Names the mapping [data, data + size) until forget_mapping(data). The first call installs the handler.
// At most kNamedMappings at a time are named (a checkpoint in many files may exceed it): those beyond are
// not.
inline constexpr size_t kNamedMappings = 256;
void name_mapping(const void* data, size_t size, const std::string& path);
void forget_mapping(const void* data);

}  // namespace lignum
