// The printer and the parser of graphs. Grammar in docs/ir.md.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "ir/graph.h"

namespace lignum::ir {
namespace {

constexpr int kMaxDepth = 16;  // scans inside scans that the parser follows
constexpr int64_t kMaxRank = 16;

std::string number(double v) {
  if (std::isnan(v)) return "nan";
  if (std::isinf(v)) return v < 0 ? "-inf" : "inf";
  std::string s = fmt::format("{:.17g}", v);
  if (s.find_first_of(".e") == std::string::npos) s += ".0";
  return s;
}

std::string quoted_text(std::string_view s) {
  std::string out = "\"";
  for (const char c : s) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

template <class T, class F>
std::string joined(const std::vector<T>& list, F&& text) {
  std::string out;
  for (size_t i = 0; i < list.size(); ++i) {
    if (i > 0) out += ", ";
    out += text(list[i]);
  }
  return out;
}

std::string attr_text(const Attr& a) {
  struct Visitor {
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(int64_t v) const { return fmt::format("{}", v); }
    std::string operator()(double v) const { return number(v); }
    std::string operator()(const std::string& v) const { return quoted_text(v); }
    std::string operator()(const std::vector<int64_t>& v) const {
      return "[" + joined(v, [](int64_t x) { return fmt::format("{}", x); }) + "]";
    }
    // "f[" keeps an empty list of doubles apart from an empty list of integers.
    std::string operator()(const std::vector<double>& v) const { return "f[" + joined(v, number) + "]"; }
  };
  return std::visit(Visitor{}, a);
}

std::string value_text(Value v) {
  return v.index == 0 ? fmt::format("%{}", v.node) : fmt::format("%{}#{}", v.node, v.index);
}

std::string tag_text(const Tag& tag) {
  if (tag == Tag{}) return "";
  std::string out = fmt::format(" @ {} {}", quoted_text(tag.path), role_name(tag.role));
  if (!tag.name.empty()) out += " name=" + quoted_text(tag.name);
  if (tag.layer_end > 0) out += fmt::format(" layers={}:{}", tag.layer_begin, tag.layer_end);
  return out;
}

std::string attrs_text(const Attrs& attrs) {
  if (attrs.all().empty()) return "";
  std::string out;
  for (const auto& [name, value] : attrs.all())
    out += (out.empty() ? "" : ", ") + name + "=" + attr_text(value);
  return " {" + out + "}";
}

void print_into(const Graph& g, const std::string& indent, std::string& out) {
  for (int32_t id = 0; id < static_cast<int32_t>(g.nodes().size()); ++id) {
    const Node& n = g.node(id);
    out += fmt::format("{}%{} = {}({}){} : {}{}", indent, id, n.kind, joined(n.inputs, value_text),
                       attrs_text(n.attrs), joined(n.types, [](const Type& t) { return to_string(t); }),
                       tag_text(n.tag));
    if (n.origin >= 0) out += fmt::format(" origin={}", n.origin);
    if (n.body) {
      out += " body {\n";
      print_into(*n.body, indent + "  ", out);
      out += indent + "}";
    }
    out += "\n";
  }
  out += indent + "return";
  for (size_t i = 0; i < g.outputs().size(); ++i) {
    const Output& o = g.outputs()[i];
    out += fmt::format("{} {} as {}", i == 0 ? "" : ",", value_text(o.value), quoted_text(o.name));
    if (o.alias >= 0) out += fmt::format(" alias {}", o.alias);
  }
  out += "\n";
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Result<Graph> graph() {
    Graph g;
    LIGNUM_RETURN_IF_ERROR(word("graph"));
    LIGNUM_ASSIGN_OR_RETURN(g.name, identifier());
    LIGNUM_RETURN_IF_ERROR(word("stage"));
    LIGNUM_RETURN_IF_ERROR(symbol('='));
    LIGNUM_ASSIGN_OR_RETURN(const std::string stage, identifier());
    if (stage != "global" && stage != "local") return error("stage is global or local, not " + stage);
    g.stage = stage == "global" ? Stage::global : Stage::local;
    LIGNUM_RETURN_IF_ERROR(symbol('{'));
    LIGNUM_RETURN_IF_ERROR(body(g, 0));
    skip();
    if (at_ != text_.size()) return error("text after the graph");
    return g;
  }

 private:
  Status error(const std::string& what) const {
    size_t line = 1, column = 1;
    for (size_t i = 0; i < std::min(at_, text_.size()); ++i) {
      column = text_[i] == '\n' ? 1 : column + 1;
      line += text_[i] == '\n';
    }
    return user_error("graph text, line {} column {}: {}", line, column, what);
  }
  void skip() {
    while (at_ < text_.size() && std::strchr(" \t\r\n", text_[at_]) != nullptr && text_[at_] != '\0') ++at_;
  }
  bool peek(char c) {
    skip();
    return at_ < text_.size() && text_[at_] == c;
  }
  bool take(char c) {
    if (!peek(c)) return false;
    ++at_;
    return true;
  }
  Status symbol(char c) { return take(c) ? Status() : error(fmt::format("expected '{}'", c)); }
  static bool letter(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.' || c == '/';
  }
  Result<std::string> identifier() {
    skip();
    const size_t begin = at_;
    while (at_ < text_.size() && letter(text_[at_])) ++at_;
    if (begin == at_) return error("expected a name");
    return std::string(text_.substr(begin, at_ - begin));
  }
  bool take_word(std::string_view w) {
    skip();
    if (text_.substr(at_, w.size()) != w) return false;
    if (at_ + w.size() < text_.size() && letter(text_[at_ + w.size()])) return false;
    at_ += w.size();
    return true;
  }
  Status word(std::string_view w) { return take_word(w) ? Status() : error(fmt::format("expected '{}'", w)); }
  Result<int64_t> integer() {
    skip();
    int64_t v = 0;
    const auto [end, ec] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), v);
    if (ec != std::errc()) return error("expected a whole number");
    at_ = static_cast<size_t>(end - text_.data());
    return v;
  }
  Result<int32_t> small_integer() {
    LIGNUM_ASSIGN_OR_RETURN(const int64_t v, integer());
    if (v < 0 || v > INT32_MAX) return error("number out of range");
    return static_cast<int32_t>(v);
  }
  Result<std::string> string() {
    LIGNUM_RETURN_IF_ERROR(symbol('"'));
    std::string out;
    while (at_ < text_.size() && text_[at_] != '"') {
      char c = text_[at_++];
      if (c == '\\') {
        if (at_ >= text_.size()) return error("text ends inside a string");
        c = text_[at_++];
        if (c == 'x') {
          unsigned v = 0;
          const auto [end, ec] =
              std::from_chars(text_.data() + at_, text_.data() + std::min(at_ + 2, text_.size()), v, 16);
          if (ec != std::errc() || end != text_.data() + at_ + 2) return error("\\x wants two hex digits");
          at_ += 2;
          c = static_cast<char>(v);
        }
      }
      out += c;
    }
    if (at_ >= text_.size()) return error("text ends inside a string");
    ++at_;
    return out;
  }
  Result<Attr> numeral() {
    skip();
    size_t end = at_;
    while (end < text_.size() && std::strchr("+-.0123456789abcdefin", text_[end]) != nullptr &&
           text_[end] != '\0')
      ++end;
    const std::string_view t = text_.substr(at_, end - at_);
    const bool real = t.find_first_of(".en") != std::string_view::npos;
    Attr result;
    std::from_chars_result r{};
    if (real) {
      double v = 0;
      r = std::from_chars(t.data(), t.data() + t.size(), v);
      result = v;
    } else {
      int64_t v = 0;
      r = std::from_chars(t.data(), t.data() + t.size(), v);
      result = v;
    }
    if (t.empty() || r.ec != std::errc() || r.ptr != t.data() + t.size()) return error("expected a number");
    at_ = end;
    return result;
  }
  Result<Attr> attr() {
    if (take_word("true")) return Attr(true);
    if (take_word("false")) return Attr(false);
    if (peek('"')) {
      LIGNUM_ASSIGN_OR_RETURN(std::string s, string());
      return Attr(std::move(s));
    }
    const bool reals = take_word("f");
    if (reals && !peek('[')) return error("expected '['");
    if (!take('[')) return numeral();
    std::vector<int64_t> ints;
    std::vector<double> doubles;
    if (!take(']')) {
      do {
        LIGNUM_ASSIGN_OR_RETURN(const Attr a, numeral());
        if (reals != std::holds_alternative<double>(a))
          return error(reals ? "f[...] holds real numbers" : "[...] holds whole numbers");
        if (reals) {
          doubles.push_back(std::get<double>(a));
        } else {
          ints.push_back(std::get<int64_t>(a));
        }
      } while (take(','));
      LIGNUM_RETURN_IF_ERROR(symbol(']'));
    }
    if (reals) return Attr(std::move(doubles));
    return Attr(std::move(ints));
  }
  Result<Type> type() {
    Type t;
    t.async = take_word("async");
    t.host = take_word("host");
    LIGNUM_ASSIGN_OR_RETURN(const std::string dtype, identifier());
    const auto d = dtype_from_name(dtype);
    if (!d) return error("unknown dtype " + dtype);
    t.dtype = *d;
    LIGNUM_RETURN_IF_ERROR(symbol('['));
    int64_t elements = 1;
    if (!take(']')) {
      do {
        LIGNUM_ASSIGN_OR_RETURN(const int64_t dim, integer());
        if (dim < 0 || t.rank() == kMaxRank ||
            __builtin_mul_overflow(elements, std::max<int64_t>(dim, 1), &elements) ||
            elements > (int64_t{1} << 56))
          return error("a tensor of impossible size");
        t.dims.push_back(dim);
      } while (take(','));
      LIGNUM_RETURN_IF_ERROR(symbol(']'));
    }
    if (take('<')) {
      do {
        skip();
        std::string name;
        if (!peek(',') && !peek('>')) {
          LIGNUM_ASSIGN_OR_RETURN(name, identifier());
        }
        t.names.push_back(name);
      } while (take(','));
      LIGNUM_RETURN_IF_ERROR(symbol('>'));
      if (t.names.size() != t.dims.size())
        return error(fmt::format("{} names for {} dims", t.names.size(), t.dims.size()));
    }
    return t;
  }
  Result<Value> value(const Graph& g) {
    LIGNUM_RETURN_IF_ERROR(symbol('%'));
    Value v;
    LIGNUM_ASSIGN_OR_RETURN(v.node, small_integer());
    if (at_ < text_.size() && text_[at_] == '#') {
      ++at_;
      LIGNUM_ASSIGN_OR_RETURN(v.index, small_integer());
    }
    if (v.node >= static_cast<int32_t>(g.nodes().size()))
      return error(fmt::format("%{} is used before it is made", v.node));
    if (v.index >= static_cast<int32_t>(g.node(v).types.size()))
      return error(fmt::format("%{} has no result {}", v.node, v.index));
    return v;
  }
  Result<Tag> tag() {
    Tag t;
    LIGNUM_ASSIGN_OR_RETURN(t.path, string());
    LIGNUM_ASSIGN_OR_RETURN(const std::string role, identifier());
    bool known = false;
    for (const Role r : {Role::forward, Role::dgrad, Role::wgrad, Role::remat, Role::update}) {
      if (role != role_name(r)) continue;
      t.role = r;
      known = true;
    }
    if (!known) return error("unknown role " + role);
    if (take_word("name")) {
      LIGNUM_RETURN_IF_ERROR(symbol('='));
      LIGNUM_ASSIGN_OR_RETURN(t.name, string());
    }
    if (take_word("layers")) {
      LIGNUM_RETURN_IF_ERROR(symbol('='));
      LIGNUM_ASSIGN_OR_RETURN(t.layer_begin, small_integer());
      LIGNUM_RETURN_IF_ERROR(symbol(':'));
      LIGNUM_ASSIGN_OR_RETURN(t.layer_end, small_integer());
    }
    return t;
  }
  // Nodes and the return line up to '}'.
  Status body(Graph& g, int depth) {
    if (depth > kMaxDepth) return error(fmt::format("more than {} scans inside each other", kMaxDepth));
    while (peek('%')) {
      ++at_;
      LIGNUM_ASSIGN_OR_RETURN(const int64_t id, integer());
      if (id != static_cast<int64_t>(g.nodes().size()))
        return error(
            fmt::format("node %{} should be %{}: nodes are numbered in order", id, g.nodes().size()));
      LIGNUM_RETURN_IF_ERROR(symbol('='));
      Node n;
      LIGNUM_ASSIGN_OR_RETURN(n.kind, identifier());
      LIGNUM_RETURN_IF_ERROR(symbol('('));
      if (!take(')')) {
        do {
          LIGNUM_ASSIGN_OR_RETURN(const Value v, value(g));
          n.inputs.push_back(v);
        } while (take(','));
        LIGNUM_RETURN_IF_ERROR(symbol(')'));
      }
      if (take('{')) {
        do {
          LIGNUM_ASSIGN_OR_RETURN(std::string name, identifier());
          LIGNUM_RETURN_IF_ERROR(symbol('='));
          LIGNUM_ASSIGN_OR_RETURN(Attr a, attr());
          n.attrs.set(std::move(name), std::move(a));
        } while (take(','));
        LIGNUM_RETURN_IF_ERROR(symbol('}'));
      }
      LIGNUM_RETURN_IF_ERROR(symbol(':'));
      do {
        LIGNUM_ASSIGN_OR_RETURN(Type t, type());
        n.types.push_back(std::move(t));
      } while (take(','));
      if (take('@')) {
        LIGNUM_ASSIGN_OR_RETURN(n.tag, tag());
      }
      if (take_word("origin")) {
        LIGNUM_RETURN_IF_ERROR(symbol('='));
        LIGNUM_ASSIGN_OR_RETURN(n.origin, small_integer());
      }
      if (take_word("body")) {
        LIGNUM_RETURN_IF_ERROR(symbol('{'));
        auto inner = std::make_shared<Graph>();
        inner->name = g.name;
        inner->stage = g.stage;
        LIGNUM_RETURN_IF_ERROR(body(*inner, depth + 1));
        n.body = std::move(inner);
      }
      LIGNUM_RETURN_IF_ERROR(check_structural(n));
      if (g.add(std::move(n)) != id) return error(fmt::format("node %{} is the same as an earlier one", id));
    }
    LIGNUM_RETURN_IF_ERROR(word("return"));
    if (!peek('}')) {
      do {
        Output o;
        LIGNUM_ASSIGN_OR_RETURN(o.value, value(g));
        LIGNUM_RETURN_IF_ERROR(word("as"));
        LIGNUM_ASSIGN_OR_RETURN(o.name, string());
        if (take_word("alias")) {
          LIGNUM_ASSIGN_OR_RETURN(o.alias, small_integer());
        }
        g.output(std::move(o.name), o.value, o.alias);
      } while (take(','));
    }
    return symbol('}');
  }
  // What the structural kinds need before anything may read them; the rest is verify_structure's.
  Status check_structural(const Node& n) const {
    if (n.kind == "param" && (!n.attrs.has<std::string>("name") || !n.inputs.empty() || n.types.size() != 1))
      return error("a param has a name, one type and no inputs");
    if (n.kind != "scan") return n.body ? error("only a scan has a body") : Status();
    for (const char* key : {"trip", "carry", "sliced", "invariant", "stacked"})
      if (!n.attrs.has<int64_t>(key)) return error(fmt::format("a scan wants the whole number {}", key));
    if (!n.attrs.has<bool>("reversed") || !n.body) return error("a scan wants reversed and a body");
    return {};
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

std::string to_string(const Type& t) {
  std::string out =
      fmt::format("{}{}{}[{}]", t.async ? "async " : "", t.host ? "host " : "", dtype_name(t.dtype),
                  joined(t.dims, [](int64_t d) { return fmt::format("{}", d); }));
  if (!t.names.empty()) out += "<" + joined(t.names, [](const std::string& n) { return n; }) + ">";
  return out;
}

// All that makes a node what it is: not its annotations (origin, names).
std::string print_identity(const Node& n) {
  std::string types = joined(n.types, [](Type t) {
    t.names.clear();
    return to_string(t);
  });
  return n.kind + "(" + joined(n.inputs, value_text) + ")" + attrs_text(n.attrs) + ":" + types +
         tag_text(n.tag);
}

std::string print(const Graph& g) {
  std::string out =
      fmt::format("graph {} stage={} {{\n", g.name, g.stage == Stage::global ? "global" : "local");
  print_into(g, "  ", out);
  return out + "}\n";
}

Result<Graph> parse(std::string_view text) {
  Parser p(text);
  LIGNUM_ASSIGN_OR_RETURN(Graph g, p.graph());
  LIGNUM_RETURN_IF_ERROR(verify_structure(g));
  return g;
}

}  // namespace lignum::ir
