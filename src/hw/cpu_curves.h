// What `calibrate` measured on a CPU machine: raw points (seconds, not rates), and the curves through them.
//
// Interpolation is in log space, on rates. One-dimensional curves are piecewise linear in (log size, log
// rate): between two points the rate stays between theirs, outside the measured range it keeps the end
// point's. GEMM and attention rates are scattered in two dimensions and averaged with weights 1/distance^2
// (Shepard): exact at a measured shape, never outside [slowest, fastest] of the measured rates. Between
// measured thread counts rates are linear in (log threads, log rate); outside them the query is refused,
// because scaling is what calibration is there to find out.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"

namespace lignum::hw {

enum class Collective { all_gather, reduce_scatter, all_reduce, all_to_all, collective_permute };
std::string_view collective_name(Collective);
std::optional<Collective> collective_from_name(std::string_view);

enum class AttentionPass { forward, backward };

// `way`: how dots of bf16 were taken, by the kernels' name for it; "fma" for every other dtype, and in a file
// that does not say. `spread` is the relative spread of the repetitions behind `seconds` (probe.h); 0.05 = 5
// %. `threads` is the number of threads at work on the whole machine.
struct GemmPoint {  // C[m,n] = A[m,k] B[k,n], operands in dtype, any layout
  DType dtype = DType::f32;
  int threads = 1;
  int64_t m = 0, n = 0, k = 0;
  double seconds = 0, spread = 0;
  std::string way = "fma";
  double flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
};
struct StreamPoint {  // `bytes` read plus written, once, by a simple loop; they are also its working set
  int threads = 1;
  int64_t bytes = 0;
  double seconds = 0, spread = 0;
};
struct RowsPoint {  // a row op bound by arithmetic rather than by memory: cross_entropy, softmax, glu,
                    // adamw_update, ...
  std::string op;
  DType dtype = DType::f32;
  int threads = 1;
  int64_t elements = 0;
  double seconds = 0, spread = 0;
};
struct AttentionPoint {  // causal self-attention; its FLOPs are attention_flops() below
  AttentionPass pass = AttentionPass::forward;
  DType dtype = DType::f32;
  int threads = 1;
  int64_t sequences = 0, heads = 0, seq = 0, head_dim = 0;
  double seconds = 0, spread = 0;
  std::string way = "fma";
  int64_t group = 1;  // query heads that share a head of keys and values; 1 in a file that does not say
};
struct CollectivePoint {  // `bytes` as in collective_time() (roofline.h); every rank on this machine
  Collective op = Collective::all_gather;
  int ranks = 2;
  int64_t bytes = 0;
  double seconds = 0, spread = 0;
};
struct HostFilePoint {  // `bytes` between memory and a file as host_memory=file:FOLDER holds it
  std::string op;       // "write", "read"
  std::string source;   // the folder, and when it was measured
  int64_t bytes = 0;
  double cpu_seconds = 0;  // of `seconds`, those in which the thread that moves them computes
  double seconds = 0, spread = 0;
};
struct DispatchPoint {  // one node with nothing to do: queue, wake-up and barrier of the thread pool
  int threads = 1;
  double seconds = 0, spread = 0;
};

// Useful work: forward two products of 2*S*S*D FLOPs a head, backward five; halved when causal.
double attention_flops(AttentionPass, double sequences, double heads, double seq, double head_dim,
                       bool causal);

// FLOP/s of the GEMMs of one way, the whole machine.
struct DotRate {
  std::string way;
  double flops = 0;
};

// Of one transfer between memory and a file.
struct FileTransfer {
  double seconds = 0;
  double cpu_share = 0;  // of a core
};

class CpuCurves {
 public:
  std::string origin;  // the file, which errors say how to measure again; empty: none
  std::vector<GemmPoint> gemm;
  std::vector<StreamPoint> stream;
  std::vector<RowsPoint> rows;
  std::vector<AttentionPoint> attention;
  std::vector<CollectivePoint> collectives;
  std::vector<DispatchPoint> dispatch;
  std::vector<HostFilePoint> host_file;

  // Rates of the whole machine with `threads` threads at work. An error says what was measured and how to
  // measure more. `way`, of bf16 operands: empty takes the fastest.
  Result<double> gemm_flops(DType, int threads, double m, double n, double k,
                            std::string_view way = {}) const;                                  // FLOP/s
  Result<double> stream_bandwidth(int threads, double working_set_bytes) const;                // byte/s
  Result<double> rows_rate(const std::string& op, DType, int threads, double elements) const;  // element/s
  // Measured with several groups: between them linear in (log group, log rate).
  Result<double> attention_rate(AttentionPass, DType, int threads, double seq, double head_dim,
                                std::string_view way = {}, double group = 1) const;  // FLOP/s
  Result<double> collective_bandwidth(Collective, int ranks, double bytes) const;    // byte/s
  Result<double> dispatch_seconds(int threads) const;
  // Of one rank that has the disk to itself.
  Result<FileTransfer> file_transfer(bool write, double bytes) const;

  // Each way that GEMMs of that dtype were measured in, fastest first: the geometric mean over the shapes and
  // thread counts that all of these ways were measured at, or over its own where none is common.
  std::vector<DotRate> dot_rates(DType) const;

  // JSON of the "curves" section: one array a member, the fields' names as keys, seconds in s, sizes in byte
  // or count. Refuses by key what is missing, not positive, or unknown; gemm, stream and dispatch must not be
  // empty.
  static Result<CpuCurves> parse(const nlohmann::json&);
  nlohmann::json to_json() const;

 private:
  std::string way_of(DType, std::string_view way) const;
};

}  // namespace lignum::hw
