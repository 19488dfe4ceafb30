// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/gloo/local_mailbox.hpp"

#include <c10/core/Storage.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <iterator>
#include <list>
#include <new>
#include <system_error>
#include <utility>

#include "accelerate/comm/core/bytes.hpp"
#include "accelerate/comm/core/completable_work.hpp"
#include "accelerate/comm/core/connection.hpp"
#include "accelerate/comm/gloo/exit_time.hpp"

namespace accelerate::comm {
namespace {

using c10d::OpType;
using std::chrono::milliseconds;
using SteadyClock = std::chrono::steady_clock;

// Time after which a waiting rank checks whether the other one has ended.
constexpr milliseconds kLivenessInterval{20};
// Time after which the thread checks for messages that no caller transfers.
constexpr milliseconds kThreadInterval{1};
// Time without pending messages after which the thread sleeps until the next one.
constexpr milliseconds kThreadIdleTime{100};
// Slots that one call transfers in one direction before it checks its deadline.
constexpr int kSlotsPerCall = 16;

}  // namespace

/// A send or a receive.
struct LocalMailbox::Message {
  at::Tensor tensor;
  c10::Storage storage;  // keeps the memory if the tensor gets another one meanwhile
  char* data;
  int64_t bytes, peer, tag;
  OpType type;
  int64_t sent = 0;  // bytes
  bool complete = false;
  std::exception_ptr error{};
};

/// The pending messages of this rank.
class LocalMailbox::Transfers {
 public:
  using MessagePtr = std::shared_ptr<Message>;

  Transfers(std::shared_ptr<SharedMemory> memory, int64_t rank, std::vector<int64_t> job_ranks, milliseconds timeout)
      : memory_(std::move(memory)),
        rank_(rank),
        job_ranks_(std::move(job_ranks)),
        timeout_(timeout),
        peers_(job_ranks_.size()) {}

  void check_arguments(int64_t peer, int64_t tag) const {
    const auto ranks = std::ssize(peers_);
    TORCH_CHECK(peer >= 0 && peer < ranks && peer != rank_, "rank ", rank_, " of ", ranks,
                " cannot exchange a message with rank ", peer);
    TORCH_CHECK(tag >= 0, "the tag of a message is ", tag, ", must not be negative");
  }

  /// Adds a message and transfers as much as possible. Returns true if the message is complete.
  bool add(const MessagePtr& message) {
    const Lock lock(*this);
    const bool is_send = message->type == OpType::SEND;
    const bool is_refused = closed_ || (is_send && memory_->presence(message->peer) != SharedMemory::Presence::active);
    if (is_refused) {
      message->complete = true;
      message->error = closed_ ? closed_ : has_left(message->peer);
      return true;
    }
    Peer& peer = peer_of(*message);
    if (is_send) {
      peer.sends.push_back(message);
      ++pending_;
      push(message->peer);
    } else if (!take_kept(peer, message)) {
      peer.receives.push_back(message);
      ++pending_;
      pull(message->peer);
    }
    if (!message->complete && thread_sleeps_) thread_wakes_.notify_one();
    return message->complete;
  }

  bool is_complete(const Message& message) {
    const Lock lock(*this);
    if (!message.complete) {
      transfer_all();
      check_peers();
    }
    return message.complete;
  }

  bool has_succeeded(const Message& message) {
    const Lock lock(*this);
    return message.complete && !message.error;
  }

  /// \throws DeadlineExceeded, or the message's error.
  void wait(const Message& message, milliseconds at_most) {
    const auto deadline = SteadyClock::now() + (at_most > milliseconds(0) ? at_most : timeout_);
    if (!wait_until(deadline, [&] { return message.complete; })) throw DeadlineExceeded({message.peer});
    if (message.error) std::rethrow_exception(message.error);
  }

  /// Drops pending receives, and waits for the sends.
  void leave() {
    {
      const Lock lock(*this);
      if (closed_) return;
      closing_ = has_left(rank_);
      for (Peer& peer : peers_) fail_receives(peer, closing_);
      announce(SharedMemory::Presence::draining);
    }
    wait_until(SteadyClock::now() + exit_time(timeout_),
               [this] { return std::ranges::all_of(peers_, [](const Peer& peer) { return peer.sends.empty(); }); });
    close();
  }

  /// Fails pending and later messages, and ends the thread.
  void close() noexcept {
    const Lock lock(*this);
    if (closed_) return;
    closed_ = closing_ ? closing_ : std::make_exception_ptr(PeerLost("an earlier operation was abandoned"));
    for (Peer& peer : peers_) fail_pending(peer, closed_);
    announce(SharedMemory::Presence::left);
    memory_->doorbell(rank_).increment();  // for the threads of this rank
    memory_.reset();                       // handles may outlive this object
    thread_wakes_.notify_one();
  }

  /// Transfers messages while no caller does so.
  void run_thread() {
    auto last_pending = SteadyClock::now();
    while (true) {
      std::shared_ptr<SharedMemory> memory;
      uint32_t seen = 0;
      {
        Lock lock(*this);
        if (closed_) return;
        if (pending_ > 0) last_pending = SteadyClock::now();
        if (pending_ == 0 || callers_ > 0) {
          thread_sleeps_ = SteadyClock::now() > last_pending + kThreadIdleTime;
          thread_sleeps_ ? thread_wakes_.wait(lock.lock)
                         : static_cast<void>(thread_wakes_.wait_for(lock.lock, kThreadInterval));
          thread_sleeps_ = false;
          continue;
        }
        seen = memory_->doorbell(rank_).value();
        const bool has_more = transfer_all();
        check_peers();
        if (has_more) continue;
        memory = memory_;
      }
      memory->wait_for_doorbell(rank_, seen, kLivenessInterval, /*spins=*/false);
    }
  }

 private:
  /// A message that is being received, or was received before its receive.
  struct Arrival {
    SharedMemory::Channel::Message begin;
    int64_t received = 0;            // bytes
    MessagePtr receive{};            // null if there is none yet
    std::unique_ptr<char[]> kept{};  // null if there is a receive
  };
  struct Peer {
    std::list<MessagePtr> sends{}, receives{};
    std::list<Arrival> arriving{};  // at most one
    std::list<Arrival> kept{};      // messages without a receive
  };

  /// Holds the mutex. Messages that have ended are released after it, because the tensors' owners may call this object.
  struct Lock {
    explicit Lock(Transfers& of) : transfers(of), lock(of.mutex_) {}
    ~Lock() {
      std::list<MessagePtr> messages;
      std::list<Arrival> arrivals;
      messages.swap(transfers.ended_messages_);
      arrivals.swap(transfers.ended_arrivals_);
      lock.unlock();
    }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

    Transfers& transfers;
    std::unique_lock<std::mutex> lock;
  };

  struct Caller {
    explicit Caller(std::atomic<int>& of) : count(of) { ++count; }
    ~Caller() { --count; }
    Caller(const Caller&) = delete;
    Caller& operator=(const Caller&) = delete;

    std::atomic<int>& count;
  };

  Peer& peer_of(const Message& message) { return peers_.at(static_cast<size_t>(message.peer)); }
  [[nodiscard]] int64_t job_rank(int64_t rank) const { return job_ranks_.at(static_cast<size_t>(rank)); }
  [[nodiscard]] std::exception_ptr has_left(int64_t rank) const {
    return std::make_exception_ptr(PeerLost(fmt::format("rank {} has left the group", job_rank(rank))));
  }

  void finish(Message& message, std::exception_ptr error = nullptr) {
    message.complete = true;
    message.error = std::move(error);
    --pending_;
  }
  void finish_all(std::list<MessagePtr>& messages, const std::exception_ptr& error) {
    for (const auto& message : messages) finish(*message, error);
    ended_messages_.splice(ended_messages_.end(), messages);
  }
  void fail_receives(Peer& peer, const std::exception_ptr& error) {
    finish_all(peer.receives, error);
    for (const Arrival& arrival : peer.arriving) {
      if (arrival.receive) finish(*arrival.receive, error);
    }
    ended_arrivals_.splice(ended_arrivals_.end(), peer.arriving);
  }
  void fail_pending(Peer& peer, const std::exception_ptr& error) {
    finish_all(peer.sends, error);
    fail_receives(peer, error);
  }

  void announce(SharedMemory::Presence presence) {
    memory_->set_presence(rank_, presence);
    for (int64_t peer = 0; peer < std::ssize(peers_); ++peer) {
      if (peer != rank_) memory_->doorbell(peer).increment();
    }
  }

  template <typename Condition>
  bool wait_until(SteadyClock::time_point deadline, const Condition& condition) {
    const Caller caller(callers_);
    while (true) {
      std::shared_ptr<SharedMemory> memory;  // close() may run meanwhile
      uint32_t seen = 0;
      bool has_more = false;
      {
        const Lock lock(*this);
        if (condition()) return true;
        seen = memory_->doorbell(rank_).value();
        has_more = transfer_all();
        check_peers();
        if (condition()) return true;
        memory = memory_;
      }
      const auto left = deadline - SteadyClock::now();
      if (left <= left.zero()) return false;
      if (has_more) continue;
      memory->wait_for_doorbell(rank_, seen, std::min<SteadyClock::duration>(kLivenessInterval, left), /*spins=*/true);
    }
  }

  /// Returns true if there may be more to transfer at once.
  bool transfer_all() {
    bool has_more = false;
    if (pending_ == 0) return has_more;
    for (int64_t peer = 0; peer < std::ssize(peers_); ++peer) {
      has_more |= push(peer);
      has_more |= pull(peer);
    }
    return has_more;
  }

  /// Fails the messages from and to ranks that have left or ended.
  void check_peers() {
    if (pending_ == 0) return;
    const auto now = SteadyClock::now();
    const bool checks_locks = now >= last_liveness_check_ + kLivenessInterval;
    if (checks_locks) last_liveness_check_ = now;
    for (size_t i = 0; i < peers_.size(); ++i) {
      Peer& peer = peers_[i];
      if (peer.sends.empty() && peer.receives.empty() && peer.arriving.empty()) continue;
      const auto rank = static_cast<int64_t>(i);
      const bool has_ended = checks_locks && !memory_->is_alive(rank);
      const auto presence = memory_->presence(rank);
      if (!has_ended && presence == SharedMemory::Presence::active) continue;
      const bool has_left_group = presence != SharedMemory::Presence::active;
      const auto error = has_left_group
                             ? has_left(rank)
                             : std::make_exception_ptr(PeerLost(fmt::format("rank {} has ended", job_rank(rank))));
      finish_all(peer.sends, error);
      if (!has_ended && presence == SharedMemory::Presence::draining) continue;
      while (pull(rank)) {  // it may have sent messages just before
      }
      fail_receives(peer, error);
    }
  }

  /// Fills free slots. Returns true if it ends before the slots are full and everything is sent.
  bool push(int64_t to) {
    Peer& peer = peers_[static_cast<size_t>(to)];
    if (peer.sends.empty()) return false;
    auto& channel = memory_->channel(rank_, to);
    for (int i = 0; i < kSlotsPerCall; ++i) {
      const uint32_t number = channel.filled.value();
      if (peer.sends.empty() || number - channel.emptied.value() == SharedMemory::kSlots) return false;
      Message& message = *peer.sends.front();
      if (message.sent == 0) channel.begins[number % SharedMemory::kSlots] = {message.tag, message.bytes};
      const int64_t piece = std::min(memory_->slot_bytes(), message.bytes - message.sent);
      std::copy_n(message.data + message.sent, piece, memory_->slot(rank_, to, number));
      message.sent += piece;
      channel.filled.set(number + 1);
      memory_->doorbell(to).increment();
      if (message.sent < message.bytes) continue;
      finish(message);
      ended_messages_.splice(ended_messages_.end(), peer.sends, peer.sends.begin());
    }
    return true;
  }

  /// Empties filled slots while this rank receives. Returns true if it ends before the slots are empty.
  bool pull(int64_t from) {
    Peer& peer = peers_[static_cast<size_t>(from)];
    if (peer.receives.empty() && peer.arriving.empty()) return false;
    auto& channel = memory_->channel(from, rank_);
    for (int i = 0; i < kSlotsPerCall; ++i) {
      const uint32_t number = channel.emptied.value();
      if ((peer.receives.empty() && peer.arriving.empty()) || !channel.filled.has_reached(number + 1)) return false;
      if (peer.arriving.empty() && !begin_arrival(peer, channel.begins[number % SharedMemory::kSlots])) return false;
      Arrival& arrival = peer.arriving.front();
      const int64_t piece = std::min(memory_->slot_bytes(), arrival.begin.bytes - arrival.received);
      if (char* const into = memory_of(arrival)) {
        std::copy_n(memory_->slot(from, rank_, number), piece, into + arrival.received);
      }
      arrival.received += piece;
      channel.emptied.set(number + 1);
      memory_->doorbell(from).increment();
      if (arrival.received == arrival.begin.bytes) end_arrival(peer);
    }
    return true;
  }

  /// Returns false if there is no memory for a message that must be kept. All pending receives then fail.
  bool begin_arrival(Peer& peer, const SharedMemory::Channel::Message& begin) {
    const auto fits = [&](const MessagePtr& receive) { return receive->tag == begin.tag; };
    const auto found = std::ranges::find_if(peer.receives, fits);
    try {
      Arrival& arrival = peer.arriving.emplace_back(Arrival{.begin = begin});
      if (found == peer.receives.end()) {
        arrival.kept = std::make_unique_for_overwrite<char[]>(static_cast<size_t>(begin.bytes));
        return true;
      }
      arrival.receive = std::move(*found);
      peer.receives.erase(found);
      return true;
    } catch (const std::bad_alloc&) {
      peer.arriving.clear();
      fail_receives(peer, std::make_exception_ptr(PeerLost(fmt::format(
                              "cannot allocate {} bytes for an earlier message with tag {}; post its receive first",
                              begin.bytes, begin.tag))));
      return false;
    }
  }

  /// Returns null if the message has another number of bytes than its receive.
  static char* memory_of(const Arrival& arrival) {
    if (!arrival.receive) return arrival.kept.get();
    return arrival.receive->bytes == arrival.begin.bytes ? arrival.receive->data : nullptr;
  }

  void end_arrival(Peer& peer) {
    const bool is_received = peer.arriving.front().receive != nullptr;
    if (is_received) deliver(peer.arriving.front());
    auto& list = is_received ? ended_arrivals_ : peer.kept;
    list.splice(list.end(), peer.arriving);
  }

  /// Completes the receive of a message that has arrived.
  void deliver(const Arrival& arrival) {
    Message& receive = *arrival.receive;
    if (arrival.begin.bytes == receive.bytes) return finish(receive);
    finish(receive,
           std::make_exception_ptr(PeerLost(fmt::format("rank {} sends {} bytes, this rank expects {}",
                                                        job_rank(receive.peer), arrival.begin.bytes, receive.bytes))));
  }

  /// Gives a message that is kept, or is being kept, to its receive. Returns false if there is none.
  bool take_kept(Peer& peer, const MessagePtr& receive) {
    const auto fits = [&](const Arrival& arrival) { return !arrival.receive && arrival.begin.tag == receive->tag; };
    const auto found = std::ranges::find_if(peer.kept, fits);
    const bool is_whole = found != peer.kept.end();
    if (!is_whole && (peer.arriving.empty() || !fits(peer.arriving.front()))) return false;
    Arrival& arrival = is_whole ? *found : peer.arriving.front();
    ++pending_;
    arrival.receive = receive;
    if (char* const into = memory_of(arrival)) std::copy_n(arrival.kept.get(), arrival.received, into);
    arrival.kept.reset();
    if (!is_whole) return true;
    deliver(arrival);
    ended_arrivals_.splice(ended_arrivals_.end(), peer.kept, found);
    return true;
  }

  std::mutex mutex_;                      // protects the members below, except constant and atomic ones
  std::shared_ptr<SharedMemory> memory_;  // null if closed
  const int64_t rank_;
  const std::vector<int64_t> job_ranks_;
  const milliseconds timeout_;
  std::vector<Peer> peers_;
  int64_t pending_ = 0;
  std::list<MessagePtr> ended_messages_;
  std::list<Arrival> ended_arrivals_;
  SteadyClock::time_point last_liveness_check_{};
  std::exception_ptr closing_;  // set by leave()
  std::exception_ptr closed_;   // set by close()
  std::condition_variable thread_wakes_;
  bool thread_sleeps_ = false;
  std::atomic<int> callers_ = 0;  // of wait_until()
};

/// Handle of a message. A dropped handle does not cancel the message.
class LocalMailbox::Handle : public c10d::Work {
 public:
  Handle(std::shared_ptr<Transfers> transfers, std::shared_ptr<Message> message)
      : Work(-1, message->type), transfers_(std::move(transfers)), message_(std::move(message)) {}

  bool isCompleted() override { return transfers_->is_complete(*message_); }
  bool isSuccess() const override { return transfers_->has_succeeded(*message_); }
  std::vector<at::Tensor> result() override { return {message_->tensor}; }

  bool wait(milliseconds timeout) override {
    transfers_->wait(*message_, timeout);
    return true;
  }

  /// Returns a completed future.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_after_wait(*this, milliseconds(0)); }

 private:
  std::shared_ptr<Transfers> transfers_;
  std::shared_ptr<Message> message_;
};

LocalMailbox::LocalMailbox(std::shared_ptr<SharedMemory> memory, int64_t rank, std::vector<int64_t> job_ranks,
                           milliseconds timeout)
    : transfers_(std::make_shared<Transfers>(std::move(memory), rank, std::move(job_ranks), timeout)) {}

LocalMailbox::~LocalMailbox() {
  transfers_->leave();
  if (!thread_.joinable()) return;
  // The thread may release a tensor with the last handle of the group. It owns the transfers.
  thread_.get_id() == std::this_thread::get_id() ? thread_.detach() : thread_.join();
}

void LocalMailbox::abandon() noexcept { transfers_->close(); }

LocalMailbox::WorkPtr LocalMailbox::send(const at::Tensor& tensor, int64_t to, int64_t tag) {
  return submit(OpType::SEND, tensor, to, tag);
}

LocalMailbox::WorkPtr LocalMailbox::receive(const at::Tensor& tensor, int64_t from, int64_t tag) {
  return submit(OpType::RECV, tensor, from, tag);
}

LocalMailbox::WorkPtr LocalMailbox::submit(OpType type, const at::Tensor& tensor, int64_t peer, int64_t tag) {
  transfers_->check_arguments(peer, tag);
  auto message = std::make_shared<Message>(Message{.tensor = tensor,
                                                   .storage = tensor.storage(),
                                                   .data = at_byte(tensor, 0),
                                                   .bytes = byte_count(tensor),
                                                   .peer = peer,
                                                   .tag = tag,
                                                   .type = type});
  auto handle = c10::make_intrusive<Handle>(transfers_, message);
  if (transfers_->add(message)) return handle;
  try {
    std::call_once(has_thread_,
                   [this] { thread_ = std::thread([transfers = transfers_] { transfers->run_thread(); }); });
  } catch (const std::system_error&) {
    // The system has no thread. wait() transfers the message.
  }
  return handle;
}

}  // namespace accelerate::comm
