#include "train/ranks.h"

#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "base/json.h"

namespace lignum::train {

Result<Ranks> Ranks::join(comm::Transport& transport) {
  Ranks r(&transport);
  if (transport.size() > 1) {
    std::vector<int> all(static_cast<size_t>(transport.size()));
    std::iota(all.begin(), all.end(), 0);
    LIGNUM_ASSIGN_OR_RETURN(r.group_, transport.add_group(all));
  }
  return r;
}

Result<Ranks> Ranks::join(const Processes& processes) {
  if (processes.transport != nullptr) return join(*processes.transport);
  return Ranks(nullptr);
}

Status Ranks::share_text(std::string& text) const {
  if (size() == 1) return {};
  auto length = static_cast<int64_t>(text.size());
  LIGNUM_RETURN_IF_ERROR(share(length));
  text.resize(static_cast<size_t>(length));
  return transport_->broadcast_bytes(group_, text.data(), length);
}

Result<int32_t> Ranks::count(bool here) const {
  int32_t sum = here ? 1 : 0;
  if (size() == 1) return sum;
  const int32_t own = sum;
  LIGNUM_RETURN_IF_ERROR(transport_->run(
      {.kind = comm::Kind::all_reduce, .dtype = DType::i32, .in = &own, .out = &sum, .group = group_}));
  return sum;
}

Status Ranks::agree(const nlohmann::json& facts) const {
  if (size() == 1) return {};
  std::string text = facts.dump();
  LIGNUM_RETURN_IF_ERROR(share_text(text));
  LIGNUM_ASSIGN_OR_RETURN(const nlohmann::json first, parse_json(text, "rank 0"));
  for (const auto& [name, value] : facts.items()) {
    const auto other = first.find(name);
    if (other != first.end() && *other == value) continue;
    return user_error("{} is {} here, {} on rank 0: start all ranks with the same words, files and binary",
                      name, value.dump(), other == first.end() ? "unknown" : other->dump());
  }
  return barrier();
}

}  // namespace lignum::train
