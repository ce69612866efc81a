// lignum inspect: a step's graph at any stage, a resolved configuration, a key, a run's batches, a tokenizer,
// a checkpoint.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/safetensors.h"
#include "base/text.h"
#include "cli/common.h"
#include "cli/target.h"
#include "cli/verbs.h"
#include "plan/report.h"
#include "tokenizer/tokenizer.h"
#include "train/checkpoint.h"
#include "train/data.h"
#include "train/setup.h"

namespace lignum::cli {
namespace {

constexpr const char* kStages[] = {"forward", "quantise",  "autodiff", "remat", "offload",  "accumulate",
                                   "update",  "partition", "hoist",    "fuse",  "schedule", "memory"};

struct GraphArguments {
  explicit GraphArguments(CLI::App& verb) : config(verb) {}
  ConfigWords config;
  std::string stage = "schedule";
  bool json = false;
};

nlohmann::ordered_json memory_json(const passes::MemoryPlan& plan) {
  nlohmann::ordered_json j = {{"state_bytes", plan.state_bytes}, {"arena_bytes", plan.arena_bytes}};
  for (const passes::MemoryPart& p : plan.parts) j["parts"].push_back({{"name", p.name}, {"bytes", p.bytes}});
  for (const passes::Allocation& a : plan.allocations) {
    j["allocations"].push_back({{"graph", a.frame},
                                {"part", a.part},
                                {"what", a.what},
                                {"base", a.base},
                                {"bytes", a.bytes},
                                {"first", a.first},
                                {"last", a.last}});
  }
  return j;
}

std::string memory_text(const passes::MemoryPlan& plan) {
  std::string text = plan::memory_table(plan);
  for (const passes::Allocation& a : plan.allocations) {
    text += fmt::format("\n{:>14} {:>14}  graph {} slots {}..{}  {}: {}", a.base, a.bytes, a.frame, a.first,
                        a.last, a.part, a.what);
  }
  return text;
}

Status inspect_graph(const GraphArguments& a) {
  LIGNUM_ASSIGN_OR_RETURN(const config::Config config, a.config.load());
  LIGNUM_ASSIGN_OR_RETURN(Target target, find_target(config));
  std::string text;
  target.step.dump = [&](std::string_view pass, const ir::Graph& graph) {
    if (pass == a.stage) text = ir::print(graph);
  };
  LIGNUM_ASSIGN_OR_RETURN(const plan::Program program, plan::make_program(target.step));
  if (a.stage == "schedule") text = passes::print_schedule(program.scheduled);
  if (a.stage == "memory") text = memory_text(program.memory);
  if (text.empty())
    return user_error(
        "--stage {}: this step goes through no such pass (quantise: with quantization; hoist: with "
        "compile_topology)",
        a.stage);
  if (!a.json) {
    print_line(text);
  } else if (a.stage == "memory") {
    print_json(memory_json(program.memory));
  } else {
    print_json({{"stage", a.stage}, {"text", text}});
  }
  return {};
}

struct ConfigArguments {
  explicit ConfigArguments(CLI::App& verb) : config(verb) {}
  ConfigWords config;
  bool json = false;
};

Status inspect_config(const ConfigArguments& a) {
  LIGNUM_ASSIGN_OR_RETURN(const config::Config config, a.config.load());
  if (a.json) {
    print_line(config.to_json().dump());
    return {};
  }
  print_line(config.to_yaml());
  for (const std::string& note : config.notes()) print_line("# " + note);
  return {};
}

struct BatchesArguments {
  explicit BatchesArguments(CLI::App& verb) : config(verb) {}
  ConfigWords config;
  std::string output;
  bool json = false;
};

Status inspect_batches(const BatchesArguments& a) {
  LIGNUM_ASSIGN_OR_RETURN(const config::Config config, a.config.load());
  LIGNUM_ASSIGN_OR_RETURN(const train::Setup setup, train::make_setup(config, nullptr));
  LIGNUM_ASSIGN_OR_RETURN(const train::TrainData data, train::TrainData::open(config, setup.model.vocab_size,
                                                                              setup.batch, setup.tokenizer));
  const int64_t steps = config.integer("steps");
  LIGNUM_RETURN_IF_ERROR(train::export_batches(data, steps, a.output));
  const std::string rows = data.fingerprint();
  if (a.json) {
    print_json({{"file", a.output},
                {"steps", steps},
                {"rows", setup.batch.global_rows()},
                {"seq", setup.batch.seq},
                {"data", rows}});
  } else {
    print_line(fmt::format("{}: {} steps of {} rows of {} tokens; {}", a.output, steps,
                           setup.batch.global_rows(), setup.batch.seq, rows));
  }
  return {};
}

Status inspect_checkpoint(const std::string& folder, bool json) {
  if (!path_exists(join_path(folder, "manifest.json")) && !path_exists(join_path(folder, "config.json"))) {
    LIGNUM_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, train::list_checkpoints(folder));
    return user_error(
        "{}: no checkpoint is there; {} is wanted", folder,
        steps.empty() ? "RUN/checkpoints/STEP" : train::checkpoint_folder(folder, steps.back()));
  }
  LIGNUM_ASSIGN_OR_RETURN(const train::Checkpoint c, train::open_checkpoint(folder));
  LIGNUM_ASSIGN_OR_RETURN(const SafetensorsReader model,
                          SafetensorsReader::open(join_path(folder, "model.safetensors")));
  if (json) {
    nlohmann::ordered_json j = {{"folder", folder},
                                {"step", c.state.step},
                                {"rows_consumed", c.state.rows_consumed},
                                {"data", c.state.data},
                                {"isa", c.state.isa},
                                {"bf16_dot", c.state.bf16_dot},
                                {"parameters", c.model.parameters()},
                                {"bytes", c.bytes}};
    for (const passes::MeshAxis& axis : c.state.mesh) j["mesh"][axis.name] = axis.size;
    for (const TensorInfo& t : model.tensors()) j["tensors"][t.name] = t.shape;
    print_json(j);
    return {};
  }
  print_line(fmt::format("{}: complete, {}", folder, plan::bytes_text(static_cast<double>(c.bytes))));
  print_line(fmt::format("  {} updates done, {} rows of {} consumed", c.state.step, c.state.rows_consumed,
                         c.state.data));
  print_line(fmt::format("  {} parameters in {} tensors, {} kernels, bf16 dots by {}", c.model.parameters(),
                         model.tensors().size(), c.state.isa, c.state.bf16_dot));
  for (const passes::MeshAxis& axis : c.state.mesh)
    print_line(fmt::format("  mesh {}={}", axis.name, axis.size));
  return {};
}

struct TokenizerArguments {
  std::string path, pattern = "llama3";
  bool json = false;
};

Status inspect_tokenizer(const TokenizerArguments& a) {
  LIGNUM_ASSIGN_OR_RETURN(const tokenizer::TiktokenKind ranks, tokenizer::tiktoken_kind(a.pattern));
  LIGNUM_ASSIGN_OR_RETURN(const tokenizer::Tokenizer t, tokenizer::Tokenizer::load(a.path, {.ranks = ranks}));
  const tokenizer::Description d = t.describe();
  const tokenizer::SpecialIds ids = t.special_ids();
  const std::pair<const char*, int32_t> named[] = {
      {"bos", ids.bos}, {"eos", ids.eos}, {"unk", ids.unknown}, {"pad", ids.pad}};
  const std::pair<const char*, std::span<const int32_t>> around[] = {{"before", t.prefix()},
                                                                     {"after", t.suffix()}};
  if (a.json) {
    nlohmann::ordered_json j = {{"tokenizer", a.path}, {"kind", d.kind}, {"vocab_size", t.vocab_size()}};
    if (d.merges >= 0) j["merges"] = d.merges;
    j["added_tokens"] = d.added;
    j["special_tokens"] = d.special;
    for (const auto& [name, id] : named)
      if (id >= 0) j[fmt::format("{}_id", name)] = id;
    for (const auto& [name, list] : around) j[name] = std::vector<int32_t>(list.begin(), list.end());
    for (const auto& [name, what] : d.parts) j["parts"][name] = what;
    print_json(j);
    return {};
  }
  print_line(fmt::format("{}: {}", a.path, d.kind));
  const auto line = [](std::string_view name, const std::string& what) {
    print_line(fmt::format("  {:<20} {}", name, what));
  };
  line("vocabulary", fmt::format("{} ids", t.vocab_size()));
  if (d.merges >= 0) line("merges", std::to_string(d.merges));
  line("added tokens", fmt::format("{}, {} of them special", d.added, d.special.size()));
  constexpr size_t kShown = 12;
  std::string special;
  for (size_t i = 0; i < std::min(d.special.size(), kShown); ++i) special += " " + shown(d.special[i]);
  if (d.special.size() > kShown) special += " ...";
  if (!special.empty()) line("special tokens", special.substr(1));
  for (const auto& [name, id] : named)
    if (id >= 0) line(name, fmt::format("{} {}", id, shown(t.token(id))));
  for (const auto& [name, list] : around)
    for (const int32_t id : list)
      line(fmt::format("{} a text", name), fmt::format("{} {}", id, shown(t.token(id))));
  for (const auto& [name, what] : d.parts) line(name, what);
  return {};
}

}  // namespace

void add_inspect(CLI::App& app, Outcome& outcome) {
  CLI::App& verb = *app.add_subcommand(
      "inspect", "Shows a graph, a configuration, a key, batches, a tokenizer or a checkpoint.");
  verb.require_subcommand(1);
  add_examples(
      verb, "inspect graph|config|key|batches|tokenizer|checkpoint ...",
      {"inspect graph configs/quickstart.yml --stage remat", "inspect config configs/quickstart.yml steps=5",
       "inspect key remat_policy", "inspect checkpoint runs/first/checkpoints/500"});

  CLI::App& graph =
      *verb.add_subcommand("graph", "The training step's graph after a pass, its schedule or memory.");
  auto g = std::make_shared<GraphArguments>(graph);
  graph
      .add_option(
          "--stage", g->stage,
          "a pass (forward, quantise, autodiff, remat, offload, accumulate, update, partition, hoist, "
          "fuse), schedule or memory")
      ->check(CLI::IsMember(std::vector<std::string>(std::begin(kStages), std::end(kStages))));
  add_json(graph, g->json, "print one JSON object");
  add_examples(graph, "inspect graph [config.yml] [key=value ...] [--stage STAGE] [--json]",
               {"inspect graph configs/quickstart.yml --stage forward",
                "inspect graph configs/quickstart.yml ranks=2 ici_fsdp_parallelism=2 --stage schedule"});
  graph.final_callback([g, &outcome] { outcome.status = inspect_graph(*g); });

  CLI::App& config = *verb.add_subcommand("config", "Every key with its value and where it came from.");
  auto c = std::make_shared<ConfigArguments>(config);
  add_json(config, c->json, "print one JSON object");
  add_examples(config, "inspect config [config.yml] [key=value ...] [--json]",
               {"inspect config configs/quickstart.yml", "inspect config steps=5 --json"});
  config.final_callback([c, &outcome] { outcome.status = inspect_config(*c); });

  struct Named {
    std::string name;
    bool json = false;
  };
  CLI::App& key = *verb.add_subcommand("key", "What a configuration key means.");
  auto k = std::make_shared<Named>();
  key.add_option("name", k->name, "the key")->required();
  add_examples(key, "inspect key NAME", {"inspect key per_device_batch_size"});
  key.final_callback([k, &outcome] {
    const Result<std::string> text = config::explain(k->name);
    outcome.status = text.status();
    if (text.ok()) print_line(*text);
  });

  CLI::App& batches = *verb.add_subcommand("batches", "Writes the tokens that a run trains on to a file.");
  auto b = std::make_shared<BatchesArguments>(batches);
  batches
      .add_option("--output", b->output, "safetensors file of `ids` and `labels`, i32 [steps, rows, tokens]")
      ->required();
  add_json(batches, b->json, "print one JSON object");
  add_examples(batches, "inspect batches [config.yml] [key=value ...] --output FILE [--json]",
               {"inspect batches configs/quickstart.yml steps=10 --output batches.safetensors"});
  batches.final_callback([b, &outcome] { outcome.status = inspect_batches(*b); });

  CLI::App& tokenizer = *verb.add_subcommand(
      "tokenizer", "A tokenizer's kind, vocabulary, merges, special tokens and the parts of its pipeline.");
  auto t = std::make_shared<TokenizerArguments>();
  tokenizer.add_option("file", t->path, "tokenizer.json, a SentencePiece model, tiktoken ranks, or a folder")
      ->required();
  tokenizer.add_option("--pattern", t->pattern, "of ranks: llama3, gpt2, cl100k or o200k")
      ->check(CLI::IsMember(tokenizer::tiktoken_kind_names()));
  add_json(tokenizer, t->json, "print one JSON object");
  add_examples(
      tokenizer, "inspect tokenizer FILE [--pattern NAME] [--json]",
      {"inspect tokenizer tokenizer.json", "inspect tokenizer cl100k_base.tiktoken --pattern cl100k"});
  tokenizer.final_callback([t, &outcome] { outcome.status = inspect_tokenizer(*t); });

  CLI::App& checkpoint =
      *verb.add_subcommand("checkpoint", "Checks a checkpoint's files and says what it holds.");
  auto f = std::make_shared<Named>();
  checkpoint.add_option("folder", f->name, "RUN/checkpoints/STEP")->required();
  add_json(checkpoint, f->json, "print one JSON object");
  add_examples(checkpoint, "inspect checkpoint FOLDER [--json]",
               {"inspect checkpoint runs/first/checkpoints/500"});
  checkpoint.final_callback([f, &outcome] { outcome.status = inspect_checkpoint(f->name, f->json); });
}

}  // namespace lignum::cli
