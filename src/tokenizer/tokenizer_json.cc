// tokenizer.json to a Tokenizer.
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/json.h"
#include "base/text.h"
#include "tokenizer/pipeline.h"
#include "tokenizer/tokenizer.h"

namespace lignum::tokenizer {
namespace {

using nlohmann::json;

// Reads the fields of one object. The first error stays; done() reports it, or a field that nobody asked for.
class Fields {
 public:
  Fields(const json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) fail(user_error("expected an object"));
  }

  // null where it is missing.
  const json& any(const char* key) {
    static const json kNull;
    asked_.insert(key);
    if (!object_.is_object()) return kNull;
    const auto it = object_.find(key);
    return it == object_.end() ? kNull : *it;
  }
  std::string text(const char* key) {
    const json& j = any(key);
    if (j.is_string()) return j.get<std::string>();
    fail(user_error("'{}' must be a string", key));
    return "";
  }
  bool boolean(const char* key, std::optional<bool> missing = std::nullopt) {
    const json& j = any(key);
    if (j.is_boolean()) return j.get<bool>();
    if (!j.is_null() || !missing) fail(user_error("'{}' must be true or false", key));
    return missing.value_or(false);
  }
  int64_t integer(const char* key, int64_t least, int64_t most) {
    const json& j = any(key);
    if (j.is_number_integer() && !(j.is_number_unsigned() && j.get<uint64_t>() > INT64_MAX)) {
      const auto value = j.get<int64_t>();
      if (value >= least && value <= most) return value;
    }
    fail(user_error("'{}' must be an integer from {} to {}", key, least, most));
    return least;
  }
  const json& array(const char* key) {
    static const json kEmpty = json::array();
    const json& j = any(key);
    if (j.is_array()) return j;
    fail(user_error("'{}' must be an array", key));
    return kEmpty;
  }
  // Of a part that Lignum does not have: null, false, 0 and "" switch it off.
  void must_be_off(const char* key) {
    const json& j = any(key);
    const bool off = j.is_null() || j == false || (j.is_number() && j == 0) || j == "";
    if (!off) fail(user_error("'{}' is not implemented; only null is taken", key));
  }
  void fail(const Status& status) {
    if (status_.ok()) status_ = status.with_context(where_);
  }
  Status done() const {
    if (!status_.ok()) return status_;
    for (const auto& [key, value] : object_.items()) {
      if (!asked_.contains(key)) return user_error("{}: unknown field '{}'", where_, shown(key));
    }
    return {};
  }
  std::string path(const char* key) const { return where_ + "." + key; }
  const std::string& where() const { return where_; }
  const Status& status() const { return status_; }

 private:
  const json& object_;
  std::string where_;
  std::set<std::string, std::less<>> asked_;
  Status status_;
};

Status not_implemented(const Fields& f, std::string_view type, const std::vector<std::string_view>& known) {
  LIGNUM_RETURN_IF_ERROR(f.status());  // no type at all
  std::string names;
  for (const std::string_view k : known) names += fmt::format("{}{}", names.empty() ? "" : ", ", k);
  return user_error("{}: type '{}' is not implemented; what is: {}", f.where(), shown(type), names);
}

// {"String": s} or {"Regex": s}
Result<Pattern> read_pattern(const json& j, const std::string& where) {
  Fields f(j, where);
  const bool literal = j.is_object() && j.contains("String");
  const std::string text = f.text(literal ? "String" : "Regex");
  LIGNUM_RETURN_IF_ERROR(f.done());
  if (text.empty()) return user_error("{}: an empty pattern", where);
  if (literal) return Pattern::literal(text);
  Result<Pattern> pattern = Pattern::expression(text);
  if (!pattern.ok()) return pattern.status().with_context(where);
  return pattern;
}

Result<Replace> read_replace(Fields& f) {
  LIGNUM_ASSIGN_OR_RETURN(Pattern pattern, read_pattern(f.any("pattern"), f.path("pattern")));
  return Replace{std::move(pattern), f.text("content")};
}

// Calls one(part, where) for each part of a Sequence.
template <class One>
Status each(Fields& f, const char* key, One one) {
  const json& parts = f.array(key);
  LIGNUM_RETURN_IF_ERROR(f.done());
  for (size_t i = 0; i < parts.size(); ++i)
    LIGNUM_RETURN_IF_ERROR(one(parts[i], fmt::format("{}[{}]", f.path(key), i)));
  return {};
}

Status read_normalizer(const json& j, const std::string& where, Normalizer& normalizer) {
  if (j.is_null()) return {};
  Fields f(j, where);
  const std::string type = f.text("type");
  if (type == "Sequence") {
    return each(f, "normalizers", [&](const json& part, const std::string& place) {
      return read_normalizer(part, place, normalizer);
    });
  }
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    normalizer.add(NormalForm{.compose = type.ends_with('C'), .compatibility = type.size() == 4});
  } else if (type == "Prepend") {
    normalizer.add(Prepend{f.text("prepend")});
  } else if (type == "Replace") {
    LIGNUM_ASSIGN_OR_RETURN(Replace replace, read_replace(f));
    normalizer.add(std::move(replace));
  } else if (type == "Lowercase") {
    normalizer.add(Lowercase{});
  } else if (type == "StripAccents") {
    normalizer.add(StripAccents{});
  } else if (type == "Strip") {
    normalizer.add(Strip{f.boolean("strip_left", true), f.boolean("strip_right", true)});
  } else {
    return not_implemented(f, type,
                           {"Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Prepend", "Replace", "Sequence",
                            "Strip", "StripAccents"});
  }
  return f.done();
}

Result<SplitBehavior> read_behavior(Fields& f) {
  const std::string name = f.text("behavior");
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  return user_error(
      "{}: behavior '{}' is none of Removed, Isolated, MergedWithPrevious, MergedWithNext, "
      "Contiguous",
      f.where(), shown(name));
}

// Metaspace as pre-tokeniser and as decoder. Old files say add_prefix_space instead of prepend_scheme.
Metaspace read_metaspace(Fields& f) {
  Metaspace m;
  m.replacement = f.text("replacement");
  if (m.replacement.empty()) f.fail(user_error("'replacement' is empty"));
  const json& scheme = f.any("prepend_scheme");
  const bool prefix_space = f.boolean("add_prefix_space", true);
  m.split = f.boolean("split", true);
  if (scheme == "never" || (scheme.is_null() && !prefix_space)) {
    m.prepend = Metaspace::Prepend::never;
  } else if (scheme == "first") {
    m.prepend = Metaspace::Prepend::first;
  } else if (!scheme.is_null() && scheme != "always") {
    f.fail(user_error("'prepend_scheme' is none of always, first, never"));
  }
  if (!prefix_space && m.prepend != Metaspace::Prepend::never)
    f.fail(user_error("'add_prefix_space' is false, but 'prepend_scheme' is not never"));
  return m;
}

// trim_offsets has no effect on ids.
ByteLevel read_byte_level(Fields& f) {
  f.boolean("trim_offsets", true);
  return {.add_prefix_space = f.boolean("add_prefix_space", true), .use_regex = f.boolean("use_regex", true)};
}

Status read_pre_tokenizer(const json& j, const std::string& where, PreTokenizer& pre) {
  if (j.is_null()) return {};
  Fields f(j, where);
  const std::string type = f.text("type");
  if (type == "Sequence") {
    return each(f, "pretokenizers", [&](const json& part, const std::string& place) {
      return read_pre_tokenizer(part, place, pre);
    });
  }
  if (!pre.steps().empty() && std::holds_alternative<ByteLevel>(pre.steps().back()))
    return user_error("{}: a pre-tokeniser after ByteLevel is not implemented", where);
  if (type == "ByteLevel") {
    pre.add(read_byte_level(f));
  } else if (type == "Split") {
    LIGNUM_ASSIGN_OR_RETURN(Pattern pattern, read_pattern(f.any("pattern"), f.path("pattern")));
    LIGNUM_ASSIGN_OR_RETURN(const SplitBehavior behavior, read_behavior(f));
    pre.add(Split{std::move(pattern), behavior, f.boolean("invert")});
  } else if (type == "Metaspace") {
    pre.add(read_metaspace(f));
  } else if (type == "Digits") {
    const bool one_by_one = f.boolean("individual_digits");
    pre.add(
        Split{Pattern::number(), one_by_one ? SplitBehavior::isolated : SplitBehavior::contiguous, false});
  } else if (type == "Whitespace" || type == "WhitespaceSplit") {
    // Words as Rust's regular expressions know them; Whitespace cuts between words and other characters too.
    constexpr const char* kWord = R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}]+)";
    constexpr const char* kOther = R"([^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}\s]+)";
    const bool words = type == "Whitespace";
    LIGNUM_ASSIGN_OR_RETURN(Pattern pattern,
                            Pattern::expression(words ? fmt::format("{}|{}", kWord, kOther) : R"(\s)"));
    pre.add(Split{std::move(pattern), SplitBehavior::removed, words});
  } else if (type == "Punctuation") {
    LIGNUM_ASSIGN_OR_RETURN(Pattern pattern, Pattern::expression(R"([\p{P}$+<=>^`|~])"));
    const bool given = !f.any("behavior").is_null();
    LIGNUM_ASSIGN_OR_RETURN(const SplitBehavior behavior,
                            given ? read_behavior(f) : Result<SplitBehavior>(SplitBehavior::isolated));
    pre.add(Split{std::move(pattern), behavior, false});
  } else {
    return not_implemented(f, type,
                           {"ByteLevel", "Digits", "Metaspace", "Punctuation", "Sequence", "Split",
                            "Whitespace", "WhitespaceSplit"});
  }
  return f.done();
}

// What the post-processor puts around a text.
struct Template {
  std::vector<int32_t> prefix, suffix;
  bool read = false;
};

// TemplateProcessing's `single`: special tokens, the text A, special tokens.
Status read_template(Fields& f, Template& around) {
  f.any("pair");  // pairs of texts are not encoded
  const json& special = f.any("special_tokens");
  bool past_text = false;
  for (const json& item : f.array("single")) {
    Fields piece(item, f.path("single"));
    const bool is_text = item.is_object() && item.contains("Sequence");
    Fields what(piece.any(is_text ? "Sequence" : "SpecialToken"), f.path("single"));
    const std::string id = what.text("id");
    what.integer("type_id", 0, INT32_MAX);
    LIGNUM_RETURN_IF_ERROR(what.done());
    LIGNUM_RETURN_IF_ERROR(piece.done());
    if (is_text) {
      if (id != "A" || past_text) return user_error("{}: one Sequence 'A' is taken", f.path("single"));
      past_text = true;
      continue;
    }
    if (!special.is_object() || !special.contains(id))
      return user_error("{}: '{}' is not in special_tokens", f.path("single"), shown(id));
    Fields token(special[id], f.path("special_tokens"));
    token.any("id");
    token.any("tokens");
    for (const json& number : token.array("ids")) {
      if (!number.is_number_unsigned() || number.get<uint64_t>() > kMaxId)
        return user_error("{}: ids of '{}' must be integers from 0 to {}", token.where(), shown(id), kMaxId);
      (past_text ? around.suffix : around.prefix).push_back(number.get<int32_t>());
    }
    LIGNUM_RETURN_IF_ERROR(token.done());
  }
  if (!past_text) return user_error("{}: no Sequence 'A'", f.path("single"));
  return f.done();
}

Status read_post_processor(const json& j, const std::string& where, Template& around) {
  if (j.is_null()) return {};
  Fields f(j, where);
  const std::string type = f.text("type");
  if (type == "Sequence") {
    return each(f, "processors", [&](const json& part, const std::string& place) {
      return read_post_processor(part, place, around);
    });
  }
  if (type == "TemplateProcessing") {
    if (around.read) return user_error("{}: a second TemplateProcessing is not implemented", where);
    around.read = true;
    return read_template(f, around);
  }
  if (type == "ByteLevel") {  // trims offsets
    read_byte_level(f);
    return f.done();
  }
  return not_implemented(f, type, {"ByteLevel", "Sequence", "TemplateProcessing"});
}

Status read_decoder(const json& j, const std::string& where, Decoder& decoder) {
  if (j.is_null()) return {};
  Fields f(j, where);
  const std::string type = f.text("type");
  if (type == "Sequence") {
    return each(f, "decoders", [&](const json& part, const std::string& place) {
      return read_decoder(part, place, decoder);
    });
  }
  if (type == "ByteLevel") {
    read_byte_level(f);
    decoder.add(DecodeByteLevel{});
  } else if (type == "ByteFallback") {
    decoder.add(DecodeByteFallback{});
  } else if (type == "Fuse") {
    decoder.add(DecodeFuse{});
  } else if (type == "Strip") {
    DecodeStrip strip{f.text("content"), f.integer("start", 0, 1 << 20), f.integer("stop", 0, 1 << 20)};
    if (strip.content.empty()) f.fail(user_error("'content' is empty"));
    decoder.add(std::move(strip));
  } else if (type == "Metaspace") {
    const Metaspace m = read_metaspace(f);
    LIGNUM_RETURN_IF_ERROR(f.done());
    decoder.add(DecodeMetaspace{m.replacement, m.prepend != Metaspace::Prepend::never});
  } else if (type == "Replace") {
    LIGNUM_ASSIGN_OR_RETURN(Replace replace, read_replace(f));
    decoder.add(std::move(replace));
  } else {
    return not_implemented(
        f, type, {"ByteFallback", "ByteLevel", "Fuse", "Metaspace", "Replace", "Sequence", "Strip"});
  }
  return f.done();
}

Result<std::vector<AddedToken>> read_added(const json& list, const std::string& where) {
  std::vector<AddedToken> tokens;
  if (list.is_null()) return tokens;
  if (!list.is_array()) return user_error("{} must be an array", where);
  for (size_t i = 0; i < list.size(); ++i) {
    Fields f(list[i], fmt::format("{}[{}]", where, i));
    AddedToken t;
    t.id = static_cast<int32_t>(f.integer("id", 0, kMaxId));
    t.content = f.text("content");
    t.single_word = f.boolean("single_word", false);
    t.lstrip = f.boolean("lstrip", false);
    t.rstrip = f.boolean("rstrip", false);
    t.special = f.boolean("special", false);
    t.normalized = f.boolean("normalized", !t.special);
    if (t.content.empty()) f.fail(user_error("'content' is empty"));
    LIGNUM_RETURN_IF_ERROR(f.done());
    tokens.push_back(std::move(t));
  }
  return tokens;
}

Result<Bpe::Merges> read_merges(const json& list, const std::string& where) {
  Bpe::Merges merges;
  merges.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const json& m = list[i];
    if (m.is_array() && m.size() == 2 && m[0].is_string() && m[1].is_string()) {
      merges.emplace_back(m[0].get<std::string>(), m[1].get<std::string>());
      continue;
    }
    const auto* text = m.is_string() ? m.get_ptr<const std::string*>() : nullptr;
    const size_t space = text != nullptr ? text->find(' ') : std::string::npos;
    if (space == std::string::npos || text->find(' ', space + 1) != std::string::npos) {
      return user_error(
          "{}[{}]: a merge is two tokens with one space between them, or an array of two strings", where, i);
    }
    merges.emplace_back(text->substr(0, space), text->substr(space + 1));
  }
  return merges;
}

Result<Bpe> read_model(const json& j, const std::string& where, bool byte_level) {
  Fields f(j, where);
  // Very old files do not name the type.
  if (const json& type = f.any("type"); !type.is_null() && type != "BPE") {
    return not_implemented(f, type.is_string() ? type.get<std::string>() : type.dump(), {"BPE"});
  }
  BpeOptions options{.byte_level = byte_level,
                     .ignore_merges = f.boolean("ignore_merges", false),
                     .byte_fallback = f.boolean("byte_fallback", false),
                     .fuse_unknown = f.boolean("fuse_unk", false)};
  if (!f.any("unk_token").is_null()) options.unknown = f.text("unk_token");
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) f.must_be_off(key);
  if (byte_level && options.byte_fallback)
    f.fail(user_error("'byte_fallback' beside the pre-tokeniser ByteLevel is not implemented"));
  const json& vocab = f.any("vocab");
  if (!vocab.is_object()) f.fail(user_error("'vocab' must be an object"));
  const json& list = f.array("merges");
  LIGNUM_RETURN_IF_ERROR(f.done());
  Bpe::Vocabulary vocabulary;
  vocabulary.reserve(vocab.size());
  for (const auto& [token, id] : vocab.items()) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > kMaxId) {
      return user_error("{}: the id of '{}' must be an integer from 0 to {}", f.path("vocab"), shown(token),
                        kMaxId);
    }
    vocabulary.emplace_back(token, id.get<int32_t>());
  }
  LIGNUM_ASSIGN_OR_RETURN(const Bpe::Merges merges, read_merges(list, f.path("merges")));
  Result<Bpe> bpe = Bpe::make(vocabulary, merges, options);
  if (!bpe.ok()) return bpe.status().with_context(where);
  return bpe;
}

// "NFC", or a Sequence's "Split, ByteLevel".
std::string part_names(const json& part) {
  if (part.is_null()) return "none";
  std::string names;
  for (const char* key : {"normalizers", "pretokenizers", "processors", "decoders"}) {
    const auto list = part.find(key);
    if (list == part.end()) continue;
    for (const json& one : *list) names += (names.empty() ? "" : ", ") + part_names(one);
  }
  return names.empty() ? part["type"].get<std::string>() : names;
}

Result<Tokenizer> read_tokenizer(const json& root, const std::string& what) {
  Fields f(root, what);
  if (const json& version = f.any("version"); !version.is_null() && version != "1.0")
    f.fail(user_error("'version' must be \"1.0\""));
  f.must_be_off("truncation");
  f.must_be_off("padding");
  Parts parts;
  LIGNUM_ASSIGN_OR_RETURN(parts.added, read_added(f.any("added_tokens"), f.path("added_tokens")));
  LIGNUM_RETURN_IF_ERROR(read_normalizer(f.any("normalizer"), f.path("normalizer"), parts.normalizer));
  LIGNUM_RETURN_IF_ERROR(
      read_pre_tokenizer(f.any("pre_tokenizer"), f.path("pre_tokenizer"), parts.pre_tokenizer));
  Template around;
  LIGNUM_RETURN_IF_ERROR(read_post_processor(f.any("post_processor"), f.path("post_processor"), around));
  LIGNUM_RETURN_IF_ERROR(read_decoder(f.any("decoder"), f.path("decoder"), parts.decoder));
  const auto& steps = parts.pre_tokenizer.steps();
  const bool byte_level = !steps.empty() && std::holds_alternative<ByteLevel>(steps.back());
  LIGNUM_ASSIGN_OR_RETURN(Bpe model, read_model(f.any("model"), f.path("model"), byte_level));
  LIGNUM_RETURN_IF_ERROR(f.done());
  for (const char* key : {"normalizer", "pre_tokenizer", "post_processor", "decoder"})
    parts.description.emplace_back(key, part_names(f.any(key)));
  Result<std::unique_ptr<Pipeline>> pipeline = Pipeline::make(std::move(model), std::move(parts));
  if (!pipeline.ok()) return pipeline.status().with_context(what);
  Result<Tokenizer> tokenizer =
      Tokenizer::make(std::move(*pipeline), std::move(around.prefix), std::move(around.suffix));
  if (!tokenizer.ok()) return tokenizer.status().with_context(what);
  return tokenizer;
}

}  // namespace

Result<Tokenizer> Tokenizer::parse(std::string_view text, const std::string& what) {
  LIGNUM_ASSIGN_OR_RETURN(const json root, parse_json(text, what));
  return read_tokenizer(root, what);
}

}  // namespace lignum::tokenizer
