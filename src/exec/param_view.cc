#include "exec/param_view.h"

namespace lignum::exec {

ParamView::ParamView(Executor& executor, int64_t param) : executor_(&executor), param_(param) {
  const ir::Type& type = executor.param_type(param);
  bytes_ = row_bytes_ = type.bytes();
  if (!type.host) {
    arena_ = executor.param(param);
    return;
  }
  row_bytes_ = passes::host_rows(type).bytes;
  copy_.resize(static_cast<size_t>(row_bytes_));
}

ParamView::ParamView(Executor& executor, std::string_view name)
    : ParamView(executor, executor.param_index(name)) {}

std::byte* ParamView::address(int64_t at, bool written) {
  LIGNUM_CHECK(at >= 0 && at <= bytes_, "byte {} of a param of {}", at, bytes_);
  if (arena_ != nullptr) return arena_ + at;
  const int64_t row = row_bytes_ == 0 ? 0 : at / row_bytes_;
  if (row != row_) {
    put();
    row_ = row;
    if (status_.ok() && at < bytes_) status_ = executor_->read_row(param_, row, copy_.data());
  }
  written_ |= written;
  return copy_.data() + (at - row * row_bytes_);
}

void ParamView::put() {
  if (written_ && status_.ok()) status_ = executor_->write_row(param_, row_, copy_.data());
  written_ = false;
}

Status ParamView::finish() {
  put();
  return status_;
}

}  // namespace lignum::exec
