// The step graph: nodes in an append-only arena, hash-consed with their tag, and scans (segments) as nodes
// with a body. This room knows no op: an op is a kind, attributes and types. It knows three structural kinds:
//   param   an input of the graph (or of a scan's body)
//   scan    a loop over a body: see Scan below
//   await   takes the async result of what was started, a collective or a copy between memories (type.async),
//           and gives the tensor
// Stages: GLOBAL (logical shapes), LOCAL (one rank's shapes, explicit collectives). SCHEDULED is a LOCAL
// graph with a schedule beside it (passes/schedule.h). A graph is never changed by a pass: a pass builds
// another.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"

namespace lignum::ir {

// A tensor's element type and dims, row-major, dense. names: the logical name of each dim in MaxText's words
// ("embed", "mlp", "activation_batch"; "" where none), or empty when not annotated: an annotation, not part
// of equality.
struct Type {
  DType dtype = DType::f32;
  std::vector<int64_t> dims;
  std::vector<std::string> names;
  bool async = false;  // the result of what was started and not awaited yet
  bool host = false;   // lies in host memory: only a fetch reads it (and what moves no bytes: scan, await)

  int64_t rank() const { return static_cast<int64_t>(dims.size()); }
  int64_t elements() const;
  int64_t bytes() const { return elements() * dtype_size(dtype); }
  friend bool operator==(const Type& a, const Type& b) {
    return a.dtype == b.dtype && a.dims == b.dims && a.async == b.async && a.host == b.host;
  }
};
std::string to_string(const Type&);  // f32[2,37]<activation_batch,>

using Attr = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<double>>;

// Attributes by name, ordered, so that equal attributes print and hash equally. get<T> aborts when absent or
// of another type: a graph from text is checked by the op's type rule first (has<T>).
class Attrs {
 public:
  Attrs() = default;
  Attrs(std::initializer_list<std::pair<const std::string, Attr>> list) : map_(list) {}

  template <class T>
  bool has(std::string_view name) const {
    const auto it = map_.find(name);
    return it != map_.end() && std::holds_alternative<T>(it->second);
  }
  template <class T>
  const T& get(std::string_view name) const {
    const auto it = map_.find(name);
    LIGNUM_CHECK(it != map_.end() && std::holds_alternative<T>(it->second), "attribute {}", name);
    return std::get<T>(it->second);
  }
  template <class T>
  T get_or(std::string_view name, T otherwise) const {
    return has<T>(name) ? get<T>(name) : otherwise;
  }
  void set(std::string name, Attr value) { map_[std::move(name)] = std::move(value); }
  const std::map<std::string, Attr, std::less<>>& all() const { return map_; }
  friend bool operator==(const Attrs&, const Attrs&) = default;

 private:
  std::map<std::string, Attr, std::less<>> map_;
};

// One result of one node of the same graph.
struct Value {
  int32_t node = -1;
  int32_t index = 0;
  bool valid() const { return node >= 0; }
  friend auto operator<=>(Value, Value) = default;
};

enum class Role : uint8_t { forward, dgrad, wgrad, remat, update };
std::string_view role_name(Role);

// Where a node comes from: MaxText's module path ("decoder/layers/self_attention/query"), what it is for, the
// remat tensor name its first result carries ("query_proj"; "" for none), and the layers that it stands for:
// begin + k (end - begin) / trip in trip k of its loop, so begin, begin + 1, ... where a body holds one
// layer. Part of a node's identity: two nodes with different tags never merge, so a remat copy stays a copy.
struct Tag {
  std::string path;
  Role role = Role::forward;
  std::string name;
  int32_t layer_begin = 0;
  int32_t layer_end = 0;
  friend bool operator==(const Tag&, const Tag&) = default;
};

class Graph;

struct Node {
  std::string kind;
  std::vector<Value> inputs;
  Attrs attrs;
  std::vector<Type> types;  // one a result
  Tag tag;
  std::shared_ptr<const Graph> body;  // scans only
  int32_t origin =
      -1;  // the GLOBAL node that this one stands for, unique over all bodies; joins the readers' reports
};

// A scan runs its body `trip` times, i = 0..trip-1 (trip-1..0 when reversed).
//   node inputs:   carry[c], sliced[s] (each [trip, ...]), invariant[v]
//   body params:   carry[c], sliced[s] (each [...]: row i), invariant[v]
//   body results:  carry[c], stacked[k] (each [...])
//   node results:  carry[c], stacked[k] (each [trip, ...]: row i written by iteration i)
// guarded: the last invariant is an i32 scalar, the number of the part of the layers that this run of the
// loop stands for (row i for the layers of row `part * trip + i` of all of them). Where it is negative a
// reader may leave out all iterations: the carries pass through, and of what is stacked nothing is defined.
struct Scan {
  int64_t trip = 0;
  bool reversed = false;
  int64_t carry = 0, sliced = 0, invariant = 0, stacked = 0;
  bool guarded = false;
};
Scan scan_of(const Node&);
Attrs scan_attrs(const Scan&);

struct Output {
  std::string name;
  Value value;
  int32_t alias = -1;  // index into params(): this result replaces that parameter in place (donation)
};

enum class Stage : uint8_t { global, local };

class Graph {
 public:
  std::string name = "step";
  Stage stage = Stage::global;

  // Adds a node, or gives the equal one that is there (scans and params are never merged). Inputs must exist.
  int32_t add(Node node);
  Value param(std::string name, Type type);
  void output(std::string name, Value value, int32_t alias = -1) {
    outputs_.push_back({std::move(name), value, alias});
  }

  const std::vector<Node>& nodes() const { return nodes_; }
  const Node& node(int32_t id) const { return nodes_[static_cast<size_t>(id)]; }
  const Node& node(Value v) const { return node(v.node); }
  const Type& type(Value v) const { return node(v).types[static_cast<size_t>(v.index)]; }
  const std::vector<int32_t>& params() const { return params_; }
  std::vector<Value> results(int32_t id) const;  // of node `id`, all of them
  Value param_value(int64_t i) const { return {params_[static_cast<size_t>(i)], 0}; }
  const std::string& param_name(int64_t i) const;
  std::vector<Output>& outputs() { return outputs_; }
  const std::vector<Output>& outputs() const { return outputs_; }

  // Annotations, outside a node's identity.
  void set_names(Value v, std::vector<std::string> names);
  void set_origin(int32_t node, int32_t origin) { nodes_[static_cast<size_t>(node)].origin = origin; }
  void set_body(int32_t node, std::shared_ptr<const Graph> body) {
    nodes_[static_cast<size_t>(node)].body = std::move(body);
  }

 private:
  std::vector<Node> nodes_;
  std::vector<int32_t> params_;
  std::vector<Output> outputs_;
  std::unordered_map<std::string, int32_t> known_;
};

// Text, both ways: parse(print(g)) prints the same. The grammar is in docs/ir.md. Errors name line and
// column.
std::string print(const Graph&);
Result<Graph> parse(std::string_view text);

// Structure: inputs come before uses, indices in range, scans agree with their bodies, outputs and aliases
// fit, an async value has one user and that is an await; in GLOBAL only a value on its way between memories
// is async. Types by op: ops/verify.h.
Status verify_structure(const Graph&);

// The rewrite driver: walks `from` in order into a new graph. `visit` gets the node and its inputs already
// mapped and returns the new values of its results, or an empty vector for "copy as it is". Params, outputs,
// origins and names are kept.
using Visit =
    std::function<std::vector<Value>(Graph& to, int32_t id, const Node& node, std::span<const Value> inputs)>;
Graph rewrite(const Graph& from, const Visit& visit);

// Removes what no output needs: nodes, a scan's stacked results, sliced and invariant inputs, inside bodies
// too. Params of the outermost graph stay.
Graph prune(const Graph&);

// Gives every node, in bodies too, an origin of its own.
void number_origins(Graph&);

// Every node of the graph and of all bodies, outer first: fn(graph, node id, depth).
void for_each_node(const Graph&, const std::function<void(const Graph&, int32_t, int depth)>& fn);

}  // namespace lignum::ir
