// lignum tokenizer: trains a byte-level BPE, and shows what a tokenizer makes of a text.
#include "tokenizer/tokenizer.h"

#include <algorithm>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/file.h"
#include "base/text.h"
#include "cli/common.h"
#include "cli/verbs.h"
#include "exec/thread_pool.h"
#include "tokenizer/bpe_trainer.h"

namespace lignum::cli {
namespace {

using tokenizer::Tokenizer;

struct TrainTokenizerArguments {
  std::vector<std::string> files;
  std::string output, pattern = "gpt2";
  tokenizer::BpeTrainerOptions options;
  int threads = 0;
  bool json = false;
};

Status train(TrainTokenizerArguments& a) {
  using tokenizer::Scanner;
  a.options.scanner = a.pattern == "gpt2"     ? Scanner::gpt2
                      : a.pattern == "llama3" ? Scanner::llama3
                                              : Scanner::qwen;
  std::vector<MappedFile> files;
  std::vector<std::string_view> texts;
  int64_t bytes = 0;
  for (const std::string& path : a.files) {
    LIGNUM_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
    files.push_back(std::move(file));
    const auto text = files.back().bytes();
    texts.emplace_back(reinterpret_cast<const char*>(text.data()), text.size());
    bytes += static_cast<int64_t>(text.size());
  }
  const int threads =
      a.threads > 0 ? a.threads : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  LIGNUM_ASSIGN_OR_RETURN(const auto pool, exec::ThreadPool::create(threads));
  LIGNUM_ASSIGN_OR_RETURN(const tokenizer::TrainedBpe trained, train_bpe(texts, a.options, *pool));
  LIGNUM_RETURN_IF_ERROR(write_file_atomic(a.output, tokenizer::to_json(trained)));
  const auto size = static_cast<int64_t>(trained.tokens.size());
  if (a.json) {
    print_json({{"tokenizer", a.output},
                {"vocab_size", size},
                {"merges", trained.merges.size()},
                {"files", files.size()},
                {"bytes", bytes}});
    return {};
  }
  print_line(fmt::format(
      "wrote {}: {} tokens from {} files of {} bytes{}", a.output, size, files.size(), bytes,
      size < a.options.vocab_size ? fmt::format("; no more pairs occur {} times", a.options.min_frequency)
                                  : ""));
  return {};
}

struct TextArguments {
  std::string tokenizer, text, file, pattern = "llama3";
  bool bare = false, allow_special = false, keep_special = false, json = false;
  std::vector<int32_t> ids;
};

Result<Tokenizer> load(const TextArguments& a) {
  LIGNUM_ASSIGN_OR_RETURN(const tokenizer::TiktokenKind ranks, tokenizer::tiktoken_kind(a.pattern));
  return Tokenizer::load(a.tokenizer, {.ranks = ranks});
}

// The argument, else the file, else standard input.
Result<std::string> text_of(const TextArguments& a, bool given) {
  constexpr uint64_t kMaxText = uint64_t{1} << 30;
  if (given && !a.file.empty()) return user_error("a text and --file: give one of them");
  if (given) return a.text;
  if (!a.file.empty()) return read_text(a.file, kMaxText);
  return std::string(std::istreambuf_iterator<char>(std::cin), {});
}

Status encode(const TextArguments& a, bool given) {
  LIGNUM_ASSIGN_OR_RETURN(const Tokenizer t, load(a));
  LIGNUM_ASSIGN_OR_RETURN(const std::string text, text_of(a, given));
  LIGNUM_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                          t.encode(text, {.add_special_tokens = !a.bare, .allow_special = a.allow_special}));
  if (a.json) {
    nlohmann::ordered_json tokens = nlohmann::ordered_json::array();
    for (const int32_t id : ids) tokens.push_back(t.token(id));
    print_json({{"ids", ids}, {"tokens", tokens}, {"bytes", text.size()}});
    return {};
  }
  std::string line;
  for (const int32_t id : ids) line += (line.empty() ? "" : " ") + std::to_string(id);
  print_line(line);
  return {};
}

Status decode(const TextArguments& a) {
  LIGNUM_ASSIGN_OR_RETURN(const Tokenizer t, load(a));
  std::vector<int32_t> ids = a.ids;
  if (ids.empty()) {
    int32_t id = 0;
    while (std::cin >> id) ids.push_back(id);
    if (!std::cin.eof()) return user_error("standard input: what follows {} ids is no id", ids.size());
  }
  LIGNUM_ASSIGN_OR_RETURN(const std::string text, t.decode(ids, !a.keep_special));
  if (a.json) {
    print_json({{"text", text}});
  } else {
    print_line(text);
  }
  return {};
}

Status show(const TextArguments& a, bool given) {
  LIGNUM_ASSIGN_OR_RETURN(const Tokenizer t, load(a));
  const tokenizer::Description d = t.describe();
  std::vector<int32_t> ids;
  std::string text;
  if (given || !a.file.empty()) {
    LIGNUM_ASSIGN_OR_RETURN(text, text_of(a, given));
    LIGNUM_ASSIGN_OR_RETURN(ids, t.encode(text, {.allow_special = a.allow_special}));
  }
  const double ratio = ids.empty() ? 0 : static_cast<double>(text.size()) / static_cast<double>(ids.size());
  if (a.json) {
    nlohmann::ordered_json j = {{"tokenizer", a.tokenizer},
                                {"model", d.kind},
                                {"vocab_size", t.vocab_size()},
                                {"merges", d.merges},
                                {"special_tokens", d.special},
                                {"prefix", std::vector<int32_t>(t.prefix().begin(), t.prefix().end())},
                                {"suffix", std::vector<int32_t>(t.suffix().begin(), t.suffix().end())}};
    if (!ids.empty()) j["bytes_per_token"] = ratio;
    print_json(j);
    return {};
  }
  print_line(fmt::format("{}: {}, {} ids,{} {} added tokens of which {} special", a.tokenizer, d.kind,
                         t.vocab_size(), d.merges < 0 ? "" : fmt::format(" {} merges,", d.merges), d.added,
                         d.special.size()));
  for (const auto& [name, around] : {std::pair("before", t.prefix()), std::pair("after", t.suffix())})
    for (const int32_t id : around) print_line(fmt::format("{} a text: {} {}", name, id, shown(t.token(id))));
  if (ids.empty()) return {};
  print_line(fmt::format("{} bytes in {} tokens: {:.2f} bytes a token", text.size(), ids.size(), ratio));
  constexpr size_t kShown = 100;
  for (size_t i = 0; i < std::min(ids.size(), kShown); ++i)
    print_line(fmt::format("{:>8}  {}", ids[i], shown(t.token(ids[i]))));
  if (ids.size() > kShown) print_line(fmt::format("... and {} more", ids.size() - kShown));
  return {};
}

void add_train_verb(CLI::App& verb, Outcome& outcome) {
  CLI::App& train_verb = *verb.add_subcommand("train", "Learns a byte-level BPE from text files.");
  auto a = std::make_shared<TrainTokenizerArguments>();
  train_verb.add_option("files", a->files, "text files")->required();
  train_verb.add_option("--vocab-size", a->options.vocab_size, "tokens: 256 bytes, special tokens, merges")
      ->required();
  train_verb.add_option("--output", a->output, "the tokenizer.json to write")->required();
  train_verb.add_option("--pattern", a->pattern, "how text is cut before merging: gpt2, llama3 or qwen")
      ->check(CLI::IsMember({"gpt2", "llama3", "qwen"}));
  train_verb.add_option("--special", a->options.special_tokens, "a special token; may be given again")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  train_verb.add_option("--min-frequency", a->options.min_frequency, "rarer pairs are not merged (2)");
  train_verb.add_option("--threads", a->threads, "0: the machine's cores; the result is the same")
      ->check(CLI::Range(0, exec::ThreadPool::kMaxThreads));
  add_json(train_verb, a->json, "print one JSON object");
  add_examples(
      train_verb, "tokenizer train FILE ... --vocab-size N --output FILE [--special TOKEN ...]",
      {"tokenizer train texts/*.txt --vocab-size 4096 --output tokenizer.json --special '<|endoftext|>'"});
  train_verb.final_callback([a, &outcome] { outcome.status = train(*a); });
}

}  // namespace

void add_tokenizer(CLI::App& app, Outcome& outcome) {
  CLI::App& verb = *app.add_subcommand("tokenizer", "Trains a tokenizer, encodes, decodes, shows one.");
  verb.require_subcommand(1);
  add_examples(
      verb, "tokenizer train|encode|decode|show ...",
      {"tokenizer train texts/*.txt --vocab-size 4096 --output tokenizer.json",
       "tokenizer encode tokenizer.json 'To be, or not to be'", "tokenizer decode tokenizer.json 84 311",
       "tokenizer show tokenizer.json 'To be, or not to be'"});
  add_train_verb(verb, outcome);

  const auto add = [&](const char* name, const char* what) -> CLI::App& {
    return *verb.add_subcommand(name, what);
  };
  const auto tokenizer_options = [](CLI::App& sub, TextArguments& a) {
    sub.add_option("tokenizer", a.tokenizer,
                   "tokenizer.json, a SentencePiece model, tiktoken ranks, or a folder")
        ->required();
    sub.add_option("--pattern", a.pattern, "of ranks: llama3, gpt2, cl100k or o200k")
        ->check(CLI::IsMember(tokenizer::tiktoken_kind_names()));
  };
  const auto text_options = [&](CLI::App& sub, TextArguments& a) {
    tokenizer_options(sub, a);
    sub.add_option("text", a.text, "the text");
    sub.add_option("--file", a.file, "a file with the text");
    sub.add_flag("--allow-special", a.allow_special,
                 "special tokens that are written in the text are taken as such");
    add_json(sub, a.json, "print one JSON object");
  };

  CLI::App& encode_verb = add("encode", "The ids of a text, an argument, a file or standard input.");
  auto e = std::make_shared<TextArguments>();
  text_options(encode_verb, *e);
  encode_verb.add_flag("--bare", e->bare, "without what the tokenizer puts around a text (BOS)");
  add_examples(encode_verb,
               "tokenizer encode TOKENIZER [TEXT] [--file FILE] [--bare] [--allow-special] [--json]",
               {"tokenizer encode tokenizer.json 'To be, or not to be' --json",
                "tokenizer encode some/folder --file hamlet.txt"});
  encode_verb.final_callback(
      [e, &encode_verb, &outcome] { outcome.status = encode(*e, encode_verb.count("text") > 0); });

  CLI::App& decode_verb = add("decode", "The text of ids, arguments or standard input.");
  auto d = std::make_shared<TextArguments>();
  tokenizer_options(decode_verb, *d);
  decode_verb.add_option("ids", d->ids, "the ids");
  decode_verb.add_flag("--keep-special", d->keep_special, "special tokens are written too");
  add_json(decode_verb, d->json, "print one JSON object");
  add_examples(decode_verb, "tokenizer decode TOKENIZER [ID ...] [--keep-special] [--json]",
               {"tokenizer decode tokenizer.json 84 311 44"});
  decode_verb.final_callback([d, &outcome] { outcome.status = decode(*d); });

  CLI::App& show_verb = add("show", "What a tokenizer is, and what it makes of a text.");
  auto s = std::make_shared<TextArguments>();
  text_options(show_verb, *s);
  add_examples(show_verb, "tokenizer show TOKENIZER [TEXT] [--file FILE] [--allow-special] [--json]",
               {"tokenizer show tokenizer.json", "tokenizer show tokenizer.json 'To be, or not to be'"});
  show_verb.final_callback(
      [s, &show_verb, &outcome] { outcome.status = show(*s, show_verb.count("text") > 0); });
}

}  // namespace lignum::cli
