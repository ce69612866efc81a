#define LIGNUM_ROWS_ISA rows_avx512
#include "kernels/rows_impl.h"

namespace lignum::kernels {
const RowTable kRowsAvx512 = rows_avx512::kTable;
}  // namespace lignum::kernels
