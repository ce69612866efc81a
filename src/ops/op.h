// What an op is. Each op is one folder, src/ops/<op>/<op>.cc, holding a struct with every facet below; a
// missing facet does not compile (CompleteOp). Where a facet is not the op's own business, it says so with
// one of two words:
//   ByDecomposition   the fallback: the op's gradient or StableHLO is that of its decomposition
//   Primitive         a decomposition facet of an op that nothing simpler can express
// docs/adding-an-op.md walks through one.
#pragma once

#include <concepts>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/parallel.h"
#include "ir/graph.h"
#include "kernels/isa.h"

namespace lignum::ops {

using ir::Attrs;
using ir::Type;
using ir::Value;
using Types = std::vector<Type>;
using Values = std::vector<Value>;

// One use of an op: what its facets may know. in and out: the types of its inputs and results.
struct Site {
  const Attrs& attrs;
  std::span<const Type> in;
  std::span<const Type> out;
};

// Adds nodes to a graph, types inferred by each op's rule; every node gets the current tag (and origin).
// A type error here is a bug of the caller: it aborts with the op, the types and the rule's words.
class Builder {
 public:
  explicit Builder(ir::Graph& graph) : graph_(graph) {}
  ir::Graph& graph() { return graph_; }
  const Type& type(Value v) const { return graph_.type(v); }

  Values add_all(std::string_view kind, Values inputs, Attrs attrs = {});
  Value add(std::string_view kind, Values inputs, Attrs attrs = {}) {  // an op with one result
    Values out = add_all(kind, std::move(inputs), std::move(attrs));
    LIGNUM_CHECK(out.size() == 1, "{} has {} results", kind, out.size());
    return out[0];
  }

  ir::Tag tag;          // of every node added
  int32_t origin = -1;  // likewise

  // Short words for what decompositions and gradients use most. Shapes must agree: no implicit broadcasting.
  Value elementwise(std::string_view fn, Values inputs);                 // see ops/elementwise
  Value constant(DType dtype, std::vector<int64_t> dims, double value);  // every element = value
  Value broadcast(Value v, std::vector<int64_t> dims,
                  std::vector<int64_t> where);                            // input dim i becomes dim where[i]
  Value reduce(std::string_view fn, Value v, std::vector<int64_t> dims);  // fn: sum | max; the dims go away
  Value reshape(Value v, std::vector<int64_t> dims);
  Value transpose(Value v, std::vector<int64_t> permutation);  // result dim i = input dim permutation[i]
  Value convert(Value v, DType dtype);                         // v itself when it has the dtype
  // Contracts dims contract_a of a with contract_b of b; result dims: batch, a's others, b's others, in
  // order.
  Value matmul(Value a, Value b, std::vector<int64_t> contract_a, std::vector<int64_t> contract_b,
               std::vector<int64_t> batch_a = {}, std::vector<int64_t> batch_b = {});
  // The scalar v (dims []) as every element of a tensor shaped like `like`, in like's dtype.
  Value splat(Value v, const Type& like);

 private:
  ir::Graph& graph_;
};

// --- gradient
// ------------------------------------------------------------------------------------------------------
// cotangents[r]: the gradient of result r, or nothing when result r does not reach the loss. inputs and
// outputs: the forward values, all available (what to save is not the rule's business: remat decides).
// Returns one entry per input; nothing where the input has no gradient (integers, or none flows). The dtype
// of a gradient is that of its input; but an 8-bit float stands for what was quantised, and its gradient has
// the dtype of that, f32 or bf16.
struct GradCall {
  Builder& build;
  Site site;
  std::span<const Value> inputs;
  std::span<const Value> outputs;
  std::span<const std::optional<Value>> cotangents;
  // The gradient of result r, zeros of its shape when none flows.
  Value cotangent(size_t r) const;
};
using Gradients = std::vector<std::optional<Value>>;

// --- partition
// ----------------------------------------------------------------------------------------------------- A
// factor is an index that the op loops over; each dim of each input and result names the factor that it
// walks, or -1 when every rank needs the whole dim. (The idea is Shardy's op sharding rule.) A factor that an
// input has and a result lacks is summed over: sharded, it leaves that result partial. If one mesh axis is
// asked for by two factors, the one with the lower number keeps it and the other operand is gathered: number
// batch factors first.
struct PlacedCall;
struct ShardRule {
  std::vector<std::vector<int>> in, out;
  // The op commutes with sums over ranks (add of two gradients, reshape): partial inputs, all over the same
  // axes, give partial results.
  bool linear = false;
  // The results commute with sums of this input alone, whatever the others are (a mask of a gradient): it may
  // stay open over the microbatches of a pipeline, which are added up tick by tick.
  int linear_in = -1;
  // The result is the input in a wider type, exactly: a sum over ranks may be taken of the input, in the
  // result's type (bf16 travels, f32 is added up).
  bool widens = false;
  // The result is the input rounded. Of a weight's gradient each rank's part is, as where a matmul makes it
  // and as a micro-step's is: it then counts as linear. Of anything else the sum is.
  bool rounds = false;
  // The attribute that holds the dims of result 0 (reshape, broadcast, constant); partition writes the local
  // dims there.
  std::string_view result_dims;
  // Factors that cannot be padded: the mesh axis must divide every dim that walks one of these.
  std::vector<int> exact;
  // A factor of which several ranks may work on one index (a key head, which many query heads read): a dim of
  // which a rank has one left is cut no further, and what those ranks make of it is an open sum.
  int shared = -1;
  // How results that are left open over ranks come together: they are added up, or the largest is taken.
  enum class Open : uint8_t { sum, maximum } open = Open::sum;
  // There are as many results as inputs, and result i is a function of input i alone (barrier): factors are
  // numbered within each pair, one pair's sharding does not bind another's, open sums stay open.
  bool separate = false;
  // A factor whose index matters, not only that it is walked: where a token stands, in a mask. It takes no
  // mesh axis but TokenAxis's; where that cuts it, a rank runs what `local` builds in place of the op.
  int placed = -1;
  std::vector<std::vector<int>> ring_in, ring_out;  // in place of in and out where shards go round
  Values (*local)(const PlacedCall&) = nullptr;
};

// How the tokens of a row lie over the ranks of a mesh axis: in pieces of consecutive ones. Balanced: of
// 2 group pieces rank r has numbers r and 2 group - 1 - r, so that under a causal mask all have as much to
// do. A tensor that is gathered over the axis has its tokens in the ranks' order.
struct TokenAxis {
  std::string axis;
  int64_t group = 1;
  bool balanced = false;
  bool ring = false;  // shards of what all ranks need go round; else it is gathered
  int64_t pieces() const { return balanced ? 2 : 1; }
  // Where the pieces of a rank begin, of `tokens` in all.
  std::vector<int64_t> starts(int64_t rank, int64_t tokens) const {
    const int64_t length = tokens / (group * pieces());
    if (!balanced) return {rank * length};
    return {rank * length, (2 * group - 1 - rank) * length};
  }
};
struct PlacedCall {
  Builder& build;
  Site site;                  // of the whole op
  std::span<const Value> in;  // a rank's operands, as the rule has them
  const TokenAxis& tokens;
  Value rank;  // this rank's place on the axis: i32 []
};

// --- cost
// ----------------------------------------------------------------------------------------------------------
// transfer: between device and host memory, on the copy engine.
enum class Work : uint8_t { none, matmul, attention, rows, transcendental, copy, collective, transfer };
struct Cost {
  Work work = Work::rows;
  double flops = 0;            // multiply-adds count two
  double transcendentals = 0;  // exp, log, sin, ...
  double read = 0, write = 0;  // bytes over memory if nothing stays in a cache
  int64_t m = 0, n = 0, k = 0,
          batch = 1;  // matmul: its shape; attention: m = queries, k = keys, n = head dim, batch = heads
  double wire = 0;    // collectives: bytes that one rank receives
  // Compound: what its parts round to on the way to each other. The bound of its results takes it into
  // account.
  DType inner = DType::f32;
};
// Reads every input once, writes every result once.
Cost streaming_cost(const Site& site, double flops_per_element = 1);

// --- reference and CPU
// ---------------------------------------------------------------------------------------------
struct RefTensor {
  std::vector<int64_t> dims;
  std::vector<double> data;
};
struct RefCall {
  Site site;
  std::span<const RefTensor* const> in;
  std::span<RefTensor> out;  // dims set, data sized and zero
  int64_t position = 0;      // axis_index: where the rank stands on its axis
};
// For collectives alone: peers[r] is rank r's input. Other ops never see it.
struct RefGroupCall {
  Site site;
  std::span<const RefTensor* const> peers;
  int64_t rank;
  RefTensor& out;
};

// What collectives call; exec implements it over a transport. The summation is ours: in fp32, in ascending
// rank order.
struct CollectiveCall {
  enum class Kind : uint8_t { all_gather, reduce_scatter, all_reduce, permute } kind;
  bool maximum = false;  // all_reduce: the largest, not the sum
  DType dtype;           // of in, and of out where nothing is summed
  DType out_dtype;       // of sums: dtype, or f32 over a bf16 wire
  const void* in;
  void* out;
  // The tensor seen as [outer, rows, row_elements]; rows is the dim that is gathered or scattered. One rank's
  // shard has local_rows = ceil(logical_rows / group size) rows; rows beyond logical_rows are padding:
  // all_gather drops them, reduce_scatter takes them as zero. all_reduce and permute: outer 1, local_rows 1,
  // row_elements = all.
  int64_t outer, local_rows, row_elements, logical_rows;
  std::string_view axis;  // the mesh axis of the group
  int64_t shift = 0;      // permute: out is the `in` of the rank that many places before, round the group
};
class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual Status start(const CollectiveCall&) = 0;  // in and out stay untouched by others until the await
  // Where this rank stands on a mesh axis.
  virtual int64_t position(std::string_view axis) const = 0;
};

struct CpuCall {
  Site site;
  std::span<const void* const> in;  // any alignment; may be out's own buffer where Buffers.in_place says so
  std::span<void* const> out;       // 64-byte aligned in arenas; kernels must not need it
  void* workspace;                  // workspace() bytes, 64-byte aligned; contents undefined
  Parallel& parallel;
  kernels::Choice choice;
  Collectives* collectives;  // of the rank; null where there is one rank
};

// Which results may or must share an input's buffer: pairs {result, input}.
struct Buffers {
  std::vector<std::pair<int, int>> view;      // the result is the input's bytes (reshape, barrier, await)
  std::vector<std::pair<int, int>> in_place;  // the kernel may write the result over the input
};

// --- StableHLO
// -----------------------------------------------------------------------------------------------------
// Prints one node. in: the SSA names of the inputs; returns those of the results. line() appends a line of
// text.
class Emitter {
 public:
  virtual ~Emitter() = default;
  virtual std::string fresh() = 0;  // a new SSA name, "%v12"
  virtual void line(std::string text) = 0;
  // The groups of replicas that differ in a mesh axis alone, each in the axis' order.
  virtual std::vector<std::vector<int64_t>> groups(std::string_view axis) = 0;
  virtual bool host_memory() { return false; }  // whether placements in host memory are printed
};
std::string mlir_type(const Type&);                                // tensor<2x37xf32>
std::string mlir_table(const std::vector<std::vector<int64_t>>&);  // dense<[[0, 1]]> : tensor<1x2xi64>
std::string mlir_dtype(DType);                                     // f32, bf16, f8E4M3FN, i32, i1
struct EmitCall {
  Emitter& out;
  Site site;
  std::span<const std::string> in;
};

// --- cases
// ---------------------------------------------------------------------------------------------------------
// Test inputs: the tests, the gradient checks, the micro-benchmarks and the support table all come from
// these.
enum class Fill : uint8_t { normal, positive, uniform01, token, label, position, predicate };
struct CaseInput {
  Type type;
  Fill fill = Fill::normal;
  double bound =
      1;  // token, label: the vocabulary; normal: the standard deviation; position: the largest + 1
};
struct Case {
  std::string name;  // "one_row", "odd", "misaligned", ...
  std::vector<CaseInput> in;
  Attrs attrs;
  int64_t ranks = 1;   // collectives: the group size (attribute "group" agrees)
  bool bench = false;  // large: for micro-benchmarks only
};

struct ByDecomposition {};
struct Primitive {
  std::string_view why;
};

// --- the whole
// -----------------------------------------------------------------------------------------------------
struct Op {
  std::string_view name;
  Result<Types> (*infer)(std::span<const Type> in, const Attrs& attrs) = nullptr;
  Gradients (*grad)(const GradCall&) = nullptr;  // null: by decomposition
  // kStraightThrough: a rounding passes the gradient straight through (Bengio et al. 2013), so that it is not
  // the derivative of the reference.
  bool straight_through = false;
  ShardRule (*partition)(const Site&) = nullptr;
  Cost (*cost)(const Site&) = nullptr;
  Values (*decompose)(Builder&, const Site&, std::span<const Value> in) = nullptr;  // null: primitive
  std::string_view primitive_because;
  void (*reference)(const RefCall&) = nullptr;             // null: a collective
  void (*reference_group)(const RefGroupCall&) = nullptr;  // null: not a collective
  int64_t (*workspace)(const Site&, int threads) = nullptr;
  Status (*cpu)(const CpuCall&) = nullptr;
  Buffers (*buffers)(const Site&) = nullptr;
  std::vector<std::string> (*emit)(const EmitCall&) = nullptr;  // null: by decomposition
  std::vector<Case> (*cases)() = nullptr;
};

template <class T>
concept HasReference =
    requires(const RefCall& c) { T::reference(c); } || requires(const RefGroupCall& c) { T::reference(c); };
template <class T>
concept HasGradient = requires(const GradCall& c) {
  { T::grad(c) } -> std::same_as<Gradients>;
} || requires { requires std::same_as<std::remove_cv_t<decltype(T::grad)>, ByDecomposition>; };
template <class T>
concept HasDecomposition = requires(Builder& b, const Site& s, std::span<const Value> in) {
  { T::decompose(b, s, in) } -> std::same_as<Values>;
} || requires { requires std::same_as<std::remove_cv_t<decltype(T::decompose)>, Primitive>; };
template <class T>
concept HasEmission = requires(const EmitCall& c) {
  { T::emit(c) } -> std::same_as<std::vector<std::string>>;
} || requires { requires std::same_as<std::remove_cv_t<decltype(T::emit)>, ByDecomposition>; };

// Every facet is there. The compiler names the one that is not.
template <class T>
concept CompleteOp = HasReference<T> && HasGradient<T> && HasDecomposition<T> && HasEmission<T> &&
                     requires(std::span<const Type> in, const Attrs& attrs, const Site& site, int threads,
                              const CpuCall& call) {
                       { T::kName } -> std::convertible_to<std::string_view>;
                       { T::infer(in, attrs) } -> std::same_as<Result<Types>>;
                       { T::partition(site) } -> std::same_as<ShardRule>;
                       { T::cost(site) } -> std::same_as<Cost>;
                       { T::workspace(site, threads) } -> std::same_as<int64_t>;
                       { T::cpu(call) } -> std::same_as<Status>;
                       { T::buffers(site) } -> std::same_as<Buffers>;
                       { T::cases() } -> std::same_as<std::vector<Case>>;
                     };

template <CompleteOp T>
Op make_op() {
  Op op;
  op.name = T::kName;
  op.infer = [](std::span<const Type> in, const Attrs& a) { return T::infer(in, a); };
  if constexpr (requires(const GradCall& c) { T::grad(c); }) {
    op.grad = [](const GradCall& c) { return T::grad(c); };
  }
  if constexpr (requires { T::kStraightThrough; }) op.straight_through = T::kStraightThrough;
  op.partition = [](const Site& s) { return T::partition(s); };
  op.cost = [](const Site& s) { return T::cost(s); };
  if constexpr (requires(Builder& b, const Site& s, std::span<const Value> in) { T::decompose(b, s, in); }) {
    op.decompose = [](Builder& b, const Site& s, std::span<const Value> in) {
      return T::decompose(b, s, in);
    };
  } else {
    op.primitive_because = T::decompose.why;
    // A fallback needs something to fall back to.
    static_assert(
        requires(const GradCall& c) { T::grad(c); } && requires(const EmitCall& c) { T::emit(c); },
        "a primitive op needs a gradient and a StableHLO form of its own");
  }
  if constexpr (requires(const RefCall& c) { T::reference(c); }) {
    op.reference = [](const RefCall& c) { T::reference(c); };
  } else {
    op.reference_group = [](const RefGroupCall& c) { T::reference(c); };
  }
  op.workspace = [](const Site& s, int threads) { return T::workspace(s, threads); };
  op.cpu = [](const CpuCall& c) { return T::cpu(c); };
  op.buffers = [](const Site& s) { return T::buffers(s); };
  if constexpr (requires(const EmitCall& c) { T::emit(c); }) {
    op.emit = [](const EmitCall& c) { return T::emit(c); };
  }
  op.cases = [] { return T::cases(); };
  return op;
}

// In an op's .cc, after its struct: makes the folder known under its name (ops.def has the one line).
#define LIGNUM_DEFINE_OP(name, Struct)                     \
  const ::lignum::ops::Op& op_##name() {                   \
    static const Op op = ::lignum::ops::make_op<Struct>(); \
    return op;                                             \
  }

// All ops, in ops.def's order. find: null when there is none of that name.
std::span<const Op* const> all_ops();
const Op* find_op(std::string_view name);
const Op& get_op(std::string_view name);  // aborts when there is none

// Types of every node against its op's rule, bodies too; unknown ops are named with their nearest names.
Status verify(const ir::Graph&);

// Facets of a node of a graph.
struct NodeSite {
  std::vector<Type> in;
  Site site;
  NodeSite(const ir::Graph& graph, const ir::Node& node);
  NodeSite(const NodeSite&) = delete;
};

// The op's decomposition as a graph of its own: params = the inputs, outputs = the results. The op must have
// one.
ir::Graph decomposition(const Op& op, const Site& site);

}  // namespace lignum::ops
