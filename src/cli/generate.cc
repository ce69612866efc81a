// lignum generate: continues prompts with a model's folder, a checkpoint or a run.
#include "generate/generate.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "base/file.h"
#include "base/text.h"
#include "cli/common.h"
#include "cli/verbs.h"
#include "generate/model_folder.h"
#include "generate/settings.h"

namespace lignum::cli {
namespace {

struct GenerateArguments {
  CLI::App* verb = nullptr;
  std::vector<std::string> prompts, files, ids;
  bool json = false;
};

struct Words {
  std::string model;
  std::vector<std::string> settings;
};
Result<Words> words_of(const GenerateArguments& a) {
  Words w;
  for (const std::string& word : a.verb->remaining()) {
    if (word.starts_with("-"))
      return user_error("'{}' is not an option of this verb; see --help", shown(word));
    if (word.find('=') != std::string::npos) {
      w.settings.push_back(word);
    } else if (w.model.empty()) {
      w.model = word;
    } else {
      return user_error(
          "'{}' and '{}': one model is loaded; settings are key=value, a prompt comes with --prompt",
          shown(w.model), shown(word));
    }
  }
  if (w.model.empty())
    return user_error("no model: name a Hugging Face folder, a checkpoint or a run (runs/NAME); see --help");
  return w;
}

Result<std::vector<int32_t>> parse_ids(const std::string& text) {
  std::vector<int32_t> ids;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    size_t end = 0;
    int64_t id = -1;
    try {
      id = std::stoll(word, &end);
    } catch (const std::exception&) {
      end = 0;
    }
    if (end != word.size() || id < 0 || id > INT32_MAX)
      return user_error("--ids: '{}' is no token; whole numbers are expected, \"1 15 7\" say", shown(word));
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

// The prompts, in the order: --prompt, --prompt-file, --ids. texts: as given, empty for ids.
struct Prompts {
  std::vector<std::string> texts;
  std::vector<std::vector<int32_t>> ids;
};
Result<Prompts> read_prompts(const GenerateArguments& a, const std::optional<generate::Codec>& codec) {
  Prompts p;
  p.texts = a.prompts;
  for (const std::string& path : a.files) {
    LIGNUM_ASSIGN_OR_RETURN(std::string text, read_text(path));
    p.texts.push_back(std::move(text));
  }
  for (const std::string& text : p.texts) {
    LIGNUM_ASSIGN_OR_RETURN(std::vector<int32_t> ids, codec->encode(text));
    p.ids.push_back(std::move(ids));
  }
  for (const std::string& text : a.ids) {
    LIGNUM_ASSIGN_OR_RETURN(std::vector<int32_t> ids, parse_ids(text));
    p.texts.emplace_back();
    p.ids.push_back(std::move(ids));
  }
  if (p.ids.empty()) return user_error("no prompt: --prompt TEXT, --prompt-file FILE or --ids \"1 15 7\"");
  return p;
}

// "1 token", "2 tokens"
std::string counted(int64_t n, const char* what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
}
double rate(double amount, double seconds) { return seconds > 0 ? amount / seconds : 0; }

// This machine's memory, byte/s; 0: not calibrated.
double memory_rate() {
  std::string why_not;
  const auto config = config::Config::load({}, {});
  if (!config.ok()) return 0;
  const auto spec = find_spec(*config, why_not);
  if (!spec.ok() || !*spec) return 0;
  const auto bytes = (**spec).memory_bandwidth();
  return bytes.ok() ? *bytes : 0;
}

void print_timing(const generate::Timing& t) {
  std::string line =
      fmt::format("{} read in {:.3g} s ({:.0f} tokens/s)", counted(t.prefill_tokens, "prompt token"),
                  t.prefill_seconds, rate(static_cast<double>(t.prefill_tokens), t.prefill_seconds));
  if (t.decode_tokens > 0) {
    const double bytes = rate(t.decode_bytes, t.decode_seconds), most = memory_rate();
    line += fmt::format("; {} in {:.3g} s ({:.1f} tokens/s, {:.1f} GB/s", counted(t.decode_tokens, "token"),
                        t.decode_seconds, rate(static_cast<double>(t.decode_tokens), t.decode_seconds),
                        bytes * 1e-9);
    if (most > 0) line += fmt::format(", {:.0f} % of this machine's {:.1f}", 100 * bytes / most, most * 1e-9);
    line += ")";
  }
  fmt::print(stderr, "{}\n", line);
}

nlohmann::ordered_json json_of(const generate::Timing& t) {
  nlohmann::ordered_json decode = {
      {"tokens", t.decode_tokens},
      {"seconds", t.decode_seconds},
      {"tokens_per_s", rate(static_cast<double>(t.decode_tokens), t.decode_seconds)},
      {"bytes_per_s", rate(t.decode_bytes, t.decode_seconds)}};
  if (const double most = memory_rate(); most > 0) decode["memory_bytes_per_s"] = most;
  return {{"prefill",
           {{"tokens", t.prefill_tokens},
            {"seconds", t.prefill_seconds},
            {"tokens_per_s", rate(static_cast<double>(t.prefill_tokens), t.prefill_seconds)}}},
          {"decode", decode}};
}

struct Session {
  generate::ModelFolder model;
  generate::Settings settings;
  std::optional<generate::Codec> codec;
  Prompts prompts;
  std::unique_ptr<generate::Engine> engine;
};

Result<Session> start(const GenerateArguments& a) {
  LIGNUM_ASSIGN_OR_RETURN(const Words words, words_of(a));
  LIGNUM_ASSIGN_OR_RETURN(generate::Settings settings, generate::read_settings(words.settings));
  LIGNUM_ASSIGN_OR_RETURN(generate::ModelFolder model, generate::open_model(words.model));
  Session s{std::move(model), std::move(settings), {}, {}, {}};
  Result<generate::Codec> codec = generate::Codec::open(s.model);
  const bool texts = !a.prompts.empty() || !a.files.empty();
  if (!codec.ok() && texts) return codec.status();
  if (codec.ok()) s.codec = std::move(codec).value();
  LIGNUM_ASSIGN_OR_RETURN(s.prompts, read_prompts(a, s.codec));
  s.settings.generate.eos_ids = s.settings.eos_ids.value_or(s.model.eos_ids);
  LIGNUM_ASSIGN_OR_RETURN(const int64_t positions,
                          generate::positions_needed(s.model.model, s.prompts.ids, s.settings.generate));
  size_t longest = 0;
  for (const auto& ids : s.prompts.ids) longest = std::max(longest, ids.size());
  generate::EngineOptions e;
  e.model = s.model.model;
  e.rows = static_cast<int64_t>(s.prompts.ids.size());
  e.capacity = positions;
  e.prefill_tokens = std::min(s.settings.prefill_tokens, static_cast<int64_t>(longest));
  e.dtype = s.settings.dtype;
  e.threads = s.settings.threads;
  e.choice = s.settings.choice;
  e.device_memory = s.settings.device_memory;
  LIGNUM_ASSIGN_OR_RETURN(s.engine, generate::Engine::create(e));
  LIGNUM_RETURN_IF_ERROR(s.engine->load(s.model.files));
  return s;
}

// One sequence as it comes, with its prompt before it; several one after the other, when all are done.
Status print_texts(Session& s) {
  const auto print = [](const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  const bool one = s.prompts.ids.size() == 1;
  std::optional<generate::TextStream> stream;
  if (s.codec) stream.emplace(*s.codec);
  Status status;
  const auto piece = [&](int32_t id) -> Result<std::string> {
    return stream ? stream->push(id) : Result<std::string>(fmt::format(" {}", id));
  };
  if (one) print(s.codec ? s.prompts.texts[0] : fmt::format("{}", fmt::join(s.prompts.ids[0], " ")));
  LIGNUM_ASSIGN_OR_RETURN(
      const generate::Generated out,
      generate::generate(*s.engine, s.prompts.ids, s.settings.generate, [&](int64_t, int32_t id) {
        if (!one || !status.ok()) return;
        const Result<std::string> text = piece(id);
        if (text.ok()) print(*text);
        status = text.status();
      }));
  LIGNUM_RETURN_IF_ERROR(status);
  if (one && stream) {
    LIGNUM_ASSIGN_OR_RETURN(const std::string rest, stream->finish());
    print(rest);
  }
  for (size_t i = 0; !one && i < out.sequences.size(); ++i) {
    print(fmt::format("== prompt {} ({})\n", i + 1, generate::stop_name(out.sequences[i].stop)));
    if (s.codec) {
      LIGNUM_ASSIGN_OR_RETURN(const std::string text, s.codec->decode(out.sequences[i].ids));
      print(s.prompts.texts[i] + text + "\n");
    } else {
      print(fmt::format("{} {}\n", fmt::join(s.prompts.ids[i], " "), fmt::join(out.sequences[i].ids, " ")));
    }
  }
  if (one) print("\n");
  print_timing(out.timing);
  return {};
}

Status print_all(Session& s) {
  LIGNUM_ASSIGN_OR_RETURN(const generate::Generated out,
                          generate::generate(*s.engine, s.prompts.ids, s.settings.generate));
  nlohmann::ordered_json j = {{"model", s.model.folder},
                              {"dtype", s.settings.dtype == DType::bf16 ? "bfloat16" : "float32"},
                              {"isa", kernels::isa_name(s.settings.choice.isa)},
                              {"threads", s.settings.threads},
                              {"seed", s.settings.generate.sampling.seed},
                              {"sequences", nlohmann::ordered_json::array()}};
  for (size_t i = 0; i < out.sequences.size(); ++i) {
    nlohmann::ordered_json one = {{"prompt_ids", s.prompts.ids[i]},
                                  {"ids", out.sequences[i].ids},
                                  {"stop", generate::stop_name(out.sequences[i].stop)}};
    if (s.codec) {
      LIGNUM_ASSIGN_OR_RETURN(one["prompt"], s.codec->decode(s.prompts.ids[i]));
      LIGNUM_ASSIGN_OR_RETURN(one["text"], s.codec->decode(out.sequences[i].ids));
    }
    j["sequences"].push_back(std::move(one));
  }
  j.update(json_of(out.timing));
  print_json(j);
  return {};
}

Status run_generate(const GenerateArguments& a) {
  LIGNUM_ASSIGN_OR_RETURN(Session session, start(a));
  return a.json ? print_all(session) : print_texts(session);
}

}  // namespace

void add_generate(CLI::App& app, Outcome& outcome) {
  CLI::App& verb =
      *app.add_subcommand("generate", "Continues prompts: from a model's folder, a checkpoint or a run.");
  auto a = std::make_shared<GenerateArguments>();
  a->verb = &verb;
  verb.allow_extras();  // not options of CLI11's: it would take a value in brackets, eos_ids=[1,2], apart
  verb.add_option("--prompt", a->prompts, "a text to continue; several are continued side by side")
      ->allow_extra_args(false);
  verb.add_option("--prompt-file", a->files, "a file whose text is to be continued")->allow_extra_args(false);
  verb.add_option("--ids", a->ids, "a prompt as token ids: \"1 15 7\"")->allow_extra_args(false);
  add_json(verb, a->json, "print one JSON object when all is done");
  add_examples(
      verb, "generate MODEL [key=value ...] --prompt TEXT [--json]",
      {"generate runs/first --prompt 'HAMLET.' max_new_tokens=200 temperature=0.8",
       "generate some/folder --prompt-file question.txt temperature=0 dtype=bfloat16",
       "generate some/folder --prompt 'To be' --prompt 'Not to be' top_k=40 top_p=0.95 seed=7 --json"});
  verb.footer(verb.get_footer() + "\nSettings, with their defaults:\n" + generate::settings_help());
  verb.final_callback([a, &outcome] { outcome.status = run_generate(*a); });
}

}  // namespace lignum::cli
