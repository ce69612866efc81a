// Errors as values. A user's mistake travels as a Status whose text names the key or op, the value, what is
// allowed and a fix; a broken invariant of ours aborts at once with its values (LIGNUM_CHECK). Nothing falls
// back silently.
#pragma once

#include <fmt/core.h>

#include <optional>
#include <string>
#include <utility>

namespace lignum {

// The numbers are the process's exit codes (docs/architecture.md).
enum class Code { ok = 0, check_failed = 1, user_error = 2, internal = 3 };

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::ok; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

  // The same error with "context: " in front: which file, which tensor, which rank.
  Status with_context(const std::string& context) const {
    return ok() ? *this : Status(code_, context + ": " + message_);
  }

 private:
  Code code_ = Code::ok;
  std::string message_;
};

template <class... A>
Status user_error(fmt::format_string<A...> format, A&&... args) {
  return Status(Code::user_error, fmt::format(format, std::forward<A>(args)...));
}
template <class... A>
Status check_failed(fmt::format_string<A...> format, A&&... args) {
  return Status(Code::check_failed, fmt::format(format, std::forward<A>(args)...));
}
template <class... A>
Status internal_error(fmt::format_string<A...> format, A&&... args) {
  return Status(Code::internal, fmt::format(format, std::forward<A>(args)...));
}

[[noreturn]] void abort_with(const char* file, int line, const char* condition, const std::string& message);

// A value or the error that kept it from being made. Reading the value of an error aborts.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT: conversions are the point
  Result(Status status) : status_(std::move(status)) {}  // NOLINT

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return checked(); }
  const T& value() const& { return const_cast<Result*>(this)->checked(); }
  T&& value() && { return std::move(checked()); }
  T& operator*() { return checked(); }
  const T& operator*() const { return value(); }
  T* operator->() { return &checked(); }
  const T* operator->() const { return &value(); }

 private:
  T& checked() {
    if (!value_) abort_with(__FILE__, __LINE__, "Result holds a value", status_.message());
    return *value_;
  }
  std::optional<T> value_;
  Status status_;
};

}  // namespace lignum

#define LIGNUM_CONCAT_(a, b) a##b
#define LIGNUM_CONCAT(a, b) LIGNUM_CONCAT_(a, b)

#define LIGNUM_RETURN_IF_ERROR(expr)                                                           \
  do {                                                                                         \
    if (::lignum::Status lignum_status_ = (expr); !lignum_status_.ok()) return lignum_status_; \
  } while (false)

// LIGNUM_ASSIGN_OR_RETURN(auto x, f()): x = the value of f(), or return its error.
#define LIGNUM_ASSIGN_OR_RETURN(lhs, expr) \
  LIGNUM_ASSIGN_OR_RETURN_(LIGNUM_CONCAT(lignum_result_, __LINE__), lhs, expr)
#define LIGNUM_ASSIGN_OR_RETURN_(tmp, lhs, expr) \
  auto tmp = (expr);                             \
  if (!tmp.ok()) return tmp.status();            \
  lhs = std::move(tmp).value()

// LIGNUM_CHECK(a == b, "a {} b {}", a, b): an invariant of ours, with the values that broke it.
#define LIGNUM_CHECK(condition, ...)                                                                       \
  do {                                                                                                     \
    if (!(condition)) ::lignum::abort_with(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
  } while (false)
