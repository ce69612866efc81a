// Ranks that share no memory: a Transport on messages between two ranks, as an MPI moves them
// (comm/mpi_interface.h).
//
// A collective begins with a meeting: every rank of the group sends every other one what it is about to run,
// so a mistake is found before a byte of data moves. Small sums and broadcasts travel with it. Then owners'
// parts move in pieces, the next one under way while this one is added up. MPI_Reduce and its like are not
// used: their order of additions is the library's.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "base/parallel.h"
#include "comm/mailbox.h"
#include "comm/transport.h"

namespace lignum::comm {

struct MessageOptions {
  // What a rank gives to abort() reaches the others as "rank N: ...".
  bool names_ranks = false;
  int channel = 0;  // worlds of one process that live one after the other take different ones
  // A message is at most so long: larger tensors go in pieces, for an MPI counts bytes in 31 bits.
  int64_t message_bytes = int64_t{1} << 30;
  // Pieces of a sum, or of what is not contiguous: two for each peer are in the cache. On a machine of two
  // cores, both directions at once: 256 KiB 18 GB/s, 64 KiB 12, 1 MiB 14.
  int64_t piece_bytes = int64_t{256} << 10;
};

class MessageTransport final : public Transport {
 public:
  // The module is initialised, outlives the transport and serves nobody else meanwhile (other channels
  // apart).
  MessageTransport(const LignumMpi& mpi, int rank, int size, MessageOptions options = {});
  ~MessageTransport() override;

  int rank() const override { return mailbox_.rank(); }
  int size() const override { return mailbox_.size(); }
  Result<int> add_group(std::span<const int> ranks) override;
  int group_size(int group) const override;
  int group_rank(int group) const override;
  Status run(const Collective& c) override;
  void abort(const Status& error) override;
  Status status() const override { return mailbox_.status(); }
  void leave() override;

  // After leave(): the module has failed, it may be because another rank is gone.
  bool broken() const { return mailbox_.broken(); }
  // False: a message that this rank gave up may still be written where it was to go. Nothing may call the
  // module again.
  bool quiet() const { return quiet_; }
  // False: what this rank has sent may never be taken.
  bool clean() const { return clean_; }

 private:
  struct Group;
  struct Strips;
  struct Exchange;

  Group& at_index(int group) const;
  // These are false once the world has ended.
  bool meet(const Collective& c, Group& group);
  bool move(const Collective& c, Group& group);
  bool exchange(Exchange e, Group& group);
  bool post(const Exchange& e, Group& group, int64_t k);

  const MessageOptions options_;
  Mailbox mailbox_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<std::byte> pieces_;  // room of exchanges: a group's runs one at a time
  bool quiet_ = true, clean_ = true;
};

}  // namespace lignum::comm
