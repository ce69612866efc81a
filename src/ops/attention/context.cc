#include "ops/attention/context.h"

#include <algorithm>
#include <utility>

#include "ops/attention/scores.h"

namespace lignum::ops {
namespace {

// The keys of a meeting, but for k and v.
struct Keys {
  std::optional<Value> segments;
  Value starts;
  Dims at;  // where cost takes them to begin
};

// What a rank runs in place of one attention, or its gradient. Behind `base` inputs stand the segments.
class Local {
 public:
  Local(const PlacedCall& call, size_t base)
      : call_(call),
        b_(call.build),
        tokens_(call.tokens),
        segments_(token_inputs(call.site.attrs, base).segments),
        length_(call.site.in[base == 3 ? 0 : 1].dims[1]),
        starts_(starts_before(0)) {}

  bool ring() const { return tokens_.ring; }
  // `operands`, then what is known of the tokens. query_at: where cost takes the queries to begin.
  Values add(std::string_view kind, Values operands, const Keys& keys, Dims query_at) {
    if (keys.segments) operands.insert(operands.end(), {call_.in[*segments_], *keys.segments});
    operands.insert(operands.end(), {starts_, keys.starts});
    Attrs attrs = call_.site.attrs;
    attrs.set("query_at", std::move(query_at));
    attrs.set("key_at", keys.at);
    return b_.add_all(kind, std::move(operands), std::move(attrs));
  }

  // --- gathered

  Keys all_keys() {
    Keys keys{own_segments(), {}, {0}};  // consecutive shards are one piece
    if (tokens_.balanced) {
      keys.at.clear();
      for (int64_t rank = 0; rank < tokens_.group; ++rank)
        for (const int64_t start : tokens_.starts(rank, length_)) keys.at.push_back(start);
    }
    keys.starts = constant(keys.at, {static_cast<int64_t>(keys.at.size())});
    return keys;
  }
  // Unbalanced the last rank has the most to do; balanced all have as much.
  Dims slowest() const { return tokens_.starts(tokens_.group - 1, length_); }

  // --- in a ring: in meeting `step` a rank has the keys of the one that many places before it

  // Those in which some query may see some key.
  std::vector<int64_t> steps() const {
    std::vector<int64_t> steps;
    for (int64_t step = 0; step < tokens_.group; ++step)
      if (pairs(busiest(step), step) > 0) steps.push_back(step);
    return steps;
  }
  Dims query_at(int64_t step) const { return tokens_.starts(busiest(step), length_); }
  Keys keys_of(int64_t step, std::optional<Value> segments) {
    return {segments, starts_before(step), tokens_.starts(owner(busiest(step), step), length_)};
  }
  std::optional<Value> own_segments() const {
    return segments_ ? std::optional(call_.in[*segments_ + 1]) : std::nullopt;
  }
  // Sets out to move each to the rank `places` further on; `arrived` has what came.
  Values sent(const Values& values, int64_t places) {
    Values out;
    for (const Value v : values)
      out.push_back(b_.add("collective_permute", {v},
                           {{"axis", tokens_.axis}, {"group", tokens_.group}, {"shift", places}}));
    return out;
  }
  Values arrived(const Values& sent) {
    Values out;
    for (const Value v : sent) out.push_back(b_.add("await", {v}));
    return out;
  }

 private:
  int64_t owner(int64_t rank, int64_t step) const { return (rank + tokens_.group - step) % tokens_.group; }
  // Pairs of a query and a key that it may see.
  double pairs(int64_t rank, int64_t step) const {
    const Attrs& attrs = call_.site.attrs;
    const int64_t local = length_ / tokens_.group;
    return attention_pairs({.queries = local,
                            .keys = local,
                            .heads = 1,
                            .causal = attrs.get<bool>("causal"),
                            .window = attrs.get_or<int64_t>("window", 0),
                            .query_pieces = tokens_.pieces(),
                            .key_pieces = tokens_.pieces()},
                           {{"query_at", tokens_.starts(rank, length_)},
                            {"key_at", tokens_.starts(owner(rank, step), length_)}});
  }
  // The rank whose meeting takes longest, as far as is known before the run.
  int64_t busiest(int64_t step) const {
    int64_t most = 0;
    for (int64_t rank = 1; rank < tokens_.group; ++rank)
      if (pairs(rank, step) > pairs(most, step)) most = rank;
    return most;
  }

  Value constant(const Dims& numbers, Dims dims) {
    return b_.add("constant", {},
                  {{"dtype", std::string(dtype_name(DType::i32))},
                   {"dims", std::move(dims)},
                   {"values", std::vector<double>(numbers.begin(), numbers.end())}});
  }
  // Where the pieces begin of the rank that many places before this one.
  Value starts_before(int64_t step) {
    Dims table;
    for (int64_t rank = 0; rank < tokens_.group; ++rank)
      for (const int64_t start : tokens_.starts(owner(rank, step), length_)) table.push_back(start);
    return b_.add("take_row", {constant(table, {tokens_.group, tokens_.pieces()}), call_.rank});
  }

  const PlacedCall& call_;
  Builder& b_;
  const TokenAxis& tokens_;
  std::optional<size_t> segments_;
  int64_t length_;  // tokens of a whole row
  Value starts_;
};

// k, v and, where there are any, the segments of the keys, as they go round.
Values travellers(const Local& local, Value k, Value v) {
  Values out = {k, v};
  if (const auto segments = local.own_segments()) out.push_back(*segments);
  return out;
}
std::optional<Value> segments_of(const Values& travellers) {
  return travellers.size() > 2 ? std::optional(travellers[2]) : std::nullopt;
}

}  // namespace

Values local_attention(const PlacedCall& c) {
  Local local(c, 3);
  if (!local.ring())
    return local.add("attention", {c.in[0], c.in[1], c.in[2]}, local.all_keys(), local.slowest());
  const std::vector<int64_t> steps = local.steps();
  Values keys = travellers(local, c.in[1], c.in[2]), sent, merged;
  for (size_t n = 0; n < steps.size(); ++n) {
    if (n > 0) keys = local.arrived(sent);
    if (n + 1 < steps.size()) sent = local.sent(keys, steps[n + 1] - steps[n]);
    const Values met = local.add("attention", {c.in[0], keys[0], keys[1]},
                                 local.keys_of(steps[n], segments_of(keys)), local.query_at(steps[n]));
    merged = n == 0 ? met : c.build.add_all("attention_merge", {merged[0], merged[1], met[0], met[1]});
  }
  return {c.build.convert(merged[0], c.site.out[0].dtype), merged[1]};
}

Values local_attention_grad(const PlacedCall& c) {
  Local local(c, 6);
  if (!local.ring())
    return local.add("attention_grad", {c.in.begin(), c.in.begin() + 6}, local.all_keys(), local.slowest());
  Arith m(c.build);
  const std::vector<int64_t> steps = local.steps();
  Values keys = travellers(local, c.in[2], c.in[3]), keys_sent, sums, sums_sent;
  Value dq;
  for (size_t n = 0; n < steps.size(); ++n) {
    const int64_t hops = n + 1 < steps.size() ? steps[n + 1] - steps[n] : -steps[n];
    if (n > 0) keys = local.arrived(keys_sent);
    if (n + 1 < steps.size()) keys_sent = local.sent(keys, hops);
    const Values met = local.add("attention_grad", {c.in[0], c.in[1], keys[0], keys[1], c.in[4], c.in[5]},
                                 local.keys_of(steps[n], segments_of(keys)), local.query_at(steps[n]));
    dq = n == 0 ? m.f32(met[0]) : m.add(dq, m.f32(met[0]));
    Values given = {m.f32(met[1]), m.f32(met[2])};
    if (n > 0) {
      sums = local.arrived(sums_sent);
      for (size_t i = 0; i < 2; ++i) given[i] = m.add(sums[i], given[i]);
    }
    sums = std::move(given);
    if (hops != 0) sums_sent = local.sent(sums, hops);
  }
  if (steps.back() != 0) sums = local.arrived(sums_sent);
  Values out = {dq, sums[0], sums[1]};
  for (size_t i = 0; i < out.size(); ++i) out[i] = c.build.convert(out[i], c.site.out[i].dtype);
  return out;
}

}  // namespace lignum::ops
