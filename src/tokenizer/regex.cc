#include "tokenizer/regex.h"

#include "base/text.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace lignum::tokenizer {
namespace {

constexpr size_t kMaxExpression = 1 << 16;
constexpr uint32_t kMatchLimit = 20'000'000;  // PCRE2's own count of backtracking steps of one match
constexpr uint32_t kHeapLimit = 64 << 10;     // KiB
constexpr const char* kWord = R"(\p{L}\p{M}\p{N}\p{Pc})";

// From Oniguruma's syntax to PCRE2's.
class Translator {
 public:
  explicit Translator(std::string_view in) : in_(in) {}

  Result<std::string> run() {
    for (size_t i = 0; i < in_.size(); ++i) {
      const char c = in_[i];
      if (c == '\\') {
        if (++i == in_.size()) return refuse("a \\ at the end");
        LIGNUM_RETURN_IF_ERROR(escape(in_[i]));
        continue;
      }
      if (in_class_) {
        if (c == '[') return refuse("a class inside a class");
        if (in_.substr(i, 2) == "&&") return refuse("&& in a class");
        const bool first = i == class_begin_ || (i == class_begin_ + 1 && in_[class_begin_] == '^');
        if (c == ']' && !first) in_class_ = false;
      } else if (c == '[') {
        in_class_ = true;
        class_begin_ = i + 1;
      } else if (c == '}' && i + 1 < in_.size() && in_[i + 1] == '+') {
        return refuse("a quantifier of a quantifier, }+");
      } else if (in_.substr(i, 2) == "{,") {
        return refuse("a quantifier without its least number, {,");
      } else if (in_.substr(i, 2) == "(*") {
        return refuse("(*");
      } else if (in_.substr(i, 2) == "(?") {
        LIGNUM_RETURN_IF_ERROR(group(in_.substr(i + 2)));
      }
      out_ += c;
    }
    return out_;
  }

 private:
  Status refuse(std::string_view what) const {
    return user_error("the regular expression '{}' has {}, which is not implemented", shown(in_), what);
  }

  Status escape(char c) {
    switch (c) {
      case 's':
        out_ += R"(\p{White_Space})";  // PCRE2's own \s has U+180E too
        return {};
      case 'S':
        out_ += R"(\P{White_Space})";
        return {};
      case 'd':
        out_ += R"(\p{Nd})";
        return {};
      case 'D':
        out_ += R"(\P{Nd})";
        return {};
      case 'w':
        out_ += in_class_ ? kWord : fmt::format("[{}]", kWord);
        return {};
      case 'W':
        if (in_class_) return refuse("\\W in a class");
        out_ += fmt::format("[^{}]", kWord);
        return {};
      case 'v':
        out_ += R"(\x{0b})";  // \v is a class in PCRE2
        return {};
      case 'p':
      case 'P':
      case 'n':
      case 'r':
      case 't':
      case 'f':
      case 'a':
      case 'e':
      case 'x':
        break;
      case 'A':
      case 'z':
        if (in_class_) return refuse(fmt::format("\\{} in a class", c));
        break;
      default: {
        const auto byte = static_cast<unsigned char>(c);
        const bool punctuation = byte >= 0x20 && byte < 0x7f && !(c >= '0' && c <= '9') &&
                                 !(c >= 'A' && c <= 'Z') && !(c >= 'a' && c <= 'z');
        if (!punctuation) return refuse(fmt::format("\\{}", shown(std::string_view(&c, 1))));
      }
    }
    out_ += '\\';
    out_ += c;
    return {};
  }

  // (?: (?= (?! (?<= (?<! (?> and (?i: are read alike.
  Status group(std::string_view rest) const {
    for (const std::string_view known : {":", "=", "!", "<=", "<!", ">", "i:"})
      if (rest.starts_with(known)) return {};
    return refuse(fmt::format("(?{}", shown(rest.substr(0, 2))));
  }

  std::string_view in_;
  std::string out_;
  bool in_class_ = false;
  size_t class_begin_ = 0;  // behind its [
};

struct Free {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  void operator()(pcre2_compile_context* p) const { pcre2_compile_context_free(p); }
};

std::string error_text(int code) {
  unsigned char text[256] = {};
  pcre2_get_error_message(code, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

PCRE2_SPTR bytes(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

struct Regex::Code {
  std::unique_ptr<pcre2_code, Free> code;
  std::unique_ptr<pcre2_match_context, Free> context;
};

Result<Regex> Regex::compile(const std::string& expression) {
  if (expression.empty()) return user_error("an empty regular expression");
  if (expression.size() > kMaxExpression || !is_utf8(expression)) {
    return user_error("the regular expression '{}' of {} bytes must be UTF-8 and at most {} bytes long",
                      shown(expression), expression.size(), kMaxExpression);
  }
  LIGNUM_ASSIGN_OR_RETURN(const std::string pattern, Translator(expression).run());
  const std::unique_ptr<pcre2_compile_context, Free> options(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(options.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(options.get(), 100);
  auto code = std::make_shared<Code>();
  int error = 0;
  size_t where = 0;
  // In Oniguruma ^ and $ are always those of a line.
  constexpr uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  code->code.reset(pcre2_compile(bytes(pattern), pattern.size(), kOptions, &error, &where, options.get()));
  if (!code->code) {
    return user_error("'{}' is no regular expression: {} (at {} of '{}')", shown(expression),
                      error_text(error), where, shown(pattern));
  }
  // Without a JIT for this CPU the interpreter finds the same matches.
  pcre2_jit_compile(code->code.get(), PCRE2_JIT_COMPLETE);
  code->context.reset(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(code->context.get(), kMatchLimit);
  pcre2_set_heap_limit(code->context.get(), kHeapLimit);
  return Regex(expression, std::move(code));
}

Status Regex::find(std::string_view text, FunctionRef<void(size_t begin, size_t end)> on_match) const {
  const std::unique_ptr<pcre2_match_data, Free> data(pcre2_match_data_create(1, nullptr));
  size_t from = 0, last_end = std::string_view::npos;
  while (from <= text.size()) {
    const auto match = [&](uint32_t options) {
      return pcre2_match(code_->code.get(), bytes(text), text.size(), from, options | PCRE2_NO_UTF_CHECK,
                         data.get(), code_->context.get());
    };
    int found = match(0);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = match(PCRE2_NO_JIT);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      return user_error("the regular expression '{}' gave up at byte {} of a text of {}: {}",
                        shown(expression_), from, text.size(), error_text(found));
    }
    const size_t* offsets = pcre2_get_ovector_pointer(data.get());
    const size_t begin = offsets[0], end = offsets[1];
    if (begin != end || begin != last_end) on_match(begin, end);
    last_end = end;
    from = end;
    if (begin == end) {  // on to the next character
      ++from;
      while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xc0) == 0x80) ++from;
    }
  }
  return {};
}

}  // namespace lignum::tokenizer
