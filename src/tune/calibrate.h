// Measures this machine with the project's own kernels, pool and transport, and writes what was found as the
// CPU specification that plans are priced on (docs/specs.md).
//
// Every point is the time of one call; where the call hands work to the pool's threads, with a node's fixed
// cost (dispatch) taken off, since the planner adds that once a node. Samples are taken in turn, their median
// counts, as a run's median step is what a plan is held against. Products of bf16 are measured in each way
// that goes with the kernels: which one is fastest is what a run of bf16 starts with. Row ops are found by
// going through all ops and their bench cases, in f32 and bf16 and at several sizes: no list here names ops.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "hw/spec.h"
#include "kernels/isa.h"

namespace lignum::tune {

// $XDG_CACHE_HOME/lignum/specs/cpu.json, else ~/.cache/lignum/specs/cpu.json; what `spec=cpu` means. Empty
// when neither variable is set.
std::string calibrated_spec_path();
// The specification there; an error says to run `lignum calibrate`, also when it was measured on another CPU
// model.
Result<hw::Spec> load_calibrated_spec();

// Of threads or ranks: `first`, which is 1 or 2, the powers of two after it below `most`, and `most`; none
// where that is less than `first`.
std::vector<int> measured_counts(int first, int most);

struct CalibrateOptions {
  kernels::Choice choice;
  int threads = 0;      // measured_counts(1, this) of a rank's pool; 0: the machine's cores
  int max_ranks = 2;    // collectives between measured_counts(2, this)
  double seconds = 25;  // of measuring, about: shared out among the points
  std::string path;     // where to write; empty: calibrated_spec_path()
  std::string files;    // folder of the file whose rates are measured; empty: the one that `path` is in
  bool write = true;    // false: only returned
  // Called before each group of points: how far (0..1), and what is measured next.
  std::function<void(double done, std::string_view what)> progress;
};

struct Calibration {
  hw::Spec spec;
  std::string path;  // where it was written, empty if it was not
  // How far a point's median lies above its fastest sample: the median and the worst of all points, and the
  // worst of dispatch, which is part of many.
  double median_spread = 0;
  double worst_spread = 0;
  double dispatch_spread = 0;
  // Others had the cores, and predictions err by as much and more. A sample holds hundreds of dispatches: a
  // median of twice the fastest is not one that was unlucky.
  bool busy() const { return median_spread > 0.1 || dispatch_spread > 1; }
  std::string worst;  // which point that was
  int points = 0;
};

Result<Calibration> calibrate(const CalibrateOptions& options);

}  // namespace lignum::tune
