#include "tune/collective_timing.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <vector>

#include "comm/engine.h"
#include "comm/threads.h"
#include "tune/clock.h"

namespace lignum::tune {
namespace {

Result<comm::Kind> kind_of(hw::Collective op) {
  switch (op) {
    case hw::Collective::all_gather:
      return comm::Kind::all_gather;
    case hw::Collective::reduce_scatter:
      return comm::Kind::reduce_scatter;
    case hw::Collective::all_reduce:
      return comm::Kind::all_reduce;
    case hw::Collective::collective_permute:
      return comm::Kind::permute;
    default:
      return internal_error("the transport has no {}", hw::collective_name(op));
  }
}

// One rank's buffers and engine.
class Rank {
 public:
  Rank(comm::Kind kind, int ranks, int64_t bytes) : kind_(kind), ranks_(ranks) {
    // A permute's tensor is each rank's own; the others' is cut between the ranks.
    const bool cut = kind != comm::Kind::permute;
    rows_ = std::max<int64_t>(1, bytes / static_cast<int64_t>(sizeof(float)) / (cut ? ranks : 1));
    const auto whole = static_cast<size_t>(cut ? rows_ * ranks : rows_);
    in_.resize(kind == comm::Kind::all_gather ? static_cast<size_t>(rows_) : whole, 1.0f);
    out_.resize(kind == comm::Kind::reduce_scatter ? static_cast<size_t>(rows_) : whole);
  }

  // Samples on rank 0 alone.
  Status measure(comm::Transport& transport, double seconds, std::vector<double>& samples) {
    std::vector<int> all(static_cast<size_t>(ranks_));
    std::iota(all.begin(), all.end(), 0);
    LIGNUM_ASSIGN_OR_RETURN(const int group, transport.add_group(all));
    collective_.kind = kind_;
    collective_.in = in_.data();
    collective_.out = out_.data();
    collective_.local_rows = kind_ == comm::Kind::all_reduce ? rows_ * ranks_ : rows_;
    collective_.logical_rows = rows_ * ranks_;
    collective_.group = group;
    collective_.shift = kind_ == comm::Kind::permute ? 1 : 0;
    LIGNUM_ASSIGN_OR_RETURN(const auto engine, comm::CommEngine::create(transport));

    LIGNUM_RETURN_IF_ERROR(run(*engine, 1));  // touches the pages
    Clock::time_point start = Clock::now();
    LIGNUM_RETURN_IF_ERROR(run(*engine, 1));
    const double once = seconds_since(start);
    int64_t calls = std::clamp<int64_t>(static_cast<int64_t>(kSampleSeconds / std::max(once, 1e-9)), 1, 256);
    LIGNUM_RETURN_IF_ERROR(share(*engine, &calls, sizeof calls));

    const Clock::time_point begin = Clock::now();
    for (uint8_t more = 1; more != 0;) {
      LIGNUM_RETURN_IF_ERROR(engine->wait(engine->submit({.kind = comm::Kind::barrier, .group = group})));
      start = Clock::now();
      LIGNUM_RETURN_IF_ERROR(run(*engine, calls));
      if (transport.rank() == 0) samples.push_back(seconds_since(start) / static_cast<double>(calls));
      more = seconds_since(begin) < seconds ? 1 : 0;
      LIGNUM_RETURN_IF_ERROR(share(*engine, &more, sizeof more));
    }
    return {};
  }

 private:
  static constexpr double kSampleSeconds = 1e-3;

  Status run(comm::CommEngine& engine, int64_t calls) const {
    for (int64_t i = 0; i < calls; ++i) LIGNUM_RETURN_IF_ERROR(engine.wait(engine.submit(collective_)));
    return {};
  }

  // Rank 0's bytes to all; through the engine, whose the transport is.
  Status share(comm::CommEngine& engine, void* data, int64_t bytes) const {
    return engine.wait(engine.submit({.kind = comm::Kind::broadcast,
                                      .dtype = DType::u8,
                                      .in = data,
                                      .out = data,
                                      .row_elems = bytes,
                                      .group = collective_.group}));
  }

  comm::Kind kind_;
  int ranks_;
  int64_t rows_ = 1;
  std::vector<float> in_, out_;
  comm::Collective collective_;
};

}  // namespace

Result<hw::Measurement> measure_collective(hw::Collective op, int ranks, int64_t bytes, double seconds) {
  LIGNUM_ASSIGN_OR_RETURN(const comm::Kind kind, kind_of(op));
  comm::ThreadWorld world(ranks);
  std::vector<double> samples;
  LIGNUM_RETURN_IF_ERROR(world.run([&](comm::Transport& transport) -> Status {
    Rank rank(kind, ranks, bytes);
    std::vector<double> unused;
    return rank.measure(transport, seconds, transport.rank() == 0 ? samples : unused);
  }));
  return hw::summarize(std::move(samples), kBestShare);
}

}  // namespace lignum::tune
