// lignum convert: a Hugging Face folder out of another one, or out of a GGUF file.
#include "convert/convert.h"

#include <memory>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/common.h"
#include "cli/verbs.h"

namespace lignum::cli {
namespace {

struct ConvertArguments {
  std::string from, to;
  std::vector<std::string> settings;
  bool json = false;
};

Result<DType> dtype_of(const std::vector<std::string>& settings) {
  DType dtype = DType::f32;
  for (const std::string& s : settings) {
    if (s == "dtype=float32") {
      dtype = DType::f32;
    } else if (s == "dtype=bfloat16") {
      dtype = DType::bf16;
    } else {
      return user_error("'{}': convert takes dtype=float32 (the default) or dtype=bfloat16", shown(s));
    }
  }
  return dtype;
}

Status run_convert(const ConvertArguments& a) {
  LIGNUM_ASSIGN_OR_RETURN(const DType dtype, dtype_of(a.settings));
  LIGNUM_ASSIGN_OR_RETURN(const convert::Converted done, convert::convert(a.from, a.to, dtype));
  if (a.json) {
    print_json({{"folder", a.to},
                {"family", done.family},
                {"tensors", done.tensors},
                {"parameters", done.elements},
                {"bytes", done.bytes},
                {"tokenizer", done.tokenizer}});
  } else {
    print_line(fmt::format("{}: {}, {} tensors of {} parameters in {}, {:.1f} MB{}", a.to, done.family,
                           done.tensors, done.elements, dtype_name(dtype),
                           static_cast<double>(done.bytes) / 1e6,
                           done.tokenizer ? ", with its tokeniser" : ""));
  }
  return {};
}

}  // namespace

void add_convert(CLI::App& app, Outcome& outcome) {
  CLI::App& verb = *app.add_subcommand(
      "convert", "Makes a Hugging Face folder from another one (in one file, of another type) or from GGUF.");
  auto a = std::make_shared<ConvertArguments>();
  verb.add_option("from", a->from, "a Hugging Face folder, a checkpoint, or a .gguf file of a Llama")
      ->required();
  verb.add_option("to", a->to, "the folder to make")->required();
  verb.add_option("settings", a->settings, "dtype=float32 or dtype=bfloat16");
  add_json(verb, a->json, "print one JSON object");
  add_examples(verb, "convert FROM TO [dtype=bfloat16] [--json]",
               {"convert SmolLM2-135M-Instruct.Q4_1.gguf smollm2",
                "convert runs/NAME/checkpoints/100 exported dtype=bfloat16"});
  verb.final_callback([a, &outcome] { outcome.status = run_convert(*a); });
}

}  // namespace lignum::cli
