// RUN/run.json and RUN/report.html. Internal to train/.
#pragma once

#include "train/profile.h"
#include "train/rank_loop.h"

namespace lignum::train {

// What is known before the first step.
report::RunRecord start_record(const Run& run, const plan::Price* price, const std::string& no_prediction);
// What the steps have shown.
void add_measured(const TrainSummary& summary, const Profile& profile, const plan::Price* price,
                  report::RunRecord& record);

Status write_record(const std::string& folder, const report::RunRecord& record);

}  // namespace lignum::train
