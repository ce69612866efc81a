// CRC-32C (Castagnoli, the polynomial of iSCSI and ext4): finds a torn or decayed file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lignum::train {

// Of `bytes`, continued from the CRC of what came before them (0 at the start).
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before = 0);

}  // namespace lignum::train
