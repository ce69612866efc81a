#define LIGNUM_ROWS_ISA rows_scalar
#include "kernels/rows_impl.h"

namespace lignum::kernels {
const RowTable kRowsScalar = rows_scalar::kTable;
}  // namespace lignum::kernels
