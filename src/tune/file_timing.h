// What a file in a folder takes and gives, through the copy engine's own code (exec/host_memory.h).
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "hw/cpu_curves.h"

namespace lignum::tune {

// Writes and reads of several sizes, each the median of its samples, in about `seconds`. `when` is put behind
// the folder in the points' source. Errors: HostMemory::create's.
Result<std::vector<hw::HostFilePoint>> time_file(const std::string& folder, double seconds,
                                                 const std::string& when);

}  // namespace lignum::tune
