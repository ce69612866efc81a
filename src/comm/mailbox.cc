#include "comm/mailbox.h"

#include <fmt/ranges.h>
#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "comm/spin.h"

namespace lignum::comm {
namespace {

enum class Letter : int32_t { ended, left, search };

// A rank that waits at a meeting for so long looks whether it waits for itself.
constexpr auto kSuspicion = std::chrono::milliseconds(200);
// How long a rank that ends keeps trying to hand over what it has to say.
constexpr auto kPatience = std::chrono::seconds(1);
constexpr int kMaxChannels = 4096;

// Spins for the partner that is about to come, then sleeps: the core is often the partner's own, or a compute
// thread's. A yield is worse than a short sleep there, since it goes to the end of the queue.
void pause(int64_t round) {
  if (round < kSpins) {
    cpu_relax();
    return;
  }
  const timespec nap{.tv_sec = 0, .tv_nsec = 10'000};
  ::nanosleep(&nap, nullptr);
}

// Linux lets a thread's sleeps take 50 us longer than asked. Not while this lives.
class TimerSlack {
 public:
  TimerSlack() : before_(::prctl(PR_GET_TIMERSLACK)) { ::prctl(PR_SET_TIMERSLACK, 1UL); }
  ~TimerSlack() { ::prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(before_)); }
  TimerSlack(const TimerSlack&) = delete;
  TimerSlack& operator=(const TimerSlack&) = delete;

 private:
  int before_;
};

}  // namespace

struct Mailbox::Control {
  Letter letter = Letter::ended;
  int32_t code = 0;      // ended
  uint64_t headers = 0;  // left: sent to this peer so far; search: the header that the sender waits for
  int32_t searcher = 0;
  int32_t length = 0;  // of text
  uint64_t search = 0;
  char text[4064];  // ended: the message; search: the path so far

  void set_text(const std::string& from) {
    length = static_cast<int32_t>(std::min(from.size(), sizeof text));
    std::memcpy(text, from.data(), static_cast<size_t>(length));
  }
  std::string get_text() const { return {text, static_cast<size_t>(length)}; }
  int64_t bytes() const { return static_cast<int64_t>(offsetof(Control, text)) + length; }
};

struct Mailbox::Outgoing {
  Control control;
  LignumMpiRequest request{};
};

Mailbox::Mailbox(const LignumMpi& mpi, int rank, int size, int channel)
    : mpi_(mpi),
      rank_(rank),
      channel_(channel),
      peers_(static_cast<size_t>(size)),
      inbox_(std::make_unique<Control>()) {
  LIGNUM_CHECK(channel >= 0 && channel < kMaxChannels, "channel {}", channel);
}

Mailbox::~Mailbox() {
  const auto held = lock();
  const auto until = Clock::now() + kPatience;
  for (reap(); !outbox_.empty() && Clock::now() < until; reap()) ::sched_yield();
  // What is still under way stays the module's: a leak of a few kilobytes rather than a message from freed
  // memory.
  for (auto& out : outbox_) static_cast<void>(out.release());
}

Status Mailbox::status() const {
  const std::lock_guard held(state_);
  return failure_;
}

void Mailbox::record(const Status& error) {
  LIGNUM_CHECK(!error.ok(), "a world ends with an error");
  const std::lock_guard held(state_);
  if (!failure_.ok()) return;
  failure_ = error;
  ended_.store(true, std::memory_order_release);
}

bool Mailbox::ok(int code, const char* what) {
  if (code == 0) return true;
  broken_ = true;
  record(internal_error("rank {}: {}: {}", rank_, what, mpi_.error(mpi_.self)));
  return false;
}

void Mailbox::announce(bool named) {
  if (announced_) return;
  announced_ = true;
  const Status error = named ? status().with_context(fmt::format("rank {}", rank_)) : status();
  Control control;
  control.letter = Letter::ended;
  control.code = static_cast<int32_t>(error.code());
  control.set_text(error.message());
  for (int to = 0; to < size(); ++to)
    if (to != rank_) post(control, to);
  const auto until = Clock::now() + kPatience;
  for (reap(); !outbox_.empty() && Clock::now() < until; reap()) ::sched_yield();
}

void Mailbox::leave() {
  if (left_) return;
  left_ = true;
  for (int to = 0; to < size(); ++to) {
    if (to == rank_) continue;
    Control control;
    control.letter = Letter::left;
    control.headers = peers_[static_cast<size_t>(to)].headers_sent;
    post(control, to);
  }
  reap();
}

void Mailbox::post(const Control& control, int to) {
  auto out = std::make_unique<Outgoing>();
  out->control = control;
  if (mpi_.send(mpi_.self, &out->control, control.bytes(), to, tag_of(Tag::control), &out->request) == 0)
    outbox_.push_back(std::move(out));
}

void Mailbox::reap() {
  std::erase_if(outbox_, [&](const auto& out) {
    int done = 0;
    return mpi_.test(mpi_.self, &out->request, &done) != 0 || done != 0;
  });
}

bool Mailbox::send(const void* data, int64_t bytes, int to, Tag tag, LignumMpiRequest& request) {
  return !ended() && ok(mpi_.send(mpi_.self, data, bytes, to, tag_of(tag), &request), "send");
}

bool Mailbox::receive(void* data, int64_t bytes, int from, Tag tag, LignumMpiRequest& request) {
  return !ended() && ok(mpi_.receive(mpi_.self, data, bytes, from, tag_of(tag), &request), "receive");
}

bool Mailbox::send_header(const void* data, int64_t bytes, int to, LignumMpiRequest& request) {
  if (!send(data, bytes, to, Tag::header, request)) return false;
  ++peers_[static_cast<size_t>(to)].headers_sent;
  return true;
}

bool Mailbox::wait(std::span<LignumMpiRequest> requests, const Meeting* meeting) {
  constexpr int64_t kPollEvery = 16;
  meeting_ = meeting;
  first_search_ = searches_ + 1;
  size_t first = 0;
  Clock::time_point look{};
  Clock::duration suspicion{};
  std::optional<TimerSlack> slack;
  for (int64_t round = 0; !ended(); ++round) {
    // Testing one lets all move.
    for (int done = 1; first < requests.size(); ++first) {
      if (!ok(mpi_.test(mpi_.self, &requests[first], &done), "test") || done == 0) break;
    }
    if (first == requests.size()) break;
    if (round == kSpins) slack.emplace();
    pause(round);
    if (round % kPollEvery != kPollEvery - 1) continue;
    poll();
    if (meeting == nullptr) continue;
    find_left();
    const auto now = Clock::now();
    if (suspicion == Clock::duration{}) {
      suspicion = kSuspicion;
      look = now + suspicion;
    }
    if (now < look) continue;
    suspicion *= 2;  // a rank that computes for minutes reads no letters: they must not pile up
    look = now + suspicion;
    ++searches_;
    go_on(rank_, searches_, "");
  }
  if (meeting != nullptr && first == requests.size()) {
    for (const int r : meeting->ranks)
      if (r != rank_) ++peers_[static_cast<size_t>(r)].headers_met;
  }
  meeting_ = nullptr;
  return first == requests.size();
}

bool Mailbox::cancel(std::span<LignumMpiRequest> receives) {
  for (LignumMpiRequest& r : receives)
    if (r.active != 0) mpi_.cancel(mpi_.self, &r);
  return finish(receives, kPatience);
}

// A peer that still receives would read what the caller may free.
bool Mailbox::drop(std::span<LignumMpiRequest> sends, std::span<const int> ranks) {
  const auto until = Clock::now() + 5 * kPatience;
  while (true) {
    bool taken = true, expected = false;
    for (size_t i = 0; i < sends.size(); ++i) {
      int done = 0;
      if (sends[i].active == 0 || mpi_.test(mpi_.self, &sends[i], &done) != 0 || done != 0) continue;
      taken = false;
      expected = expected || !peers_[static_cast<size_t>(ranks[i])].ended;
    }
    if (taken || !expected || Clock::now() >= until) return taken;
    poll();
    ::sched_yield();
  }
}

bool Mailbox::finish(std::span<LignumMpiRequest> requests, Clock::duration patience) {
  const auto until = Clock::now() + patience;
  while (true) {
    const bool active = std::any_of(requests.begin(), requests.end(), [&](LignumMpiRequest& r) {
      int done = 0;
      return r.active != 0 && mpi_.test(mpi_.self, &r, &done) == 0 && done == 0;
    });
    if (!active || Clock::now() >= until) return !active;
    ::sched_yield();
  }
}

void Mailbox::poll() {
  while (true) {
    int from = -1;
    int64_t bytes = 0;
    if (!ok(mpi_.probe(mpi_.self, tag_of(Tag::control), &from, &bytes), "probe") || from < 0) return;
    LIGNUM_CHECK(bytes <= static_cast<int64_t>(sizeof(Control)), "a control message of {} bytes", bytes);
    LignumMpiRequest request{};
    if (!ok(mpi_.receive(mpi_.self, inbox_.get(), bytes, from, tag_of(Tag::control), &request), "receive"))
      return;
    for (int done = 0; done == 0;)
      if (!ok(mpi_.test(mpi_.self, &request, &done), "test")) return;
    take(*inbox_, from);
  }
}

void Mailbox::take(const Control& control, int from) {
  Peer& peer = peers_[static_cast<size_t>(from)];
  switch (control.letter) {
    case Letter::ended:
      peer.ended = true;
      record(Status(static_cast<Code>(control.code), control.get_text()));
      break;
    case Letter::left:
      peer.left = true;
      peer.left_after = control.headers;
      break;
    case Letter::search:
      // The sender waits for this rank only while its header has not been sent.
      if (peer.headers_sent < control.headers) go_on(control.searcher, control.search, control.get_text());
      break;
  }
}

bool Mailbox::waits_for(int rank, int* position) const {
  for (size_t i = 0; meeting_ != nullptr && i < meeting_->ranks.size(); ++i) {
    if (meeting_->ranks[i] != rank || meeting_->headers[i].active == 0) continue;
    *position = static_cast<int>(i);
    return true;
  }
  return false;
}

namespace {
std::string wait_text(int from, int to, const Meeting& meeting) {
  return fmt::format("rank {} waits for rank {} in group [{}] with {}", from, to,
                     fmt::join(meeting.ranks, ", "), describe(*meeting.collective));
}
}  // namespace

void Mailbox::find_left() {
  for (int r = 0; r < size() && !ended(); ++r) {
    const Peer& peer = peers_[static_cast<size_t>(r)];
    int position = 0;
    // A header that it sent before it left may still be on its way.
    if (!peer.left || peer.headers_met < peer.left_after || !waits_for(r, &position)) continue;
    record(internal_error("{}; rank {} has left", wait_text(rank_, r, *meeting_), r));
  }
}

// A circle of waits is found by a search that each rank of it hands on to those that it waits for itself; it
// comes back to who began it (Chandy, Misra and Haas's edge chasing). A rank that gets one has not sent the
// header that the sender waits for, and is inside a wait: so the sender cannot move before it does, and what
// comes back is true.
void Mailbox::go_on(int32_t searcher, uint64_t search, const std::string& path) {
  if (meeting_ == nullptr) return;
  if (searcher == rank_ && !path.empty()) {
    if (search >= first_search_) record(internal_error("ranks wait for each other: {}", path));
    return;
  }
  // Each search passes through a rank once. One that met a rank outside its wait ends there; the next one may
  // not.
  uint64_t& passed = peers_[static_cast<size_t>(searcher)].searched;
  if (searcher != rank_ && passed == search) return;
  passed = search;
  for (int r = 0; r < size(); ++r) {
    int position = 0;
    if (r == rank_ || !waits_for(r, &position)) continue;
    Control control;
    control.letter = Letter::search;
    control.searcher = searcher;
    control.search = search;
    control.headers = peers_[static_cast<size_t>(r)].headers_met + 1;
    control.set_text(path + (path.empty() ? "" : "; ") + wait_text(rank_, r, *meeting_));
    post(control, r);
  }
  reap();
}

}  // namespace lignum::comm
