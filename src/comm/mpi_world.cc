#include "comm/mpi_world.h"

#include <dlfcn.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <vector>

#include "comm/mpi_launch.h"

namespace lignum::comm {
namespace {

// Beyond every channel's tags.
constexpr int kOutcomeTag = 32766;
constexpr int kVerdictTag = 32767;
// How long a rank that has failed waits for the first one to say so, which may be computing; then it says it
// itself.
constexpr auto kVerdictPatience = std::chrono::seconds(60);

struct Note {
  int32_t code = 0;
  int32_t length = 0;
  char text[4088];

  void set(const Status& status) {
    code = static_cast<int32_t>(status.code());
    length = static_cast<int32_t>(std::min(status.message().size(), sizeof text));
    std::memcpy(text, status.message().data(), static_cast<size_t>(length));
  }
  Status get() const {
    return code == 0 ? Status() : Status(static_cast<Code>(code), {text, static_cast<size_t>(length)});
  }
};
// Messages of the end: what is still under way when the process goes is never freed.
struct Mail {
  Note letter;
  LignumMpiRequest request{};
};

void nap() {
  const timespec t{.tv_sec = 0, .tv_nsec = 200'000};
  ::nanosleep(&t, nullptr);
}

bool done(const LignumMpi& mpi, Mail& mail) {
  int flag = 0;
  return mpi.test(mpi.self, &mail.request, &flag) != 0 || flag != 0;
}

Result<const LignumMpi*> load_module() {
  LIGNUM_ASSIGN_OR_RETURN(const std::string path, find_mpi_module());
  // Global: an MPI loads parts of its own that look for its symbols.
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    return user_error("MPI module {}: cannot be loaded: {}; run scripts/setup-mpi and build again", path,
                      ::dlerror());
  }
  const auto entry = reinterpret_cast<LignumMpiEntry>(::dlsym(library, LIGNUM_MPI_ENTRY));
  const LignumMpi* mpi = entry == nullptr ? nullptr : entry();
  if (mpi == nullptr)
    return user_error("MPI module {}: no {} in it: this is not one of Lignum's", path, LIGNUM_MPI_ENTRY);
  if (mpi->version != LIGNUM_MPI_VERSION || mpi->bytes != sizeof(LignumMpi)) {
    return user_error("MPI module {}: version {}, this binary speaks {}: build both from one tree", path,
                      mpi->version, LIGNUM_MPI_VERSION);
  }
  return mpi;
}

}  // namespace

MpiWorld::MpiWorld(const LignumMpi& mpi, std::unique_ptr<MessageTransport> transport, int ranks_here)
    : mpi_(&mpi),
      rank_(transport->rank()),
      size_(transport->size()),
      ranks_here_(ranks_here),
      transport_(std::move(transport)) {}
MpiWorld::~MpiWorld() = default;

Result<std::unique_ptr<MpiWorld>> MpiWorld::join() {
  LIGNUM_ASSIGN_OR_RETURN(const LignumMpi* mpi, load_module());
  int rank = 0, size = 0, here = 0;
  if (mpi->init(mpi->self, &rank, &size) != 0 || mpi->ranks_here(mpi->self, &here) != 0)
    return internal_error("{}", mpi->error(mpi->self));
  rank_has_joined();
  return std::unique_ptr<MpiWorld>(new MpiWorld(
      *mpi, std::make_unique<MessageTransport>(*mpi, rank, size, MessageOptions{.names_ranks = true}), here));
}

Status MpiWorld::close(const Status& own, FunctionRef<void(const Status&)> say) {
  if (!own.ok()) transport_->abort(own);
  transport_->leave();
  // Where another process is gone its guard says so, and the launcher ends this one.
  if (transport_->broken()) ::sleep(3);
  // The cause, where this rank failed for another one's sake.
  const Status known = own.ok() ? own : transport_->status();
  const bool first = rank() == 0;
  if (!transport_->quiet()) {  // a message would write where memory is free by now
    if (first) say(known);
    for (int i = 0; !first && i < 1000; ++i) nap();
    return known;
  }
  const Status outcome = first ? gather(known) : hand_in(known);
  if (first) {
    say(outcome);
    spread(outcome);
  } else if (!known.ok() && outcome.ok()) {
    say(known);  // the first rank does not answer
    return known;
  }
  const bool clean = transport_->clean();
  transport_.reset();
  if (outcome.ok())
    return mpi_->finalize(mpi_->self) == 0 ? Status() : internal_error("{}", mpi_->error(mpi_->self));
  // After an error too, so that the launcher goes by exit codes: hydra may report a rank that it has killed
  // itself where one ends without. Not where a message lies about that nobody will take, for which the
  // library could wait; nor for long.
  if (clean) {
    static std::atomic<int> code;
    code = static_cast<int>(outcome.code());
    std::signal(SIGALRM, [](int) { ::_exit(code); });
    ::alarm(5);
    mpi_->finalize(mpi_->self);
    ::alarm(0);
  }
  return outcome;
}

// The first rank's: waits for the others' outcomes, until one is an error.
Status MpiWorld::gather(const Status& own) {
  if (!own.ok()) return own;
  auto& mails = *new std::vector<Mail>(static_cast<size_t>(size_));
  for (int r = 1; r < size_; ++r) {
    Mail& mail = mails[static_cast<size_t>(r)];
    if (mpi_->receive(mpi_->self, &mail.letter, sizeof(Note), r, kOutcomeTag, &mail.request) != 0)
      return internal_error("rank 0: {}", mpi_->error(mpi_->self));
  }
  for (int r = 1; r < size_;) {
    bool all = true;
    for (r = 1; r < size_; ++r) {
      Mail& mail = mails[static_cast<size_t>(r)];
      if (!done(*mpi_, mail)) {
        all = false;
      } else if (mail.letter.code != 0) {
        return mail.letter.get();
      }
    }
    if (all) break;
    r = 1;
    nap();
  }
  delete &mails;
  return {};
}

void MpiWorld::spread(const Status& outcome) {
  auto& mails = *new std::vector<Mail>(static_cast<size_t>(size_));
  for (int r = 1; r < size_; ++r) {
    Mail& mail = mails[static_cast<size_t>(r)];
    mail.letter.set(outcome);
    mpi_->send(mpi_->self, &mail.letter, sizeof(Note), r, kVerdictTag, &mail.request);
  }
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  const auto sent = [&] { return std::ranges::all_of(mails, [&](Mail& m) { return done(*mpi_, m); }); };
  while (!sent()) {
    if (!outcome.ok() && std::chrono::steady_clock::now() > until) return;
    nap();
  }
  delete &mails;
}

// The others': ok where the first rank says so, or where it does not answer.
Status MpiWorld::hand_in(const Status& own) {
  auto& out = *new Mail;
  auto& in = *new Mail;
  out.letter.set(own);
  if (mpi_->send(mpi_->self, &out.letter, sizeof(Note), 0, kOutcomeTag, &out.request) != 0 ||
      mpi_->receive(mpi_->self, &in.letter, sizeof(Note), 0, kVerdictTag, &in.request) != 0) {
    return internal_error("rank {}: {}", rank_, mpi_->error(mpi_->self));
  }
  const auto until = std::chrono::steady_clock::now() + kVerdictPatience;
  bool answered = false;
  for (bool sent = false; !sent || !answered; nap()) {
    sent = sent || done(*mpi_, out);
    answered = answered || done(*mpi_, in);
    if (!own.ok() && std::chrono::steady_clock::now() > until) return {};
  }
  const Status outcome = in.letter.get();
  delete &out;
  delete &in;
  return outcome;
}

}  // namespace lignum::comm
