#include "plan/program.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace lignum::plan {
namespace {

Result<ProgramOptions> options_of(std::vector<std::string> words) {
  words.insert(words.begin(), {"model_name=lignum-10m", "dataset_type=synthetic", "max_target_length=8"});
  if (std::none_of(words.begin(), words.end(),
                   [](const std::string& w) { return w.starts_with("per_device_batch_size="); }))
    words.emplace_back("per_device_batch_size=1");
  LIGNUM_ASSIGN_OR_RETURN(const config::Config config, config::Config::load({}, words));
  LIGNUM_ASSIGN_OR_RETURN(const config::ModelConfig model, config::model_from_config(config));
  return program_options(config, model, config.ranks());
}

passes::Pipeline pipeline_of(const std::vector<std::string>& words) {
  const auto options = options_of(words);
  EXPECT_TRUE(options.ok()) << options.status().message();
  return options.ok() ? options->pipeline : passes::Pipeline{};
}

std::string refused(const std::vector<std::string>& words) { return options_of(words).status().message(); }

// Of 8 layers.
TEST(PipelineKeys, DealLayersAndRows) {
  const auto is = [](const passes::Pipeline& p, int64_t stages, int64_t microbatches, int64_t repeats) {
    EXPECT_EQ(p.stages, stages);
    EXPECT_EQ(p.microbatches, microbatches);
    EXPECT_EQ(p.repeats, repeats);
  };
  is(pipeline_of({}), 1, 1, 1);
  is(pipeline_of({"ici_pipeline_parallelism=2"}), 2, 2, 4);
  is(pipeline_of({"ici_pipeline_parallelism=2", "num_layers_per_pipeline_stage=2"}), 2, 2, 2);
  is(pipeline_of({"ici_pipeline_parallelism=2", "pipeline_schedule=gpipe", "per_device_batch_size=3",
                  "num_pipeline_microbatches=6"}),
     2, 6, 1);
  is(pipeline_of({"ici_pipeline_parallelism=4", "ici_fsdp_parallelism=2", "per_device_batch_size=2",
                  "num_pipeline_microbatches=8", "num_pipeline_repeats=2"}),
     4, 8, 2);
  const auto notes = options_of({"num_pipeline_microbatches=4"})->notes;
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_EQ(notes[0], "num_pipeline_microbatches=4: no effect with ici_pipeline_parallelism=1");
}

TEST(PipelineKeys, AreRefusedWithTheNumbers) {
  EXPECT_EQ(refused({"ici_pipeline_parallelism=3"}),
            "ici_pipeline_parallelism=3: 8 layers cannot be cut into 3 equal stages; use a divisor of 8");
  EXPECT_EQ(refused({"dcn_pipeline_parallelism=3"}),
            "dcn_pipeline_parallelism=3: 8 layers cannot be cut into 3 equal stages; use a divisor of 8");
  EXPECT_EQ(refused({"ici_pipeline_parallelism=2", "num_layers_per_pipeline_stage=3"}),
            "num_layers_per_pipeline_stage=3: 8 layers are not a multiple of 2 x 3 (2 stages); use a divisor "
            "of 4, or "
            "pipeline_schedule=gpipe");
  EXPECT_EQ(
      refused({"ici_pipeline_parallelism=2", "num_layers_per_pipeline_stage=2", "pipeline_schedule=gpipe"}),
      "num_layers_per_pipeline_stage=2 with pipeline_schedule=gpipe: 8 layers on 2 stages are 4 each; leave "
      "it "
      "out, or use pipeline_schedule=circular");
  EXPECT_EQ(refused({"ici_pipeline_parallelism=2", "num_pipeline_repeats=2"}),
            "num_pipeline_repeats=2: 8 layers on 2 stages go round 4 times; leave it out or change "
            "num_layers_per_pipeline_stage");
  EXPECT_EQ(refused({"ici_pipeline_parallelism=2", "num_pipeline_microbatches=3"}),
            "num_pipeline_microbatches=3: no multiple of ici_pipeline_parallelism=2; set it to one, or to -1 "
            "for 2");
  EXPECT_EQ(refused({"ici_pipeline_parallelism=2", "num_pipeline_microbatches=4"}),
            "num_pipeline_microbatches=4: the 2 rows that the stages of a pipeline share cannot be cut into "
            "so many; "
            "use a divisor of 2 that is a multiple of 2, or raise per_device_batch_size");
  EXPECT_EQ(refused({"ici_pipeline_parallelism=2", "remat_policy=minimal_offloaded"}),
            "remat_policy=minimal_offloaded with ici_pipeline_parallelism=2: not there; use a mesh without a "
            "pipeline "
            "or leave it out");
}

}  // namespace
}  // namespace lignum::plan
