// The graph, its text and its rewrites, on made-up ops: this room knows none.
#include <gtest/gtest.h>

#include <limits>

#include "ir/graph.h"

namespace lignum::ir {
namespace {

Type f32(std::vector<int64_t> dims) { return {DType::f32, std::move(dims), {}}; }

Value add(Graph& g, std::string kind, std::vector<Value> inputs, Type type, Attrs attrs = {}, Tag tag = {}) {
  Node n;
  n.kind = std::move(kind);
  n.inputs = std::move(inputs);
  n.types = {std::move(type)};
  n.attrs = std::move(attrs);
  n.tag = std::move(tag);
  return {g.add(std::move(n)), 0};
}

// Two carries' worth of everything: a scan with a carry, a sliced input, two invariants (one of them unused)
// and two stacked results.
constexpr const char* kScan = R"(graph step stage=global {
  %0 = param() {name="x"} : f32[4]<embed>
  %1 = param() {name="w"} : f32[3, 4]
  %2 = param() {name="scale"} : f32[4]
  %3 = param() {name="unused"} : f32[2]
  %4 = scan(%0, %1, %2, %3) {carry=1, invariant=2, reversed=false, sliced=1, stacked=2, trip=3} : f32[4], f32[3, 4], f32[3, 4] body {
    %0 = param() {name="x"} : f32[4]
    %1 = param() {name="w"} : f32[4]
    %2 = param() {name="scale"} : f32[4]
    %3 = param() {name="unused"} : f32[2]
    %4 = mul(%0, %1) : f32[4]
    %5 = mul(%1, %2) : f32[4] @ "decoder/layers" forward name="query_proj" layers=0:3
    return %4 as "x", %5 as "first", %4 as "second"
  }
  return %4 as "y" alias 0, %4#2 as "states"
}
)";

Graph parsed(std::string_view text) {
  Result<Graph> g = parse(text);
  EXPECT_TRUE(g.ok()) << g.status().message();
  return std::move(g).value();
}
std::string parse_error(std::string_view text) {
  const Result<Graph> g = parse(text);
  EXPECT_FALSE(g.ok());
  EXPECT_EQ(g.ok() ? Code::ok : g.status().code(), Code::user_error);
  return g.ok() ? "" : g.status().message();
}

TEST(Text, PrintsWhatItParses) { EXPECT_EQ(print(parsed(kScan)), kScan); }

TEST(Text, EveryAttributeComesBack) {
  Graph g;
  g.name = "all";
  g.stage = Stage::local;
  Attrs attrs = {{"b", true},
                 {"i", int64_t{-7}},
                 {"least", std::numeric_limits<int64_t>::min()},
                 {"d", 0.1},
                 {"whole", 3.0},
                 {"tiny", 5e-324},
                 {"inf", -std::numeric_limits<double>::infinity()},
                 {"s", std::string("a \"b\" \\ \n \x01 ü")},
                 {"ints", std::vector<int64_t>{1, -2}},
                 {"no_ints", std::vector<int64_t>{}},
                 {"reals", std::vector<double>{1.0, 1e300}},
                 {"no_reals", std::vector<double>{}}};
  const Value x = g.param("x", {DType::bf16, {2, 0}, {"activation_batch", ""}});
  Tag tag{"decoder/layers/mlp", Role::wgrad, "mlpwi_0", 2, 5};
  const Value y = add(g, "op.v-1/a", {x, x}, {DType::f8e4m3fn, {}, {}}, attrs, tag);
  g.set_origin(y.node, 42);
  Type async = f32({8});
  async.async = true;
  const Value started = add(g, "start", {y}, async);
  g.output("out", add(g, "await", {started}, f32({8})));
  const std::string text = print(g);
  const Graph back = parsed(text);
  EXPECT_EQ(print(back), text);
  EXPECT_EQ(back.node(y).attrs, attrs);
  EXPECT_EQ(back.node(y).tag, tag);
  EXPECT_EQ(back.node(y).origin, 42);
  EXPECT_EQ(back.type(x).names, (std::vector<std::string>{"activation_batch", ""}));
  EXPECT_EQ(back.stage, Stage::local);
}

TEST(Text, EmptyGraph) {
  const std::string text = "graph g stage=local {\n  return\n}\n";
  EXPECT_EQ(print(parsed(text)), text);
}

struct BadText {
  const char* text;
  const char* where;
  const char* what;
};
TEST(Text, ErrorsNameLineAndColumn) {
  const BadText cases[] = {
      {"", "line 1 column 1", "expected 'graph'"},
      {"graph g stage=weird {", "line 1 column 20", "global or local"},
      {"graph g stage=global {\n  %1 = param() {name=\"x\"} : f32[]", "line 2 column 5", "should be %0"},
      {"graph g stage=global {\n  %0 = param() {name=\"x\"} : f99[2]", "line 2 column 32",
       "unknown dtype f99"},
      {"graph g stage=global {\n  %0 = neg(%3) : f32[2]", "line 2 column 14", "%3 is used before it is made"},
      {"graph g stage=global {\n  %0 = param() {name=\"x\"} : f32[2]\n  %1 = neg(%0#1) : f32[2]",
       "line 3 column 16", "%0 has no result 1"},
      {"graph g stage=global {\n  %0 = param() {name=\"x} : f32[2]", "line 2 column 34", "inside a string"},
      {"graph g stage=global {\n  %0 = param() : f32[2]\n", "line 3 column 1", "a param has a name"},
      {"graph g stage=global {\n  %0 = k() {a=1.5.2} : f32[2]\n", "line 2 column 15", "expected a number"},
      {"graph g stage=global {\n  %0 = k() {a=[1, 2.0]} : f32[2]\n", "line 2", "whole numbers"},
      {"graph g stage=global {\n  %0 = k() : f32[-1]\n", "line 2", "impossible size"},
      {"graph g stage=global {\n  %0 = k() : f32[99999999999, 99999999999]\n", "line 2", "impossible size"},
      {"graph g stage=global {\n  %0 = k() : f32[2]<a,b>\n", "line 2", "2 names for 1 dims"},
      {"graph g stage=global {\n  %0 = k() : f32[2] @ \"p\" sideways\n", "line 2", "unknown role sideways"},
      {"graph g stage=global {\n  %0 = k() : f32[2]\n  %1 = k() : f32[2]\n", "line 4 column 1",
       "same as an earlier one"},
      {"graph g stage=global {\n  %0 = scan() {trip=1} : f32[2]\n", "line 3", "a scan wants"},
      {"graph g stage=global {\n  return\n}\nmore", "line 4 column 1", "text after the graph"},
  };
  for (const BadText& c : cases) {
    const std::string message = parse_error(c.text);
    EXPECT_NE(message.find(c.where), std::string::npos) << c.text << "\n-> " << message;
    EXPECT_NE(message.find(c.what), std::string::npos) << c.text << "\n-> " << message;
  }
}

TEST(Text, DeepScansAreRefusedNotFollowed) {
  std::string text = "graph g stage=global {\n";
  for (int i = 0; i < 100000; ++i)
    text +=
        "%0 = scan() {carry=0, invariant=0, reversed=false, sliced=0, stacked=0, trip=1} : f32[] body {\n";
  EXPECT_NE(parse_error(text).find("scans inside each other"), std::string::npos);
}

TEST(Graph, EqualNodesAreOne) {
  Graph g;
  const Value x = g.param("x", f32({2}));
  const Value a = add(g, "neg", {x}, f32({2}));
  EXPECT_EQ(add(g, "neg", {x}, f32({2})), a);
  // Names and origins are annotations.
  EXPECT_EQ(add(g, "neg", {x}, {DType::f32, {2}, {"embed"}}), a);
  EXPECT_NE(add(g, "neg", {x}, f32({2}), {{"k", int64_t{1}}}), a);
  EXPECT_NE(add(g, "neg", {x}, {DType::bf16, {2}, {}}), a);
  EXPECT_NE(add(g, "abs", {x}, f32({2})), a);
}

TEST(Graph, TagsKeepCopiesApart) {
  Graph g;
  const Value x = g.param("x", f32({2}));
  const Value a = add(g, "neg", {x}, f32({2}), {}, {"p", Role::forward, "", 0, 0});
  const Value b = add(g, "neg", {x}, f32({2}), {}, {"p", Role::remat, "", 0, 0});
  const Value c = add(g, "neg", {x}, f32({2}), {}, {"p", Role::forward, "query_proj", 0, 0});
  const Value d = add(g, "neg", {x}, f32({2}), {}, {"p", Role::forward, "", 0, 2});
  EXPECT_EQ(g.nodes().size(), 5u);
  EXPECT_NE(a, b);
  EXPECT_NE(a, c);
  EXPECT_NE(a, d);
  EXPECT_EQ(add(g, "neg", {x}, f32({2}), {}, {"p", Role::remat, "", 0, 0}), b);
}

TEST(Graph, ParamsAndScansNeverMerge) {
  Graph g;
  EXPECT_NE(g.param("x", f32({2})), g.param("x", f32({2})));
  Graph scanned = parsed(kScan);
  Node copy = scanned.node(4);
  EXPECT_EQ(scanned.add(copy), 5);
}

TEST(Rewrite, CopiesReplacesAndKeepsAnnotations) {
  const Graph from = parsed(R"(graph g stage=global {
  %0 = param() {name="x"} : f32[2]
  %1 = neg(%0) : f32[2] origin=7
  %2 = neg(%1) : f32[2] origin=8
  %3 = abs(%2) : f32[2]<embed> origin=9
  return %3 as "y", %1 as "n"
}
)");
  // neg(neg(x)) is x.
  const Graph to = rewrite(from, [](Graph& g, int32_t, const Node& n, std::span<const Value> in) {
    std::vector<Value> values;
    if (n.kind == "neg" && g.node(in[0]).kind == "neg") values = {g.node(in[0]).inputs[0]};
    return values;
  });
  EXPECT_EQ(print(to), R"(graph g stage=global {
  %0 = param() {name="x"} : f32[2]
  %1 = neg(%0) : f32[2] origin=7
  %2 = abs(%0) : f32[2]<embed> origin=9
  return %2 as "y", %1 as "n"
}
)");
  EXPECT_EQ(print(rewrite(from, [](Graph&, int32_t, const Node&,
                                   std::span<const Value>) { return std::vector<Value>(); })),
            print(from));
}

TEST(Prune, DropsDeadNodesAndKeepsParams) {
  const Graph g = prune(parsed(R"(graph g stage=global {
  %0 = param() {name="x"} : f32[2]
  %1 = param() {name="unused"} : f32[2]
  %2 = neg(%0) : f32[2]
  %3 = abs(%1) : f32[2]
  return %2 as "y" alias 1
}
)"));
  EXPECT_EQ(print(g), R"(graph g stage=global {
  %0 = param() {name="x"} : f32[2]
  %1 = param() {name="unused"} : f32[2]
  %2 = neg(%0) : f32[2]
  return %2 as "y" alias 1
}
)");
}

TEST(Prune, ShrinksScans) {
  const Graph g = prune(parsed(kScan));
  EXPECT_TRUE(verify_structure(g).ok()) << verify_structure(g).message();
  EXPECT_EQ(print(g), R"(graph step stage=global {
  %0 = param() {name="x"} : f32[4]<embed>
  %1 = param() {name="w"} : f32[3, 4]
  %2 = param() {name="scale"} : f32[4]
  %3 = param() {name="unused"} : f32[2]
  %4 = scan(%0, %1) {carry=1, invariant=0, reversed=false, sliced=1, stacked=1, trip=3} : f32[4], f32[3, 4] body {
    %0 = param() {name="x"} : f32[4]
    %1 = param() {name="w"} : f32[4]
    %2 = mul(%0, %1) : f32[4]
    return %2 as "x", %2 as "second"
  }
  return %4 as "y" alias 0, %4#1 as "states"
}
)");
  EXPECT_EQ(print(prune(g)), print(g));
}

TEST(Origins, AreUniqueOverBodies) {
  Graph g = parsed(kScan);
  number_origins(g);
  std::vector<int32_t> seen;
  int deepest = 0;
  for_each_node(g, [&](const Graph& inner, int32_t id, int depth) {
    seen.push_back(inner.node(id).origin);
    deepest = std::max(deepest, depth);
  });
  EXPECT_EQ(deepest, 1);
  ASSERT_EQ(seen.size(), 11u);
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], static_cast<int32_t>(i));
}

// A text with one thing changed is refused, with these words.
void expect_refused(std::string text, const std::string& from, const std::string& to,
                    const std::string& words) {
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  const Result<Graph> g = parse(text);
  ASSERT_FALSE(g.ok()) << text;
  EXPECT_NE(g.status().message().find(words), std::string::npos) << g.status().message();
}

TEST(Verify, RefusesBrokenScans) {
  expect_refused(kScan, "trip=3", "trip=0", "trip 0");
  expect_refused(kScan, "trip=3", "trip=2", "input 1 is f32[3, 4], the body's param wants f32[2, 4]");
  expect_refused(kScan, "carry=1", "carry=2", "do not fit");
  expect_refused(kScan, "carry=1", "carry=-1", "do not fit");
  expect_refused(kScan, "%0, %1, %2, %3)", "%0, %1, %2)", "do not fit 3 inputs");
  expect_refused(kScan, ": f32[4], f32[3, 4], f32[3, 4]", ": f32[4], f32[4], f32[3, 4]",
                 "result 1 is f32[4], the body gives f32[3, 4]");
  expect_refused(kScan, "%4 = mul(%0, %1) : f32[4]", "%4 = mul(%0, %1) : bf16[4]",
                 "carry 0 goes in as f32[4] and comes out as bf16[4]");
  expect_refused(kScan, "alias 0", "alias 9", "replaces param 9 of 4");
  expect_refused(kScan, "alias 0", "alias 3", "the param it replaces f32[2]");
}

TEST(Verify, AsyncValuesAreAwaitedOnceAndLocal) {
  const std::string good = R"(graph g stage=local {
  %0 = param() {name="x"} : f32[2]
  %1 = start(%0) : async f32[4]
  %2 = await(%1) : f32[4]
  %3 = neg(%2) : f32[4]
  return %3 as "y"
}
)";
  EXPECT_EQ(print(parsed(good)), good);
  expect_refused(good, "stage=local", "stage=global", "an async value in a global graph");
  expect_refused(good, "neg(%2)", "neg(%1)", "takes the async %1");
  expect_refused(good, "%3 = neg(%2)", "%3 = await(%1) {again=true}", "awaited twice");
  expect_refused(good, "await(%1)", "await(%0)", "takes one async value");
  expect_refused(good, "%3 as", "%1 as", "is async");
}

}  // namespace
}  // namespace lignum::ir
