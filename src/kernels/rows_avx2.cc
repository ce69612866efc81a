#define LIGNUM_ROWS_ISA rows_avx2
#include "kernels/rows_impl.h"

namespace lignum::kernels {
const RowTable kRowsAvx2 = rows_avx2::kTable;
}  // namespace lignum::kernels
