// How tensors lie on a mesh: sizes, ranges, groups of ranks, and which axes cut what.
#include <algorithm>
#include <numeric>

#include "passes/partition.h"

namespace lignum::passes {

int64_t Mesh::ranks() const {
  int64_t n = 1;
  for (const MeshAxis& a : axes) n *= a.size;
  return n;
}

int64_t Mesh::size(std::string_view axis) const {
  for (const MeshAxis& a : axes)
    if (a.name == axis) return a.size;
  return 1;
}

int64_t Mesh::coordinate(int64_t rank, std::string_view axis) const {
  int64_t stride = ranks();
  for (const MeshAxis& a : axes) {
    stride /= a.size;
    if (a.name == axis) return rank / stride % a.size;
  }
  return 0;
}

int64_t Mesh::row_sharers() const { return size(kContextAxis) * size("tensor") * size(kCopiesAxis); }

int64_t Mesh::slices() const {
  int64_t n = 1;
  for (const MeshAxis& a : axes) n *= a.slices;
  return n;
}

int64_t Mesh::device(int64_t rank) const {
  int64_t stride = ranks(), slice = 0, place = 0;
  for (const MeshAxis& a : axes) {
    stride /= a.size;
    const int64_t at = rank / stride % a.size, each = a.size / a.slices;
    slice = slice * a.slices + at / each;
    place = place * each + at % each;
  }
  return slice * (ranks() / slices()) + place;
}

int64_t Mesh::inside(std::string_view axis) const {
  int64_t n = 1;
  for (auto a = axes.rbegin(); a != axes.rend() && a->name != axis; ++a) n *= a->size / a->slices;
  return n;
}

ops::TokenAxis Mesh::tokens() const {
  const int64_t group = size(kContextAxis);
  return {std::string(kContextAxis), group, balanced && group > 1, ring && group > 1};
}

std::vector<std::vector<int64_t>> Mesh::groups(std::string_view axis) const {
  int64_t stride = ranks(), size = 1;
  for (const MeshAxis& a : axes) {
    stride /= a.size;
    if (a.name == axis) {
      size = a.size;
      break;
    }
  }
  if (size == 1) stride = 1;
  std::vector<std::vector<int64_t>> out;
  for (int64_t r = 0; r < ranks(); ++r) {
    if (size > 1 && r / stride % size != 0) continue;
    out.emplace_back();
    for (int64_t k = 0; k < size; ++k) out.back().push_back(r + k * stride);
  }
  return out;
}

void Mesh::share_key_heads(int64_t kv_heads) {
  const auto tensor =
      std::find_if(axes.begin(), axes.end(), [](const MeshAxis& a) { return a.name == "tensor"; });
  if (tensor == axes.end() || tensor->size <= kv_heads) return;
  LIGNUM_CHECK(tensor->size % kv_heads == 0, "{} ranks share {} key heads", tensor->size, kv_heads);
  const int64_t copies = tensor->size / kv_heads;
  // Slices part the slower of the two first. What is left of them divides the copies, as it divides the
  // whole.
  const int64_t slices = tensor->slices;
  tensor->size = kv_heads;
  tensor->slices = std::gcd(slices, kv_heads);
  axes.insert(tensor + 1, {std::string(kCopiesAxis), copies, slices / tensor->slices});
}

const AxisRules& default_axis_rules() {
  static const AxisRules rules = {{"activation_batch", {"data", "fsdp", "fsdp_transpose", "pipeline"}},
                                  {"layers", {"pipeline"}},
                                  {"activation_length", {"context", "tensor", "kv_copies"}},
                                  {"activation_attn_length", {"context"}},
                                  {"embed", {"fsdp", "context"}},
                                  {"q_heads", {"tensor", "kv_copies", "fsdp_transpose"}},
                                  {"kv_heads", {"tensor", "fsdp_transpose"}},
                                  {"mlp", {"tensor", "kv_copies", "fsdp_transpose"}},
                                  {"vocab", {"tensor", "kv_copies", "fsdp_transpose"}}};
  return rules;
}

std::vector<int64_t> local_dims(const std::vector<int64_t>& dims, const Sharding& sharding,
                                const Mesh& mesh) {
  std::vector<int64_t> out = dims;
  for (size_t d = 0; d < sharding.dims.size(); ++d)
    for (const std::string& axis : sharding.dims[d])
      out[d] = (out[d] + mesh.size(axis) - 1) / mesh.size(axis);
  return out;
}

Range shard_range(int64_t size, const std::vector<std::string>& axes, const Mesh& mesh, int64_t rank) {
  Range r{0, size};
  for (const std::string& axis : axes) {
    const int64_t part = (r.end - r.begin + mesh.size(axis) - 1) / mesh.size(axis);
    const int64_t begin = std::min(r.end, r.begin + part * mesh.coordinate(rank, axis));
    r = {begin, std::min(r.end, begin + part)};
  }
  return r;
}

std::vector<Range> token_ranges(int64_t size, const std::vector<std::string>& axes, const Mesh& mesh,
                                int64_t rank) {
  const ops::TokenAxis tokens = mesh.tokens();
  if (!tokens.balanced || axes.empty() || axes[0] != tokens.axis)
    return {shard_range(size, axes, mesh, rank)};
  // The part that the other axes cut out of the two pieces, seen as one.
  const int64_t length = size / (tokens.group * tokens.pieces());
  const Range part = shard_range(tokens.pieces() * length, {axes.begin() + 1, axes.end()}, mesh, rank);
  std::vector<Range> ranges;
  int64_t before = 0;
  for (const int64_t start : tokens.starts(mesh.coordinate(rank, tokens.axis), size)) {
    const int64_t begin = std::max(part.begin, before), end = std::min(part.end, before + length);
    if (begin < end) ranges.push_back({start + begin - before, start + end - before});
    before += length;
  }
  return ranges;
}

}  // namespace lignum::passes
