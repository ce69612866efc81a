// The worlds of comm_test: ranks as threads, joined by a rendezvous, or by messages that a mail of this
// process moves.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/messages.h"
#include "comm/test_world.h"
#include "comm/threads.h"

namespace lignum::comm {
namespace {

class Threads final : public TestWorld {
 public:
  std::string name() const override { return "Threads"; }
  Status run(int n, FunctionRef<Status(Transport&)> body) override { return ThreadWorld(n).run(body); }
};

// Messages between threads, as an MPI treats them: short ones are taken at once, long ones lie in the
// sender's buffer until they are met. Checks what the interface asks of its callers.
class Mail {
 public:
  explicit Mail(int n) : ranks_(static_cast<size_t>(n)) {
    for (int r = 0; r < n; ++r) {
      Rank& rank = ranks_[static_cast<size_t>(r)];
      rank.mail = this;
      rank.number = r;
      rank.interface = {.version = LIGNUM_MPI_VERSION,
                        .bytes = sizeof(LignumMpi),
                        .self = &rank,
                        .error = [](void*) { return "none"; },
                        .send = send,
                        .receive = receive,
                        .test = test,
                        .cancel = cancel,
                        .probe = probe};
    }
  }
  const LignumMpi& interface(int rank) { return ranks_[static_cast<size_t>(rank)].interface; }

 private:
  static constexpr int64_t kTakenAtOnce = 5000;

  struct Op {
    int peer = 0, tag = 0;
    const void* from = nullptr;
    void* to = nullptr;
    int64_t bytes = 0;
    bool done = false;
    std::vector<std::byte> copy;
  };
  struct Sent {
    int from = 0, tag = 0;
    std::shared_ptr<Op> op;
  };
  struct Rank {
    Mail* mail = nullptr;
    int number = 0;
    LignumMpi interface{};
    std::list<Sent> arrived;
    std::list<std::shared_ptr<Op>> waiting;
    std::vector<std::shared_ptr<Op>> own;  // a handle is a place here, plus one
  };

  static Rank& rank_of(void* self) { return *static_cast<Rank*>(self); }
  static LignumMpiRequest handle(Rank& rank, std::shared_ptr<Op> op) {
    rank.own.push_back(std::move(op));
    return {.handle = rank.own.size(), .active = 1};
  }
  static void meet(Op& sent, Op& received) {
    LIGNUM_CHECK(sent.bytes <= received.bytes, "a message of {} bytes into {}", sent.bytes, received.bytes);
    if (sent.bytes > 0) {
      std::memcpy(received.to, sent.copy.empty() ? sent.from : sent.copy.data(),
                  static_cast<size_t>(sent.bytes));
    }
    sent.done = received.done = true;
  }

  static int send(void* self, const void* data, int64_t bytes, int to, int tag, LignumMpiRequest* request) {
    Rank& rank = rank_of(self);
    const std::lock_guard lock(rank.mail->mutex_);
    Rank& other = rank.mail->ranks_[static_cast<size_t>(to)];
    auto op = std::make_shared<Op>(Op{.peer = to, .tag = tag, .from = data, .bytes = bytes});
    *request = handle(rank, op);
    for (auto it = other.waiting.begin(); it != other.waiting.end(); ++it) {
      if ((*it)->peer != rank.number || (*it)->tag != tag) continue;
      meet(*op, **it);
      other.waiting.erase(it);
      return 0;
    }
    if (bytes <= kTakenAtOnce) {
      op->copy.assign(static_cast<const std::byte*>(data), static_cast<const std::byte*>(data) + bytes);
      op->done = true;
    }
    other.arrived.push_back({rank.number, tag, op});
    return 0;
  }

  static int receive(void* self, void* data, int64_t bytes, int from, int tag, LignumMpiRequest* request) {
    Rank& rank = rank_of(self);
    const std::lock_guard lock(rank.mail->mutex_);
    auto op = std::make_shared<Op>(Op{.peer = from, .tag = tag, .to = data, .bytes = bytes});
    *request = handle(rank, op);
    const auto it = std::find_if(rank.arrived.begin(), rank.arrived.end(),
                                 [&](const Sent& s) { return s.from == from && s.tag == tag; });
    if (it == rank.arrived.end()) {
      rank.waiting.push_back(op);
    } else {
      meet(*it->op, *op);
      rank.arrived.erase(it);
    }
    return 0;
  }

  static int test(void* self, LignumMpiRequest* request, int* done) {
    Rank& rank = rank_of(self);
    const std::lock_guard lock(rank.mail->mutex_);
    *done = request->active == 0 || rank.own[request->handle - 1]->done ? 1 : 0;
    if (request->active != 0 && *done != 0) {
      rank.own[request->handle - 1].reset();
      request->active = 0;
    }
    return 0;
  }

  static int cancel(void* self, LignumMpiRequest* request) {
    Rank& rank = rank_of(self);
    const std::lock_guard lock(rank.mail->mutex_);
    const auto& op = rank.own[request->handle - 1];
    LIGNUM_CHECK(op->to != nullptr, "only a receive is cancelled");
    if (std::erase(rank.waiting, op) > 0) op->done = true;
    return 0;
  }

  static int probe(void* self, int tag, int* from, int64_t* bytes) {
    Rank& rank = rank_of(self);
    const std::lock_guard lock(rank.mail->mutex_);
    *from = -1;
    for (const Sent& s : rank.arrived) {
      if (s.tag != tag) continue;
      *from = s.from;
      *bytes = s.op->bytes;
      break;
    }
    return 0;
  }

  std::mutex mutex_;
  std::vector<Rank> ranks_;
};

class Messages final : public TestWorld {
 public:
  Messages(std::string name, MessageOptions options) : name_(std::move(name)), options_(options) {}
  std::string name() const override { return name_; }
  bool counts_allocations() const override { return false; }

  Status run(int n, FunctionRef<Status(Transport&)> body) override {
    Mail mail(n);
    std::vector<Status> ended(static_cast<size_t>(n));
    std::vector<std::thread> threads;
    for (int r = 0; r < n; ++r) {
      threads.emplace_back([&, r] {
        MessageTransport transport(mail.interface(r), r, n, options_);
        const Status result = body(transport);
        if (!result.ok()) transport.abort(result);
        transport.leave();
        EXPECT_TRUE(transport.quiet());
        ended[static_cast<size_t>(r)] = transport.status();
      });
    }
    for (std::thread& t : threads) t.join();
    const auto first = std::find_if(ended.begin(), ended.end(), [](const Status& s) { return !s.ok(); });
    return first == ended.end() ? Status() : *first;
  }

 private:
  std::string name_;
  MessageOptions options_;
};

}  // namespace

std::vector<TestWorld*> test_worlds() {
  static Threads threads;
  static Messages messages("Messages", {});
  // Every tensor goes in many messages: as one of more than 2^31 bytes does.
  static Messages small("SmallMessages", {.message_bytes = 1000, .piece_bytes = 600});
  return {&threads, &messages, &small};
}

}  // namespace lignum::comm
