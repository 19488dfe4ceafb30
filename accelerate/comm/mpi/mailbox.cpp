// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/mpi/mailbox.hpp"

#include <fmt/format.h>

#include <optional>
#include <thread>

#include "accelerate/comm/core/bytes.hpp"
#include "accelerate/comm/core/completable_work.hpp"
#include "accelerate/comm/core/connection.hpp"

namespace accelerate::comm {

using namespace std::chrono_literals;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

/// One message. It has its own lock, because one thread may wait for it while another polls it.
class MpiMessage : public c10d::Work {
 public:
  MpiMessage(c10d::OpType type, std::shared_ptr<MpiMailbox> mailbox, at::Tensor tensor, int peer)
      : Work(-1, type), mailbox_(std::move(mailbox)), tensor_(std::move(tensor)), peer_(peer) {}
  MpiMessage(const MpiMessage&) = delete;
  MpiMessage& operator=(const MpiMessage&) = delete;
  ~MpiMessage() override {
    if (!over_) mailbox_->keep(request_, std::move(tensor_));
  }

  MPI_Request* request() { return &request_; }

  bool isCompleted() override { return probe(); }
  bool isSuccess() const override { return over_ && !error_; }
  std::vector<at::Tensor> result() override { return {tensor_}; }

  bool wait(milliseconds timeout) override {
    const auto limit = timeout > milliseconds(0) ? timeout : mailbox_->timeout_;
    const auto begun = Clock::now();
    std::optional<Clock::time_point> has_left;
    while (!probe()) {
      const auto now = Clock::now();
      if (now > begun + limit) throw DeadlineExceeded({peer_});
      if (now < begun + kSpinsBeforePause) {
        std::this_thread::yield();
        continue;
      }
      std::this_thread::sleep_for(kPause);
      if (has_left && now > *has_left + kInFlight) throw_peer_left();
      if (!has_left && (timed_out() || MpiRuntime::has_ended(job_rank()))) has_left = now;
    }
    if (error_) std::rethrow_exception(error_);
    return true;
  }

  /// Returns a completed future: only wait() progresses the message.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_after_wait(*this, mailbox_->timeout_); }

 private:
  /// Polls the message and returns true if it is complete.
  bool probe() {
    const std::lock_guard lock(mutex_);
    if (over_) return true;
    int done = 0;
    MPI_Status status{};
    const int code = MPI_Test(&request_, &done, &status);
    if (code == MPI_SUCCESS && done == 0) return false;
    over_ = true;
    try {
      check(code, status);
    } catch (...) {
      error_ = std::current_exception();
    }
    return true;
  }

  [[nodiscard]] int64_t job_rank() const { return mailbox_->job_ranks_.at(static_cast<size_t>(peer_)); }

  /// True if the peer has left the group although its program still runs.
  [[nodiscard]] bool timed_out() const {
    int come = 0;
    MPI_Iprobe(peer_, kLeaveTag, mailbox_->channel_->communicator(), &come, MPI_STATUS_IGNORE);
    return come != 0;
  }

  [[noreturn]] void throw_peer_left() const {
    if (timed_out()) throw PeerLeft(peer_);
    throw PeerLost(fmt::format("rank {} has ended", job_rank()));
  }

  void check(int code, const MPI_Status& status) const {
    const int64_t sender = job_rank();
    const int64_t expected = byte_count(tensor_);
    int kind = MPI_SUCCESS;
    MPI_Error_class(code, &kind);
    if (kind == MPI_ERR_TRUNCATE) {
      throw PeerLost(fmt::format("rank {} sends more than the {} bytes that this rank expects", sender, expected));
    }
    check_mpi(code);
    if (opType_ != c10d::OpType::RECV) return;
    MPI_Count bytes = 0;
    MPI_Get_elements_x(&status, MPI_BYTE, &bytes);
    if (bytes != expected) {
      throw PeerLost(fmt::format("rank {} sends {} bytes, this rank expects {}", sender, bytes, expected));
    }
  }

  std::shared_ptr<MpiMailbox> mailbox_;
  at::Tensor tensor_;
  int peer_;
  MPI_Request request_ = MPI_REQUEST_NULL;
  bool over_ = false;
  std::exception_ptr error_;
};

c10::intrusive_ptr<c10d::Work> MpiMailbox::send(const at::Tensor& tensor, int to, int tag) {
  auto message = c10::make_intrusive<MpiMessage>(c10d::OpType::SEND, shared_from_this(), tensor, to);
  const MpiBytes bytes(byte_count(tensor));
  check_mpi(MPI_Isend(tensor.const_data_ptr(), bytes.count(), bytes.type(), to, tag, channel_->communicator(),
                      message->request()));
  return message;
}

c10::intrusive_ptr<c10d::Work> MpiMailbox::receive(const at::Tensor& tensor, int from, int tag) {
  auto message = c10::make_intrusive<MpiMessage>(c10d::OpType::RECV, shared_from_this(), tensor, from);
  const MpiBytes bytes(byte_count(tensor));
  check_mpi(MPI_Irecv(tensor.mutable_data_ptr(), bytes.count(), bytes.type(), from, tag, channel_->communicator(),
                      message->request()));
  return message;
}

void MpiMailbox::announce_departure() noexcept {
  for (int step = 1; step < channel_->size(); ++step) {
    MPI_Request sent = MPI_REQUEST_NULL;
    MPI_Isend(nullptr, 0, MPI_BYTE, (channel_->rank() + step) % channel_->size(), kLeaveTag, channel_->communicator(),
              &sent);
  }
}

void MpiMailbox::keep(MPI_Request request, at::Tensor tensor) noexcept {
  if (request == MPI_REQUEST_NULL) return;
  const std::lock_guard lock(mutex_);
  dropped_.push_back({request, std::move(tensor)});
}

bool MpiMailbox::finish_abandoned(milliseconds patience) noexcept {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  const std::lock_guard lock(mutex_);
  while (!dropped_.empty()) {
    dropped_.remove_if([](AbandonedMessage& each) {
      int done = 0;
      return MPI_Test(&each.request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0;
    });
    if (dropped_.empty()) break;
    if (std::chrono::steady_clock::now() > deadline) {
      new std::list<AbandonedMessage>(std::move(dropped_));  // NOLINT: MPI may still use their memory
      dropped_.clear();
      return false;
    }
    std::this_thread::yield();
  }
  return true;
}

}  // namespace accelerate::comm
