// One rank's end of the messages between ranks: requests, waiting for them, and the control messages by which
// ranks learn that the world has ended, that a rank has left, or that ranks wait for each other. What
// MessageTransport is made of.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "comm/collective.h"
#include "comm/mpi_interface.h"

namespace lignum::comm {

enum class Tag : uint8_t { header, data, control };

// What a rank waits for when it waits for others to come to a collective.
struct Meeting {
  std::span<const int> ranks;  // of the group
  int position = 0;            // this rank's
  const Collective* collective = nullptr;
  std::span<const LignumMpiRequest> headers;  // by position: active until that rank's header is here
};

// Every call but ended(), status() and record() is made with lock() held: the module takes one thread at a
// time.
class Mailbox {
 public:
  // Worlds with different channels (0..4095) do not see each other's messages.
  Mailbox(const LignumMpi& mpi, int rank, int size, int channel);
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }
  std::unique_lock<std::mutex> lock() { return std::unique_lock(calls_); }

  bool ended() const { return ended_.load(std::memory_order_acquire); }
  Status status() const;
  // The module has failed: another rank's process may be gone.
  bool broken() const { return broken_; }
  // The world has ended for this rank; the first error counts. Nobody else is told: announce() does.
  void record(const Status& error);
  // Tells the others what ended the world, and that this rank knows, once; as "rank N: ...", if `named`.
  void announce(bool named);
  // Tells the others that this rank comes to no further collective.
  void leave();

  // False, and nothing is under way, once the world has ended.
  bool send(const void* data, int64_t bytes, int to, Tag tag, LignumMpiRequest& request);
  bool receive(void* data, int64_t bytes, int from, Tag tag, LignumMpiRequest& request);
  bool send_header(const void* data, int64_t bytes, int to, LignumMpiRequest& request);
  // True when all are done; false when the world has ended before. While ranks are waited for at a meeting,
  // one that has left and a circle of waits are found.
  bool wait(std::span<LignumMpiRequest> requests, const Meeting* meeting = nullptr);
  // After the world's end: gives up what no message has met, and waits for the rest, a second at most. False:
  // one is still under way, and its buffer must stay.
  bool cancel(std::span<LignumMpiRequest> receives);
  // After announce(): until each message is taken, or its peer has said that it takes none any more; five
  // seconds at most. False: one has not been taken. sends: by position in a group of these ranks.
  bool drop(std::span<LignumMpiRequest> sends, std::span<const int> ranks);
  // Reads the letters that have come.
  void poll();

 private:
  using Clock = std::chrono::steady_clock;
  struct Control;
  struct Outgoing;
  struct Peer {
    uint64_t headers_sent = 0;
    uint64_t headers_met = 0;  // received and used
    bool left = false;
    bool ended = false;       // it knows of the world's end, and receives nothing more
    uint64_t left_after = 0;  // headers that it sent to this rank, all in all
    uint64_t searched = 0;    // that rank's last search that passed through this one
  };

  int tag_of(Tag tag) const { return channel_ * 4 + static_cast<int>(tag); }
  bool ok(int code, const char* what);
  bool finish(std::span<LignumMpiRequest> requests, Clock::duration patience);
  void take(const Control& control, int from);
  void post(const Control& control, int to);
  void reap();
  bool waits_for(int rank, int* position) const;
  void find_left();
  void go_on(int32_t searcher, uint64_t search, const std::string& path);

  const LignumMpi& mpi_;
  const int rank_;
  const int channel_;
  std::vector<Peer> peers_;
  std::mutex calls_;

  mutable std::mutex state_;
  std::atomic<bool> ended_{false};
  Status failure_;
  bool announced_ = false;
  bool broken_ = false;
  bool left_ = false;

  const Meeting* meeting_ = nullptr;  // while wait() is inside one
  uint64_t searches_ = 0;             // begun so far
  uint64_t first_search_ = 0;         // of the present meeting
  std::unique_ptr<Control> inbox_;
  std::deque<std::unique_ptr<Outgoing>> outbox_;
};

}  // namespace lignum::comm
