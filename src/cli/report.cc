// lignum report: the page of a run, from the files in its folder.
#include "report/report.h"

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/common.h"
#include "cli/verbs.h"

namespace lignum::cli {
namespace {

struct ReportArguments {
  std::string folder;
  bool json = false;
};

Status run_report(const ReportArguments& a) {
  LIGNUM_ASSIGN_OR_RETURN(const std::string path, report::write_report(a.folder));
  if (a.json) {
    print_json({{"report", path}});
  } else {
    print_line(fmt::format("wrote {}", path));
  }
  return {};
}

}  // namespace

void add_report(CLI::App& app, Outcome& outcome) {
  CLI::App& verb = *app.add_subcommand(
      "report", "Writes a run's report.html: losses, throughput, time and memory by part, roofline.");
  auto a = std::make_shared<ReportArguments>();
  verb.add_option("folder", a->folder, "the run's folder: run.json and metrics.jsonl")->required();
  add_json(verb, a->json, "print one JSON object");
  add_examples(verb, "report RUN [--json]", {"report runs/quickstart"});
  verb.final_callback([a, &outcome] { outcome.status = run_report(*a); });
}

}  // namespace lignum::cli
