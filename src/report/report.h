// RUN/report.html: a run on one page that needs no network: how it learnt, where its time and memory went,
// and how good the prediction was.
#pragma once

#include <string>

#include "base/status.h"
#include "report/run_record.h"
#include "report/series.h"

namespace lignum::report {

std::string render(const RunRecord& run, const RunSeries& series);

// Reads the folder's run.json and metrics.jsonl and writes its report.html; returns that file's path.
Result<std::string> write_report(const std::string& folder);

}  // namespace lignum::report
