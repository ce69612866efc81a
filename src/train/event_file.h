// What TensorBoard reads: RUN/tensorboard/events.out.tfevents.*, with MaxText's tag names where MaxText has
// one.
//
// An event file is a list of records: length (8 bytes), its masked CRC-32C (4), an Event message, its masked
// CRC-32C (4), all little-endian; mask(c) = rotate_right(c, 15) + 0xa282ead8 (TensorFlow's tfrecord and
// event.proto). Scalars are floats (Summary.Value.simple_value).
#pragma once

#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "train/metrics.h"

namespace lignum::train {

struct Scalar {
  std::string_view tag;
  double value = 0;
};

// One record of an event file around a message.
std::string event_record(std::string_view message);

class EventFile {
 public:
  struct Options {
    int64_t first_step =
        0;  // of this file: what earlier files hold of it and later is done again, and hidden
    int64_t ranks = 1;
    double clip = 0;  // gradient_clipping_threshold, 0: none
  };
  // A new file of its own below `folder`, which is made.
  static Result<EventFile> create(const std::string& folder, const Options& options);

  // In the file when they return (though not synced to disk). An evaluation after n updates stands at step
  // n - 1, the last one it has seen, as in MaxText.
  Status add(const StepMetrics&);
  Status add(const EvalMetrics&);
  Status add(int64_t step, std::span<const Scalar> scalars);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  using File = std::unique_ptr<std::FILE, Close>;
  EventFile(std::string path, File file, const Options& options)
      : path_(std::move(path)), file_(std::move(file)), options_(options) {}
  Status write(std::string_view message);

  std::string path_;
  File file_;
  Options options_;
};

}  // namespace lignum::train
