// The levers of a run in pairs: each two values of each two levers meet in a configuration, and each
// configuration trains to the bits of that in which all levers which promise them (docs/numerics.md) are off.
// Levers are keys, and what is compared are the losses and the checkpoint that a run writes.
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/rng.h"
#include "runs.h"

namespace lignum::testing {
namespace {

#define ASSERT_OK(result) ASSERT_TRUE((result).ok()) << (result).status().message()

struct Lever {
  std::string name;
  bool keeps_bits;
  std::vector<std::vector<std::string>> values;  // as key=value words; the first one is off
};
using Words = std::vector<std::string>;
using Row = std::vector<size_t>;  // of each lever its value

std::vector<Lever> levers(const std::string& folder) {
  const std::string fp8 = "use_qwix_quantization=true", full = "quantization=fp8_full";
  Words offload = {"remat_policy=custom"};
  for (const char* tensor : {"decoder_layer_input", "context", "query_proj", "out_proj", "mlpwi_0"})
    offload.push_back(std::string(tensor) + "=offload");
  return {
      {"dtype", false, {{"dtype=float32"}, {"dtype=bfloat16"}}},
      {"quantization",
       false,
       {{},
        {fp8, full},
        {fp8, full, "quantization_scales=tensor", "act_quantization_calibration_method=absmax,0.9"},
        {fp8, full, "weight_quantization_calibration_method=fixed,-4,4",
         "act_quantization_calibration_method=fixed,-16,16",
         "bwd_quantization_calibration_method=fixed,-2,2"},
        {fp8, full, "weight_quantization_calibration_method=static",
         "act_quantization_calibration_method=static", "bwd_quantization_calibration_method=static,2",
         "load_quant_stats_path=" + folder + "/stats.json"},
        {fp8, full, "bwd_stochastic_rounding=uniform"},
        {fp8, full, "num_layers_at_start_in_bf16=1"}}},
      {"tied", false, {{"logits_via_embedding=false"}, {"logits_via_embedding=true"}}},
      {"tiling", false, {{"num_vocab_tiling=0"}, {"num_vocab_tiling=1"}, {"num_vocab_tiling=3"}}},
      {"packing", false, {{"packing=false"}, {"packing=true"}}},
      {"optimizer",
       false,
       {{"opt_type=adamw"},
        {"opt_type=adamw", "mu_dtype=bfloat16"},
        {"opt_type=sgd", "learning_rate=0.5", "momentum=0.9"}}},
      {"width", false, {{"base_emb_dim=32"}, {"base_emb_dim=33"}}},  // odd: the last shard is padded
      {"mesh",
       false,
       {{"ranks=1", "ici_data_parallelism=1", "ici_fsdp_parallelism=1"},
        {"ranks=2", "ici_data_parallelism=2", "ici_fsdp_parallelism=1"},
        {"ranks=2", "ici_data_parallelism=1", "ici_fsdp_parallelism=2"}}},
      {"accumulation", false, {{"gradient_accumulation_steps=1"}, {"gradient_accumulation_steps=2"}}},
      {"remat", true, {{"remat_policy=none"}, {"remat_policy=minimal"}, {"remat_policy=full"}, offload}},
      {"host", true, {{"host_memory=ram"}, {"host_memory=file:" + folder}}},
      {"prefetch", true, {{"prefetch_distance=0"}, {"prefetch_distance=1"}, {"prefetch_distance=3"}}},
      {"overlap", true, {{"overlap=off"}, {"overlap=on"}}},
      {"fuse", true, {{"fuse=off"}, {"fuse=on"}}},
      {"threads", true, {{"threads=1"}, {"threads=2"}}},
      {"isa", true, {{"isa=auto"}, {"isa=scalar"}}},
      {"metrics", true, {{"quantization_metrics=false"}, {"quantization_metrics=true"}}},
      {"workers", true, {{"grain_worker_count=0"}, {"grain_worker_count=1"}}},
      {"stops", true, {{"checkpoint_period=2"}, {"checkpoint_period=1"}}},  // on: after a step, and resumes
  };
}

// Ranges as a run would have recorded them.
std::string stats() {
  nlohmann::json file;
  for (const char* dot : {"self_attention/query", "self_attention/key", "self_attention/value",
                          "self_attention/out", "mlp/wi_0", "mlp/wi_1", "mlp/wo"}) {
    nlohmann::json& own = file["quant_stats"][std::string("decoder/layers/") + dot];
    own["weight"]["mean"] = {0.08, 0.07};
    own["act"]["mean"] = {3.5, 4.5};
    own["bwd"]["mean"] = {0.25, 0.125};
  }
  return file.dump();
}

size_t place_of(const std::vector<Lever>& all, std::string_view name) {
  const auto at = std::find_if(all.begin(), all.end(), [&](const Lever& l) { return l.name == name; });
  LIGNUM_CHECK(at != all.end(), "no lever {}", name);
  return static_cast<size_t>(at - all.begin());
}

struct Pair {
  size_t lever, value, other_lever, other_value;  // lever < other_lever
  friend auto operator<=>(const Pair&, const Pair&) = default;
};

std::set<Pair> all_pairs(const std::vector<Lever>& all) {
  std::set<Pair> pairs;
  for (size_t a = 0; a < all.size(); ++a)
    for (size_t b = a + 1; b < all.size(); ++b)
      for (size_t i = 0; i < all[a].values.size(); ++i)
        for (size_t k = 0; k < all[b].values.size(); ++k) pairs.insert({a, i, b, k});
  return pairs;
}

std::set<Pair> pairs_of(const Row& row) {
  std::set<Pair> pairs;
  for (size_t a = 0; a < row.size(); ++a)
    for (size_t b = a + 1; b < row.size(); ++b) pairs.insert({a, row[a], b, row[b]});
  return pairs;
}

// Rows in which every pair occurs (Cohen et al., "The AETG system", 1997): each is the best of some that
// begin with a pair which is missing and take lever by lever, in a random order, the value that brings most.
std::vector<Row> covering_rows(const std::vector<Lever>& all) {
  constexpr int kTries = 30;
  const Random random(3, "covering");
  uint64_t drawn = 0;
  std::set<Pair> missing = all_pairs(all);
  std::vector<Row> rows;
  while (!missing.empty()) {
    Row best;
    size_t most = 0;
    for (int attempt = 0; attempt < kTries; ++attempt) {
      std::vector<size_t> order(all.size());
      for (size_t i = 0; i < order.size(); ++i) order[i] = i;
      for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(drawn++, i)]);
      const Pair first =
          *std::next(missing.begin(), static_cast<int64_t>(random.below(drawn++, missing.size())));
      Row row(all.size(), SIZE_MAX);
      row[first.lever] = first.value;
      row[first.other_lever] = first.other_value;
      size_t brings = 1;
      for (const size_t lever : order) {
        if (row[lever] != SIZE_MAX) continue;
        std::vector<size_t> gain(all[lever].values.size());
        for (size_t v = 0; v < gain.size(); ++v)
          for (size_t other = 0; other < row.size(); ++other)
            if (row[other] != SIZE_MAX)
              gain[v] += lever < other ? missing.contains({lever, v, other, row[other]})
                                       : missing.contains({other, row[other], lever, v});
        const size_t largest = *std::max_element(gain.begin(), gain.end());
        size_t v = random.below(drawn++, gain.size());
        while (gain[v] != largest) v = (v + 1) % gain.size();
        row[lever] = v;
        brings += largest;
      }
      if (brings > most) {
        most = brings;
        best = row;
      }
    }
    for (const Pair& p : pairs_of(best)) missing.erase(p);
    rows.push_back(std::move(best));
  }
  return rows;
}

// The configuration whose bits a row has.
Row reference_of(const std::vector<Lever>& all, Row row) {
  const auto value = [&](std::string_view name) -> size_t& { return row[place_of(all, name)]; };
  for (size_t i = 0; i < row.size(); ++i)
    if (all[i].keeps_bits) row[i] = 0;
  // One tile of so few tokens is the whole, where whole logits are not rounded.
  if (value("dtype") == 0 && value("tiling") == 1) value("tiling") = 0;
  constexpr size_t kOne = 0, kData = 1, kFsdp = 2;
  if (value("mesh") == kFsdp) value("mesh") = kData;
  // Two micro-steps are two ranks, unless each has scales of its own.
  constexpr size_t kNotQuantised = 0, kFixed = 3, kStatic = 4;
  const size_t q = value("quantization");
  const bool found_scales = q != kNotQuantised && q != kFixed && q != kStatic;
  if (value("mesh") == kOne && value("accumulation") == 1 && !found_scales) {
    value("mesh") = kData;
    value("accumulation") = 0;
  }
  return row;
}

Words words_of(const std::vector<Lever>& all, const Row& row) {
  Words words;
  for (size_t i = 0; i < row.size(); ++i)
    words.insert(words.end(), all[i].values[row[i]].begin(), all[i].values[row[i]].end());
  return words;
}

struct Trained {
  std::vector<double> losses;
  std::string tensors;
};

void train(const RunFolder& f, const std::vector<Lever>& all, const Row& row, const std::string& name,
           Trained& out) {
  const auto until = [&](const char* steps) {
    Words words = words_of(all, row);
    for (const char* word : {"bf16_dot=fma", "gradient_clipping_threshold=0",
                             "learning_rate_schedule_steps=2", "warmup_steps_fraction=0", steps})
      words.emplace_back(word);
    return f.train(name, words);
  };
  if (row[place_of(all, "stops")] == 1) {
    ASSERT_OK(until("steps=1"));
  }
  ASSERT_OK(until("steps=2"));
  for (const nlohmann::json& record : f.steps(name)) out.losses.push_back(record["loss"]);
  out.tensors = f.tensors(name, 2);
}

TEST(Matrix, EachTwoLeversTogetherKeepWhatTheyPromise) {
  const RunFolder f;
  ASSERT_TRUE(write_file_atomic(f / "stats.json", stats()).ok());
  const std::vector<Lever> all = levers(f.path());
  const std::vector<Row> rows = covering_rows(all);
  std::set<Pair> missing = all_pairs(all);
  for (const Row& row : rows)
    for (const Pair& p : pairs_of(row)) missing.erase(p);
  ASSERT_TRUE(missing.empty()) << missing.size() << " pairs do not occur";

  std::map<Row, Trained> references;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row reference = reference_of(all, rows[i]);
    SCOPED_TRACE(fmt::format("{} with {}", i, fmt::join(words_of(all, rows[i]), " ")));
    Trained own;
    ASSERT_NO_FATAL_FAILURE(train(f, all, rows[i], fmt::format("row{}", i), own));
    if (!references.contains(reference)) {
      ASSERT_NO_FATAL_FAILURE(train(f, all, reference, fmt::format("reference{}", i), references[reference]));
    }
    EXPECT_EQ(own.losses, references[reference].losses);
    EXPECT_TRUE(own.tensors == references[reference].tensors) << "other parameters or moments";
  }
  // A lever that promises no bits does something.
  std::map<std::string, Row> seen;
  for (const auto& [row, trained] : references) {
    const auto [it, fresh] = seen.emplace(trained.tensors, row);
    EXPECT_TRUE(fresh) << fmt::format("the same bits: {} and {}", fmt::join(words_of(all, row), " "),
                                      fmt::join(words_of(all, it->second), " "));
  }
  fmt::print("{} configurations, {} references\n", rows.size(), references.size());
}

}  // namespace
}  // namespace lignum::testing
